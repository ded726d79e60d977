"""The built-in model: deterministic, without an LLM, and limited to facts in its conversation.

For each bundled task, it loads facts from `oracle.yaml`. It acts on a fact only if its conversation contains
the fact as text: a path, a command, a failure, the current lines of a file. Its events before the fix are therefore
spent recovering information that the view omitted.
"""

from __future__ import annotations

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

from langgraph_takeover.evals.models.facts import CodeRegion, TaskFacts, Variant
from langgraph_takeover.evals.models.knowledge import OracleKnowledge, reproduction_command
from langgraph_takeover.evals.models.oracle_notes import write_notes, write_understanding
from langgraph_takeover.evals.models.scripted import ScriptedModel, Turn
from langgraph_takeover.evals.models.teamwork import adapt_to_team
from langgraph_takeover.handoff.ledger.acceptance import is_confirmation_request
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.nodes.model.errors import ModelError

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
