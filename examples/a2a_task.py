"""A handoff as a task of A2A: the task's state after each transition, and the task itself at the end.

Usage: python examples/a2a_task.py DIRECTORY
"""

import json
import sys
from datetime import UTC, datetime
from typing import Any

from demo_task import TASK, sandbox_spec
from langchain_openai import ChatOpenAI

from langgraph_takeover import deliver, hand_over, open_home, run
from langgraph_takeover.handoff.ledger.handoffs import Handoff, list_transitions

A2A_STATES = {
    "prepared": "TASK_STATE_SUBMITTED",
    "offered": "TASK_STATE_SUBMITTED",
    "accepted": "TASK_STATE_WORKING",
    "active": "TASK_STATE_WORKING",
    "completed": "TASK_STATE_COMPLETED",
    "rejected": "TASK_STATE_REJECTED",
    "timed_out": "TASK_STATE_CANCELED",
    "rolled_back": "TASK_STATE_CANCELED",
    "blocked": "TASK_STATE_FAILED",
}


def to_a2a_task(handoff: Handoff) -> dict[str, Any]:
    """Build the A2A task of the latest offer: A2A's end states are final, so each offer is a task of one context."""
    changed_at = datetime.fromtimestamp(handoff.changed_at, UTC).isoformat(timespec="milliseconds")
    status = {"state": A2A_STATES[handoff.state], "timestamp": changed_at.replace("+00:00", "Z")}
    metadata = {"handoff": handoff.state, "record": handoff.record, "reason": handoff.reason}
    return {
        "id": f"{handoff.id}.{handoff.offers}",
        "contextId": handoff.id,
        "status": status,
        "metadata": metadata,
    }


def main(directory: str) -> None:
    agent = {"model": ChatOpenAI(model="gpt-5"), "sandbox": sandbox_spec(directory)}
    with open_home(directory) as home:
        begun = run(home, "written", task_id=TASK.id, prompt=TASK.prompt, **agent, policy="stop")
        handoff = hand_over(home, begun.records[-1], target="tester", source="writer")
        delivered = deliver(home, handoff.id, agent_name="tester", **agent)
        for each in list_transitions(home.ledger, handoff.id):
            print(f"{each.after:10} {A2A_STATES[each.after]}")
    print(json.dumps(to_a2a_task(delivered.handoff), indent=1))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
