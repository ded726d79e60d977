"""Speed of sandboxes: snapshot, restore, commands and listing changes, compared with limits and peers.

Every figure is a median over the rounds of one run; compared operations alternate within each round. A snapshot ends
when the sandbox answers `true` again, a restore when the restored sandbox answers its first `true`.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks import peers, testbed
from benchmarks.figures import Goal, format_count, print_figures, print_progress, run_command
from benchmarks.sandbox_rounds import measure_backend, open_spec
from benchmarks.turns import (
    AsJson,
    Comparison,
    Files,
    Operation,
    Rounds,
    Samples,
    UnavailableError,
    measure_in_turns,
)
from langgraph_takeover.sandbox.interface import BackendName, SandboxUnavailableError

_FEW_FILES, _MANY_FILES = 3, 3_000
"""Files changed before a snapshot; at most half of the repository's files."""
_SIZE_RATIO = 10
_BASE_IMAGE = "takeover/base:latest"


def main(
    rounds: Rounds = 5,
    files: Files = testbed.FILES,
    with_peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Measure the daemon's own commands and SWE-ReX, too.")
    ] = True,
    peer_python: Annotated[
        str, typer.Option(help="Python interpreter with swe-rex. Default: this one.", show_default=False)
    ] = sys.executable,
    as_json: AsJson = False,
) -> None:
    """Measure the speed of sandboxes, compared with limits and peers."""
    samples, few, many = Samples(), _FEW_FILES, min(_MANY_FILES, files // 2)
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        large = testbed.make_testbed(work / "testbed", files)
        small = testbed.make_testbed(work / "small", files // _SIZE_RATIO)
        megabytes = sum(path.lstat().st_size for path in large.rglob("*")) / 1e6
        repository = f"a repository of {files:,} files, {megabytes:.0f} MB with its history"
        print_progress(repository)

        def measure(
            name: str, backend: BackendName, changed_files: dict[str, int], **fields: Any
        ) -> Operation:
            def measure_round(number: int) -> None:
                with open_spec(backend, **fields) as spec:
                    measure_backend(samples, name, spec, work, changed_files, with_peers, number)

            return measure_round

        sizes = {"few": few, "many": many}
        operations = {
            "host": measure("host", "host", sizes, directory=large),
            "small": measure("small", "host", {"few": few}, directory=small),
            "process": measure("process", "process", sizes, directory=large),
        }
        image = None
        with _record_reason(samples, "docker"):
            image = stack.enter_context(testbed.build_image(_BASE_IMAGE, large))
            for way in ("layer", "commit"):
                name, fields = f"docker_{way}", {"image": image, "workspace": "/testbed", "snapshots": way}
                operations[name] = measure(name, "docker", sizes, **fields)
        with _record_reason(samples, "swerex"):
            if with_peers:
                peer = stack.enter_context(peers.open_swerex(peer_python, image))
                samples.reasons |= peer.reasons
                operations["swerex"] = peer.run_round
        measure_in_turns(rounds, operations, samples)
    figures = samples.compare(
        *_compare_sandboxes(f"{few} files changed", f"{many:,} files changed"),
        *_compare_changes(f"{few} files", f"{many:,} files changed"),
        *_compare_sizes(f"{files // _SIZE_RATIO:,} files", f"repository of {files:,} files"),
    )
    print_figures(f"medians of {format_count(rounds, 'round')} on {repository}", figures, as_json=as_json)


@contextlib.contextmanager
def _record_reason(samples: Samples, name: str) -> Iterator[None]:
    """Record why a back end or a peer is missing on this host."""
    try:
        yield
    except (SandboxUnavailableError, UnavailableError) as error:
        samples.reasons[name] = str(error)


def _compare_sandboxes(few: str, many: str) -> tuple[Comparison, ...]:
    commit, layer = "docker, by commit: snapshot", "docker, by layer: snapshot"
    start, single, tar = "create and start of the base", "a single restore", "tar of the layer"
    cold = "without a waiting shell"
    near, twice, bytes_goal = Goal(1.2, "ratio"), Goal(2, "ratio"), Goal(2**18)
    return (
        Comparison(f"host: snapshot, {few}", "host_snapshot_few", goal=Goal(35)),
        Comparison(f"host: snapshot, {many}", "host_snapshot_many", goal=Goal(35)),
        Comparison(f"host: snapshot until durable, {few}", "host_snapshot_few_saved"),
        Comparison(f"host: snapshot until durable, {many}", "host_snapshot_many_saved"),
        Comparison("host: restore to first command", "host_restore_few", "host_restore_cold", cold, Goal(10)),
        Comparison("host: each of 100 restores", "host_restore_of_many", "host_restore_few", single, Goal(1.1, "ratio")),
        Comparison("host: each of 100 restores", "host_restore_of_many", "host_restore_cold", cold, Goal(1.1, "ratio")),
        Comparison("host: memory of each of 100 sandboxes", "host_restored_memory", unit="MB"),
        Comparison("host: bytes written by a restore", "host_restore_few_bytes", goal=bytes_goal, unit="B"),
        Comparison("host: `true`", "host_true", goal=Goal(1)),
        Comparison("host: list changes after an edit", "host_changes", goal=Goal(30)),
        Comparison(f"{commit}, {few}", "docker_commit_snapshot_few", "docker_commit_copy_few", "docker commit", near),
        Comparison(f"{commit}, {many}", "docker_commit_snapshot_many", "docker_commit_copy_many", "docker commit", near),
        Comparison(f"{layer}, {few}", "docker_layer_snapshot_few", "docker_layer_copy_few", tar, twice),
        Comparison(f"{layer}, {many}", "docker_layer_snapshot_many", "docker_layer_copy_many", tar, twice),
        Comparison("docker: restore", "docker_commit_restore_few", "docker_start", start, Goal(1.15, "ratio")),
        Comparison("docker: `true`", "docker_commit_true", goal=Goal(2)),
        Comparison("docker: list changes after an edit", "docker_commit_changes", goal=Goal(30)),
        Comparison("peak memory for 200 MB of output", "output_peak", goal=Goal(2), unit="MB"),
        Comparison(f"process: snapshot, {few}", "process_snapshot_few"),
        Comparison(f"process: snapshot, {many}", "process_snapshot_many"),
        Comparison("process: restore", "process_restore_few"),
        Comparison("process: `true`", "process_true"),
        Comparison("process: list changes after an edit", "process_changes"),
        Comparison("docker: `true`", "docker_commit_true", "docker_commit_exec_run", "docker SDK exec_run"),
        Comparison("host: `true`", "host_true", "swerex_local", "SWE-ReX local, execute"),
        Comparison("host: `true`", "host_true", "swerex_local_session", "SWE-ReX local, session"),
        Comparison("docker: `true`", "docker_commit_true", "swerex_docker", "SWE-ReX docker, execute"),
        Comparison("docker: `true`", "docker_commit_true", "swerex_docker_session", "SWE-ReX docker, session"),
    )  # fmt: skip


def _compare_changes(few: str, many: str) -> Iterator[Comparison]:
    """Growth with the number of changed files."""
    for name, title in (
        ("host_snapshot", "host: snapshot"),
        ("host_restore", "host: restore"),
        ("process_snapshot", "process: snapshot"),
        ("process_restore", "process: restore"),
        ("docker_layer_snapshot", "docker, by layer: snapshot"),
        ("docker_commit_snapshot", "docker, by commit: snapshot"),
    ):
        yield Comparison(f"{title}, {many}", f"{name}_many", f"{name}_few", few, growth=True)


def _compare_sizes(small: str, large: str) -> Iterator[Comparison]:
    """Growth with the size of the repository."""
    for title, name in (
        ("start", "start"),
        ("changes", "changes"),
        ("snapshot", "snapshot_few"),
        ("restore", "restore_few"),
    ):
        yield Comparison(f"host: {title}, {large}", f"host_{name}", f"small_{name}", small, growth=True)


if __name__ == "__main__":
    run_command(main)
