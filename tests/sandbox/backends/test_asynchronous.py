"""The asynchronous sandbox: the same results, and cancelled tasks leave no command behind."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from langgraph_takeover import sandbox as sandbox_module
from langgraph_takeover.sandbox import AsyncSandbox, SandboxSpec, SandboxUnavailableError
from langgraph_takeover.sandbox.backends import asynchronous

_UNIQUE = f"{300 + secrets.randbelow(10**6) / 10**6}"
"""Seconds of a sleep that no other process makes."""


@pytest.fixture
def spec(repository: Path) -> SandboxSpec:
    return SandboxSpec(backend="process", directory=repository, owner="test-async")


def test_it_does_what_a_sandbox_does(spec: SandboxSpec, tmp_path: Path) -> None:
    async def work() -> None:
        async with await AsyncSandbox.start(spec) as sandbox:
            assert (await sandbox.run("cd /; x=1; echo $x", timeout_s=20)).output == "1\n"
            assert await sandbox.cwd() == "/"
            await sandbox.write_file("new.txt", b"2")
            assert [change.path for change in await sandbox.changes()] == ["new.txt"]
            assert "new.txt" in (await sandbox.inspect("ls")).output
            saved = await sandbox.snapshot(tmp_path)
        async with await AsyncSandbox.restore(saved, tmp_path, spec) as restored:
            assert await restored.read_file("new.txt") == b"2"
            assert "new.txt" in (await restored.directory_listing(".") or ())
            assert (await restored.run("echo $x", timeout_s=20)).output == "1\n"

    asyncio.run(work())


def test_a_cancelled_task_kills_its_command_alone(spec: SandboxSpec) -> None:
    async def work() -> None:
        async with await AsyncSandbox.start(spec) as sandbox:
            await sandbox.run("x=kept", timeout_s=20)
            task = asyncio.create_task(
                sandbox.run(f"touch begun; sleep {_UNIQUE} & sleep {_UNIQUE}; touch ended", timeout_s=60)
            )
            begun = Path(sandbox.workspace) / "begun"
            while not begun.exists():
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            arguments = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
            assert ["sleep", _UNIQUE] not in arguments
            assert (await sandbox.run("echo $x; ls", timeout_s=20)).output.startswith("kept\n")
            assert not (Path(sandbox.workspace) / "ended").exists()

    asyncio.run(asyncio.wait_for(work(), 45))


class Foreign:
    """A sandbox of another kind, which cannot end a command alone."""

    def __init__(self, inner: Any) -> None:
        self.workspace, self.inner = inner.workspace, inner

    def run(self, command: str, *, timeout_s: float) -> Any:
        return self.inner.run(command, timeout_s=timeout_s)

    def close(self) -> None:
        self.inner.close()


def test_another_kind_of_sandbox_is_closed_instead(spec: SandboxSpec) -> None:
    async def work() -> None:
        started = await AsyncSandbox.start(spec)
        foreign: Any = Foreign(started.sandbox)
        sandbox = AsyncSandbox(foreign)
        task = asyncio.create_task(sandbox.run("touch begun; sleep 30", timeout_s=60))
        while not (Path(sandbox.workspace) / "begun").exists():
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(SandboxUnavailableError):
            await sandbox.run("true", timeout_s=20)
        await started.close()

    asyncio.run(asyncio.wait_for(work(), 45))


def test_a_sandbox_that_starts_after_its_task_was_cancelled_is_closed(
    spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_open, opened = Event(), Event(), list[Any]()
    start = sandbox_module.start

    def start_late(late: SandboxSpec) -> Any:
        begun.set()
        may_open.wait(30)
        opened.append(start(late))
        return opened[0]

    async def work() -> None:
        task = asyncio.create_task(AsyncSandbox.start(spec))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(sandbox_module, "start", start_late)
    monkeypatch.setattr(asynchronous, "_END_GRACE_S", 0.05)
    asyncio.run(work())
    may_open.set()
    while not opened or Path(opened[0].workspace).exists():
        time.sleep(0.02)
    with pytest.raises(SandboxUnavailableError, match="closed"):
        opened[0].run("true", timeout_s=20)
