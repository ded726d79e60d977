"""The bridge: an HTTP server that receives the model requests of an external agent, and those beside its conversation."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal, NamedTuple

from langchain_core.messages import AIMessage

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.external.apis import (
    MODEL_PATHS,
    Api,
    HttpReply,
    ModelRequest,
    RequestError,
    WireRequest,
    check_vendor_request,
    estimate_request_tokens,
    parse_request,
    select_vendor_fields,
    write_error,
    write_reply,
)
from langgraph_takeover.nodes.external.bridge_limits import BridgeLimits, TokenBucket
from langgraph_takeover.nodes.external.http import (
    HeldRequest,
    HttpConnection,
    HttpRefusalError,
    HttpServer,
    PeerLostError,
    RequestHead,
)
from langgraph_takeover.nodes.model.calls import CallCount
from langgraph_takeover.nodes.model.model_errors import ContextWindowError, ModelError
from langgraph_takeover.nodes.model.usage import count_uncounted_calls, measure_usage
from langgraph_takeover.nodes.session.observation import SideWork

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


RequestKind = Literal["main", "child", "aside"]
"""Of the main conversation, of a subagent, or beside both, such as for a title."""
_COUNT_PATH = "/v1/messages/count_tokens"
_JSON_TYPE = "application/json"
_POLL_S = 0.25
_REFUSAL_PAUSE_S = 0.1
"""A refused connection keeps its slot that long, so that a flood cannot keep a core busy."""


class Bridge:
    """The server on a listening socket, which it closes.

    Args:
        classify: whose request it is, from the request and its headers.
        is_expected: whether a main request continues the conversation as the runtime knows it.
        may_be_expected: whether the body of a request may be such a request, before it is parsed.
        answer_side: the reply to a child or aside request; called in threads of the bridge.
        has_budget: whether the budget allows another one, after those that `take_side_work` has not returned yet.
        side_requests: number of earlier side requests of the run.
        model_name: the run's model, the only one that the bridge lists and passes on to; None if the run decides none.
        passes_on: whether requests are passed on to the vendor, so that they may ask nothing else of it.
        is_agent: whether a connection is the agent's own; all others are refused.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        api: Api,
        classify: Callable[[ModelRequest, Mapping[str, str]], RequestKind],
        is_expected: Callable[[ModelRequest], bool],
        answer_side: Callable[[ModelRequest, CallCount], AIMessage],
        may_be_expected: Callable[[bytes], bool] = lambda body: True,
        has_budget: Callable[[Sequence[Usage]], bool] = lambda usages: True,
        side_requests: int = 0,
        model_name: str | None = None,
        passes_on: bool = False,
        is_agent: Callable[[socket.socket], bool] = lambda peer: True,
        limits: BridgeLimits | None = None,
    ) -> None:
        self.refused: Counter[str] = Counter()
        """Refused requests by reason."""
        self._api, self._limits = api, limits or BridgeLimits()
        self._classify, self._is_expected, self._may_be_expected = classify, is_expected, may_be_expected
        self._side = SideRequests(answer_side, self._limits, has_budget, side_requests)
        self._model_name, self._passes_on, self._is_agent = model_name, passes_on, is_agent
        self._changed = threading.Condition()
        self._held: HeldRequest | None = None
        self._body_limit = self._limits.body_bytes
        self._bug: Exception | None = None
        # One thread for all bodies, because glibc keeps up to 64 MiB of freed memory for each thread; parsing one body
        # needs several times its size.
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="bridge-parser")
        self._rate = TokenBucket(self._limits.requests_per_s, self._limits.requests_per_s)
        rate, burst = self._limits.body_bytes_per_s, self._limits.body_bytes
        self._byte_rates = {is_expected: TokenBucket(rate, burst) for is_expected in (False, True)}
        self._server = HttpServer(listener, self._limits, self._serve)
        self._server.start()

    def __enter__(self) -> Bridge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, timeout_s: float) -> HeldRequest | None:
        """Return the held request, as soon as there is one; None after `timeout_s` or when the bridge is closed.

        Raises what a function of the caller, such as `classify`, raised in a thread of the bridge.
        """
        ends_at = time.monotonic() + timeout_s
        with self._changed:
            while not self._server.closed.is_set():
                if self._bug is not None:
                    raise self._bug
                if self._held is not None and self._held.is_open:
                    return self._held
                remaining_s = ends_at - time.monotonic()
                if remaining_s <= 0:
                    return None
                self._changed.wait(min(remaining_s, _POLL_S))
        return None

    @property
    def open_side_requests(self) -> int:
        """Number of child and aside requests that are being answered."""
        return self._side.open_count

    def take_side_work(self, *, is_final: bool = False) -> SideWork:
        """Return the side requests since the last call; finally, with an estimate of those that are being answered."""
        answers = self._side.take_answers(include_pending=is_final)
        with self._changed:
            refused, self.refused = self.refused, Counter()
        return SideWork(
            usages=tuple(each.usage for each in answers),
            uncounted_calls=sum(each.uncounted_calls for each in answers),
            refused=refused,
        )

    def close(self) -> None:
        """End all connections and threads; a side request in the middle of its model call ends with that call."""
        with self._changed:
            held = self._held
        if held is not None:
            held.drop()
        self._server.close()
        self._parser.shutdown(wait=False)
        with self._changed:
            self._changed.notify_all()

    def _serve(self, connection: HttpConnection) -> None:
        is_refused = False
        head = None
        try:
            try:
                head = connection.read_head()
                answer = self._answer(head, connection)
            except HttpRefusalError as refusal:
                is_refused = self._count_refusal(refusal.reason)
                answer = write_error(self._api, refusal.status, str(refusal))._replace(
                    headers=refusal.headers
                )
            except TakeoverError:
                raise
            except Exception as error:
                is_refused = self._count_refusal("internal errors")
                self._report_bug(error)
                answer = write_error(self._api, 500, "internal error")
            connection.release_body()
            if answer is not None:
                connection.send_reply(answer, has_body=head is None or head.method != "HEAD")
        except PeerLostError:
            reason = "slow connections" if connection.is_aborted else "lost connections"
            is_refused = self._count_refusal(reason) and not connection.is_aborted
        finally:
            if is_refused:
                time.sleep(_REFUSAL_PAUSE_S)

    def _count_refusal(self, reason: str) -> bool:
        with self._changed:
            self.refused[reason] += 1
        return True

    def _report_bug(self, error: Exception) -> None:
        with self._changed:
            self._bug = self._bug or error
            self._changed.notify_all()

    def _wait(self, seconds: float | None) -> None:
        """Let a request wait for its turn. Raises HttpRefusalError if it has none."""
        if seconds is None:
            raise HttpRefusalError(429, "body rate", "too many bytes per second")
        if self._server.closed.wait(seconds):
            raise PeerLostError("the bridge is closed")

    def _answer(self, head: RequestHead, connection: HttpConnection) -> HttpReply | None:
        """Return the reply to a request; None to send no reply. Raises HttpRefusalError."""
        self._wait(self._rate.take())
        if not self._is_agent(connection.peer):
            raise HttpRefusalError(403, "foreign process", "only the agent and its processes are answered")
        if head.path in ("/", "/v1/models"):
            if head.method not in ("GET", "HEAD"):
                raise HttpRefusalError(405, "method", "this path has GET and HEAD only")
            return self._list_models() if head.path == "/v1/models" else HttpReply("text/plain", b"ok\n")
        is_count = self._api == "messages" and head.path == _COUNT_PATH
        if head.path != MODEL_PATHS[self._api] and not is_count:
            raise HttpRefusalError(404, "path", f"unknown path (requests go to {MODEL_PATHS[self._api]})")
        if head.method != "POST":
            raise HttpRefusalError(405, "method", "this path has POST only")
        body = self._parser.submit(bytes, connection.read_body(head, self._body_limit)).result()
        request = self._parse(body)
        if self._passes_on:
            body = self._parser.submit(select_vendor_fields, request, body).result()
        request = replace(request, wire=WireRequest(head.target, head.headers, body))
        if is_count:
            count = {"input_tokens": estimate_request_tokens(request)}
            return HttpReply(_JSON_TYPE, json.dumps(count).encode())
        kind = self._classify(request, head.headers)
        if kind == "main":
            self._check_main_model(request)
            answer = self._hold(HeldRequest(request, connection.is_peer_waiting))
            connection.is_main = True
            return answer
        self._check_side_size(body)
        return self._side.answer(kind, request, connection.is_peer_waiting)

    def _check_main_model(self, request: ModelRequest) -> None:
        if self._passes_on and self._model_name not in (None, request.model):
            raise HttpRefusalError(403, "model", f"the run's model is {self._model_name}")

    def _check_side_size(self, body: bytes) -> None:
        limit = self._limits.side_body_bytes
        if len(body) > limit:
            raise HttpRefusalError(
                413, "body size", f"the body of a side request is larger than {limit:,} bytes"
            )

    def _compute_body_limit(self, main_bytes: int) -> int:
        """Return the limit after a main request: no tool's output doubles a conversation of several megabytes."""
        return min(self._limits.body_bytes, self._limits.side_body_bytes + 2 * main_bytes)

    def _list_models(self) -> HttpReply:
        name = self._model_name or "model"
        model = {"id": name, "object": "model", "type": "model", "display_name": name}
        listing = {"object": "list", "data": [model], "has_more": False}
        return HttpReply(_JSON_TYPE, json.dumps(listing).encode())

    def _parse(self, body: bytes) -> ModelRequest:
        may_be_expected = self._may_be_expected(body)
        if not may_be_expected:
            self._check_side_size(body)
        longest_s = math.inf if may_be_expected else self._limits.side_wait_s
        self._wait(self._byte_rates[may_be_expected].take(len(body), max_wait_s=longest_s))
        try:
            request = self._parser.submit(
                parse_request, self._api, body, accept_images=self._passes_on
            ).result()
            if self._passes_on:
                check_vendor_request(request, self._model_name)
        except RequestError as error:
            raise HttpRefusalError(error.status, "unreadable request", str(error)) from None
        return request

    def _hold(self, held: HeldRequest) -> HttpReply | None:
        if not self._is_expected(held.request):
            raise HttpRefusalError(
                409, "unexpected request", "the request does not continue the conversation"
            )
        with self._changed:
            if self._server.closed.is_set():
                return None
            if self._held is not None and self._held.is_open:
                raise HttpRefusalError(409, "second request", "another request is being answered")
            self._held = held
            if held.request.wire is not None:
                self._body_limit = self._compute_body_limit(len(held.request.wire.body))
            self._changed.notify_all()
        try:
            return held.wait_for_answer()
        finally:
            with self._changed:
                self._held = None if self._held is held else self._held
