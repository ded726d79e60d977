"""Replies of real models parse as one action, or get a correction that says what to send."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from langgraph_takeover.handoff.trace.events import Action, write_action
from langgraph_takeover.nodes.model.actions import EDITOR_COMMANDS, UnreadableReply, parse_action
from langgraph_takeover.nodes.model.tool_schemas import build_tool_schemas

from ...random_examples import examples


def read(text: str, *, offer_handoff: bool = False, cut: bool = False) -> Action | UnreadableReply:
    metadata = {"finish_reason": "length" if cut else "stop"}
    return parse_action(AIMessage(text, response_metadata=metadata), "text", offer_handoff=offer_handoff)


def native(*calls: tuple[str, object], content: str = "") -> Action | UnreadableReply:
    """Parse native calls as the OpenAI client delivers them: arguments are JSON text."""
    from langchain_openai.chat_models.base import _convert_dict_to_message

    calls_data = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message = _convert_dict_to_message({"role": "assistant", "content": content, "tool_calls": calls_data})
    assert isinstance(message, AIMessage)
    return parse_action(message, "native", offer_handoff=False)


def refusal(action: Action | UnreadableReply) -> str:
    assert isinstance(action, UnreadableReply), action
    assert len(action.correction) < 800
    return action.correction


def shell(command: str) -> Action:
    return Action("shell", {"command": command})


@pytest.mark.parametrize("language", ["bash", "sh", "shell", "console", "zsh", "Bash"])
def test_shell_blocks(language: str) -> None:
    assert read(f"Let me look.\n\n```{language}\ngrep -n x a.py\n```\n") == shell("grep -n x a.py")


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("~~~bash\nls\n~~~", "ls"),
        ("````bash\nls\n````", "ls"),
        ("   ```bash\nls\n   ```", "ls"),
        ("```bash title=look\nls\n```", "ls"),
        ("```bash\nls\n```   \n\nThat lists it.", "ls"),
        ("```bash\n\nls\n\npwd\n```", "\nls\n\npwd"),
        ("```console\n$ cd src\n$ ls\n```", "cd src\nls"),
        ("```bash\r\nls\r\npwd\r\n```\r\n", "ls\npwd"),
        ("I call `foo()` and ``bar`` and `<finish>done</finish>` later.\n```sh\nls\n```", "ls"),
        ("The <finish> tag comes later, and <editor> too.\n```sh\nls\n```", "ls"),
        ("```python\nprint('<finish>no</finish>')\n```\nSo:\n```bash\nls\n```", "ls"),
        ('```python\nx = """\n~~~bash\nrm -r .\n~~~\n"""\n```\n```bash\nls\n```', "ls"),
        ("```\nTraceback: boom\n```\nThat is the error.\n```bash\nls\n```", "ls"),
        ('```json\n{"name": "pkg", "version": "1.0"}\n```\n```bash\nls\n```', "ls"),
        ("```bash\nls\n```\n```", "ls"),
        ("<think>I could ```bash\nrm x\n```</think>\n```bash\nls\n```", "ls"),
        ("<think>\n```bash\nrm x\n```\n</think>\n```bash\nls\n```", "ls"),
        ("<thinking>\n<finish>no</finish>\n</thinking>\n```bash\nls\n```", "ls"),
        ("```bash\nrm x\n```\nNo, wait.\n</think>\n\n```bash\nls\n```", "ls"),
        ("```bash\ngrep '<think>' a.py\n```", "grep '<think>' a.py"),
        ("```bash\ncat <<E\n<think>\n</think>\nE\n```", "cat <<E\n<think>\n</think>\nE"),
    ],
)
def test_a_command_among_other_text(reply: str, command: str) -> None:
    assert read(reply) == shell(command)


def test_a_heredoc_keeps_fences_of_another_length() -> None:
    body = "cat > README.md <<'EOF'\n````python\nx\n````\n~~~\ny\n~~~\nEOF"
    assert read(f"```bash\n{body}\n```") == shell(body)
    body = "cat > README.md <<'EOF'\n```python\nx\n```\nEOF"
    assert read(f"````bash\n{body}\n````") == shell(body)


def test_a_heredoc_keeps_fences_of_the_same_length() -> None:
    body = "cat > README.md <<'EOF'\n# A\n```python\nx\n```\n\n```bash\ny\n```\nEOF\ncat README.md"
    assert read(f"Write it:\n```bash\n{body}\n```\nDone so far.") == shell(body)


def test_an_unfinished_heredoc_ends_with_its_block() -> None:
    assert read("```bash\ncat <<EOF\nx\n```\nThen I look.") == shell("cat <<EOF\nx")


def test_an_editor_tag_within_a_heredoc_is_text() -> None:
    body = 'cat > doc.md <<EOF\n<editor command="undo" path="x"/>\n<finish>x</finish>\nEOF'
    assert read(f"```bash\n{body}\n```") == shell(body)


@pytest.mark.parametrize(
    "reply",
    [
        '```json\n{"name": "shell", "arguments": {"command": "ls"}}\n```',
        '```\n{"tool": "bash", "args": {"cmd": "ls"}}\n```',
        '{"name": "execute_bash", "arguments": {"command": "ls"}}',
        '<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}\n</tool_call>',
        '<tool_call>{"name": "shell", "arguments": "{\\"command\\": \\"ls\\"}"}',
        '<think>hm</think>\n\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>',
        '```xml\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>\n```',
        '<function_call>{"name": "sh", "parameters": {"command": "ls"}}</function_call>',
        '{"type": "function", "function": {"name": "shell", "arguments": "{\\"command\\": \\"ls\\"}"}}',
    ],
)
def test_calls_written_as_json(reply: str) -> None:
    assert read(reply) == shell("ls")


def test_json_calls_keep_line_breaks_and_closing_tags_in_strings() -> None:
    call = (
        '<tool_call>{"name": "bash", "arguments": {"command": "echo a\necho \\"</tool_call>\\""}}</tool_call>'
    )
    assert read(call) == shell('echo a\necho "</tool_call>"')


REPLACE = '<editor command="str_replace" path="a.py">\n{}\n</editor>'


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("\n    if x:\n        y\n", "    if x:\n        y"),
        ("\n\n\nx\n\n\n", "\n\nx\n\n"),
        ("x", "x"),
        ("", ""),
        ("\n\n", ""),
        ("\n\tx  \n", "\tx  "),
        ("\n<a href='x'>&amp;</a><!-- c -->\n", "<a href='x'>&amp;</a><!-- c -->"),
        ("\n<new>\nx\n</new>\n", "<new>\nx\n</new>"),
        ("\n</old> in the middle\n", "</old> in the middle"),
        ("\n</editor> and </finish>\n", "</editor> and </finish>"),
        ("\n```bash\nrm -r .\n```\n", "```bash\nrm -r .\n```"),
        ("\n<think>\nx\n</think>\n", "<think>\nx\n</think>"),
        ("\r\nx\r\n", "x"),
        ("\n日本語 \x00 é\n", "日本語 \x00 é"),
    ],
)
def test_the_editor_keeps_text_exactly(part: str, text: str) -> None:
    action = read(REPLACE.format(f"<old>{part}</old>\n<new>\nz\n</new>"))
    assert action == Action("editor", {"command": "str_replace", "path": "a.py", "old": text, "new": "z"})


@pytest.mark.parametrize(
    ("reply", "arguments"),
    [
        ('<editor command="view" path="a.py"/>', {"command": "view", "path": "a.py"}),
        ("<editor  path='a \"b\".py'\n command = 'view' ></editor>", {"command": "view", "path": 'a "b".py'}),
        ('<editor command="view" path="a>b.py"/>', {"command": "view", "path": "a>b.py"}),
        ('See:\n```xml\n<editor command="undo" path="a"/>\n```', {"command": "undo", "path": "a"}),
        ('```bash\n<editor command="undo" path="a"/>\n```', {"command": "undo", "path": "a"}),
        (
            '<editor command="create" path="a.md">\n<content>\n```\nx\n```\n</content>\n</editor>',
            {"command": "create", "path": "a.md", "content": "```\nx\n```"},
        ),
        (
            '<editor command="insert" path="a" insert_line="0"><new_str>x</new_str></editor>',
            {"command": "insert", "path": "a", "line": "0", "new": "x"},
        ),
        (
            '```json\n{"name": "str_replace_editor", "arguments": {"command": "insert", "path": "a", "insert_line": 3, '
            '"new_str": "x"}}\n```',
            {"command": "insert", "path": "a", "line": "3", "new": "x"},
        ),
    ],
)
def test_editor_forms(reply: str, arguments: dict[str, str]) -> None:
    assert read(reply) == Action("editor", arguments)


def test_crlf_and_lf_replies_parse_alike() -> None:
    text = REPLACE.format("<old>\n a\n b\n</old>\n<new>\n c\n</new>")
    assert read(text.replace("\n", "\r\n")) == read(text)


def test_finish_and_handoff() -> None:
    assert read("All well.\n<finish>\nFixed it.\n</finish>") == Action("finish", {"message": "Fixed it."})
    assert read("<finish/>") == Action("finish", {})
    assert read("<handoff>Continue.</handoff>", offer_handoff=True) == Action(
        "handoff", {"message": "Continue."}
    )
    assert "no tool 'handoff'" in refusal(read("<handoff>Continue.</handoff>"))


TO = Action("handoff", {"to": "tester", "message": "Continue."})


@pytest.mark.parametrize(
    "reply",
    [
        '<handoff to="tester">Continue.</handoff>',
        "So.\n<handoff to='tester'>\nContinue.\n</handoff>",
        '```xml\n<handoff to="tester">Continue.</handoff>\n```',
        '{"name": "handoff", "arguments": {"to": "tester", "message": "Continue."}}',
        write_action(TO),
    ],
)
def test_a_handoff_can_name_its_target(reply: str) -> None:
    assert read(reply, offer_handoff=True) == TO


def test_a_handoff_tag_counts_under_native_calls() -> None:
    def parse(text: str, offer: bool = True, *calls: str) -> Action | UnreadableReply:
        calls_data = [{"name": name, "args": {"command": "ls"}, "id": name} for name in calls]
        return parse_action(AIMessage(text, tool_calls=calls_data), "native", offer_handoff=offer)

    assert parse('I stop.\n<handoff to="tester">Continue.</handoff>') == TO
    assert parse("<handoff>Continue.</handoff>", True, "shell") == Action("shell", {"command": "ls"})
    assert "no tool 'handoff'" in refusal(parse("<handoff>Continue.</handoff>", False))
    assert "2 actions" in refusal(parse("<handoff>a</handoff><handoff>b</handoff>"))
    assert "no action" in refusal(parse("I would `<handoff>` it."))


def test_the_handoff_schema_lists_the_targets() -> None:
    tools = {
        each["function"]["name"]: each["function"]
        for each in build_tool_schemas(offer_handoff=True, agents=("a", "b"))
    }
    assert tools["handoff"]["parameters"]["properties"]["to"]["enum"] == ["a", "b"]


@pytest.mark.parametrize(
    ("reply", "parts"),
    [
        ("", ["no action", "```bash"]),
        ("I think I am done.", ["no action", "exactly one"]),
        ("Use `ls` now.", ["no action"]),
        ("```\nls\n```", ["no language", "```bash"]),
        ("```python\nprint(1)\n```", ["no action", "```bash"]),
        ("```bash\nls\n```\n```bash\npwd\n```", ["2 actions (shell, shell)", "exactly one"]),
        ("```bash\nls\n```\n<finish>x</finish>", ["2 actions", "exactly one"]),
        ('```xml\n<editor command="undo" path="a"/>\n```\n```bash\nls\n```', ["2 actions (editor, shell)"]),
        ("<finish> is not due yet\n```bash\nls\n```\n<finish>x</finish>", ["2 actions"]),
        ("```bash\nls", ["never closed", "a line ```"]),
        ("~~~~sh\nls\n~~~", ["never closed", "a line ~~~~"]),
        ("```bash\ncat <<EOF\n<finish>x</finish>", ["never closed"]),
        ("<finish>x", ["never closed", "</finish>"]),
        ('<editor command="create" path="a"><content>x', ["</content>", "</editor>"]),
        ('<editor command="create" path="a"><content>x</content>', ["</content>", "</editor>"]),
        ('<editor command="create" path="a">x</editor>', ["outside its parts", "<content>"]),
        ('<editor command="view" path=a.py/>', ["attributes", 'name="value"']),
        ("<think>all of it", ["no action"]),
        ("<tool_call>\nls\n</tool_call>", ["not valid JSON", '"arguments"']),
        ("<tool_call>[1]</tool_call>", ["not a JSON object", '"arguments"']),
        (
            '<tool_call>{"name": "browser", "arguments": {}}</tool_call>',
            ["no tool 'browser'", "shell, editor"],
        ),
        ('<editor command="delete" path="a"/>', ["no command 'delete'", "str_replace"]),
        ('<editor path="a"/>', ["lacks command", "<editor"]),
        ('<editor command="str_replace" path="a"/>', ["lacks old and new", "<old>"]),
        ('<editor command="view" path="a" depth="2"/>', ["takes no depth", "<editor"]),
        ('<editor command="view" path="a" start="-1"/>', ["start must be a line number", "'-1'"]),
        ('<editor command="view" path="a" end="²"/>', ["end must be a line number"]),
        (f'<editor command="view" path="a" end="{"9" * 5000}"/>', ["end must be a line number"]),
        ('{"name": "shell", "arguments": {"command": ["ls", "-l"]}}', ["must be text", "```bash"]),
        ('{"name": "shell", "arguments": {"command": {"a": 1}}}', ["must be text"]),
        ('{"name": "shell", "arguments": {"command": "ls", "timeout": 5}}', ["takes no timeout", "```bash"]),
        ('{"name": "shell", "arguments": {}}', ["lacks command", "```bash"]),
        ("```bash\n\n  \n```", ["empty", "```bash"]),
    ],
)
def test_corrections_name_the_problem_and_the_right_form(reply: str, parts: list[str]) -> None:
    correction = refusal(read(reply))
    for part in parts:
        assert part in correction


def test_the_correction_of_a_truncated_reply_says_so() -> None:
    for text in ("I think", "```bash\ncat <<EOF\nx", '<editor command="create" path="a"><content>\nx'):
        assert "cut off at its length limit" in refusal(read(text, cut=True))
    assert read("```bash\nls\n```", cut=True) == shell("ls")


def test_examples_in_corrections_can_be_parsed() -> None:
    for command in EDITOR_COMMANDS:
        correction = refusal(read(f'<editor command="{command}"/>'))
        shown = read(correction[correction.index("Send ") :])
        assert isinstance(shown, Action)
        assert shown.arguments["command"] == command


MEGABYTE = "Hmm, `x` < y; <b> and ~ or ``` inline, <think or [1, 2]. \n" * 17_000


@pytest.mark.cases(8)
@pytest.mark.parametrize(
    "reply",
    [
        MEGABYTE,
        f"<think>{MEGABYTE}</think>\nok",
        "<editor " * 50_000,
        '<editor a="b" ' * 50_000,
        "<editor a='" * 50_000,
        "<editor>" * 50_000,
        '<editor command="x" path="y"><old>' * 30_000,
        "<editor><old></old>" * 30_000,
        "<editor><old>" + "</old> " * 100_000,
        "<finish>" * 50_000,
        "<finish>" * 50_000 + "x</finish>" * 2,
        "```bash\n" * 50_000,
        "```\n" * 50_001,
        "```python\n" * 50_000,
        "~~~sh\nx\n~~~\n" * 50_000,
        "```bash\ncat <<E\n```\n" * 50_000,
        "```bash\n" + "cat <<E\n```\nE\n" * 50_000,
        "```" + "a" * 1_000_000 + "`",
        "`" * 1_000_000,
        " " * 1_000_000,
        "\n" * 1_000_000,
        "".join("`" * n + "\n" for n in range(3, 1000)),
        "<tool_call>" * 50_000,
        "<tool_call>{" * 50_000,
        '<tool_call>{"a":' * 50_000,
        "<tool_call>" + "[" * 200_000,
        "```json\n" + '{"a":' * 200_000 + "\n```",
        "[" * 200_000,
        "<think>" * 100_000,
        "</think>" * 100_000,
        "<editor" + " " * 500_000 + "\n" * 500_000,
        "<editor " + "a" * 1_000_000,
        "\ud800\x00" * 100_000,
    ],
    ids=lambda reply: repr(reply[:24]),
)
@pytest.mark.timeout(30)
def test_no_reply_takes_long_to_parse(reply: str) -> None:
    assert isinstance(read(reply), Action | UnreadableReply)


@pytest.mark.parametrize(("blocks", "is_seen"), [(9_999, True), (10_000, False)])
def test_an_action_behind_thousands_of_blocks(blocks: int, is_seen: bool) -> None:
    action = read("```python\nx\n```\n" * blocks + "```bash\nls\n```")
    assert isinstance(action, Action) == is_seen


def test_an_action_after_a_megabyte_of_thought() -> None:
    assert read(f"<think>{MEGABYTE}</think>\n\n```bash\nls\n```") == shell("ls")
    assert read(f"{MEGABYTE}\n```bash\nls\n```") == shell("ls")


def test_nul_and_surrogate_reach_the_action_unchanged() -> None:
    assert read("```bash\necho a\x00\udcff\n```") == shell("echo a\x00\udcff")


MARKS = "``` ````bash ~~~ <old> </new> </content> <editor <finish> </think> <think> <tool_call> EOF $ \" ' \\ é { } >"
FRAGMENTS = st.sampled_from((*MARKS.split(), "cat <<EOF", "\n", "  ", "\t", "\r\n", "$ ", "\x00"))
TEXTS = st.lists(FRAGMENTS | st.text(max_size=8), max_size=12).map("".join)
# The tags have no escapes, so a part cannot contain this.
ENDS = re.compile(
    r"</(old|new|content)>\s*(</editor>|<(old|new|content|old_str|new_str|file_text|insert_text)>)"
)
PARTS = TEXTS.filter(lambda text: not ENDS.search(text + "</editor>") and not text.startswith("\r\n"))
PATHS = st.text("abc /.-_>é日=", min_size=1, max_size=12) | st.just('with "quotes".py') | st.just("it's.py")
LINES = st.integers(0, 10_000).map(str)
EDITS = st.one_of(
    st.fixed_dictionaries({"path": PATHS}, optional={"start": LINES, "end": LINES}).map(
        lambda a: {"command": "view"} | a
    ),
    st.fixed_dictionaries({"path": PATHS, "content": PARTS}).map(lambda a: {"command": "create"} | a),
    st.fixed_dictionaries({"path": PATHS, "old": PARTS, "new": PARTS}).map(
        lambda a: {"command": "str_replace"} | a
    ),
    st.fixed_dictionaries({"path": PATHS, "line": LINES, "new": PARTS}).map(
        lambda a: {"command": "insert"} | a
    ),
    st.fixed_dictionaries({"path": PATHS}).map(lambda a: {"command": "undo"} | a),
)
COMMANDS = TEXTS.filter(
    lambda text: text.strip() and not re.match(r"\s*<(editor\s+\w+\s*=|finish\s*/?>|tool_call>)", text)
)
MESSAGES = st.text("ab .,`é\n", max_size=20).map(str.strip)
ACTIONS = st.one_of(
    COMMANDS.map(shell),
    EDITS.map(lambda arguments: Action("editor", arguments)),
    MESSAGES.map(lambda text: Action("finish", {"message": text} if text else {})),
)


@given(ACTIONS, st.sampled_from(["", "I look.\n\n", "<think>\n```bash\nx\n```\n</think>\n\n"]))
@settings(max_examples=examples(300))
@example(shell("ls\n"), "")
@example(shell("<editor"), "")
@example(shell("<finish x"), "")
@example(shell("cat <<'EOF'\n```\nx\n```\nEOF"), "")
def test_written_actions_parse_back(action: Action, thought: str) -> None:
    assert read(thought + write_action(action)) == action


@given(TEXTS)
@settings(max_examples=examples(300))
def test_no_reply_breaks_the_parser(text: str) -> None:
    action = read(text)
    assert isinstance(action, Action | UnreadableReply)


def test_native_calls() -> None:
    assert native(("shell", '{"command": "ls"}')) == shell("ls")
    assert native(("editor", '{"command": "view", "path": "a", "start": 3}'), content="I look.") == Action(
        "editor", {"command": "view", "path": "a", "start": "3"}
    )
    assert native(("finish", "{}")) == Action("finish", {})


@pytest.mark.parametrize(
    ("calls", "parts"),
    [
        ([], ["no action", "exactly one tool call"]),
        ([("shell", '{"command": "ls')], ["shell are not valid JSON", '{"command": "…"}']),
        ([("shell", "ls")], ["shell are not valid JSON", '{"command": "…"}']),
        (
            [("shell", '{"command": "ls"}'), ("shell", '{"command": "pwd"}')],
            ["2 actions (shell, shell)", "exactly one"],
        ),
        ([("shell", '{"command": "ls"}'), ("shell", "{")], ["2 actions", "exactly one"]),
        ([("browse", '{"url": "x"}')], ["no tool 'browse'", "exactly one tool call"]),
        ([("shell", "{}")], ["lacks command", '{"command": "…"}']),
        ([("shell", '{"command": null}')], ["lacks command"]),
        ([("shell", '{"command": ["ls"]}')], ["must be text", '{"command": "…"}']),
        (
            [("editor", '{"command": "insert", "path": "a", "line": 1.5, "new": "x"}')],
            ["line must be", "1.5"],
        ),
        ([("editor", '{"command": "str_replace", "path": "a"}')], ["lacks old and new", '"old": "…"']),
    ],
)
def test_native_corrections(calls: list[tuple[str, object]], parts: list[str]) -> None:
    correction = refusal(native(*calls))
    for part in parts:
        assert part in correction


def test_text_is_not_an_action_under_native_calls() -> None:
    assert "exactly one tool call" in refusal(native(content="```bash\nls\n```"))


def test_the_parser_accepts_all_arguments_of_the_schemas() -> None:
    for offer in (False, True):
        tools = {
            tool["function"]["name"]: tool["function"] for tool in build_tool_schemas(offer_handoff=offer)
        }
        assert ("handoff" in tools) is offer
        for name, function in tools.items():
            filled = {
                key: "12" if key != "command" else "view" for key in function["parameters"]["properties"]
            }
            reply = AIMessage("", tool_calls=[{"name": name, "args": filled, "id": "1"}])
            assert parse_action(reply, "native", offer_handoff=offer) == Action(name, filled)
        json.dumps(tools)
