"""Compare two runs: a table, or one JSON object."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langgraph_takeover.evals.cli.runner import (
    DONE,
    USAGE,
    SingleUseCommand,
    make_console,
    require_experiment,
)
from langgraph_takeover.sandbox.cli.program import PlainApp, degrade_output, report_full_disk, run_app

if TYPE_CHECKING:
    from rich.console import Console

    from langgraph_takeover.evals.reports.comparison import Comparison, MetricChange
    from langgraph_takeover.evals.reports.estimates import Estimate

_EPILOG = """
Examples:
  takeover-compare runs/before runs/after
  takeover-compare runs/before runs/after --json > change.json

Exit codes: 0 done, 2 usage.
"""
_MAX_FLIPS = 20
_MAX_NAMES = 3

app = PlainApp()


@app.command(epilog=_EPILOG, cls=SingleUseCommand)
def command(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Directory of the earlier run.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Directory of the later run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    journal: Annotated[
        str | None,
        typer.Option(help="Database URL for the rows of both runs.", show_default="each run's own"),
    ] = None,
) -> None:
    """Compare two runs by takeover: same record, view, successor and repeat."""
    require_experiment()
    from langgraph_takeover.evals.reports.comparison import compare
    from langgraph_takeover.evals.run.preparation import usage_errors
    from langgraph_takeover.evals.run.results import load_results

    try:
        results = [load_results([out], journal) for out in (before, after)]
        comparison = compare(*results)
    except usage_errors() as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    if as_json:
        print(json.dumps(_to_json_value(comparison)))
    else:
        shown_on = make_console()
        for warning in (line for one in results for line in one.warnings):
            shown_on.print(f"warning: {warning}", style="yellow", markup=False)
        print_comparison(shown_on, comparison)
    raise typer.Exit(DONE)


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print the table and other differences of the runs."""
    from rich.table import Table

    table = Table(title="Later run compared with the earlier, per takeover; 95 % intervals")
    table.add_column("view")
    for name in (
        "matched",
        "events",
        "mean Δ events",
        "prompt tokens",
        "mean Δ tokens",
        "solved",
        "Δ solved",
        "p",
    ):
        table.add_column(name, justify="right")
    for view in comparison.views:
        table.add_row(
            *(view.view, f"{view.pairs}"),
            *(_format_medians(view.events, with_change=True), _format_change(view.events.mean_change)),
            _format_medians(view.prompt_tokens, with_change=True),
            _format_change(view.prompt_tokens.mean_change),
            *(f"{view.solved_before} → {view.solved_after}", _format_change(view.solved, "pp")),
            "–" if view.test.p is None else f"{view.test.p:.3f}",
        )
    console.print(table)
    console.print(
        "Medians and their change; mean Δ: mean of the single takeovers' changes, for solved too. p: exact McNemar test.",
        style="dim",
    )
    _print_trust(console, comparison)
    for line in _describe_differences(comparison):
        console.print(line, markup=False, soft_wrap=True)


def _print_trust(console: Console, comparison: Comparison) -> None:
    """Print what successors were shown again, kept and checked, if the rows say so."""
    from rich.table import Table

    from langgraph_takeover.evals.reports.comparison import ANSWERS

    views = [view for view in comparison.views if any(view.answers.values())]
    if not views:
        return
    table = Table(title="Re-shown, kept and checked: earlier → later run")
    table.add_column("view")
    for name in ("re-shown tokens", "kept %", *ANSWERS):
        table.add_column(name.replace("_", " "), justify="right")
    for view in views:
        kept = view.kept._replace(
            before=None if view.kept.before is None else 100 * view.kept.before,
            after=None if view.kept.after is None else 100 * view.kept.after,
        )
        answers = (view.answers[name] for name in ANSWERS)
        table.add_row(
            *(view.view, _format_medians(view.reshown_tokens), _format_medians(kept)),
            *("–" if answer is None else f"{answer[0]} → {answer[1]}" for answer in answers),
        )
    console.print(table)


def _describe_differences(comparison: Comparison) -> list[str]:
    lines = []
    for view in comparison.views:
        if view.only_before or view.only_after:
            lines.append(
                f"{view.view}: {view.only_before} only in the earlier run, {view.only_after} only in the later"
            )
    for flip in comparison.flips[:_MAX_FLIPS]:
        became = "solved now" if flip.is_solved else "no longer solved"
        lines.append(f"{became}: {flip.record_id}, {flip.view}, {flip.successor}, repeat {flip.repeat}")
    if len(comparison.flips) > _MAX_FLIPS:
        lines.append(f"… and {len(comparison.flips) - _MAX_FLIPS} more (--json lists all)")
    if comparison.changed_records:
        lines.append(
            f"{len(comparison.changed_records)} of {comparison.records} records have another handoff point, patch or files: "
            f"{_name_first(comparison.changed_records)}"
        )
    if comparison.unknown_records:
        lines.append(
            f"{len(comparison.unknown_records)} of {comparison.records} records may differ, but are not in both directories: "
            f"{_name_first(comparison.unknown_records)}"
        )
    if comparison.changed_inputs:
        lines.append(
            f"{len(comparison.changed_inputs)} of the inputs of both runs differ: {_name_first(comparison.changed_inputs)}"
        )
    lines += [f"setting {name}: {then} → {now}" for name, (then, now) in comparison.settings.items()]
    lines += [
        f"prompts of {stage}: {', '.join(then) or 'none'} → {', '.join(now) or 'none'}"
        for stage, (then, now) in comparison.prompts.items()
    ]
    return lines


def _name_first(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")


def _format_medians(measure: MetricChange, *, with_change: bool = False) -> str:
    if measure.before is None or measure.after is None:
        return "–"
    has_change = with_change and measure.change_of_medians is not None
    change = f" ({100 * (measure.change_of_medians or 0):+.1f} %)" if has_change else ""
    return f"{measure.before:,.0f} → {measure.after:,.0f}{change}"


def _format_change(estimate: Estimate, unit: str = "%") -> str:
    if estimate.value is None:
        return "–"
    text = f"{100 * estimate.value:+.1f} {unit}"
    if estimate.interval is None:
        return text
    return f"{text} [{100 * estimate.interval.low:+.1f}, {100 * estimate.interval.high:+.1f}]"


def _to_json_value(value: Any) -> Any:
    """Convert named tuples to objects."""
    if hasattr(value, "_asdict"):
        return {name: _to_json_value(part) for name, part in value._asdict().items()}
    if isinstance(value, dict):
        return {name: _to_json_value(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_to_json_value(part) for part in value]
    return value


def main() -> None:
    degrade_output()
    with report_full_disk():
        run_app(app, "takeover-compare")


if __name__ == "__main__":
    main()
