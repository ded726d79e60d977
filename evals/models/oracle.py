"""The built-in model: no LLM, but the least that an agent must do who knows how and not yet what.

For each bundled task it holds the facts of `oracle.yaml`. It acts on a fact only when the fact stands
as text in its own conversation: a path it has been shown, a command it has read, a failure it knows
of, the lines a file now has. What it spends before the fix is therefore what its view did not tell.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

from langgraph_takeover.evals.models.facts import CodeRegion, TaskFacts, Variant
from langgraph_takeover.evals.models.scripted import ScriptedModel, Turn, message_text
from langgraph_takeover.evals.models.teamwork import adapt_to_team
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.nodes.model.errors import ModelError

_MARGIN = re.compile(r"^(\s*\d+\t|[+-]|[^\s:]+:\d+:)")
_EVENT = re.compile(r"^## (e\d+) · ", re.MULTILINE)
_MAX_TURNS = 60


class OracleModel(ScriptedModel):
    """Plays the ideal agent on the tasks whose facts it holds; also writes their notes."""

    facts: tuple[TaskFacts, ...]

    def respond(self, messages: list[BaseMessage]) -> Turn:
        told = [message for message in messages if not isinstance(message, SystemMessage)]
        # The last that states the task is where its own turns begin: what comes before it was another's.
        texts = ["" if isinstance(message, AIMessage) else message.text for message in told]
        mine = max(
            ((n, facts) for n, text in enumerate(texts) for facts in self.facts if facts.statement in text),
            key=lambda found: found[0],
            default=None,
        )
        if mine is None:
            raise ModelError(
                "builtin:oracle knows the bundled tasks only; give another by --model openai:NAME"
            )
        begins, facts = mine
        if load_prompt("confirm", "nodes") in texts[-1]:
            return Turn(_write_understanding(facts))
        for kind in ("summary", "structured"):
            if any(load_prompt(kind) in text for text in texts):
                return Turn(_write_notes(kind, OracleKnowledge(facts, told, begins)))
        known = OracleKnowledge(facts, told, begins)
        system = "\n".join(message.text for message in messages if isinstance(message, SystemMessage))
        return adapt_to_team(system, choose_turn(known), is_fixed=known.is_fixed)


def _write_understanding(facts: TaskFacts) -> str:
    """What it answers where a handoff is offered to it."""
    told = {
        "goal": facts.statement.lstrip("# ").splitlines()[0],
        "next_step": "I look at the repository as it is now.",
        "verify_first": "What the earlier agent saw: I run the reproduction.",
    }
    return json.dumps(told, indent=1)


class _CommandRun(NamedTuple):
    command: str
    has_passed: bool


class OracleKnowledge:
    """What stands as text in a conversation, and what its own runs have shown since its own last edit."""

    def __init__(self, facts: TaskFacts, messages: list[BaseMessage], first_own_message: int = 0) -> None:
        self.facts = facts
        self.text = "\n".join(message_text(message) for message in messages)
        self._lines = {
            line: number
            for number, shown in enumerate(self.text.splitlines())
            for line in _strip_margin(shown)
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
        """The last events of the record that is shown in which these texts stand, in brackets."""
        shown = [self.text.rfind(text) for text in texts]
        names = [(found.start(), found[1]) for found in _EVENT.finditer(self.text)]
        events = [
            next((name for at, name in reversed(names) if at < place), "") for place in shown if place >= 0
        ]
        return f" [{', '.join(dict.fromkeys(filter(None, events)))}]" if any(events) else ""

    def state(self, region: CodeRegion) -> Variant | None:
        """The variant of a place that was shown last; None when none was."""
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
        return all(self.state(place) == "right" for place in self.facts.places)

    @property
    def is_refuted(self) -> bool:
        return self.facts.wrong is not None and self.knows(self.facts.wrong.refuted_by)

    def find_result(self, command: str) -> bool | None:
        """How a command of its own ended since its own last edit; None when it was not run."""
        return next((run.has_passed for run in reversed(self._runs) if command in run.command), None)

    def _record_answer(self, action: str, answer: str) -> None:
        if answer.startswith("[exit code"):
            self._runs.append(_CommandRun(action, answer.startswith("[exit code 0]")))
        elif "has been edited" in answer:
            self._runs.clear()


def choose_turn(knowledge: OracleKnowledge) -> Turn:
    """The next thing to do, given what is known."""
    facts = knowledge.facts
    if knowledge.turns >= _MAX_TURNS:
        return _finish("I stop here without a verified fix.")
    states = [knowledge.state(place) for place in facts.places]
    if knowledge.is_refused:
        return Turn(
            "That did not apply; I look at the file as it is.",
            _view_action(facts.places[_find_first_unfixed(states)]),
        )
    if all(state == "right" for state in states):
        return _validate(knowledge) or _finish(
            "The fix is in place; the reproduction and the test suite pass."
        )
    seen_broken = knowledge.knows(facts.reproduction.symptom) or knowledge.is_refuted
    shows_issue = knowledge.find_result(_reproduction_command(facts))
    unseen = None in states and knowledge.knows(facts.reproduction.path)
    if shows_issue is None and (unseen or not seen_broken):
        return _run_reproduction(knowledge)
    if shows_issue is True and knowledge.find_result(facts.guide.command) is not False:
        return _validate(knowledge) or _finish(
            "The issue no longer shows and the test suite passes; I keep the work as it is."
        )
    target: Variant = "right" if facts.wrong is None or knowledge.is_refuted else "wrong"
    wanted = [place for place in facts.places if target == "right" or place.wrong is not None]
    for place in wanted:
        state = knowledge.state(place)
        if state is None:
            return _look_at(knowledge, place)
        if place.text(state) != place.text(target):
            return _edit(place, state, target)
    return _validate(knowledge) or _finish("Everything that I know to check passes.")


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
    """The first check that its own runs have not yet shown to pass; None when all have."""
    if knowledge.find_result(_reproduction_command(knowledge.facts)) is None:
        return _run_reproduction(knowledge)
    guide = knowledge.facts.guide
    if knowledge.find_result(guide.command) is not None:
        return None
    if knowledge.knows(guide.command):
        return Turn("I run the test suite.", _shell_action(guide.command))
    if knowledge.knows(guide.path):
        return Turn("I look up how the tests are run.", _shell_action(f"cat {guide.path}"))
    return Turn("I look at what there is.", _shell_action("ls -A"))


def _run_reproduction(knowledge: OracleKnowledge) -> Turn:
    reproduction, guide = knowledge.facts.reproduction, knowledge.facts.guide
    if knowledge.knows(reproduction.path):
        return Turn(
            "I run the reproduction of the issue.", _shell_action(_reproduction_command(knowledge.facts))
        )
    if not knowledge.knows(guide.path):
        return Turn("I look at what there is.", _shell_action("ls -A"))
    content = {"command": "create", "path": reproduction.path, "content": reproduction.content.rstrip("\n")}
    return Turn("I write the issue's own example down as a script.", Action("editor", content))


def _reproduction_command(facts: TaskFacts) -> str:
    return f"python3 {facts.reproduction.path}"


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


def _strip_margin(line: str) -> tuple[str, str]:
    """A shown line as it may stand in its file: as it is, and without a number or a diff's mark."""
    return line.strip(), _MARGIN.sub("", line).strip()


def _write_notes(kind: str, knowledge: OracleKnowledge) -> str:
    """Notes made of nothing but those facts that stand in the record, with where they stand; no code."""
    facts = knowledge.facts
    paths = [place.path for place in facts.places if knowledge.knows(place.path)]
    edited = [place.path for place in facts.places if knowledge.state(place) in ("wrong", "right")]
    commands = [
        command for command in (_reproduction_command(facts), facts.guide.command) if knowledge.knows(command)
    ]
    failures = [text for text in (facts.reproduction.symptom,) if knowledge.knows(text)]
    failures += [facts.wrong.refuted_by] if facts.wrong is not None and knowledge.is_refuted else []
    shown = [f"`{command}`" for command in commands]
    fields = {
        "problem_understanding": f"The code in question is in {_join_items(paths)}{knowledge.format_citations(paths)}",
        "work_completed": f"Edited {_join_items(edited)}{knowledge.format_citations(edited)}",
        "evidence_observed": f"Commands that were run or read: {_join_items(shown)}{knowledge.format_citations(commands)}",
        "observed_failures": _join_items(failures) + knowledge.format_citations(failures),
        "remaining_uncertainty": f"Whether the state of the files passes every check{knowledge.format_citations(edited)}",
        "rollback_notes": f"Restore {_join_items(edited)} to undo the edits{knowledge.format_citations(edited)}",
        "recommended_next_action": f"Run {_join_items(shown)} and go on from what it shows{knowledge.format_citations(commands)}",
    }
    if kind == "structured":
        return json.dumps({name: [text] for name, text in fields.items()}, indent=1)
    return "\n\n".join(f"{name.replace('_', ' ').capitalize()}: {text}" for name, text in fields.items())


def _join_items(items: list[str]) -> str:
    return ", ".join(items) if items else "NONE OBSERVED"
