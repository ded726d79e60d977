"""What `langgraph.json` names: the graphs with forms to fill in, for LangGraph Studio and any client of its server."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel

import sandbox
from evals import models
from evals.forms import (
    AS_REVIEWED,
    DIRECTORIES_VARIABLE,
    IMAGES_VARIABLE,
    UNISOLATED_VARIABLE,
    AgentForm,
    BadChoice,
    Choices,
    TakeoverChoices,
    TakeoverForm,
    TeamChoices,
    allowed_names,
    allows_unisolated,
    bundled,
    possible_model,
    require_review,
)
from evals.tasks import Task
from graph import Home
from graph.serving import Asked, Equipment, serve
from graph.team import assembled
from handoff.ledger import machines
from handoff.prompts import prompt_text
from handoff.record import RECORD_FILE, HandoffRecord, RecordStore
from handoff.views import VIEWS
from nodes.settings import Settings
from nodes.state import AgentState
from nodes.team import Agent, Team
from sandbox import storage
from sandbox.machine import BackendName, SandboxSpec

_OWNER = "studio"
_MOST_SHOWN = 10


def _equip_agent(home: Home, asked: Asked) -> Equipment:
    form, choices = asked.form, asked.choices
    if form is None:
        task, base = _task_known_by(asked.state["task"], choices)
    elif form.task_id not in bundled():
        raise BadChoice(
            f"task_id: there is no bundled task {form.task_id!r}; there are {', '.join(bundled())}"
        )
    elif choices.directory or choices.image:
        if not form.prompt.strip():
            raise BadChoice("prompt: a repository of your own needs one; say what is to be done")
        place = Path(choices.directory).expanduser().absolute() if choices.directory else Path(choices.image)
        task, base = Task(id=place.name.partition(":")[0], instance={"problem_statement": form.prompt}), None
    else:
        base = bundled()[form.task_id]
        task = _prompted(base, form.prompt) if form.prompt.strip() else base
    begun = _machine_of(home, asked.state)
    first = AgentState(task={"id": task.id, "prompt": task.prompt}) if form is not None else AgentState()
    return _equipment(asked, task, base, begun, first)


def _equip_team(home: Home, asked: Asked) -> Equipment:
    if asked.choices.offer_handoff:
        raise BadChoice("offer_handoff: a team has a handoff tool of its own; choose that instead")
    equipment = _equip_agent(home, asked)
    return equipment._replace(team=_team(asked.choices, equipment.model))


def _team(choices: TeamChoices, model: BaseChatModel) -> Team:
    def agent(name: str) -> Agent:
        return Agent(
            name=name,
            model=model,
            instructions=prompt_text(f"team_{name}", "evals"),
            share_only_tool_results=choices.share_only_tool_results,
            may_finish=name != "writer",
        )

    return assembled(
        agents=[agent("writer"), agent("tester")],
        supervisor=agent("supervisor") if choices.supervisor else None,
        max_consecutive_turns=choices.max_consecutive_turns,
        enable_handoff_tool=choices.enable_handoff_tool,
    )


def _equip_takeover(home: Home, asked: Asked) -> Equipment:
    record = _record(home.records, asked.form.record if asked.form else asked.state["record"])
    if asked.choices.model == AS_REVIEWED:
        named = record.review.successor if record.review else ""
        asked = asked._replace(choices=asked.choices.model_copy(update={"model": named or models.ORACLE}))
    task, base = _task_known_by(record.task.model_dump(), asked.choices)
    if asked.form is None:
        return _equipment(asked, task, base, _machine_of(home, asked.state), AgentState())
    if asked.form.view not in (AS_REVIEWED, *VIEWS):
        raise BadChoice(
            f"view: there is no {asked.form.view!r}; there are {', '.join((AS_REVIEWED, *VIEWS))}"
        )
    view = "" if asked.form.view == AS_REVIEWED else asked.form.view
    # Whatever machine the state names: the successor enters the record's, converted to the chosen kind.
    return _equipment(asked, task, base, None, AgentState(record=record.id, view=view))


def _equipment(
    asked: Asked, task: Task, base: Task | None, begun: BackendName | None, first: AgentState
) -> Equipment:
    choices: Choices = asked.choices
    _require_allowed("directory", choices.directory, DIRECTORIES_VARIABLE)
    _require_allowed("image", choices.image, IMAGES_VARIABLE)
    backend = _backend(choices, begun)
    return Equipment(
        model=_model(choices, task),
        model_name=choices.model,
        sandbox=_machine(choices, base, backend),
        run_id=f"{task.id}-{asked.thread[-8:]}",
        settings=choices.model_dump(include=set(Settings.model_fields))
        | {"max_tokens": choices.max_tokens or None},
        first=first,
    )


def _require_allowed(field: str, name: str, variable: str) -> None:
    if name and name not in (allowed := allowed_names(variable)):
        raise BadChoice(
            f"{field}: {name!r:.200} is not allowed on this server, which allows {', '.join(allowed) or 'none'}; "
            f"list it in {variable} when you start the server"
        )


def _task_known_by(brief: dict[str, Any], choices: Choices) -> tuple[Task, Task | None]:
    """The task of a run that goes on, and the bundled one whose repository it began with, if it did."""
    other = Task(id=brief["id"], instance={"problem_statement": ""})
    if choices.directory or choices.image:
        return other, None
    if (base := bundled().get(other.id)) is not None:
        return (base if brief["prompt"] == base.prompt else other), base
    raise BadChoice(
        f"directory: task {other.id} is none of the bundled ones; name the repository (or image) that it began with"
    )


def _prompted(task: Task, prompt: str) -> Task:
    return task.model_copy(update={"instance": {**task.instance, "problem_statement": prompt}})


def _record(store: RecordStore, asked: str) -> HandoffRecord:
    known = sorted(store.ids(), key=lambda name: _age(store, name), reverse=True)
    if not known:
        raise BadChoice(f"record: there is none in {store.root} yet; run 'agent' to its first handoff point")
    if asked and asked not in known:
        shown = ", ".join(known[:_MOST_SHOWN]) + (", …" if len(known) > _MOST_SHOWN else "")
        raise BadChoice(f"record: there is no {asked!r}; there are, newest first, {shown}")
    reserved = {name: _reserved(store, name) for name in ([asked] if asked else known)}
    free = next((name for name, why in reserved.items() if not why), None)
    if free is None:
        name, why = next(iter(reserved.items()))
        raise BadChoice(
            f"record: {name} {why}" if asked else f"record: none is free; the newest, {name}, {why}"
        )
    return store.load(free)


def _reserved(store: RecordStore, name: str) -> str:
    """Why a record is not to be taken over; empty where it may be."""
    if store.awaits_review(name):
        return f"waits for its review; answer that on thread {store.load(name).thread_id}, or name another record"
    review = store.review(name)
    return "was refused in its review; name another record" if review and review.decision == "refuse" else ""


def _age(store: RecordStore, name: str) -> int:
    return (store.directory(name) / RECORD_FILE).stat().st_mtime_ns


def _machine_of(home: Home, state: AgentState) -> BackendName | None:
    """The kind of machine that the state's own is, where one is kept that isolates; others are converted."""
    kept = machines.find(home.ledger, state.get("machine", ""))
    return kept.backend if kept and kept.backend != "process" else None


def _backend(choices: Choices, begun: BackendName | None) -> BackendName:
    if begun is not None and choices.sandbox not in ("auto", begun):
        raise BadChoice(f"sandbox: the machine to go on with is of {begun}; choose auto or {begun}")
    if begun is not None:
        backend = begun
    elif choices.sandbox != "auto":
        backend = choices.sandbox
    else:
        backend = "docker" if choices.image else sandbox.default_backend()
    # Whichever model is chosen: a fork can have any command in place of the model's.
    if backend == "process" and not allows_unisolated():
        raise BadChoice(
            "sandbox: process runs commands as the server's user, with its files and its network; choose host or "
            f"docker, or start the server with {UNISOLATED_VARIABLE}=1"
        )
    return backend


def _machine(choices: Choices, base: Task | None, backend: BackendName) -> SandboxSpec:
    if base is None:
        return _own_machine(choices, backend)
    # Not in the home, which may lie where the server watches for changed source, and then starts anew.
    work = storage.place() / "tasks" / _version(base)
    if backend != "docker":
        work.mkdir(parents=True, exist_ok=True)
        with (work / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            base.check_out(work)
    return base.spec(backend, _OWNER, work)


def _version(task: Task) -> str:
    """What tells a bundled task's repository from another program's of the same name."""
    return hashlib.sha256(task.stream.read_bytes()).hexdigest()[:12] if task.stream else task.id


def _own_machine(choices: Choices, backend: BackendName) -> SandboxSpec:
    if backend == "docker":
        if not choices.image:
            raise BadChoice("image: docker needs one with the repository at /testbed; or choose host")
        return SandboxSpec(backend=backend, image=choices.image, owner=_OWNER)
    place = Path(choices.directory).expanduser().absolute()
    if not choices.directory or not (place / ".git").exists():
        raise BadChoice(
            f"directory: {choices.directory or 'none'} is no git repository on the server; name one"
        )
    return SandboxSpec(backend=backend, directory=place, owner=_OWNER)


def _model(choices: Choices, task: Task) -> BaseChatModel:
    base_url = os.environ.get("OPENAI_BASE_URL")
    if not possible_model(choices.model):
        raise BadChoice(f"model: there is no {choices.model!r}; choose {models.ORACLE} or openai:NAME")
    if choices.model != models.ORACLE and not (base_url or os.environ.get("OPENAI_API_KEY")):
        raise BadChoice(
            f"model: {choices.model} needs OPENAI_API_KEY, or OPENAI_BASE_URL, in the server's environment; "
            f"{models.ORACLE} needs none"
        )
    if choices.model == models.ORACLE and bundled().get(task.id) != task:
        raise BadChoice(
            f"model: {models.ORACLE} knows the bundled tasks and prompts only; choose openai:NAME"
        )
    return models.build(choices.model, task=task, base_url=base_url)


agent = serve("agent", AgentForm, Choices, _equip_agent, require_review)
team = serve("team", AgentForm, TeamChoices, _equip_team, require_review)
takeover = serve("takeover", TakeoverForm, TakeoverChoices, _equip_takeover, require_review)
