"""The prompts, and their version."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files


@cache
def load_prompt(name: str, package: str = "handoff") -> str:
    """Load a prompt of a package."""
    return (files(f"langgraph_takeover.{package}") / "prompts" / f"{name}.md").read_text(encoding="utf-8")


@cache
def compute_version(*packages: str) -> str:
    """Return one version for all prompts of these packages; any change gives another version."""
    digest = hashlib.sha256()
    for package in packages or ("handoff",):
        for prompt in sorted(
            files(f"langgraph_takeover.{package}").joinpath("prompts").iterdir(), key=lambda each: each.name
        ):
            if prompt.name.endswith(".md"):
                digest.update(f"{package}/{prompt.name}\0{prompt.read_text(encoding='utf-8')}\0".encode())
    return digest.hexdigest()[:12]
