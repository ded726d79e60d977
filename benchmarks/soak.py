"""A week in the life: all that people do with this program, for as long as one likes, while what it leaves is watched.

Runs of the experiment are whole, killed, interrupted and gone on with; in this one process, and one home that stays open,
others are forked, taken over and handed over. Each result is compared with that of a run that nothing disturbed. What is
watched leaks if the interval of its growth lies above its bound. Machines stand on a directory of the soak's own, and
nothing is removed but what it has made.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn, cast

# In this directory a file may have the name of a package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import soak_growth, soak_samples
from benchmarks.soak_growth import Line
from benchmarks.soak_processes import adopt_orphans
from benchmarks.soak_week import TASKS, Week
from evals.tasks import BUNDLED, load_tasks
from sandbox.machine import BackendName, SandboxUnavailable
from sandbox.removal import remove_tree
from sandbox.storage import PLACE_VARIABLE

SANDBOXES = ("host", "docker", "process")
_EPILOG = """Examples:

python benchmarks/soak.py --minutes 60

python benchmarks/soak.py --operations 12 --sandbox host --seed 7 --json

Exit codes: 0 nothing leaks and nothing was wrong, 1 something leaks or was wrong, 2 usage.
"""


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long, after the warm-up.")] = 60.0,
    operations: Annotated[int | None, typer.Option(min=1, help="At most so many, too.")] = None,
    sandbox: Annotated[str, typer.Option(help=f"Of {', '.join(SANDBOXES)}.")] = "host,docker",
    seed: Annotated[int, typer.Option(help="Of what is drawn by chance.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, every sample of it.")] = False,
    keep: Annotated[
        Path | None, typer.Option(help="Work in this new directory, and leave it.", show_default=False)
    ] = None,
) -> None:
    """Use the program in every way, kill it, go on, check each result and watch what grows."""
    sandboxes = _chosen(sandbox)
    with _placed(keep) as place:
        week = Week(place, sandboxes, seed)
        # Told to end, it ends as by Ctrl-C: with its table, and with nothing left.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            week.lived(minutes, operations)
        except KeyboardInterrupt:
            print("interrupted; this is how far it came", file=sys.stderr)
        finally:
            _remove_machines(week, sandboxes)
    lines = soak_growth.lines(week.samples, soak_samples.MEASURES) if week.samples else ()
    if as_json:
        print(json.dumps(_json(week, lines, seed), indent=1))
    else:
        _show(week, lines, seed)
    leaks = any(line.verdict == "leak" for line in lines)
    raise typer.Exit(1 if leaks or any(one.told.wrong for one in week.done) else 0)


def _chosen(text: str) -> tuple[BackendName, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names or set(names) - set(SANDBOXES):
        _refuse(f"--sandbox {text!r}: give one or more of {', '.join(SANDBOXES)}, with commas between")
    if "host" in names:
        from sandbox.host import unavailable

        if reason := unavailable():
            _refuse(f"--sandbox host: {reason}")
    if "docker" in names:
        from sandbox.daemon import require_image

        try:
            for task in load_tasks(BUNDLED, TASKS):
                require_image(str(task.instance["image"]))
        except SandboxUnavailable as error:
            _refuse(f"--sandbox docker: {error}; python examples/offline_images.py suite builds the tasks'")
    return cast(tuple[BackendName, ...], names)


@contextlib.contextmanager
def _placed(keep: Path | None) -> Iterator[Path]:
    """A directory of its own for all that is made, which this process and its children know of."""
    if keep is not None:
        try:
            keep.mkdir(parents=True)
        except OSError as error:
            _refuse(f"--keep {keep}: {error.strerror}; name a directory that is not there yet")
    place = keep.absolute() if keep else Path(tempfile.mkdtemp(prefix="takeover-soak-", dir="/var/tmp"))
    place.chmod(0o711)
    for name in ("runs", "tmp"):
        (place / name).mkdir()
    os.environ |= {PLACE_VARIABLE: str(place / "depot"), "TMPDIR": str(place / "tmp")}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))
    tempfile.tempdir = None
    adopt_orphans()
    try:
        yield place
    finally:
        if keep is None:
            remove_tree(place)
        else:
            print(f"kept {place}", file=sys.stderr)


def _remove_machines(week: Week, sandboxes: tuple[BackendName, ...]) -> None:
    """What an early end has left on the daemon; what lies on the disk goes with its directory."""
    if "docker" not in sandboxes:
        return
    from sandbox.gc_docker import list_resources, remove

    ours = week.owners()
    remove(one for one in list_resources() if soak_samples.is_of(one.owner, ours))


def _json(week: Week, lines: tuple[Line, ...], seed: int) -> dict[str, object]:
    return {
        "seed": seed,
        "watched": [soak_growth.as_json(line) for line in lines],
        "samples": [sample._asdict() for sample in week.samples],
        "operations": [{**one._asdict(), "told": one.told._asdict()} for one in week.done],
        "kills": sum(one.told.kills for one in week.done),
        "resumes": sum(one.told.resumes for one in week.done),
        "wrong": sum(bool(one.told.wrong) for one in week.done),
    }


def _show(week: Week, lines: tuple[Line, ...], seed: int) -> None:
    shown_on = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    kills, resumes = (sum(getattr(one.told, name) for one in week.done) for name in ("kills", "resumes"))
    wrong = sum(bool(one.told.wrong) for one in week.done)
    counts = f"{len(week.done)} operations, {kills} kills, {resumes} resumes, {wrong} wrong"
    table = Table(title=f"{counts}; seed {seed}")
    table.add_column("operation")
    table.add_column("sandbox")
    for head in ("times", "kills", "resumes", "wrong", "median s"):
        table.add_column(head, justify="right")
    for name, sandbox in dict.fromkeys((one.name, one.sandbox) for one in week.done):
        found = [one for one in week.done if (one.name, one.sandbox) == (name, sandbox)]
        sums = [sum(one.told.kills for one in found), sum(one.told.resumes for one in found)]
        sums.append(sum(bool(one.told.wrong) for one in found))
        median = f"{statistics.median(one.seconds for one in found):.1f}"
        table.add_row(name, sandbox, str(len(found)), *map(str, sums), median)
    shown_on.print(table)
    if lines:
        hours = week.samples[-1].hours
        shown_on.print(soak_growth.table(lines, f"{len(week.samples)} samples in {60 * hours:.0f} minutes"))


def _refuse(reason: str) -> NoReturn:
    print(f"error: {reason}", file=sys.stderr)
    raise typer.Exit(2)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=_EPILOG)(main)
    app()
