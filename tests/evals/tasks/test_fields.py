from __future__ import annotations

from typing import Any

import pytest

from langgraph_takeover.evals.tasks import TaskSourceError
from langgraph_takeover.evals.tasks.task import normalize_patch, normalize_script, read_fields

from .test_tasks import ROW


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[]", "names no test"),
        (" [ ] ", "names no test"),
        ("{}", "is an object"),
        ("null", "is null"),
        ('"test_a"', "is text"),
        ('"[\\"test_a\\"]"', "is text"),
        ("0", "is a number"),
        ("true", "is a truth value"),
        ("[1]", "contains 1, not the name of a test"),
        ('["test_a", null]', "contains null"),
        ('["test_a", " "]', 'contains " "'),
        ('[["test_a"]]', r'contains \["test_a"\], not the name'),
        ("test_a", "is not JSON"),
        ("['test_a']", "is not JSON"),
        ({"test_a": 1}, "is an object"),
        (5, "is a number"),
        (float("nan"), "is a number"),
        (["test_a", 3], "contains 3"),
    ],
)
@pytest.mark.parametrize("field", ["FAIL_TO_PASS", "PASS_TO_PASS"])
def test_fields_of_tests_are_validated_once_parsed(field: str, value: Any, message: str) -> None:
    if field == "PASS_TO_PASS" and message == "names no test":
        assert read_fields({**ROW, field: value}, "t")[field] == []
        return
    with pytest.raises(TaskSourceError, match=f"t: field '{field}' {message}"):
        read_fields({**ROW, field: value}, "t")


@pytest.mark.parametrize("value", [["a", "b"], ("a", "b"), ["a\r", "b\r\n"], '["a", "b"]', ' ["a",\n"b"] '])
def test_tests_become_a_list(value: Any) -> None:
    for field in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        assert read_fields({**ROW, field: value}, "t")[field] == ["a", "b"]


def test_a_test_in_both_lists_is_refused() -> None:
    with pytest.raises(
        TaskSourceError, match=r"t: 'FAIL_TO_PASS' and 'PASS_TO_PASS' both contain b \(remove"
    ):
        read_fields({**ROW, "FAIL_TO_PASS": '["a", "b"]', "PASS_TO_PASS": ["b", "c"]}, "t")


def test_an_id_that_is_too_long_for_a_file_name_is_refused() -> None:
    assert read_fields({**ROW, "instance_id": "a" * 150}, "t")
    with pytest.raises(
        TaskSourceError, match="field 'instance_id' contains invalid characters or more than 150"
    ):
        read_fields({**ROW, "instance_id": "a" * 151}, "t")


@pytest.mark.parametrize("value", [None, "", "[]", []])
def test_tests_that_must_keep_passing_are_optional(value: Any) -> None:
    assert read_fields({**ROW, "PASS_TO_PASS": value}, "t")["PASS_TO_PASS"] == []
    assert read_fields({k: v for k, v in ROW.items() if k != "PASS_TO_PASS"}, "t")["PASS_TO_PASS"] == []


@pytest.mark.parametrize("field", ["problem_statement", "eval_script", "log_parser", "eval_type"])
def test_a_text_field_of_another_type_is_refused(field: str) -> None:
    with pytest.raises(TaskSourceError, match=f"field '{field}' is a list"):
        read_fields({**ROW, field: ["x"]}, "t")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("cd a\ntrue\n", "cd a\ntrue\n"),
        ("cd a\r\ntrue\r\n", "cd a\ntrue\n"),
        ("cd a\r\ntrue", "cd a\ntrue"),
        ("cd a\r\ntrue\r", "cd a\ntrue"),
        ("cd a\r\n\r\n\r\n", "cd a\n\n\n"),
        ("cd a\rtrue\r", "cd a\ntrue\n"),
        ("\ufeffcd a\n", "cd a\n"),
        ("\ufeffcd a\r\n", "cd a\n"),
        ("cd a\r\ntrue\n", "cd a\ntrue\n"),
        # A patch of a file with CRLF stays, in a script with LF or with edited lines.
        ("cat <<'E'\n+a\r\nE\nb\n", "cat <<'E'\n+a\r\nE\nb\n"),
        ("cat <<'E'\r\n+a\r\n-b\nE\r\nb\r\n", "cat <<'E'\n+a\r\n-b\nE\nb\n"),
        ("cat <<-E <<F\n\ta\r\n\tE\r\nb\r\nF\nc\r\n", "cat <<-E <<F\n\ta\r\n\tE\nb\r\nF\nc\n"),
        ("cat <<<word\na\r\n", "cat <<<word\na\n"),
        # A converted script has CRLF in its here-documents too.
        ("cat <<'E'\r\n+a\r\nE\r\n", "cat <<'E'\n+a\nE\n"),
    ],
)
def test_scripts_have_line_endings_for_bash(script: str, expected: str) -> None:
    assert normalize_script(script) == expected
    assert normalize_script(expected) == expected


def test_only_a_converted_or_stripped_patch_is_changed() -> None:
    patch = "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"
    of_crlf_file = patch.replace("-a\n+b\n", "-a\r\n+b\r\n")
    assert normalize_patch(patch.replace("\n", "\r\n")) == patch
    assert normalize_patch(patch) == patch
    assert normalize_patch(of_crlf_file) == of_crlf_file
    assert normalize_patch("") == ""
    assert normalize_patch(patch.strip()) == normalize_patch(patch.strip().replace("\n", "\r\n")) == patch
    assert normalize_patch(of_crlf_file.removesuffix("\n")) == of_crlf_file
