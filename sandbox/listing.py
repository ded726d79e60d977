"""How resources and facts look on a terminal, and as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from sandbox.gc.collector import Survey
    from sandbox.gc.resources import Resource
    from sandbox.probe import Fact

_COLOURS = {"yes": "green", "less": "yellow", "no": "red"}
_MINUTE, _HOUR, _DAY = 60, 3600, 24 * 3600


def show_stale(console: Console, found: Iterable[Resource], title: str) -> None:
    """One line for each stale resource."""
    table = _table(title, "kind", "run", "what", "size", "age", "why")
    for one in found:
        size = decimal(one.bytes) if one.bytes else ""
        cells = (one.kind, one.owner, _what(one), size, age(one.age_s), one.reason)
        table.add_row(*map(plain, cells))
    console.print(table)


def show_kept(console: Console, found: Iterable[Resource]) -> None:
    """One line for all resources that are kept for one reason."""
    groups: dict[tuple[str, str, str], list[Resource]] = {}
    for one in found:
        name = _what(one) if one.kind == "other" else one.kind
        groups.setdefault((name, one.owner, one.reason), []).append(one)
    table = _table("Kept", "kind", "run", "number", "size", "why")
    for (kind, owner, reason), members in groups.items():
        size = sum(one.bytes for one in members)
        cells = (kind, owner, str(len(members)), decimal(size) if size else "", reason)
        table.add_row(*map(plain, cells))
    if groups:
        console.print(table)


def show_facts(console: Console, found: Iterable[Fact]) -> None:
    """What there is, with the cure below what is not as it might be."""
    table = _table("What this host can do", "", "part", "what", "found")
    before = ""
    for fact in found:
        told = plain(fact.told)
        if fact.cure:
            told.append(f"\n→ {fact.cure}", style="italic")
        table.add_row(
            Text(fact.there, style=_COLOURS[fact.there]),
            fact.part if fact.part != before else "",
            fact.name,
            told,
        )
        before = fact.part
    console.print(table)


def as_json(survey: Survey, outcome: dict[str, str | None] | None) -> dict[str, Any]:
    """The survey; `outcome` has the error, if any, of each removal, by `where`."""

    def entry(one: Resource) -> dict[str, Any]:
        failure = outcome[one.where] if outcome is not None and one.is_stale else None
        removed = "removable" if outcome is None else "failed" if failure else "removed"
        found = {
            "kind": one.kind,
            "owner": str(plain(one.owner)) or None,
            "name": str(plain(one.name)),
            "where": str(plain(one.where)),
            "bytes": one.bytes,
            "age_s": round(one.age_s, 1),
            "fate": removed if one.is_stale else "kept",
            "why": str(plain(one.reason)),
        }
        return found | ({"failure": failure} if failure else {})

    return {
        "findings": [entry(one) for one in (*survey.stale, *survey.kept)],
        "docker": survey.docker_error or "looked at",
        "troubles": list(survey.errors),
    }


def total(found: tuple[Resource, ...]) -> str:
    """How many, and how much."""
    return f"{len(found)} thing{'' if len(found) == 1 else 's'}, {decimal(sum(one.bytes for one in found))}"


def age(seconds: float) -> str:
    """A time span in its largest unit; nothing where it is not known."""
    if not seconds:
        return ""
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def plain(text: str) -> Text:
    """Text that no name of a file or a container can turn into anything else."""
    readable = text.encode("utf-8", "backslashreplace").decode()
    return Text("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in readable))


def discard_output() -> None:
    """Drop what standard output could not take, or Python tries once more at exit and ends with code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _what(one: Resource) -> str:
    if one.kind == "process":
        return f"{one.where}: {one.name}"
    return one.name if one.kind in ("container", "image", "run", "base") else one.where


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in columns:
        right = name in ("size", "age", "number")
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=right or name in ("kind", "part", ""),
            overflow="fold",
            header_style="dim",
        )
    return table
