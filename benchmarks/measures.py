"""The figures of the sandbox benchmark: which samples each one compares, and its goal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.figures import Figure, Goal
from benchmarks.rounds import FEW_FILES, NOT_REQUESTED, Samples


class FigureSpec(NamedTuple):
    """One figure: the median of the samples `ours`, beside that of the samples `beside`."""

    what: str
    ours: str
    goal: Goal | None = None
    beside: str = ""
    beside_what: str = ""
    unit: str = "ms"
    growth: bool = False


def build_figures(samples: Samples, many: int, files: tuple[int, int]) -> Iterator[Figure]:
    """The measured figures, and once each the reason why others are missing.

    `many` files changed; `files` of the small and the large repository.
    """
    shown: set[str] = set()
    for measure in (*_sandbox_specs(many), *_growth_specs(many, files)):
        values = {name: samples.median(name) for name in (measure.ours, measure.beside) if name}
        reason = next((samples.find_reason(name) for name, value in values.items() if value is None), "")
        ours = values[measure.ours]
        if reason == NOT_REQUESTED or (reason and (measure.growth or (reason in shown and not measure.goal))):
            continue
        if ours is not None:
            named = measure._asdict() | {"ours": ours, "beside": values.get(measure.beside)}
            yield Figure(**named, missing=reason)
        elif reason not in shown:
            yield Figure(measure.ours.partition("_")[0], "", None, missing=reason)
        shown.add(reason)


def _sandbox_specs(many: int) -> tuple[FigureSpec, ...]:
    few_text, many_text = f"{FEW_FILES} files changed", f"{many:,} files changed"
    start, fast, commit = "create and start of the base", "docker, by layer: freeze", "docker commit"
    one = "a single one"
    near, twice = Goal(1.2, "ratio"), Goal(2, "ratio")
    slow, tar = "docker, by commit: freeze", "bare tar of the layer"
    return (
        FigureSpec(f"host: freeze, {few_text}", "host_freeze_few", Goal(35)),
        FigureSpec(f"host: freeze, {many_text}", "host_freeze_many", Goal(35)),
        FigureSpec(f"host: snapshot kept, {few_text}", "host_freeze_few_kept"),
        FigureSpec(f"host: snapshot kept, {many_text}", "host_freeze_many_kept"),
        FigureSpec("host: thaw", "host_thaw", Goal(40)),
        FigureSpec("host: each of twelve thaws", "host_thaw_of_twelve", Goal(1.1, "ratio"), "host_thaw", one),
        FigureSpec("host: written by a thaw", "host_thaw_bytes", Goal(2**18), unit="B"),
        FigureSpec("host: `true`", "host_true", Goal(1)),
        FigureSpec("host: changes after an edit", "host_changes", Goal(30)),
        FigureSpec(f"{slow}, {few_text}", "docker_commit_freeze_few", near, "docker_commit_few", commit),
        FigureSpec(f"{slow}, {many_text}", "docker_commit_freeze_many", near, "docker_commit_many", commit),
        FigureSpec(f"{fast}, {few_text}", "docker_layer_freeze_few", twice, "docker_tar_few", tar),
        FigureSpec(f"{fast}, {many_text}", "docker_layer_freeze_many", twice, "docker_tar_many", tar),
        FigureSpec("docker: thaw", "docker_thaw", Goal(1.15, "ratio"), "docker_start", start),
        FigureSpec("docker: `true`", "docker_true", Goal(2)),
        FigureSpec("docker: changes after an edit", "docker_changes", Goal(30)),
        FigureSpec("200 MB of output: held", "output_peak", Goal(2), unit="MB"),
        FigureSpec(f"process: freeze, {few_text}", "process_freeze_few"),
        FigureSpec(f"process: freeze, {many_text}", "process_freeze_many"),
        FigureSpec("process: thaw", "process_thaw"),
        FigureSpec("process: `true`", "process_true"),
        FigureSpec("process: changes after an edit", "process_changes"),
        FigureSpec("docker: `true`", "docker_true", None, "docker_exec_run", "docker SDK exec_run"),
        FigureSpec("host: `true`", "host_true", None, "swerex_local", "SWE-ReX local, execute"),
        FigureSpec("host: `true`", "host_true", None, "swerex_local_session", "SWE-ReX local, session"),
        FigureSpec("docker: `true`", "docker_true", None, "swerex_docker", "SWE-ReX docker, execute"),
        FigureSpec("docker: `true`", "docker_true", None, "swerex_docker_session", "SWE-ReX docker, session"),
    )  # fmt: skip


def _growth_specs(many: int, files: tuple[int, int]) -> Iterator[FigureSpec]:
    """With changed files, and with the repository's."""
    small, large = files
    for ours, beside, title in (
        ("host_freeze_many", "host_freeze_few", "host: freeze"),
        ("host_thaw_many", "host_thaw", "host: thaw"),
        ("process_freeze_many", "process_freeze_few", "process: freeze"),
        ("process_thaw_many", "process_thaw", "process: thaw"),
        ("docker_layer_freeze_many", "docker_layer_freeze_few", "docker, by layer: freeze"),
        ("docker_commit_freeze_many", "docker_commit_freeze_few", "docker, by commit: freeze"),
    ):
        yield FigureSpec(
            f"{title}, {many:,} files changed", ours, None, beside, f"{FEW_FILES} files", growth=True
        )
    for name in ("host", "process"):
        for key in ("start", "changes", "freeze", "thaw"):
            title = f"{name}: {key}, repository of {large:,} files"
            ours, beside = f"{name}_{key}_large", f"{name}_{key}_small"
            yield FigureSpec(title, ours, None, beside, f"{small:,} files", growth=True)
