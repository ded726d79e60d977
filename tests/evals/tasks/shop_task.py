"""A small task of a user: a repository with a fault, its fix, and two modules of tests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from langgraph_takeover.evals.tasks import Task, load_tasks
from langgraph_takeover.sandbox.interface import SandboxSpec

FIXED = "test_every_price_counts (test_till.TotalTests.test_every_price_counts)"
KEPT = "test_nothing (test_till.TotalTests.test_nothing)"
GOOD_TILL = "def total(prices):\n    return sum(prices)\n"
BAD_TILL = "def total(prices):\n    return max(prices, default=0)\n"
_TESTS = """import unittest

from till import total


class TotalTests(unittest.TestCase):
    def test_nothing(self):
        self.assertEqual(total([]), 0)
"""
_MORE_TESTS = """
    def test_every_price_counts(self):
        self.assertEqual(total([2, 3]), 5)
"""
_OTHER_TESTS = (
    "import unittest\n\n\nclass OtherTests(unittest.TestCase):\n    def test_other(self):\n        pass\n"
)
_FILES = {"till.py": BAD_TILL, "test_till.py": _TESTS, "test_other.py": _OTHER_TESTS}
UNITTEST = "python3 -m unittest -v test_till"


def _run_git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=you", "-c", "user.email=you@localhost")
    command = ["git", "-C", str(directory), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Shop:
    """A task repo at `root/mine` with one task, and patches of its repository."""

    def __init__(self, root: Path, name: str = "shop__shop-1", *, run: str = UNITTEST, **fields: str) -> None:
        self.repository = root / "shop"
        self.repository.mkdir(parents=True)
        _run_git(self.repository, "init", "-q", "-b", "main")
        for file, text in _FILES.items():
            (self.repository / file).write_text(text)
        _run_git(self.repository, "add", ".")
        _run_git(self.repository, "commit", "-q", "-m", "Add a till")
        self.gold = self.make_patch("till.py", GOOD_TILL)
        self.source = root / "mine"
        self.directory = self.source / "tasks" / name
        self.directory.mkdir(parents=True)
        test_patch = self.make_patch("test_till.py", _TESTS + _MORE_TESTS)
        base = _run_git(self.repository, "rev-parse", "HEAD").strip()
        script = (
            f"cd /testbed\ngit checkout -q {base} test_till.py\ngit apply - <<'PATCH'\n{test_patch}PATCH\n"
            f": '>>>>> Start Test Output'\n{run}\n: '>>>>> End Test Output'\n"
        )
        metadata = {
            "instance_id": name,
            "repo": "you/shop",
            "version": "'1'",
            "base_commit": base,
            "log_parser": "parse_log_django",
            "eval_type": "pass_and_fail",
        } | fields
        files = {
            "repo.fast-export": _run_git(self.repository, "fast-export", "main"),
            "task.yaml": "".join(f"{field}: {value}\n" for field, value in metadata.items()),
            "tests.json": json.dumps({"FAIL_TO_PASS": [FIXED], "PASS_TO_PASS": [KEPT]}),
            "problem_statement.md": "`total` counts only the largest price.\n",
            "gold.patch": self.gold,
            "test.patch": test_patch,
            "eval.sh": f"set -x\n{script}",
        }
        for file, text in files.items():
            (self.directory / file).write_text(text)

    def make_patch(self, file: str, text: str) -> str:
        """The patch that gives a file another content."""
        (self.repository / file).write_text(text)
        _run_git(self.repository, "add", "-N", ".")
        patch = _run_git(self.repository, "diff")
        _run_git(self.repository, "reset", "-q", "--hard")
        _run_git(self.repository, "clean", "-fdq")
        return patch

    def rewrite(self, file: str, old: str, new: str) -> None:
        """Change a file of the task byte by byte."""
        path = self.directory / file
        path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))

    def load(self) -> Task:
        (task,) = load_tasks(str(self.source))
        return task

    def build_spec(self, task: Task) -> SandboxSpec:
        """The sandbox without isolation in which the task starts, checked out."""
        work = self.source.parent / "work"
        task.check_out(work)
        return task.build_spec("process", "shop", work)
