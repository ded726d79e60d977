"""No artifact contains the runtime's secrets, whatever a model, an endpoint or an agent does with them."""

from __future__ import annotations

import base64
import io
import json
import secrets
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zstandard

from langgraph_takeover import open_home, open_run
from langgraph_takeover.base.secret_names import REDACTED
from langgraph_takeover.evals.models import build_model
from langgraph_takeover.evals.tasks import BUNDLED, load_tasks
from langgraph_takeover.handoff.views import VIEWS
from langgraph_takeover.sandbox.ownership import ROOT_VARIABLE

from ..chat_server import ChatServer
from .conftest import ONE_POINT, ROOT, RunCommand, assert_refused, read_rows
from .test_docker import images  # noqa: F401

KEY, TOKEN = "sk-canary-0123456789", 'canary\\two "$9'
MADE_UP = "ghp_" + "c4n4ry" * 6
ENVIRONMENT = {"OPENAI_API_KEY": KEY, "OTHER_SERVICE_TOKEN": TOKEN}
SPELT = [
    base64.b64encode(f"Bearer {KEY}".encode()).decode(),
    KEY.encode().hex(),
    KEY.encode().hex().upper(),
    "".join(f"%{ord(letter):02x}" for letter in KEY),
]
"""Encodings that are found (docs/security.md)."""
SAYS = f"I use {KEY} and {TOKEN}; as a header {base64.b64encode(f'me:{KEY}'.encode()).decode()}, or {' or '.join(SPELT)}. "
COMMAND = f"""echo '{KEY}' > found.txt; export HELD='{TOKEN}'; kept() {{ echo '{KEY}'; }}
echo {MADE_UP} > made_up.txt; cat found.txt made_up.txt; echo "$HELD"; cat > "named {KEY}" <<< "$HELD"
for file in $(git ls-files '*.py' | grep -v test); do echo "# {KEY}" >> "$file"; done"""
NOTES = {"work_completed": f"Used {KEY}.", "recommended_next_action": f"Use {TOKEN} or {MADE_UP}."}


class Leaking:
    """A predecessor, a successor and a notes writer that repeat every secret wherever they can."""

    def __init__(self, native: bool) -> None:
        self.native = native
        self.refused = False

    def __call__(self, request: dict[str, Any]) -> tuple[int, bytes]:
        messages = request["messages"]
        prompt = next(message["content"] for message in messages if message["role"] == "user")
        if messages[0]["role"] != "system":
            return ChatServer.reply(SAYS + json.dumps(NOTES))
        if "another agent" in prompt and not self.refused:
            self.refused = True
            body = f"no such key: {KEY}, {TOKEN}, {MADE_UP}, {', '.join(SPELT)}"
            return 400, json.dumps({"error": {"message": body, "code": "invalid"}}).encode()
        # A view may begin with replies of its own.
        turn = min(sum(message["role"] == "assistant" for message in messages), 2)
        made = {"command": "create", "path": "made.txt", "content": SAYS}
        if self.native:
            calls = [("shell", {"command": COMMAND}), ("editor", made), ("finish", {"message": SAYS})]
            return _call_command(*calls[turn])
        return ChatServer.reply(
            SAYS
            + (
                f"\n\n```bash\n{COMMAND}\n```",
                f'<editor command="create" path="made.txt"><content>\n{SAYS}\n</content></editor>',
                f"<finish>{SAYS}</finish>",
            )[turn]
        )


def _call_command(name: str, arguments: dict[str, str]) -> tuple[int, bytes]:
    status, content = ChatServer.reply(SAYS, "tool_calls")
    body = json.loads(content)
    function = {"name": name, "arguments": json.dumps(arguments)}
    body["choices"][0]["message"]["tool_calls"] = [{"id": "c1", "type": "function", "function": function}]
    return status, json.dumps(body).encode()


def _forms() -> list[bytes]:
    escaped = json.dumps(TOKEN)[1:-1]
    return [
        KEY.encode(), TOKEN.encode(), escaped.encode(), json.dumps(escaped)[1:-1].encode(),
        *(spelt[4:20].encode() for spelt in SPELT),
        base64.b64encode(KEY.encode())[:24], base64.b64encode(f"me:{KEY}".encode())[4:28],
    ]  # fmt: skip


def holding(contents: Iterator[tuple[str, bytes]], forms: list[bytes]) -> list[str]:
    return [name for name, content in contents if any(form in content for form in forms)]


def everything_below(*places: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of all files, with archives unpacked, and each value of a database."""
    for path in (path for directory in places for path in directory.rglob("*")):
        yield str(path), str(path).encode()
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        yield str(path), content
        if path.suffix == ".zst":
            unpacked = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content)).read()
            yield f"{path}, unpacked", unpacked
        if content.startswith(b"SQLite format 3\0"):
            yield from _values(path)


def _values(path: Path) -> Iterator[tuple[str, bytes]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in database.execute(f"SELECT * FROM {table}"):
                for value in row:
                    content = value if isinstance(value, bytes) else str(value).encode()
                    yield f"{path}, {table}", content


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sandbox", "protocol", "views"),
    [
        pytest.param("process", "text", tuple(VIEWS), marks=pytest.mark.slow),
        pytest.param("process", "native", ("repository", "cited", "transcript"), marks=pytest.mark.slow),
        pytest.param("docker", "text", ("repository", "trace", "structured"), marks=pytest.mark.slow),
    ],
)
def test_no_artifact_of_a_run_contains_a_secret(
    takeover: RunCommand,
    chat_server: ChatServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    sandbox: str,
    protocol: str,
    views: tuple[str, ...],
) -> None:
    if sandbox == "docker":
        builder = request.getfixturevalue("images")
        builder.build_suite(ROOT / "evals" / "tasks" / "suite" / "tasks", builder.build_base())
    out, directory = tmp_path / "out", tmp_path / "place"
    directory.mkdir(mode=0o711)
    chat_server.answer = Leaking(protocol == "native")
    arguments = ("--model", "openai:m", "--base-url", chat_server.url, "--view", ",".join(views))
    arguments += ("--protocol", protocol, "--sandbox", sandbox, "--allow-unisolated")
    done = takeover(*arguments, *ONE_POINT, "--out", out, **ENVIRONMENT, **{ROOT_VARIABLE: str(directory)})
    # The endpoint refused one takeover; its message is in the row and in the report.
    assert done.returncode == 3, (done.stdout, done.stderr)
    (failed,) = [row for row in read_rows(out) if row["outcome"] != "graded"]
    assert f"no such key: {REDACTED}, {REDACTED}" in failed["detail"].replace("[key]", REDACTED)
    assert [row["stop_reason"] for row in read_rows(out) if row["outcome"] == "graded"] == ["finished"] * (
        len(views) - 1
    )
    (record,) = (out / "records").iterdir()
    assert {"record.json", "notes.json"} < {path.name for path in record.iterdir()}
    archives = [name for name, content in everything_below(record) if MADE_UP.encode() in content]
    assert any(name.endswith(", unpacked") for name in archives), "what the agent wrote stays as it wrote it"

    contents = list(everything_below(out, directory))
    assert holding(iter([("stdout", done.stdout.encode()), ("stderr", done.stderr.encode())]), _forms()) == []
    assert holding(iter(contents), _forms()) == []
    written = [each for each in contents if each[0].endswith((".json", ".jsonl", ".log", ".txt", ".diff"))]
    assert len([name for name, _ in written if "grading" in name]) >= len(views)
    inside = str(out / ".repositories")
    files = iter([each for each in written if not each[0].startswith(inside)])
    assert holding(files, [MADE_UP.encode()]) == []


@pytest.mark.slow
def test_no_image_and_no_container_contains_the_models_key(
    request: pytest.FixtureRequest, chat_server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langgraph_takeover.sandbox.gc import Resource, list_docker_resources, remove_objects

    builder = request.getfixturevalue("images")
    builder.build_suite(ROOT / "evals" / "tasks" / "suite" / "tasks", builder.build_base())
    (task,) = load_tasks(BUNDLED, ["galley__galley-31"])
    owner = f"canary-{secrets.token_hex(4)}"
    spec = task.build_spec("docker", owner, tmp_path).model_copy(update={"snapshots": "commit"})
    chat_server.answer = Leaking(native=True)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = build_model("openai:m", task=task, base_url=chat_server.url)
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("OTHER_SERVICE_TOKEN", TOKEN)
    found: dict[str, bytes] = {}

    def ours(kind: str) -> list[Resource]:
        return [one for one in list_docker_resources() if one.kind == kind and one.owner.startswith(owner)]

    request.addfinalizer(lambda: remove_objects(ours("image")))

    def look(event: dict[str, Any]) -> None:
        found[f"progress {len(found)}"] = json.dumps(event, ensure_ascii=False).encode()
        for one in ours("container"):
            found[f"container {one.name}"] = _docker("inspect", one.name)

    with open_home(tmp_path / "home") as home:
        options = {"model": model, "model_name": "m", "sandbox": spec, "protocol": "native"}
        with open_run(home, "thread", on_progress=look, **options) as run:
            outcome = run.start("galley", f"{SAYS} {MADE_UP}")
            frozen = [one.name for one in ours("image")]
            for name in frozen:
                found[f"image {name}"] = _docker("inspect", name) + _docker("history", "--no-trunc", name)
                with tarfile.open(fileobj=io.BytesIO(_docker("save", name))) as tar:
                    for member in filter(tarfile.TarInfo.isfile, tar):
                        content = tar.extractfile(member)
                        assert content is not None
                        found[f"image {name}, {member.name}"] = content.read()
        assert (outcome.stop_reason, len(outcome.records)) == ("finished", 1)
        assert any(name.startswith("container ") for name in found)
        assert len(frozen) >= 2
        assert holding(iter(found.items()), [MADE_UP.encode()]), "the images were not looked into"
        assert holding(iter(found.items()), _forms()) == []
        assert holding(everything_below(tmp_path), _forms()) == []


def _docker(*arguments: str) -> bytes:
    return subprocess.run(["docker", *arguments], capture_output=True, check=True).stdout


def test_an_exported_run_of_another_agent_contains_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = f"I look.\n\n```bash\necho {KEY} {MADE_UP}\n```"
    messages = [{"role": "user", "content": f"Mend it with {KEY}."}, {"role": "assistant", "content": reply}]
    whole = {"trajectory_format": "mini-swe-agent-1", "messages": messages}
    (tmp_path / "run.traj.json").write_text(json.dumps(whole))
    command = [sys.executable, "-m", "evals.export", tmp_path / "run.traj.json", "--out", tmp_path / "atif"]
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (document,) = (tmp_path / "atif").iterdir()
    assert f"echo {REDACTED} {REDACTED}" in document.read_text()
    assert holding(everything_below(tmp_path / "atif"), [KEY.encode(), MADE_UP.encode()]) == []


def test_a_url_with_a_password_is_refused_before_it_is_stored(run_main: RunCommand, tmp_path: Path) -> None:
    arguments = (
        "--model",
        "openai:m",
        "--base-url",
        "http://me:pass-word-1@127.0.0.1:9/v1",
        "--sandbox",
        "process",
    )
    done = run_main(*arguments, "--allow-unisolated", "--limit", "1", "--out", tmp_path / "out")
    assert_refused(done, "--base-url: contains a secret")
    assert not (tmp_path / "out").exists()
