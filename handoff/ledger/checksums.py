"""Texts of the ledger with a checksum, so that damage on disk is an error and never another value."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from langgraph_takeover.handoff.ledger.database import LedgerUnavailableError
from langgraph_takeover.handoff.ledger.store import Ledger

_Kind = TypeVar("_Kind", bound=BaseModel)
_STORED_TEXT = re.compile(r"([0-9a-f]{16}) (.*)", re.DOTALL)


def add_checksum(text: str) -> str:
    """Add the checksum to a text."""
    return f"{_compute_checksum(text)} {text}"


def verify_text(ledger: Ledger, label: str, stored: str) -> str:
    """Remove and verify the checksum. Raises LedgerUnavailableError if the text is damaged."""
    found = _STORED_TEXT.fullmatch(stored) if isinstance(stored, str) else None
    if found is not None and found[1] == _compute_checksum(found[2]):
        return found[2]
    if found is None and isinstance(stored, str) and stored.startswith("{"):
        return stored  # of schema 2, which had no checksums
    raise LedgerUnavailableError(f"{ledger.name}: {label} is damaged (restore the database from a copy)")


def parse_stored(ledger: Ledger, label: str, stored: str, kind: type[_Kind]) -> _Kind:
    """Parse a JSON text with a checksum. Raises LedgerUnavailableError if it is damaged."""
    try:
        return kind.model_validate_json(verify_text(ledger, label, stored))
    except ValidationError as error:
        raise LedgerUnavailableError(
            f"{ledger.name}: {label} cannot be read: {error.errors()[0]['msg']:.100} (restore the database from a copy)"
        ) from error


def _compute_checksum(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
