"""Figures of a benchmark, each compared with a reference from the same run, and their table."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Literal, NoReturn

import typer
from pydantic import TypeAdapter, computed_field
from pydantic.dataclasses import dataclass
from rich.console import Console
from rich.table import Table
from rich.text import Text

HEADINGS = ("figure", "value", "reference", "ratio", "goal", "met")
_WIDTH = 150


@dataclass(frozen=True)
class Goal:
    """The upper limit of a figure or its ratio; the lower limit if `at_least`."""

    limit: float
    of: Literal["value", "ratio"] = "value"
    at_least: bool = False


@dataclass(frozen=True)
class Figure:
    """A measured value, and a reference value from the same run."""

    name: str
    unit: str
    value: float | None
    reference: float | None = None
    reference_name: str = ""
    goal: Goal | None = None
    growth: bool = False
    """Whether it shows the growth of a cost: `value` is the larger case, `reference` the smaller one."""
    paired: float | None = None
    """The median of the ratios per round; replaces the ratio of the medians."""
    missing: str = ""
    """Why `value` or `reference` is unknown."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratio(self) -> float | None:
        if self.paired is not None:
            return self.paired
        return None if self.value is None or not self.reference else self.value / self.reference

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None without a goal or without a value."""
        value = None if self.goal is None else self.value if self.goal.of == "value" else self.ratio
        if self.goal is None or value is None:
            return None
        return value >= self.goal.limit if self.goal.at_least else value <= self.goal.limit


def format_cells(figure: Figure) -> tuple[str, ...]:
    """The texts of a figure's row, in the order of HEADINGS."""
    reference = format_amount(figure.reference, figure.unit) if figure.reference is not None else ""
    reference = ": ".join(text for text in (figure.reference_name, reference) if text)
    if figure.missing:
        reference = f"{reference} ({figure.missing})" if reference else figure.missing
    ratio = "–" if figure.ratio is None else f"{figure.ratio:,.{2 if figure.ratio < 10 else 0}f}"
    met = "" if figure.goal is None else {True: "yes", False: "no", None: "not measured"}[figure.is_met]
    return figure.name, format_amount(figure.value, figure.unit), reference, ratio, _format_goal(figure), met


def format_amount(value: float | None, unit: str = "") -> str:
    if value is None:
        return "–"
    if abs(value) >= 100 or value == int(value):
        text = f"{value:,.0f}"
    elif abs(value) >= 1:
        text = f"{value:.{1 if abs(value) >= 10 else 2}f}"
    else:
        text = f"{value:.2g}"
    return f"{text} {unit}".rstrip()


def format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _format_goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    text = f"{'≥' if figure.goal.at_least else '≤'} {figure.goal.limit:,g}"
    return f"ratio {text}" if figure.goal.of == "ratio" else f"{text} {figure.unit}".rstrip()


def make_table(title: str, figures: Iterable[Figure] = ()) -> Table:
    table = Table(title=title)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in ("value", "ratio", "goal") else "left")
    add_rows(table, figures)
    return table


def add_rows(table: Table, figures: Iterable[Figure]) -> None:
    for figure in figures:
        *texts, met = format_cells(figure)
        table.add_row(*texts, Text(met, {"yes": "green", "no": "red"}.get(met, "dim")))


def print_figures(title: str, figures: Iterable[Figure], *, as_json: bool) -> None:
    """Print the figures of a benchmark as a table or as one JSON object."""
    if as_json:
        values = TypeAdapter(tuple[Figure, ...]).dump_python(tuple(figures))
        print(json.dumps({"title": title, "figures": values}, indent=1))
    else:
        print_wide(make_table(title, figures))


def print_wide(*items: object) -> None:
    """Print in the terminal's width, or in a fixed width if the output is not a terminal."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(highlight=False, markup=False, width=None if has_width else _WIDTH).print(*items)


def print_progress(text: str) -> None:
    Console(stderr=True, highlight=False).print(text, style="dim", markup=False, soft_wrap=True)


def choose_names(option: str, text: str | None, known: Iterable[str]) -> list[str]:
    """The names in a list separated by commas, in their usual order, or all; exit if one is unknown."""
    names = list(known)
    chosen = names if text is None else text.replace(",", " ").split()
    unknown = [name for name in chosen if name not in names]
    if unknown or not chosen:
        refuse(f"{option} {', '.join(unknown) or repr(text)}: unknown (choose from: {', '.join(names)})")
    return [name for name in names if name in chosen]


def refuse(reason: str) -> NoReturn:
    """Exit with code 2 and an error of one line."""
    print(f"error: {reason}", file=sys.stderr)
    raise typer.Exit(2)


def run_command(main: Callable[..., None], epilog: str | None = None) -> None:
    """Run a function as the command line of its script."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=epilog)(main)
    app()
