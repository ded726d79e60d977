"""Parameters of custom tools that the runtime fills instead of the model."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Container, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.types import Command
from pydantic import BaseModel

ParameterKind = Literal["state", "store", "runtime", "call_id", "config", "unknown"]
_FILTERED_NAMES = ("run_manager", "callbacks")
"""Names that LangChain fills by itself."""


class InjectedParameter(NamedTuple):
    """A parameter that the model neither sees nor fills."""

    name: str
    kind: ParameterKind
    field: str | None = None
    """The field of the state; None for the whole state."""
    is_required: bool = True


def list_injected_parameters(tool: BaseTool) -> tuple[InjectedParameter, ...]:
    """List the parameters of a tool that are annotated as injected, in its schema or its function."""
    schema = tool.args_schema
    fields = schema.model_fields if isinstance(schema, type) and issubclass(schema, BaseModel) else {}
    signature = _find_parameters(tool)
    found = []
    for name, annotation in {**_find_annotations(tool), **_find_schema_annotations(tool)}.items():
        kind, field = _classify(annotation)
        if kind is None:
            continue
        required = (
            fields[name].is_required()
            if name in fields
            else name not in signature or signature[name].default is inspect.Parameter.empty
        )
        found.append(InjectedParameter(name, kind, field, required))
    return tuple(found)


def find_state_problem(tool: BaseTool, fields: Container[str]) -> str:
    """Return which of the state's fields a tool needs in vain, in one line; empty if it has all."""
    for name, kind, field, is_required in list_injected_parameters(tool):
        if kind == "state" and field is not None and is_required and field not in fields:
            return (
                f"tool {tool.name!r}: parameter {name!r} needs the field {field!r}, which a run's state lacks "
                "(use a field of AgentState, or give the parameter a default)"
            )
    return ""


def find_tool_problem(tool: BaseTool) -> str:
    """Return why a tool cannot be used, with the cure, in one line; empty if nothing is known."""
    for parameter in list_injected_parameters(tool):
        where = f"tool {tool.name!r}: parameter {parameter.name!r}"
        if parameter.kind == "store":
            return f"{where} needs a LangGraph store, which a run does not have (let the tool open its own)"
        if parameter.kind == "unknown" and parameter.is_required:
            return f"{where} is an InjectedToolArg that nothing fills (give it a default, or bind its value)"
    annotation = _find_annotations(tool).get("return")
    if Command in (annotation, get_origin(annotation)):
        return (
            f"tool {tool.name!r}: it returns a Command, which cannot change a run's state (return its result)"
        )
    try:
        convert_to_openai_tool(tool)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        return f"tool {tool.name!r}: its parameters have no JSON schema: {reason} (use types that pydantic can describe)"
    return ""


def _find_function(tool: BaseTool) -> Any:
    wrapped = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    if wrapped is not None:
        return wrapped
    return tool._arun if type(tool)._run is BaseTool._run else tool._run


def _find_parameters(tool: BaseTool) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(_find_function(tool)).parameters)
    except (TypeError, ValueError):
        return {}


def _find_annotations(tool: BaseTool) -> dict[str, Any]:
    """Return the annotations of the tool's function; none if a name in them is unknown, as to LangChain."""
    try:
        hints = get_type_hints(_find_function(tool), include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}
    return {name: hint for name, hint in hints.items() if name not in _FILTERED_NAMES}


def _find_schema_annotations(tool: BaseTool) -> dict[str, Any]:
    schema = tool.args_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return {}
    try:
        return get_type_hints(schema, include_extras=True)
    except (NameError, TypeError):
        return {}


def _classify(annotation: Any) -> tuple[ParameterKind | None, str | None]:
    """Return the kind of an injected parameter, None for others; and the field of the state that it names."""
    # A tool can only name LangGraph's markers if its program has imported them, which takes half a second.
    prebuilt = sys.modules.get("langgraph.prebuilt")
    kind: ParameterKind | None = None
    for marker in _iterate_markers(annotation):
        if prebuilt is not None:
            if _is_a(marker, prebuilt.InjectedState):
                return "state", getattr(marker, "field", None)
            if _is_a(marker, prebuilt.InjectedStore):
                return "store", None
            if _is_a(marker, prebuilt.ToolRuntime):
                return "runtime", None
        if _is_a(marker, InjectedToolCallId):
            return "call_id", None
        if _is_a(marker, InjectedToolArg):
            kind = "unknown"
        elif marker is RunnableConfig:
            kind = "config"
    return kind, None


def _iterate_markers(annotation: Any) -> Iterator[Any]:
    """Yield an annotation, its origin, and what `Annotated`, unions and generics contain."""
    yield annotation
    if (origin := get_origin(annotation)) is not None:
        yield origin
        for part in get_args(annotation):
            yield from _iterate_markers(part)


def _is_a(marker: Any, kind: type) -> bool:
    return isinstance(marker, kind) or (isinstance(marker, type) and issubclass(marker, kind))
