"""Sequences in values that may come from anybody."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import FailFast

_Value = TypeVar("_Value")


class _FailFast(FailFast):
    """The same, and hashable, which a union needs."""

    __hash__ = object.__hash__


FailFastTuple = Annotated[tuple[_Value, ...], _FailFast()]
"""A tuple whose validation ends at the first wrong element: each error takes memory."""
