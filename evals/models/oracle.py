"""The built-in model: deterministic, without an LLM, and limited to facts in its conversation."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

from langgraph_takeover.evals.models.facts import CodeRegion, TaskFacts, Variant
from langgraph_takeover.evals.models.scripted import ScriptedModel, Turn, message_text
from langgraph_takeover.handoff.ledger.acceptance import is_confirmation_request
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.text.fence import CHANGED_FILES
from langgraph_takeover.handoff.trace.events import Action
from langgraph_takeover.nodes.model.model_errors import ModelError

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


def write_notes(kind: str, knowledge: OracleKnowledge) -> str:
    """Notes that consist only of facts in the record, with citations and without code."""
    facts = knowledge.facts
    paths = [region.path for region in facts.regions if knowledge.knows(region.path)]
    edited = [region.path for region in facts.regions if knowledge.state(region) in ("wrong", "right")]
    commands = [
        command for command in (reproduction_command(facts), facts.guide.command) if knowledge.knows(command)
    ]
    failures = [text for text in (facts.reproduction.symptom,) if knowledge.knows(text)]
    failures += [facts.wrong.refuted_by] if facts.wrong is not None and knowledge.is_refuted else []
    quoted = [f"`{command}`" for command in commands]
    fields = {
        "problem_understanding": f"The code in question is in {_join_items(paths)}{knowledge.format_citations(paths)}",
        "work_completed": f"Edited {_join_items(edited)}{knowledge.format_citations(edited)}",
        "evidence_observed": f"Commands that were run or read: {_join_items(quoted)}{knowledge.format_citations(commands)}",
        "observed_failures": _join_items(failures) + knowledge.format_citations(failures),
        "remaining_uncertainty": f"Whether the state of the files passes every check{knowledge.format_citations(edited)}",
        "rollback_notes": f"Restore {_join_items(edited)} to undo the edits{knowledge.format_citations(edited)}",
        "recommended_next_action": f"Run {_join_items(quoted)} and continue from the result{knowledge.format_citations(commands)}",
    }
    if kind == "structured":
        return json.dumps(
            _state_fields(knowledge.text) | {name: [text] for name, text in fields.items()}, indent=1
        )
    return "\n\n".join(f"{name.replace('_', ' ').capitalize()}: {text}" for name, text in fields.items())


_SOURCE_FILE = re.compile(r"^- (\S+) \(source file, ", re.MULTILINE)
_VALIDATION = re.compile(r"^\*\*Continuation state:\*\* changed_validation_(\w+)$", re.MULTILINE)


def _state_fields(prompt: str) -> dict[str, object]:
    """The fields that the record can check, as the notes prompt shows them."""
    validation = _VALIDATION.search(prompt)
    return {
        "changed_files": _SOURCE_FILE.findall(prompt.rpartition(f"\n{CHANGED_FILES}\n")[2]),
        "validation_passes": {"passing": "yes", "failing": "no"}.get(
            validation[1] if validation else "", "unknown"
        ),
        "work_done": "unknown",
    }


def write_understanding(facts: TaskFacts) -> str:
    """The confirmation with which the model accepts a handoff."""
    confirmation = {
        "goal": facts.statement.lstrip("# ").splitlines()[0],
        "next_step": "I look at the repository as it is now.",
        "verify_first": "The earlier agent's results: I run the reproduction.",
    }
    return json.dumps(confirmation, indent=1)


def _join_items(items: list[str]) -> str:
    return ", ".join(items) if items else "NONE OBSERVED"


_MEMBER = re.compile(r"^You are `([\w-]+)`, one of several agents", re.MULTILINE)
_SUPERVISOR = re.compile(r"^You choose who continues", re.MULTILINE)
_TARGETS = re.compile(r"^When you hand over, .*: one of ([\w, -]+)\.$", re.MULTILINE)
_FINISHERS = re.compile(r"^Only (.+) may finish the task; you may not\.$", re.MULTILINE)


def adapt_to_team(system: str, turn: Turn, *, is_fixed: bool) -> Turn:
    """The turn of a team member in place of the turn it would take alone."""
    if not _MEMBER.search(system):
        return turn
    targets_line, finishers_line = _TARGETS.search(system), _FINISHERS.search(system)
    targets = targets_line[1].split(", ") if targets_line else []
    if _SUPERVISOR.search(system) and targets:
        if is_fixed:
            return _hand_over(targets[-1], "The fix is in place; verify it and finish.")
        return _hand_over(targets[0], "Find the bug and fix it.")
    finishers = re.findall(r"`([\w-]+)`", finishers_line[1]) if finishers_line else []
    if is_fixed and (able := [name for name in finishers if name in targets]):
        return _hand_over(able[-1], "The fix is in place; verify it and finish.")
    if finishers and turn.action is not None and turn.action.tool == "finish":
        return Turn(
            "I am done, and check the changed files.", Action("shell", {"command": "git status --short"})
        )
    return turn


def _hand_over(to: str, message: str) -> Turn:
    return Turn("", Action("handoff", {"to": to, "message": message}))


_MAX_TURNS = 60


class OracleModel(ScriptedModel):
    """Acts as an ideal agent on the tasks whose facts it has; also writes the notes."""

    facts: tuple[TaskFacts, ...]

    def respond(self, messages: list[BaseMessage]) -> Turn:
        conversation = [message for message in messages if not isinstance(message, SystemMessage)]
        texts = ["" if isinstance(message, AIMessage) else message.text for message in conversation]
        # Its own turns begin at the last message that states the task. Earlier turns are another agent's.
        last_statement = max(
            (
                (index, facts)
                for index, text in enumerate(texts)
                for facts in self.facts
                if facts.statement in text
            ),
            key=lambda match: match[0],
            default=None,
        )
        if last_statement is None:
            raise ModelError("builtin:oracle supports only the bundled tasks (use --model openai:NAME)")
        first_own_message, facts = last_statement
        if is_confirmation_request(texts[-1]):
            return Turn(write_understanding(facts))
        knowledge = OracleKnowledge(facts, conversation, first_own_message)
        for kind in ("summary", "structured"):
            if any(load_prompt(kind) in text for text in texts):
                return Turn(write_notes(kind, knowledge))
        system = "\n".join(message.text for message in messages if isinstance(message, SystemMessage))
        return adapt_to_team(system, choose_turn(knowledge), is_fixed=knowledge.is_fixed)


def choose_turn(knowledge: OracleKnowledge) -> Turn:
    """The next turn of an agent that has only this knowledge."""
    facts = knowledge.facts
    if knowledge.turns >= _MAX_TURNS:
        return _finish("I stop here without a verified fix.")
    states = [knowledge.state(region) for region in facts.regions]
    if knowledge.is_refused:
        return Turn(
            "The edit did not apply; I view the current file.",
            _view_action(facts.regions[_find_first_unfixed(states)]),
        )
    if all(state == "right" for state in states):
        return _validate(knowledge) or _finish(
            "The fix is in place; the reproduction and the test suite pass."
        )
    has_seen_failure = knowledge.knows(facts.reproduction.symptom) or knowledge.is_refuted
    reproduction_passed = knowledge.find_result(reproduction_command(facts))
    is_unseen = None in states and knowledge.knows(facts.reproduction.path)
    if reproduction_passed is None and (is_unseen or not has_seen_failure):
        return _run_reproduction(knowledge)
    if reproduction_passed is True and knowledge.find_result(facts.guide.command) is not False:
        return _validate(knowledge) or _finish(
            "The issue no longer occurs and the test suite passes; I leave the code unchanged."
        )
    return _repair(knowledge) or _validate(knowledge) or _finish("All checks that I know pass.")


def _repair(knowledge: OracleKnowledge) -> Turn | None:
    """The next step of the fix, right or tempting; None if it is complete."""
    facts = knowledge.facts
    target: Variant = "right" if facts.wrong is None or knowledge.is_refuted else "wrong"
    for region in facts.regions:
        if target == "wrong" and region.wrong is None:
            continue
        state = knowledge.state(region)
        if state is None:
            return _look_at(knowledge, region)
        if region.text(state) != region.text(target):
            return _edit(region, state, target)
    return None


def _find_first_unfixed(states: list[Variant | None]) -> int:
    return next((index for index, state in enumerate(states) if state != "right"), 0)


def _look_at(knowledge: OracleKnowledge, region: CodeRegion) -> Turn:
    if knowledge.knows(region.path):
        return Turn(f"I read {region.path}.", _view_action(region))
    return Turn(
        "I search for the code that the issue is about.",
        _shell_action(region.search or knowledge.facts.search),
    )


def _validate(knowledge: OracleKnowledge) -> Turn | None:
    """The first check that has not passed in its own runs yet; None if all have."""
    if knowledge.find_result(reproduction_command(knowledge.facts)) is None:
        return _run_reproduction(knowledge)
    guide = knowledge.facts.guide
    if knowledge.find_result(guide.command) is not None:
        return None
    if knowledge.knows(guide.command):
        return Turn("I run the test suite.", _shell_action(guide.command))
    if knowledge.knows(guide.path):
        return Turn("I look up how to run the tests.", _shell_action(f"cat {guide.path}"))
    return _list_files()


def _run_reproduction(knowledge: OracleKnowledge) -> Turn:
    reproduction, guide = knowledge.facts.reproduction, knowledge.facts.guide
    if knowledge.knows(reproduction.path):
        return Turn(
            "I run the reproduction of the issue.", _shell_action(reproduction_command(knowledge.facts))
        )
    if not knowledge.knows(guide.path):
        return _list_files()
    content = {"command": "create", "path": reproduction.path, "content": reproduction.content.rstrip("\n")}
    return Turn("I write the issue's example as a script.", Action("editor", content))


def _list_files() -> Turn:
    return Turn("I list the files.", _shell_action("ls -A"))


def _edit(region: CodeRegion, state: Variant, target: Variant) -> Turn:
    arguments = {
        "command": "str_replace",
        "path": region.path,
        "old": region.text(state),
        "new": region.text(target),
    }
    return Turn(f"I change {region.path}.", Action("editor", arguments))


def _view_action(region: CodeRegion) -> Action:
    return Action("editor", {"command": "view", "path": region.path})


def _shell_action(command: str) -> Action:
    return Action("shell", {"command": command})


def _finish(message: str) -> Turn:
    return Turn("", Action("finish", {"message": message}))
