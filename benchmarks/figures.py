"""What a benchmark tells: figures, each beside a peer or a limit of the same run, with its goal where there is one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Literal, NoReturn

import typer
from pydantic import BaseModel, ConfigDict, computed_field
from rich.console import Console
from rich.markup import escape
from rich.table import Table

HEADINGS = ("what", "ours", "peer or limit", "ratio", "goal", "met")
_WIDTH = 150


class Goal(BaseModel, frozen=True, extra="forbid"):
    """What a figure, or its ratio, must not be above; or, `at_least`, not below."""

    limit: float
    of: Literal["ours", "ratio"] = "ours"
    at_least: bool = False


class Figure(BaseModel):
    """One thing that was measured."""

    # What is computed is written, too, and must be read again.
    model_config = ConfigDict(frozen=True, extra="ignore")

    what: str
    unit: str
    ours: float | None
    beside: float | None = None
    beside_what: str = ""
    goal: Goal | None = None
    growth: bool = False
    """It says how a cost grows: `ours` is of the larger case, `beside` of the smaller one."""
    paired: float | None = None
    """The median of the rounds' own ratios, where those are told rather than that of the medians."""
    missing: str = ""
    """Why `ours` or `beside` is not known."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratio(self) -> float | None:
        if self.paired is not None:
            return self.paired
        return None if self.ours is None or not self.beside else self.ours / self.beside

    @computed_field  # type: ignore[prop-decorator]
    @property
    def met(self) -> bool | None:
        """None where there is no goal, or nothing to hold against it."""
        value = None if self.goal is None else self.ours if self.goal.of == "ours" else self.ratio
        if self.goal is None or value is None:
            return None
        return value >= self.goal.limit if self.goal.at_least else value <= self.goal.limit


def cells(figure: Figure) -> tuple[str, ...]:
    """A figure as the texts of a row, under HEADINGS."""
    beside = amount(figure.beside, figure.unit) if figure.beside is not None else ""
    beside = ": ".join(text for text in (figure.beside_what, beside) if text)
    if figure.missing:
        beside = f"{beside} ({figure.missing})" if beside else figure.missing
    ratio = "–" if figure.ratio is None else f"{figure.ratio:,.{2 if figure.ratio < 10 else 0}f}"
    met = "" if figure.goal is None else {True: "yes", False: "no", None: "not measured"}[figure.met]
    return figure.what, amount(figure.ours, figure.unit), beside, ratio, _goal(figure), met


def amount(value: float | None, unit: str = "") -> str:
    if value is None:
        return "–"
    if abs(value) >= 100 or value == int(value):
        text = f"{value:,.0f}"
    elif abs(value) >= 1:
        text = f"{value:.{1 if abs(value) >= 10 else 2}f}"
    else:
        text = f"{value:.2g}"
    return f"{text} {unit}".rstrip()


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    text = f"{'≥' if figure.goal.at_least else '≤'} {figure.goal.limit:,g}"
    return f"ratio {text}" if figure.goal.of == "ratio" else f"{text} {figure.unit}".rstrip()


def empty(title: str) -> Table:
    """A table under HEADINGS, without a row."""
    table = Table(title=title)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in ("ours", "ratio", "goal") else "left")
    return table


def add_row(table: Table, figure: Figure) -> None:
    *told, met = cells(figure)
    colour = {"yes": "green", "no": "red"}.get(met, "dim")
    table.add_row(*map(escape, told), f"[{colour}]{met}")


def tell(title: str, figures: Iterable[Figure], *, as_json: bool) -> None:
    """What every benchmark ends with: a table, or the same as one JSON object."""
    figures = tuple(figures)
    if as_json:
        print(json.dumps({"title": title, "figures": [each.model_dump() for each in figures]}, indent=1))
        return
    table = empty(title)
    for each in figures:
        add_row(table, each)
    paper().print(table)


def paper() -> Console:
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if known else _WIDTH)


def say(text: str) -> None:
    """How far a benchmark is; not among its figures."""
    Console(stderr=True, highlight=False).print(text, style="dim", markup=False, soft_wrap=True)


def refuse(reason: str) -> NoReturn:
    print(f"error: {reason}", file=sys.stderr)
    raise typer.Exit(2)
