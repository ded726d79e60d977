"""Requests beside the main conversation: of subagents, and for titles."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from langchain_core.messages import AIMessage

from langgraph_takeover.base.values import TakeoverError
from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.external.apis import (
    HttpReply,
    ModelRequest,
    estimate_request_tokens,
    write_error,
    write_reply,
)
from langgraph_takeover.nodes.external.http_connection import HttpRefusalError, PeerLostError
from langgraph_takeover.nodes.external.limits import BridgeLimits
from langgraph_takeover.nodes.model.attempts import CallCount
from langgraph_takeover.nodes.model.errors import ContextWindowError, ModelError
from langgraph_takeover.nodes.model.usage import count_uncounted_calls, measure_usage

SideKind = Literal["child", "aside"]
_PASSED_STATUSES = (429, 503, 529)
_NO_USAGE = Usage(prompt_tokens=0, completion_tokens=0)


class SideAnswer(NamedTuple):
    """A request of a subagent or for a title that reached the model; its text is not kept."""

    kind: SideKind
    model: str
    """The model that the agent asked for."""
    usage: Usage
    """Zero if the model failed."""
    seconds: float
    uncounted_calls: int
    """Requests to the endpoint that it may have billed, with unknown tokens."""


class SideRequests:
    """The side requests of a run: bounded in number, and in how many are answered at the same time.

    Args:
        total: number of earlier side requests of the run.
    """

    def __init__(
        self,
        answer: Callable[[ModelRequest, CallCount], AIMessage],
        limits: BridgeLimits,
        has_budget: Callable[[Sequence[Usage]], bool],
        total: int = 0,
    ) -> None:
        self._ask, self._limits, self._has_budget = answer, limits, has_budget
        self._answers: list[SideAnswer] = []
        self._pending: list[SideAnswer] = []
        """An estimate for each request that the model is answering."""
        self._open, self._total = 0, total
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(limits.parallel_side_requests)

    @property
    def open_count(self) -> int:
        """Number of requests that are being answered."""
        with self._lock:
            return self._open

    def take_answers(self, *, include_pending: bool = False) -> list[SideAnswer]:
        """Return the answers since the last call, and an estimate of each pending one, whose answer is then not returned."""
        with self._lock:
            answers, self._answers = self._answers, []
            if include_pending:
                answers += self._pending
                self._pending = []
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
            self._open += 1
        try:
            with self._slots:
                if not is_waiting():
                    raise PeerLostError("the sender of a side request left")
                return self._answer_now(request, self._admit(kind, request))
        finally:
            with self._lock:
                self._open -= 1

    def _admit(self, kind: SideKind, request: ModelRequest) -> SideAnswer:
        """Return an estimate of a request that the model may be asked. Raises HttpRefusalError."""
        usage = Usage(prompt_tokens=estimate_request_tokens(request), completion_tokens=0, estimated=True)
        estimate = SideAnswer(kind, request.model, usage, 0.0, 1)
        with self._lock:
            if self._total >= self._limits.side_requests:
                raise HttpRefusalError(429, "side requests", "too many requests of subagents in this run")
            # The request itself counts: it may be as large as its process likes.
            requests = (*self._answers, *self._pending, estimate)
            if not self._has_budget([each.usage for each in requests]):
                raise HttpRefusalError(429, "spent budget", "the budget of the run is spent")
            self._total += 1
            self._pending.append(estimate)
        return estimate

    def _answer_now(self, request: ModelRequest, estimate: SideAnswer) -> HttpReply:
        started, count = time.monotonic(), CallCount()
        try:
            reply = self._ask(request, count)
        except ContextWindowError:
            self._save(estimate, _NO_USAGE, started, count.billable)
            message = "prompt is too long: the request exceeds the context window of the model"
            return write_error(request.api, 400, message, code="context_length_exceeded")
        except TakeoverError as error:
            self._save(estimate, _NO_USAGE, started, count.billable)
            # Its message may show paths of this host.
            raise _refuse(error) from None
        usage = measure_usage(reply, request.messages)
        self._save(estimate, usage, started, count_uncounted_calls(reply, usage))
        return write_reply(request, reply)

    def _save(self, estimate: SideAnswer, usage: Usage, started: float, uncounted_calls: int) -> None:
        answer = estimate._replace(
            usage=usage, seconds=time.monotonic() - started, uncounted_calls=uncounted_calls
        )
        with self._lock:
            # By identity: two requests may be equal.
            kept = [each for each in self._pending if each is not estimate]
            if len(kept) < len(self._pending):
                self._pending = kept
                self._answers.append(answer)


def _refuse(error: TakeoverError) -> HttpRefusalError:
    """Return the refusal of a request whose model failed; an endpoint's own one keeps its status and its wait."""
    status = error.status if isinstance(error, ModelError) and error.status in _PASSED_STATUSES else None
    refusal = HttpRefusalError(status or 502, "failed side requests", "the model did not answer")
    if isinstance(error, ModelError) and error.retry_after_s is not None:
        refusal.headers = (("Retry-After", str(math.ceil(error.retry_after_s))),)
    return refusal
