"""Size and packages of an installation, without pip.

Builds the wheel of a commit with pip, and installs it into a new directory per row: without extras, and with each
`--extra`. Sizes are those on disk, compiled bytecode included, in MB (10^6 bytes).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Annotated

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks.figures import run_command
from benchmarks.host import ROOT

_NAME = "langgraph-takeover"
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""Without the packages of this checkout."""


def main(
    extra: Annotated[
        list[str] | None, typer.Option(help="Extra to install in one more directory (repeatable).")
    ] = None,
    commit: Annotated[str, typer.Option(help="Commit to build.")] = "HEAD",
    show_packages: Annotated[
        bool, typer.Option("--list", help="List the packages of each row, largest first.")
    ] = False,
) -> None:
    """Print size and number of packages as Markdown tables."""
    requirements = (_NAME, *(f"{_NAME}[{each}]" for each in extra or ()))
    print("| installation | packages | MB |\n|---|---|---|")
    sizes = {}
    for each in requirements:
        sizes[each] = measure_packages(each, commit)
        print(f"| `{each}` | {len(sizes[each])} | {sum(sizes[each].values()) / 1e6:,.0f} |", flush=True)
    for requirement, packages in sizes.items() if show_packages else ():
        print(f"\n| `{requirement}` | MB |\n|---|---|")
        for name, size in sorted(packages.items(), key=lambda each: -each[1]):
            print(f"| {name} | {size / 1e6:,.1f} |")


def measure_packages(requirement: str, commit: str) -> dict[str, int]:
    """Install a commit into a new directory; return the bytes on disk by package. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="install-size-") as directory:
        revision = subprocess.check_output(["git", "-C", ROOT, "rev-parse", commit], text=True).strip()
        target = f"git+{ROOT.as_uri()}@{revision}#egg={requirement}"
        install = ["install", "--quiet", "--disable-pip-version-check", "--target", directory, target]
        subprocess.run([sys.executable, "-m", "pip", *install], env=_ENVIRONMENT, check=True)
        return {each.metadata["Name"]: _measure_size(each) for each in distributions(path=[directory])}


def _measure_size(distribution: Distribution) -> int:
    files = {Path(str(distribution.locate_file(file))) for file in distribution.files or ()}
    return sum(path.stat().st_blocks * 512 for path in files if path.is_file())


if __name__ == "__main__":
    run_command(main)
