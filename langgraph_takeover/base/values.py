"""The base classes of all values and of all errors."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A value: immutable, and strict about its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TakeoverError(Exception):
    """Base class of all errors that this project raises on purpose.

    Example:
        >>> from langgraph_takeover import TakeoverError, take_over
        >>> try:
        ...     take_over(home, "fix-3", record_id="unknown", model=model, sandbox=sandbox_spec)
        ... except TakeoverError as error:
        ...     print(type(error).__name__)
        RecordError
    """
