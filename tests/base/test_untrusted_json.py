"""Parsing foreign JSON is cheap, whatever its content."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_takeover.base import untrusted_input
from langgraph_takeover.base.untrusted_input import parse_document, parse_json

VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text('"\\,[{ä\n'), st.booleans()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text('"\\,[{', max_size=3), inner)),
)


@given(VALUES)
def test_documents_parse_as_with_json(value: object) -> None:
    assert parse_document(json.dumps(value).encode()) == value
    assert parse_document(json.dumps(value, ensure_ascii=False, indent=1).encode()) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" + b"1," * 3000 + b"1]", "more than 2,000 values"),
        (b"[" + b"[]," * 1500 + b"1]", "more than 2,000 values"),
        (b"[" + b'"\\\\",{},' * 900 + b"1]", "more than 2,000 values"),
        (b"[" + b'"\\\\\\"",' * 3000 + b"1]", "more than 2,000 values"),
        (b"{" + b",".join(b'"%d":1' % key for key in range(1500)) + b"}", "more than 1,000 keys"),
        (b"[" * 2000 + b"]" * 2000, "nested too deeply"),
        ("[1,2]".encode("utf-16"), "decode"),
        (b"[" + b"9" * 5000 + b"]", "integer string"),
        (b"[1", "Expecting"),
    ],
)
def test_costly_documents_are_refused(text: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_input, "MAX_VALUES", 2000)
    with pytest.raises(ValueError, match=reason):
        parse_document(text)


def test_a_file_of_too_many_values_is_refused() -> None:
    text = b"[" + b"[]," * 1500 + b"1]"
    assert len(parse_json(text)) == 1501
    for each in (text, text.decode(), text.decode().encode("utf-16")):
        with pytest.raises(ValueError, match="more than 1,000 values"):
            parse_json(each, max_values=1000)


@given(VALUES)
def test_files_parse_as_with_json(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode("utf-16")) == value


def test_commas_in_strings_are_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_input, "MAX_VALUES", 10)
    text = json.dumps(['a,[{"\\,' * 100] * 5).encode()
    assert len(parse_document(text)) == 5
