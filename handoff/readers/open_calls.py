"""The calls that wait for their results. Endpoints and agents use ids again, so a result belongs to the nearest open call."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

Result = TypeVar("Result")


class CallStep(NamedTuple):
    """One part of a recorded conversation: a call, a result, or the begin of a reply, which has neither."""

    id: str | None
    """Id of the call; None if the recording has none."""
    call: int | None = None
    """Number of the call; of a result, that of its call if it is known."""
    result: int | None = None


class OpenCalls:
    """The calls without a result, by id. Calls of one reply with the same id, or without one, are answered in their order."""

    def __init__(self) -> None:
        self._open: dict[str | None, deque[int]] = {}
        self._of_reply: set[str | None] = set()
        self._answered: set[int] = set()

    def start_reply(self) -> None:
        """Begin a reply: its calls replace open calls of earlier replies with the same id."""
        self._of_reply.clear()

    def add(self, call_id: str | None, number: int) -> None:
        """Add a call of the current reply."""
        if call_id not in self._of_reply:
            self._of_reply.add(call_id)
            self._open[call_id] = deque()
        self._open[call_id].append(number)

    def find(self, call_id: str | None) -> int | None:
        """The number of the call that a result with this id answers; None if no such call is open."""
        waiting = self._open.get(call_id)
        while waiting and waiting[0] in self._answered:
            waiting.popleft()
        return waiting[0] if waiting else None

    def close(self, call_id: str | None) -> int | None:
        """Like `find`; the call is no longer open."""
        number = self.find(call_id)
        if number is not None:
            self.discard(number)
        return number

    def discard(self, number: int) -> None:
        """Forget an open call, whose result was found by other means."""
        self._answered.add(number)


class _Reply(NamedTuple):
    """The calls of a reply, and the results after it that no open call has, each with its id."""

    calls: list[int]
    rest: list[tuple[str | None, int]]


def match_results(steps: Iterable[CallStep]) -> dict[int, int]:
    """Map the numbers of calls to those of their results.

    A result before its call is matched if its id is that of one call and one result only. Of several results for one call
    the first counts. Results whose ids no call has are matched by `match_other_results`.
    """
    open_calls, matched = OpenCalls(), dict[int, int]()
    calls: dict[str | None, list[int]] = {}
    replies = [_Reply([], [])]
    for step in steps:
        if step.call is None and step.result is None:
            open_calls.start_reply()
            replies.append(_Reply([], []))
        elif step.result is None:
            assert step.call is not None
            open_calls.add(step.id, step.call)
            calls.setdefault(step.id, []).append(step.call)
            replies[-1].calls.append(step.call)
        elif step.call is not None:
            matched.setdefault(step.call, step.result)
            open_calls.discard(step.call)
        elif (number := open_calls.close(step.id)) is not None:
            matched.setdefault(number, step.result)
        else:
            replies[-1].rest.append((step.id, step.result))
    _match_early_results(replies, calls, matched)
    for reply in replies:
        waiting = [number for number in reply.calls if number not in matched]
        rest = [each for each in reply.rest if each[0] not in calls or each[0] is None]
        matched |= match_other_results(waiting, rest)
    return matched


def match_other_results(
    waiting: Sequence[int], results: Sequence[tuple[str | None, Result]]
) -> dict[int, Result]:
    """Map the unanswered calls of a reply to the results after it whose ids no call has, in order.

    Results without an id always answer, those with another id only if there are as many as calls.
    """
    unnamed = [result for call_id, result in results if call_id is None]
    matched = dict(zip(waiting, unnamed, strict=False))
    foreign = [result for call_id, result in results if call_id is not None]
    others = waiting[len(unnamed) :]
    return matched | dict(zip(others, foreign, strict=True)) if len(foreign) == len(others) else matched


def _match_early_results(
    replies: Iterable[_Reply], calls: dict[str | None, list[int]], matched: dict[int, int]
) -> None:
    """Match the results before their calls."""
    early: dict[str | None, list[int]] = {}
    for reply in replies:
        for call_id, result in reply.rest:
            early.setdefault(call_id, []).append(result)
    for call_id, results in early.items():
        numbers = calls.get(call_id, [])
        if call_id is not None and len(numbers) == len(results) == 1:
            matched.setdefault(numbers[0], results[0])
