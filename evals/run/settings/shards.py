"""Parts of a run: each task belongs to one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from langgraph_takeover.evals.run.settings.config import RunUsageError

_SHARD = re.compile(r"([\d,\-]+)/(\d+)")
_Item = TypeVar("_Item")


class Shard(NamedTuple):
    """Some of the equal parts of a run. Each task belongs to one part."""

    parts: frozenset[int]
    """Part numbers, from 1."""
    total: int

    def select(self, items: Sequence[_Item]) -> tuple[_Item, ...]:
        return tuple(item for number, item in enumerate(items) if number % self.total + 1 in self.parts)


def read_shard(text: str) -> Shard:
    """`2/8`, `1-3/8` or `1,5-6/8`. Raises RunUsageError."""
    matched = _SHARD.fullmatch(text)
    if matched is None:
        raise RunUsageError(f"--shard: invalid shard {text!r} (use 2/8, 1-3/8 or 1,5-6/8)")
    of = int(matched[2])
    parts: list[int] = []
    for piece in matched[1].split(","):
        first, _, last = piece.partition("-")
        if not first.isdigit() or (last and not last.isdigit()) or "-" in last:
            raise RunUsageError(f"--shard: {piece!r} in {text!r} is neither a number nor a range such as 1-3")
        parts += range(int(first), int(last or first) + 1)
    outside = [part for part in parts if not 1 <= part <= of]
    if outside or not parts:
        raise RunUsageError(f"--shard: {text!r}: parts are counted from 1 to {of}")
    twice = [part for part, number in Counter(parts).items() if number > 1]
    if twice:
        raise RunUsageError(f"--shard: {text!r} names part {twice[0]} twice")
    return Shard(frozenset(parts), of)
