"""The published numbers of the paper, for the comparison with runs of its studies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Literal

import yaml

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.evals.run.results import Results

ALL = "all"
"""A row of all pairs, or of all categories."""
_Numbers = tuple[float | None, ...]


class PublishedTable(Frozen):
    """One table of the paper. Its columns are named like those of our table."""

    table: int
    title: str
    study: str
    ours: str
    group: str = ""
    """The part of our table that is compared; empty for all of it."""
    match: Literal["successor", "predecessor"] = "successor"
    """The model by which one of our groups finds its pair."""
    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Mapping[str, _Numbers]]]
    """Numbers by pair of models, category and view."""

    def choose_pairs(self, model: str) -> tuple[str, ...]:
        """The pairs with that model in the table's role, by the models' names; all pairs if none matches."""
        role = 0 if self.match == "predecessor" else 1
        named = [
            pair for pair in self.rows if pair != ALL and pair.split(" to ")[role].lower() in model.lower()
        ]
        return tuple(named or self.rows)

    def find_numbers(self, pairs: tuple[str, ...], category: str, view: str, column: str) -> list[float]:
        """The published numbers of these pairs."""
        index = self.columns.index(column)
        categories = (self.rows[pair] for pair in pairs)
        cells = (each.get(category, each.get(ALL, {})).get(view) for each in categories)
        return [number for numbers in cells if numbers and (number := numbers[index]) is not None]


@lru_cache
def load_published_tables() -> tuple[PublishedTable, ...]:
    text = (files("langgraph_takeover.evals.reports") / "published_tables.yaml").read_text(encoding="utf-8")
    return tuple(PublishedTable.model_validate(each) for each in yaml.safe_load(text))


def list_studies(results: Results) -> tuple[str, ...]:
    """The studies of these runs; `none` for a run without one."""
    return tuple(dict.fromkeys(source.config.study or "none" for source in results.sources))
