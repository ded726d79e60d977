"""The conversation of a predecessor at its record's checkpoint, which `continuation` resumes on a new thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from langchain_core.runnables import RunnableConfig

from langgraph_takeover.graph.agent import Graph
from langgraph_takeover.graph.checkpoints.inspection import GraphKind, graph_kind
from langgraph_takeover.graph.checkpoints.savers import Saver
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError
from langgraph_takeover.nodes.open_calls import answer_open_calls
from langgraph_takeover.nodes.state import AgentState

CONTINUED = (
    "Not run: the work continued on another thread before this call. Send it again if it is still needed."
)


def load_conversation(
    saver: Saver, find_graph: Callable[[GraphKind], Graph], record: HandoffRecord
) -> dict[str, Any]:
    """Return the predecessor's messages and undo list as graph input.

    An external agent has its conversation in its own session: without a checkpoint nothing is returned for it.
    Raises RecordError if the checkpoint of the built-in agent is missing, or the predecessor was a team.
    """
    config: RunnableConfig = {
        "configurable": {
            "thread_id": record.thread_id,
            "checkpoint_ns": "",
            "checkpoint_id": record.checkpoint_id,
        }
    }
    stored = saver.get_tuple(config) if record.checkpoint_id else None
    if stored is None:
        if record.external is not None:
            return {}
        raise RecordError(
            f"record {record.id}: continuation needs checkpoint {record.checkpoint_id or 'of the predecessor'} of thread "
            f"{record.thread_id}, which this directory does not have (run it in the predecessor's directory)"
        )
    kind = graph_kind(stored)
    if kind == "team":
        raise RecordError(
            f"record {record.id}: a team made it, so no single agent can continue it (use a view)"
        )
    values = find_graph(kind).get_state(config).values
    # Every call needs an answer before the next request.
    answers = answer_open_calls(cast(AgentState, values), CONTINUED)
    return {"messages": [*values["messages"], *answers], "edits": values.get("edits", [])}
