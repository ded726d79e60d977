"""Run all benchmarks, each in its own process; print one table and save it as a file."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.figures import Figure, choose_names, format_cells, print_progress, print_wide, run_command
from benchmarks.host import ROOT, Meter, describe_host, start_python
from benchmarks.page import Part, ResultsPage, build_table, format_markdown
from benchmarks.recorded_runs import HELP

QUICK_OPTIONS = {
    "sandboxes": "--rounds 1 --files 600 --no-peers",
    "runtime": "--rounds 1 --steps 10 --long-steps 200 --longest-steps 400",
    "snapshot_overhead": "--rounds 1 --steps 4 --files 200",
    "live_directories": "--rounds 1 --files 600",
    "long_runs": "--steps 400 --snapshots 40 --changed-files 400 --gigabytes 0.05 --files 600",
    "detection": "--rounds 1",
    "experiment": "--repeats 1 --limit 1 --rows 1000 --jobs 400",
    "report_cost": "--rounds 1 --takeovers 24 --few 8",
    "handoffs": "--handoffs 80 --processes 4",
    "external_agents": "--rounds 1 --steps 3 --files 200",
    "telemetry": "--rounds 1 --steps 5 --repetitions 1000",
    "checkpoints": "--rounds 1 --steps 20",
    "own_graphs": "--rounds 1 --reply-s 0.1 --requests 5",
    "async_runs": "--rounds 1 --runs 10 --steps 3 --reply-s 0.2",
    "time_shares": "--steps 20 --snapshots 2 --files 200",
}
"""The options of each benchmark in a quick run; a full run uses its defaults."""
_WITH_PEERS = ("sandboxes", "runtime", "snapshot_overhead")
_WITH_TRACES = ("snapshot_overhead", "detection", "report_cost")
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
        str | None,
        typer.Option(help=f"Benchmarks, separated by commas: {', '.join(QUICK_OPTIONS)}. Default: all."),
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
    """Run the benchmarks (about 30 minutes on two slow cores) and compare their figures with references and goals."""
    names, started, code = choose_names("--only", only, QUICK_OPTIONS), datetime.now(UTC), 0
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
        options = QUICK_OPTIONS[name].split() if quick else []
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


def _format_command(program: str, options: list[str]) -> str:
    """The command line without local file names."""
    words = [
        "PYTHON" if before == "--peer-python" else "DIR" if os.sep in option else option
        for before, option in zip(["", *options], options, strict=False)
    ]
    return " ".join([program, *words])


def _run_benchmark(name: str, options: list[str]) -> tuple[Part, bool]:
    """Run one benchmark; return its figures, and whether Ctrl-C interrupted it."""
    script = ROOT / "benchmarks" / f"{name}.py"
    meter, start, code, last = Meter(), time.perf_counter(), INTERRUPTED, "interrupted"
    with tempfile.TemporaryFile("w+") as output:
        try:
            with start_python(script, *options, "--json", stdout=output, stderr=subprocess.PIPE) as running:
                for line in filter(str.strip, running.stderr or ()):
                    last = line.strip()
                    print_progress(f"  {line.rstrip()}")
            code = running.returncode
        except KeyboardInterrupt:
            last = "interrupted"
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
    return part, code == INTERRUPTED


def _parse_figures(text: str) -> tuple[str, tuple[Figure, ...]]:
    try:
        result: dict[str, Any] = json.loads(text)
    except ValueError:
        return "", ()
    return result["title"], tuple(Figure(**each) for each in result["figures"])


if __name__ == "__main__":
    run_command(main, _EPILOG)
