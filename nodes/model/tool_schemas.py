"""JSON schemas of an agent's tools, and the parameters of custom tools that the runtime fills instead of the model."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Container, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.types import Command
from pydantic import BaseModel

from langgraph_takeover.nodes.model.actions import EDITOR_COMMANDS

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


def build_tool_schemas(
    *, offer_handoff: bool, extra_tools: Sequence[BaseTool] = (), agents: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the schemas of all tools; `agents` are the possible targets of a handoff."""
    text = {"type": "string"}
    shell = {
        "command": {
            **text,
            "description": "A bash command. Directory and variables persist between commands.",
        }
    }
    editor = {
        "command": {"type": "string", "enum": list(EDITOR_COMMANDS)},
        "path": {**text, "description": "Relative to the repository, or absolute."},
        "content": {**text, "description": "create: the content of the new file."},
        "old": {**text, "description": "str_replace: text that occurs exactly once in the file."},
        "new": {**text, "description": "str_replace, insert: the new text."},
        "line": {"type": "integer", "description": "insert: insert after this line; 0 inserts at the top."},
        "start": {"type": "integer", "description": "view: first line."},
        "end": {"type": "integer", "description": "view: last line."},
    }
    message = {"message": {**text, "description": "What you did, and what remains to be done."}}
    tools = [
        _build_tool_schema("shell", "Run a command in a shell in the repository.", shell, ["command"]),
        _build_tool_schema("editor", "View or change a file.", editor, ["command", "path"]),
        _build_tool_schema("finish", "Finish the task, once it is done and verified.", message, []),
    ]
    if offer_handoff:
        to = {"to": {"type": "string", "enum": [*agents], "description": "The agent that continues."}}
        properties = {**message, **to} if agents else message
        tools.append(_build_tool_schema("handoff", "Let another agent continue from here.", properties, []))
    return [*tools, *map(build_custom_schema, extra_tools)]


def build_custom_schema(tool: BaseTool) -> dict[str, Any]:
    """Return the schema of a custom tool, without the parameters that the runtime fills."""
    schema = convert_to_openai_tool(tool)
    hidden = {each.name for each in list_injected_parameters(tool)}
    parameters = schema["function"].get("parameters")
    if not parameters or not hidden.intersection(parameters.get("properties", ())):
        return schema
    properties = {name: value for name, value in parameters["properties"].items() if name not in hidden}
    required = [name for name in parameters.get("required", ()) if name not in hidden]
    shown = {**parameters, "properties": properties, "required": required}
    return {**schema, "function": {**schema["function"], "parameters": shown}}


def _build_tool_schema(
    name: str, description: str, properties: dict[str, Any], required: list[str]
) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


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
    """Return which field a tool needs and the state lacks, with the cure, in one line; empty if none."""
    for name, kind, field, is_required in list_injected_parameters(tool):
        if kind == "state" and field is not None and is_required and field not in fields:
            return (
                f"tool {tool.name!r}: parameter {name!r} needs the field {field!r}, which a run's state lacks "
                "(use a field of AgentState, or give the parameter a default)"
            )
    return ""


def find_tool_problem(tool: BaseTool) -> str:
    """Return why a tool cannot be used, with the cure, in one line; empty if no problem is known."""
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
        build_custom_schema(tool)
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
