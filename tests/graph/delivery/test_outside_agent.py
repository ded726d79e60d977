"""An outside agent's completion that is interrupted: the same request finishes it, and its patch is applied once."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_takeover.graph.delivery import participants
from langgraph_takeover.graph.delivery.delivery import deliver
from langgraph_takeover.graph.delivery.participants import CompletedWork, accept_offer, complete_work
from langgraph_takeover.graph.delivery.recovery import roll_back
from langgraph_takeover.graph.usage_errors import HandoffError
from langgraph_takeover.handoff.ledger import HandedOverError, handoffs
from langgraph_takeover.handoff.ledger.handoffs import Handoff
from langgraph_takeover.handoff.records.envelope import Understanding
from langgraph_takeover.nodes.model.model_errors import PermanentModelError

from ..conftest import BOTH_DATABASES, DONE, FIX, RunHarness, scripted_model
from .test_delivery import offer_first_record

pytestmark = BOTH_DATABASES
PATCH = "--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -1,2 +1,2 @@\n def double(n):\n-    return n * 3\n+    return n * 2\n"
UNDERSTANDING = Understanding(
    goal="double(3) is 6.", next_step="I look at pkg/core.py.", verify_first="That the test fails."
)


def accept(bench: RunHarness, key: str = "accept") -> Handoff:
    offered = offer_first_record(bench)
    return accept_offer(bench.home, offered.id, "tester", UNDERSTANDING, idempotency_key=key)


def complete(bench: RunHarness, handoff: Handoff, key: str = "complete") -> CompletedWork:
    return complete_work(
        bench.home,
        handoff.id,
        "tester",
        "Done.",
        patch=PATCH,
        idempotency_key=key,
        sandbox=bench.spec,
    )


@pytest.mark.slow
@pytest.mark.parametrize("calls", [0, 1])
def test_an_interrupted_completion_resumes(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """The run ends before the patch is applied, or after it."""
    handoff = accept(bench)
    choose, begun = participants._OutsideModel._choose_call, 0

    def fail(model: Any, messages: Any) -> Any:
        nonlocal begun
        if begun == calls:
            raise PermanentModelError("interrupted")
        begun += 1
        return choose(model, messages)

    with monkeypatch.context() as patch:
        patch.setattr(participants._OutsideModel, "_choose_call", fail)
        with pytest.raises(PermanentModelError, match="interrupted"):
            complete(bench, handoff)
    assert handoffs.load(bench.home.ledger, handoff.id).state == ("active" if calls else "accepted")
    with pytest.raises(HandoffError, match="a call with another key completes it"):
        complete(bench, handoff, "other")
    done = complete(bench, handoff)
    assert done.handoff.state == "completed"
    record = bench.home.records.load(done.record)
    commands = [each.arguments.get("command", "") for each in record.trace if each.kind == "action"]
    assert len([each for each in commands if " apply " in each]) == 1
    assert "+    return n * 2" in record.patch
    assert complete(bench, handoff) == done


def test_the_source_can_take_the_work_back(bench: RunHarness) -> None:
    handoff = accept(bench)
    with pytest.raises(HandedOverError):
        bench.resume(scripted_model("", FIX, DONE))
    roll_back(bench.home, handoff.id, by="writer", sandbox=bench.spec)
    with pytest.raises(HandoffError, match="is rolled_back, so it cannot be completed"):
        complete(bench, handoff)
    with pytest.raises(HandoffError, match="taken back since: it is rolled_back"):
        accept_offer(bench.home, handoff.id, "tester", UNDERSTANDING, idempotency_key="accept")
    assert bench.resume(scripted_model("", FIX, DONE)).stop_reason == "finished"


def test_a_delivery_finishes_what_an_outside_agent_left(bench: RunHarness) -> None:
    handoff = accept(bench)
    model = scripted_model("", FIX, DONE)
    done = deliver(bench.home, handoff.id, agent_name="tester", model=model, sandbox=bench.spec, points=())
    assert done.handoff.state == "completed"
    with pytest.raises(HandoffError, match="already completed, by another call"):
        complete(bench, handoff)
