"""Parts of a run by number."""

from __future__ import annotations

import pytest

from langgraph_takeover.evals.run.settings.config import RunUsageError, read_shard


@pytest.mark.parametrize(
    ("text", "parts"), [("2/8", {2}), ("1-3/8", {1, 2, 3}), ("1,5-6/8", {1, 5, 6}), ("1/1", {1})]
)
def test_shards(text: str, parts: set[int]) -> None:
    shard = read_shard(text)
    assert shard.parts == parts
    assert shard.select(range(20)) == tuple(n for n in range(20) if n % shard.total + 1 in parts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", r"invalid shard .* \(use 2/8"),
        ("0/4", "counted from 1 to 4"),
        ("5/4", "counted from 1 to 4"),
        ("1-3,3/8", "names part 3 twice"),
        ("3-1/4", "counted from 1 to 4"),
        ("1--2/4", "neither a number nor a range"),
        ("1/0", "counted from 1 to 0"),
    ],
)
def test_invalid_shards(text: str, expected: str) -> None:
    with pytest.raises(RunUsageError, match=expected):
        read_shard(text)
