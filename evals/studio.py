"""What `langgraph.json` names: both graphs with forms to fill in, for LangGraph Studio and any client of its server."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import sandbox
from evals import models
from evals.tasks import BUNDLED, Task, load_tasks
from graph import Home
from graph.serving import ONCE, Asked, Equipment, RunFailed, one_line, serve
from handoff.ledger import machines
from handoff.record import RECORD_FILE, HandoffRecord, RecordStore
from handoff.views import VIEWS
from nodes.state import AgentState
from sandbox import depot
from sandbox.machine import BackendName, SandboxSpec

MODELS_VARIABLE = "TAKEOVER_MODELS"
AS_REVIEWED = "as reviewed"
_OWNER = "studio"
_MOST_SHOWN = 10


class BadChoice(RunFailed):
    """Something that was chosen in a form and cannot be; the text says what can."""


@cache
def bundled() -> dict[str, Task]:
    return {task.id: task for task in load_tasks(BUNDLED)}


def _offered_models() -> list[str]:
    listed = os.environ.get(MODELS_VARIABLE, "openai:gpt-5").split(",")
    return [models.ORACLE, *(name.strip() for name in listed if name.strip())]


def _one_of(*offered: str) -> dict[str, Any]:
    # No Literal: these are known only when the program runs, and a client may name a model that is not offered.
    return {"enum": [*offered]}


class Form(BaseModel):
    """Fields that a person fills in; what cannot be is told in one line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _told_in_one_line(cls, value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise BadChoice(one_line(error)) from error


class AgentForm(Form):
    """A task to work on: press Run for a bundled one."""

    model_config = ConfigDict(title="What to work on")

    task_id: Annotated[str, ONCE] = Field(
        default="rota__rota-23",
        title="Task",
        description="A bundled task: its repository, and its prompt where you give none.",
        json_schema_extra=_one_of(*bundled()),
    )
    prompt: Annotated[str, ONCE] = Field(
        default="",
        title="Prompt of your own",
        description="Empty: the bundled task's own. The built-in model knows no other.",
    )


class TakeoverForm(Form):
    """A record to take over: press Run for the newest there is."""

    model_config = ConfigDict(title="What to take over")

    record: str = Field(
        default="",
        title="Record",
        description="The id of a handoff record, as a run lists them under 'records'. Empty: the newest.",
    )
    view: str = Field(
        default=AS_REVIEWED,
        title="View",
        description="What the successor is shown of the earlier work; 'as reviewed' is what a reviewer chose, "
        "else structured.",
        json_schema_extra=_one_of(AS_REVIEWED, *VIEWS),
    )


class Choices(Form):
    """How the agent runs; it is chosen anew for every run, also for one that goes on."""

    model_config = ConfigDict(title="How to run")

    model: str = Field(
        default=models.ORACLE,
        title="Model",
        description="builtin:oracle needs no key and knows the bundled tasks; openai:NAME is any other, at "
        "OPENAI_BASE_URL with OPENAI_API_KEY of the server's environment.",
        json_schema_extra=_one_of(*_offered_models()),
    )
    sandbox: Literal["auto", "host", "docker", "process"] = Field(
        default="auto",
        title="Sandbox",
        description="auto: as the thread or the record began, else host where bubblewrap works, else process, "
        "which isolates nothing.",
    )
    policy: Literal["record", "stop", "review"] = Field(
        default="record",
        title="At a handoff point",
        description="record: keep a record and go on; stop: keep it and end; review: keep it and wait for you.",
    )
    protocol: Literal["text", "native"] = Field(
        default="text",
        title="Protocol",
        description="How the model acts: text, or the provider's tool calls.",
    )
    offer_handoff: bool = Field(
        default=False, title="Offer a handoff", description="Let the agent ask for another to continue."
    )
    max_steps: int = Field(default=100, gt=0, title="Most steps")
    max_tokens: int = Field(default=0, ge=0, title="Most tokens", description="0: no limit.")
    max_seconds: float = Field(default=3600.0, gt=0, title="Most seconds")
    command_timeout_s: float = Field(default=120.0, gt=0, title="Seconds a command may take")
    directory: str = Field(
        default="",
        title="Repository of your own",
        description="A directory on the server, a git repository, for host and process. Empty: the bundled task's.",
    )
    image: str = Field(
        default="",
        title="Image of your own",
        description="A Docker image with a git repository at /testbed, for docker. Empty: the bundled task's.",
    )
    allow_unisolated: bool = Field(
        default=False,
        title="Allow no isolation",
        description="Let a model other than the built-in one run commands in the process sandbox: as you.",
    )


class TakeoverChoices(Choices):
    """How the successor runs."""

    model: str = Field(
        default=AS_REVIEWED,
        title="Model",
        description=f"'{AS_REVIEWED}' is the successor that a reviewer named, else {models.ORACLE}; openai:NAME is "
        "any other, at OPENAI_BASE_URL with OPENAI_API_KEY of the server's environment.",
        json_schema_extra=_one_of(AS_REVIEWED, *_offered_models()),
    )


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


def _equip_takeover(home: Home, asked: Asked) -> Equipment:
    record = _record(home.records, asked.form.record if asked.form else asked.state["record"])
    if asked.choices.model == AS_REVIEWED:
        named = record.review.successor if record.review else ""
        asked = asked._replace(choices=asked.choices.model_copy(update={"model": named or models.ORACLE}))
    task, base = _task_known_by(record.task.model_dump(), asked.choices)
    begun = _machine_of(home, asked.state) or record.snapshot.backend
    if asked.form is None:
        return _equipment(asked, task, base, begun, AgentState())
    if asked.form.view not in (AS_REVIEWED, *VIEWS):
        raise BadChoice(
            f"view: there is no {asked.form.view!r}; there are {', '.join((AS_REVIEWED, *VIEWS))}"
        )
    view = "" if asked.form.view == AS_REVIEWED else asked.form.view
    return _equipment(asked, task, base, begun, AgentState(record=record.id, view=view))


def _equipment(
    asked: Asked, task: Task, base: Task | None, begun: BackendName | None, first: AgentState
) -> Equipment:
    choices: Choices = asked.choices
    backend = _backend(choices, begun)
    return Equipment(
        model=_model(choices, task),
        model_name=choices.model,
        sandbox=_machine(choices, base, backend),
        run_id=f"{task.id}-{asked.thread[-8:]}",
        settings={
            "policy": choices.policy,
            "protocol": choices.protocol,
            "offer_handoff": choices.offer_handoff,
            "max_steps": choices.max_steps,
            "max_tokens": choices.max_tokens or None,
            "max_seconds": choices.max_seconds,
            "command_timeout_s": choices.command_timeout_s,
        },
        first=first,
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
    return store.load(asked or known[0])


def _age(store: RecordStore, name: str) -> int:
    return (store.directory(name) / RECORD_FILE).stat().st_mtime_ns


def _machine_of(home: Home, state: AgentState) -> BackendName | None:
    """The kind of machine that the state's own is, where one is kept."""
    kept = machines.find(home.ledger, state.get("machine", ""))
    return kept.backend if kept else None


def _backend(choices: Choices, begun: BackendName | None) -> BackendName:
    if begun is not None and choices.sandbox not in ("auto", begun):
        raise BadChoice(f"sandbox: the machine to go on with is of {begun}; choose auto or {begun}")
    if begun is not None:
        backend = begun
    elif choices.sandbox != "auto":
        backend = choices.sandbox
    else:
        backend = "docker" if choices.image else sandbox.default_backend()
    if backend == "process" and choices.model != models.ORACLE and not choices.allow_unisolated:
        raise BadChoice(
            f"sandbox: process would run the commands of {choices.model} as you, with your files and your network; "
            "choose host or docker, or allow no isolation"
        )
    return backend


def _machine(choices: Choices, base: Task | None, backend: BackendName) -> SandboxSpec:
    if base is None:
        return _own_machine(choices, backend)
    # Not in the home, which may lie where the server watches for changed source, and then starts anew.
    work = depot.place() / "tasks" / _version(base)
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
    if choices.model != models.ORACLE and not re.fullmatch(r"openai:.+", choices.model):
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


agent = serve("agent", AgentForm, Choices, _equip_agent)
takeover = serve("takeover", TakeoverForm, TakeoverChoices, _equip_takeover)
