"""Detect the handoff points of recorded runs: a timeline, or one JSON object per trace."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from langgraph_takeover.evals.cli.runner import USAGE
from langgraph_takeover.evals.cli.trace_files import (
    SessionAgentOption,
    SessionOption,
    UnknownTraceError,
    WorkspaceOption,
    make_printable,
    read_traces,
    select_trace_files,
)
from langgraph_takeover.sandbox.cli.program import (
    PlainApp,
    degrade_output,
    program_name,
    report_full_disk,
    run_app,
)

if TYPE_CHECKING:
    from rich.console import Console

    from langgraph_takeover.evals.reports.detector_labels import Label, Score, Tally
    from langgraph_takeover.handoff.points.annotations import AnnotatedStep
    from langgraph_takeover.handoff.trace.events import Trace

_EPILOG = """
Examples:
  takeover-detect run.traj.json
  takeover-detect trajectories/ --json > points.jsonl
  takeover-detect trajectories/ --score labels.jsonl --misses
  takeover-detect run.json --workspace /workspace/repo
  takeover-detect --score tests/handoff/labels.jsonl
  takeover-detect --session latest --agent codex

Formats: mini-swe-agent-v1, mini-swe-agent-v2, swe-agent-0.x, swe-agent-1.x,
openhands-v0, openhands-v1, codex, claude-code, qwen-code, opencode, gemini-cli,
pi, copilot-cli, aider, kimi-code, atif, langchain, takeover. With --score, the
default TRACE is the labels' directory and ../shared/trajectories.
"""
_WIDE_CONSOLE, _FIXED_WIDTH, _NARROW_FIXED_WIDTH = 120, 92, 64
_MIN_COMMAND_WIDTH, _MAX_KIND_WIDTH = 8, 26
_SHARED_TRAJECTORIES = Path("../shared/trajectories")
_STYLES = {
    "failed": "red",
    "passed": "green",
    "environment_error": "yellow",
    "unknown": "dim",
    "no verdict": "dim",
}

app = PlainApp()


@app.command(epilog=_EPILOG)
def command(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, directories or globs of recorded runs. Optional with --score and --session.",
            metavar="TRACE…",
            show_default=False,
        ),
    ] = None,
    trace_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="Format of the files; 'auto' detects it.",
        ),
    ] = "auto",
    session: SessionOption = None,
    agent: SessionAgentOption = None,
    workspace: WorkspaceOption = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per trace, one per line.")
    ] = False,
    score: Annotated[
        Path | None,
        typer.Option(help="Compare with labels, and print the accuracy."),
    ] = None,
    misses: Annotated[bool, typer.Option("--misses", help="With --score: list every disagreement.")] = False,
) -> None:
    """Detect the handoff points of recorded runs of any coding agent."""
    from rich.console import Console

    from langgraph_takeover.evals.reports.detector_labels import LabelError, read_labels, select_labels

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160, highlight=False)
    try:
        patterns = traces or ([] if session is not None else _find_trace_directories(score))
        with select_trace_files(patterns, session, agent) as files:
            if score is not None:
                labels = read_labels(score)
                meant = [file for file in files if select_labels(labels, str(file))]
                found = read_traces(meant, trace_format, workspace)
                _print_scores(console, found, labels, as_json=as_json, misses=misses)
                return
            shown = _print_traces(console, read_traces(files, trace_format, workspace), as_json=as_json)
    except (LabelError, UnknownTraceError) as error:
        _exit_with_usage_error(str(error))
    if not shown:
        _exit_with_usage_error("no trace could be read")


def _print_traces(console: Console, traces: Iterable[tuple[str, Trace]], *, as_json: bool) -> int:
    """Print each trace; return their number."""
    shown = 0
    for name, trace in traces:
        shown += 1
        if as_json:
            print(json.dumps(build_report(name, trace)), flush=True)
        else:
            _print_timeline(console, name, trace)
    return shown


def _find_trace_directories(labels: Path | None) -> list[str]:
    """Default directories of labelled runs."""
    if labels is None:
        _exit_with_usage_error("PATHS: pass files, directories or globs of recorded runs, or --session ID")
    directories = [directory for directory in (labels.parent, _SHARED_TRAJECTORIES) if directory.is_dir()]
    print(f"looking in {', '.join(map(str, directories))}", file=sys.stderr)
    return [str(directory) for directory in directories]


def build_report(name: str, trace: Trace) -> dict[str, Any]:
    """The JSON object of one trace."""
    from langgraph_takeover.handoff.points.annotations import annotate_steps, explain_point

    rows = annotate_steps(trace)
    points = [
        {
            "kind": point.kind,
            "action_index": step.action_index,
            "event_index": point.event_index,
            "command": _format_command(step),
            "paths": list(step.edited_files) if point.kind != "first_validation" else [],
            "outcome": step.validation.outcome if step.validation is not None else None,
            "verdict": step.validation.verdict if step.validation is not None else None,
            "why": explain_point(step, point, rows[:number]),
        }
        for number, step in enumerate(rows)
        for point in step.points
    ]
    validations = [
        {
            "action_index": step.action_index,
            "kind": step.validation.kind,
            "outcome": step.validation.outcome,
            "verdict": step.validation.verdict,
        }
        for step in rows
        if step.validation is not None
    ]
    return {
        "trace": name,
        "format": trace.format,
        "events": len(trace.events),
        "workspace": trace.workspace or None,
        "workspace_why": trace.workspace_why,
        "points": points,
        "validations": validations,
        **({"skipped_lines": trace.skipped_lines} if trace.skipped_lines else {}),
        **({"unknown_forms": trace.unknown_forms} if trace.unknown_forms else {}),
        **(
            {"withdrawn": {"actions": trace.withdrawn_actions, "files": list(trace.withdrawn_files)}}
            if trace.withdrawn_actions
            else {}
        ),
        **({"earlier_session": trace.earlier_session} if trace.earlier_session else {}),
    }


def _print_timeline(console: Console, name: str, trace: Trace) -> None:
    from rich.table import Table
    from rich.text import Text

    from langgraph_takeover.handoff.points.annotations import annotate_steps, explain_point

    table = Table(
        title=Text(f"{make_printable(name)} · {trace.format} · {len(trace.events)} events"),
        title_justify="left",
    )
    narrow = console.width < _WIDE_CONSOLE
    headings = ("action", "event", "action", "taken for", "outcome", "handoff point after it")
    for heading in headings[: 5 if narrow else 6]:
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("action", "event") else "left")
    rows = annotate_steps(trace)
    width = max(console.width - (_NARROW_FIXED_WIDTH if narrow else _FIXED_WIDTH), _MIN_COMMAND_WIDTH)
    reasons = []
    for number, step in enumerate(rows):
        run = step.validation
        outcome = "" if run is None else "no verdict" if run.verdict == "exit_code_only" else run.outcome
        did = make_printable(" ".join(_format_command(step).split()))
        cells = (
            "" if step.action_index is None else str(step.action_index),
            str(step.event_index),
            # No markup, so that brackets and backslashes of a command print unchanged.
            Text(did if len(did) <= width else did[: width - 1] + "…"),
            Text(make_printable(step.label)[:_MAX_KIND_WIDTH]),
            Text(outcome, style=_STYLES.get(outcome, "")),
            Text(", ".join(point.kind for point in step.points), style="bold"),
        )
        table.add_row(*cells[: len(table.columns)], style="bold" if step.points else "")
        reasons += [
            f"{p.kind}, action {step.action_index}: {make_printable(explain_point(step, p, rows[:number]))}"
            for p in step.points
        ]
    console.print(table)
    console.print(_describe_workspace(trace), markup=False)
    for reason in reasons:
        console.print(reason, markup=False)


def _describe_workspace(trace: Trace) -> str:
    if not trace.workspace:
        return "repository: directory not found; relative paths count as inside it (pass --workspace DIR)"
    why = f" ({trace.workspace_why})" if trace.workspace_why else ""
    return make_printable(f"repository: {trace.workspace}{why}")


def _format_command(step: AnnotatedStep) -> str:
    arguments = step.action.arguments
    if step.action.tool == "editor":
        return f"{arguments.get('command', 'edit')} {arguments.get('path', '')}".strip()
    return arguments.get("command") or step.action.tool


def _print_scores(
    console: Console,
    traces: Iterable[tuple[str, Trace]],
    labels: Sequence[Label],
    *,
    as_json: bool,
    misses: bool,
) -> None:
    from langgraph_takeover.evals.reports.detector_labels import find_label, score_trace, sum_scores
    from langgraph_takeover.handoff.points.annotations import annotate_steps

    scores: dict[str, list[Score]] = {}
    for name, trace in traces:
        label = find_label(labels, name)
        if label is not None:
            scores.setdefault(trace.format, []).append(score_trace(label, annotate_steps(trace)))
    if not scores:
        _exit_with_usage_error("no label matches these traces (a label's `trace` must be the end of a path)")
    rows = {form: sum_scores(found) for form, found in sorted(scores.items())}
    everything = sum_scores(score for found in scores.values() for score in found)
    counts = {form: len(found) for form, found in scores.items()}
    if as_json:
        print(
            json.dumps({form: _score_to_json(score) for form, score in {**rows, "all": everything}.items()})
        )
    else:
        _print_score_table(console, {**rows, "all": everything}, {**counts, "all": sum(counts.values())})
    if misses:
        for miss in everything.misses:
            print(miss)


def _print_score_table(console: Console, rows: dict[str, Score], counts: dict[str, int]) -> None:
    from rich.table import Table

    table = Table(
        title="Detectors compared with hand-made labels (unclear cases excluded)", title_justify="left"
    )
    for heading in ("format", "traces", "what", "cases", "exactly right", "precision", "recall"):
        table.add_column(heading, justify="left" if heading in ("format", "what") else "right")
    for form, score in rows.items():
        tallies = {**score.points, "validation, with outcome": score.validations}
        for number, (kind, tally) in enumerate(tallies.items()):
            first = (form, str(counts[form])) if number == 0 else ("", "")
            table.add_row(*first, kind, str(tally.cases), *_format_rates(tally))
        table.add_section()
    console.print(table)


def _format_rates(tally: Tally) -> tuple[str, str, str]:
    return tuple(  # type: ignore[return-value]
        f"{100 * part / whole:.1f} %" if whole else "–"
        for part, whole in (
            (tally.exact, tally.cases),
            (tally.right, tally.found),
            (tally.right, tally.labelled),
        )
    )


def _score_to_json(score: Score) -> dict[str, Any]:
    tallies = {**score.points, "validations": score.validations}
    return {kind: tally._asdict() for kind, tally in tallies.items()}


def _exit_with_usage_error(text: str) -> NoReturn:
    print(f"error: {text}", file=sys.stderr)
    raise typer.Exit(USAGE)


def main() -> None:
    """Run the command line."""
    degrade_output()
    with report_full_disk():
        run_app(app, program_name("takeover-detect", "evals.detect"))


if __name__ == "__main__":
    main()
