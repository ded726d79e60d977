"""The arguments of the tools: checked and bounded before anything runs."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, TypeAdapter, ValidationError, model_validator
from pydantic.json_schema import GenerateJsonSchema

from langgraph_takeover.base.values import Frozen, TakeoverError
from langgraph_takeover.handoff.ledger.leases import MAX_ID_LENGTH, ThreadNameError, check_name
from langgraph_takeover.handoff.records.envelope import Understanding
from langgraph_takeover.handoff.text.fence import format_entry
from langgraph_takeover.handoff.views import VIEWS

MAX_PAGE_CHARS = 50_000
MAX_PATCH_CHARS = 200_000
MAX_MESSAGE_CHARS = 4_000
_MAX_QUERY_CHARS = 500
_MAX_LISTED = 100
_MIN_STATEMENT, _MAX_STATEMENT = 8, 2_000
_Model = TypeVar("_Model", bound=Frozen)


class ToolArgumentError(TakeoverError, ValueError):
    """The arguments of a tool call are invalid; one line."""


def _check_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character")
    return text


def _check_name(name: str) -> str:
    try:
        check_name(name)
    except ThreadNameError as error:
        raise ValueError(str(error)) from None
    return name


_Name = Annotated[str, StringConstraints(max_length=MAX_ID_LENGTH), AfterValidator(_check_name)]
_Record = Annotated[_Name, Field(description="Id of a record, as list_records shows it.")]
_Handoff = Annotated[_Name, Field(description="Id of a handoff, as list_records shows it.")]
_Key = Annotated[
    _Name, Field(description="A new name for this request. Repeat it when you repeat the request unchanged.")
]
_Statement = Annotated[
    str,
    StringConstraints(min_length=_MIN_STATEMENT, max_length=_MAX_STATEMENT),
    AfterValidator(_check_text),
]


class ListRecordsArguments(Frozen):
    after: Annotated[
        str,
        StringConstraints(max_length=MAX_ID_LENGTH),
        Field(description="The `next` of the page before; empty for the first page."),
    ] = ""
    limit: int = Field(default=20, ge=1, le=_MAX_LISTED, description="Maximum number of records.")


class ShowRecordArguments(Frozen):
    record: _Record
    view: Annotated[str, StringConstraints(max_length=50)] = Field(
        default="structured", description=f"What to show: {', '.join(VIEWS)}."
    )
    offset: int = Field(default=0, ge=0, le=10**9, description="Start of the page, in characters.")
    limit: int = Field(
        default=20_000, ge=1_000, le=MAX_PAGE_CHARS, description="Length of the page, in characters."
    )


class RecallRecordArguments(Frozen):
    record: _Record
    query: Annotated[
        str, StringConstraints(min_length=1, max_length=_MAX_QUERY_CHARS), AfterValidator(_check_text)
    ] = Field(description="Names of events, such as e3 or e3-e7, or words to search for.")


class OfferArguments(Frozen):
    record: _Record
    target: _Name = Field(description="Name of the agent that receives the work.")
    message: Annotated[str, StringConstraints(max_length=MAX_MESSAGE_CHARS), AfterValidator(_check_text)] = (
        Field(default="", description="Your message to the target.")
    )
    idempotency_key: _Key


class AcceptArguments(Frozen):
    handoff: _Handoff
    goal: _Statement = Field(description="What must be true when the task is done.")
    next_step: _Statement = Field(description="What you will do first.")
    verify_first: _Statement = Field(description="Which claim you will check before you rely on it.")
    idempotency_key: _Key

    @model_validator(mode="after")
    def _check_statements(self) -> Self:
        try:
            self.build_understanding()
        except ValidationError:
            raise ValueError(
                f"goal, next_step and verify_first need at least {_MIN_STATEMENT} characters each"
            ) from None
        return self

    def build_understanding(self) -> Understanding:
        """Return the confirmation, each statement as one line."""
        names = Understanding.model_fields
        return Understanding(**{name: format_entry(getattr(self, name))[:_MAX_STATEMENT] for name in names})


class CompleteArguments(Frozen):
    handoff: _Handoff
    message: Annotated[
        str, StringConstraints(min_length=1, max_length=MAX_MESSAGE_CHARS), AfterValidator(_check_text)
    ] = Field(description="Summary of the outcome, for the next agent.")
    patch: Annotated[str, StringConstraints(max_length=MAX_PATCH_CHARS), AfterValidator(_check_text)] = Field(
        default="", description="Your changes to the record's files, as git diff prints them."
    )
    idempotency_key: _Key


class _PlainSchema(GenerateJsonSchema):
    """A schema without the titles that pydantic makes of field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def build_input_schema(model: type[Frozen]) -> dict[str, Any]:
    """Build the JSON Schema of a tool's arguments."""
    schema = TypeAdapter(model).json_schema(schema_generator=_PlainSchema)
    return {name: value for name, value in schema.items() if name not in ("title", "description")}


def parse_arguments(tool: str, model: type[_Model], arguments: dict[str, Any]) -> _Model:
    """Check the arguments of a call. Raises ToolArgumentError, which does not repeat their values."""
    try:
        return model.model_validate(arguments, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part)[:60] for part in first["loc"])
        problem = " ".join(str(first["msg"]).split())[:300]
        raise ToolArgumentError(f"{tool}: {field}: {problem}" if field else f"{tool}: {problem}") from None
