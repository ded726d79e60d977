from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from langgraph_takeover.base import takeover_error


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (9, "schema version 9, which version 0.1 reads; langgraph-takeover 0.2.0 reads only 10 (make it again)"),
        (11, "schema version 11, which a newer version wrote; langgraph-takeover 0.2.0 reads only 10 (update the program)"),
        (None, "schema version None; langgraph-takeover 0.2.0 reads only 10 (make it again)"),
        ("x\ny", "schema version 'x\\ny'; langgraph-takeover 0.2.0 reads only 10 (make it again)"),
    ],
)  # fmt: skip
def test_another_version_is_described_in_one_line(
    monkeypatch: pytest.MonkeyPatch, found: object, says: str
) -> None:
    monkeypatch.setattr(takeover_error, "version", lambda name: "0.2.0")
    assert takeover_error.describe_other_version(found, 10, "make it again") == says


def test_a_program_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(takeover_error, "version", fail)
    assert takeover_error.find_program_version() == "unknown"
