"""What strict endpoints refuse in a conversation, turns included, and how it is repaired."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from operator import is_
from typing import Any, NamedTuple, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolCall, ToolMessage

from langgraph_takeover.handoff.text.fence import neutralize
from langgraph_takeover.handoff.trace.conversation import merge_human_messages
from langgraph_takeover.nodes.model.message_content import (
    NO_TEXT,
    REASONING_TYPES,
    WIRE_REPLY,
    adapt_messages,
    drop_calls,
)

_CONTINUE = "Continue."


def repair_messages(messages: Sequence[BaseMessage], model: Any) -> list[BaseMessage]:
    """Return a whole conversation as the model's endpoint accepts it; valid messages stay the same objects.

    For a graph of your own whose node calls the model: `model.invoke(repair_messages(state["messages"], model))`.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> from langgraph_takeover.integrations import repair_messages
        >>> reply = AIMessage("", tool_calls=[{"name": "shell", "args": {}, "id": "a"}])
        >>> [message.text for message in repair_messages([HumanMessage("Work."), reply], None)]
        ['Work.', '', 'No result of this call was recorded.']
    """
    return complete_turns(ConversationRepair(model).add(messages), model)


def complete_turns(messages: Sequence[BaseMessage], model: Any) -> list[BaseMessage]:
    """Return the messages of a request as strict endpoints accept their order; other messages stay the same objects.

    Consecutive messages of the user become one. A short message of the user stands before a reply that has none before it,
    and after the last reply. For Mistral, a mark stands for the reply between a result and the user.
    """
    return end_with_user(_continue_turns([], messages, model))


def _continue_turns(
    completed: list[BaseMessage], messages: Sequence[BaseMessage], model: Any
) -> list[BaseMessage]:
    """Extend messages whose order is accepted by further ones, and return them."""
    for message in messages:
        last = completed[-1] if completed else None
        match _find_fault(last, message, model):
            case "two of the user":
                assert isinstance(last, HumanMessage)
                completed[-1] = _merge(last, cast(HumanMessage, message))
                continue
            case "no reply":
                completed.append(AIMessage(NO_TEXT))
            case "no user":
                completed.append(HumanMessage(_CONTINUE))
        completed.append(message)
    return completed


def end_with_user(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of a request with a short one of the user after the last reply."""
    is_ended = not messages or isinstance(messages[-1], HumanMessage | ToolMessage | SystemMessage)
    return messages if is_ended else [*messages, HumanMessage(_CONTINUE)]


def have_faults(messages: Sequence[BaseMessage], model: Any, last: BaseMessage | None) -> bool:
    """Whether `complete_turns` would change more than the end of a conversation whose last message so far is `last`."""
    pairs = zip((last, *messages), messages, strict=False)
    return any(_find_fault(earlier, later, model) for earlier, later in pairs)


def _find_fault(last: BaseMessage | None, message: BaseMessage, model: Any) -> str:
    if isinstance(message, HumanMessage):
        if isinstance(last, HumanMessage):
            return "two of the user"
        return "no reply" if isinstance(last, ToolMessage) and is_mistral(model) else ""
    is_first = isinstance(message, AIMessage) and not isinstance(last, HumanMessage | ToolMessage)
    return "no user" if is_first else ""


def _merge(first: HumanMessage, second: HumanMessage) -> HumanMessage:
    name = first.name if first.name == second.name else None
    if isinstance(first.content, str) and isinstance(second.content, str):
        return HumanMessage(f"{first.content.rstrip()}\n\n{second.content}", name=name)
    return HumanMessage([*_list_parts(first), *_list_parts(second)], name=name)


def _list_parts(message: HumanMessage) -> list[Any]:
    content = message.content
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


NO_RESULT = "No result of this call was recorded."
"""Text that stands for a missing result."""
MALFORMED = "malformed_arguments"
"""The only argument of a call whose own ones are not an object."""
_MISTRAL = "mistral|ministral|mixtral|magistral|codestral|devstral|pixtral"
_ID_FORMS = (
    (_MISTRAL, re.compile(r"[A-Za-z0-9]{9}")),
    # These models were trained on ids such as `functions.shell:0`.
    ("kimi|moonshot", re.compile(r"[A-Za-z0-9_.:-]{1,40}")),
    ("", re.compile(r"[A-Za-z0-9_-]{1,40}")),
)
"""The ids that endpoints accept, by a part of the model's name. The last form is valid at OpenAI and Anthropic."""
_MADE_ID_CHARS = 9
"""Length of ids of our own, which every form accepts."""
_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME_CHARS = 64
_MAX_MALFORMED_CHARS = 2000


class ConversationRepair:
    """Repairs a growing conversation for a model's endpoint. The same messages give the same request in every process."""

    def __init__(self, model: Any, *, has_begun: bool = False) -> None:
        self.id_form = _find_id_form(model)
        self.refuses_names = is_mistral(model)
        """Whether the endpoint refuses names of agents."""
        self.has_begun = has_begun
        """Whether a message precedes the next one, such as a system message that the client adds."""
        self.ids: set[str] = set()
        """Ids of the calls so far."""
        self.repairs: Counter[str] = Counter()
        """How many messages each rule has changed or added."""

    def add(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the messages that continue the conversation, as the endpoint accepts them."""
        repaired = list(messages)
        for name, apply in RULES:
            before, repaired = repaired, apply(repaired, self)
            if len(before) == len(repaired) and all(map(is_, before, repaired)):
                continue
            known = {id(each) for each in before}
            if changed := sum(id(each) not in known for each in repaired):
                self.repairs[name] += changed
        return repaired

    def repair_reply(self, reply: AIMessage) -> AIMessage:
        """Return a reply whose calls have ids that are valid and new to the conversation, which does not grow by it."""
        if WIRE_REPLY in reply.additional_kwargs:
            return reply  # its agent answers by the ids in the vendor's bytes
        names = self.choose_ids(reply)
        self.ids.difference_update(names)
        return _rename_calls(reply, names)

    def choose_ids(self, reply: AIMessage) -> list[str]:
        """Return an id for each call of a reply, which the conversation then has: its own one, if it is valid and new."""
        chosen = []
        for call in _list_calls(reply):
            own = call["id"] if isinstance(call["id"], str) else ""
            number = len(self.ids)
            name = own if self.id_form.fullmatch(own) else _make_id(own, number)
            while name in self.ids:
                name, number = _make_id(own, number), number + 1
            self.ids.add(name)
            chosen.append(name)
        return chosen

    def describe(self) -> str:
        """Describe the repairs in one line; empty without any."""
        counts = ", ".join(f"{count} x {name}" for name, count in self.repairs.items())
        return (
            f"the endpoint gets repaired messages ({counts}); the stored ones stay as they are"
            if counts
            else ""
        )


class GrowingRequest:
    """Repairs the requests of a growing conversation like `repair_messages`, but reads each message once.

    Not for several threads at once.
    """

    def __init__(self, model: Any, *, has_begun: bool = False) -> None:
        self._model, self._has_begun = model, has_begun
        self._clear()

    def _clear(self) -> None:
        self._read: list[BaseMessage] = []
        """The messages up to the last reply, if all calls before it are answered: what follows cannot change them."""
        self._contents: list[Any] = []
        self._turns: list[BaseMessage] = []
        """The same, repaired."""
        self._repair = ConversationRepair(self._model, has_begun=self._has_begun)

    def is_for(self, model: Any, *, has_begun: bool) -> bool:
        return self._model is model and self._has_begun == has_begun

    def repair(self, messages: Sequence[BaseMessage]) -> tuple[list[BaseMessage], ConversationRepair]:
        """Return the request, and the repair with its counts."""
        count = len(self._read)
        if not (
            len(messages) >= count
            and all(map(is_, self._read, messages))
            and all(map(is_, self._contents, [each.content for each in messages[:count]]))
        ):
            self._clear()
            count = 0
        last = max(
            (n for n in range(count, len(messages)) if isinstance(messages[n], AIMessage)), default=count
        )
        added = messages[count:last]
        if added and _is_complete(added):
            self._turns = _continue_turns(self._turns, self._add(self._repair, added), self._model)
            self._read += added
            self._contents += [each.content for each in added]
            count = last
        repair = copy(self._repair)
        repair.ids, repair.repairs = {*repair.ids}, Counter(repair.repairs)
        rest = self._add(repair, messages[count:])
        return end_with_user(_continue_turns([*self._turns], rest, self._model)), repair

    def _add(self, repair: ConversationRepair, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        return repair.add(adapt_messages(messages, self._model))


def _is_complete(messages: Sequence[BaseMessage]) -> bool:
    """Whether each call has its result, and each result its call."""
    known = set(map(id, messages))
    return all(id(each) in known for each in pair_results(messages))


class Rule(NamedTuple):
    """One thing that endpoints refuse."""

    name: str
    apply: Callable[[list[BaseMessage], ConversationRepair], list[BaseMessage]]
    """Returns the messages without it; those that it does not change are the same objects."""


def write_calls_as_text(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of a request without tools, in which some endpoints refuse calls and their results."""
    if not any(_list_calls(each) for each in messages):
        return messages
    shown: list[BaseMessage] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            shown.append(HumanMessage(message.text or NO_RESULT))
        elif calls := _list_calls(message):
            lines = [f"{call['name']} {json.dumps(call['args'], ensure_ascii=False)}" for call in calls]
            shown.append(AIMessage(neutralize("\n\n".join(filter(None, (message.text, *lines))))))
        else:
            shown.append(message)
    return merge_human_messages(shown)


def repair_reply(reply: AIMessage, messages: Iterable[BaseMessage], *, model: Any) -> AIMessage:
    """Return a reply whose calls have ids that are valid and unique in their conversation.

    For a graph of your own: what its node returns, `repair_reply(reply, state["messages"], model=model)`.

    Example:
        >>> from langchain_core.messages import AIMessage
        >>> from langgraph_takeover.integrations import repair_reply
        >>> reply = AIMessage("", tool_calls=[{"name": "shell", "args": {}, "id": "a"}] * 2)
        >>> [len(call["id"]) for call in repair_reply(reply, [], model=None).tool_calls]
        [1, 9]
    """
    (repaired,) = repair_replies([reply], messages, model)
    assert isinstance(repaired, AIMessage)
    return repaired


def repair_replies(
    replies: Sequence[BaseMessage], messages: Iterable[BaseMessage], model: Any
) -> list[BaseMessage]:
    """Return replies, among them results of their calls, with ids that are valid and unique in the conversation."""
    if not any(_list_calls(each) for each in replies):
        return list(replies)
    repair = ConversationRepair(model)
    repair.ids.update(str(call["id"]) for each in messages for call in _list_calls(each))
    repaired: list[BaseMessage] = []
    renamed: defaultdict[str, deque[str]] = defaultdict(deque)
    for message in replies:
        if isinstance(message, AIMessage):
            names = repair.choose_ids(message)
            renamed.clear()
            for call, name in zip(_list_calls(message), names, strict=True):
                renamed[call["id"] or ""].append(name)
            message = _rename_calls(message, names)
        elif isinstance(message, ToolMessage) and renamed.get(message.tool_call_id):
            name = renamed[message.tool_call_id].popleft()
            message = message.model_copy(update={"tool_call_id": name})
        repaired.append(message)
    return repaired


def pair_results(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages with one result for each call, directly after its reply and in the order of the calls.

    A call without a result gets one that says so; a result without a call becomes a user message.
    """
    groups: list[tuple[BaseMessage, Sequence[Any], list[BaseMessage | None]]] = []
    pending: dict[str, deque[tuple[list[BaseMessage | None], int]]] = {}
    for message in messages:
        if isinstance(message, ToolMessage):
            slots = pending.get(message.tool_call_id)
            if slots:
                results, place = slots.popleft()
                results[place] = message
            else:
                lost = HumanMessage(f"Result of call {message.tool_call_id}:\n{message.text}")
                groups.append((lost, (), []))
            continue
        calls = _list_calls(message)
        results = [None] * len(calls)
        own: defaultdict[str, deque[tuple[list[BaseMessage | None], int]]] = defaultdict(deque)
        for place, call in enumerate(calls):
            own[call["id"] or ""].append((results, place))
        pending.update(own)
        groups.append((message, calls, results))
    paired: list[BaseMessage] = []
    for message, calls, results in groups:
        paired.append(message)
        paired += [
            ToolMessage(NO_RESULT, tool_call_id=call["id"] or "", status="error")
            if result is None
            else result
            for call, result in zip(calls, results, strict=True)
        ]
    return paired


def _make_ids_valid(messages: list[BaseMessage], repair: ConversationRepair) -> list[BaseMessage]:
    """Return the messages with ids that the endpoint accepts. Each call has its result in its place."""
    repaired: list[BaseMessage] = []
    names: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if names and (name := names.pop(0)) != message.tool_call_id:
                message = message.model_copy(update={"tool_call_id": name})
        elif isinstance(message, AIMessage):
            names = repair.choose_ids(message)
            message = _rename_calls(message, names)
        repaired.append(message)
    return repaired


def _move_system(messages: list[BaseMessage], repair: ConversationRepair) -> list[BaseMessage]:
    """Return the messages with at most one system message, which is the first; others are of the user."""
    moved: list[BaseMessage] = []
    for message in messages:
        if isinstance(message, SystemMessage) and repair.has_begun:
            message = HumanMessage(message.content)
        repair.has_begun = True
        moved.append(message)
    return moved


def _fill_blank(messages: list[BaseMessage], _: ConversationRepair) -> list[BaseMessage]:
    """Return the messages without blank texts, and with a mark where nothing else is left."""
    return [each if isinstance(each, SystemMessage) else fill_blank(each) for each in messages]


def fill_blank(message: BaseMessage) -> BaseMessage:
    """Return a message without blank texts, and with a mark where neither text nor calls are left.

    A thought alone gets the mark, too: OpenAI's client drops it, and Anthropic refuses it at a message's end.
    """
    mark = "" if _list_calls(message) else NO_TEXT
    content: Any = message.content
    if isinstance(content, str):
        filled: Any = content if content.strip() else mark
    else:
        filled = [part for part in content if not _is_blank(part)] or mark
        if mark and all(isinstance(part, dict) and part.get("type") in REASONING_TYPES for part in filled):
            filled = [*filled, {"type": "text", "text": mark}]
    return (
        message
        if filled == content or not (filled or content)
        else message.model_copy(update={"content": filled})
    )


def _is_blank(part: str | dict[str, Any]) -> bool:
    text = part if isinstance(part, str) else part.get("text") if part.get("type") == "text" else None
    return isinstance(text, str) and not text.strip()


def _make_names_valid(messages: list[BaseMessage], repair: ConversationRepair) -> list[BaseMessage]:
    """Return the messages with names of tools and agents that endpoints accept."""
    return [_rename(each, repair) for each in messages]


def _make_arguments_valid(messages: list[BaseMessage], _: ConversationRepair) -> list[BaseMessage]:
    """Return the messages with calls whose arguments are JSON objects."""
    return [_make_object(each) for each in messages]


def _make_object(message: BaseMessage) -> BaseMessage:
    if not isinstance(message, AIMessage) or not message.invalid_tool_calls:
        return message
    repaired = [
        ToolCall(
            name=call["name"] or "_",
            args={MALFORMED: (call["args"] or "")[:_MAX_MALFORMED_CHARS]},
            id=call["id"],
        )
        for call in message.invalid_tool_calls
    ]
    update = {"tool_calls": [*message.tool_calls, *repaired], "invalid_tool_calls": []}
    return _replace_calls(message, []).model_copy(update=update)


RULES = (
    Rule(
        "call without one result after it, or result without a call",
        lambda messages, _: pair_results(messages),
    ),
    Rule("call id that is empty, repeated or invalid", _make_ids_valid),
    Rule("invalid name", _make_names_valid),
    Rule("arguments that are not a JSON object", _make_arguments_valid),
    Rule("system message after the first message", _move_system),
    Rule("message without text", _fill_blank),
)
"""Applied in this order."""


def _list_calls(message: BaseMessage) -> Sequence[Any]:
    if not isinstance(message, AIMessage):
        return ()
    calls, invalid = message.tool_calls, message.invalid_tool_calls
    return [*calls, *invalid] if invalid else calls


def is_mistral(model: Any) -> bool:
    return any(word in _read_model_name(model) for word in _MISTRAL.split("|"))


def _read_model_name(model: Any) -> str:
    while hasattr(model, "bound"):
        model = model.bound
    return str(getattr(model, "model_name", None) or getattr(model, "model", None) or "").lower()[:200]


def _find_id_form(model: Any) -> re.Pattern[str]:
    name = _read_model_name(model)
    return next(form for words, form in _ID_FORMS if any(word in name for word in words.split("|")))


def _make_id(own: str, number: int) -> str:
    source = f"{number} {own}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(source).hexdigest()[:_MADE_ID_CHARS]


def _rename_calls(reply: AIMessage, names: Sequence[str]) -> AIMessage:
    calls = _list_calls(reply)
    if [call["id"] for call in calls] == list(names):
        return reply
    renamed = [{**call, "id": name} for call, name in zip(calls, names, strict=True)]
    return _replace_calls(reply, renamed)


def _rename(message: BaseMessage, repair: ConversationRepair) -> BaseMessage:
    is_refused = repair.refuses_names and not isinstance(message, ToolMessage)
    name = None if is_refused or not message.name else _make_name(message.name)
    if message.name and name != message.name:
        message = message.model_copy(update={"name": name})
    if not isinstance(message, AIMessage):
        return message
    calls = _list_calls(message)
    if all(call["name"] == _make_name(call["name"]) for call in calls):
        return message
    return _replace_calls(message, [{**call, "name": _make_name(call["name"])} for call in calls])


def _make_name(name: str | None) -> str:
    return _INVALID_NAME_CHARS.sub("_", (name or "")[:_MAX_NAME_CHARS]) or "_"


def _replace_calls(reply: AIMessage, calls: Sequence[dict[str, Any]]) -> AIMessage:
    """Return a reply with other calls, and without the provider's copies of its own."""
    count = len(reply.tool_calls)
    extra = {name: value for name, value in reply.additional_kwargs.items() if name != "tool_calls"}
    return reply.model_copy(
        update={
            "content": drop_calls(reply.content),
            "tool_calls": list(calls[:count]),
            "invalid_tool_calls": list(calls[count:]),
            "additional_kwargs": extra,
        }
    )
