"""What the resources contain."""

from __future__ import annotations

import bisect
import json
from typing import NamedTuple

from langgraph_takeover.base.values import TakeoverError
from langgraph_takeover.graph.mcp.tools import Participant, parse_uri, render_view
from langgraph_takeover.handoff.text.fence import format_entry
from langgraph_takeover.handoff.views import Recipient, display

MAX_RESOURCE_BYTES = 500_000
"""A client reads at most 1 MiB of JSON at once."""
_PAGE = 100


class ResourceError(TakeoverError, LookupError):
    """A resource does not exist, or is too large to send."""

    def __str__(self) -> str:
        return str(self.args[0])


class ResourceContent(NamedTuple):
    """The content of a resource."""

    text: str
    mime_type: str


def list_page(client: Participant, cursor: str) -> tuple[list[str], str | None]:
    """List the ids of records after a cursor; also return the next cursor, if there are more."""
    ids = client.home.records.list_ids()
    start = bisect.bisect_right(ids, cursor) if cursor else 0
    page = list(ids[start : start + _PAGE])
    return page, page[-1] if start + _PAGE < len(ids) else None


def read_resource(client: Participant, uri: str) -> ResourceContent:
    """Read a resource. Raises ResourceError, RecordError and UnknownViewError."""
    name = parse_uri(uri)
    if name is None:
        raise ResourceError(f"resource not found: {uri!r:.100} (list them: resources/list)")
    if name.part == "views":
        found = ResourceContent(render_view(client, name.record, name.view), "text/markdown")
    else:
        record = client.home.records.load(name.record)
        if name.part == "patch":
            found = ResourceContent(record.patch, "text/x-diff")
        else:
            facts = display.record_to_dict(record, Recipient())
            cells = {
                key: format_entry(each)[:500] if isinstance(each, str) else each
                for key, each in facts.items()
            }
            found = ResourceContent(json.dumps(cells, indent=1, ensure_ascii=False), "application/json")
    size = len(found.text.encode("utf-8", "backslashreplace"))
    if size > MAX_RESOURCE_BYTES:
        raise ResourceError(
            f"resource too large: {uri:.300}: {size:,} bytes, at most {MAX_RESOURCE_BYTES:,} "
            "(read a view in pages: show_record; a patch: record.json in the record's directory)"
        )
    return found
