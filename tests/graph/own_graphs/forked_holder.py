"""A process that holds a thread and forks: its child holds another one in the same database; run by tests."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from langgraph_takeover.integrations import hold_thread
from tests.graph.own_graphs.holder import CONFIG, build_graph, open_saver

_LEASE_S = 1.0


def run_steps(held: Any, thread: str) -> None:
    config: Any = {"configurable": {"thread_id": thread}}
    build_graph(held, lambda name: {"last": name}).invoke({}, config)


def main(url: str) -> None:
    with open_saver(url) as saver:
        saver.setup()
        with hold_thread(saver, "job", lease_s=_LEASE_S) as held:
            child = os.fork()
            if child == 0:
                try:
                    with open_saver(url) as own, hold_thread(own, "other", lease_s=_LEASE_S) as other:
                        time.sleep(3 * _LEASE_S)
                        run_steps(other, "other")
                    os._exit(0)
                finally:
                    os._exit(1)
            _, status = os.waitpid(child, 0)
            run_steps(held, CONFIG["configurable"]["thread_id"])
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
