"""The command that shows statistics over handoffs: part of `handoff`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from typer import Option

from langgraph_takeover.graph.cli.options import (
    DatabaseOption,
    HomeOption,
    open_existing_home,
    print_safely,
    print_table,
)

if TYPE_CHECKING:
    from langgraph_takeover.handoff.ledger.statistics import GroupStatistics, HandoffStatistics

STATISTICS_EPILOG = """
Examples:
  handoff stats --home work
  handoff stats --json | jq '.by_target.tester.success_rate'

Rows: all handoffs, by agent, by view. Success: share of ended handoffs
(completed, blocked, rolled back) that completed. Accept: seconds from the first
offer to the first acceptance. Retries: offers after the first. Refusals: number
by kind. Read-only.

Exit codes: 0 done, 2 usage, 3 the database failed.
"""
_TITLES = (
    "by",
    "name",
    "handoffs",
    "open",
    "completed",
    "success",
    "accept median s",
    "accept P90 s",
    "accept max s",
    "retries",
    "refusals",
)


def show_statistics(
    home: HomeOption = None,
    database: DatabaseOption = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show success rate, time to acceptance, retries and refusals."""
    from langgraph_takeover.handoff.ledger.statistics import compute_statistics

    with open_existing_home(home, database, empty_without_ledger=as_json) as found:
        computed = compute_statistics(found.ledger)
    if as_json:
        print(computed.model_dump_json(indent=1))
    elif not computed.handoffs:
        print_safely(f"no handoffs in {home}")
    else:
        print_table(_TITLES, list(_list_rows(computed)))


def _list_rows(computed: HandoffStatistics) -> Iterator[tuple[object, ...]]:
    yield ("all", "", *_format_group(computed))
    groups = {"source": computed.by_source, "target": computed.by_target, "view": computed.by_view}
    for label, group in groups.items():
        for name, each in group.items():
            yield (label, name, *_format_group(each))


def _format_group(group: GroupStatistics) -> tuple[object, ...]:
    spread = group.time_to_acceptance
    seconds = (
        [f"{each:,.1f}" for each in (spread.median_s, spread.p90_s, spread.max_s)] if spread else ["–"] * 3
    )
    return (
        group.handoffs,
        group.open,
        group.completed,
        "–" if group.success_rate is None else f"{group.success_rate:.0%}",
        *seconds,
        group.retries,
        ", ".join(f"{kind} {number}" for kind, number in group.refusals.items()) or "–",
    )
