"""Lines of JSON, ids, and names of session directories."""

from __future__ import annotations

import json

from langgraph_takeover.handoff.agents.native_sessions import (
    derive_uuid,
    has_results,
    name_directory,
    read_json_lines,
    read_result_lines,
    write_json_lines,
)
from langgraph_takeover.testing.agents.pure import make_launch


def test_directories_have_claude_codes_names() -> None:
    """Observed with Claude Code 2.1.197: it counts in UTF-16, and hashes what is longer than 200 characters."""
    assert name_directory("/testbed") == "-testbed"
    assert name_directory("/tmp/größe 😀 (x)/a.b_c") == "-tmp-gr--e-----x--a-b-c"
    path = f"/tmp/größe 😀 (x)/{'long_name.' * 18}/work space"
    name = f"-tmp-gr--e-----x--{'long-name-' * 18}-w"
    assert name_directory(path, 200) == f"{name}-44nubt"
    assert name_directory(path) == name_directory(path, 1000)


def test_ids_depend_on_the_launch() -> None:
    launch = make_launch()
    assert derive_uuid(launch, "a") == derive_uuid(launch, "a")
    assert (
        len({derive_uuid(launch, "a"), derive_uuid(launch, "b"), derive_uuid(make_launch(message="x"), "a")})
        == 3
    )


def test_lines_survive_any_text() -> None:
    value = {"text": "\u2028 \x85 \n \0 ü"}
    text = write_json_lines([value, {"lone": "\ud800"}])
    assert text.encode()
    assert list(read_json_lines(text)) == [value, {"lone": "?"}]


def test_broken_lines_are_left_out() -> None:
    assert list(read_json_lines('warning\n{"a": 1}\n[1]\n{"b": ' + "[" * 100_000 + '\n{"c"')) == [{"a": 1}]


def test_a_result_needs_a_line_of_its_own() -> None:
    call, result = json.dumps({"id": "call_1"}), json.dumps({"tool_use_id": "call_1"})
    assert not has_results(f"{call}\n", ["call_1"])
    assert not has_results(f"{call}\n{json.dumps({'tool_use_id': 'call_11'})}\n", ["call_1"])
    assert has_results(f"{call}\n{result}\n", ["call_1"])
    assert has_results("", [])


def test_a_run_is_complete_if_its_last_line_says_so() -> None:
    done = (
        '{"type": "result", "subtype": "success", "is_error": false, "result": "Done.", "session_id": "a-1"}'
    )
    failed = '{"type": "result", "subtype": "success", "is_error": true, "result": "API Error: 400", "session_id": "a-1"}'
    assert read_result_lines(done, 0).is_complete
    assert read_result_lines(done, 0).message == "Done."
    assert read_result_lines(done, 0).session_id == "a-1"
    assert not read_result_lines(done, 137).is_complete
    assert not read_result_lines(failed, 1).is_complete
    assert not read_result_lines(done + '\n{"type": "user"}', None).is_complete
