"""Notes about recorded runs by an entry of a models file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from langgraph_takeover.evals.notes import main

from ..chat_server import ChatServer
from ..command_line import call_main
from .conftest import assert_refused

COMMANDS = ("cat till.py", "sed -i 's/max/sum/' till.py", "python3 -m unittest test_till")
OUTPUTS = ("return max(prices)", "", "Ran 1 test in 0.000s\n\nOK")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    messages = [{"role": "user", "content": "`total` counts only the largest price."}]
    for command, output in zip(COMMANDS, OUTPUTS, strict=True):
        messages.append({"role": "assistant", "content": f"```bash\n{command}\n```"})
        text = f"<returncode>0</returncode>\n<output>\n{output}\n</output>"
        messages.append({"role": "user", "content": text})
    path = tmp_path / "run.traj.json"
    path.write_text(json.dumps({"messages": messages}))
    return path


def test_an_entry_writes_notes(trace: Path, chat_server: ChatServer, tmp_path: Path) -> None:
    models = tmp_path / "models.yaml"
    models.write_text(f"writer: {{model: served, base_url: '{chat_server.url}', extra_body: {{top_k: 3}}}}\n")
    chat_server.answer = lambda request: chat_server.reply('{"work_completed": ["Edited till.py"]}')
    done = call_main(main, trace, "--models", models, "--model", "writer", "--out", tmp_path / "notes")
    assert done.returncode == 0, done.stderr
    assert {(request["model"], request["top_k"]) for request in chat_server.requests} == {("served", 3)}
    (path,) = (tmp_path / "notes").iterdir()
    assert json.loads(path.read_text())["model"] == "writer"


def test_a_prompt_beyond_the_window_of_the_entry_is_not_sent(
    trace: Path, chat_server: ChatServer, tmp_path: Path
) -> None:
    content = json.loads(trace.read_text())
    content["messages"][0]["content"] += " I wonder." * 2000
    trace.write_text(json.dumps(content))
    models = tmp_path / "models.yaml"
    models.write_text(f"writer: {{base_url: '{chat_server.url}', window: 2000}}\n")
    done = call_main(main, trace, "--models", models, "--model", "writer", "--out", tmp_path / "notes")
    assert done.returncode == 0, done.stderr
    sizes = [sum(len(each["content"]) for each in request["messages"]) for request in chat_server.requests]
    assert max(sizes, default=0) < 8000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "writer"), "unknown model 'writer'"),
        (("--model", "writer", "--models", "/nowhere.yaml"), "error: --models: /nowhere.yaml: no such file"),
        (("--model", "builtin:oracle"), "cannot write notes about recorded runs (use an LLM"),
    ],
)
def test_bad_usage_is_one_clear_line(trace: Path, arguments: tuple[str, ...], message: str) -> None:
    assert_refused(call_main(main, trace, *arguments, "--out", trace.parent / "notes"), message)
