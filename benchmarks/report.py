"""What is measured, against what, and how it is shown."""

from __future__ import annotations

from typing import Literal, NamedTuple

from rich.table import Table

from benchmarks.rounds import NOT_ASKED, Samples


class Measure(NamedTuple):
    """One row: the figure of `key` is `ours`, or its ratio to `peer`, or `peer` itself beside ours."""

    key: str
    title: str
    ours: str
    kind: Literal["figure", "ratio", "peer"] = "figure"
    peer: str = ""
    limit: float | None = None
    unit: str = "ms"


MEASURES = (
    Measure("host_freeze_ms_3", "host: freeze, 3 files changed", "host_freeze_3", limit=35),
    Measure("host_freeze_ms_3000", "host: freeze, 3,000 files changed", "host_freeze_3000", limit=35),
    Measure("host_persist_ms_3", "host: snapshot kept, 3 files", "host_freeze_3_kept"),
    Measure("host_persist_ms_3000", "host: snapshot kept, 3,000 files", "host_freeze_3000_kept"),
    Measure("host_thaw_ms", "host: thaw", "host_thaw", limit=40),
    Measure(
        "twelve_thaws_over_single",
        "host: each of twelve thaws / a single one",
        "host_thaw_of_twelve",
        "ratio",
        "host_thaw",
        1.1,
    ),
    Measure("host_thaw_bytes_copied", "host: written by a thaw", "host_thaw_bytes", limit=2**18, unit="B"),
    Measure("host_true_ms", "host: `true`", "host_true", limit=1),
    Measure("host_changes_ms", "host: changes after an edit", "host_changes", limit=30),
    Measure(
        "docker_freeze_over_commit",
        "docker: freeze / docker commit, 3 files",
        "docker_commit_freeze_3",
        "ratio",
        "docker_commit_3",
        1.2,
    ),
    Measure(
        "docker_freeze_over_commit_3000",
        "docker: freeze / docker commit, 3,000 files",
        "docker_commit_freeze_3000",
        "ratio",
        "docker_commit_3000",
        1.2,
    ),
    Measure(
        "docker_fast_freeze_over_tar",
        "docker: fast freeze / bare tar, 3 files",
        "docker_layer_freeze_3",
        "ratio",
        "docker_tar_3",
        2,
    ),
    Measure(
        "docker_fast_freeze_over_tar_3000",
        "docker: fast freeze / bare tar, 3,000 files",
        "docker_layer_freeze_3000",
        "ratio",
        "docker_tar_3000",
        2,
    ),
    Measure(
        "docker_thaw_over_start",
        "docker: thaw / create and start of the base",
        "docker_thaw",
        "ratio",
        "docker_start",
        1.15,
    ),
    Measure("docker_true_ms", "docker: `true`", "docker_true", limit=2),
    Measure("docker_changes_ms", "docker: changes after an edit", "docker_changes", limit=30),
    Measure("output_200mb_peak_mb", "200 MB of output: held", "output_peak", limit=2, unit="MB"),
    Measure("process_freeze_ms_3", "process: freeze, 3 files changed", "process_freeze_3"),
    Measure("process_freeze_ms_3000", "process: freeze, 3,000 files changed", "process_freeze_3000"),
    Measure("process_thaw_ms", "process: thaw", "process_thaw"),
    Measure("process_true_ms", "process: `true`", "process_true"),
    Measure("process_changes_ms", "process: changes after an edit", "process_changes"),
    Measure("docker_exec_run_ms", "`true`: docker SDK exec_run", "docker_true", "peer", "docker_exec_run"),
    Measure("swerex_local_ms", "`true`: SWE-ReX local, execute", "host_true", "peer", "swerex_local"),
    Measure(
        "swerex_local_session_ms",
        "`true`: SWE-ReX local, session",
        "host_true",
        "peer",
        "swerex_local_session",
    ),
    Measure("swerex_docker_ms", "`true`: SWE-ReX docker, execute", "docker_true", "peer", "swerex_docker"),
    Measure(
        "swerex_docker_session_ms",
        "`true`: SWE-ReX docker, session",
        "docker_true",
        "peer",
        "swerex_docker_session",
    ),
)


def figure(measure: Measure, samples: Samples) -> float | None:
    """What stands under the measure's key; None when it could not be measured."""
    ours, peer = samples.median(measure.ours), samples.median(measure.peer)
    if measure.kind == "figure":
        return ours
    if measure.kind == "peer":
        return peer
    return None if ours is None or peer is None else ours / peer


def wanting(measure: Measure, samples: Samples) -> str:
    """Why the measure has no figure."""
    names = (name for name in (measure.ours, measure.peer) if name and samples.median(name) is None)
    return samples.reason(next(names))


def table(samples: Samples) -> Table:
    shown = Table("measure", "ours", "limit or peer", "ratio", "met?", title="medians, milliseconds")
    for column in shown.columns[1:4]:
        column.justify = "right"
    for measure in MEASURES:
        value = figure(measure, samples)
        if value is None:
            reason = wanting(measure, samples)
            if reason != NOT_ASKED:
                shown.add_row(measure.title, "–", "–", "–", f"[dim]{reason}")
            continue
        ours = samples.median(measure.ours)
        against = measure.limit if measure.kind == "figure" else samples.median(measure.peer)
        ratio = ours / against if ours is not None and against else None
        bound = "≤ " if measure.kind == "figure" else ""
        met = "" if measure.limit is None else "[green]yes" if value <= measure.limit else "[red]no"
        if met and measure.kind == "ratio":
            met += f" (≤ {measure.limit:g})"
        shown.add_row(
            measure.title,
            _number(ours, measure.unit),
            bound + _number(against, measure.unit) if against is not None else "–",
            "–" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}",
            met,
        )
    return shown


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return text if unit == "ms" else f"{text} {unit}"
