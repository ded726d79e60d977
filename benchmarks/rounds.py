"""One round of measurements on each backend: every time is taken beside what it is compared with."""

from __future__ import annotations

import contextlib
import os
import secrets
import statistics
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import sandbox
from benchmarks import peers as daemon
from benchmarks import testbed
from sandbox.machine import BackendName, Sandbox, SandboxSpec, SandboxUnavailable, Snapshot

THAWS = 12
NOT_ASKED = "not asked for"
FEW = 3
"""Files changed before a freeze; the other freezes have many."""
_CALLS = 50
_SDK_CALLS = 5
_TIMEOUT_S = 600.0
_LOUD = "yes 0123456789abcdef | head -c 200000000"


class Samples:
    """Times in milliseconds and other values by name, and for what has none the reason."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = defaultdict(list)
        self.reasons: dict[str, str] = {}

    def add(self, name: str, value: float) -> None:
        self.values[name].append(value)

    def add_all(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.add(name, value)

    def median(self, name: str) -> float | None:
        return statistics.median(self.values[name]) if self.values.get(name) else None

    def reason(self, name: str) -> str:
        """The reason of the longest name that this one begins with."""
        known = [start for start in self.reasons if name.startswith(start)]
        return self.reasons[max(known, key=len)] if known else NOT_ASKED

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.add(name, (time.perf_counter() - began) * 1e3)


def local_round(
    samples: Samples, backend: BackendName, directory: Path, store: Path, many: int, number: int
) -> None:
    """The samples of `host` and `process`."""
    kept: list[tuple[Snapshot, Path]] = []
    with _new_spec(backend, directory=directory) as spec:
        with contextlib.closing(sandbox.start(spec)) as machine:
            _commands(samples, backend, machine, number)
            for name, size in (("few", FEW), ("many", many)):
                _execute(machine, testbed.change_files(size))
                place = store / f"{number}-{name}"
                kept.append((_freeze(samples, f"{backend}_freeze_{name}", machine, place), place))

        names = (f"{backend}_thaw", f"{backend}_thaw_many")
        pairs = zip(names, kept, strict=True)
        _in_turn(number, *(partial(_thaw, samples, name, *snapshot, spec) for name, snapshot in pairs))
        if backend == "host":
            _twelve_thaws(samples, backend, *kept[0], spec)


def size_round(
    samples: Samples, backend: BackendName, directories: Mapping[str, Path], store: Path, number: int
) -> None:
    """What grows with a repository, by the names of its sizes."""

    def measure(size: str, directory: Path) -> None:
        with _new_spec(backend, directory=directory) as spec:
            with samples.timed(f"{backend}_start_{size}"):
                machine = sandbox.start(spec)
                machine.run("true", timeout_s=_TIMEOUT_S)
            with contextlib.closing(machine):
                _changes(samples, f"{backend}_changes_{size}", machine, number)
                place = store / f"{number}-{size}"
                snapshot = _freeze(samples, f"{backend}_freeze_{size}", machine, place)
            _thaw(samples, f"{backend}_thaw_{size}", snapshot, place, spec)

    sizes = directories.items()
    _in_turn(number, *(partial(measure, size, directory) for size, directory in sizes))


def docker_round(samples: Samples, image: str, store: Path, many: int, peers: bool, number: int) -> None:
    """The samples of `docker` beside the daemon's own commands."""
    for way in ("commit", "layer"):
        with _new_spec("docker", image=image, workspace="/testbed", snapshots=way) as spec:
            _docker_way(samples, way, spec, store / f"{number}-{way}", many, peers, number)


def _docker_way(
    samples: Samples, way: str, spec: SandboxSpec, store: Path, many: int, peers: bool, number: int
) -> None:
    peer, copy = {"commit": ("commit", daemon.commit), "layer": ("tar", daemon.tar_of_upper)}[way]
    with contextlib.closing(sandbox.start(spec)) as machine, contextlib.ExitStack() as stack:
        stack.callback(daemon.remove_commits)
        container = daemon.container_of(spec.owner)
        if way == "commit":
            _commands(samples, "docker", machine, number)
            for _ in range(_SDK_CALLS if peers else 0):
                with samples.timed("docker_exec_run"):
                    daemon.exec_run(container)
        kept: list[tuple[Snapshot, Path]] = []
        for name, size in (("few", FEW), ("many", many)):
            _execute(machine, testbed.change_files(size))
            place = store / name

            def ours(name: str = name, place: Path = place) -> None:
                kept.append((_freeze(samples, f"docker_{way}_freeze_{name}", machine, place), place))

            def theirs(name: str = name) -> None:
                with samples.timed(f"docker_{peer}_{name}"):
                    copy(container)

            _in_turn(number, ours, *([theirs] if peers else []))
    if way != "commit":
        return

    def bare() -> None:
        with samples.timed("docker_start"):
            container = daemon.start_bare(str(spec.image), spec)
        daemon.remove(container)

    _in_turn(number, lambda: _thaw(samples, "docker_thaw", *kept[0], spec), *([bare] if peers else []))


def _in_turn(number: int, *measure: Callable[[], None]) -> None:
    """Alternate the order from round to round, so that neither side always finds warm caches."""
    for one in measure if number % 2 == 0 else reversed(measure):
        one()


def _commands(samples: Samples, name: str, machine: Sandbox, number: int) -> None:
    machine.run("true", timeout_s=_TIMEOUT_S)
    for _ in range(_CALLS):
        with samples.timed(f"{name}_true"):
            machine.run("true", timeout_s=_TIMEOUT_S)
    _changes(samples, f"{name}_changes", machine, number)
    if number == 0:
        _loud_output(samples, machine)


def _changes(samples: Samples, name: str, machine: Sandbox, number: int) -> None:
    machine.changes()
    machine.write_file("pkg/part00/module0000.py", f"edited = {number}\n".encode())
    with samples.timed(name):
        changes = machine.changes()
    if [change.path for change in changes] != ["pkg/part00/module0000.py"]:
        raise SandboxUnavailable(f"one file was edited, but {len(changes)} changes were reported")


def _loud_output(samples: Samples, machine: Sandbox) -> None:
    """The most memory that any sandbox needs for a long output."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        machine.run(_LOUD, timeout_s=_TIMEOUT_S)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    samples.values["output_peak"] = [max((peak - before) / 1e6, *samples.values["output_peak"], 0)]


def _freeze(samples: Samples, name: str, machine: Sandbox, place: Path) -> Snapshot:
    """Time a freeze until the sandbox answers again and, from the same start, until the snapshot is durable."""
    with samples.timed(f"{name}_kept"):
        with samples.timed(name):
            snapshot = machine.freeze(place)
            machine.run("true", timeout_s=_TIMEOUT_S)
        return snapshot.result()


def _thaw(samples: Samples, name: str, snapshot: Snapshot, place: Path, spec: SandboxSpec) -> None:
    counters = psutil.Process().io_counters  # of this process and of its children that have ended
    written = counters().write_bytes
    with samples.timed(name):
        machine = sandbox.thaw(snapshot, place, spec)
        machine.run("true", timeout_s=_TIMEOUT_S)
    machine.close()
    samples.add(f"{name}_bytes", counters().write_bytes - written)


def _twelve_thaws(samples: Samples, name: str, snapshot: Snapshot, place: Path, spec: SandboxSpec) -> None:
    """One after another, all of them alive until the last has answered."""
    with contextlib.ExitStack() as stack:
        began = time.perf_counter()
        for _ in range(THAWS):
            machine = stack.enter_context(contextlib.closing(sandbox.thaw(snapshot, place, spec)))
            machine.run("true", timeout_s=_TIMEOUT_S)
        samples.add(f"{name}_thaw_of_twelve", (time.perf_counter() - began) * 1e3 / THAWS)


def _execute(machine: Sandbox, command: str) -> None:
    result = machine.run(command, timeout_s=_TIMEOUT_S)
    if result.exit_code != 0:
        raise SandboxUnavailable(f"a benchmark's command failed: {result.output.strip()[-200:]}")


@contextlib.contextmanager
def _new_spec(backend: BackendName, **fields: Any) -> Iterator[SandboxSpec]:
    """A sandbox with an owner of its own, whose leftovers are removed in the end."""
    owner = f"benchmark-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        yield SandboxSpec(backend=backend, owner=owner, **fields)
    finally:
        sandbox.remove_leftovers(backend, owner)
