"""Facts of a task that the built-in model can read in its conversation."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_takeover.evals.models.facts import CodeRegion, TaskFacts, Variant
from langgraph_takeover.evals.models.scripted import message_text

_MARGIN = re.compile(r"^(\s*\d+\t|[+-]|[^\s:]+:\d+:)")
_EVENT_HEADING = re.compile(r"^## (e\d+) · ", re.MULTILINE)


class _CommandRun(NamedTuple):
    command: str
    has_passed: bool


class OracleKnowledge:
    """The text of a conversation, and the results of the model's own commands since its last edit."""

    def __init__(self, facts: TaskFacts, messages: list[BaseMessage], first_own_message: int = 0) -> None:
        self.facts = facts
        self.text = "\n".join(message_text(message) for message in messages)
        self._lines = {
            line: number for number, text in enumerate(self.text.splitlines()) for line in _strip_margin(text)
        }
        own = messages[first_own_message:]
        self.turns = sum(isinstance(message, AIMessage) for message in own)
        self.is_refused = self.turns > 0 and messages[-1].text.startswith("Not done")
        self._runs: list[_CommandRun] = []
        for reply, answer in pairwise(own):
            if isinstance(reply, AIMessage):
                self._record_answer(message_text(reply), answer.text)

    def knows(self, text: str) -> bool:
        return text in self.text

    def format_citations(self, texts: list[str]) -> str:
        """The events of the record that contain these texts last, in brackets."""
        offsets = [self.text.rfind(text) for text in texts]
        headings = [(match.start(), match[1]) for match in _EVENT_HEADING.finditer(self.text)]
        events = [
            next((name for start, name in reversed(headings) if start < offset), "")
            for offset in offsets
            if offset >= 0
        ]
        return f" [{', '.join(dict.fromkeys(filter(None, events)))}]" if any(events) else ""

    def state(self, region: CodeRegion) -> Variant | None:
        """The variant of a region that the conversation shows last; None if it shows none."""
        last = {
            variant: max(
                (self._lines.get(mark, -1) for mark in region.distinctive_lines(variant)), default=-1
            )
            for variant in ("base", "wrong", "right")
            if variant != "wrong" or region.wrong is not None
        }
        best = max(last, key=lambda variant: last[variant])
        return best if last[best] >= 0 else None  # type: ignore[return-value]

    @property
    def is_fixed(self) -> bool:
        return all(self.state(region) == "right" for region in self.facts.regions)

    @property
    def is_refuted(self) -> bool:
        return self.facts.wrong is not None and self.knows(self.facts.wrong.refuted_by)

    def find_result(self, command: str) -> bool | None:
        """Whether the model's last run of a command passed; None if it has not run it since its last edit."""
        return next((run.has_passed for run in reversed(self._runs) if command in run.command), None)

    def _record_answer(self, action: str, answer: str) -> None:
        if answer.startswith("[exit code"):
            self._runs.append(_CommandRun(action, answer.startswith("[exit code 0]")))
        elif "has been edited" in answer:
            self._runs.clear()


def reproduction_command(facts: TaskFacts) -> str:
    return f"python3 {facts.reproduction.path}"


def _strip_margin(line: str) -> tuple[str, str]:
    """A displayed line with and without its line number or diff mark."""
    return line.strip(), _MARGIN.sub("", line).strip()
