"""The URIs of the resources: a record's facts, its patch, and its views."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote

_PREFIX = "takeover://records/"
RECORD_TEMPLATE = f"{_PREFIX}{{record}}"
PATCH_TEMPLATE = f"{_PREFIX}{{record}}/patch"
VIEW_TEMPLATE = f"{_PREFIX}{{record}}/views/{{view}}"


class ResourceName(NamedTuple):
    """A resource of a record: `facts`, `patch`, or `views` with the view's name."""

    record: str
    part: str
    view: str = ""


def build_record_uri(record_id: str) -> str:
    return f"{_PREFIX}{quote(record_id, safe='')}"


def build_patch_uri(record_id: str) -> str:
    return f"{build_record_uri(record_id)}/patch"


def parse_uri(uri: str) -> ResourceName | None:
    """Parse a URI; None for one of another form. The record's id is not checked."""
    if not uri.startswith(_PREFIX):
        return None
    record, *rest = (unquote(part) for part in uri.removeprefix(_PREFIX).split("/"))
    if not rest:
        return ResourceName(record, "facts")
    if rest == ["patch"]:
        return ResourceName(record, "patch")
    return ResourceName(record, "views", rest[1]) if rest[0] == "views" and len(rest) == 2 else None
