"""Size and packages of an installation in a fresh environment, without pip.

    python benchmarks/install_size.py --extra evals --list

Builds the wheel of a commit, and installs it with pip into a new virtual environment per row: without extras, and with
each `--extra`. Sizes are those on disk, compiled bytecode included, in MB (10^6 bytes).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

ROOT = Path(__file__).resolve().parents[1]
_NAME = "langgraph-takeover"
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""Without the packages of this checkout."""
_LIST_PROGRAM = """
import json
from importlib.metadata import distributions
names = {each.metadata["Name"]: [str(each.locate_file(file)) for file in each.files or ()] for each in distributions()}
print(json.dumps(names))
"""


class Installation(NamedTuple):
    """The packages of one environment, with their size on disk."""

    extra: str
    sizes: dict[str, int]

    @property
    def total_mb(self) -> float:
        return sum(self.sizes.values()) / 1e6


def build_wheel(commit: str, directory: Path) -> Path:
    """Build the wheel of a commit. Raises CalledProcessError."""
    source = directory / "source"
    source.mkdir()
    packed = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", source], input=packed, check=True)
    arguments = ["wheel", "--quiet", "--no-deps", "--wheel-dir", directory, source]
    subprocess.run([sys.executable, "-m", "pip", *map(str, arguments)], env=_ENVIRONMENT, check=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def measure(wheel: Path, extra: str) -> Installation:
    """Install the wheel into a new environment. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="install-size-") as directory:
        venv.create(directory, with_pip=True)
        python = Path(directory) / "bin" / "python"
        before = _list_files(python)  # pip, and setuptools before Python 3.12
        target = f"{_NAME}[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", target]
        subprocess.run([str(python), *install], env=_ENVIRONMENT, check=True)
        sizes = {name: _sum_sizes(map(Path, files)) for name, files in _list_files(python).items()}
        return Installation(extra, {name: size for name, size in sizes.items() if name not in before})


def _list_files(python: Path) -> dict[str, list[str]]:
    """List the files of each package of an environment."""
    listed: dict[str, list[str]] = json.loads(
        subprocess.check_output([python, "-c", _LIST_PROGRAM], env=_ENVIRONMENT)
    )
    return listed


def _sum_sizes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_blocks * 512 for path in set(paths) if path.is_file())


def main(
    extra: Annotated[
        list[str] | None, typer.Option(help="Extra to install in one more environment (repeatable).")
    ] = None,
    commit: Annotated[str, typer.Option(help="Commit to build.")] = "HEAD",
    show_packages: Annotated[
        bool, typer.Option("--list", help="List each environment's packages, largest first.")
    ] = False,
) -> None:
    """Print size and number of packages as Markdown tables."""
    with tempfile.TemporaryDirectory(prefix="install-size-") as directory:
        wheel = build_wheel(commit, Path(directory))
        print("| installation | packages | MB |\n|---|---|---|")
        found = []
        for each in ("", *(extra or ())):
            found.append(one := measure(wheel, each))
            print(f"| {_format_target(each)} | {len(one.sizes)} | {one.total_mb:,.0f} |", flush=True)
    for one in found if show_packages else ():
        print(f"\n| {_format_target(one.extra)} | MB |\n|---|---|")
        for name, size in sorted(one.sizes.items(), key=lambda each: -each[1]):
            print(f"| {name} | {size / 1e6:,.1f} |")


def _format_target(extra: str) -> str:
    return f"`{_NAME}[{extra}]`" if extra else f"`{_NAME}`"


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
