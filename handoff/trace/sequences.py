"""Sequence types for models that validate untrusted data."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import FailFast

_Value = TypeVar("_Value")


class _FailFast(FailFast):
    """A hashable `FailFast`, as required inside unions."""

    __hash__ = object.__hash__


FailFastTuple = Annotated[tuple[_Value, ...], _FailFast()]
"""A tuple whose validation stops at the first invalid element, which limits the memory for errors."""
