"""The agents of a record's work, one after another, each with its events."""

from __future__ import annotations

from langgraph_takeover.handoff.records.record import AgentWork, HandoffRecord, ParentRecord
from langgraph_takeover.handoff.text.fence import format_entry


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
