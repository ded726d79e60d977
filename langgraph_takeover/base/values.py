"""The base class of all values."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A value: immutable, and strict about its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")
