"""Facts of a record: who did which of its events, and which changes its patch lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from langgraph_takeover.handoff.records.record import AgentWork, HandoffRecord, ParentRecord
from langgraph_takeover.handoff.text.fence import format_entry
from langgraph_takeover.handoff.text.patch_sections import split_patch
from langgraph_takeover.handoff.trace.events import Event, compute_differences
from langgraph_takeover.handoff.trace.file_kinds import is_generated, is_outside_repository
from langgraph_takeover.sandbox.repository import UNRESOLVED, LeftOut, Patch


def describe_own_agent(record: HandoffRecord) -> str:
    """Return the name of the agent at a record's end: the external agent with its model, or the model."""
    if record.external is None or record.external.agent == record.predecessor:
        return record.predecessor
    return f"{record.external.agent} ({record.predecessor})"


def list_agents(record: HandoffRecord) -> tuple[AgentWork, ...]:
    """List the agents of a record's events, oldest first; their numbers of events add up to the whole trace."""
    earlier = record.parent.agents if record.parent else ()
    own = len(record.trace) - sum(each.events for each in earlier)
    return (*earlier, AgentWork(agent=describe_own_agent(record), events=max(own, 0)))


def build_parent(record: HandoffRecord, view: str) -> ParentRecord:
    """Return a record as the parent of the record of its successor, which saw it under `view`."""
    lost = record.parent.lost if record.parent else ""
    agents = tuple(each for each in list_agents(record) if each.events)
    return ParentRecord(id=record.id, digest=record.digest, view=view, agents=agents, lost=lost)


def find_agent_number(record: HandoffRecord, index: int) -> int:
    """Return the number of the agent that made an event, counted from 1; 0 if all of the work is by one agent."""
    if record.parent is None:
        return 0
    end = 0
    for number, each in enumerate(list_agents(record), 1):
        end += each.events
        if index < end:
            return number
    return 0


def list_chain_lines(record: HandoffRecord) -> list[str]:
    """Say which agent made which events, and which earlier work the record lacks; empty for the work of one agent."""
    if record.parent is None:
        return []
    lines, first = [], 0
    agents = list_agents(record)
    for number, each in enumerate(agents, 1):
        events = f"e{first} to e{first + each.events - 1}" if each.events else "no events"
        lines.append(f"agent {number}: {format_entry(each.agent)}, {events}")
        first += each.events
    if record.parent.lost:
        lines.insert(0, f"earlier work that this record lacks: {format_entry(record.parent.lost)}")
    return lines


def render_chain(record: HandoffRecord) -> str:
    """Render `list_chain_lines` for a successor; empty for the work of one agent."""
    lines = list_chain_lines(record)
    listed = "\n".join(f"- {line}" for line in lines)
    return f"The agents of this work, one after another:\n{listed}\n\n" if lines else ""


NOT_SEEN = "git ignores it, or sees no difference"
"""The reason for an observed change that a patch does not show."""
NOT_SAVED = "not in the snapshot"
"""How the reason begins for a file of a captured working tree that neither patch nor snapshot has."""
MAX_SHOWN = 20
_MAX_KEPT, _MAX_PATH_CHARS = 500, 300


def add_observed_changes(patch: Patch, events: Iterable[Event], own_patch: Patch | None = None) -> Patch:
    """Return the patch, with the net changes of the events that it does not show in `left_out`.

    `own_patch` is the patch since the first of the events, if they do not begin at the base commit. Generated files and
    files outside the repository do not count. At most 500 paths are named; `left_out_count` counts all.
    """
    patches = [patch] if own_patch is None else [patch, own_patch]
    named = {_comparable(each.path): each for one in patches for each in one.left_out}
    known = named.keys() | {path for one in patches for path in _list_paths(one.text)}
    covering = {path for path, each in named.items() if each.reason != UNRESOLVED}
    observed = [
        LeftOut(path=path, reason=NOT_SEEN)
        for path in sorted(compute_differences(events))
        if not is_generated(path)
        and not is_outside_repository(path)
        and _comparable(path) not in known
        and covering.isdisjoint(_list_parents(path))
    ]
    left_out = (*named.values(), *observed)
    unnamed = max(one.left_out_count - len(one.left_out) for one in patches)
    return patch.model_copy(
        update={"left_out": left_out[:_MAX_KEPT], "left_out_count": len(left_out) + unnamed}
    )


def add_left_out(patch: Patch, more: Sequence[LeftOut]) -> Patch:
    """Return the patch with more paths that it lacks."""
    left_out = (*patch.left_out, *more)[:_MAX_KEPT]
    return patch.model_copy(update={"left_out": left_out, "left_out_count": patch.left_out_count + len(more)})


def is_unsaved(each: LeftOut) -> bool:
    """Whether the snapshot lacks it, too."""
    return each.reason.startswith(NOT_SAVED)


def format_left_out(
    left_out: Sequence[LeftOut], count: int, label: str = "Not in the patch"
) -> tuple[str, ...]:
    """Return a line for each path, at most 20, and one with the number of the others; `label` begins each."""
    start = f"{label}: " if label else ""
    lines = [
        f"{start}{format_entry(each.path[:_MAX_PATH_CHARS])} ({format_entry(each.reason)})"
        for each in left_out[:MAX_SHOWN]
    ]
    if count > len(lines):
        lines.append(f"{start}{count - len(lines):,} more")
    return tuple(lines)


def _list_paths(patch: str) -> Iterator[str]:
    for section in split_patch(patch):
        yield section.path
        if section.old_path is not None:
            yield section.old_path


def _comparable(path: str) -> str:
    """Return the path as a patch's section has it."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _list_parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
