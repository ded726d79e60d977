"""What a record may say about background processes, and what it may not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from langgraph_takeover.sandbox.background_processes import redact_arguments, render_start_code
from langgraph_takeover.sandbox.interface import BackgroundProcess, Snapshot

SNAPSHOT: dict[str, Any] = {
    "backend": "host",
    "base": "b",
    "location": "l",
    "digest": "d",
    "workspace": "/testbed",
    "shell_state": "{}",
}
PROCESS: dict[str, Any] = {"argv": ("python3", "-m", "http.server"), "directory": "/testbed"}


@pytest.mark.parametrize(
    ("command", "clean"),
    [
        # DataDog/rshell#269, doc-detective#336: an option and its value are one word or two.
        ("server --token=RSHELL_DEMO_1 x", "server --token=[redacted] x"),
        ("server --password hunter2 x", "server --password [redacted] x"),
        ("server --api-key 0123456789abc --port 80", "server --api-key [redacted] --port 80"),
        ("env DB_PASSWORD=a PORT=80 node s.js", "env DB_PASSWORD=[redacted] PORT=80 node s.js"),
        ("psql postgres://me:pass1word@db/x", "psql postgres://[redacted]@db/x"),
        ("server --max-tokens 4096 --auth none", "server --max-tokens 4096 --auth none"),
        ("server --token-file /run/token --key key.pem", "server --token-file /run/token --key key.pem"),
        ("server --password $DB_PASSWORD", "server --password $DB_PASSWORD"),
        ("server --password --verbose", "server --password --verbose"),
    ],
)
def test_secrets_in_a_command_line(command: str, clean: str) -> None:
    found, has_secret = redact_arguments(command.split(" "))
    assert " ".join(found) == clean
    assert has_secret == (command != clean)


def test_secrets_within_one_argument() -> None:
    words = ["sh", "-c", "API_KEY='0123456789ab' node s.js -H 'Authorization: Bearer 0123456789abcdef'"]
    found, _ = redact_arguments(words)
    assert found[2] == "API_KEY='[redacted]' node s.js -H 'Authorization: [redacted]'"


def test_long_arguments_are_redacted_in_linear_time() -> None:
    for text in ("token=" * 20_000, "a." * 20_000, "A: " * 20_000, "-" * 40_000):
        redact_arguments([text])


@pytest.mark.parametrize(
    "changed",
    [
        {"argv": ()},
        {"argv": ("a\0b",)},
        {"argv": ("a",) * 257},
        {"argv": ("a" * 20_000, "b" * 20_000)},
        {"directory": "testbed"},
        {"directory": "/" + "a" * 5_000},
        {"environment": {"A=B": "x"}},
        {"environment": {"A;id": "x"}},
        {"environment": {f"A{number}": "x" for number in range(65)}},
        {"environment": {"A": "x" * 9_000}},
        {"environment": {"A": "\0"}},
        {"withheld": ("A B",)},
        {"tcp_ports": (0,)},
        {"tcp_ports": (65_536,)},
        {"udp_ports": tuple(range(1, 70))},
        {"output": "server.log"},
        {"errors": "/a\0"},
        {"obstacle": "other"},
        {"run_on_host": True},
    ],
)
def test_a_hostile_process_is_refused(changed: dict[str, Any]) -> None:
    BackgroundProcess.model_validate(PROCESS)
    with pytest.raises(ValidationError):
        Snapshot.model_validate(SNAPSHOT | {"processes": [PROCESS | changed]})


def test_a_snapshot_has_at_most_a_hundred_processes_and_their_number() -> None:
    Snapshot.model_validate(SNAPSHOT | {"processes": [PROCESS] * 101})
    with pytest.raises(ValidationError):
        Snapshot.model_validate(SNAPSHOT | {"processes": [PROCESS] * 102})


def test_no_text_of_a_process_is_code() -> None:
    hostile = "'; id; $(id) `id` \\\n\""
    process = BackgroundProcess(
        argv=(hostile, hostile), directory=f"/{hostile}", environment={"A": hostile}, output=f"/{hostile}"
    )
    code = render_start_code(process, "mark").replace("'\"'\"'", "")
    outside = code.split("'")[::2]
    assert not any("id" in part.replace("builtin", "") for part in outside)
