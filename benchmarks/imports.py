"""Import times of each direct dependency and of the package's entry points with all their imports.

    python benchmarks/imports.py --rounds 5

Medians of fresh interpreters, in milliseconds of processor time; a first run compiles the bytecode. A library that two
dependencies import counts for both.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[1]
MODULES = {
    "langchain-core": "langchain_core.language_models.chat_models",
    "langgraph": "langgraph.graph",
    "langgraph-checkpoint-sqlite": "langgraph.checkpoint.sqlite",
    "langgraph-sdk": "langgraph_sdk.runtime",
    "matplotlib": "matplotlib.figure",
    "pyarrow": "pyarrow.parquet",
    "pyyaml": "yaml",
    "rich": "rich.table, rich.progress",
    "scipy": "scipy.stats",
    "swebench": "swebench.harness.utils",
}
"""The imported modules of a dependency, if their name differs from the dependency's."""
ENTRY_POINTS = {
    "import graph": "import graph",
    "from graph import open_home, run": "from graph import open_home, run",
    "python -m evals.takeover --help": "sys.argv[1:] = ['--help']; from evals.takeover import main; main()",
    "python -m evals.takeover --list-tasks": (
        "sys.argv[1:] = ['--list-tasks']; from evals.takeover import main; main()"
    ),
    "a worker, before its first job": "import evals.run.execution.stages",
    "a report": (
        "from evals.report import make_report; from evals.reports.html import page; "
        "from evals.reports.plots import figures; from evals.reports.tables import study_tables"
    ),
}
_TIMED_PROGRAM = """
import os, sys, time
start, out = time.process_time(), os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
try:
    {program}
except SystemExit as error:
    if error.code: raise
os.write(out, str(1000 * (time.process_time() - start)).encode())
"""


def measure_import(program: str, rounds: int) -> float:
    """The median over fresh interpreters, in milliseconds. Raises CalledProcessError."""
    command = [sys.executable, "-c", _TIMED_PROGRAM.format(program=program)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    durations = [
        float(subprocess.check_output(command, cwd=ROOT, env=environment)) for _ in range(rounds + 1)
    ]
    return statistics.median(durations[1:])


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Number of interpreters per median.")] = 5,
) -> None:
    """Print the import times as Markdown tables."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print("| dependency | import, ms |\n|---|---|")
    extras = project["optional-dependencies"]
    named = {
        re.split("[<>=]", each)[0]
        for each in (*project["dependencies"], *extras["openai"], *extras["evals"], "fsspec")
    }
    for name in sorted(each for each in named if "[" not in each):
        module = MODULES.get(name, name.replace("-", "_"))
        print(f"| {name} | {measure_import(f'import {module}', rounds):,.0f} |", flush=True)
    print("\n| entry point | ms |\n|---|---|")
    for name, program in ENTRY_POINTS.items():
        print(f"| `{name}` | {measure_import(program, rounds):,.0f} |", flush=True)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
