"""A continuation in a sandbox: one thread per command, and a record of its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_core.messages import AIMessage

from langgraph_takeover.graph.continuation import sandboxed
from langgraph_takeover.graph.continuation.sandboxed import SandboxedContinuation
from langgraph_takeover.handoff.records.chain import list_chain_lines
from langgraph_takeover.handoff.records.record import RecordStore

from ..conftest import Scripted, scripted_model
from ..small_agent_adapter import build_small_agent
from .conftest import Workplace


class Failing(Scripted):
    """An endpoint that refuses every request after some replies."""

    def _generate(self, messages: object, *args: object, **kwargs: object) -> object:
        if len(self.seen) == len(self.replies):
            raise ValueError("the endpoint is gone")
        return super()._generate(messages, *args, **kwargs)  # type: ignore[arg-type]


def call(number: int) -> AIMessage:
    arguments = {"command": f"echo {number} >> steps.txt"}
    return AIMessage("", tool_calls=[{"name": "bash", "args": arguments, "id": f"call_{number}"}])


def test_the_same_command_continues_and_every_end_is_a_record(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxed, "external_agent", lambda *args, **named: build_small_agent())
    first = workplace.capture().record
    shown: list[str] = []

    def run(model: Scripted, *, is_new: bool = False) -> SandboxedContinuation:
        return sandboxed.continue_in_sandbox(
            Path(workplace.home), first.id, agent="small", model=model, model_name="m", is_new=is_new,
            show=shown.append,
        )  # fmt: skip

    with pytest.raises(ValueError, match="gone"):
        run(Failing(replies=[call(0), call(1)], seen=[], tools=[]))
    store = RecordStore(workplace.home / "records")
    (failed,) = set(store.list_ids()) - {first.id}
    assert any(line == f"record    {failed}" for line in shown)
    assert len(store.load(failed).trace) == len(first.trace) + 4
    model = scripted_model(call(0), call(1), call(2), AIMessage("Done."))
    done = run(model)
    assert len(model.seen) == 2  # nothing twice
    assert "+0\n+1\n+2\n" in done.outcome.diff_from_base
    record = store.load(done.record)
    assert list_chain_lines(record)[0] == f"agent 1: codex, e0 to e{len(first.trace) - 1}"
    assert record.parent is not None
    assert record.parent.digest == first.digest
    again = run(scripted_model())
    assert (again.record, again.outcome.thread) == (done.record, done.outcome.thread)
    other = run(scripted_model(AIMessage("Done.")), is_new=True)
    assert other.outcome.thread == f"{done.outcome.thread}-2"
