"""Figures of the sandbox benchmark: the samples that each one compares, and its goal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.figures import Figure, Goal
from benchmarks.sandbox_rounds import FEW_FILES, NOT_REQUESTED, Samples


class FigureSpec(NamedTuple):
    """A figure: the median of the samples `value`, compared with that of the samples `reference`."""

    name: str
    value: str
    goal: Goal | None = None
    reference: str = ""
    reference_name: str = ""
    unit: str = "ms"
    growth: bool = False


def build_figures(samples: Samples, many: int, files: tuple[int, int]) -> Iterator[Figure]:
    """The measured figures, and the reasons for missing ones, each reason once.

    `many`: number of changed files. `files`: sizes of the small and the large repository.
    """
    reported: set[str] = set()
    for spec in (*_sandbox_specs(many), *_growth_specs(many, files)):
        values = {name: samples.median(name) for name in (spec.value, spec.reference) if name}
        reason = next((samples.find_reason(name) for name, value in values.items() if value is None), "")
        value = values[spec.value]
        if reason == NOT_REQUESTED or (reason and (spec.growth or (reason in reported and not spec.goal))):
            continue
        if value is not None:
            fields = spec._asdict() | {"value": value, "reference": values.get(spec.reference)}
            yield Figure(**fields, missing=reason)
        elif reason not in reported:
            yield Figure(spec.value.partition("_")[0], "", None, missing=reason)
        reported.add(reason)


def _sandbox_specs(many: int) -> tuple[FigureSpec, ...]:
    few_text, many_text = f"{FEW_FILES} files changed", f"{many:,} files changed"
    start, fast, commit = "create and start of the base", "docker, by layer: snapshot", "docker commit"
    single = "a single restore"
    near, twice = Goal(1.2, "ratio"), Goal(2, "ratio")
    slow, tar = "docker, by commit: snapshot", "tar of the layer"
    return (
        FigureSpec(f"host: snapshot, {few_text}", "host_snapshot_few", Goal(35)),
        FigureSpec(f"host: snapshot, {many_text}", "host_snapshot_many", Goal(35)),
        FigureSpec(f"host: snapshot until durable, {few_text}", "host_snapshot_few_saved"),
        FigureSpec(f"host: snapshot until durable, {many_text}", "host_snapshot_many_saved"),
        FigureSpec("host: restore", "host_restore", Goal(40)),
        FigureSpec("host: each of twelve restores", "host_restore_of_twelve", Goal(1.1, "ratio"), "host_restore", single),
        FigureSpec("host: bytes written by a restore", "host_restore_bytes", Goal(2**18), unit="B"),
        FigureSpec("host: `true`", "host_true", Goal(1)),
        FigureSpec("host: list changes after an edit", "host_changes", Goal(30)),
        FigureSpec(f"{slow}, {few_text}", "docker_commit_snapshot_few", near, "docker_commit_few", commit),
        FigureSpec(f"{slow}, {many_text}", "docker_commit_snapshot_many", near, "docker_commit_many", commit),
        FigureSpec(f"{fast}, {few_text}", "docker_layer_snapshot_few", twice, "docker_tar_few", tar),
        FigureSpec(f"{fast}, {many_text}", "docker_layer_snapshot_many", twice, "docker_tar_many", tar),
        FigureSpec("docker: restore", "docker_restore", Goal(1.15, "ratio"), "docker_start", start),
        FigureSpec("docker: `true`", "docker_true", Goal(2)),
        FigureSpec("docker: list changes after an edit", "docker_changes", Goal(30)),
        FigureSpec("peak memory for 200 MB of output", "output_peak", Goal(2), unit="MB"),
        FigureSpec(f"process: snapshot, {few_text}", "process_snapshot_few"),
        FigureSpec(f"process: snapshot, {many_text}", "process_snapshot_many"),
        FigureSpec("process: restore", "process_restore"),
        FigureSpec("process: `true`", "process_true"),
        FigureSpec("process: list changes after an edit", "process_changes"),
        FigureSpec("docker: `true`", "docker_true", None, "docker_exec_run", "docker SDK exec_run"),
        FigureSpec("host: `true`", "host_true", None, "swerex_local", "SWE-ReX local, execute"),
        FigureSpec("host: `true`", "host_true", None, "swerex_local_session", "SWE-ReX local, session"),
        FigureSpec("docker: `true`", "docker_true", None, "swerex_docker", "SWE-ReX docker, execute"),
        FigureSpec("docker: `true`", "docker_true", None, "swerex_docker_session", "SWE-ReX docker, session"),
    )  # fmt: skip


def _growth_specs(many: int, files: tuple[int, int]) -> Iterator[FigureSpec]:
    """Growth with the number of changed files, and with the size of the repository."""
    small, large = files
    for value, reference, title in (
        ("host_snapshot_many", "host_snapshot_few", "host: snapshot"),
        ("host_restore_many", "host_restore", "host: restore"),
        ("process_snapshot_many", "process_snapshot_few", "process: snapshot"),
        ("process_restore_many", "process_restore", "process: restore"),
        ("docker_layer_snapshot_many", "docker_layer_snapshot_few", "docker, by layer: snapshot"),
        ("docker_commit_snapshot_many", "docker_commit_snapshot_few", "docker, by commit: snapshot"),
    ):
        yield FigureSpec(
            f"{title}, {many:,} files changed", value, None, reference, f"{FEW_FILES} files", growth=True
        )
    for name in ("host", "process"):
        for key in ("start", "changes", "snapshot", "restore"):
            title = f"{name}: {key}, repository of {large:,} files"
            value, reference = f"{name}_{key}_large", f"{name}_{key}_small"
            yield FigureSpec(title, value, None, reference, f"{small:,} files", growth=True)
