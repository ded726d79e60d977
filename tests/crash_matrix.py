"""Kill a run at every point where something becomes durable or acts, resume it, and check for lost or repeated work."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

# This directory contains a directory with the name of the tested package.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil
import typer
from rich.console import Console
from rich.table import Table

from langgraph_takeover.sandbox.ownership import ROOT_VARIABLE
from langgraph_takeover.sandbox.untrusted_trees import remove_tree
from tests import crash_case, postgres
from tests.crash_case import CrashCase

_PR_SET_CHILD_SUBREAPER = 36
_MAX_LIFETIME_S = 180.0
_MAX_KILLS = 4
_RECOVERY_POINTS, _MIN_RECOVERY_POINTS = 40, 12
"""How many crash points a second process passes until it has caught up with the first; the minimum."""
_BACKENDS, _SAVERS, _EVERY = ("process", "host", "docker"), ("sqlite", "postgres"), ("step", "point")
_EPILOG = """Examples:

python tests/crash_matrix.py

python tests/crash_matrix.py --backends process,host,docker --savers sqlite,postgres --snapshots step,point

python tests/crash_matrix.py --points every-7th --random 5 --again 20 --seed 3 --json >matrix.json
"""
app = typer.Typer(add_completion=False, rich_markup_mode=None)


class CaseResult(NamedTuple):
    """The result of one case."""

    backend: str
    saver: str
    snapshot_every: str
    death: str
    """The crash points of the first and the second process; for random deaths, the seconds before each."""
    deaths: int
    seconds: float
    problems: tuple[str, ...]


class SampleOptions(NamedTuple):
    """The selection of crash points in a cell."""

    points: str
    random_runs: int
    double_kills: int
    seed: int


class MatrixCell(NamedTuple):
    """One cell of the matrix, with the results of the uninterrupted run."""

    backend: str
    saver: str
    snapshot_every: str
    directory: Path
    base: Path
    database: str | None
    expected: dict[str, Any]
    crossings: tuple[str, ...]
    seconds: float

    def create_case(self, name: str) -> CrashCase:
        directory = self.directory / name
        directory.mkdir()
        return CrashCase(name, self.backend, self.snapshot_every, directory, self.base, self.database)  # type: ignore[arg-type]

    def run(self, number: int) -> CaseResult:
        """Run the case whose first process dies at its nth crash point."""
        case = self.create_case(f"{_case_prefix(self)}-at-{number:04}")
        began = time.monotonic()
        status = _wait_for(
            _fork_process(case.directory, lambda: crash_case.run_or_resume(case, die_at=number))
        )
        if status != -signal.SIGKILL:
            wrong = [f"crash point {number} was never reached: the process ended with {status}"]
        else:
            wrong = self._finish_case(case, 1)
        return self._make_result(f"{number}, {self.crossings[number - 1]}", 1, began, wrong, case)

    def run_twice_killed(self, number: int, second: int) -> CaseResult:
        """Run the case whose first process dies at its nth crash point, and its second at another."""
        case = self.create_case(f"{_case_prefix(self)}-at-{number:04}-and-{second:04}")
        began = time.monotonic()
        died = []
        for die_at in (number, second):
            status = _wait_for(
                _fork_process(case.directory, lambda at=die_at: crash_case.run_or_resume(case, die_at=at))
            )
            if status == -signal.SIGKILL:
                died.append(f"{die_at}, {case.read_lines('crossings')[-1]}")
        return self._make_result("; ".join(died), len(died), began, self._finish_case(case, len(died)), case)

    def run_randomly(self, number: int, chance: random.Random) -> CaseResult:
        """Run the case whose processes are killed from outside after random times, several times."""
        case = self.create_case(f"{_case_prefix(self)}-random-{number:04}")
        began, deaths = time.monotonic(), []
        for _ in range(chance.randint(2, _MAX_KILLS)):
            after = chance.uniform(0.02, self.seconds)
            pid = _fork_process(case.directory, lambda: crash_case.run_or_resume(case))
            status = _wait_for(pid, kill_after=after)
            if status != -signal.SIGKILL:
                break
            deaths.append(f"{after:.3f}")
        return self._make_result(
            " ".join(deaths), len(deaths), began, self._finish_case(case, len(deaths)), case
        )

    def _finish_case(self, case: CrashCase, deaths: int) -> list[str]:
        _wait_for(_fork_process(case.directory, lambda: crash_case.run_or_resume(case)))
        left = _stop_leftovers(case)
        if (case.directory / "outcome").exists():
            _wait_for(_fork_process(case.directory, lambda: crash_case.audit_case(case)))
        return crash_case.compare_with_reference(case, self.expected, deaths) + left + _stop_leftovers(case)

    def _make_result(
        self, death: str, deaths: int, began: float, wrong: list[str], case: CrashCase
    ) -> CaseResult:
        if not wrong:
            _remove_case(case)
        took = time.monotonic() - began
        return CaseResult(self.backend, self.saver, self.snapshot_every, death, deaths, took, tuple(wrong))


@app.command(epilog=_EPILOG)
def main(
    backends: Annotated[str, typer.Option(help="Sandboxes: process, host, docker.")] = "process",
    savers: Annotated[str, typer.Option(help="Databases: sqlite, postgres.")] = "sqlite",
    snapshots: Annotated[str, typer.Option(help="Snapshot policies: step, point.")] = "step",
    points: Annotated[
        str,
        typer.Option(
            help="Crash points: all, none, every-nth, numbers (3,14), one of each kind (kinds-1/1), or the second "
            "of four parts of the kinds (kinds-2/4)."
        ),
    ] = "all",
    randomly: Annotated[
        int, typer.Option("--random", help="Number of runs per cell with kills at random times.")
    ] = 0,
    again: Annotated[
        int,
        typer.Option(help="Number of runs per cell that are killed twice, the second time during recovery."),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Number of parallel runs.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    keep: Annotated[bool, typer.Option(help="Keep the directory if a run failed.")] = False,
) -> None:
    """Kill a run at its crash points, resume it, and compare it with an uninterrupted run."""
    sample = SampleOptions(points, randomly, again, seed)
    _choose_points(sample, (), random.Random())  # report usage errors before the first run
    cells = [
        (backend, saver, when)
        for backend in _parse_choice(backends, _BACKENDS, "--backends")
        for saver in _parse_choice(savers, _SAVERS, "--savers")
        for when in _parse_choice(snapshots, _EVERY, "--snapshots")
    ]
    results: list[CaseResult] = []
    directory = Path(tempfile.mkdtemp(prefix="takeover-crashes-", dir="/var/tmp"))
    directory.chmod(0o711)
    os.environ[ROOT_VARIABLE] = str(directory / "sandboxes")
    try:
        with _database_server("postgres" in savers) as server:
            _adopt_orphans()
            base = crash_case.create_repository(directory)
            with _repository_image(directory, base) if "docker" in backends else contextlib.nullcontext():
                for number, cell in enumerate(cells):
                    chance = random.Random(f"{seed}/{number}")
                    results += _run_cell(cell, directory, base, server, sample, jobs, chance)
    finally:
        if not keep or not any(result.problems for result in results):
            remove_tree(directory)
        else:
            print(f"kept {directory}", file=sys.stderr)
    _print_results(results, seed, as_json)
    raise typer.Exit(1 if any(result.problems for result in results) else 0)


def _run_cell(
    cell: tuple[str, str, str],
    directory: Path,
    base: Path,
    server: str | None,
    sample: SampleOptions,
    jobs: int,
    chance: random.Random,
) -> list[CaseResult]:
    backend, saver, when = cell
    here = directory / "-".join(cell)
    here.mkdir()
    with (
        postgres.create_database(server)
        if saver == "postgres" and server
        else contextlib.nullcontext() as database
    ):
        reference = MatrixCell(backend, saver, when, here, base, database, {}, (), 0.0)
        case = reference.create_case(f"{_case_prefix(reference)}-uninterrupted")
        began = time.monotonic()
        _wait_for(_fork_process(case.directory, lambda: crash_case.run_or_resume(case)))
        seconds = time.monotonic() - began
        crossings = tuple(case.read_lines("crossings"))
        left = _stop_leftovers(case)
        _wait_for(_fork_process(case.directory, lambda: crash_case.audit_case(case)))
        if not (case.directory / "audit").exists() or left:
            raise SystemExit(
                f"{' '.join(cell)}: the uninterrupted run: {left or case.read_lines('failure')[-1:]}"
            )
        expected = {part: json.loads((case.directory / part).read_text()) for part in ("outcome", "audit")}
        expected["calls"] = len(case.read_lines("calls"))
        if unsound := crash_case.check_reference(expected):
            raise SystemExit(f"{' '.join(cell)}: the uninterrupted run: {'; '.join(unsound)}")
        _remove_case(case)
        setting = reference._replace(expected=expected, crossings=crossings, seconds=seconds)
        numbers = _choose_points(sample, crossings, chance)
        seeds = [(number, chance.random()) for number in range(sample.random_runs)]
        todo: list[Callable[[], CaseResult]] = [partial(setting.run, number) for number in numbers]
        todo += [
            partial(setting.run_twice_killed, *_draw_two_points(len(crossings), chance))
            for _ in range(sample.double_kills)
        ]
        todo += [partial(setting.run_randomly, number, random.Random(drawn)) for number, drawn in seeds]
        results = _run_in_workers(todo, jobs, here)
        for result in results:
            for line in result.problems:
                print(f"{' '.join(cell)}: {result.death}: {line}", file=sys.stderr, flush=True)
        print(
            f"{' '.join(cell)}: {len(crossings)} crash points, {len(results)} runs",
            file=sys.stderr,
            flush=True,
        )
        return results


def _run_in_workers(todo: list[Callable[[], CaseResult]], jobs: int, directory: Path) -> list[CaseResult]:
    """The results of all runs, from parallel workers that each reap their own orphans."""
    workers = []
    for worker in range(jobs):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                _adopt_orphans()
                with (directory / f"results-{worker}").open("w") as out:
                    for work in todo[worker::jobs]:
                        out.write(json.dumps(work()) + "\n")
                        out.flush()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        workers.append(pid)
    ended = [os.waitpid(pid, 0)[1] for pid in workers]
    if any(ended):
        raise SystemExit("a worker failed (see its error above)")
    lines = [
        line for worker in range(jobs) for line in (directory / f"results-{worker}").read_text().splitlines()
    ]
    return [CaseResult(*found[:-1], tuple(found[-1])) for found in map(json.loads, lines)]


def _fork_process(directory: Path, work: Callable[[], None]) -> int:
    """Fork a process for this work; it writes its error to the file `failure`."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        (directory / "failure").write_text(f"{text}\n{type(error).__name__}: {error}\n")
    finally:
        os._exit(code)


def _wait_for(pid: int, kill_after: float = _MAX_LIFETIME_S) -> int:
    """The exit code of a process as `subprocess` reports it; kill it after the given seconds."""
    deadline = time.monotonic() + kill_after
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(0.005)


def _adopt_orphans() -> None:
    """Become the parent of orphans, so that leftover processes are found."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise SystemExit("this kernel does not reparent orphans: prctl(PR_SET_CHILD_SUBREAPER) failed")


def _stop_leftovers(case: CrashCase) -> list[str]:
    """The processes and containers that a run left running, one per line; stop them."""
    deadline = time.monotonic() + 5
    while (found := _list_orphans()) and time.monotonic() < deadline:
        time.sleep(0.01)
    wrong = [f"left running: {' '.join(process.cmdline())[:200]}" for process in found]
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if case.backend == "docker":
        # In its own process: later forks must not inherit a connection to the daemon.
        _wait_for(_fork_process(case.directory, lambda: crash_case.remove_containers(case)))
        wrong += [f"left running: container {name}" for name in case.read_lines("containers")]
    return wrong


def _list_orphans() -> list[psutil.Process]:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return psutil.Process().children(recursive=True)


def _remove_case(case: CrashCase) -> None:
    _wait_for(_fork_process(case.directory, lambda: _remove_sandboxes(case)))
    shutil.rmtree(case.directory)


def _remove_sandboxes(case: CrashCase) -> None:
    from langgraph_takeover import sandbox

    sandbox.remove_stale_resources(case.backend, case.name)


def _case_prefix(setting: MatrixCell) -> str:
    return f"crash-{os.getpid()}-{setting.backend}-{setting.saver}-{setting.snapshot_every}"


@contextlib.contextmanager
def _database_server(wanted: bool) -> Iterator[str | None]:
    if not wanted:
        yield None
        return
    if reason := postgres.unavailability_reason():
        raise SystemExit(reason)
    with postgres.run_server() as url:
        yield url


@contextlib.contextmanager
def _repository_image(directory: Path, base: Path) -> Iterator[None]:
    """The image that container sandboxes start from; each process that calls the daemon is forked for it."""
    name = crash_case.REPOSITORY_IMAGE
    if _wait_for(_fork_process(directory, lambda: crash_case.build_image(base, name))):
        raise SystemExit((directory / "failure").read_text().splitlines()[-1])
    try:
        yield
    finally:
        _wait_for(_fork_process(directory, lambda: crash_case.remove_image(name)))


def _parse_choice(text: str, known: tuple[str, ...], option: str) -> list[str]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found or set(found) - set(known):
        _exit_usage(f"{option} {text!r}: give one or more of {', '.join(known)}, with commas between")
    return found


def _draw_two_points(count: int, chance: random.Random) -> tuple[int, int]:
    """A random crash point, and one that the recovery from there reaches."""
    number = chance.randint(1, count)
    return number, chance.randint(1, max(_MIN_RECOVERY_POINTS, min(_RECOVERY_POINTS, count - number)))


def _choose_points(sample: SampleOptions, crossings: Sequence[str], chance: random.Random) -> Sequence[int]:
    """The numbers of the crash points to test."""
    points, count = sample.points, len(crossings)
    if points in ("all", "none"):
        return range(1, count + 1) if points == "all" else ()
    if re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", points):
        return [number for number in map(int, points.split(",")) if number <= count]
    part = re.fullmatch(r"kinds-([1-9]\d*)/([1-9]\d*)", points)
    if part is not None and int(part[1]) <= int(part[2]):
        kinds = collections.defaultdict(list)
        for number, name in enumerate(crossings, 1):
            kinds[re.sub("^(before|after) ", "", name)].append(number)
        # Use the same order in every cell, or the parts do not add up.
        order = random.Random(sample.seed).sample(sorted(kinds), len(kinds))
        return [chance.choice(kinds[kind]) for kind in order[int(part[1]) - 1 :: int(part[2])]]
    every = re.fullmatch(r"every-([1-9]\d*)(st|nd|rd|th)", points)
    if every is None:
        _exit_usage(
            f"--points {points!r}: give all, none, numbers such as 3,14, every-5th or kinds-1/4 and the like"
        )
    return range(1 + chance.randrange(int(every[1])), count + 1, int(every[1]))


def _exit_usage(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    raise typer.Exit(2)


def _print_results(results: list[CaseResult], seed: int, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"seed": seed, "runs": [result._asdict() for result in results]}))
        return
    table = Table(title=f"{len(results)} runs, {sum(r.deaths for r in results)} deaths, seed {seed}")
    for head in ("sandbox", "database", "snapshot", "runs", "deaths", "killed twice", "failed", "s per run"):
        table.add_column(head, justify="left" if head in ("sandbox", "database", "snapshot") else "right")
    cells = collections.defaultdict(list)
    for result in results:
        cells[result[:3]].append(result)
    for cell, found in cells.items():
        wrong = sum(bool(result.problems) for result in found)
        deaths, again = sum(r.deaths for r in found), sum(r.deaths > 1 for r in found)
        mean = sum(result.seconds for result in found) / len(found)
        table.add_row(*cell, *map(str, (len(found), deaths, again, wrong)), f"{mean:.2f}")
    Console().print(table)


if __name__ == "__main__":
    app()
