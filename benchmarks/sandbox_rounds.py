"""Rounds of measurements on each back end, in turns with the references."""

from __future__ import annotations

import contextlib
import os
import secrets
import tracemalloc
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks import peers
from benchmarks.testbed import change_files_command
from benchmarks.turns import Samples, UnavailableError, take_turns
from langgraph_takeover import SandboxSpec, sandbox
from langgraph_takeover.sandbox.backends import warm_shells
from langgraph_takeover.sandbox.interface import BackendName, Sandbox, SandboxUnavailableError, Snapshot

RESTORES = 100
_CALLS, _SDK_CALLS = 50, 5
_TIMEOUT_S = 600.0
_EDITED_FILE = "pkg/part00/module0000.py"
_LONG_OUTPUT_COMMAND = "yes 0123456789abcdef | head -c 200000000"


@contextlib.contextmanager
def open_spec(backend: BackendName, **fields: Any) -> Iterator[SandboxSpec]:
    """A specification with a new owner, whose resources are removed at the end."""
    owner = f"benchmark-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        yield SandboxSpec(backend=backend, owner=owner, **fields)
    except SandboxUnavailableError as error:
        raise UnavailableError(str(error)) from error
    finally:
        sandbox.remove_stale_resources(backend, owner)


def measure_backend(
    samples: Samples,
    name: str,
    spec: SandboxSpec,
    store: Path,
    changed_files: Mapping[str, int],
    with_peers: bool,
    number: int,
) -> None:
    """Measure a sandbox from its start to its restores: one snapshot for each number of changed files, by its name."""
    with samples.measure_time(f"{name}_start"):
        measured = sandbox.start(spec)
        _run(measured, "true")
    snapshots: dict[str, Snapshot] = {}
    with contextlib.closing(measured), contextlib.ExitStack() as stack:
        _measure_commands(samples, name, measured, number)
        container = None
        if spec.backend == "docker" and with_peers:
            container = peers.find_container(spec.owner)
            stack.callback(peers.remove_commits)
            for _ in range(_SDK_CALLS):
                with samples.measure_time(f"{name}_exec_run"):
                    peers.exec_run(container)
        for size, count in changed_files.items():
            _run(measured, change_files_command(count))

            def measure_snapshot(size: str = size) -> None:
                directory = store / f"{name}-{number}-{size}"
                snapshots[size] = _measure_snapshot(samples, f"{name}_snapshot_{size}", measured, directory)

            def measure_peer(size: str = size) -> None:
                if container is not None:
                    copy = peers.commit if spec.snapshots == "commit" else peers.tar_upper_directory
                    with samples.measure_time(f"{name}_copy_{size}"):
                        copy(container)

            take_turns(number, measure_snapshot, measure_peer)
    restores = {
        f"{name}_restore_{size}": (snapshot, store / f"{name}-{number}-{size}")
        for size, snapshot in snapshots.items()
    }
    peer = [partial(peers.measure_bare_start, samples, spec)] if container else []
    take_turns(number, *(partial(_measure_restore, samples, *each, spec) for each in restores.items()), *peer)
    if spec.backend == "host":
        _measure_repeated_restores(samples, name, *restores[f"{name}_restore_few"], spec)


def _run(measured: Sandbox, command: str) -> None:
    result = measured.run(command, timeout_s=_TIMEOUT_S)
    if result.exit_code != 0:
        raise UnavailableError(f"command of the benchmark failed: {result.output.strip()[-200:]}")


def _measure_commands(samples: Samples, name: str, measured: Sandbox, number: int) -> None:
    for _ in range(_CALLS):
        with samples.measure_time(f"{name}_true"):
            measured.run("true", timeout_s=_TIMEOUT_S)
    measured.changes()
    measured.write_file(_EDITED_FILE, f"edited = {number}\n".encode())
    with samples.measure_time(f"{name}_changes"):
        changes = measured.changes()
    if [change.path for change in changes] != [_EDITED_FILE]:
        raise UnavailableError(f"edited one file, but the sandbox reports {len(changes)} changes")
    if number == 0:
        _measure_output_memory(samples, measured)


def _measure_output_memory(samples: Samples, measured: Sandbox) -> None:
    """Measure the peak memory for a long output, over all sandboxes."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        measured.run(_LONG_OUTPUT_COMMAND, timeout_s=_TIMEOUT_S)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    samples.values["output_peak"] = [max(peak - before, *samples.values["output_peak"], 0)]


def _measure_snapshot(samples: Samples, name: str, measured: Sandbox, directory: Path) -> Snapshot:
    """Time a snapshot until the sandbox answers again and, from the same start, until it is durable."""
    with samples.measure_time(f"{name}_saved"):
        with samples.measure_time(name):
            snapshot = measured.snapshot(directory)
            _run(measured, "true")
        return snapshot.result()


def _measure_restore(samples: Samples, name: str, saved: tuple[Snapshot, Path], spec: SandboxSpec) -> None:
    warm_shells.finish_preparing()
    counters = psutil.Process().io_counters  # of this process and its terminated children
    bytes_before = counters().write_bytes
    with samples.measure_time(name):
        restored = sandbox.restore(*saved, spec)
        _run(restored, "true")
    restored.close()
    samples.add(f"{name}_bytes", counters().write_bytes - bytes_before)


def _measure_repeated_restores(
    samples: Samples, name: str, snapshot: Snapshot, directory: Path, spec: SandboxSpec
) -> None:
    """Time consecutive restores, all of which stay open until the last one has answered; before, one without help."""
    warm_shells.close_waiting()
    _measure_restore(samples, f"{name}_restore_cold", (snapshot, directory), spec)
    warm_shells.finish_preparing()
    repeated = Samples()
    before = _measure_memory()
    with contextlib.ExitStack() as stack:
        with repeated.measure_time("all"):
            for _ in range(RESTORES):
                restored = sandbox.restore(snapshot, directory, spec)
                _run(stack.enter_context(contextlib.closing(restored)), "true")
        warm_shells.finish_preparing()
        samples.add(f"{name}_restored_memory", (_measure_memory() - before) / RESTORES)
    samples.add(f"{name}_restore_of_many", repeated.values["all"][0] / RESTORES)


def _measure_memory() -> int:
    """The memory of all processes below this one: pages that several share count in parts."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
    return total
