"""The graphs of a thread, and its checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, cached_property
from typing import cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from typing_extensions import TypedDict

from langgraph_takeover.graph.agent import Graph, build_agent, build_takeover
from langgraph_takeover.graph.checkpoints.inspection import (
    GraphKind,
    graph_kind,
    resume_state_id,
)
from langgraph_takeover.graph.checkpoints.savers import Saver
from langgraph_takeover.graph.errors import ThreadExistsError, ThreadNotFoundError
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.runs.validation import (
    snapshot_not_found_error,
)
from langgraph_takeover.graph.team import build_team_graph
from langgraph_takeover.nodes.context.settings import AgentContext, ProgressCallback, SettingsError
from langgraph_takeover.nodes.events import MAX_CALLS
from langgraph_takeover.nodes.session.session import Session

# A step has at most three nodes, a team's step six, and each further call of a reply three. The run's own limits stop
# it long before this one.
_NODES_PER_STEP = 7 + 3 * MAX_CALLS


class GraphOptions(TypedDict):
    """Keyword arguments for `invoke`, `stream` and their async forms."""

    config: RunnableConfig
    context: AgentContext
    durability: str


@cache
def _compile_once(build: Callable[[], Graph]) -> Graph:
    return build()


class ThreadGraphs:
    """The compiled graphs of a thread that this process holds, and what its checkpoints allow."""

    def __init__(
        self,
        home: Home,
        session: Session,
        saver: Saver,
        context: AgentContext,
        on_progress: ProgressCallback | None,
    ) -> None:
        self.home = home
        self.thread = session.thread
        self.session = session
        self.context = context
        self._saver = saver
        self._on_progress = on_progress

    @cached_property
    def agent(self) -> Graph:
        """The graph of an agent that starts a task."""
        return self._attach_saver(build_agent).with_config(metadata={"graph": "agent"})

    @cached_property
    def takeover(self) -> Graph:
        """The graph of a successor."""
        return self._attach_saver(build_takeover).with_config(metadata={"graph": "takeover"})

    @cached_property
    def team(self) -> Graph:
        """The graph of a team."""
        return build_team_graph(self._saver).with_config(metadata={"graph": "team"})

    @property
    def config(self) -> RunnableConfig:
        """LangGraph's configuration for this thread."""
        return {
            "configurable": {"thread_id": self.thread},
            "recursion_limit": _NODES_PER_STEP * self.context.max_steps + 10,
        }

    @property
    def options(self) -> GraphOptions:
        """Keyword arguments to call the graphs with."""
        return {"config": self.config, "context": self.context, "durability": "sync"}

    def _attach_saver(self, build: Callable[[], Graph]) -> Graph:
        """Compile once per process: compiling costs as much as several steps."""
        return _compile_once(build).copy({"checkpointer": self._saver})

    def _graph(self, kind: GraphKind) -> Graph:
        return cast(Graph, getattr(self, kind))

    def _require_matching_agents(self, kind: GraphKind) -> None:
        if kind == "team" and self.context.member is None:
            raise SettingsError(
                f"agents: thread {self.thread!r} belongs to a team (pass agents=, not model=)"
            )
        if kind != "team" and self.context.member is not None:
            raise SettingsError(
                f"agents: thread {self.thread!r} belongs to one agent (pass model=, not agents=)"
            )

    def _find_restorable(
        self, stored: CheckpointTuple, checkpoint: str | None, *, go_back: bool
    ) -> str | None:
        """Return the checkpoint to resume from; None for the newest."""
        if self.session.can_enter_state(resume_state_id(stored, is_rerun=checkpoint is not None)):
            return checkpoint
        restorable = self.home.find_restorable_checkpoint(
            self.thread, stored.config["configurable"]["checkpoint_id"]
        )
        if not go_back or restorable is None:
            raise snapshot_not_found_error(self.thread, checkpoint, restorable)
        if self._on_progress is not None:
            self._on_progress(
                {"event": "went_back", "step": restorable.step, "checkpoint": restorable.checkpoint}
            )
        return restorable.checkpoint

    def _config_at(self, checkpoint: str | None) -> RunnableConfig:
        config = self.config
        if checkpoint is not None:
            config["configurable"] |= {"checkpoint_id": checkpoint, "checkpoint_ns": ""}
        return config

    def _require_new_thread(self, request: str) -> None:
        stored = self._saver.get_tuple(self.config)
        if stored is not None:
            values = self._graph(graph_kind(stored)).get_state(self.config).values
            holds = values.get("record") or values.get("task", {}).get("id") or "a run"
            raise ThreadExistsError(
                f"thread {self.thread!r} already holds {holds:.60} "
                f"(resume it, or start {request:.80} on another thread)"
            )

    def _load_checkpoint(self, checkpoint: str | None) -> CheckpointTuple:
        is_id = checkpoint is None or re.fullmatch(r"[0-9a-f-]{1,64}", str(checkpoint))
        stored = self._saver.get_tuple(self._config_at(checkpoint)) if is_id else None
        if stored is None:
            raise self._unknown_checkpoint_error(checkpoint)
        return stored

    def _unknown_checkpoint_error(self, checkpoint: str | None) -> ThreadNotFoundError:
        newest = self.home.history(self.thread)[0]  # raises if the thread itself is unknown
        return ThreadNotFoundError(
            f"thread {self.thread!r} has no checkpoint {checkpoint!r:.60}; its newest is {newest.checkpoint} "
            "(home.history(thread) lists all)"
        )
