"""One virtual environment per project, made once, with pinned packages."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.compare.runs import ROOT
from langgraph_takeover.base.takeover_error import TakeoverError

REQUIREMENTS = Path(__file__).parent / "requirements"
CACHE = ROOT / ".compare" / "environments"
_VERSION_PROGRAM = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


class InstallError(TakeoverError, RuntimeError):
    """A project's packages cannot be installed."""


class Project(NamedTuple):
    """A compared project."""

    title: str
    package: str


PROJECTS = {
    "takeover": Project("Takeover", "langgraph-takeover"),
    "langgraph_swarm": Project("langgraph-swarm", "langgraph-swarm"),
    "openai_agents": Project("OpenAI Agents SDK", "openai-agents"),
    "deepagents": Project("deepagents", "deepagents"),
    "mini_swe_agent": Project("mini-swe-agent", "mini-swe-agent"),
}
"""By the names of their programs' directories."""


def prepare(name: str, report: Callable[[str], None], cache: Path = CACHE) -> Path:
    """Return the Python of a project's environment; make the environment if it is missing or outdated.

    Takeover uses the environment of the current process. Raises InstallError.
    """
    if name == "takeover":
        return Path(sys.executable)
    directory, requirements = cache / name, REQUIREMENTS / f"{name}.txt"
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    python, mark = directory / "bin" / "python", directory / "installed"
    if mark.is_file() and mark.read_text() == digest:
        return python
    lines = len(requirements.read_text().splitlines())
    report(f"{PROJECTS[name].title}: installing {lines} packages, some minutes")
    shutil.rmtree(directory, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(directory)], name)
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "-r", str(requirements)]
    _run([str(python), "-m", "pip", "install", *options], name)
    mark.write_text(digest)
    return python


def read_version(name: str, python: Path) -> str:
    """Return the installed version of a project. Raises InstallError."""
    return _run([str(python), "-c", _VERSION_PROGRAM, PROJECTS[name].package], name).strip()


def _run(words: list[str], name: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        reason = next((line for line in lines if "ERROR" in line), lines[-1])[:200]
        raise InstallError(
            f"{PROJECTS[name].title}: {reason} (check the network and benchmarks/compare/requirements/{name}.txt)"
        )
    return done.stdout
