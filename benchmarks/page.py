"""The figures of all benchmarks as one file, one table and one page of the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from benchmarks.figures import HEADINGS, Figure, add_row, format_cells, make_table

_QUICK_NOTE = "This was a quick run: its sizes are too small for any conclusion."
_GROWTH_NOTE = "The cost of the larger case beside the smaller one, with steps, files and takeovers: at a ratio of 1 nothing grows."
_PAGE_TEMPLATE = """# Performance

Written by `{command}` on {date}; no figure in it is typed by hand. It ran on {host}. {stolen}.

A ratio is ours divided by what stands beside it, which was measured in the same run, in turns. {goals}.
"""


class Part(BaseModel, frozen=True, extra="forbid"):
    """The figures of one benchmark."""

    name: str
    about: str
    """The docstring of its script."""
    command: str
    title: str = ""
    seconds: float
    stolen: float
    """The share of this host's processor time that other hosts took meanwhile: virtual machines only."""
    figures: tuple[Figure, ...] = ()
    error: str = ""

    @property
    def run_conditions(self) -> str:
        title = f"{self.title}; " if self.title else ""
        return f"{title}{self.seconds:,.0f} s, {_format_percent(self.stolen)} taken by other hosts"

    @property
    def failure(self) -> str:
        return f"{self.name} failed: {self.error}" if self.error else ""


class ResultsPage(BaseModel, frozen=True, extra="forbid"):
    date: str
    command: str
    quick: bool
    host: str
    parts: tuple[Part, ...] = ()

    @property
    def growth(self) -> list[Figure]:
        return [figure for part in self.parts for figure in part.figures if figure.growth]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=1) + "\n")

    def describe_stolen_time(self) -> str:
        seconds = sum(part.seconds for part in self.parts) or 1.0
        share = sum(part.stolen * part.seconds for part in self.parts) / seconds
        return f"Other hosts took {_format_percent(share)} meanwhile"

    def describe_goals(self) -> str:
        measured = [figure for part in self.parts for figure in part.figures if figure.is_met is not None]
        missed = [figure.what for figure in measured if not figure.is_met]
        text = f"{len(measured) - len(missed)} of {len(measured)} goals that could be measured are met"
        return f"{text}; not met: {', '.join(missed)}" if missed else text


def build_table(page: ResultsPage) -> Table:
    shown = make_table(f"{page.host}; {page.describe_stolen_time()}")
    for part in page.parts:
        figures = [figure for figure in part.figures if not figure.growth]
        _add_section(shown, part.name, part.run_conditions, figures, part.failure)
    if page.growth:
        _add_section(shown, "growth", "the larger case beside the smaller one", page.growth)
    return shown


def format_markdown(page: ResultsPage) -> str:
    head = _PAGE_TEMPLATE.format(
        command=page.command,
        date=page.date,
        host=page.host,
        stolen=page.describe_stolen_time(),
        goals=page.describe_goals(),
    )
    return "\n".join(text for text in (head, *_format_sections(page)) if text)


def _format_sections(page: ResultsPage) -> Iterator[str]:
    if page.quick:
        yield f"{_QUICK_NOTE}\n"
    for part in page.parts:
        yield f"## {part.name.capitalize()}\n\n{part.about}\n\n`{part.command}`: {part.run_conditions}.\n"
        if part.error:
            yield f"**{part.failure}**\n"
        yield _format_rows(figure for figure in part.figures if not figure.growth)
    if page.growth:
        yield f"## Growth\n\n{_GROWTH_NOTE}\n\n{_format_rows(page.growth)}"


def _add_section(shown: Table, name: str, text: str, figures: Iterable[Figure], failure: str = "") -> None:
    shown.add_section()
    shown.add_row(Text(name, "bold"), "", Text(text, "bold"))
    if failure:
        shown.add_row("", "", Text(failure, "red"))
    for figure in figures:
        add_row(shown, figure)


def _format_rows(figures: Iterable[Figure]) -> str:
    rows = [" | ".join(text.replace("|", r"\|") for text in format_cells(figure)) for figure in figures]
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|--:|---|--:|--:|---|", *(f"| {row} |" for row in rows)]
    return "\n".join([*lines, ""]) if rows else ""


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f} % of the processors' time"
