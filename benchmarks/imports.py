"""Import times of each direct dependency and of the package's entry points with all their imports.

Medians of fresh interpreters, in milliseconds of processor time; a first run compiles the bytecode. A library that two
dependencies import counts for both.
"""

from __future__ import annotations

import re
import statistics
import sys
import tomllib
from pathlib import Path

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.figures import run_command
from benchmarks.host import ROOT, run_python
from benchmarks.turns import Rounds

_MODULES = {
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
_ENTRY_POINTS = {
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


def main(rounds: Rounds = 5) -> None:
    """Print the import times as Markdown tables."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = (*project["dependencies"], *extras["openai"], *extras["evals"], "fsspec")
    names = sorted({re.split("[<>=]", each)[0] for each in requirements if "[" not in each})
    modules = {name: f"import {_MODULES.get(name, name.replace('-', '_'))}" for name in names}
    for title, programs in (("dependency | import, ms", modules), ("entry point | ms", _ENTRY_POINTS)):
        print(f"| {title} |\n|---|---|")
        for name, program in programs.items():
            timed = _TIMED_PROGRAM.format(program=program)
            times = [float(run_python("-c", timed, cwd=ROOT)) for _ in range(rounds + 1)]
            print(f"| {name} | {statistics.median(times[1:]):,.0f} |", flush=True)
        print()


if __name__ == "__main__":
    run_command(main)
