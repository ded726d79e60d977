"""Names of sessions: ids that depend only on their content, times, and directories named after a workspace."""

from __future__ import annotations

import hashlib
import re
import uuid
from datetime import datetime

from langgraph_takeover.handoff.agents.adapter import Launch

_NOT_ALPHANUMERIC = re.compile("[^a-zA-Z0-9]")


def derive_uuid(launch: Launch, *parts: object) -> str:
    """Return a UUID that depends on the launch and the parts alone."""
    seed = "\0".join(map(str, (launch.workspace, launch.started_at.isoformat(), launch.message, *parts)))
    digest = bytearray(hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest()[:16])
    return str(uuid.UUID(bytes=bytes(digest), version=4))


def format_time(moment: datetime) -> str:
    """Return a time as JavaScript writes it: UTC, milliseconds, `Z`."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def replace_by_dashes(path: str) -> str:
    """Return a path with a dash for everything but ASCII letters and digits, counted in UTF-16 as JavaScript does."""
    return _NOT_ALPHANUMERIC.sub(lambda match: "-" * (len(match[0].encode("utf-16-le")) // 2), path)
