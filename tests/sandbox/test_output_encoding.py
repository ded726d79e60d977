"""Standard output of every command, whatever its encoding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRINT = (
    "from langgraph_takeover.sandbox.cli.program import degrade_output; degrade_output(); "
    r"print('\u0394 1\u20132 \u4e2d\u2026 \udcff')"
)
LOOK_ALIKES = rb"delta 1-2 \u4e2d... "


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [
        ("ascii", LOOK_ALIKES + rb"\udcff"),
        ("latin-1", LOOK_ALIKES + rb"\udcff"),
        ("ascii:surrogateescape", LOOK_ALIKES + b"\xff"),
        ("cp1252", LOOK_ALIKES.replace(b"1-2", b"1\x962").replace(b"...", b"\x85") + rb"\udcff"),
        ("utf-8", "\u0394 1\u20132 \u4e2d\u2026 ".encode() + rb"\udcff"),
        ("ascii:replace", b"? 1?2 ?? ?"),
    ],
)
def test_characters_that_the_encoding_lacks_are_degraded(encoding: str, printed: bytes) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-c", PRINT], cwd=ROOT, env=environment, capture_output=True, check=True
    )
    assert done.stdout.rstrip(b"\n") == printed


def test_closed_streams_write_to_nowhere() -> None:
    program = (
        "import sys; from langgraph_takeover.sandbox.cli.program import degrade_output; degrade_output(); "
        "print(sys.stdout.isatty(), flush=True); print('lost', file=sys.stderr, flush=True)"
    )
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-c", program]
    assert subprocess.run(closed, cwd=ROOT, check=False).returncode == 0


def test_every_command_degrades_its_output() -> None:
    mains = [*(ROOT / "evals").glob("*.py"), ROOT / "graph/cli/handoff_cli.py", ROOT / "sandbox/cli/main.py"]
    missing = [
        path.name
        for path in mains
        if "\ndef main(" in (text := path.read_text()) and "    degrade_output()\n" not in text
    ]
    assert missing == []


@pytest.mark.parametrize("module", ["sandbox", "handoff", "evals.compare"])
def test_full_standard_output_is_one_line(module: str) -> None:
    with Path("/dev/full").open("w") as out:
        command = [sys.executable, "-m", module, "--help"]
        done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (4, "error: standard output: no space left\n")


RUN = (
    "import sys; from pathlib import Path; from langgraph_takeover.evals.cli.runner import make_console, run_command; "
    "lines = lambda _: [make_console().print('a' * 9000), print('b', flush=True), print('c')] and 0; "
    "sys.exit(run_command(Path(), 'again', lambda: None, lines))"
)


@pytest.mark.parametrize("is_pipe", [True, False])
def test_a_run_continues_without_its_output(is_pipe: bool) -> None:
    read, out = os.pipe() if is_pipe else (None, os.open("/dev/full", os.O_WRONLY))
    if read is not None:
        os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(out)
    assert done.returncode == 0, done.stderr
    assert [line[:40] for line in done.stderr.splitlines()] == ["standard output failed; the run continue"]
