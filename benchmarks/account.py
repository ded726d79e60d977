"""All benchmarks' figures as one: a file, a table, and a page of the documentation that nobody writes by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel
from rich.markup import escape
from rich.table import Table

from benchmarks.figures import HEADINGS, Figure, add_row, cells, empty
from benchmarks.host import Host

GROWTH = "growth"
_QUICK = "These are figures of a quick run, whose sizes are too small to conclude anything from."
_GROWN = "What the larger case costs beside the smaller one, with steps, files and takeovers: at a ratio of 1 nothing grows."
_PAGE = """# Performance

Written by `{command}` on {date}; no figure in it is typed by hand. It ran on {host}. {stolen}

A ratio is ours divided by what stands beside it, which was measured in the same run, in turns. {goals}
"""


class Part(BaseModel, frozen=True, extra="forbid"):
    """What one benchmark told."""

    name: str
    about: str
    """What it measures, in its own words."""
    command: str
    title: str = ""
    seconds: float
    stolen: float
    """The share of this host's processor time that other hosts took meanwhile: virtual machines only."""
    figures: tuple[Figure, ...] = ()
    error: str = ""


class Account(BaseModel, frozen=True, extra="forbid"):
    date: str
    command: str
    quick: bool
    host: Host
    parts: tuple[Part, ...] = ()

    @property
    def stolen(self) -> float:
        seconds = sum(part.seconds for part in self.parts)
        return sum(part.stolen * part.seconds for part in self.parts) / seconds if seconds else 0.0

    @property
    def figures(self) -> Iterator[Figure]:
        return (figure for part in self.parts for figure in part.figures)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=1) + "\n")


def table(account: Account) -> Table:
    shown = empty(f"{account.host}; {_stolen(account)}")
    for part in account.parts:
        shown.add_section()
        shown.add_row(f"[bold]{part.name}", "", f"[bold]{escape(_circumstances(part))}")
        if part.error:
            shown.add_row("", "", f"[red]{escape(_failed(part))}")
        for figure in part.figures:
            if not figure.growth:
                add_row(shown, figure)
    grown = [figure for figure in account.figures if figure.growth]
    if grown:
        shown.add_section()
        shown.add_row(f"[bold]{GROWTH}", "", "[bold]the larger case beside the smaller one")
    for figure in grown:
        add_row(shown, figure)
    return shown


def markdown(account: Account) -> str:
    """The page of the documentation."""
    head = _PAGE.format(
        command=account.command,
        date=account.date,
        host=account.host,
        stolen=f"{_stolen(account).capitalize()}.",
        goals=_goals(account),
    )
    sections = [head, *([_QUICK + "\n"] if account.quick else [])]
    for part in account.parts:
        sections.append(
            f"## {part.name.capitalize()}\n\n{part.about}\n\n`{part.command}`: {_circumstances(part)}.\n"
        )
        if part.error:
            sections.append(f"**{_failed(part)}**\n")
        sections.append(_rows(figure for figure in part.figures if not figure.growth))
    if grown := _rows(figure for figure in account.figures if figure.growth):
        sections.append(f"## {GROWTH.capitalize()}\n\n{_GROWN}\n\n{grown}")
    return "\n".join(section for section in sections if section)


def _rows(figures: Iterable[Figure]) -> str:
    rows = [" | ".join(text.replace("|", r"\|") for text in cells(figure)) for figure in figures]
    if not rows:
        return ""
    lines = [" | ".join(HEADINGS), "---|--:|---|--:|--:|---", *rows]
    return "".join(f"| {line} |\n" if "--:" not in line else f"|{line}|\n" for line in lines)


def _circumstances(part: Part) -> str:
    told = f"{part.title}; " if part.title else ""
    return (
        f"{told}{part.seconds:,.0f} s, {100 * part.stolen:.0f} % of the processors' time taken by other hosts"
    )


def _failed(part: Part) -> str:
    return f"{part.name} failed: {part.error}"


def _stolen(account: Account) -> str:
    return f"other hosts took {100 * account.stolen:.0f} % of the processors' time meanwhile"


def _goals(account: Account) -> str:
    held = [figure for figure in account.figures if figure.met is not None]
    missed = [figure.what for figure in held if not figure.met]
    told = f"{len(held) - len(missed)} of {len(held)} goals that could be measured are met"
    return f"{told}; not met: {', '.join(missed)}." if missed else f"{told}."
