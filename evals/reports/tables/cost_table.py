"""The table of tokens and costs."""

from __future__ import annotations

from langgraph_takeover.evals.reports.collection import ReportData, display_names
from langgraph_takeover.evals.reports.costs import list_cost_groups
from langgraph_takeover.evals.reports.tables.table_files import Table
from langgraph_takeover.evals.run.results import Results


def build_cost_table(results: Results, data: ReportData) -> Table:
    groups = list_cost_groups(results, data.views)
    names = display_names(group.model for group in groups)
    return Table(
        13,
        "costs",
        "Tokens and costs",
        (
            *(
                "role",
                "model",
                "view",
                "runs",
                "left out",
                "LLM calls",
                "prompt tokens",
                "cached tokens",
                "completion tokens",
            ),
            *("uncounted calls", "cost, USD"),
        ),
        tuple(
            (group.role, names[group.model], group.view, group.cost.runs, group.left_out, *group.cost[1:])
            for group in groups
        ),
        (
            "Cached tokens are part of the prompt tokens, and have their own price. A sum is missing (–) if a price is unknown, "
            "or if an endpoint reported no usage for a call, which then counts as uncounted. Models that are no LLM cost "
            "nothing. Left out: infrastructure failures, whose calls may be billed, too.",
        ),
    )
