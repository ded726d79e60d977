"""No secret enters a run's state through a reply, observation, prompt, person or tool; the work itself is unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from pydantic import SecretStr

from langgraph_takeover import run
from langgraph_takeover.base.secret_names import REDACTED
from langgraph_takeover.handoff.records.record import Claim
from langgraph_takeover.nodes.state_events import clip_text
from langgraph_takeover.sandbox.interface import Snapshot

from ..graph.conftest import (
    DONE,
    EDIT,
    PROMPT,
    RunHarness,
    Scripted,
    native_reply,
    parse_events,
    scripted_model,
)

KNOWN, GIVEN = "canary-env-0123456789", "canary-given-0123456789"
MADE_UP = "ghp_" + "c4n4ry" * 6


class WithKey(Scripted):
    key: SecretStr = SecretStr(GIVEN)


def with_key(*replies: Any) -> WithKey:
    return WithKey(replies=list(replies), seen=[], tools=[])


@pytest.fixture(autouse=True)
def _known_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", KNOWN)


def read_sandbox_file(bench: RunHarness, state: Any, name: str) -> str:
    with bench.open_run(scripted_model()) as opened_run:
        return opened_run.sandbox(state).read_file(name).decode()


def read_home(bench: RunHarness, tmp_path: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_a_command_runs_without_known_secrets_but_with_made_up_keys(
    bench: RunHarness, tmp_path: Path, protocol: Any
) -> None:
    command = f"echo {KNOWN} {GIVEN} {MADE_UP} > keys.txt; cat keys.txt; HELD={GIVEN}"
    thought = f"I write {KNOWN}, {GIVEN}, {MADE_UP}."
    reply: Any = f"{thought}\n```bash\n{command}\n```"
    finish: Any = DONE
    if protocol == "native":
        reply = native_reply(("shell", json.dumps({"command": command})))
        reply.content = [{"type": "text", "text": thought}]
        finish = native_reply(("finish", "{}"))
    state = bench.run(with_key(reply, finish), protocol=protocol)
    redacted = f"{REDACTED} {REDACTED} {MADE_UP}"
    assert read_sandbox_file(bench, state, "keys.txt") == f"{redacted}\n"
    action, observation, *_ = parse_events(state)
    assert action.arguments["command"] == f"echo {redacted} > keys.txt; cat keys.txt; HELD={REDACTED}"
    assert observation.text == f"[exit code 0]\n{REDACTED} {REDACTED} {REDACTED}\n"
    for text in (action.text, *(message.text for message in state["messages"])):
        assert not any(secret in text for secret in (KNOWN, GIVEN, MADE_UP))
    assert any(thought.split()[0] in message.text for message in state["messages"])
    assert KNOWN.encode() not in read_home(bench, tmp_path)
    assert GIVEN.encode() not in read_home(bench, tmp_path)


def test_secrets_in_the_repository_stay_there_and_are_not_shown(bench: RunHarness, tmp_path: Path) -> None:
    assert bench.spec.directory is not None
    (bench.spec.directory / ".env").write_text(f"KEY={KNOWN}\nA={MADE_UP}\n")
    (bench.spec.directory / f"{KNOWN}.txt").touch()
    look = "```bash\ncat .env; ls; cp .env copy; cp .env 'of canary-env-0123456789'; . ./.env\n```"
    state = bench.run(scripted_model(look, '<editor command="view" path=".env"/>', DONE))
    first, second = (event for event in parse_events(state) if event.kind == "observation")
    assert f"KEY={REDACTED}\nA={REDACTED}\n" in first.text
    assert f"\n{REDACTED}.txt\n" in first.text
    assert [change.path for change in first.changes] == ["copy", f"of {REDACTED}"]
    assert f"KEY={REDACTED}" in second.text
    assert read_sandbox_file(bench, state, "copy") == f"KEY={KNOWN}\nA={MADE_UP}\n"
    assert KNOWN.encode() not in (tmp_path / "home" / "takeover.sqlite").read_bytes()
    with bench.open_run(scripted_model()) as opened_run:
        snapshot: Snapshot = opened_run.session.save_snapshot(state["sandbox_state"])
    assert f'"KEY":{{"value":"{REDACTED}"}}' in snapshot.shell_state
    assert MADE_UP in snapshot.shell_state


def test_an_edit_of_a_file_with_a_secret_cannot_be_undone(bench: RunHarness, tmp_path: Path) -> None:
    assert bench.spec.directory is not None
    (bench.spec.directory / ".env").write_text(f"KEY={KNOWN}\nA={MADE_UP}\nB=1\n")
    (bench.spec.directory / "open.env").write_text(f"A={MADE_UP}\nB=1\n")
    edit = '<editor command="str_replace" path="{}"><old>B=1</old><new>B=2</new></editor>'
    undo = '<editor command="undo" path="{}"/>'
    steps = [step.format(name) for name in (".env", "open.env") for step in (edit, undo)]
    state = bench.run(scripted_model(*steps, DONE))
    refused, undone = [event for event in parse_events(state) if event.kind == "observation"][1::2]
    assert refused.refused
    assert "contained a secret, which is not stored" in refused.text
    assert "has been undone" in undone.text
    assert read_sandbox_file(bench, state, ".env") == f"KEY={KNOWN}\nA={MADE_UP}\nB=2\n"
    assert read_sandbox_file(bench, state, "open.env") == f"A={MADE_UP}\nB=1\n"
    assert KNOWN.encode() not in (tmp_path / "home" / "takeover.sqlite").read_bytes()


def test_prompts_tools_and_unreadable_replies_are_redacted(bench: RunHarness, tmp_path: Path) -> None:
    @tool
    def reveal() -> str:
        """Reveal."""
        return f"{KNOWN} {GIVEN} {MADE_UP}"

    call = '```json\n{"name": "reveal", "arguments": {}}\n```'
    unreadable = f'<editor command="{MADE_UP}" path="{KNOWN}"/>'
    outcome = run(
        bench.home, "thread", task_id="t", prompt=f"{PROMPT} {KNOWN} {GIVEN} {MADE_UP}",
        model=with_key(call, unreadable, DONE), sandbox=bench.spec, tools=(reveal,),
    )  # fmt: skip
    assert outcome.state["task"]["prompt"] == f"{PROMPT} {REDACTED} {REDACTED} {REDACTED}"
    assert parse_events(outcome.state)[1].text == f"{REDACTED} {REDACTED} {REDACTED}"
    assert parse_events(outcome.state)[3].refused
    database = read_home(bench, tmp_path)
    assert not any(secret.encode() in database for secret in (KNOWN, GIVEN, MADE_UP))


def test_text_of_a_person_is_redacted(bench: RunHarness, tmp_path: Path) -> None:
    notes = json.dumps({"work_completed": f"Used {KNOWN} and {MADE_UP}."})
    replies = [EDIT, DONE]

    class Writing(Scripted):
        def _generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
            if not any(message.type == "system" for message in messages):
                self.replies[:] = [notes]
            else:
                self.replies[:] = replies
            return super()._generate(messages, *args, **kwargs)

    model = Writing(replies=[], seen=[], tools=[])
    settings: Any = {"points": ("first_source_edit",), "policy": "review"}
    bench.run(model, **settings)
    answer = {"note": f"Mind {KNOWN} and {MADE_UP}.", "view": "structured"}
    outcome = bench.resume(model, answer, **settings)
    record = bench.store.load(outcome.records[0])
    assert record.review is not None
    assert record.review.note == f"Mind {REDACTED} and {REDACTED}."
    assert record.notes is not None
    assert record.notes.structured["work_completed"] == (Claim(text=f"Used {REDACTED} and {REDACTED}"),)
    with bench.open_run(model) as opened_run:
        opened_run.update_state({"messages": [HumanMessage(f"Use {KNOWN}."), AIMessage(f"{KNOWN}?")]})
    bench.home.request_handoff("thread", f"because of {KNOWN}, {MADE_UP}")
    database = read_home(bench, tmp_path)
    assert not any(secret.encode() in database for secret in (KNOWN, MADE_UP))


def test_clipped_text_contains_no_part_of_a_secret() -> None:
    for offset in range(80, 101):
        text = "x" * offset + KNOWN + "-" * 1000 + KNOWN + "x" * offset
        assert not any(KNOWN[: n + 6][n:] in clip_text(text, 200) for n in range(5, 10)), offset
