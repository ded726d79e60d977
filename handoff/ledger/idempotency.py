"""Idempotency keys: a request with a key is applied once, and its result is returned for as long as the key lives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import Connection, delete, func, insert, select

from langgraph_takeover.base.values import TakeoverError
from langgraph_takeover.handoff.ledger.database import repeat_after_loss
from langgraph_takeover.handoff.ledger.leases import check_name
from langgraph_takeover.handoff.ledger.store import Ledger, idempotency_keys

KEY_LIFETIME_S = 24 * 3600.0
KEY_LABEL = "idempotency key"
_LOCK_SPACE = 8402160
"""First part of the ids of PostgreSQL's advisory locks for keys."""
_Result = TypeVar("_Result", bound=BaseModel)


class KeyReusedError(TakeoverError, ValueError):
    """An idempotency key was used before, for another request."""


@repeat_after_loss(idempotent=False)
def run_once(
    ledger: Ledger,
    key: str,
    request: list[Any],
    write: Callable[[Connection, float], _Result],
    result_type: type[_Result],
    *,
    key_owner: str = "",
) -> _Result:
    """Run `write` in a transaction, or return its recorded result. An empty key is always new.

    Two owners can use the same key. Raises KeyReusedError, and ThreadNameError for an invalid key.
    """
    digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    if key:
        check_name(key, KEY_LABEL)
    stored_key = _build_stored_key(key, key_owner)
    with ledger.write_transaction() as connection:
        now = ledger.now(connection)
        if not key:
            return write(connection, now)
        if not ledger.is_sqlite:
            # Two requests with a new key must not both insert it; SQLite has one writer anyway.
            lock_id = int.from_bytes(hashlib.sha256(stored_key.encode()).digest()[:4], signed=True)
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK_SPACE, lock_id)))
        connection.execute(delete(idempotency_keys).where(idempotency_keys.c.expires_at <= now))
        known = connection.execute(
            select(idempotency_keys).where(idempotency_keys.c.key == stored_key)
        ).first()
        if known is not None:
            if known.asked != digest:
                raise KeyReusedError(
                    f"idempotency key {key!r} already belongs to a different request "
                    "(use a new key, or repeat the original request unchanged)"
                )
            return result_type.model_validate_json(known.result)
        result = write(connection, now)
        connection.execute(
            insert(idempotency_keys).values(
                key=stored_key, asked=digest, result=result.model_dump_json(), expires_at=now + KEY_LIFETIME_S
            )
        )
        return result


def forget_key(ledger: Ledger, key: str, *, key_owner: str = "") -> None:
    """Forget a key whose request failed and had no effect, so that another request can use it."""
    with ledger.write_transaction() as connection:
        connection.execute(
            delete(idempotency_keys).where(idempotency_keys.c.key == _build_stored_key(key, key_owner))
        )


def _build_stored_key(key: str, key_owner: str) -> str:
    # A list as JSON: owner "a b" with key "c" is not owner "a" with key "b c".
    return hashlib.sha256(json.dumps([key_owner, key]).encode()).hexdigest() if key_owner else key


def remove_expired_keys(ledger: Ledger) -> int:
    """Remove the expired idempotency keys; return their number."""
    with ledger.write_transaction() as connection:
        return connection.execute(
            delete(idempotency_keys).where(idempotency_keys.c.expires_at <= ledger.now(connection))
        ).rowcount
