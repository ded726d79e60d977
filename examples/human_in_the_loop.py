"""A person reviews the note at each handoff point: approve, edit the note, or refuse the handoff.

Usage: python examples/human_in_the_loop.py DIRECTORY
"""

import sys

from demo_task import TASK, sandbox_spec
from langchain_openai import ChatOpenAI

from langgraph_takeover import open_home, open_run, take_over
from langgraph_takeover.protocol import ReviewRequest


def ask_reviewer(request: ReviewRequest) -> dict[str, str]:
    print(f"\n{request.point}: {request.detail}\n\n{request.note}")
    match input(f"approve, edit, refuse, or view {'|'.join(request.views)}: ").split():
        case ["approve"]:
            return {"decision": "approve"}
        case ["view", view] if view in request.views:
            return {"decision": "approve", "view": view}
        case ["edit"]:
            print("New note (end it with a line that contains only a dot):")
            return {"decision": "approve", "note": "\n".join(iter(input, "."))}
        case ["refuse"]:
            return {"decision": "refuse"}
    return ask_reviewer(request)


def main(directory: str) -> None:
    agent = {"model": ChatOpenAI(model="gpt-5"), "sandbox": sandbox_spec(directory)}
    with open_home(directory) as home:
        with open_run(home, "reviewed", **agent, policy="review", points=("first_source_edit",)) as run:
            outcome = run.start(TASK.id, TASK.prompt)
            while outcome.waiting:
                outcome = run.resume(ask_reviewer(outcome.waiting))
        if outcome.stop_reason == "handoff":
            outcome = take_over(home, "successor", record_id=outcome.records[-1], **agent)
    print(f"{outcome.thread}: {outcome.stop_reason} after {outcome.steps} steps\n{outcome.diff_from_base}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
