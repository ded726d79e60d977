"""Costs of a long run: time of a step, memory and disk as the run grows, and restores of its first and last state.

One run of an instant model. Most steps change nothing; at even distances, a step writes new files and a snapshot is
taken. Times of early, middle and late steps are medians of a tenth of the run's steps each. They share the machine with the
snapshots in the background. The large files of the repository cannot be compressed; its history does not have them. Each
restore ends with the first `true` in a new shell; they alternate. At the end, the run's old snapshots are thinned.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil
import typer
from langchain_core.messages import AIMessage
from pydantic import Field

from benchmarks import testbed
from benchmarks.figures import Figure, Goal, format_count, print_figures, print_progress, refuse, run_command
from benchmarks.models import DirectModel
from benchmarks.turns import AsJson, Files, open_work_directory
from langgraph_takeover import CheckpointInfo, open_home, open_run
from langgraph_takeover.sandbox.untrusted_trees import disk_usage

_PARTS = 10
_RESTORES = 5
_LARGE_FILE = 64 * 2**20
_SPARE_BYTES = 10 * 10**9
"""What stays free on the disk, beside two copies of the repository."""


class WritingModel(DirectModel):
    """Writes new files in some steps; measures each step, and the memory of this process."""

    every: int
    """A step of so many writes."""
    files: int
    """Number of files that such a step writes."""
    memory: list[int] = Field(default_factory=list)
    """Memory of this process at each call, in bytes."""

    def invoke(self, input: Any, config: Any = None, **settings: Any) -> AIMessage:
        number = len(self.call_times)
        self.command = self._write(number) if self.writes(number) else "true"
        self.memory.append(psutil.Process().memory_info().rss)
        if number and number % (self.steps // _PARTS) == 0:
            print_progress(f"{number:,} of {self.steps:,} steps, {self.memory[-1] / 1e6:.0f} MB")
        return super().invoke(input, config, **settings)

    def writes(self, number: int) -> bool:
        return number % self.every == self.every - 1

    def _write(self, number: int) -> str:
        return (
            f"mkdir -p made/{number} && for n in $(seq {self.files}); do "
            f"echo $n of {number} >made/{number}/$n.txt; done; echo {number} >>log.txt"
        )

    def time_steps(self, part: int, *, writing: bool) -> float:
        """Return the median time of a step in this part of the run, in milliseconds."""
        length = self.steps // _PARTS
        span = [*enumerate(pairwise(self.call_times))][part * length : (part + 1) * length]
        chosen = [end - start for number, (start, end) in span if self.writes(number) is writing]
        return 1e3 * statistics.median(chosen[1:] if part == 0 and len(chosen) > 1 else chosen)


def main(
    steps: Annotated[int, typer.Option(min=100, help="Steps of the run.")] = 10_000,
    snapshots: Annotated[int, typer.Option(min=10, help="Steps that write, each with a snapshot.")] = 500,
    changed_files: Annotated[int, typer.Option(min=10, help="Files that the run writes.")] = 20_000,
    gigabytes: Annotated[float, typer.Option(min=0, help="Size of the repository's large files.")] = 5.0,
    files: Files = testbed.FILES,
    as_json: AsJson = False,
) -> None:
    """Measure a long run in a large repository."""
    every = max(steps // snapshots, 1)
    snapshots = steps // every
    model = WritingModel(command="", steps=steps, every=every, files=max(changed_files // snapshots, 1))
    with open_work_directory() as work:
        _require_space(work, gigabytes)
        spec = testbed.make_spec(work / "base", files)
        _make_large_files(work / "base" / "data", gigabytes)
        agent: Any = {"model": model, "sandbox": spec, "points": (), "max_steps": steps + 1}
        with open_home(work / "home") as home:
            start = time.perf_counter()
            with open_run(home, "run", **agent) as run:
                run.start("benchmark", "Run it.")
            begin_s = model.call_times[0] - start
            disk = disk_usage(home.snapshot_directory)
            start = time.perf_counter()
            moments = [each for each in home.history("run") if each.is_restorable and each.step]
            history_s = time.perf_counter() - start
            with open_run(home, "run", **agent) as run:
                first, last = _time_restores(run, moments[-1], moments[0])
            start = time.perf_counter()
            removed = home.thin_snapshots("run", keep_every_step_s=0)
            thin_s = time.perf_counter() - start
            thinned = disk_usage(home.snapshot_directory)
        database = sum(path.stat().st_size for path in work.glob("home/takeover.sqlite*"))
    figures = [
        *_list_step_figures(model),
        Figure(
            "memory at the end", "MB", model.memory[-1] / 1e6, **_early(model.memory, 1e6, Goal(2.5, "ratio"))
        ),
        Figure("start of the run until the first reply", "s", begin_s),
        Figure(
            "restore of the last state", "ms", last, first, "the first state", Goal(1.5, "ratio"), growth=True
        ),
        Figure("restore of the first state", "ms", first),
        Figure("database", "MB", database / 1e6),
        Figure("snapshots on disk", "MB", disk / 1e6),
        Figure("disk for a snapshot", "kB", disk / snapshots / 1e3),
        Figure(f"list of {steps:,} checkpoints", "ms", 1e3 * history_s),
        Figure(f"thinning {removed:,} states", "ms", 1e3 * thin_s),
        Figure("snapshots on disk after thinning", "MB", thinned / 1e6),
    ]
    title = (
        f"{format_count(steps, 'step')}, {format_count(snapshots, 'snapshot')}, "
        f"{snapshots * model.files:,} files written; a repository of {files:,} files and {gigabytes:g} GB; {spec.backend}"
    )
    print_figures(title, figures, as_json=as_json)


def _require_space(work: Path, gigabytes: float) -> None:
    """The sandbox may copy the repository."""
    needed, free = 2 * gigabytes * 1e9 + _SPARE_BYTES, shutil.disk_usage(work).free
    if gigabytes and free < needed:
        refuse(f"{work}: {free / 1e9:.0f} GB free, {needed / 1e9:.0f} GB needed (pass a smaller --gigabytes)")


def _make_large_files(directory: Path, gigabytes: float) -> None:
    directory.mkdir()
    (directory / ".gitignore").write_text("*\n")
    left, block = int(gigabytes * 1e9), os.urandom(2**20)
    while left > 0:
        with (directory / f"{left}.bin").open("wb") as file:
            for _ in range(0, min(left, _LARGE_FILE), len(block)):
                file.write(os.urandom(16) + block[16:])
        left -= _LARGE_FILE


def _time_restores(run: Any, first: CheckpointInfo, last: CheckpointInfo) -> tuple[float, float]:
    """Return the median times to restore two states, in milliseconds."""
    times: dict[str, list[float]] = {first.state_id: [], last.state_id: []}
    for _ in range(_RESTORES):
        for moment in (first, last):
            start = time.perf_counter()
            assert run.sandbox(moment).run("true", timeout_s=60).exit_code == 0
            times[moment.state_id].append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[first.state_id]), statistics.median(times[last.state_id])


def _list_step_figures(model: WritingModel) -> list[Figure]:
    found = []
    for name, writing in (("step without a change", False), ("step with a snapshot", True)):
        early, middle, late = (
            model.time_steps(part, writing=writing) for part in (0, _PARTS // 2, _PARTS - 1)
        )
        goal = Goal(1.25, "ratio")
        found.append(Figure(f"{name}, in the middle", "ms", middle, early, "early", growth=True))
        found.append(Figure(f"{name}, late", "ms", late, early, "early", goal, growth=True))
    return found


def _early(memory: list[int], unit: float, goal: Goal) -> dict[str, Any]:
    """The reference for a figure of growth: the value after the first tenth."""
    return {
        "reference": memory[len(memory) // _PARTS] / unit,
        "reference_name": "after a tenth of the steps",
        "goal": goal,
        "growth": True,
    }


if __name__ == "__main__":
    run_command(main)
