"""Notes that the built-in model writes about a record."""

from __future__ import annotations

import json

from langgraph_takeover.evals.models.facts import TaskFacts
from langgraph_takeover.evals.models.knowledge import OracleKnowledge, reproduction_command


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
        return json.dumps({name: [text] for name, text in fields.items()}, indent=1)
    return "\n\n".join(f"{name.replace('_', ' ').capitalize()}: {text}" for name, text in fields.items())


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
