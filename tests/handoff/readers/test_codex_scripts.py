"""Scripts of Codex: their calls and results come from what was recorded or printed; what was not is unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from langgraph_takeover.handoff.agents.codex_script_calls import find_calls
from langgraph_takeover.handoff.points.detectors import list_points
from langgraph_takeover.handoff.trace.events import Trace

from .session_rows import (
    codex_call,
    codex_item,
    codex_meta,
    codex_request,
    codex_row,
    list_actions,
    list_commands,
    list_edits,
    list_observations,
    load,
    parse_rows,
)

PATCH = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-a\n+b\n*** End Patch"
FAILED_TESTS = "FAILED tests/test_a.py::test_a\n1 failed in 0.02s\n"


def script(call_id: str, text: str) -> dict[str, Any]:
    return codex_item("custom_tool_call", call_id=call_id, name="exec", input=text)


def output(call_id: str, *parts: str, state: str = "completed") -> dict[str, Any]:
    texts = [f"Script {state}\nWall time 0.1 seconds\nOutput:\n", *parts]
    content = [{"type": "input_text", "text": text} for text in texts]
    return codex_item("custom_tool_call_output", call_id=call_id, output=content)


def wait(call_id: str, *parts: str, state: str = "completed") -> list[dict[str, Any]]:
    result = output(call_id, *parts, state=state)
    result["payload"]["type"] = "function_call_output"
    return [codex_call(call_id, "wait", cell_id="8"), result]


def ran(command: str, exit_code: int, text: str = "", process: str = "") -> dict[str, Any]:
    item = {
        "type": "CommandExecution", "id": f"exec-{command}", "process_id": process, "command": ["/bin/bash", "-lc", command],
        "cwd": "file:///w", "aggregated_output": text, "exit_code": exit_code,
    }  # fmt: skip
    return codex_row("event_msg", type="item_completed", item=item)


def read(*rows: dict[str, Any]) -> Trace:
    return parse_rows(codex_meta("/w"), codex_request("Fix it"), *rows)


def list_calls(trace: Trace) -> list[tuple[str, int | None, str]]:
    """The commands of a trace, or the names of other tools, with their exit codes and results."""
    results = {event.index - 1: (event.exit_code, event.text) for event in list_observations(trace)}
    commands = zip(list_actions(trace), list_commands(trace), strict=True)
    return [(command, *results.get(action.index, (None, "-"))) for action, command in commands]


def command(text: str, *, prints: str = "text(r.output)") -> str:
    return f"const r = await tools.exec_command({{cmd: {json.dumps(text)}}}); {prints};"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (r'const r = await tools.exec_command({"cmd":"pwd && ls","workdir":"/x"});', [{"cmd": "pwd && ls", "workdir": "/x"}]),
        (r"""await Promise.all([tools.exec_command({cmd:'it\'s'}), tools.exec_command({cmd:"\u00e9\n"})])""",
         [{"cmd": "it's"}, {"cmd": "é\n"}]),
        ("for (const c of ['a','b']) { await tools.exec_command({cmd: `run ${c}`}) }", [{"cmd": "run a"}, {"cmd": "run b"}]),
        ("const all = ['a', 'b']; await Promise.all(all.map(cmd => tools.exec_command({cmd})))", [{"cmd": "a"}, {"cmd": "b"}]),
        ("['a','b'].forEach(async (c) => { text((await tools.exec_command({cmd: c})).output) })", [{"cmd": "a"}, {"cmd": "b"}]),
        ("for (const x of [{c:'a'},{c:'b'}]) await tools.exec_command({cmd: x.c})", [{"cmd": "a"}, {"cmd": "b"}]),
        ("const p = '/r'; await tools.apply_patch(`*** Begin\n${p}/a \\`q\\``)", ["*** Begin\n/r/a `q`"]),
        (r'const p = ["*** Begin", "*** End"].join("\n"); tools.apply_patch(p)', ["*** Begin\n*** End"]),
        (r"tools.apply_patch({input: String.raw`\d`})", [{"input": r"\d"}]),
        ("tools['exec_command']({cmd: 'a' + \"b\"}) // tools.exec_command({cmd:'no'})", [{"cmd": "ab"}]),
        ("text(`exit=${(await tools.exec_command({cmd:'a'})).exit_code} /${x}/`)", [{"cmd": "a"}]),
        ("const s = /tools.exec_command({cmd:'no'})/; text(s)", []),
        ("let c = 'a'; c = other; tools.exec_command({cmd: c})", [None]),
        ("tools.exec_command({cmd: build('a')})", [None]),
        ("tools[name]({cmd: 'a'})", [{"cmd": "a"}]),
        ("text(\"tools.exec_command({cmd:'no'})\")", []),
        ("const {exec_command: sh} = tools; await sh({cmd: 'a'})", [None]),
        ("const sh = tools.exec_command; await sh({cmd: 'a'}); await tools.exec_command({cmd: 'b'})", [None, {"cmd": "b"}]),
        ("await tools.exec_command?.({cmd: 'a'})", [None]),
        ("const cmd = 'a'; const run = async (cmd) => tools.exec_command({cmd}); await run('b')", [None]),
        ("const cmd = 'a'; function run(cmd) { return tools.exec_command({cmd}) } await run('b')", [None]),
        ("for (let i = 0; i < 3; i++) await tools.exec_command({cmd: `a ${i}`})", [None]),
        ("let i = 0; while (x) { await tools.exec_command({cmd: `a ${i}`}); i += 1 }", [None]),
        ("const all = ['a']; all.push(x); for (const cmd of all) await tools.exec_command({cmd})", [None]),
        ("const o = {cmd: 'a'}; o.cmd = x; await tools.exec_command(o)", [None]),
        ("const a0 = 'x';" + "".join(f"const a{n + 1} = a{n} + a{n};" for n in range(60)) + "tools.x({cmd: a60})", [None]),
        ("= /[" * 20_000, []),
        ("{" * 90_000, []),
    ],
)  # fmt: skip
def test_calls_of_a_script(text: str, calls: list[Any]) -> None:
    assert [call.arguments for call in find_calls(text)] == calls


@pytest.mark.parametrize(
    ("text", "uncertain"),
    [
        ("const r = await tools.a(); r.exit_code === 0 && await tools.b(); await tools.c()", "b"),
        ("const r = x ? await tools.a({n: 1}) : await tools.b({n: 1}); await tools.c()", "ab"),
        ("const r = await tools.a(); if (r.exit_code) return; await tools.b()", "b"),
        (
            "for (const x of [1, 2]) { const r = await tools.a({x}); if (r.exit_code) break } await tools.b()",
            "a",
        ),
        ("const f = x => { if (x) return 1; return 2 }; await tools.a()", ""),
        (
            "try { await tools.apply_patch('x'); await tools.a() } catch (e) { await tools.b() } await tools.c()",
            "pab",
        ),
        ("const s = x ? 1 : 2\nconst r = await tools.a()", ""),
    ],
)
def test_calls_that_may_not_have_run(text: str, uncertain: str) -> None:
    found = [each.tool.split("_")[-1][0] for each in find_calls(text) if each.is_conditional]
    assert "".join(found) == uncertain


def test_a_recorded_session() -> None:
    trace = load("codex-scripts.jsonl")
    found = list_calls(trace)
    assert found[:2] == [
        ("ls; python3 -m pytest -q; exit 3", 3, "test_a.py\n/usr/bin/python3: No module named pytest\n"),
        ("false", 1, ""),
    ]
    assert [each[:2] for each in found[4:10]] == [
        ("sleep 30; echo hi", None),
        ("", None),
        ("exec", None),
        ("echo a; exit 1", 1),
        ("cd /tmp && echo b", 0),
        ("sleep 3; echo late", None),
    ]
    assert list_edits(trace) == [["b.py"]] == [[change.path for change in trace.events[5].changes]]
    refused = [event.text for event in trace.events if event.refused]
    assert "apply_patch verification failed" in refused[0]
    assert trace.running == ("sleep 30; echo hi", "sleep 3; echo late", "sleep 45; echo x")


@pytest.mark.parametrize(
    ("prints", "part", "code", "text"),
    [
        ("text(r.output)", "hello\n", None, "hello\n"),
        ("text(JSON.stringify(r))", '{"chunk_id":"a","exit_code":2,"output":"hello\\n"}', 2, "hello\n"),
        ("text(r)", '{"chunk_id":"a","session_id":7,"output":""}', None, ""),
        ("text(`exit=${r.exit_code}\\n${r.output}`)", "exit=3\nhello", 3, "exit=3\nhello"),
        ("text(`${r.output} (code ${r.exit_code})`)", "hello (code 4)", 4, "hello (code 4)"),
        (
            "text(r.output); if (r.exit_code) text(`exit ${r.exit_code}`)",
            "child exit 2",
            None,
            "child exit 2",
        ),
        ("text(r.output); if (r.exit_code) { throw `exit ${r.exit_code}` }", "exit 2", None, "exit 2"),
        ("text(r.output); r.exit_code && text(`exit ${r.exit_code}`)", "exit 2", None, "exit 2"),
        ("text(r.output)", '{"output":"a log","exit_code":1}', None, '{"output":"a log","exit_code":1}'),
        ("", "", None, ""),
    ],
)
def test_an_exit_code_is_known_only_if_it_was_printed(
    prints: str, part: str, code: int | None, text: str
) -> None:
    trace = read(script("c", command("make check", prints=prints)), output("c", part))
    assert list_calls(trace) == [("make check", code, text)]


def test_failing_tests_fail_and_silent_ones_are_unknown() -> None:
    patch = script("p", f"text(await tools.apply_patch({json.dumps(PATCH)}))")
    failing = read(patch, output("p", "{}"), script("c", command("pytest -q")), output("c", FAILED_TESTS))
    silent = read(patch, output("p", "{}"), script("c", command("pytest -q", prints="")), output("c"))
    details = [list_points(each.events, each.base_directories)[1].detail for each in (failing, silent)]
    assert [each.split(":")[0] for each in details] == ["test failed", "test unknown"]
    assert not failing.unknown_forms


def test_several_calls_share_what_was_printed() -> None:
    text = "const [a, b] = await Promise.all([tools.exec_command({cmd:'a'}), tools.exec_command({cmd:'b'})]);"
    by_order = read(script("c", f"{text} text(a.output); text(b.output)"), output("c", "A", "B"))
    printed = output("c", '[{"output":"A","exit_code":1},{"output":"B","exit_code":0}]')
    as_json = read(script("c", f"{text} text([a, b])"), printed)
    together = read(script("c", f"{text} text(a.output + b.output)"), output("c", "AB"))
    assert list_calls(by_order) == [("a", None, "A"), ("b", None, "B")]
    assert list_calls(as_json) == [("a", 1, "A"), ("b", 0, "B")]
    assert list_calls(together) == [("a", None, ""), ("b", None, "AB")]


def test_what_is_printed_in_another_order_has_no_known_owner() -> None:
    text = "const a = await tools.exec_command({cmd:'a'}); const b = await tools.exec_command({cmd:'b'});"
    printed = read(script("c", f"{text} text(b.output); text(a.output)"), output("c", "B", "A"))
    prints = " text(`b ${b.exit_code}`); text(`a ${a.exit_code}`)"
    codes = read(script("c", text + prints), output("c", "b 1", "a 0"))
    results = output("c", '{"output":"B","exit_code":1}', '{"output":"A","exit_code":0}')
    as_json = read(script("c", f"{text} text(b); text(a)"), results)
    found = [each[:2] for trace in (printed, codes, as_json) for each in list_calls(trace)]
    assert found == [("a", None), ("b", None)] * 3
    assert list_calls(printed)[1] == ("b", None, "B\nA")


def test_recorded_commands_replace_computed_ones() -> None:
    loop = "for (const f of files) { await tools.exec_command({cmd: `cat ${f}`}) }"
    recorded = read(script("c", loop), ran("cat x", 0, "X"), ran("cat y", 1, "Y"), output("c", "X", "Y"))
    assert list_calls(recorded) == [("cat x", 0, "X"), ("cat y", 1, "Y")]
    assert not recorded.unknown_forms
    unknown = read(script("c", loop), output("c", "X", "Y"))
    assert unknown.unknown_forms == {"exec:exec_command": 1}


def test_a_branch_that_was_not_recorded_did_not_run() -> None:
    text = command("npm test") + " if (r.exit_code) { await tools.exec_command({cmd: 'cat log'}) }"
    recorded = read(script("c", text), ran("npm test", 0, "ok"), output("c", "ok"))
    assert list_calls(recorded) == [("npm test", 0, "ok")]
    unrecorded = read(script("c", text), output("c", "ok"))
    assert unrecorded.unknown_forms == {"exec:exec_command": 1}


@pytest.mark.parametrize(
    ("chars", "unknown"), [("''", {}), ("'y'", {"exec:write_stdin": 1}), ("x", {"exec:write_stdin": 1})]
)
def test_a_branch_that_is_not_recorded_is_unknown_unless_it_only_waits(
    chars: str, unknown: dict[str, int]
) -> None:
    branch = f"while (r.session_id) await tools.write_stdin({{session_id: r.session_id, chars: {chars}}})"
    trace = read(script("c", f"{command('a')} {branch}"), ran("a", 0, "A"), output("c", "A"))
    assert list_calls(trace)[0] == ("a", 0, "A")
    assert trace.unknown_forms == unknown


def test_calls_after_an_error_did_not_run() -> None:
    text = f"await tools.apply_patch({json.dumps(PATCH)}); await tools.exec_command({{cmd: 'pytest'}})"
    error = "Script error:\napply_patch verification failed: no such file"
    trace = read(script("c", text), output("c", error, state="failed"))
    assert [(event.refused, event.text) for event in list_observations(trace)] == [(True, error)]
    thrown = "Script error:\nError: stop\n    at exec_main.mjs:1:50"
    calls = (
        "await tools.exec_command({cmd: 'a'}); throw new Error('stop'); await tools.exec_command({cmd: 'b'})"
    )
    trace = read(script("c", calls), output("c", thrown, state="failed"))
    assert list_calls(trace) == [("a", None, thrown)]


def test_a_script_that_yields() -> None:
    begin = [script("c", command("sleep 9; pytest -q")), output("c", state="running with cell ID 8")]
    running = read(*begin)
    assert running.running == ("sleep 9; pytest -q",)
    ended = read(*begin, *wait("w", FAILED_TESTS))
    assert list_calls(ended) == [("sleep 9; pytest -q", None, ""), ("", None, FAILED_TESTS)]
    assert ended.running == ()
    call, result = wait("w", FAILED_TESTS)
    recorded = read(*begin, call, ran("sleep 9; pytest -q", 1, FAILED_TESTS, "5"), result)
    assert list_calls(recorded) == [("sleep 9; pytest -q", None, ""), ("", 1, FAILED_TESTS)]


def test_a_command_that_ends_under_a_later_script() -> None:
    started = '{"chunk_id":"a","session_id":7,"output":""}'
    poll = "const w = await tools.write_stdin({session_id: 7, chars: ''}); text(w.output);"
    trace = read(
        script("c", command("pytest -q", prints="text(r)")), output("c", started),
        script("d", poll), ran("pytest -q", 1, FAILED_TESTS, "7"), output("d", FAILED_TESTS),
    )  # fmt: skip
    assert list_calls(trace) == [("pytest -q", None, ""), ("", 1, FAILED_TESTS)]


def test_scripts_side_by_side_and_messages_before_the_end() -> None:
    trace = read(
        script("c", command("a")), script("d", command("b")), output("c", "half"), ran("b", 1, "B"), ran("a", 0, "A"),
        output("d", "B"), output("c", "A"),
    )  # fmt: skip
    assert list_calls(trace) == [("a", 0, "half\nA"), ("b", 1, "B")]


def test_changes_that_older_versions_record() -> None:
    update = {"/w/src/a.py": {"update": {"unified_diff": "@@ -1 +1 @@\n-a\n+b\n", "move_path": None}}}
    end = {"type": "patch_apply_end", "call_id": "exec-1", "success": True, "stdout": "Success"}
    record = codex_row("event_msg", **end, changes=update)
    trace = read(script("c", "await tools.apply_patch(make())"), record, output("c", "{}"))
    assert list_edits(trace) == [["src/a.py"]]
    assert not trace.unknown_forms


def test_other_tools_behind_a_script() -> None:
    text = "await tools.update_plan({plan: []}); await tools.mcp__db__query({sql: 'x'}); await tools.web__run({q: 'x'})"
    trace = read(script("c", text), output("c", "done"))
    assert [event.tool for event in list_actions(trace)] == ["update_plan", "mcp__db__query", "web__run"]
    assert trace.unknown_forms == {"mcp__db__query": 1}
