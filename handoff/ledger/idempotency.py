"""Idempotency keys: a request with a key is applied once, and its result is returned for as long as the key lives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import Connection, delete, insert, select

from langgraph_takeover.handoff.ledger.leases import check_name
from langgraph_takeover.handoff.ledger.store import Ledger, idempotency_keys
from langgraph_takeover.sandbox.interface import TakeoverError

KEY_LIFETIME_S = 24 * 3600.0
_Result = TypeVar("_Result", bound=BaseModel)


class KeyReusedError(TakeoverError, ValueError):
    """An idempotency key came back with something else than it was first used for."""


def run_once(
    ledger: Ledger,
    key: str,
    request: list[Any],
    write: Callable[[Connection, float], _Result],
    result_type: type[_Result],
) -> _Result:
    """Run `write` in a transaction, or return its recorded result. An empty key is always new. Raises KeyReusedError."""
    digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    if key:
        check_name(key)
    with ledger.write_transaction() as connection:
        now = ledger.now(connection)
        if not key:
            return write(connection, now)
        connection.execute(delete(idempotency_keys).where(idempotency_keys.c.expires_at <= now))
        known = connection.execute(select(idempotency_keys).where(idempotency_keys.c.key == key)).first()
        if known is not None:
            if known.asked != digest:
                raise KeyReusedError(
                    f"the key {key!r} was used for something else; take a new one for each intent"
                )
            return result_type.model_validate_json(known.result)
        result = write(connection, now)
        connection.execute(
            insert(idempotency_keys).values(
                key=key, asked=digest, result=result.model_dump_json(), expires_at=now + KEY_LIFETIME_S
            )
        )
        return result


def remove_expired_keys(ledger: Ledger) -> int:
    """Remove the expired idempotency keys; return their number."""
    with ledger.write_transaction() as connection:
        return connection.execute(
            delete(idempotency_keys).where(idempotency_keys.c.expires_at <= ledger.now(connection))
        ).rowcount
