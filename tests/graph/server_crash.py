"""One process of a run whose agent starts a server; it kills itself when the model is asked for the reply KILL.

Usage: server_crash.py HOME REPOSITORY BACKEND PORT POLICY start|resume [KILL]
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult

from langgraph_takeover import SandboxSpec, open_home, open_run
from tests.graph.conftest import DONE, Scripted, parse_events

_DURABLE_S = 2.0
"""By then, the state that is saved while the model answers is durable."""
START = "MODE=dev DB_PASSWORD=hunter2 python3 -m http.server {port} --bind 127.0.0.1 >server.log 2>&1"
ASK = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/test_core.py').status)"


def await_port(port: object) -> str:
    """Return a command that waits until a server listens."""
    return f"until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.05; done"


def list_replies(port: str) -> list[str]:
    blocks = ["echo begin >notes.txt", f"{START} & {await_port(port)}", f'python3 -c "{ASK}"']
    return [*(f"```bash\n{each.replace('{port}', port)}\n```" for each in blocks), DONE]


class DyingModel(Scripted):
    """A model whose process is killed when it is asked for a reply."""

    dies_at: int

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if sum(isinstance(each, AIMessage) for each in messages) == self.dies_at:
            time.sleep(_DURABLE_S)
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._generate(messages, *args, **kwargs)


def main(
    home: str, repository: str, backend: Any, port: str, policy: Any, what: str, dies_at: str = "-1"
) -> None:
    model = DyingModel(replies=list_replies(port), seen=[], tools=[], dies_at=int(dies_at))
    base = {"image": repository} if backend == "docker" else {"directory": Path(repository)}
    spec = SandboxSpec(backend=backend, restart_processes=policy, **base)  # type: ignore[arg-type]
    with (
        open_home(home) as opened,
        open_run(opened, "thread", model=model, sandbox=spec, points=()) as run,
    ):
        outcome = run.start("t", "Serve it.") if what == "start" else run.resume()
        print(outcome.status.value)
        print([event.text for event in parse_events(outcome.state) if event.kind == "observation"][-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
