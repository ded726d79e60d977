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

from benchmarks import peers as daemon
from benchmarks import testbed
from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.interface import (
    BackendName,
    Sandbox,
    SandboxSpec,
    SandboxUnavailableError,
    Snapshot,
)

RESTORES = 12
NOT_REQUESTED = "not asked for"
FEW_FILES = 3
"""Files changed before a freeze; the other freezes have many."""
_CALLS = 50
_SDK_CALLS = 5
_TIMEOUT_S = 600.0
_LONG_OUTPUT_COMMAND = "yes 0123456789abcdef | head -c 200000000"


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

    def find_reason(self, name: str) -> str:
        """The reason of the longest name that this one begins with."""
        known = [start for start in self.reasons if name.startswith(start)]
        return self.reasons[max(known, key=len)] if known else NOT_REQUESTED

    @contextlib.contextmanager
    def measure_time(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.add(name, (time.perf_counter() - began) * 1e3)


def measure_local(
    samples: Samples, backend: BackendName, directory: Path, store: Path, many: int, number: int
) -> None:
    """The samples of `host` and `process`."""
    kept: list[tuple[Snapshot, Path]] = []
    with _new_spec(backend, directory=directory) as spec:
        with contextlib.closing(sandbox.start(spec)) as machine:
            _measure_commands(samples, backend, machine, number)
            for name, size in (("few", FEW_FILES), ("many", many)):
                _run_checked(machine, testbed.change_files_command(size))
                place = store / f"{number}-{name}"
                kept.append((_measure_snapshot(samples, f"{backend}_freeze_{name}", machine, place), place))

        names = (f"{backend}_thaw", f"{backend}_thaw_many")
        pairs = zip(names, kept, strict=True)
        _alternate(
            number, *(partial(_measure_restore, samples, name, *snapshot, spec) for name, snapshot in pairs)
        )
        if backend == "host":
            _measure_repeated_restores(samples, backend, *kept[0], spec)


def measure_sizes(
    samples: Samples, backend: BackendName, directories: Mapping[str, Path], store: Path, number: int
) -> None:
    """What grows with a repository, by the names of its sizes."""

    def measure_size(size: str, directory: Path) -> None:
        with _new_spec(backend, directory=directory) as spec:
            with samples.measure_time(f"{backend}_start_{size}"):
                machine = sandbox.start(spec)
                machine.run("true", timeout_s=_TIMEOUT_S)
            with contextlib.closing(machine):
                _measure_changes(samples, f"{backend}_changes_{size}", machine, number)
                place = store / f"{number}-{size}"
                snapshot = _measure_snapshot(samples, f"{backend}_freeze_{size}", machine, place)
            _measure_restore(samples, f"{backend}_thaw_{size}", snapshot, place, spec)

    sizes = directories.items()
    _alternate(number, *(partial(measure_size, size, directory) for size, directory in sizes))


def measure_docker(samples: Samples, image: str, store: Path, many: int, peers: bool, number: int) -> None:
    """The samples of `docker` beside the daemon's own commands."""
    for way in ("commit", "layer"):
        with _new_spec("docker", image=image, workspace="/testbed", snapshots=way) as spec:
            _measure_snapshot_way(samples, way, spec, store / f"{number}-{way}", many, peers, number)


def _measure_snapshot_way(
    samples: Samples, way: str, spec: SandboxSpec, store: Path, many: int, peers: bool, number: int
) -> None:
    peer, copy = {"commit": ("commit", daemon.commit), "layer": ("tar", daemon.tar_upper_directory)}[way]
    with contextlib.closing(sandbox.start(spec)) as machine, contextlib.ExitStack() as stack:
        stack.callback(daemon.remove_commits)
        container = daemon.find_container(spec.owner)
        if way == "commit":
            _measure_commands(samples, "docker", machine, number)
            for _ in range(_SDK_CALLS if peers else 0):
                with samples.measure_time("docker_exec_run"):
                    daemon.exec_run(container)
        kept: list[tuple[Snapshot, Path]] = []
        for name, size in (("few", FEW_FILES), ("many", many)):
            _run_checked(machine, testbed.change_files_command(size))
            place = store / name

            def measure_ours(name: str = name, place: Path = place) -> None:
                kept.append(
                    (_measure_snapshot(samples, f"docker_{way}_freeze_{name}", machine, place), place)
                )

            def measure_peer(name: str = name) -> None:
                with samples.measure_time(f"docker_{peer}_{name}"):
                    copy(container)

            _alternate(number, measure_ours, *([measure_peer] if peers else []))
    if way != "commit":
        return

    def measure_bare_start() -> None:
        with samples.measure_time("docker_start"):
            container = daemon.start_bare(str(spec.image), spec)
        daemon.remove(container)

    _alternate(
        number,
        lambda: _measure_restore(samples, "docker_thaw", *kept[0], spec),
        *([measure_bare_start] if peers else []),
    )


def _alternate(number: int, *measure: Callable[[], None]) -> None:
    """Alternate the order from round to round, so that neither side always finds warm caches."""
    for one in measure if number % 2 == 0 else reversed(measure):
        one()


def _measure_commands(samples: Samples, name: str, measured_sandbox: Sandbox, number: int) -> None:
    measured_sandbox.run("true", timeout_s=_TIMEOUT_S)
    for _ in range(_CALLS):
        with samples.measure_time(f"{name}_true"):
            measured_sandbox.run("true", timeout_s=_TIMEOUT_S)
    _measure_changes(samples, f"{name}_changes", measured_sandbox, number)
    if number == 0:
        _measure_output_memory(samples, measured_sandbox)


def _measure_changes(samples: Samples, name: str, measured_sandbox: Sandbox, number: int) -> None:
    measured_sandbox.changes()
    measured_sandbox.write_file("pkg/part00/module0000.py", f"edited = {number}\n".encode())
    with samples.measure_time(name):
        changes = measured_sandbox.changes()
    if [change.path for change in changes] != ["pkg/part00/module0000.py"]:
        raise SandboxUnavailableError(f"one file was edited, but {len(changes)} changes were reported")


def _measure_output_memory(samples: Samples, measured_sandbox: Sandbox) -> None:
    """The most memory that any sandbox needs for a long output."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        measured_sandbox.run(_LONG_OUTPUT_COMMAND, timeout_s=_TIMEOUT_S)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    samples.values["output_peak"] = [max((peak - before) / 1e6, *samples.values["output_peak"], 0)]


def _measure_snapshot(samples: Samples, name: str, measured_sandbox: Sandbox, directory: Path) -> Snapshot:
    """Time a freeze until the sandbox answers again and, from the same start, until the snapshot is durable."""
    with samples.measure_time(f"{name}_kept"):
        with samples.measure_time(name):
            snapshot = measured_sandbox.snapshot(directory)
            measured_sandbox.run("true", timeout_s=_TIMEOUT_S)
        return snapshot.result()


def _measure_restore(
    samples: Samples, name: str, snapshot: Snapshot, directory: Path, spec: SandboxSpec
) -> None:
    counters = psutil.Process().io_counters  # of this process and of its children that have ended
    written = counters().write_bytes
    with samples.measure_time(name):
        machine = sandbox.restore(snapshot, directory, spec)
        machine.run("true", timeout_s=_TIMEOUT_S)
    machine.close()
    samples.add(f"{name}_bytes", counters().write_bytes - written)


def _measure_repeated_restores(
    samples: Samples, name: str, snapshot: Snapshot, directory: Path, spec: SandboxSpec
) -> None:
    """One after another, all of them alive until the last has answered."""
    with contextlib.ExitStack() as stack:
        began = time.perf_counter()
        for _ in range(RESTORES):
            machine = stack.enter_context(contextlib.closing(sandbox.restore(snapshot, directory, spec)))
            machine.run("true", timeout_s=_TIMEOUT_S)
        samples.add(f"{name}_thaw_of_twelve", (time.perf_counter() - began) * 1e3 / RESTORES)


def _run_checked(measured_sandbox: Sandbox, command: str) -> None:
    result = measured_sandbox.run(command, timeout_s=_TIMEOUT_S)
    if result.exit_code != 0:
        raise SandboxUnavailableError(f"a benchmark's command failed: {result.output.strip()[-200:]}")


@contextlib.contextmanager
def _new_spec(backend: BackendName, **fields: Any) -> Iterator[SandboxSpec]:
    """A sandbox with an owner of its own, whose leftovers are removed in the end."""
    owner = f"benchmark-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        yield SandboxSpec(backend=backend, owner=owner, **fields)
    finally:
        sandbox.remove_stale_resources(backend, owner)
