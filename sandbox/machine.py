"""What every machine can do, and the values that go in and out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field


class Frozen(BaseModel):
    """A value: immutable, and strict about the fields it is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileChange(Frozen):
    """One file whose content an action changed.

    `path` is relative to the workspace inside it and absolute outside it. `before` and `after` are
    SHA-256 digests in hexadecimal; None means that the file did not exist.
    """

    path: str
    before: str | None
    after: str | None
