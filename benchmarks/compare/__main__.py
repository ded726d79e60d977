"""Run the same seven tasks in five projects, and write the comparison: `make compare`."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from benchmarks.compare.environments import PROJECTS, REQUIREMENTS, prepare, read_version
from benchmarks.compare.observations import describe
from benchmarks.compare.page import PAGE, RESULTS, Comparison, Result, format_page, format_table, load_results
from benchmarks.compare.runs import PROGRAMS, ROOT, run_task
from benchmarks.compare.scripts import TASKS
from benchmarks.figures import choose_names, refuse, run_command
from langgraph_takeover.base.takeover_error import TakeoverError

_UNFINISHED = ROOT / ".compare" / "unfinished.json"
FAILED, INTERRUPTED = 1, 130
_EPILOG = """Examples:

make compare

python -m benchmarks.compare --only takeover,deepagents --tasks kill

Exit codes: 0 done; 1 an environment or a program failed; 2 usage; 130 interrupted. Call it again to continue.
"""


def main(
    only: Annotated[
        str | None, typer.Option(help=f"Projects, separated by commas: {', '.join(PROJECTS)}. Default: all.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help=f"Tasks, separated by commas: {', '.join(TASKS)}. Default: all.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write results.json and comparison.md to this directory instead.")
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Write the page from the stored results alone.")
    ] = False,
) -> None:
    """Run the same seven tasks in five projects: what survives a kill, what is lost. No LLM is involved.

    Makes one environment per project in .compare/, runs all programs, prints the table, and writes
    benchmarks/compare/results.json and docs/comparison.md. A selection is printed, and written only with --out.
    """
    chosen, selected = choose_names("--only", only, PROJECTS), choose_names("--tasks", tasks, TASKS)
    if page:
        _write(_load_stored(), out)
        return
    unfinished = _UNFINISHED if out is None else out / _UNFINISHED.name
    try:
        comparison = measure(chosen, selected, unfinished)
    except TakeoverError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        print("interrupted (call it again to continue)", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    print(format_table(comparison))
    if out is not None or (only is None and tasks is None):
        _write(comparison, out)
    unfinished.unlink(missing_ok=True)


def measure(projects: list[str], tasks: list[str], unfinished: Path) -> Comparison:
    """Run the programs; continue an interrupted comparison. Raises InstallError and ProgramError."""
    pythons = {name: prepare(name, _report) for name in projects}
    versions = {name: read_version(name, python) for name, python in pythons.items()}
    digest = _compute_digest()
    done = {(each.project, each.task): each for each in _load_unfinished(unfinished, digest)}
    wanted = [(name, task) for name in projects for task in tasks]
    for name, task in wanted:
        if (name, task) not in done:
            _report(f"{PROJECTS[name].title}: {TASKS[task].title}")
            done[name, task] = _measure_task(task, name, pythons[name])
            Comparison(date=digest, versions=versions, results=tuple(done.values())).save(unfinished)
    today = datetime.now(UTC).date().isoformat()
    return Comparison(date=today, versions=versions, results=tuple(done[each] for each in wanted))


def _measure_task(task: str, name: str, python: Path) -> Result:
    """Run one program in a temporary directory, which stays only if it fails."""
    work = Path(tempfile.mkdtemp(prefix="compare-"))
    try:
        seen = run_task(TASKS[task], task, name, python, work / "work")
    except KeyboardInterrupt:
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)
    return Result(task=task, project=name, cells=describe(task, seen))


def _compute_digest() -> str:
    """The digest of everything that determines the results, except for Takeover itself."""
    here = Path(__file__).parent
    files = sorted([*here.glob("*.py"), *PROGRAMS.rglob("*.py"), *REQUIREMENTS.glob("*.txt")])
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()


def _load_unfinished(path: Path, digest: str) -> list[Result]:
    """The results of an interrupted run of the same programs."""
    try:
        found = load_results(path)
    except (OSError, ValidationError):
        return []
    return list(found.results) if found.date == digest else []


def _load_stored() -> Comparison:
    try:
        return load_results()
    except (OSError, ValidationError):
        refuse(f"no stored results: {RESULTS.relative_to(ROOT)} (run: make compare)")


def _write(comparison: Comparison, out: Path | None) -> None:
    results, page = (RESULTS, PAGE) if out is None else (out / "results.json", out / "comparison.md")
    comparison.save(results)
    page.write_text(format_page(comparison))
    print(f"written: {results}, {page}", file=sys.stderr)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_command(main, _EPILOG)
