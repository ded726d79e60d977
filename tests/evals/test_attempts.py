"""`--attempts` and `--choose`: of several attempts, the predecessor's own tests choose one, and all are paid for."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ..chat_server import ChatServer
from .conftest import (
    ONE_POINT,
    RunCommand,
    assert_refused,
    isolated_sandbox_options,
    kill_process,
    read_rows,
    start_takeover,
)

RULE = "tests-of-the-predecessor"
SPOIL = "Wrong.\n\n```bash\ngit checkout -q HEAD -- . && git status --short\n```"
LOOK = "Look.\n\n```bash\ngit diff --stat\n```"
FINISH = "<finish>Done.</finish>"
ATTEMPTS = ((SPOIL, FINISH), (LOOK, LOOK, FINISH), (LOOK, FINISH), (LOOK, FINISH))
"""The first attempt undoes the predecessor's fix; the second one is longer than the third and the fourth."""


class Attempts:
    """A model whose replies depend on the attempt."""

    def __init__(self, server: ChatServer, block_at: tuple[int, int] | None = None) -> None:
        self.requests: Counter[tuple[int, int]] = Counter()
        """How often the endpoint received each step of each attempt."""
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._block_at, self._number = block_at, 0
        server.answer = self.answer

    def answer(self, request: dict[str, Any]) -> tuple[int, bytes]:
        step = sum(message["role"] == "assistant" for message in request["messages"])
        self._number += step == 0
        at = self._number, step
        self.requests[at] += 1
        if at == self._block_at and not self.reached.is_set():
            self.reached.set()
            self.go_on.wait(100)
        return ChatServer.reply(ATTEMPTS[self._number - 1][step])


def list_options(server: ChatServer, out: Path, number: int = len(ATTEMPTS)) -> tuple[str | Path, ...]:
    model = ("--successor", "openai:m", "--base-url", server.url, "--view", "repository", "--out", out)
    points = (*ONE_POINT[:-1], "first_validation", "--attempts", str(number), "--choose", RULE)
    return (*model, *points, *isolated_sandbox_options())


@pytest.mark.slow
def test_the_attempt_that_passes_with_the_fewest_steps_is_kept(
    run_main: RunCommand, chat_server: ChatServer, tmp_path: Path
) -> None:
    model = Attempts(chat_server)
    done = run_main(*list_options(chat_server, tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    (row,) = read_rows(tmp_path / "out")
    assert (row["attempts"], row["choice_commands"], row["attempts_passed"]) == (4, 1, [0, 1, 1, 1])
    assert (row["chosen_attempt"], row["steps"], row["resolved"]) == (3, 2, True)
    assert row["trace"].endswith(".repository.m.1.attempt-3")
    assert (row["attempts_steps"], row["attempts_llm_calls"]) == (9, 9)
    assert row["attempts_prompt_tokens"] > 2 * row["prompt_tokens"] > 0
    assert row["attempts_seconds"] > row["seconds"] > 0
    name = row["trace"].partition(".attempt-")[0]
    traces = [path for path in (tmp_path / "out" / "traces").iterdir() if path.name.startswith(name)]
    assert len(traces) == 4
    assert set(model.requests.values()) == {1}


@pytest.mark.slow
def test_a_killed_run_does_not_repeat_finished_attempts(
    run_main: RunCommand, chat_server: ChatServer, tmp_path: Path
) -> None:
    model = Attempts(chat_server, block_at=(2, 1))
    process = start_takeover(*list_options(chat_server, tmp_path / "out", 2))
    assert model.reached.wait(100)
    kill_process(process)
    model.go_on.set()
    done = run_main("--resume", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (row,) = read_rows(tmp_path / "out")
    assert (row["attempts_passed"], row["chosen_attempt"], row["resolved"]) == ([0, 1], 2, True)
    assert model.requests == Counter({(1, 0): 1, (1, 1): 1, (2, 0): 1, (2, 1): 2, (2, 2): 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--attempts", "0"), "'--attempts'"),
        (
            ("--attempts", "2"),
            "--attempts: no rule chooses the attempt to keep (add --choose tests-of-the-predecessor)",
        ),
        (("--choose", RULE), "--choose: there is one attempt only (add --attempts 2 or more)"),
        (
            ("--attempts", "2", "--choose", "best"),
            "invalid value for '--choose': 'best' is not one of 'tests-of-the-predecessor'",
        ),
    ],
)
def test_other_values_are_refused(run_main: RunCommand, options: tuple[str, ...], message: str) -> None:
    assert_refused(run_main(*options), message)
