"""The built-in model acts on what stands in its context, and on nothing else."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_takeover.evals.models.facts import TaskFacts, read_facts
from langgraph_takeover.evals.models.oracle import OracleKnowledge, OracleModel, choose_turn
from langgraph_takeover.evals.tasks import BUNDLED, Task, load_tasks
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.nodes.model.actions import parse_action
from langgraph_takeover.nodes.model.errors import ModelError

TASKS = {task.id: task for task in load_tasks(BUNDLED)}


def facts(task: Task) -> TaskFacts:
    assert task.directory is not None
    return read_facts(task.directory)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_newcomer_knows_no_path_no_command_and_no_code(task: Task) -> None:
    known = facts(task)
    turn = choose_turn(OracleKnowledge(known, [HumanMessage(task.prompt)]))
    said = str(turn)
    secrets = [known.guide.command, known.reproduction.symptom, *(place.path for place in known.places)]
    assert not any(secret in said for secret in secrets)


def test_the_wrong_attempt_is_made_unless_the_context_says_that_it_failed() -> None:
    task = TASKS["ledger__ledger-12"]
    known = facts(task)
    assert known.wrong is not None
    (place,) = known.places
    told = f"{task.prompt}\n{place.path}\n{place.base}\n{known.reproduction.symptom}\n"
    naive = choose_turn(OracleKnowledge(known, [HumanMessage(told)]))
    warned = choose_turn(OracleKnowledge(known, [HumanMessage(told + known.wrong.refuted_by)]))
    assert naive.action.arguments["new"] == place.wrong
    assert warned.action.arguments["new"] == place.right


def test_the_state_of_a_file_is_what_was_shown_last() -> None:
    task = TASKS["ledger__ledger-12"]
    known = facts(task)
    (place,) = known.places
    numbered = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(place.right.splitlines(), 5))
    shown = OracleKnowledge(known, [HumanMessage(f"{task.prompt}\n{place.base}\n{numbered}")])
    assert shown.state(place) == "right"
    assert OracleKnowledge(known, [HumanMessage(task.prompt)]).state(place) is None


def test_passing_counts_only_in_its_own_runs_since_its_own_last_edit() -> None:
    task = TASKS["galley__galley-31"]
    known = facts(task)
    command = f"```bash\n{known.guide.command}\n```"
    told = [HumanMessage(task.prompt + f"\n{command}\n[exit code 0]\nOK")]
    assert OracleKnowledge(known, told).find_result(known.guide.command) is None
    ran = [*told, AIMessage(command), HumanMessage("[exit code 0]\nOK")]
    assert OracleKnowledge(known, ran).find_result(known.guide.command) is True
    edited = [*ran, AIMessage("<editor/>"), HumanMessage("a.py has been edited.\n")]
    assert OracleKnowledge(known, edited).find_result(known.guide.command) is None


def test_notes_hold_facts_of_the_record_and_no_code() -> None:
    task = TASKS["ledger__ledger-12"]
    known = facts(task)
    (place,) = known.places
    assert known.wrong is not None
    trace = f"{place.path}\n{place.wrong}\n{known.wrong.refuted_by}"
    note = (
        OracleModel(facts=(known,))
        .invoke([HumanMessage(f"{load_prompt('summary')}\n{task.prompt}\n{trace}")])
        .text
    )
    assert place.path in note
    assert known.wrong.refuted_by in note
    assert known.guide.command not in note
    assert not any(
        mark in note for variant in ("base", "wrong", "right") for mark in place.distinctive_lines(variant)
    )


def test_strangers_are_refused() -> None:
    model = OracleModel(facts=(facts(TASKS["ledger__ledger-12"]),))
    with pytest.raises(ModelError, match="bundled tasks only"):
        model.invoke([HumanMessage("Mend sympy.")])


def test_its_replies_can_be_read_in_both_protocols() -> None:
    task = TASKS["ledger__ledger-12"]
    model = OracleModel(facts=(facts(task),))
    textual = parse_action(model.invoke([HumanMessage(task.prompt)]), "text", offer_handoff=False)
    native = parse_action(
        model.bind_tools([]).invoke([HumanMessage(task.prompt)]), "native", offer_handoff=False
    )
    assert textual == native
