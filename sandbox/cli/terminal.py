"""Resources and capabilities as terminal tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from langgraph_takeover.base.texts import escape_unprintable

if TYPE_CHECKING:
    from langgraph_takeover.sandbox.cli.probe import HostCapability
    from langgraph_takeover.sandbox.gc import Resource, Survey

_COLOURS = {"ok": "green", "limited": "yellow", "missing": "red"}
_MINUTE, _HOUR, _DAY = 60, 3600, 24 * 3600


def show_stale_resources(console: Console, resources: Iterable[Resource], title: str) -> None:
    """One line for each stale resource."""
    table = _make_table(title, "kind", "run", "name", "size", "age", "reason")
    for one in resources:
        size = decimal(one.size_bytes) if one.size_bytes else ""
        cells = (one.kind, one.owner, _describe_resource(one), size, format_age(one.age_s), one.reason)
        table.add_row(*map(to_plain_text, cells))
    console.print(table)


def show_kept_resources(console: Console, resources: Iterable[Resource]) -> None:
    """One line for all resources that are kept for one reason."""
    groups: dict[tuple[str, str, str], list[Resource]] = {}
    for one in resources:
        name = _describe_resource(one) if one.kind == "other" else one.kind
        groups.setdefault((name, one.owner, one.reason), []).append(one)
    table = _make_table("Kept", "kind", "run", "number", "size", "reason")
    for (kind, owner, reason), members in groups.items():
        size = sum(one.size_bytes for one in members)
        cells = (kind, owner, str(len(members)), decimal(size) if size else "", reason)
        table.add_row(*map(to_plain_text, cells))
    if groups:
        console.print(table)


def show_capabilities(console: Console, capabilities: Iterable[HostCapability]) -> None:
    """A table of capabilities, with the fix below each that is missing or limited."""
    table = _make_table("Host capabilities", "", "component", "name", "detail")
    before = ""
    for fact in capabilities:
        detail = to_plain_text(fact.detail)
        if fact.fix:
            detail.append(f"\n→ {fact.fix}", style="italic")
        table.add_row(
            Text(fact.status, style=_COLOURS[fact.status]),
            fact.component if fact.component != before else "",
            fact.name,
            detail,
        )
        before = fact.component
    console.print(table)


def to_json_object(survey: Survey, removal_errors: dict[str, str | None] | None) -> dict[str, Any]:
    """Return the survey as JSON; `removal_errors` has the error of each removal, or None, by location."""

    def describe_entry(resource: Resource) -> dict[str, Any]:
        failure = (
            removal_errors[resource.location] if removal_errors is not None and resource.is_stale else None
        )
        removed = "removable" if removal_errors is None else "failed" if failure else "removed"
        found = {
            "kind": resource.kind,
            "owner": escape_unprintable(resource.owner) or None,
            "name": escape_unprintable(resource.name),
            "location": escape_unprintable(resource.location),
            "size_bytes": resource.size_bytes,
            "age_s": round(resource.age_s, 1),
            "status": removed if resource.is_stale else "kept",
            "reason": escape_unprintable(resource.reason),
        }
        return found | ({"failure": failure} if failure else {})

    return {
        "resources": [describe_entry(one) for one in (*survey.stale_resources, *survey.kept_resources)],
        "docker": survey.docker_error or "ok",
        "errors": list(survey.errors),
    }


def format_total(resources: tuple[Resource, ...]) -> str:
    """Describe how many resources, and their size."""
    return f"{len(resources)} resource{'' if len(resources) == 1 else 's'}, {decimal(sum(one.size_bytes for one in resources))}"


def format_age(seconds: float) -> str:
    """A time span in its largest unit; empty if unknown."""
    if not seconds:
        return ""
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def to_plain_text(text: str) -> Text:
    """Return a line for rich, without markup and without characters that control a terminal."""
    return Text(escape_unprintable(text))


def _describe_resource(resource: Resource) -> str:
    if resource.kind == "process":
        return f"{resource.location}: {resource.name}"
    return resource.name if resource.kind in ("container", "image", "run", "base") else resource.location


def _make_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in columns:
        right = name in ("size", "age", "number")
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=right or name in ("kind", "component", ""),
            overflow="fold",
            header_style="dim",
        )
    return table
