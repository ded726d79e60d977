"""A small repository in a real sandbox, a home for its runs, and a scripted model."""

from __future__ import annotations

import json
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.types import StateSnapshot

from langgraph_takeover import Home, Outcome, build_agent, open_home, open_run, resume, run, take_over
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.state_events import load_events
from langgraph_takeover.sandbox.backends import host
from langgraph_takeover.sandbox.interface import BackendName, SandboxSpec
from langgraph_takeover.sandbox.snapshots import archive_writer

from .. import crash_case
from ..conftest import skip_missing

PROMPT = "# Make `double` double\n\nIt returns `n + 1`.\n\n  Trailing spaces stay.  \n"
EDIT = "```bash\nsed -i 's/n + 1/n * 3/' pkg/core.py\n```"
FIX = "```bash\nsed -i 's/n \\* 3/n * 2/' pkg/core.py\n```"
TEST = "```bash\npython3 -m unittest -q\n```"
DONE = "<finish>Done.</finish>"
NOTE = "```bash\necho {} >> notes.txt\n```"
SHOW = "```bash\ncat notes.txt\n```"
POINTS = ("first_source_edit", "first_validation", "first_post_failure_edit")
RUN_OPTIONS: dict[str, Any] = {"model_name": "scripted", "run_id": "run"}
BOTH_DATABASES = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)]
)
"""Run a test, or all tests of a module, on both databases.

The first tier tests PostgreSQL only in the tests of the ledger and the savers.
"""


class Scripted(BaseChatModel):
    """A model that sends its scripted replies in order, and records the messages it receives."""

    replies: list[Any]
    tokens: int = 10
    delay_s: float = 0.0
    seen: list[list[BaseMessage]]
    tools: list[Any]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        self.tools[:] = tools
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        time.sleep(self.delay_s)
        self.seen.append(list(messages))
        reply = self.replies[sum(isinstance(message, AIMessage) for message in messages)]
        if isinstance(reply, Exception):
            raise reply
        message = reply.model_copy() if isinstance(reply, AIMessage) else AIMessage(reply)
        message.usage_metadata = UsageMetadata(
            input_tokens=self.tokens, output_tokens=1, total_tokens=self.tokens + 1
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


def scripted_model(*replies: Any, **settings: Any) -> Scripted:
    return Scripted(replies=list(replies), seen=[], tools=[], **settings)


class TaskModel(Scripted):
    """Replies by the task, so that several agents can use it at once: each sees its own first line.

    Before a reply, it calls what `before` has for it.
    """

    scripts: dict[str, list[Any]]
    before: dict[tuple[str, int], Callable[[], object]]

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        task = next(each.text for each in messages if isinstance(each, HumanMessage)).partition("\n")[0]
        number = sum(isinstance(each, AIMessage) for each in messages)
        if (call := self.before.get((task, number))) is not None:
            call()
        self.seen.append(list(messages))
        made = self.scripts[task][number]
        message = made.model_copy() if isinstance(made, AIMessage) else AIMessage(made)
        return ChatResult(generations=[ChatGeneration(message=message)])


def task_model(scripts: dict[str, list[Any]], before: Any = None) -> TaskModel:
    return TaskModel(replies=[], seen=[], tools=[], scripts=scripts, before=before or {})


def native_reply(*calls: tuple[str, str], ids: bool = True) -> AIMessage:
    """A reply with native calls whose arguments are JSON text, as the client reads them from the wire."""
    made = [(name, text, f"call_{n}_{name}" if ids else None) for n, (name, text) in enumerate(calls)]
    return AIMessage(
        "",
        tool_calls=[
            {"name": n, "args": json.loads(text), "id": i} for n, text, i in made if _is_json_object(text)
        ],
        invalid_tool_calls=[
            {"name": n, "args": text, "id": i, "error": "bad"}
            for n, text, i in made
            if not _is_json_object(text)
        ],
    )


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def parse_events(state: AgentState) -> list[Event]:
    return list(load_events(state))


def get_shown_lines(state: Any) -> list[str]:
    """The lines of the file in the last observation."""
    texts = [event.text for event in parse_events(state) if event.kind == "observation"]
    return str(texts[-1]).splitlines()[1:]


def get_note_text(state: Any) -> str:
    """The text of the notes file in the last successful observation."""
    shown = [
        event.text for event in parse_events(state) if event.kind == "observation" and event.exit_code == 0
    ]
    return str(shown[-1]).partition("\n")[2].strip()


class ArchiveGate:
    """Lets archives be written when it is opened, or makes their writing fail."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.error: Exception | None = None
        self.opened.set()

    def close(self, error: Exception | None = None) -> None:
        self.error = error
        self.opened.clear()


@pytest.fixture
def archive_gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[ArchiveGate]:
    gate, write = ArchiveGate(), archive_writer.write_to_store

    def write_later(*args: Any, **kwargs: Any) -> Any:
        gate.opened.wait(20)
        if gate.error is not None:
            error, gate.error = gate.error, None
            raise error
        return write(*args, **kwargs)

    monkeypatch.setattr(archive_writer, "write_to_store", write_later)
    yield gate
    gate.opened.set()


class RunHarness:
    """A small repository in a real sandbox, a saver on disk, and a store of records."""

    def __init__(self, root: Path, home: Home, backend: BackendName = "process") -> None:
        base = root / "base"
        (base / "pkg").mkdir(parents=True)
        (base / "pkg" / "__init__.py").touch()
        (base / "pkg" / "core.py").write_text("def double(n):\n    return n + 1\n")
        (base / "test_core.py").write_text(
            "import unittest\nfrom pkg.core import double\n\n\nclass T(unittest.TestCase):\n"
            "    def test_double(self):\n        self.assertEqual(double(3), 6)\n"
        )
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(base)]
        subprocess.run([*git[:5], "init", "-q", str(base)], check=True)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "base"], check=True)
        base_field: dict[str, Any] = {"directory": base}
        if backend == "docker":
            base_field = {"image": f"takeover/bench-{secrets.token_hex(4)}:latest"}
            crash_case.build_image(base, base_field["image"])
        self.spec = SandboxSpec(backend=backend, owner="test-agent", **base_field)
        self.home = home
        self.store = home.records

    def run(self, model: BaseChatModel, *, thread: str = "thread", **settings: Any) -> AgentState:
        return self.run_to_outcome(model, thread=thread, **settings).state

    def run_to_outcome(self, model: BaseChatModel, *, thread: str = "thread", **settings: Any) -> Outcome:
        """The outcome of a run from its start."""
        options = self._options(model, **(RUN_OPTIONS | settings))
        return run(self.home, thread, task_id="t", prompt=PROMPT, **options)

    def open_run(self, model: BaseChatModel, thread: str = "thread", **settings: Any) -> Any:
        return open_run(self.home, thread, **self._options(model, **settings))

    def resume(
        self, model: BaseChatModel, answer: Any = None, *, thread: str = "thread", **settings: Any
    ) -> Outcome:
        return resume(self.home, thread, answer=answer, **self._options(model, **(RUN_OPTIONS | settings)))

    def take_over(
        self, model: BaseChatModel, view: Any = "repository", record: str = "", **settings: Any
    ) -> AgentState:
        thread, record = f"taking {len(self.home.threads())}", record or "run.first_source_edit"
        return take_over(
            self.home, thread, record_id=record, view=view, **self._options(model, **settings)
        ).state

    def _options(self, model: BaseChatModel, **settings: Any) -> dict[str, Any]:
        return {"model": model, "sandbox": self.spec, "points": (), **settings}

    def load_state(self, checkpoint: str | None = None) -> StateSnapshot:
        config: Any = {"configurable": {"thread_id": "thread"}}
        if checkpoint:
            config["configurable"]["checkpoint_id"] = checkpoint
        return build_agent(self.home.saver).get_state(config)


@contextmanager
def open_bench(
    request: pytest.FixtureRequest, root: Path, home: Home, backend: BackendName
) -> Iterator[RunHarness]:
    """Yield a harness with this sandbox backend; skips the test if the backend is unavailable."""
    if backend == "docker":
        request.getfixturevalue("base_image")
    if backend == "host" and (reason := host.unavailable_reason()):
        skip_missing(reason)
    bench = RunHarness(root, home, backend)
    try:
        yield bench
    finally:
        if bench.spec.image is not None:
            crash_case.remove_image(bench.spec.image)


@pytest.fixture
def database() -> str:
    """The bench's database; tests override it."""
    return "sqlite"


@pytest.fixture
def backend() -> BackendName:
    """The bench's sandbox backend; tests override it."""
    return "process"


@pytest.fixture
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, backend: BackendName
) -> Iterator[RunHarness]:
    url = request.getfixturevalue("postgres_database") if database == "postgres" else None
    with open_home(tmp_path / "home", url) as home, open_bench(request, tmp_path, home, backend) as bench:
        yield bench
