"""Rounds of measurements on each back end, in turns with the references."""

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
NOT_REQUESTED = "not requested"
FEW_FILES = 3
"""Files changed before a small snapshot."""
_CALLS = 50
_SDK_CALLS = 5
_TIMEOUT_S = 600.0
_LONG_OUTPUT_COMMAND = "yes 0123456789abcdef | head -c 200000000"


class Samples:
    """Times in milliseconds and other values by name, and the reasons for missing ones."""

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
        """The reason of the longest prefix of the name."""
        prefixes = [prefix for prefix in self.reasons if name.startswith(prefix)]
        return self.reasons[max(prefixes, key=len)] if prefixes else NOT_REQUESTED

    @contextlib.contextmanager
    def measure_time(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.add(name, (time.perf_counter() - start) * 1e3)


def measure_local(
    samples: Samples, backend: BackendName, directory: Path, store: Path, many: int, number: int
) -> None:
    """Measure `host` or `process`."""
    snapshots: list[tuple[Snapshot, Path]] = []
    with _new_spec(backend, directory=directory) as spec:
        with contextlib.closing(sandbox.start(spec)) as measured_sandbox:
            _measure_commands(samples, backend, measured_sandbox, number)
            for name, size in (("few", FEW_FILES), ("many", many)):
                _run_checked(measured_sandbox, testbed.change_files_command(size))
                path = store / f"{number}-{name}"
                snapshot = _measure_snapshot(samples, f"{backend}_snapshot_{name}", measured_sandbox, path)
                snapshots.append((snapshot, path))

        names = (f"{backend}_restore", f"{backend}_restore_many")
        pairs = zip(names, snapshots, strict=True)
        _alternate(number, *(partial(_measure_restore, samples, name, *saved, spec) for name, saved in pairs))
        if backend == "host":
            _measure_repeated_restores(samples, backend, *snapshots[0], spec)


def measure_sizes(
    samples: Samples, backend: BackendName, directories: Mapping[str, Path], store: Path, number: int
) -> None:
    """Measure times that may grow with a repository, by the name of its size."""

    def measure_size(size: str, directory: Path) -> None:
        with _new_spec(backend, directory=directory) as spec:
            with samples.measure_time(f"{backend}_start_{size}"):
                measured_sandbox = sandbox.start(spec)
                measured_sandbox.run("true", timeout_s=_TIMEOUT_S)
            with contextlib.closing(measured_sandbox):
                _measure_changes(samples, f"{backend}_changes_{size}", measured_sandbox, number)
                path = store / f"{number}-{size}"
                snapshot = _measure_snapshot(samples, f"{backend}_snapshot_{size}", measured_sandbox, path)
            _measure_restore(samples, f"{backend}_restore_{size}", snapshot, path, spec)

    sizes = directories.items()
    _alternate(number, *(partial(measure_size, size, directory) for size, directory in sizes))


def measure_docker(samples: Samples, image: str, store: Path, many: int, peers: bool, number: int) -> None:
    """Measure `docker` and the daemon's own commands."""
    for way in ("commit", "layer"):
        with _new_spec("docker", image=image, workspace="/testbed", snapshots=way) as spec:
            _measure_snapshot_way(samples, way, spec, store / f"{number}-{way}", many, peers, number)


def _measure_snapshot_way(
    samples: Samples, way: str, spec: SandboxSpec, store: Path, many: int, peers: bool, number: int
) -> None:
    peer, copy = {"commit": ("commit", daemon.commit), "layer": ("tar", daemon.tar_upper_directory)}[way]
    with contextlib.closing(sandbox.start(spec)) as measured_sandbox, contextlib.ExitStack() as stack:
        stack.callback(daemon.remove_commits)
        container = daemon.find_container(spec.owner)
        if way == "commit":
            _measure_commands(samples, "docker", measured_sandbox, number)
            for _ in range(_SDK_CALLS if peers else 0):
                with samples.measure_time("docker_exec_run"):
                    daemon.exec_run(container)
        snapshots: list[tuple[Snapshot, Path]] = []
        for name, size in (("few", FEW_FILES), ("many", many)):
            _run_checked(measured_sandbox, testbed.change_files_command(size))
            path = store / name

            def measure_snapshot(name: str = name, path: Path = path) -> None:
                sample = f"docker_{way}_snapshot_{name}"
                snapshots.append((_measure_snapshot(samples, sample, measured_sandbox, path), path))

            def measure_peer(name: str = name) -> None:
                with samples.measure_time(f"docker_{peer}_{name}"):
                    copy(container)

            _alternate(number, measure_snapshot, *([measure_peer] if peers else []))
    if way != "commit":
        return

    def measure_bare_start() -> None:
        with samples.measure_time("docker_start"):
            container = daemon.start_bare(str(spec.image), spec)
        daemon.remove(container)

    _alternate(
        number,
        lambda: _measure_restore(samples, "docker_restore", *snapshots[0], spec),
        *([measure_bare_start] if peers else []),
    )


def _alternate(number: int, *measure: Callable[[], None]) -> None:
    """Alternate the order between rounds, so that no side always benefits from warm caches."""
    for each in measure if number % 2 == 0 else reversed(measure):
        each()


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
        raise SandboxUnavailableError(f"edited one file, but the sandbox reports {len(changes)} changes")


def _measure_output_memory(samples: Samples, measured_sandbox: Sandbox) -> None:
    """Measure the peak memory for a long output, over all sandboxes."""
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
    """Time a snapshot until the sandbox answers again and, from the same start, until it is durable."""
    with samples.measure_time(f"{name}_saved"):
        with samples.measure_time(name):
            snapshot = measured_sandbox.snapshot(directory)
            measured_sandbox.run("true", timeout_s=_TIMEOUT_S)
        return snapshot.result()


def _measure_restore(
    samples: Samples, name: str, snapshot: Snapshot, directory: Path, spec: SandboxSpec
) -> None:
    counters = psutil.Process().io_counters  # of this process and its terminated children
    bytes_before = counters().write_bytes
    with samples.measure_time(name):
        restored = sandbox.restore(snapshot, directory, spec)
        restored.run("true", timeout_s=_TIMEOUT_S)
    restored.close()
    samples.add(f"{name}_bytes", counters().write_bytes - bytes_before)


def _measure_repeated_restores(
    samples: Samples, name: str, snapshot: Snapshot, directory: Path, spec: SandboxSpec
) -> None:
    """Time consecutive restores, all of which stay open until the last one has answered."""
    with contextlib.ExitStack() as stack:
        start = time.perf_counter()
        for _ in range(RESTORES):
            restored = stack.enter_context(contextlib.closing(sandbox.restore(snapshot, directory, spec)))
            restored.run("true", timeout_s=_TIMEOUT_S)
        samples.add(f"{name}_restore_of_twelve", (time.perf_counter() - start) * 1e3 / RESTORES)


def _run_checked(measured_sandbox: Sandbox, command: str) -> None:
    result = measured_sandbox.run(command, timeout_s=_TIMEOUT_S)
    if result.exit_code != 0:
        raise SandboxUnavailableError(f"command of the benchmark failed: {result.output.strip()[-200:]}")


@contextlib.contextmanager
def _new_spec(backend: BackendName, **fields: Any) -> Iterator[SandboxSpec]:
    """A specification with a new owner, whose resources are removed at the end."""
    owner = f"benchmark-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        yield SandboxSpec(backend=backend, owner=owner, **fields)
    finally:
        sandbox.remove_stale_resources(backend, owner)
