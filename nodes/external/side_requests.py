"""Requests beside the main conversation: of subagents, and for titles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from langchain_core.messages import AIMessage

from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.external.apis import HttpReply, ModelRequest, write_error, write_reply
from langgraph_takeover.nodes.external.http_connection import HttpRefusalError, PeerLostError
from langgraph_takeover.nodes.external.limits import BridgeLimits
from langgraph_takeover.nodes.model.errors import ContextWindowError
from langgraph_takeover.nodes.model.usage import count_uncounted_calls, measure_usage
from langgraph_takeover.sandbox.interface import TakeoverError

SideKind = Literal["child", "aside"]


class SideAnswer(NamedTuple):
    """An answered request of a subagent or for a title; its text is not kept."""

    kind: SideKind
    model: str
    """The model that the agent asked for."""
    usage: Usage
    seconds: float
    uncounted_calls: int
    """Requests behind the answer whose tokens the endpoint did not report."""


class SideRequests:
    """The side requests of a run: bounded in number, and in how many are answered at the same time."""

    def __init__(
        self,
        answer: Callable[[ModelRequest], AIMessage],
        limits: BridgeLimits,
        has_budget: Callable[[Sequence[SideAnswer]], bool],
    ) -> None:
        self._ask, self._limits, self._has_budget = answer, limits, has_budget
        self._answers: list[SideAnswer] = []
        self._open = self._total = 0
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(limits.parallel_side_requests)

    @property
    def open_count(self) -> int:
        """Number of requests that are being answered."""
        with self._lock:
            return self._open

    def take_answers(self) -> list[SideAnswer]:
        """Return the answers since the last call."""
        with self._lock:
            answers, self._answers = self._answers, []
        return answers

    def answer(self, kind: SideKind, request: ModelRequest, is_waiting: Callable[[], bool]) -> HttpReply:
        """Return the reply. Raises HttpRefusalError beyond the limits, or if the model fails.

        Args:
            is_waiting: whether the sender still waits; if not, the model is not asked.
        """
        limits = self._limits
        with self._lock:
            if self._total >= limits.side_requests:
                raise HttpRefusalError(429, "side requests", "too many requests of subagents in this run")
            if self._open >= limits.parallel_side_requests + limits.waiting_side_requests:
                raise HttpRefusalError(429, "parallel side requests", "too many subagents at the same time")
            self._total += 1
            self._open += 1
        try:
            with self._slots:
                if not is_waiting():
                    raise PeerLostError("the sender of a side request left")
                with self._lock:
                    answers = tuple(self._answers)
                if not self._has_budget(answers):
                    raise HttpRefusalError(429, "spent budget", "the budget of the run is spent")
                return self._answer_now(kind, request)
        finally:
            with self._lock:
                self._open -= 1

    def _answer_now(self, kind: SideKind, request: ModelRequest) -> HttpReply:
        started = time.monotonic()
        try:
            reply = self._ask(request)
        except ContextWindowError:
            message = "prompt is too long: the request exceeds the context window of the model"
            return write_error(request.api, 400, message, code="context_length_exceeded")
        except TakeoverError:
            # Its message may show paths of this host.
            raise HttpRefusalError(502, "failed side requests", "the model did not answer") from None
        usage = measure_usage(reply, request.messages)
        uncounted = count_uncounted_calls(reply, usage)
        with self._lock:
            self._answers.append(
                SideAnswer(kind, request.model, usage, time.monotonic() - started, uncounted)
            )
        return write_reply(request, reply)
