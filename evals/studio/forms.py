"""What a person fills in to have an agent run, or take over: the forms that LangGraph Studio renders."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from langgraph_takeover.evals import models
from langgraph_takeover.evals.tasks import BUNDLED, Task, load_tasks
from langgraph_takeover.graph.errors import ServedRunError
from langgraph_takeover.graph.studio.factory import INPUT_ONLY, format_error_line
from langgraph_takeover.handoff.records.record import Review
from langgraph_takeover.handoff.trace.action import ActionProtocol
from langgraph_takeover.handoff.views import VIEWS
from langgraph_takeover.nodes.context.options import AgentOptions

MODELS_VARIABLE = "TAKEOVER_MODELS"
DIRECTORIES_VARIABLE = "TAKEOVER_STUDIO_DIRECTORIES"
IMAGES_VARIABLE = "TAKEOVER_STUDIO_IMAGES"
UNISOLATED_VARIABLE = "TAKEOVER_STUDIO_UNISOLATED"
AS_REVIEWED = "as reviewed"
_EXAMPLE = '{"decision": "approve", "view": "structured"}'


class ChoiceError(ServedRunError):
    """Something that was chosen in a form and cannot be; the text says what can."""


@cache
def load_bundled_tasks() -> dict[str, Task]:
    return {task.id: task for task in load_tasks(BUNDLED)}


def _list_models() -> list[str]:
    listed = os.environ.get(MODELS_VARIABLE, "openai:gpt-5").split(",")
    return [models.ORACLE, *(name.strip() for name in listed if name.strip())]


def list_allowed_names(variable: str) -> tuple[str, ...]:
    """What the server's environment lists: the only directories, or images, that a client can choose."""
    return tuple(name.strip() for name in os.environ.get(variable, "").split(",") if name.strip())


def is_unisolated_allowed() -> bool:
    """Whether whoever started the server lets agents run without isolation; no client can."""
    return os.environ.get(UNISOLATED_VARIABLE) == "1"


def _make_enum(*values: str) -> dict[str, Any]:
    # No Literal: these are known only when the program runs, and a client may name a model that is not offered.
    return {"enum": [*values]}


class Form(BaseModel):
    """Fields that a person fills in; what cannot be is told in one line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _reject_in_one_line(cls, value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise ChoiceError(format_error_line(error)) from error


class AgentForm(Form):
    """A task to work on: press Run for a bundled one."""

    model_config = ConfigDict(title="What to work on")

    task_id: Annotated[str, INPUT_ONLY] = Field(
        default="rota__rota-23",
        title="Task",
        description="A bundled task: its repository, and its prompt where you give none.",
        json_schema_extra=_make_enum(*load_bundled_tasks()),
    )
    prompt: Annotated[str, INPUT_ONLY] = Field(
        default="",
        title="Prompt of your own",
        description="Empty: the bundled task's own. The built-in model knows no other.",
    )


class TakeoverForm(Form):
    """A record to take over: press Run for the newest that may be."""

    model_config = ConfigDict(title="What to take over")

    record: str = Field(
        default="",
        title="Record",
        description="The id of a handoff record, as a run lists them under 'records'. Empty: the newest that was "
        "approved, or that no review was asked for.",
    )
    view: str = Field(
        default=AS_REVIEWED,
        title="View",
        description="What the successor is shown of the earlier work; 'as reviewed' is what a reviewer chose, "
        "else structured.",
        json_schema_extra=_make_enum(AS_REVIEWED, *VIEWS),
    )


class Choices(Form):
    """How the agent runs; it is chosen anew for every run, also for one that goes on."""

    model_config = ConfigDict(title="How to run")

    model: str = Field(
        default=models.ORACLE,
        title="Model",
        description="builtin:oracle needs no key and knows the bundled tasks; openai:NAME is any other, at "
        "OPENAI_BASE_URL with OPENAI_API_KEY of the server's environment.",
        json_schema_extra=_make_enum(*_list_models()),
    )
    sandbox: Literal["auto", "host", "docker", "process"] = Field(
        default="auto",
        title="Sandbox",
        description="auto: as the thread or the record began, else host where bubblewrap works, else process, "
        f"which isolates nothing and is refused unless the server was started with {UNISOLATED_VARIABLE}=1.",
        json_schema_extra=_make_enum(
            "auto", "host", "docker", *(["process"] if is_unisolated_allowed() else [])
        ),
    )
    policy: Literal["record", "stop", "review"] = Field(
        default="record",
        title="At a handoff point",
        description="record: keep a record and go on; stop: keep it and end; review: keep it and wait for you.",
    )
    protocol: ActionProtocol = Field(
        default=AgentOptions.protocol,
        title="Protocol",
        description="How the model acts: text, or the provider's tool calls.",
    )
    offer_handoff: bool = Field(
        default=False, title="Offer a handoff", description="Let the agent ask for another to continue."
    )
    max_steps: int = Field(default=100, gt=0, title="Most steps")
    max_tokens: int = Field(default=0, ge=0, title="Most tokens", description="0: no limit.")
    max_seconds: float = Field(default=3600.0, gt=0, title="Most seconds")
    command_timeout_s: float = Field(
        default=AgentOptions.command_timeout_s, gt=0, title="Seconds a command may take"
    )
    directory: str = Field(
        default="",
        title="Repository of your own",
        description=f"One of the git repositories that the server's {DIRECTORIES_VARIABLE} lists, for host and "
        "process. Empty: the bundled task's.",
        json_schema_extra=_make_enum("", *list_allowed_names(DIRECTORIES_VARIABLE)),
    )
    image: str = Field(
        default="",
        title="Image of your own",
        description=f"One of the Docker images that the server's {IMAGES_VARIABLE} lists, with a git repository at "
        "/testbed, for docker. Empty: the bundled task's.",
        json_schema_extra=_make_enum("", *list_allowed_names(IMAGES_VARIABLE)),
    )


class TeamChoices(Choices):
    """How the agents run; each is of the chosen model."""

    supervisor: bool = Field(
        default=False, title="Supervisor", description="A third agent begins, and chooses who goes on."
    )
    max_consecutive_turns: int = Field(
        default=3, gt=0, title="Most turns in a row", description="Then the turn passes on by itself."
    )
    enable_handoff_tool: bool = Field(
        default=False, title="Handoff tool", description="Let every agent end its turns by handing over."
    )
    share_only_tool_results: bool = Field(
        default=False,
        title="Share results only",
        description="Of turns that ran out, show the others what the actions showed, and not what was said.",
    )


class TakeoverChoices(Choices):
    """How the successor runs."""

    model: str = Field(
        default=AS_REVIEWED,
        title="Model",
        description=f"'{AS_REVIEWED}' is the successor that a reviewer named, else {models.ORACLE}; openai:NAME is "
        "any other, at OPENAI_BASE_URL with OPENAI_API_KEY of the server's environment.",
        json_schema_extra=_make_enum(AS_REVIEWED, *_list_models()),
    )


def is_possible_model(name: str) -> bool:
    return name == models.ORACLE or re.fullmatch(r"openai:.+", name) is not None


def require_review(answer: Any) -> None:
    """Raises ChoiceError where a person's answer to a review is none, or names a model that there is not."""
    if not isinstance(answer, dict) or not answer:
        raise ChoiceError(f"Review: an answer is an object such as {_EXAMPLE}, not {json.dumps(answer)}")
    try:
        review = Review.model_validate(answer)
    except ValidationError as error:
        raise ChoiceError(f"{format_error_line(error)}; answer for instance {_EXAMPLE}") from error
    if review.successor and not is_possible_model(review.successor):
        raise ChoiceError(
            f"successor: there is no {review.successor!r}; name {models.ORACLE} or openai:NAME, or leave it out"
        )
