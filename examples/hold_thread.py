"""One writer per thread, with your own saver: a second process is refused until the first is killed, then resumes.

Usage: python examples/hold_thread.py DIRECTORY
"""

import subprocess
import sys
import time
from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_takeover.errors import ThreadHeldError
from langgraph_takeover.integrations import hold_thread


def main(directory: str, *, is_child: bool = False) -> None:
    def work(state: MessagesState) -> MessagesState:
        if is_child:
            print("works after:", state["messages"][-1].text, flush=True)
            time.sleep(600)
        return {"messages": "worked"}

    Path(directory).mkdir(exist_ok=True)
    builder = StateGraph(MessagesState).add_sequence(
        [("prepare", lambda state: {"messages": "prepared"}), work]
    )
    builder.add_edge(START, "prepare")
    config = {"configurable": {"thread_id": "job"}}
    with SqliteSaver.from_conn_string(f"{directory}/checkpoints.sqlite") as saver:
        if is_child:
            with hold_thread(saver, "job") as held:
                builder.compile(checkpointer=held).invoke({}, config, durability="sync")
        child = subprocess.Popen([sys.executable, __file__, directory, "child"], stdout=subprocess.PIPE)
        print("first process:", child.stdout.readline().decode().strip())
        try:
            with hold_thread(saver, "job"):
                pass
        except ThreadHeldError as error:
            print("second process:", error)
        child.kill()
        child.wait()
        with hold_thread(saver, "job") as held:
            end = builder.compile(checkpointer=held).invoke(None, config)
            print("second process:", [message.text for message in end["messages"]])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1], is_child=len(sys.argv) > 2)
