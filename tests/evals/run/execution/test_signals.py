"""Ctrl-C and SIGTERM end a process of a run at any moment, even where Python drops the exception."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

_LOST = """
import os, signal, sys, time, weakref
from langgraph_takeover.evals.run.execution import executors as endings

class Thing:
    pass

def told_in_a_finalizer(number):
    thing = Thing()
    kept = weakref.ref(thing, lambda ref: [os.kill(os.getpid(), number), time.sleep(0.1)])
    del thing
    for _ in range(100):
        time.sleep(0.1)

def work(number):
    with endings.enter_job():
        told_in_a_finalizer(number)

if __name__ == "__main__":
    number = int(sys.argv[2])
    if sys.argv[1] == "command":
        endings.exit_on_sigterm()
        try:
            told_in_a_finalizer(number)
        except (KeyboardInterrupt, SystemExit) as error:
            print("ended by", type(error).__name__)
    elif sys.argv[1] == "node":
        before = signal.getsignal(signal.SIGTERM), sys.unraisablehook
        try:
            with endings.handle_sigterm():
                told_in_a_finalizer(number)
        except SystemExit as error:
            assert before == (signal.getsignal(signal.SIGTERM), sys.unraisablehook)
            print("ended by", type(error).__name__)
    else:
        endings.initialize_worker()
        try:
            work(number)
        except SystemExit as error:
            print("ended by", type(error).__name__)
"""


_WRONG = """
from langgraph_takeover.evals.run.execution.executors import exit_on_sigterm

class Thing:
    def __del__(self):
        raise ValueError("kept")

exit_on_sigterm()
thing = Thing()
del thing
"""


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("process", "number", "by"),
    [
        ("command", signal.SIGINT, "KeyboardInterrupt"),
        ("command", signal.SIGTERM, "SystemExit"),
        ("node", signal.SIGTERM, "SystemExit"),
        ("worker", signal.SIGTERM, "SystemExit"),
    ],
)
def test_a_signal_inside_a_finalizer_is_raised_again(
    tmp_path: Path, process: str, number: signal.Signals, by: str
) -> None:
    program = tmp_path / "lost.py"
    program.write_text(_LOST)
    words = [sys.executable, str(program), process, str(int(number))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ended by {by}\n", "")


def test_other_errors_in_a_finalizer_are_still_reported(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text(_WRONG)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "ValueError: kept" in done.stderr
