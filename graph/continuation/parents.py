"""The record that a captured session continued, and what the continuation itself wrote into the session."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.graph.continuation.files import Manifest
from langgraph_takeover.handoff.interop.sessions import make_replacement, move_texts, read_session
from langgraph_takeover.handoff.readers import TraceError
from langgraph_takeover.handoff.records.chain import build_parent
from langgraph_takeover.handoff.records.record import (
    AgentWork,
    HandoffRecord,
    ParentRecord,
    RecordError,
    RecordStore,
)
from langgraph_takeover.handoff.trace.events import Event, Trace
from langgraph_takeover.handoff.trace.unknown_forms import sum_forms
from langgraph_takeover.nodes.records import append_events
from langgraph_takeover.sandbox.backends.checkouts import CHECKOUT_WORKSPACE

_MAX_DIGESTS, _DIGEST_CHARS = 50_000, 12


class Parent(NamedTuple):
    """The record that a session continued."""

    reference: ParentRecord
    record: HandoffRecord | None
    """None if it is gone, damaged or another one."""
    own_events: int
    """Number of the session's first events, which the continuation wrote."""

    def extend(self, trace: Trace) -> Trace:
        """Return the trace of a session after the events of the record, which are moved to the same workspace.

        They replace the first events of the session, which the continuation wrote; without the record these stay.
        """
        if self.record is None:
            return trace
        workspace, external = self.record.task.workspace, self.record.external
        replace = make_replacement({workspace: CHECKOUT_WORKSPACE} if workspace else {})
        # The continuation wrote the earlier agent's model into the session.
        is_written = bool(self.own_events) and trace.model == self.record.predecessor
        withdrawn = (*(external.withdrawn_files if external else ()), *trace.withdrawn_files)
        return trace.model_copy(
            update={
                "events": append_events(
                    move_texts(self.record.trace, replace), trace.events[self.own_events :]
                ),
                "model": "" if is_written else trace.model,
                "withdrawn_files": tuple(dict.fromkeys(withdrawn)),
                "unknown_forms": sum_forms([external.unknown_forms if external else {}, trace.unknown_forms]),
            }
        )


def find_parent(home: Path, manifest: Manifest, events: tuple[Event, ...]) -> Parent:
    """Return the record that a session continued, or the reason why its events are lost."""
    own = _count_own_events(events, manifest.own_events)
    store = RecordStore(Path(manifest.home or home) / "records")
    try:
        record = store.load(manifest.record)
        if manifest.record_digest not in ("", record.digest):
            raise RecordError(f"record {record.id}: replaced since by another one of that id")
    except RecordError as error:
        reason = str(error).partition(" (known records:")[0]
        copied = (AgentWork(agent="the earlier agents, as the session was given their work", events=own),)
        lost = ParentRecord(
            id=manifest.record,
            digest=manifest.record_digest,
            view=manifest.view,
            agents=copied if own else (),
            lost=reason,
        )
        return Parent(lost, None, own)
    return Parent(build_parent(record, manifest.view), record, own)


def digest_session(paths: Iterable[Path], agent: str, workspace: Path) -> tuple[str, ...]:
    """Return the digests of the events in the session that a continuation wrote."""
    for path in paths:
        with suppress(TraceError):
            events = read_session(path, agent, str(workspace)).events
            return tuple(map(_digest, events[:_MAX_DIGESTS]))
    return ()


def _count_own_events(events: tuple[Event, ...], digests: tuple[str, ...]) -> int:
    """Count a session's first events that the continuation wrote; fewer if the user went back."""
    number = 0
    for event, digest in zip(events, digests, strict=False):
        if _digest(event) != digest:
            break
        number += 1
    return number


def _digest(event: Event) -> str:
    content = json.dumps([event.kind, event.tool, dict(event.arguments), event.text], sort_keys=True)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
