"""The prompts, and their version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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
    for name, text in _read_prompts(packages or ("handoff",)):
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()[:12]


def compute_digests(*packages: str) -> dict[str, str]:
    """The digest of each prompt of these packages, by its package and file name."""
    return {name: hashlib.sha256(text.encode()).hexdigest()[:12] for name, text in _read_prompts(packages)}


def _read_prompts(packages: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for package in packages:
        prompts = files(f"langgraph_takeover.{package}").joinpath("prompts").iterdir()
        for prompt in sorted(prompts, key=lambda each: each.name):
            if prompt.name.endswith(".md"):
                yield f"{package}/{prompt.name}", prompt.read_text(encoding="utf-8")
