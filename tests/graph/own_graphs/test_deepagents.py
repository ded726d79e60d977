"""The backend for deepagents passes langchain-tests' suite, its agents keep their sandbox, and MCP tools work beside.

`make deepagents` installs deepagents in an environment of its own, where these tests run files beside this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...conftest import skip_missing
from ...deepagents_environment import find_deepagents

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
CONTRADICTED = (
    "test_write_existing_file_fails",  # `write` overwrites
    "test_glob",  # matches are absolute, and only files
    "test_glob_basic_pattern",
    "test_glob_with_directories",
    "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class",
    "test_glob_with_question_mark",
)
"""Tests of langchain-tests 1.1.9 that contradict the protocol of deepagents 0.7; 0.6 agrees with all."""


def run_tests(file: str, *options: str, path: str = "") -> None:
    """Run a file in the environment of deepagents; its failures are those of this test."""
    environment = find_deepagents()
    done = subprocess.run(
        [
            *(environment / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:langsmith"),
            # Comparing long texts to explain a failure takes hours.
            *(
                "--assert=plain",
                "--tb=short",
                "--timeout=120",
                "-o",
                "asyncio_mode=auto",
                *options,
                HERE / file,
            ),
        ],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(filter(None, [path and str(environment / path), str(ROOT)]))},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_the_whole_standard_suite_passes() -> None:
    """With deepagents 0.6, whose protocol the suite describes."""
    run_tests("deepagents_suite.py", path="0.6")


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_the_standard_suite_passes_as_far_as_deepagents_agrees() -> None:
    prefix = f"{HERE.relative_to(ROOT) / 'deepagents_suite.py'}::TestSandboxBackend::"
    # A bracket, because pytest deselects by prefix.
    run_tests("deepagents_suite.py", *(f"--deselect={prefix}{name}[" for name in CONTRADICTED))


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_agents_keep_their_sandbox() -> None:
    run_tests("deepagents_agents.py")


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_tasks_work_side_by_side() -> None:
    run_tests("deepagents_tasks.py")


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_mcp_tools_beside_ours() -> None:
    if not (find_deepagents() / "mcp").exists():
        skip_missing("langchain-mcp-adapters is not installed (make deepagents)")
    run_tests("mcp_tools.py", path="mcp")


def test_a_missing_extra_is_one_line() -> None:
    program = "import sys; sys.modules['deepagents'] = None; import langgraph_takeover.deepagents"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "pip install 'langgraph-takeover[deepagents]'" in done.stderr.splitlines()[-1]
