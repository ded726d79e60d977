"""The built-in model acts only on facts in its context."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_takeover.evals.models.facts import TaskFacts, read_facts
from langgraph_takeover.evals.models.oracle import OracleKnowledge, OracleModel, choose_turn
from langgraph_takeover.evals.tasks import BUNDLED, Task, load_tasks
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.nodes.model.actions import parse_action
from langgraph_takeover.nodes.model.model_errors import ModelError

TASKS = {task.id: task for task in load_tasks(BUNDLED)}


def facts(task: Task) -> TaskFacts:
    assert task.directory is not None
    return read_facts(task.directory)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_first_turn_uses_no_path_command_or_code(task: Task) -> None:
    known = facts(task)
    turn = choose_turn(OracleKnowledge(known, [HumanMessage(task.prompt)]))
    text = str(turn)
    secrets = [known.guide.command, known.reproduction.symptom, *(region.path for region in known.regions)]
    assert not any(secret in text for secret in secrets)


def test_the_wrong_attempt_is_skipped_if_the_context_refutes_it() -> None:
    task = TASKS["ledger__ledger-12"]
    known = facts(task)
    assert known.wrong is not None
    (region,) = known.regions
    context = f"{task.prompt}\n{region.path}\n{region.base}\n{known.reproduction.symptom}\n"
    uninformed = choose_turn(OracleKnowledge(known, [HumanMessage(context)]))
    informed = choose_turn(OracleKnowledge(known, [HumanMessage(context + known.wrong.refuted_by)]))
    assert uninformed.action.arguments["new"] == region.wrong
    assert informed.action.arguments["new"] == region.right


def test_a_file_has_its_last_shown_state() -> None:
    task = TASKS["ledger__ledger-12"]
    known = facts(task)
    (region,) = known.regions
    numbered = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(region.right.splitlines(), 5))
    knowledge = OracleKnowledge(known, [HumanMessage(f"{task.prompt}\n{region.base}\n{numbered}")])
    assert knowledge.state(region) == "right"
    assert OracleKnowledge(known, [HumanMessage(task.prompt)]).state(region) is None


def test_only_its_own_runs_since_its_last_edit_count() -> None:
    task = TASKS["galley__galley-31"]
    known = facts(task)
    command = f"```bash\n{known.guide.command}\n```"
    context = [HumanMessage(task.prompt + f"\n{command}\n[exit code 0]\nOK")]
    assert OracleKnowledge(known, context).find_result(known.guide.command) is None
    after_run = [*context, AIMessage(command), HumanMessage("[exit code 0]\nOK")]
    assert OracleKnowledge(known, after_run).find_result(known.guide.command) is True
    after_edit = [*after_run, AIMessage("<editor/>"), HumanMessage("a.py has been edited.\n")]
    assert OracleKnowledge(known, after_edit).find_result(known.guide.command) is None


def test_notes_contain_facts_of_the_record_and_no_code() -> None:
    task = TASKS["ledger__ledger-12"]
    known = facts(task)
    (region,) = known.regions
    assert known.wrong is not None
    trace = f"{region.path}\n{region.wrong}\n{known.wrong.refuted_by}"
    note = (
        OracleModel(facts=(known,))
        .invoke([HumanMessage(f"{load_prompt('summary')}\n{task.prompt}\n{trace}")])
        .text
    )
    assert region.path in note
    assert known.wrong.refuted_by in note
    assert known.guide.command not in note
    assert not any(
        mark in note for variant in ("base", "wrong", "right") for mark in region.distinctive_lines(variant)
    )


def test_unknown_tasks_are_refused() -> None:
    model = OracleModel(facts=(facts(TASKS["ledger__ledger-12"]),))
    with pytest.raises(ModelError, match="supports only the bundled tasks"):
        model.invoke([HumanMessage("Fix sympy.")])


def test_replies_are_equal_in_both_protocols() -> None:
    task = TASKS["ledger__ledger-12"]
    model = OracleModel(facts=(facts(task),))
    textual = parse_action(model.invoke([HumanMessage(task.prompt)]), "text", offer_handoff=False)
    native = parse_action(
        model.bind_tools([]).invoke([HumanMessage(task.prompt)]), "native", offer_handoff=False
    )
    assert textual == native
