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

from evals.models.facts import Place, TaskFacts, Variant
from evals.models.scripted import ScriptedModel, Turn, spoken
from evals.models.teamwork import as_member
from handoff.action import Action
from handoff.prompts import prompt_text
from nodes.replies import ModelFailed

_MARGIN = re.compile(r"^(\s*\d+\t|[+-]|[^\s:]+:\d+:)")
_EVENT = re.compile(r"^## (e\d+) · ", re.MULTILINE)
_MOST_TURNS = 60


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
            raise ModelFailed(
                "builtin:oracle knows the bundled tasks only; give another by --model openai:NAME"
            )
        begins, facts = mine
        if prompt_text("confirm", "nodes") in texts[-1]:
            return Turn(_understanding(facts))
        for kind in ("summary", "structured"):
            if any(prompt_text(kind) in text for text in texts):
                return Turn(_notes(kind, Knowledge(facts, told, begins)))
        known = Knowledge(facts, told, begins)
        system = "\n".join(message.text for message in messages if isinstance(message, SystemMessage))
        return as_member(system, next_turn(known), fixed=known.fixed)


def _understanding(facts: TaskFacts) -> str:
    """What it answers where a handoff is offered to it."""
    told = {
        "goal": facts.statement.lstrip("# ").splitlines()[0],
        "next_step": "I look at the repository as it is now.",
        "verify_first": "What the earlier agent saw: I run the reproduction.",
    }
    return json.dumps(told, indent=1)


class _Run(NamedTuple):
    command: str
    passed: bool


class Knowledge:
    """What stands as text in a conversation, and what its own runs have shown since its own last edit."""

    def __init__(self, facts: TaskFacts, messages: list[BaseMessage], begins: int = 0) -> None:
        self.facts = facts
        self.text = "\n".join(spoken(message) for message in messages)
        self._lines = {
            line: number for number, shown in enumerate(self.text.splitlines()) for line in _bare(shown)
        }
        own = messages[begins:]
        self.turns = sum(isinstance(message, AIMessage) for message in own)
        self.refused = self.turns > 0 and messages[-1].text.startswith("Not done")
        self._runs: list[_Run] = []
        for reply, answer in pairwise(own):
            if isinstance(reply, AIMessage):
                self._take(spoken(reply), answer.text)

    def knows(self, text: str) -> bool:
        return text in self.text

    def cited(self, texts: list[str]) -> str:
        """The last events of the record that is shown in which these texts stand, in brackets."""
        shown = [self.text.rfind(text) for text in texts]
        names = [(found.start(), found[1]) for found in _EVENT.finditer(self.text)]
        events = [
            next((name for at, name in reversed(names) if at < place), "") for place in shown if place >= 0
        ]
        return f" [{', '.join(dict.fromkeys(filter(None, events)))}]" if any(events) else ""

    def state(self, place: Place) -> Variant | None:
        """The variant of a place that was shown last; None when none was."""
        last = {
            variant: max((self._lines.get(mark, -1) for mark in place.marks(variant)), default=-1)
            for variant in ("base", "wrong", "right")
            if variant != "wrong" or place.wrong is not None
        }
        best = max(last, key=lambda variant: last[variant])
        return best if last[best] >= 0 else None  # type: ignore[return-value]

    @property
    def fixed(self) -> bool:
        return all(self.state(place) == "right" for place in self.facts.places)

    @property
    def refuted(self) -> bool:
        return self.facts.wrong is not None and self.knows(self.facts.wrong.refuted_by)

    def result(self, command: str) -> bool | None:
        """How a command of its own ended since its own last edit; None when it was not run."""
        return next((run.passed for run in reversed(self._runs) if command in run.command), None)

    def _take(self, said: str, answer: str) -> None:
        if answer.startswith("[exit code"):
            self._runs.append(_Run(said, answer.startswith("[exit code 0]")))
        elif "has been edited" in answer:
            self._runs.clear()


def next_turn(known: Knowledge) -> Turn:
    """The next thing to do, given what is known."""
    facts = known.facts
    if known.turns >= _MOST_TURNS:
        return _finish("I stop here without a verified fix.")
    states = [known.state(place) for place in facts.places]
    if known.refused:
        return Turn(
            "That did not apply; I look at the file as it is.", _view(facts.places[_first_not_right(states)])
        )
    if all(state == "right" for state in states):
        return _validate(known) or _finish("The fix is in place; the reproduction and the test suite pass.")
    seen_broken = known.knows(facts.reproduction.symptom) or known.refuted
    shows_issue = known.result(_reproduce(facts))
    unseen = None in states and known.knows(facts.reproduction.path)
    if shows_issue is None and (unseen or not seen_broken):
        return _run_reproduction(known)
    if shows_issue is True and known.result(facts.guide.command) is not False:
        return _validate(known) or _finish(
            "The issue no longer shows and the test suite passes; I keep the work as it is."
        )
    target: Variant = "right" if facts.wrong is None or known.refuted else "wrong"
    wanted = [place for place in facts.places if target == "right" or place.wrong is not None]
    for place in wanted:
        state = known.state(place)
        if state is None:
            return _look(known, place)
        if place.text(state) != place.text(target):
            return _edit(place, state, target)
    return _validate(known) or _finish("Everything that I know to check passes.")


def _first_not_right(states: list[Variant | None]) -> int:
    return next((index for index, state in enumerate(states) if state != "right"), 0)


def _look(known: Knowledge, place: Place) -> Turn:
    if known.knows(place.path):
        return Turn(f"I read {place.path}.", _view(place))
    return Turn("I search for the code that the issue is about.", _shell(place.search or known.facts.search))


def _validate(known: Knowledge) -> Turn | None:
    """The first check that its own runs have not yet shown to pass; None when all have."""
    if known.result(_reproduce(known.facts)) is None:
        return _run_reproduction(known)
    guide = known.facts.guide
    if known.result(guide.command) is not None:
        return None
    if known.knows(guide.command):
        return Turn("I run the test suite.", _shell(guide.command))
    if known.knows(guide.path):
        return Turn("I look up how the tests are run.", _shell(f"cat {guide.path}"))
    return Turn("I look at what there is.", _shell("ls -A"))


def _run_reproduction(known: Knowledge) -> Turn:
    reproduction, guide = known.facts.reproduction, known.facts.guide
    if known.knows(reproduction.path):
        return Turn("I run the reproduction of the issue.", _shell(_reproduce(known.facts)))
    if not known.knows(guide.path):
        return Turn("I look at what there is.", _shell("ls -A"))
    content = {"command": "create", "path": reproduction.path, "content": reproduction.content.rstrip("\n")}
    return Turn("I write the issue's own example down as a script.", Action("editor", content))


def _reproduce(facts: TaskFacts) -> str:
    return f"python3 {facts.reproduction.path}"


def _edit(place: Place, state: Variant, target: Variant) -> Turn:
    arguments = {
        "command": "str_replace",
        "path": place.path,
        "old": place.text(state),
        "new": place.text(target),
    }
    return Turn(f"I change {place.path}.", Action("editor", arguments))


def _view(place: Place) -> Action:
    return Action("editor", {"command": "view", "path": place.path})


def _shell(command: str) -> Action:
    return Action("shell", {"command": command})


def _finish(message: str) -> Turn:
    return Turn("", Action("finish", {"message": message}))


def _bare(line: str) -> tuple[str, str]:
    """A shown line as it may stand in its file: as it is, and without a number or a diff's mark."""
    return line.strip(), _MARGIN.sub("", line).strip()


def _notes(kind: str, known: Knowledge) -> str:
    """Notes made of nothing but those facts that stand in the record, with where they stand; no code."""
    facts = known.facts
    paths = [place.path for place in facts.places if known.knows(place.path)]
    edited = [place.path for place in facts.places if known.state(place) in ("wrong", "right")]
    commands = [command for command in (_reproduce(facts), facts.guide.command) if known.knows(command)]
    failures = [text for text in (facts.reproduction.symptom,) if known.knows(text)]
    failures += [facts.wrong.refuted_by] if facts.wrong is not None and known.refuted else []
    shown = [f"`{command}`" for command in commands]
    fields = {
        "problem_understanding": f"The code in question is in {_and(paths)}{known.cited(paths)}",
        "work_completed": f"Edited {_and(edited)}{known.cited(edited)}",
        "evidence_observed": f"Commands that were run or read: {_and(shown)}{known.cited(commands)}",
        "observed_failures": _and(failures) + known.cited(failures),
        "remaining_uncertainty": f"Whether the state of the files passes every check{known.cited(edited)}",
        "rollback_notes": f"Restore {_and(edited)} to undo the edits{known.cited(edited)}",
        "recommended_next_action": f"Run {_and(shown)} and go on from what it shows{known.cited(commands)}",
    }
    if kind == "structured":
        return json.dumps({name: [text] for name, text in fields.items()}, indent=1)
    return "\n\n".join(f"{name.replace('_', ' ').capitalize()}: {text}" for name, text in fields.items())


def _and(items: list[str]) -> str:
    return ", ".join(items) if items else "NONE OBSERVED"
