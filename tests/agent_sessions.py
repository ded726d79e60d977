"""Sessions of external agents as their programs write them, and a repository in which they ran."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECRET = "z8Kp2mQx7Lw4Vt9R"
TASK = "total([1, 2]) must be 3. Fix shop/price.py and run the tests."
BROKEN = "def total(prices):\n    return sum(prices) + 1\n"
TEST = """import unittest

from shop.price import total


class TotalTest(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2]), 3)
"""
STAMP = "2026-01-01T00:00:00.000Z"
EDIT = "sed -i 's/ + 1/ - 1/' shop/price.py"
FAILURE = "F\nFAIL: test_total\nAssertionError: 2 != 3\nRan 1 test in 0.001s\n\nFAILED (failures=1)\n"


def run_git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=dev", "-c", "user.email=dev@example.org"]
    done = subprocess.run(
        ["git", "-C", str(directory), *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def make_repository(directory: Path) -> Path:
    """A repository with a commit, the agent's edit, an untracked and an ignored file."""
    (directory / "shop").mkdir(parents=True)
    for name, text in {
        "shop/__init__.py": "",
        "shop/price.py": BROKEN,
        "test_price.py": TEST,
        ".gitignore": ".env\n",
    }.items():
        (directory / name).write_text(text)
    run_git(directory, "init", "-q")
    run_git(directory, "add", "-A")
    run_git(directory, "commit", "-qm", "Start")
    (directory / "shop/price.py").write_text(BROKEN.replace(" + 1", " - 1"))
    (directory / "notes.txt").write_text("mine\n")
    (directory / ".env").write_text(f"SHOP_API_TOKEN={SECRET}\n")
    return directory


def list_default_steps(repository: Path) -> list[tuple[str, str, int]]:
    """Commands with output and exit code: read, edit, and a failed test."""
    return [
        (f"cat {repository}/shop/price.py .env", f"{BROKEN}SHOP_API_TOKEN={SECRET}\n", 0),
        (EDIT, "", 0),
        ("python3 -m unittest -q", FAILURE, 1),
    ]


def write_codex_session(
    home: Path, cwd: str, steps: Sequence[tuple[str, str, int]], *, session_id: str = "", prompt: str = TASK
) -> Path:
    """Write a rollout of Codex with these commands."""
    session_id = session_id or str(uuid.uuid4())
    meta = {
        "id": session_id,
        "timestamp": STAMP,
        "cwd": cwd,
        "originator": "codex_cli_rs",
        "cli_version": "0.169.0",
    }
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}
    ]
    for number, (command, output, code) in enumerate(steps):
        call_id = f"call_{number}"
        text = f"Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code {code}\nOriginal token count: 9\nOutput:\n{output}"
        items += [
            {"type": "function_call", "name": "exec_command", "arguments": json.dumps({"cmd": command}), "call_id": call_id},
            {"type": "function_call_output", "call_id": call_id, "output": text},
        ]  # fmt: skip
    rows = [{"timestamp": STAMP, "type": "session_meta", "payload": meta}]
    rows += [{"timestamp": STAMP, "type": "response_item", "payload": item} for item in items]
    path = home / ".codex/sessions/2026/01/01" / f"rollout-2026-01-01T00-00-00-{session_id}.jsonl"
    return _write_rows(path, rows)


def write_claude_session(
    home: Path, cwd: str, steps: Sequence[tuple[str, str, int]], *, session_id: str = "", prompt: str = TASK
) -> Path:
    """Write a session file of Claude Code with these commands."""
    session_id = session_id or str(uuid.uuid4())
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for number, (command, output, code) in enumerate(steps):
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"command": command}}
        text = f"Exit code {code}\n{output}" if code else output
        result = {
            "type": "tool_result",
            "tool_use_id": f"toolu_{number}",
            "content": text,
            "is_error": code != 0,
        }
        messages += [
            {"id": f"msg_{number}", "role": "assistant", "model": "claude-x", "content": [use]},
            {"role": "user", "content": [result]},
        ]
    rows, parent = [], None
    for message in messages:
        line_id = str(uuid.uuid4())
        rows.append(
            {"parentUuid": parent, "isSidechain": False, "type": message["role"], "message": message, "uuid": line_id,
             "timestamp": STAMP, "cwd": cwd, "sessionId": session_id, "version": "2.1.197"}
        )  # fmt: skip
        parent = line_id
    directory = "".join(letter if letter.isalnum() else "-" for letter in cwd)
    return _write_rows(home / ".claude/projects" / directory / f"{session_id}.jsonl", rows)


def _write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def describe_tree(directory: Path) -> dict[str, tuple[int, str]]:
    """Mode and content of everything below a directory, git's index excepted."""
    found: dict[str, tuple[int, str]] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if name == ".git/index":
            continue
        info = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes().hex()
        found[name] = (info.st_mode, content)
    return found


def set_modified(path: Path, seconds: float) -> None:
    os.utime(path, (seconds, seconds))
