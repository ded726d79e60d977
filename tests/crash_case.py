"""One run that is killed and resumed: its actions, its crash points, and the checks of its result."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from sqlalchemy import func, select

from langgraph_takeover import sandbox
from langgraph_takeover.graph import home as graph_home
from langgraph_takeover.graph.home import Home, ThreadNotFoundError, open_home
from langgraph_takeover.graph.runs.api import open_run, take_over
from langgraph_takeover.handoff.ledger import effects, leases, store
from langgraph_takeover.handoff.ledger import effects as snapshots
from langgraph_takeover.handoff.records import record as record_module
from langgraph_takeover.nodes import records as node_records
from langgraph_takeover.nodes.session import state_store as node_snapshots
from langgraph_takeover.nodes.session.pending_states import PendingStates
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.state_store import SnapshotEvery
from langgraph_takeover.sandbox.backends import base as base_backend
from langgraph_takeover.sandbox.interface import BackendName, SandboxSpec
from langgraph_takeover.sandbox.snapshots import archive_writer

IMAGE = "takeover/base:latest"
REPOSITORY_IMAGE = f"takeover/crash-matrix:{os.getpid()}"
"""The same in every process forked from this one, and unique to it."""
WORKSPACE = "/testbed"
RECORD = "matrix.first_source_edit"
_OUTSIDE_FILE = '"${TMPDIR:-/tmp}/outside.txt"'


def _note_command(number: int, then: str = "") -> str:
    """A command that appends a line to a file of the workspace and to one outside it."""
    return f'echo {number} >>"$TOP/log.txt"; echo {number} >>{_OUTSIDE_FILE}{then}'


def _shell_block(text: str) -> str:
    return f"```bash\n{text}\n```"


REPLIES = (
    _shell_block(f'TOP="$PWD"; {_note_command(1)}'),
    _shell_block("cd pkg"),
    _shell_block('export MARK=kept; marked() { echo "$MARK"; }'),
    '<editor command="create" path="pkg/extra.py">\n<content>\nONE = 1\n</content>\n</editor>',
    '<editor command="str_replace" path="pkg/extra.py">\n<old>\nONE = 1\n</old>\n<new>\nONE = 11\n</new>\n</editor>',
    _shell_block("cat ../log.txt"),
    _shell_block(_note_command(2, "; sleep 0.05; false")),
    '```json\n{"name": "note", "arguments": {"number": 3}}\n```',
    _shell_block(
        f'{_note_command(4)}; marked; basename "$PWD"; cat "$TOP/log.txt" {_OUTSIDE_FILE} extra.py; echo "$(marked)"'
    ),
    "<finish>Done.</finish>",
)
SUCCESSOR_REPLIES = (
    _shell_block(f'marked; basename "$PWD"; cat ../log.txt {_OUTSIDE_FILE} extra.py; echo "$(marked)"'),
    "<finish>Done.</finish>",
)


class CrashCase(NamedTuple):
    """Directory, backend and settings of one run."""

    name: str
    backend: BackendName
    snapshot_every: SnapshotEvery
    directory: Path
    """The run's own directory, with its home and the files that its processes write."""
    base: Path
    """The repository that sandboxes of this host start from."""
    database: str | None = None
    """A URL; None means an SQLite file in the home."""

    @property
    def spec(self) -> SandboxSpec:
        if self.backend == "docker":
            return SandboxSpec(backend="docker", image=REPOSITORY_IMAGE, workspace=WORKSPACE, owner=self.name)
        return SandboxSpec(backend=self.backend, directory=self.base, owner=self.name)

    @contextlib.contextmanager
    def open_home(self) -> Iterator[Home]:
        with open_home(self.directory / "home", self.database) as home:
            yield home

    def read_lines(self, name: str) -> list[str]:
        """The lines of a file that the run's processes write."""
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []


class CrashPoints:
    """Counts and logs the crash points of this process, and kills it at one of them."""

    def __init__(self, case: CrashCase, die_at: int) -> None:
        self._file = os.open(case.directory / "crossings", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._die_at = die_at
        self._count = 0
        self._lock = threading.Lock()

    def pass_point(self, name: str) -> None:
        with self._lock:
            self._count += 1
            os.write(self._file, f"{name}\n".encode())
            if self._count == self._die_at:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)

    def wrap(
        self, owner: Any, name: str, label: str = "", *, condition: Callable[..., bool] | None = None
    ) -> None:
        """Add a crash point before and after each call of a function."""
        original, label = getattr(owner, name), label or name

        def count_call(*args: Any, **kwargs: Any) -> Any:
            if condition is not None and not condition(*args):
                return original(*args, **kwargs)
            self.pass_point(f"before {label}")
            result = original(*args, **kwargs)
            self.pass_point(f"after {label}")
            return result

        setattr(owner, name, count_call)

    def wrap_all(self) -> None:
        """Add crash points around everything that becomes durable or acts in a run."""
        self.wrap(effects, "begin", "effects.begin")
        self.wrap(effects, "end", "effects.end")
        self.wrap(snapshots, "save", "snapshots.save")
        self.wrap(PendingStates, "add", "pending.add")
        self.wrap(PendingStates, "settle", "pending.settle")
        self.wrap(sandbox, "start", "sandbox.start")
        self.wrap(sandbox, "restore", "sandbox.restore")
        for name in ("run", "inspect", "write_file", "snapshot", "close"):
            self.wrap(base_backend.BackendSandbox, name, f"backend_sandbox.{name}")
        self.wrap(archive_writer, "write", "archive.write")
        self.wrap(node_snapshots, "copy_to_store", "session.copy_to_store")
        self.wrap(node_records, "copy_to_store", "record.copy_to_store")
        self.wrap(node_snapshots, "remove_tree", "session.remove_tree")
        self.wrap(record_module, "write_durably", "record.write")
        self.wrap(record_module, "remove_tree", "record.remove_tree")
        self.wrap(
            Path, "rename", condition=lambda path, target: path.name.startswith((".snapshot", ".partial"))
        )
        self.wrap(graph_home, "acquire", "lease.acquire")
        self.wrap(leases.Lease, "release", "lease.release")
        self.wrap(leases, "answer_request", "lease.answer_request")
        self.wrap(Session, "enter_state", "session.enter_state")
        self.wrap(RepliesModel, "_generate", "model")
        self._wrap_actions()
        self._wrap_saver()

    def _wrap_actions(self) -> None:
        act = Session.act

        def count_act(
            session: Session, task_id: str, call: str, state_id: str, task: Any, do: Any, effect: Any
        ) -> Any:
            def run_effect(live_sandbox: Any) -> Any:
                self.pass_point("before do")
                seen = do(live_sandbox)
                self.pass_point("after do")
                return seen

            return act(session, task_id, call, state_id, task, run_effect, effect)

        Session.act = count_act  # type: ignore[method-assign]

    def _wrap_saver(self) -> None:
        opened = graph_home.open_saver

        @contextlib.contextmanager
        def open_counted(*args: Any, **options: Any) -> Iterator[Any]:
            with opened(*args, **options) as saver:
                for name in ("put", "put_writes"):
                    self.wrap(saver, name, f"saver.{name}")
                    self.wrap(saver, f"_{name}", f"saver.{name} in the database")
                yield saver

        graph_home.open_saver = open_counted


class RepliesModel(BaseChatModel):
    """A model that sends its scripted replies in order, and logs every call."""

    replies: tuple[str, ...]
    calls: Path

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        number = sum(isinstance(message, AIMessage) for message in messages)
        with self.calls.open("a") as calls:
            calls.write(f"{number}\n")
        reply = AIMessage(self.replies[number])
        reply.usage_metadata = UsageMetadata(input_tokens=10, output_tokens=1, total_tokens=11)
        return ChatResult(generations=[ChatGeneration(message=reply)])


def run_or_resume(case: CrashCase, die_at: int = 0) -> None:
    """Start or resume the run in this process, and write its outcome."""
    crossings = CrashPoints(case, die_at)

    @tool
    def note(number: int, config: RunnableConfig) -> str:
        """Note a number."""
        live_sandbox = config["configurable"]["sandbox"]
        live_sandbox.inspect(f"echo {number} >>log.txt")
        crossings.pass_point("between the tool's two effects")
        live_sandbox.inspect(f"echo {number} >>{_OUTSIDE_FILE}")
        return f"noted {number}"

    crossings.wrap_all()
    model = RepliesModel(replies=REPLIES, calls=case.directory / "calls")
    with (
        case.open_home() as home,
        open_run(
            home,
            case.name,
            model=model,
            model_name="scripted",
            sandbox=case.spec,
            snapshot_every=case.snapshot_every,
            run_id="matrix",
            points=("first_source_edit",),
            tools=(note,),
        ) as running,
    ):
        try:
            done = running.resume(go_back=case.snapshot_every == "point")
        except ThreadNotFoundError:
            done = running.start("t", "Note what you do.")
    state = done.state
    facts = {
        "stop_reason": done.stop_reason,
        "steps": done.steps,
        "tokens": [done.prompt_tokens, done.completion_tokens],
        "patch": done.patch,
        "patch_error": done.patch_error,
        "records": done.records,
        "messages": [[message.type, message.text] for message in state["messages"]],
        "events": [_comparable_event(event, case) for event in state["events"]],
        "edits": state["edits"],
    }
    (case.directory / "outcome").write_text(_normalize_paths(json.dumps(facts)))


def audit_case(case: CrashCase) -> None:
    """Write the leftovers of a finished run, and let a successor take over its record."""
    with case.open_home() as home:
        ledger, found = home.ledger, {}
        with ledger.read_transaction() as connection:
            now = ledger.now(connection)
            of_thread = store.leases.c.thread == case.name
            held_leases = select(func.count()).where(of_thread, store.leases.c.expires_at > now)
            found["leases held"] = connection.execute(held_leases).scalar_one()
            effects_begun = select(func.count()).where(store.effects.c.thread == case.name)
            found["more than one effect"] = connection.execute(effects_begun).scalar_one() > 1
        found["newest kept"] = home.history(case.name)[0].is_restorable
        found["records"] = [_comparable_record(home, name) for name in home.records.list_ids()]
        for part in home.snapshot_directory.glob(".*"):
            os.utime(part, (0, 0))
        if case.database is None:  # elsewhere other homes share the database
            home.remove_unused_snapshots()
            found["unused snapshots"] = [part.name for part in home.snapshot_directory.glob(".*")]
            used = node_snapshots.snapshot_directory_names(snapshots.list_snapshots(ledger))
            found["unknown snapshots"] = [
                part.name for part in home.snapshot_directory.iterdir() if part.name not in used
            ]
        found["partial records"] = [part.name for part in home.records.root.glob(".*")]
        model = RepliesModel(replies=SUCCESSOR_REPLIES, calls=case.directory / "successor")
        taken = take_over(
            home, f"{case.name}.next", record_id=RECORD, model=model, sandbox=case.spec, points=()
        )
        found["successor"] = [taken.stop_reason, taken.events[1].text, taken.patch]
        with home.open_session(case.name, case.spec) as (session, _):
            live_sandbox = session.enter_state(
                home.saver.get_tuple(_thread_config(case)).checkpoint["channel_values"]["sandbox_state"]
            )
            found["sandbox"] = live_sandbox.inspect(f"cat log.txt {_OUTSIDE_FILE} pkg/extra.py").output
    (case.directory / "audit").write_text(_normalize_paths(json.dumps(found)))


def build_image(base: Path, name: str) -> None:
    """Build the image of that repository on a base with bash, git and Python."""
    from langgraph_takeover.sandbox.docker_client import client, require_image

    container = client().containers.create(require_image(IMAGE).id, ["true"])
    try:
        with tempfile.TemporaryFile() as packed:
            with tarfile.open(fileobj=packed, mode="w") as tar:
                tar.add(base, WORKSPACE, filter=_set_root_owner)
            packed.seek(0)
            container.put_archive("/", packed)
        repository, _, tag = name.partition(":")
        container.commit(repository, tag)
    finally:
        container.remove(force=True)


def _set_root_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    return member


def remove_image(name: str) -> None:
    from langgraph_takeover.sandbox.docker_client import client

    client().images.remove(name, force=True)


def remove_containers(case: CrashCase) -> None:
    """Write the names of the containers that a run left, and remove them."""
    from langgraph_takeover.sandbox.gc import list_docker_resources, remove_objects

    # The owner of each thread's sandboxes begins with the name of the case.
    found = [
        one for one in list_docker_resources() if one.kind == "container" and one.owner.startswith(case.name)
    ]
    (case.directory / "containers").write_text("".join(f"{one.name}\n" for one in found))
    remove_objects(found)


def create_repository(directory: Path) -> Path:
    """A small repository that sandboxes start from."""
    base = directory / "base"
    (base / "pkg").mkdir(parents=True)
    (base / "pkg" / "__init__.py").touch()
    (base / "pkg" / "core.py").write_text("def double(n):\n    return n + 1\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(base)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"]):
        subprocess.run([*git, *words], check=True)
    return base


def check_reference(expected: dict[str, Any]) -> list[str]:
    """The defects of the uninterrupted run, one per line."""
    outcome, audit = expected["outcome"], expected["audit"]
    noted = "1\n2\n3\n4\n"
    due = {
        "stop_reason": (outcome["stop_reason"], "finished"),
        "steps": (outcome["steps"], len(REPLIES)),
        "patch_error": (outcome["patch_error"], None),
        "records": (outcome["records"], [RECORD]),
        "calls of the model": (expected["calls"], len(REPLIES)),
        "leases held": (audit["leases held"], 0),
        "more than one effect": (audit["more than one effect"], False),
        "newest kept": (audit["newest kept"], True),
        "records of the home": ([record["id"] for record in audit["records"]], [RECORD]),
        "unused snapshots": (audit.get("unused snapshots", []), []),
        "unknown snapshots": (audit.get("unknown snapshots", []), []),
        "partial records": (audit["partial records"], []),
        "successor": (
            audit["successor"][:2],
            ["finished", "[exit code 0]\nkept\npkg\n1\n1\nONE = 1\nkept\n"],
        ),
        "sandbox": (audit["sandbox"], f"{noted}{noted}ONE = 11\n"),
    }
    return [
        f"{name} is {_format_difference(now, value)}" for name, (now, value) in due.items() if now != value
    ]


def compare_with_reference(case: CrashCase, expected: dict[str, Any], deaths: int) -> list[str]:
    """The differences from the uninterrupted run, one per line."""
    found = []
    for part in ("outcome", "audit"):
        result = case.directory / part
        if not result.exists():
            return [f"no {part}: {' / '.join(case.read_lines('failure')[-1:]) or 'the process did not end'}"]
        now = json.loads(result.read_text())
        for name, value in expected[part].items():
            if now.get(name) != value:
                found.append(f"{part}: {name} is {_format_difference(now.get(name), value)}")
    calls = len(case.read_lines("calls"))
    most = (expected["calls"] + deaths) if case.snapshot_every == "step" else expected["calls"] * (deaths + 1)
    if calls > most:
        found.append(f"the model was called {calls} times, at most {most} expected")
    return found


def _format_difference(now: Any, value: Any) -> str:
    if isinstance(now, list) and isinstance(value, list) and len(now) == len(value):
        pairs = [(a, b) for a, b in zip(now, value, strict=True) if a != b]
        return f"{str(pairs[0][0])[:1500]}, not {str(pairs[0][1])[:1500]}"
    return f"{str(now)[:1500]}, not {str(value)[:1500]}"


def _comparable_event(event: dict[str, Any], case: CrashCase) -> dict[str, Any]:
    """An event without variable fields: times, and for plain processes the tree."""
    left_out = {"seconds", *({"tree"} if case.backend == "process" else ())}
    return {name: value for name, value in event.items() if name not in left_out}


def _comparable_record(home: Home, name: str) -> dict[str, Any]:
    record = home.records.load(name).model_dump(mode="json")
    left_out = ("created_at", "checkpoint_id", "digest", "thread_id")
    process = record["snapshot"]["backend"] == "process"
    for event in record["trace"]:
        event.pop("seconds")
        event.pop("tree" if process else "seconds", None)
    snapshot = {key: record["snapshot"][key] for key in ("backend", "base", "digest")}
    return {key: value for key, value in record.items() if key not in left_out} | {"snapshot": snapshot}


def _normalize_paths(text: str) -> str:
    """The text without the names of run directories, which are new in every process."""
    return re.sub(r"/[^\" \\:]*/runs/[^/\" ]+/[0-9a-f]{8}/", "RUN/", text)


def _thread_config(case: CrashCase) -> RunnableConfig:
    return {"configurable": {"thread_id": case.name, "checkpoint_ns": ""}}
