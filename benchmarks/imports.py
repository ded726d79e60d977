"""What imports cost: each direct dependency by itself, and the package's own doors with all that they import.

    python benchmarks/imports.py --rounds 5

Medians of fresh interpreters, in milliseconds of processor time, so that other processes count little; bytecode is
compiled before. What two libraries both import counts at each of them.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[1]
MODULES = {
    "docker": "docker",
    "fsspec": "fsspec",
    "jinja2": "jinja2",
    "langchain-core": "langchain_core.language_models.chat_models",
    "langchain-openai": "langchain_openai",
    "langgraph": "langgraph.graph",
    "langgraph-checkpoint-sqlite": "langgraph.checkpoint.sqlite",
    "langgraph-sdk": "langgraph_sdk.runtime",
    "markupsafe": "markupsafe",
    "matplotlib": "matplotlib.figure",
    "numpy": "numpy",
    "openai": "openai",
    "psutil": "psutil",
    "pyarrow": "pyarrow.parquet",
    "pydantic": "pydantic",
    "pyseccomp": "pyseccomp",
    "pyyaml": "yaml",
    "rich": "rich.table, rich.progress",
    "scipy": "scipy.stats",
    "sqlalchemy": "sqlalchemy",
    "swebench": "swebench.harness.utils",
    "tenacity": "tenacity",
    "tree-sitter": "tree_sitter",
    "tree-sitter-bash": "tree_sitter_bash",
    "typer": "typer",
    "typing-extensions": "typing_extensions",
    "zstandard": "zstandard",
}
"""What we import of each."""
DOORS = {
    "import graph": "import graph",
    "from graph import open_home, run": "from graph import open_home, run",
    "python -m evals.takeover --help": "sys.argv[1:] = ['--help']; from evals.takeover import main; main()",
    "python -m evals.takeover --list-tasks": (
        "sys.argv[1:] = ['--list-tasks']; from evals.takeover import main; main()"
    ),
    "a worker, before its first job": "import evals.run.stages",
    "a report": "from evals.report import make_report; from evals.reports import page, plots, tables",
}
_MEASURED = """
import os, sys, time
began, out = time.process_time(), os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
try:
    {program}
except SystemExit as ended:
    if ended.code: raise
os.write(out, str(1000 * (time.process_time() - began)).encode())
"""


def measured(program: str, rounds: int) -> float:
    """The median of fresh interpreters; one before them compiles what is not compiled yet."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    taken = []
    for _ in range(rounds + 1):
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED.format(program=program)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        taken.append(float(done.stdout))
    return statistics.median(taken[1:])


def licence(distribution: str) -> str:
    """What its metadata says."""
    told = metadata(distribution)
    named = [line.rpartition(" :: ")[2] for line in told.get_all("Classifier", ()) if "License ::" in line]
    found: list[str] = told.get_all("License-Expression", []) or named or told.get_all("License", ["?"])
    return found[0].splitlines()[0]


def command(
    rounds: Annotated[int, typer.Option(min=1, help="Interpreters to take medians over.")] = 5,
) -> None:
    """Print both as tables in Markdown."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print("| dependency | licence | import, ms |\n|---|---|---|")
    for each in sorted(re.split("[<>=]", name)[0] for name in project["dependencies"]):
        try:
            under = licence(each)
        except PackageNotFoundError:
            print(f"error: {each} is not installed", file=sys.stderr)
            raise typer.Exit(2) from None
        print(f"| {each} | {under} | {measured(f'import {MODULES[each]}', rounds):,.0f} |", flush=True)
    print("\n| door | ms |\n|---|---|")
    for name, program in DOORS.items():
        print(f"| `{name}` | {measured(program, rounds):,.0f} |", flush=True)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    app()
