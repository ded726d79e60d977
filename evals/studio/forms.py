"""Forms that LangGraph Studio renders for runs and takeovers."""

from __future__ import annotations

import json
import os
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from langgraph_takeover.evals import models
from langgraph_takeover.evals.tasks import BUNDLED, Task, load_tasks
from langgraph_takeover.graph.studio_factory import INPUT_ONLY, format_error_line
from langgraph_takeover.graph.usage_errors import ServedRunError
from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.names import ActionProtocol
from langgraph_takeover.handoff.records.record import Review
from langgraph_takeover.handoff.views import VIEWS
from langgraph_takeover.nodes.context.agent_options import AgentOptions
from langgraph_takeover.sandbox.interface import RestartPolicy

MODELS_VARIABLE = "TAKEOVER_MODELS"
MODELS_FILE_VARIABLE = "TAKEOVER_MODELS_FILE"
DIRECTORIES_VARIABLE = "TAKEOVER_STUDIO_DIRECTORIES"
IMAGES_VARIABLE = "TAKEOVER_STUDIO_IMAGES"
UNISOLATED_VARIABLE = "TAKEOVER_STUDIO_UNISOLATED"
AS_REVIEWED = "as reviewed"
_OTHER_MODELS = (
    f"The entries of {MODELS_FILE_VARIABLE} have endpoints of their own. openai:NAME is any model at OPENAI_BASE_URL, with "
    "OPENAI_API_KEY from the server's environment. AGENT:MODEL, such as codex:openai:NAME, runs an external agent that is "
    "installed on the server."
)
_EXAMPLE = '{"decision": "approve", "view": "structured"}'


class ChoiceError(ServedRunError):
    """An invalid value in a form."""


@cache
def load_bundled_tasks() -> dict[str, Task]:
    return {task.id: task for task in load_tasks(BUNDLED)}


@cache
def load_served_models() -> models.Models:
    """The entries of the models file in the server's environment. Raises ModelsFileError."""
    path = os.environ.get(MODELS_FILE_VARIABLE)
    return models.load_models(Path(path)) if path else {}


def _list_models() -> list[str]:
    names = os.environ.get(MODELS_VARIABLE, "openai:gpt-5").split(",")
    known = [models.ORACLE, *load_served_models(), *(name.strip() for name in names if name.strip())]
    installed = [each.name for each in ADAPTERS.values() if shutil.which(each.program.executable)]
    return [
        *known,
        *(
            f"{agent}:{name}"
            for agent in installed
            for name in known
            if ":" not in name or name == models.ORACLE
        ),
    ]


def list_allowed_names(variable: str) -> tuple[str, ...]:
    """The directories or images that clients may choose, from the server's environment."""
    return tuple(name.strip() for name in os.environ.get(variable, "").split(",") if name.strip())


def is_unisolated_allowed() -> bool:
    """Whether the server's environment allows agents without isolation; clients cannot change it."""
    return os.environ.get(UNISOLATED_VARIABLE) == "1"


def _make_enum(*values: str) -> dict[str, Any]:
    # Not a Literal: the values are known only at run time, and a client may name a model outside the list.
    return {"enum": [*values]}


class Form(BaseModel):
    """Fields that a user fills in; errors are reported in one line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _reject_in_one_line(cls, value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise ChoiceError(format_error_line(error)) from error


class AgentForm(Form):
    """The task; press Run for a bundled one."""

    model_config = ConfigDict(title="Task")

    task_id: Annotated[str, INPUT_ONLY] = Field(
        default="rota__rota-23",
        title="Task",
        description="Bundled task: its repository, and its prompt unless you enter one.",
        json_schema_extra=_make_enum(*load_bundled_tasks()),
    )
    prompt: Annotated[str, INPUT_ONLY] = Field(
        default="",
        title="Custom prompt",
        description="Empty: the prompt of the bundled task, the only one that the built-in model supports.",
    )


class TakeoverForm(Form):
    """The record to take over; press Run for the newest available one."""

    model_config = ConfigDict(title="Takeover")

    record: str = Field(
        default="",
        title="Record",
        description="Id of a handoff record, as listed under 'records' of a run. Empty: the newest record that is "
        "approved or needs no review.",
    )
    view: str = Field(
        default=AS_REVIEWED,
        title="View",
        description="What the successor sees of the earlier work. 'as reviewed': the reviewer's choice, or structured.",
        json_schema_extra=_make_enum(AS_REVIEWED, *VIEWS),
    )


class Choices(Form):
    """Settings of the agent, which each run needs anew, including a resumed one."""

    model_config = ConfigDict(title="Settings")

    model: str = Field(
        default=models.ORACLE,
        title="Model",
        description=f"builtin:oracle needs no key and supports the bundled tasks. {_OTHER_MODELS}",
        json_schema_extra=_make_enum(*_list_models()),
    )
    sandbox: Literal["auto", "host", "docker", "process"] = Field(
        default="auto",
        title="Sandbox",
        description="auto: the back end of the thread or record; otherwise host if bubblewrap works, or process, which "
        f"isolates nothing and requires a server started with {UNISOLATED_VARIABLE}=1.",
        json_schema_extra=_make_enum(
            "auto", "host", "docker", *(["process"] if is_unisolated_allowed() else [])
        ),
    )
    restart_processes: RestartPolicy = Field(
        default="never",
        title="Background processes",
        description="What ran in the background when the sandbox was saved, such as a server. never: the agent learns "
        "what no longer runs. ask: you choose what starts again. always: all of it starts again.",
    )
    policy: Literal["record", "stop", "review"] = Field(
        default="record",
        title="At a handoff point",
        description="record: save a record and continue. stop: save it and end. review: save it and wait for your review.",
    )
    protocol: ActionProtocol = Field(
        default=AgentOptions.protocol,
        title="Protocol",
        description="Format of actions: text, or the provider's tool calls.",
    )
    offer_handoff: bool = Field(
        default=False, title="Offer a handoff", description="Let the agent request a handoff."
    )
    max_steps: int = Field(default=100, gt=0, title="Maximum steps")
    max_tokens: int = Field(default=0, ge=0, title="Maximum tokens", description="0: no limit.")
    max_seconds: float = Field(default=3600.0, gt=0, title="Maximum seconds")
    command_timeout_s: float = Field(
        default=AgentOptions.command_timeout_s, gt=0, title="Command timeout in seconds"
    )
    directory: str = Field(
        default="",
        title="Custom repository",
        description=f"Git repository from the server's {DIRECTORIES_VARIABLE}, for host and process. Empty: the "
        "repository of the bundled task.",
        json_schema_extra=_make_enum("", *list_allowed_names(DIRECTORIES_VARIABLE)),
    )
    image: str = Field(
        default="",
        title="Custom image",
        description=f"Docker image from the server's {IMAGES_VARIABLE}, with a git repository at /testbed, for docker. "
        "Empty: the image of the bundled task.",
        json_schema_extra=_make_enum("", *list_allowed_names(IMAGES_VARIABLE)),
    )


class TeamChoices(Choices):
    """Settings of a team; all agents use the chosen model, a supervisor may have another."""

    supervisor: bool = Field(
        default=False, title="Supervisor", description="Add an agent that starts and chooses who continues."
    )
    supervisor_model: str = Field(
        default="",
        title="Supervisor's model",
        description="Empty: the model of the other agents.",
        json_schema_extra=_make_enum("", *_list_models()),
    )
    max_consecutive_turns: int = Field(
        default=3, gt=0, title="Maximum turns in a row", description="Then the turn passes on automatically."
    )
    enable_handoff_tool: bool = Field(
        default=False, title="Handoff tool", description="Let agents end their turns by a handoff."
    )
    share_only_tool_results: bool = Field(
        default=False,
        title="Share results only",
        description="After a turn ends automatically, show the other agents only its results, not its messages.",
    )


class TakeoverChoices(Choices):
    """Settings of the successor."""

    model: str = Field(
        default=AS_REVIEWED,
        title="Model",
        description=f"'{AS_REVIEWED}': the reviewer's choice, or {models.ORACLE}. {_OTHER_MODELS}",
        json_schema_extra=_make_enum(AS_REVIEWED, *_list_models()),
    )


def is_possible_model(name: str) -> bool:
    """Whether a client may choose the model: a known one, or any at the server's own endpoint."""
    if name in _list_models():
        return True
    agent, model = models.split_agent(name)
    if agent and model in _list_models():
        return True
    # A client's own address would receive the server's key.
    return re.fullmatch(r"openai:.+", model) is not None and models.parse_model_name(name).url is None


def require_review(answer: Any) -> None:
    """Check a person's answer to a review. Raises ChoiceError."""
    if not isinstance(answer, dict) or not answer:
        raise ChoiceError(f"review: {json.dumps(answer)} is not an answer (use an object such as {_EXAMPLE})")
    try:
        review = Review.model_validate(answer)
    except ValidationError as error:
        raise ChoiceError(f"{format_error_line(error)} (example: {_EXAMPLE})") from error
    if review.successor and not is_possible_model(review.successor):
        raise ChoiceError(
            f"successor: unknown model {review.successor!r} "
            f"(use {', '.join((models.ORACLE, *load_served_models()))} or openai:NAME, or omit it)"
        )
