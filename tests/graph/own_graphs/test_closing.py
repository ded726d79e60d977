"""Errors at the end: none hides the user's, use after the end is refused in one line, and nothing missing is remembered."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover import Home, open_home, open_run
from langgraph_takeover.base.failures import cache_unless, clean_up, run_all
from langgraph_takeover.errors import LedgerUnavailableError, SandboxUnavailableError, TakeoverError
from langgraph_takeover.integrations import open_sandbox
from langgraph_takeover.sandbox import SandboxManager, SandboxSpec, start
from langgraph_takeover.sandbox.backends import host, overlay

from ...conftest import skip_missing
from ..conftest import DONE, RunHarness, scripted_model


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SandboxSpec:
    """A spec for a daemon that does not answer."""
    from langgraph_takeover.sandbox import docker_client

    docker_client.client.cache_clear()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    return SandboxSpec(backend="docker", image="none")


def test_without_a_daemon_the_users_error_remains(bench: RunHarness, no_docker: SandboxSpec) -> None:
    def use(error: Exception | None) -> None:
        with open_sandbox(bench.home, "own", sandbox=no_docker) as work:
            with pytest.raises(SandboxUnavailableError, match="no Docker daemon"):
                work.act("act", lambda box: 1, state=None)
            if error is not None:
                raise error

    use(None)  # it was handled
    with pytest.raises(ZeroDivisionError):
        use(ZeroDivisionError())
    with (
        bench.open_run(scripted_model(DONE), sandbox=no_docker) as run,
        pytest.raises(SandboxUnavailableError, match="no Docker daemon"),
    ):
        run.start("t", "Go.")


def test_an_end_that_fails_is_a_note_of_the_users_error(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise SandboxUnavailableError("the daemon is gone")

    def use(error: Exception | None) -> None:
        with open_sandbox(bench.home, "own", sandbox=bench.spec) as work:
            work.enter().cwd()
            if error is not None:
                raise error

    with monkeypatch.context() as patch:
        patch.setattr("langgraph_takeover.nodes.session.session.remove_stale_resources", fail)
        with pytest.raises(ZeroDivisionError) as raised:
            use(ZeroDivisionError())
        assert raised.value.__notes__ == ["clean-up failed, too: SandboxUnavailableError: the daemon is gone"]
        with pytest.raises(SandboxUnavailableError, match="the daemon is gone"):
            use(None)
    use(None)  # the lease was released all the same


def test_all_steps_of_a_clean_up_run() -> None:
    done: list[str] = []

    def fail(name: str) -> Callable[[], None]:
        def step() -> None:
            done.append(name)
            raise OSError(name)

        return step

    with pytest.raises(KeyError) as raised, clean_up(fail("a"), lambda: done.append("b"), fail("c")):
        raise KeyError
    assert done == ["a", "b", "c"]
    assert raised.value.__notes__ == ["clean-up failed, too: OSError: a", "clean-up failed, too: OSError: c"]
    with pytest.raises(OSError, match="a") as failed, clean_up(fail("a"), fail("c")):
        pass
    assert failed.value.__notes__ == ["clean-up failed, too: OSError: c"]
    assert run_all(lambda: None) is None


def test_a_sandbox_that_cannot_be_closed_keeps_the_users_error(bench: RunHarness) -> None:
    def use(enter: Callable[[], Any], error: Exception | None) -> None:
        with enter() as opened:
            started: Any = opened.sandbox() if isinstance(opened, SandboxManager) else opened
            close = started._backend.close

            def fail() -> None:
                close()
                raise SandboxUnavailableError("not removed")

            started._backend.close = fail
            if error is not None:
                raise error

    for enter in (lambda: SandboxManager(bench.spec), lambda: start(bench.spec)):
        with pytest.raises(ZeroDivisionError) as raised:
            use(enter, ZeroDivisionError())
        assert "not removed" in raised.value.__notes__[0]
        with pytest.raises(SandboxUnavailableError, match="not removed"):
            use(enter, None)


def list_late_calls(home: Home, bench: RunHarness, work: Any, run: Any) -> list[Callable[[], Any]]:
    config: Any = {"configurable": {"thread_id": "own"}}
    return [
        home.threads,
        lambda: home.history("own"),
        lambda: home.status("own"),
        lambda: home.stop("own"),
        lambda: home.request_handoff("own"),
        lambda: home.delete_thread("own"),
        lambda: home.saver.get_tuple(config),
        lambda: list(home.saver.list(config)),
        lambda: asyncio.run(home.acall(home.threads)),
        lambda: asyncio.run(home.saver.aget_tuple(config)),
        lambda: open_sandbox(home, "own", sandbox=bench.spec).__enter__(),
        lambda: work.enter(),
        lambda: work.act("late", lambda box: 1, state=None),
        lambda: asyncio.run(work.aact("late", lambda box: 1, state=None)),
        lambda: work.snapshot(),
        lambda: work.prune(),
        lambda: work.repair(),
        lambda: work.saver.get_tuple(config),
        lambda: work.saver.delete_thread("own"),
        lambda: run.start("t", "Go."),
        lambda: run.resume(),
        lambda: run.state(),
        lambda: run.outcome(),
        lambda: run.sandbox(),
        lambda: run.prune(),
        lambda: run.discard(),
        lambda: run.delete_snapshots(),
        lambda: run.update_state({}),
    ]


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def test_use_after_the_end(
    bench: RunHarness, database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_database") if database == "postgres" else None
    with open_home(tmp_path / "late", url) as home:
        with open_sandbox(home, "own", sandbox=bench.spec) as work:
            work.act("act", lambda box: 1, state=None)
        with open_run(home, "run", model=scripted_model(DONE), sandbox=bench.spec) as run:
            run.start("t", "Go.")
        with pytest.raises(SandboxUnavailableError, match="thread 'own' is closed here"):
            work.enter()
    for call in list_late_calls(home, bench, work, run):
        with pytest.raises((LedgerUnavailableError, SandboxUnavailableError)) as raised:
            call()
        text = str(raised.value)
        assert "closed" in text, text
        assert "closed database" not in text
        assert "\n" not in text
        assert isinstance(raised.value, TakeoverError)


def test_what_is_missing_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    if host.unavailable_reason():
        skip_missing("no host sandboxes here")
    which = shutil.which
    for program, reason in (
        ("bwrap", host.unavailable_reason),
        ("unshare", overlay.namespaces_unavailable_reason),
    ):
        reason.cache_clear()  # type: ignore[attr-defined]
        with monkeypatch.context() as patch:
            patch.setattr(
                shutil,
                "which",
                lambda name, program=program, **options: None if name == program else which(name, **options),
            )
            assert "is not installed" in (reason() or "")
        assert reason() is None
    calls: list[int] = []

    @cache_unless(lambda number: number < 2)
    def count() -> int:
        calls.append(1)
        return len(calls)

    assert [count() for _ in range(4)] == [1, 2, 2, 2]
