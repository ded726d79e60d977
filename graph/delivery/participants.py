"""A person takes part in a handoff: they take a record, work in its sandbox, and hand it on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, NamedTuple
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from sqlalchemy import Connection

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.graph.agent import build_takeover
from langgraph_takeover.graph.delivery.offers import hand_over, renew_offer, require_known_agent
from langgraph_takeover.graph.delivery.recovery import find_original_id, sandbox_spec_for
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.outcome import Outcome
from langgraph_takeover.graph.runs.api import open_run
from langgraph_takeover.graph.runs.run import Run
from langgraph_takeover.graph.usage_errors import HandoffError, RecordNotTakenError
from langgraph_takeover.handoff.ledger import Ledger, handoffs
from langgraph_takeover.handoff.ledger.acceptance import Receiver, find_refusal
from langgraph_takeover.handoff.ledger.handoffs import (
    KEY_LABEL,
    Handoff,
    IllegalTransitionError,
    KeyReusedError,
    forget_key,
    run_once,
)
from langgraph_takeover.handoff.ledger.leases import check_name
from langgraph_takeover.handoff.records.envelope import Envelope, Understanding
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError
from langgraph_takeover.nodes.context.settings import ProgressCallback
from langgraph_takeover.nodes.model.human import HumanLeftError, HumanModel
from langgraph_takeover.nodes.model.model_errors import PermanentModelError
from langgraph_takeover.sandbox.interface import Sandbox, SandboxSpec

_NO_TIME_LIMIT_S = 30 * 24 * 3600.0
_MAX_STEPS = 100_000
_COMMAND_TIMEOUT_S = 3600.0
_CONFIRM_TIMEOUT_S = 3600.0
"""Time that a person at a terminal has to confirm, whatever was left of the offer's deadline."""
_UNTAKEN = ("refused", "unconfirmed")
"""Stop reasons of a thread that never took its handoff: another attempt starts it again."""


class HumanHandoff(NamedTuple):
    """The result of a person's work on a record."""

    outcome: Outcome | None
    """None if they left without handing over."""
    handoff: Handoff | None


def human_thread(record: HandoffRecord, person: str) -> str:
    """Return the name of the thread on which a person works on a record."""
    return f"{record.id}.by.{person}"[:255]


def take_record(
    home: Home,
    record: HandoffRecord,
    person: str,
    *,
    read: Callable[[str], str],
    show: Callable[[str], None],
    sandbox: SandboxSpec | None = None,
) -> HumanHandoff:
    """Let a person work in a record's sandbox, line by line, until they hand it over or leave.

    If the record was offered to them, they confirm that first, within an hour; an expired offer is made again. If they
    leave, the same call resumes. Default sandbox: an isolated one. Raises RecordError, RollbackError,
    SandboxUnavailableError, ThreadHeldError, and HandoffError if another record was sent in place of this one.
    """
    given_to: list[tuple[str, str]] = []
    with (
        _open_human_run(home, record, person, read, show, given_to, sandbox) as held,
        contextlib.suppress(HumanLeftError),
    ):
        begun = held.state()
        offered = _renew_offer(home, record, person)
        if begun is not None and begun.get("stop_reason") in _UNTAKEN:
            held.discard()
            begun = None
        if begun is None and offered is None:
            _require_newest_record(home, record.id, person)
        if begun is not None:
            outcome = held.resume(go_back=True)
        elif offered is not None:
            outcome = held.receive(offered.id)
        else:
            outcome = held.take_over(record.id, "structured")
        if not given_to or not outcome.records:
            return HumanHandoff(outcome, None)
        return HumanHandoff(outcome, _hand_over_record(home, outcome, person, *given_to[-1]))
    return HumanHandoff(None, None)


def give_record(
    home: Home,
    record: HandoffRecord,
    person: str,
    agent: str,
    message: str = "",
    *,
    agents: Collection[str] | None = None,
    sandbox: SandboxSpec | None = None,
) -> HumanHandoff:
    """Take a snapshot of a person's work on a record, and hand it to an agent, which must be among `agents` if passed.

    Raises UnknownAgentError, RecordNotTakenError, and what `take_record` raises.
    """
    require_known_agent(agent, agents)
    thread = human_thread(record, person)
    if home.saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}}) is None:
        raise RecordNotTakenError(f"{person} has not taken {record.id} (first: handoff take {record.id})")
    line = f"give {agent} {message}".strip()
    return take_record(home, record, person, read=lambda _: line, show=lambda _: None, sandbox=sandbox)


@contextlib.contextmanager
def _open_human_run(
    home: Home,
    record: HandoffRecord,
    person: str,
    read: Callable[[str], str],
    show: Callable[[str], None],
    recipients: list[tuple[str, str]],
    sandbox: SandboxSpec | None,
) -> Iterator[Run]:
    entered: list[Run] = []

    def enter_sandbox() -> Sandbox:
        (held,) = entered
        found = home.saver.get_tuple(held.config)
        assert found is not None
        return held.session.enter_state(found.checkpoint["channel_values"]["sandbox_state"])

    model = HumanModel(
        read_line=read,
        show_text=show,
        enter_sandbox=enter_sandbox,
        on_handoff=lambda to, arguments: recipients.append((to, arguments)),
    )
    settings: dict[str, Any] = {
        "protocol": "native", "offer_handoff": True, "points": (), "policy": "record", "max_steps": _MAX_STEPS,
        "max_seconds": _NO_TIME_LIMIT_S, "model_timeout_s": _NO_TIME_LIMIT_S, "command_timeout_s": _COMMAND_TIMEOUT_S,
    }  # fmt: skip
    with open_run(
        home,
        human_thread(record, person),
        model=model,
        model_name=f"person:{person}",
        agent_name=person,
        sandbox=sandbox or sandbox_spec_for(record),
        **settings,
    ) as held:
        entered.append(held)
        yield held


def load_record_to_take(home: Home, record_id: str, person: str) -> HandoffRecord:
    """Load a record. Raises RecordError, or HandoffError if it is damaged and another one replaced it."""
    try:
        return home.records.load(record_id)
    except RecordError:
        _require_newest_record(home, record_id, person)
        raise


def _require_newest_record(home: Home, record_id: str, person: str) -> None:
    """Raise HandoffError, with the record to take, if the person's offer has another record in place of this one."""
    for offer in _list_open_offers(home, person):
        original, named = (find_original_id(each, offer.id) for each in (offer.record, record_id))
        if offer.record != record_id and original == named:
            raise HandoffError(
                f"record {record_id}: handoff {offer.id} offers {offer.record} in its place "
                f"(take that: handoff take {home.records.directory(offer.record)})"
            )


def _list_open_offers(home: Home, person: str) -> list[Handoff]:
    """List the offers to a person that can be accepted: those in time first, then those that have expired."""
    offers = handoffs.list_handoffs(home.ledger, ["offered", "timed_out"])
    return sorted(
        (each for each in offers if each.target == person), key=lambda each: each.state == "timed_out"
    )


def _renew_offer(home: Home, record: HandoffRecord, person: str) -> Handoff | None:
    """Return the open offer of a record to a person, with enough time to confirm it; None without an offer."""
    ledger = home.ledger
    offers = [each for each in _list_open_offers(home, person) if each.record == record.id]
    if not offers:
        return None
    offer = offers[0]
    remaining_s = handoffs.compute_remaining_s(ledger, offer)
    if offer.state == "offered" and 0 < remaining_s < _CONFIRM_TIMEOUT_S:
        handoffs.set_deadline(ledger, offer, _CONFIRM_TIMEOUT_S)
    return renew_offer(ledger, offer, person, confirm_timeout_s=_CONFIRM_TIMEOUT_S)


def _hand_over_record(home: Home, outcome: Outcome, person: str, agent: str, message: str) -> Handoff:
    record = outcome.records[-1]
    return hand_over(
        home,
        record,
        target=agent,
        source=person,
        envelope=Envelope(message=message),
        idempotency_key=f"given {record}"[:255],
    )


_OUTSIDE_COMMAND_TIMEOUT_S = 600.0
_CLAIM_OWNER = "\0completion"
"""Owner of the keys that bind a handoff's completion to one request. No agent can have this name."""
_SUCCEEDED = "[exit code 0]"


class CompletedWork(NamedTuple):
    """The result of an outside agent's work."""

    handoff: Handoff
    record: str
    """Id of the record with the work: the agent can offer it to another one."""


class PatchError(PermanentModelError, ValueError):
    """The patch of an outside agent does not apply; nothing was completed."""


class _Claim(Frozen):
    """One request completes a handoff."""

    handoff: str


def accept_offer(
    home: Home, handoff_id: str, agent: str, understanding: Understanding, *, idempotency_key: str
) -> Handoff:
    """Accept an offer for an agent outside the runtime; of several callers exactly one succeeds.

    The record is verified first; a refusal is written to the ledger. An expired offer is made again. A repeated call
    with the same key returns the same handoff. Raises HandoffError for a handoff of another agent and for a refusal,
    HandoffNotFoundError, IllegalTransitionError, KeyReusedError, HandedOverError and ThreadNameError.
    """
    check_name(idempotency_key, KEY_LABEL)
    handoff = _load_own_handoff(home, handoff_id, agent)

    def confirm(offer: Handoff) -> Handoff:
        if offer.state == "offered":
            _require_acceptable(home, offer, agent)
        return handoffs.change_state(
            home.ledger, offer.id, "accepted", by=agent, version=offer.version, reason=understanding.next_step,
            key=idempotency_key, key_owner=agent, understanding=understanding,
            # A delivery to an agent of the same name has a thread of its own.
            successor=f"{offer.id}.{offer.offers}.outside",
        )  # fmt: skip

    try:
        confirm(handoff)
    except IllegalTransitionError as error:
        renewed = renew_offer(home.ledger, error.handoff, agent, confirm_timeout_s=_CONFIRM_TIMEOUT_S)
        if renewed.version == error.handoff.version:
            raise
        confirm(renewed)
    accepted = handoffs.load(home.ledger, handoff_id)
    if accepted.state not in handoffs.TRANSFERRED_STATES:
        raise HandoffError(
            f"handoff {accepted.id} was accepted with this key, and taken back since: it is {accepted.state} "
            "(accept it again with a new key)"
        )
    return accepted


def complete_work(
    home: Home,
    handoff_id: str,
    agent: str,
    message: str,
    *,
    patch: str = "",
    idempotency_key: str,
    sandbox: SandboxSpec | None = None,
    on_progress: ProgressCallback | None = None,
) -> CompletedWork:
    """Complete a handoff that an outside agent accepted, and make the record of its work.

    The record's snapshot is restored, and git applies the patch there, as an event. A patch that does not apply changes
    nothing; pass a better one. A repeated call with the same key returns the same result; after a crash it resumes.
    Default sandbox: an isolated one.

    Raises PatchError, HandoffError, KeyReusedError, HandoffNotFoundError, RecordError, ThreadHeldError while another
    call completes it, HandedOverError, ThreadNameError and SandboxUnavailableError.
    """
    check_name(idempotency_key, KEY_LABEL)
    digest = hashlib.sha256(patch.encode()).hexdigest()
    request = [handoff_id, message, digest]
    handoff = _require_accepted(home, handoff_id, agent)
    if handoff.state == "completed":
        _claim_completion(home.ledger, handoff, agent, idempotency_key, request)
        return CompletedWork(handoff, _find_record(home, handoff))
    record = home.records.load(handoff.record)
    model = _OutsideModel(message=message, patch=patch, marker=f"PATCH_{digest[:16]}", find_workspace=str)
    settings: dict[str, Any] = {
        "protocol": "native", "offer_handoff": True, "points": (), "policy": "record", "max_steps": 1_000,
        "command_timeout_s": _OUTSIDE_COMMAND_TIMEOUT_S, "on_progress": on_progress,
    }  # fmt: skip
    with open_run(
        home,
        handoff.successor,
        model=model,
        model_name=f"outside:{agent}",
        agent_name=agent,
        sandbox=sandbox or sandbox_spec_for(record),
        **settings,
    ) as run:
        model.find_workspace = lambda: os.path.relpath(run.sandbox().workspace, run.sandbox().cwd())
        handoff = _require_accepted(home, handoff_id, agent)  # the lease excludes other writers
        _claim_completion(home.ledger, handoff, agent, idempotency_key, request)
        if handoff.state != "completed":
            try:
                _work(run, handoff)
            except PatchError:
                forget_key(home.ledger, idempotency_key, key_owner=agent)
                forget_key(home.ledger, _name_claim(handoff), key_owner=_CLAIM_OWNER)
                raise
    return CompletedWork(handoffs.load(home.ledger, handoff_id), _find_record(home, handoff))


def _work(run: Run, handoff: Handoff) -> None:
    outcome = run.receive(handoff.id) if run.state() is None else run.resume(go_back=True)
    if outcome.stop_reason != "handoff":
        raise HandoffError(
            f"handoff {handoff.id}: the work ended as {outcome.stop_reason} (call complete again, or: handoff history "
            f"{handoff.id})"
        )


def _load_own_handoff(home: Home, handoff_id: str, agent: str) -> Handoff:
    handoff = handoffs.load(home.ledger, handoff_id)
    if handoff.target != agent:
        raise HandoffError(f"handoff {handoff.id}: it is for {handoff.target:.60}, not for {agent}")
    return handoff


def _require_accepted(home: Home, handoff_id: str, agent: str) -> Handoff:
    handoff = _load_own_handoff(home, handoff_id, agent)
    if handoff.state not in handoffs.TRANSFERRED_STATES:
        raise HandoffError(
            f"handoff {handoff.id} is {handoff.state}, so it cannot be completed (accept it first)"
        )
    if not handoff.successor.endswith(".outside"):
        raise HandoffError(
            f"handoff {handoff.id}: another program works on it, on thread {handoff.successor!r:.60}"
        )
    return handoff


def _require_acceptable(home: Home, offer: Handoff, agent: str) -> None:
    """Raise HandoffError after writing the refusal to the ledger, if the record cannot be accepted."""
    refusal = find_refusal(home.ledger, home.records, offer, Receiver(name=agent))
    if refusal is None:
        return
    handoffs.change_state(
        home.ledger, offer.id, "rejected", by=agent, version=offer.version, reason=str(refusal)
    )
    raise HandoffError(f"handoff {offer.id} is rejected: {refusal}")


def _claim_completion(ledger: Ledger, handoff: Handoff, agent: str, key: str, request: list[str]) -> None:
    """Bind the key to the request, and the handoff's completion to the key.

    Raises KeyReusedError, and HandoffError if another request completes or has completed the handoff.
    """

    def write(connection: Connection, now: float) -> _Claim:
        if handoff.state == "completed":
            raise HandoffError(f"handoff {handoff.id} is already completed, by another call")
        return _Claim(handoff=handoff.id)

    run_once(ledger, key, ["complete", *request], write, _Claim, key_owner=agent)
    try:
        run_once(ledger, _name_claim(handoff), [key, *request], write, _Claim, key_owner=_CLAIM_OWNER)
    except KeyReusedError as error:
        raise HandoffError(
            f"handoff {handoff.id}: a call with another key completes it (repeat that call)"
        ) from error


def _name_claim(handoff: Handoff) -> str:
    return f"complete {handoff.successor}"


def _find_record(home: Home, handoff: Handoff) -> str:
    """Return the id of the record that the completed work made."""
    state = build_takeover(home.saver).get_state({"configurable": {"thread_id": handoff.successor}})
    return str(state.values["records"][-1])


class _OutsideModel(BaseChatModel):
    """In the place of an outside agent's model: applies its patch, then hands over with its message."""

    is_llm: ClassVar[bool] = False
    message: str
    patch: str
    marker: str
    """A line that ends the patch, and marks the command that applies it."""
    find_workspace: Callable[[], str]
    """Returns the workspace relative to the shell's directory: after a crash a process sandbox is at another path."""

    @property
    def _llm_type(self) -> str:
        return "outside agent"

    def bind_tools(self, tools: Any, **named: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **named: Any) -> ChatResult:
        reply = self._choose_call(messages)
        reply.usage_metadata = UsageMetadata(input_tokens=0, output_tokens=0, total_tokens=0)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    def _choose_call(self, messages: list[BaseMessage]) -> AIMessage:
        result = self._find_result(messages)
        if self.patch and result is None:
            workspace = shlex.quote(self.find_workspace())
            end = "" if self.patch.endswith("\n") else "\n"
            apply = f"(cd -- {workspace} && git apply --whitespace=nowarn -)"
            command = f"{apply} <<'{self.marker}'\n{self.patch}{end}{self.marker}"
            return _build_call("shell", {"command": command})
        if result is not None and not result.startswith(_SUCCEEDED):
            lines = [line for line in result.splitlines() if not line.startswith("[exit code")]
            raise PatchError(
                f"patch: git cannot apply it to the accepted record: {' '.join(lines[:2])[:200]} (send the difference "
                "from the record's files, as git diff prints it)"
            )
        return _build_call("handoff", {"message": self.message})

    def _find_result(self, messages: list[BaseMessage]) -> str | None:
        """Return the result of the command that applied this patch; None if it has not run."""
        ids = {
            call["id"]
            for each in messages
            if isinstance(each, AIMessage)
            for call in each.tool_calls
            if f"'{self.marker}'" in str(call["args"].get("command", ""))
        }
        results = [
            each.text for each in messages if isinstance(each, ToolMessage) and each.tool_call_id in ids
        ]
        return results[-1] if results else None


def _build_call(tool: str, arguments: dict[str, str]) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"call_{uuid4().hex[:12]}"}])
