"""Documents in the forms in which agents write ATIF, each with one run of a few steps."""

from __future__ import annotations

import json
from typing import Any

TASK = "Make tests/test_a.py pass."


def document(agent: str, *steps: dict[str, Any], version: str = "ATIF-v1.8", **more: Any) -> dict[str, Any]:
    """A document with numbered steps, of which the first is the task."""
    rows = [{"source": "user", "message": TASK}, *steps]
    return {
        "schema_version": version,
        "session_id": f"session-{agent}",
        "agent": {"name": agent, "version": "1.2.3", "model_name": "vendor/model"},
        "steps": [{"step_id": number, **row} for number, row in enumerate(rows, 1)],
        **more,
    }


def reply(message: Any, *calls: dict[str, Any], tokens: int = 10, **more: Any) -> dict[str, Any]:
    """A step of the agent, with the calls and results of `call`, or the `results` that are given."""
    step: dict[str, Any] = {"source": "agent", "message": message}
    if calls:
        step["tool_calls"] = [{k: v for k, v in one.items() if k != "content"} for one in calls]
    results = more.pop("results", None) or [
        {"source_call_id": one["tool_call_id"], "content": one["content"]}
        for one in calls
        if "content" in one
    ]
    if results:
        step["observation"] = {"results": results}
    return {**step, "metrics": {"prompt_tokens": tokens, "completion_tokens": 2, "cost_usd": 0.01}, **more}


def call(number: int, name: str, arguments: dict[str, Any], content: Any = None) -> dict[str, Any]:
    """A tool call with the content of its result."""
    row = {"tool_call_id": f"c{number}", "function_name": name, "arguments": arguments}
    return row if content is None else {**row, "content": content}


def keys(*commands: str, is_complete: bool = False) -> str:
    """A reply of an agent whose protocol is a JSON object of keystrokes."""
    rows = [{"keystrokes": command + "\n", "duration": 0.1} for command in commands]
    return json.dumps({"analysis": "a", "plan": "p", "commands": rows, "task_complete": is_complete})


EDIT = {"command": "str_replace", "path": "/app/src/a.py", "old_str": "x = 1", "new_str": "x = 2"}
REPLACE = {"file_path": "/app/src/a.py", "old_string": "x = 1", "new_string": "x = 2"}
READ = call(1, "Read", {"file_path": "/app/src/a.py"}, "x = 1")
PYTEST = {"command": "pytest -q"}
WRITE = "cat > /app/src/a.py <<'EOF'\nx = 2\nEOF"
FUNCTION = f"<function=execute_bash>\n<parameter=command>\n{WRITE}\n</parameter>\n</function>"
TAGS = (
    "<response><commands><keystrokes duration='0.1'>echo 'x = 2' > src/a.py\n</keystrokes>"
    "<keystrokes>pytest -q\n</keystrokes></commands><task_complete>true</task_complete></response>"
)
MEDIA = [
    {"type": "text", "text": "shown"},
    {"type": "image", "source": {"media_type": "image/png", "path": "images/1.png"}},
    {"type": "audio", "source": {"media_type": "audio/wav", "path": "sound/1.wav"}},
]
RESULTS = [
    {"source_call_id": "c1", "content": "one", "extra": {"part": 1}},
    {"source_call_id": "c1", "content": "two"},
    {"content": "without an id"},
    {"content": "more"},
]
SUMMARY = {
    "source": "system",
    "message": "Context was summarised.",
    "observation": {"results": [{"content": "s"}]},
}
CHILD = {"source_call_id": "c1", "content": "a.py", "subagent_trajectory_ref": [{"trajectory_id": "child"}]}
PASSED = [{"content": "1 passed in 0.10s"}]
SUBAGENT = document("qwen-coder", reply("I look.", call(1, "Bash", {"command": "ls"}, "a.py")))
EXAMPLES: dict[str, dict[str, Any]] = {
    "calls of one reply": document(
        "claude-code",
        reply("First the tests.", tokens=5),
        reply("", READ, call(2, "Bash", PYTEST, "1 failed in 0.1s\n[exit_code] 1"), reasoning_content="private"),
        reply("Fix it.", call(3, "Edit", REPLACE, "The file /app/src/a.py has been updated.")),
        reply("Which test next?"),
        {"source": "user", "message": "All of them."},
        reply("", call(4, "Bash", PYTEST, "1 passed in 0.1s")),
        reply("Done: x is 2."),
    ),
    "thought by a call": document(
        "openhands",
        reply("", call(1, "think", {"thought": "x is wrong"}, "Your thought has been logged."), tokens=7),
        reply("I edit.", call(2, "str_replace_editor", EDIT, "The file /app/src/a.py has been edited.")),
        reply("Ready.", call(3, "finish", {"message": "x is 2"})),
    ),
    "functions as text": document(
        "openhands",
        reply(FUNCTION, results=[{"content": "[The command completed with exit code 0.]"}]),
        reply("I forgot the function.", results=[{"content": "Please call a function."}]),
        reply("<function=finish>\n<parameter=message>Done</parameter>\n</function>"),
        version="ATIF-v1.5",
    ),
    "keystrokes as calls": document(
        "terminus-2",
        reply(
            "Analysis: a",
            call(1, "bash_command", {"keystrokes": "echo 'x = 2' > src/a.py\n", "duration": 0.1}),
            call(2, "bash_command", {"keystrokes": "pytest -q\n", "duration": 9}),
            call(3, "mark_task_complete", {}),
            results=[{"content": "New Terminal Output:\n1 passed in 0.10s"}],
        ),
        version="ATIF-v1.6",
    ),
    "keystrokes as JSON": document(
        "terminus-2",
        reply(keys("echo 'x = 2' > src/a.py", "pytest -q"), results=PASSED),
        reply("no JSON", results=[{"content": "ERROR: Missing required fields"}]),
        reply(keys(is_complete=True), results=[{"content": "Are you sure?"}]),
        version="ATIF-v1.6",
    ),
    "keystrokes as tags": document(
        "terminus-2",
        reply(TAGS, results=PASSED),
    ),
    "a block as text": document(
        "mini-swe-agent",
        reply("I list.\n\n```bash\nls\n```", results=[{"content": "<returncode>0</returncode>\n<output>\na.py</output>"}]),
        reply("```bash\nls\n```\n```bash\npwd\n```", results=[{"content": "EXACTLY ONE action, please"}]),
    ),
    "images and audio": document(
        "other",
        reply([{"type": "text", "text": "See:"}], call(1, "screenshot", {"window": "main"}, MEDIA)),
    ),
    "results of several kinds": document(
        "other",
        reply("", call(1, "Bash", {"command": "make"}), call(2, "Bash", {"command": "ls"}), results=RESULTS),
        SUMMARY,
        {"source": "agent", "message": "", "llm_call_count": 0},
    ),
    "embedded subagents": document(
        "qwen-coder",
        reply("Ask.", call(1, "task", {"prompt": "look"}), results=[CHILD]),
        trajectory_id="parent",
        subagent_trajectories=[{**SUBAGENT, "trajectory_id": "child"}],
        final_metrics={"total_steps": 2, "total_cost_usd": 0.02, "extra": {"vendor": 1}},
    ),
}  # fmt: skip
