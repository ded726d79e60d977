"""The graphs of `langgraph.json`, with forms, for LangGraph Studio and other clients of its server."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel

from langgraph_takeover import Home, sandbox
from langgraph_takeover.agents import AgentProgramError, ExternalAgent, external_agent
from langgraph_takeover.evals import models
from langgraph_takeover.evals.studio.forms import (
    AS_REVIEWED,
    DIRECTORIES_VARIABLE,
    IMAGES_VARIABLE,
    UNISOLATED_VARIABLE,
    AgentForm,
    ChoiceError,
    Choices,
    TakeoverChoices,
    TakeoverForm,
    TeamChoices,
    is_possible_model,
    is_unisolated_allowed,
    list_allowed_names,
    load_bundled_tasks,
    load_served_models,
    require_review,
)
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.graph.studio_factory import ServedRequest, ServedRunSetup, serve
from langgraph_takeover.graph.team import create_team
from langgraph_takeover.handoff.ledger import effects
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.records.record import RECORD_FILE, HandoffRecord, RecordStore
from langgraph_takeover.handoff.views import VIEWS
from langgraph_takeover.nodes.context.settings import Settings
from langgraph_takeover.nodes.context.team_members import Agent, Team
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.interface import BackendName, SandboxSpec

_OWNER = "studio"
_MAX_LISTED = 10


def _build_agent_setup(home: Home, request: ServedRequest) -> ServedRunSetup:
    form, choices = request.form, request.choices
    if form is None:
        task, base = _find_task(request.state["task"], choices)
    elif form.task_id not in load_bundled_tasks():
        raise ChoiceError(
            f"task_id: unknown bundled task {form.task_id!r} (choose from: {', '.join(load_bundled_tasks())})"
        )
    elif choices.directory or choices.image:
        if not form.prompt.strip():
            raise ChoiceError("prompt: missing (a custom repository needs a prompt: describe the task)")
        path = Path(choices.directory).expanduser().absolute() if choices.directory else Path(choices.image)
        task, base = Task(id=path.name.partition(":")[0], instance={"problem_statement": form.prompt}), None
    else:
        base = load_bundled_tasks()[form.task_id]
        task = _replace_prompt(base, form.prompt) if form.prompt.strip() else base
    backend = _started_backend(home, request.state)
    state = AgentState(task={"id": task.id, "prompt": task.prompt}) if form is not None else AgentState()
    return _build_setup(request, task, base, backend, state)


def _build_team_setup(home: Home, request: ServedRequest) -> ServedRunSetup:
    if request.choices.offer_handoff:
        raise ChoiceError("offer_handoff: not available for teams (use enable_handoff_tool)")
    return _build_agent_setup(home, request)


def _build_team(choices: TeamChoices, model: BaseChatModel, supervisor: BaseChatModel) -> Team:
    def build_agent(name: str) -> Agent:
        return Agent(
            name=name,
            model=supervisor if name == "supervisor" else model,
            instructions=load_prompt(f"team_{name}", "evals.studio"),
            share_only_tool_results=choices.share_only_tool_results,
            may_finish=name != "writer",
        )

    return create_team(
        agents=[build_agent("writer"), build_agent("tester")],
        supervisor=build_agent("supervisor") if choices.supervisor else None,
        max_consecutive_turns=choices.max_consecutive_turns,
        enable_handoff_tool=choices.enable_handoff_tool,
    )


def _build_takeover_setup(home: Home, request: ServedRequest) -> ServedRunSetup:
    record = _choose_record(home.records, request.form.record if request.form else request.state["record"])
    if request.choices.model == AS_REVIEWED:
        reviewed_model = record.review.successor if record.review else ""
        request = request._replace(
            choices=request.choices.model_copy(update={"model": reviewed_model or models.ORACLE})
        )
    task, base = _find_task(record.task.model_dump(), request.choices)
    if request.form is None:
        return _build_setup(request, task, base, _started_backend(home, request.state), AgentState())
    if request.form.view not in (AS_REVIEWED, *VIEWS):
        raise ChoiceError(
            f"view: unknown view {request.form.view!r} (choose from: {', '.join((AS_REVIEWED, *VIEWS))})"
        )
    view = "" if request.form.view == AS_REVIEWED else request.form.view
    # Ignore the sandbox state of the thread: the successor restores the record's, converted to the chosen back end.
    return _build_setup(request, task, base, None, AgentState(record=record.id, view=view))


def _build_setup(
    request: ServedRequest,
    task: Task,
    base: Task | None,
    started_backend: BackendName | None,
    initial_state: AgentState,
) -> ServedRunSetup:
    choices: Choices = request.choices
    _require_allowed("directory", choices.directory, DIRECTORIES_VARIABLE)
    _require_allowed("image", choices.image, IMAGES_VARIABLE)
    backend = _choose_backend(choices, started_backend)
    model, team, own = build_model("model", choices.model, task), None, ""
    spec, agent = _build_sandbox_spec(choices, base, backend), _find_agent(choices.model)
    spec = spec.model_copy(update={"restart_processes": choices.restart_processes})
    if agent is not None:
        spec = agent.mount(spec)
    if isinstance(choices, TeamChoices):
        if agent is not None:
            raise ChoiceError(f"model: {agent.name} works alone, not in a team (choose a model without it)")
        own = choices.supervisor_model if choices.supervisor else ""
        team = _build_team(choices, model, build_model("supervisor_model", own, task) if own else model)
    return ServedRunSetup(
        model=model,
        model_name=choices.model,
        sandbox=spec,
        run_id=f"{task.id}-{request.thread[-8:]}",
        settings=choices.model_dump(include=set(Settings.model_fields))
        | {"max_tokens": choices.max_tokens or None}
        | select_model_settings(choices.model, own)
        | {"agent": agent, "parallel_tool_calls": False},
        team=team,
        initial_state=initial_state,
    )


def _find_agent(model: str) -> ExternalAgent | None:
    """The external agent of a model's name; None for the built-in one. Raises ChoiceError."""
    name = models.parse_model_name(model)
    if not name.agent:
        return None
    try:
        return external_agent(name.agent, model_name=name.wire_name)
    except AgentProgramError as error:
        raise ChoiceError(f"model: {error}") from error


def _require_allowed(field: str, name: str, variable: str) -> None:
    if name and name not in (allowed := list_allowed_names(variable)):
        raise ChoiceError(
            f"{field}: {name!r:.200} is not allowed on this server (allowed: {', '.join(allowed) or 'none'}; "
            f"to allow it, list it in {variable} when you start the server)"
        )


def _find_task(brief: dict[str, Any], choices: Choices) -> tuple[Task, Task | None]:
    """The task of a resumed run, and the bundled task whose repository it started from, if any."""
    other = Task(id=brief["id"], instance={"problem_statement": ""})
    if choices.directory or choices.image:
        return other, None
    if (base := load_bundled_tasks().get(other.id)) is not None:
        return (base if brief["prompt"] == base.prompt else other), base
    raise ChoiceError(
        f"directory: missing for task {other.id}, which is not bundled (pass the repository or image that it started from)"
    )


def _replace_prompt(task: Task, prompt: str) -> Task:
    return task.model_copy(update={"instance": {**task.instance, "problem_statement": prompt}})


def _choose_record(store: RecordStore, requested_id: str) -> HandoffRecord:
    known = sorted(store.list_ids(), key=lambda name: _modified_at(store, name), reverse=True)
    if not known:
        raise ChoiceError(f"record: none in {store.root} yet (run 'agent' up to a handoff point)")
    if requested_id and requested_id not in known:
        listed = ", ".join(known[:_MAX_LISTED]) + (", …" if len(known) > _MAX_LISTED else "")
        raise ChoiceError(f"record: unknown record {requested_id!r} (choose from, newest first: {listed})")
    reserved = {
        name: _reservation_reason(store, name) for name in ([requested_id] if requested_id else known)
    }
    available = next((name for name, reason in reserved.items() if not reason), None)
    if available is None:
        name, reason = next(iter(reserved.items()))
        raise ChoiceError(
            f"record: {name} {reason}"
            if requested_id
            else f"record: none is available; the newest, {name}, {reason}"
        )
    return store.load(available)


def _reservation_reason(store: RecordStore, name: str) -> str:
    """Why a record is not available for takeover; empty if it is."""
    if store.is_review_pending(name):
        return (
            f"awaits its review (answer it on thread {store.load(name).thread_id}, or choose another record)"
        )
    review = store.load_review(name)
    return (
        "was refused in its review (choose another record)" if review and review.decision == "refuse" else ""
    )


def _modified_at(store: RecordStore, name: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (store.directory(name) / RECORD_FILE).stat().st_mtime_ns
    return 0  # it was removed meanwhile


def _started_backend(home: Home, state: AgentState) -> BackendName | None:
    """The back end of the state's snapshot; None without one, or for a process snapshot, which is converted."""
    snapshot = effects.find_snapshot(home.ledger, state.get("sandbox_state", ""))
    return snapshot.backend if snapshot and snapshot.backend != "process" else None


def _choose_backend(choices: Choices, started_backend: BackendName | None) -> BackendName:
    if started_backend is not None and choices.sandbox not in ("auto", started_backend):
        raise ChoiceError(
            f"sandbox: cannot resume a {started_backend} snapshot in {choices.sandbox} (choose auto or {started_backend})"
        )
    if started_backend is not None:
        backend = started_backend
    elif choices.sandbox != "auto":
        backend = choices.sandbox
    else:
        backend = "docker" if choices.image else sandbox.default_backend(allow_process=True)
    # Regardless of the model: a fork can replace the model's command with any other.
    if backend == "process" and not is_unisolated_allowed():
        raise ChoiceError(
            "sandbox: process runs commands as the server's user, with its files and network (choose host or docker, or "
            f"start the server with {UNISOLATED_VARIABLE}=1)"
        )
    return backend


def _build_sandbox_spec(choices: Choices, base: Task | None, backend: BackendName) -> SandboxSpec:
    if base is None:
        return _build_own_sandbox_spec(choices, backend)
    # Not in the home directory: the server may watch it for changed source and restart.
    work = ownership.ensure_root() / "tasks" / _task_version(base)
    if backend != "docker":
        work.mkdir(parents=True, exist_ok=True)
        with (work / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            base.check_out(work)
    return base.build_spec(backend, _OWNER, work)


def _task_version(task: Task) -> str:
    """An id of the repository's content, so that versions of this package do not share a checkout."""
    return hashlib.sha256(task.stream.read_bytes()).hexdigest()[:12] if task.stream else task.id


def _build_own_sandbox_spec(choices: Choices, backend: BackendName) -> SandboxSpec:
    if backend == "docker":
        if not choices.image:
            raise ChoiceError(
                "image: missing (docker needs an image with the repository at /testbed; or choose host)"
            )
        return SandboxSpec(backend=backend, image=choices.image, owner=_OWNER)
    directory = Path(choices.directory).expanduser().absolute()
    if not choices.directory or not (directory / ".git").exists():
        raise ChoiceError(
            f"directory: not a git repository on the server: {choices.directory or 'none'} (choose another)"
        )
    return SandboxSpec(backend=backend, directory=directory, owner=_OWNER)


def select_model_settings(name: str, supervisor: str) -> dict[str, Any]:
    """The settings that the model's entry states; no prices if those of the supervisor's model differ."""
    served = load_served_models()
    if (entry := served.get(models.split_agent(name)[1])) is None:
        return {}
    other = served.get(supervisor or models.split_agent(name)[1])
    same = other is not None and other.price == entry.price
    return {"window_tokens": entry.window, "prices": entry.prices if same else None}


def build_model(field: str, name: str, task: Task) -> BaseChatModel:
    base_url, served = os.environ.get("OPENAI_BASE_URL"), load_served_models()
    if not is_possible_model(name):
        raise ChoiceError(
            f"{field}: unknown model {name!r} (choose {', '.join((models.ORACLE, *served))} or openai:NAME)"
        )
    if models.is_builtin(name) and load_bundled_tasks().get(task.id) != task:
        raise ChoiceError(
            f"{field}: {models.ORACLE} supports only the bundled tasks and prompts (choose openai:NAME)"
        )
    try:
        models.check_model(name, (task,), base_url, served)
    except models.ModelNameError as error:
        raise ChoiceError(f"{field}: {error}") from error
    return models.build_model(name, task=task, base_url=base_url, models=served)


agent = serve("agent", AgentForm, Choices, _build_agent_setup, require_review)
team = serve("team", AgentForm, TeamChoices, _build_team_setup, require_review)
takeover = serve("takeover", TakeoverForm, TakeoverChoices, _build_takeover_setup, require_review)
