"""The fields of a task: validated, with texts that bash and git can read whatever wrote their file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from langgraph_takeover.evals.tasks.task import TaskSourceError
from langgraph_takeover.sandbox.storage.untrusted_json import parse_json

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")
_REQUIRED_FIELDS = (
    "instance_id",
    "problem_statement",
    "repo",
    "version",
    "FAIL_TO_PASS",
    "eval_script",
    "log_parser",
    "eval_type",
)
_TEST_FIELDS = ("FAIL_TO_PASS", "PASS_TO_PASS")
_TEXT_FIELDS = ("problem_statement", "eval_script", "log_parser", "eval_type")
_BYTE_ORDER_MARK = "\ufeff"
_HEREDOC = re.compile(r"(?<!<)<<(-?)[ \t]*['\"\\]?([A-Za-z_]\w*)")


def read_fields(row: Any, location: str) -> dict[str, Any]:
    """The fields of a task with lists of test names, an LF eval script and an LF gold patch. Raises TaskSourceError."""
    if not isinstance(row, Mapping):
        raise TaskSourceError(
            f"{location}: expected an object with the fields of a task, got {type(row).__name__}"
        )
    missing = [name for name in _REQUIRED_FIELDS if not row.get(name)]
    if missing:
        raise TaskSourceError(
            f"{location}: field {missing[0]!r} is missing or empty (use the columns of swebench 5)"
        )
    if not _ID.fullmatch(str(row["instance_id"])):
        raise TaskSourceError(
            f"{location}: field 'instance_id' contains invalid characters or more than 150 (use letters, digits, '.', '_' and '-')"
        )
    for name in _TEXT_FIELDS:
        if not isinstance(row[name], str):
            raise TaskSourceError(
                f"{location}: field {name!r} is {_describe_kind(row[name])} (write it as text)"
            )
    tests = {name: _read_tests(name, row.get(name), location) for name in _TEST_FIELDS}
    if not tests["FAIL_TO_PASS"]:
        raise TaskSourceError(
            f"{location}: field 'FAIL_TO_PASS' names no test, so any patch would resolve the task (name the tests that "
            "fail before the fix)"
        )
    if both := sorted({*tests["FAIL_TO_PASS"]} & {*tests["PASS_TO_PASS"]}):
        raise TaskSourceError(
            f"{location}: 'FAIL_TO_PASS' and 'PASS_TO_PASS' both contain {both[0]:.100} (remove it from one of them)"
        )
    texts = {"eval_script": normalize_script(row["eval_script"])}
    if isinstance(row.get("patch"), str):
        texts["patch"] = normalize_patch(row["patch"])
    return {**row, **tests, **texts}


def _read_tests(name: str, value: Any, location: str) -> list[str]:
    """The names of tests, from a list or from a list as JSON text. None without a value."""
    cure = "(write a list of test names, or one as JSON text)"
    if value is None or value == "":
        return []
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise TaskSourceError(f"{location}: field {name!r} is not JSON: {error} {cure}") from error
    if not isinstance(value, list | tuple):
        raise TaskSourceError(f"{location}: field {name!r} is {_describe_kind(value)} {cure}")
    for test in value:
        if not isinstance(test, str) or not test.strip():
            raise TaskSourceError(
                f"{location}: field {name!r} contains {json.dumps(test, default=str):.60}, not the name of a test {cure}"
            )
    return [test.rstrip("\r\n") for test in value]


def _describe_kind(value: Any) -> str:
    kinds: tuple[tuple[Any, str], ...] = (
        (bool, "a truth value"),
        (int | float, "a number"),
        (str, "text"),
        (Mapping, "an object"),
        (list, "a list"),
    )
    if value is None:
        return "null"
    return next((text for kind, text in kinds if isinstance(value, kind)), f"a {type(value).__name__}")


def normalize_script(text: str) -> str:
    """A bash script without a byte order mark and with LF line endings.

    A here-document of a script with LF keeps its bytes, because a patch of a file with CRLF needs them.
    """
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if "\r" not in text:
        return text
    if _is_converted(text):
        return _convert(text)
    lines = []
    ends: list[tuple[bool, str]] = []
    for line in text.split("\n"):
        bare = line.removesuffix("\r")
        if not ends:
            lines.append(bare)
            ends = [(bool(dash), word) for dash, word in _HEREDOC.findall(bare)]
            continue
        strips_tabs, word = ends[0]
        is_end = (bare.lstrip("\t") if strips_tabs else bare) == word
        lines.append(bare if is_end else line)
        ends = ends[1:] if is_end else ends
    return "\n".join(lines)


def normalize_patch(text: str) -> str:
    """A patch that git reads: its last line complete, and LF if a conversion made all line endings CRLF, also of headers."""
    text = text.removeprefix(_BYTE_ORDER_MARK)
    text = _convert(text) if _is_converted(text) else text
    return text if not text.strip() or text.endswith("\n") else f"{text}\n"


def _is_converted(text: str) -> bool:
    """Whether each line ends with CRLF, or each with a lone CR."""
    lines = text.rstrip("\n").split("\n")
    body = [line for line in lines[:-1] if not line.endswith("\r")]
    return "\r" in text and not body and (len(lines) > 1 or text.endswith("\r\n") or "\n" not in text)


def _convert(text: str) -> str:
    if "\n" not in text:
        return text.replace("\r", "\n")
    return text.replace("\r\n", "\n").removesuffix("\r")
