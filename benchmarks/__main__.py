"""Run all benchmarks, each in its own process; print one table and save it as a file."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from benchmarks.figures import Figure, format_cells, print_progress, print_wide, refuse
from benchmarks.host import Meter, describe_host
from benchmarks.page import Part, ResultsPage, build_table, format_markdown
from benchmarks.recorded_runs import HELP

_HERE = Path(__file__).resolve().parent
SIZES = {
    "sandboxes": (["--rounds", "5"], ["--rounds", "1", "--files", "600", "--no-peers"]),
    "runtime": (
        ["--rounds", "5"],
        ["--rounds", "1", "--steps", "10", "--long-steps", "200", "--longest-steps", "400"],
    ),
    "detection": (["--rounds", "7"], ["--rounds", "1"]),
    "experiment": (["--repeats", "2"], ["--repeats", "1", "--limit", "1", "--rows", "1000", "--jobs", "400"]),
    "report_cost": (["--rounds", "3"], ["--rounds", "1", "--takeovers", "24", "--few", "8"]),
    "handoffs": (["--handoffs", "2000"], ["--handoffs", "80", "--processes", "4"]),
    "external_agents": (["--rounds", "5"], ["--rounds", "1", "--steps", "3", "--files", "200"]),
    "telemetry": (["--rounds", "5"], ["--rounds", "1", "--steps", "5", "--repetitions", "1000"]),
    "async_runs": (["--rounds", "3"], ["--rounds", "1", "--runs", "10", "--steps", "3", "--reply-s", "0.2"]),
    "time_shares": (["--steps", "300"], ["--steps", "20", "--snapshots", "2", "--files", "200"]),
}
"""The options of each benchmark, in a full run and in a quick run."""
_WITH_PEERS = ("sandboxes", "runtime")
_WITH_TRACES = ("detection", "report_cost")
FAILED, GOAL_MISSED, INTERRUPTED = 1, 3, 130
_EPILOG = """Examples:

python -m benchmarks

python -m benchmarks --quick --only sandboxes,report_cost

python -m benchmarks --peer-python ~/peers/bin/python --traces DIR --write docs/performance.md

Exit codes: 0 done, and every measured goal is met; 1 a benchmark failed, with the figures of the others; 2 usage; 3 a goal
is missed, with all figures (not with --quick, which is too small to judge goals); 130 interrupted, with the figures of the
completed benchmarks.
"""


def main(
    only: Annotated[
        str | None, typer.Option(help=f"Benchmarks, separated by commas: {', '.join(SIZES)}. Default: all.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use small sizes, to test the benchmarks themselves.")
    ] = False,
    peer_python: Annotated[
        str | None,
        typer.Option(help="Python interpreter with mini-swe-agent and swe-rex. Default: this one."),
    ] = None,
    traces: Annotated[list[str] | None, typer.Option(help=f"{HELP} Repeatable.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the figures as JSON. Default: bench/<date>.json.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Markdown file for the figures, such as docs/performance.md.")
    ] = None,
) -> None:
    """Run the benchmarks (about 20 minutes on two slow cores) and compare their figures with references and goals."""
    names, started, code = _parse_names(only), datetime.now(UTC), 0
    out = out or Path("bench") / f"{started:%Y%m%d-%H%M%S}.json"
    arguments = ["--quick"] if quick else []
    arguments += ["--only", only] if only else []
    arguments += ["--peer-python", peer_python] if peer_python else []
    page = ResultsPage(
        date=f"{started:%Y-%m-%d %H:%M} UTC",
        command=_format_command(
            "python -m benchmarks", [*arguments, *(["--traces", os.sep] if traces else [])]
        ),
        quick=quick,
        host=describe_host(),
    )
    for number, name in enumerate(names, 1):
        options = list(SIZES[name][quick])
        options += ["--peer-python", peer_python] if peer_python and name in _WITH_PEERS else []
        options += (traces or []) if name in _WITH_TRACES else []
        print_progress(f"{number}/{len(names)} {name}")
        part, is_interrupted = _run_benchmark(name, options)
        print_progress(f"{number}/{len(names)} {name}: {part.error or f'{part.seconds:.0f} s'}")
        page = page.model_copy(update={"parts": (*page.parts, part)})
        page.save(out)
        code = INTERRUPTED if is_interrupted else FAILED if part.error else code
        if is_interrupted:
            break
    print_wide(build_table(page))
    if write is not None:
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(format_markdown(page))
    print_wide(f"Figures: {out}" + (f"   page: {write}" if write else ""))
    missed = page.list_missed_goals()
    for each in missed:
        print_wide(f"goal missed: {' | '.join(filter(None, format_cells(each)[:-1]))}")
    raise typer.Exit(code or (GOAL_MISSED if missed and not quick else 0))


def _parse_names(only: str | None) -> list[str]:
    names = list(SIZES) if only is None else only.replace(",", " ").split()
    unknown = [name for name in names if name not in SIZES]
    if unknown or not names:
        refuse(f"--only: unknown benchmark {', '.join(unknown) or only} (choose from: {', '.join(SIZES)})")
    return [name for name in SIZES if name in names]


def _format_command(program: str, options: list[str]) -> str:
    """The command line without local file names."""
    words = [
        "PYTHON" if before == "--peer-python" else "DIR" if os.sep in option else option
        for before, option in zip(["", *options], options, strict=False)
    ]
    return " ".join([program, *words])


def _run_benchmark(name: str, options: list[str]) -> tuple[Part, bool]:
    """Run one benchmark; return its figures, and whether Ctrl-C interrupted it."""
    script = _HERE / f"{name}.py"
    meter, start, is_interrupted = Meter(), time.perf_counter(), False
    with tempfile.TemporaryFile("w+") as output:
        try:
            code, last = _run_process([sys.executable, str(script), *options, "--json"], output)
        except KeyboardInterrupt:
            code, last, is_interrupted = INTERRUPTED, "interrupted", True
        output.seek(0)
        title, figures = _parse_figures(output.read())
    error = f"exit code {code}" if code else "" if figures else "no figures"
    part = Part(
        name=name,
        about=ast.get_docstring(ast.parse(script.read_text())) or "",
        command=_format_command(f"python benchmarks/{name}.py", options),
        title=title,
        seconds=round(time.perf_counter() - start, 1),
        stolen=round(meter.read().stolen_share, 4),
        figures=figures,
        error=last if code and last and not figures else error,
    )
    return part, is_interrupted


def _run_process(command: list[str], output: IO[str]) -> tuple[int, str]:
    """Run the command and forward its progress; return its exit code and last line of progress."""
    environment, last = os.environ | {"PYTHONPATH": str(_HERE.parent)}, ""
    with subprocess.Popen(
        command, env=environment, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.strip():
                last = line.strip()
                print_progress(f"  {line.rstrip()}")
    return running.returncode, last


def _parse_figures(text: str) -> tuple[str, tuple[Figure, ...]]:
    try:
        result: dict[str, Any] = json.loads(text)
    except ValueError:
        return "", ()
    return result["title"], tuple(Figure(**each) for each in result["figures"])


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=_EPILOG)(main)
    app(prog_name="python -m benchmarks")
