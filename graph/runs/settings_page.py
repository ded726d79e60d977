"""The table of all settings of the runtime, as Markdown.

`python -m langgraph_takeover.graph.runs.settings_page >docs/settings.md` regenerates it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from langgraph_takeover.graph.runs.api import OpenOptions, open_run
from langgraph_takeover.graph.runs.child_runs import Delegation
from langgraph_takeover.handoff.text.note_fields import read_field_docs
from langgraph_takeover.nodes.context.settings import AgentConfig, Prices
from langgraph_takeover.nodes.context.team_members import Agent, Team
from langgraph_takeover.nodes.deliver import DeliveryPolicy
from langgraph_takeover.sandbox.interface import SandboxSpec

_INTRODUCTION = """# Settings

All settings of the runtime: keyword arguments, or fields of the values that you pass. An invalid argument raises \
`SettingsError`; an invalid field of a value that you build, pydantic's `ValidationError`. `--help` lists the options of a command.\
 The default `–` means that the setting is not set.

The tables are generated from the code: `python -m langgraph_takeover.graph.runs.settings_page >docs/settings.md`.
"""
_UNITS = {
    "command_timeout_s": "seconds",
    "confirm_timeout_s": "seconds",
    "initial_pause_s": "seconds",
    "lease_s": "seconds",
    "keep_every_step_s": "seconds",
    "max_pause_s": "seconds",
    "max_seconds": "seconds",
    "model_timeout_s": "seconds",
    "max_tokens": "tokens",
    "window_tokens": "tokens",
    "observation_chars": "characters",
    "max_steps": "steps",
    "record_every_steps": "steps",
    "max_events": "events",
    "max_consecutive_turns": "turns",
    "max_cost": "currency of `prices`",
    "prompt": "currency per million tokens",
    "completion": "currency per million tokens",
    "cached": "currency per million tokens",
    "model_tries": "calls",
    "memory_mb": "MiB",
    "disk_mb": "MiB",
    "pids": "processes",
    "open_files": "files",
    "cpus": "cores",
    "depth": "levels",
    "max_depth": "levels",
    "max_parallel": "children",
    "max_tasks": "tasks",
    "attempts": "attempts",
    "rounds": "rounds",
    "resends": "requests",
}
_TYPES = {int: "integer", float: "number", str: "text", bool: "boolean"}
_BOUNDS: dict[type, tuple[str, str]] = {Gt: ("gt", ">"), Ge: ("ge", "≥"), Le: ("le", "≤")}


class Setting(NamedTuple):
    """One row of a table."""

    name: str
    type: str
    unit: str
    default: str
    meaning: str


def format_page() -> str:
    """Return the page."""
    shared = "of `run`, `resume`, `take_over`, `deliver` and `open_run`"
    tables = (
        (f"Agents: arguments {shared}", list_fields(AgentConfig, hidden=("delegation",))),
        (f"Runs: more arguments {shared}", list_arguments(OpenOptions, open_run, hidden=("model_name",))),
        ("`Prices`", list_fields(Prices)),
        ("`SandboxSpec`", list_fields(SandboxSpec)),
        ("Teams: arguments of `run_team` and `open_run`", list_fields(Team)),
        ("`Agent` of a team", list_fields(Agent)),
        ("`Delegation`", list_fields(Delegation)),
        ("`DeliveryPolicy`", list_fields(DeliveryPolicy)),
    )
    return "\n".join([_INTRODUCTION, *(_format_table(title, settings) for title, settings in tables)])


def list_fields(model: type[BaseModel], hidden: Sequence[str] = ()) -> list[Setting]:
    """List the fields of a model."""
    meanings = read_field_docs(model)
    return [
        _describe(name, field.annotation, field.metadata, _find_default(field), meanings[name])
        for name, field in model.model_fields.items()
        if name not in hidden
    ]


def list_arguments(options: type, function: Callable[..., Any], hidden: Sequence[str] = ()) -> list[Setting]:
    """List the keyword arguments that a TypedDict describes, with a function's defaults."""
    meanings, parameters = read_field_docs(options), inspect.signature(function).parameters
    return [
        _describe(name, annotation, (), parameters[name].default, meanings[name])
        for name, annotation in get_type_hints(options).items()
        if name not in hidden
    ]


def _find_default(field: FieldInfo) -> Any:
    return inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)


def _describe(name: str, annotation: Any, metadata: Sequence[Any], default: Any, meaning: str) -> Setting:
    inner, bounds = _split_type(annotation)
    text = " ".join([_format_type(inner), *_format_bounds([*metadata, *bounds])])
    is_number = inner in (int, float)
    return Setting(name, text, _UNITS[name] if is_number else "–", _format_default(default), meaning)


def _split_type(annotation: Any) -> tuple[Any, list[Any]]:
    """Return the type without None, and the bounds inside it."""
    if get_origin(annotation) is Annotated:
        inner, *bounds = get_args(annotation)
        return inner, bounds
    if get_origin(annotation) in (Union, UnionType):
        parts = [each for each in get_args(annotation) if each is not NoneType]
        if len(parts) == 1:
            return _split_type(parts[0])
    return annotation, []


def _format_type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return f"list of {_format_type(arguments[0])}"
    if origin is not None:
        return "function"
    return _TYPES.get(annotation, f"`{annotation.__name__}`")


def _format_bounds(metadata: Sequence[Any]) -> Iterator[str]:
    for bound in metadata:
        if type(bound) in _BOUNDS:
            attribute, sign = _BOUNDS[type(bound)]
            yield f"{sign} {getattr(bound, attribute):,}"


def _format_default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or value == ():
        return "–"
    if isinstance(value, tuple):
        return ", ".join(map(_format_default, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,g}" if isinstance(value, float) else f"{value:,}"
    return f"`{value}`" if value != "" else "empty"


def _format_table(title: str, settings: Sequence[Setting]) -> str:
    rows = [Setting("setting", "type", "unit", "default", "meaning"), Setting(*["---"] * 5)]
    rows += [
        each._replace(name=f"`{each.name}`", meaning=" ".join(each.meaning.split())) for each in settings
    ]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"## {title}\n\n{lines}\n"


if __name__ == "__main__":
    print(format_page(), end="")
