"""Files that the documents and docstrings cite exist: in the repository, or where the text says that they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from .test_layers import LAYERS
from .wheels import ROOT, list_tracked_files

_FILE = re.compile(
    r"(?<![\w./~:*@-])((?:[\w.*-]+/)*[\w.*-]+\.(?:py|md|yaml|yml|toml|json|jsonl|css|js|html|png|txt))(?![\w/-])"
)
_CITED_DIRECTORIES = (*LAYERS, "langgraph_takeover", "tests", "docs", "examples", "benchmarks", ".ci")
_DIRECTORY = re.compile(rf"`((?:{'|'.join(map(re.escape, _CITED_DIRECTORIES))})/(?:[\w.-]+/)*)`")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = {
    # of a run, of a record, or of a published dataset
    "injections.jsonl", "notes.json", "poison.json", "poison.jsonl", "record.json", "report.html", "review.json",
    "state.json", "summary.json", "traces/*.json",
    # of an example's run
    "DIRECTORY/trace.json",
    # a session of an external agent
    ".aider.chat.history.md", "agents/main/wire.jsonl", "context.jsonl", "events.jsonl", "wire.jsonl",
    "chats/session-*.json",
    # a recorded run, or its suffix
    ".traj.json", "*.traj.json", "RUN.traj.json", "event-*.json", "output.jsonl",
    "pydicom__pydicom-1458.swe-agent-0.x.json", "run.traj.json",
    # of the reader's repository, of a task's, or of an external agent
    ".claude/settings.json", ".codex/config.toml", ".git/takeover/images/3f2a91c4b1d0.png",
    ".git/takeover/prompt.md", ".mcp.json", ".opencode/plugin/*.js",
    ".qwen/settings.json", "AGENTS.md", "CLAUDE.md", "Node.js", "errors.txt", "galley/wrap.py", "mini.yaml", "new.txt",
    "reproduce_issue.py", "runtests.py", "setup.py", "src/core.py", "sympy/core/symbol.py", "test_my_agent.py", "x.py",
}  # fmt: skip
"""Files that the texts cite, and that are not in the repository; each text says where they are."""


def list_documents() -> dict[str, str]:
    """The prose of the documents: examples in code blocks name the reader's files."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    return {str(path.relative_to(ROOT)): _FENCE.sub("", path.read_text(encoding="utf-8")) for path in paths}


def list_docstrings(package: str) -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        if "suite" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}: {getattr(node, 'name', '')}", ast.get_docstring(node) or ""


@cache
def list_tails() -> frozenset[str]:
    """Each file's path without some of its first folders: a text may name a file within its package."""
    return frozenset(
        "/".join(parts[start:])
        for name in list_tracked_files()
        for parts in [name.split("/")]
        for start in range(len(parts))
    )


def find_missing(text: str) -> list[str]:
    """The cited files and directories that do not exist."""
    files = [each for each in _FILE.findall(text) if each not in ELSEWHERE | list_tails()]
    lost = [each for each in files if "*" not in each or not [*ROOT.glob(each)]]
    return [*lost, *(each for each in _DIRECTORY.findall(text) if not (ROOT / each).is_dir())]


@pytest.mark.parametrize("name", list_documents())
def test_files_that_a_document_cites_exist(name: str) -> None:
    assert find_missing(list_documents()[name]) == []


@pytest.mark.parametrize("package", [*LAYERS, "langgraph_takeover", "benchmarks"])
def test_files_that_docstrings_cite_exist(package: str) -> None:
    missing = {place: lost for place, text in list_docstrings(package) if (lost := find_missing(text))}
    assert missing == {}


def test_a_missing_file_is_detected() -> None:
    assert find_missing(
        "See `handoff/agents/interactive.py` and `graph/continuation/terminal_start.py`."
    ) == ["handoff/agents/interactive.py"]
    assert find_missing("in `handoff/nowhere/`, `docs/nothing*.md`") == [
        "docs/nothing*.md",
        "handoff/nowhere/",
    ]
    assert find_missing("`sandboxes/attacks.py` and `docs/*.md`, written to report.html") == []


def test_no_exception_is_left_over() -> None:
    texts = [*list_documents().values()]
    for package in (*LAYERS, "langgraph_takeover", "benchmarks"):
        texts += [text for _, text in list_docstrings(package)]
    assert {cited for text in texts for cited in _FILE.findall(text)} - list_tails() >= ELSEWHERE
