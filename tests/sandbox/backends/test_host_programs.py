"""Checks and starts find the same programs of this host."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.backends import bubblewrap, host, overlay
from langgraph_takeover.sandbox.interface import SandboxSpec, SandboxUnavailableError
from langgraph_takeover.testing.sandboxes import run

from ...conftest import skip_missing


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that is the whole PATH: the programs of this host except bubblewrap."""
    if reason := host.unavailable_reason():
        skip_missing(reason)
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)  # the user of the sandboxes has to reach it
    for parent in ("/usr/bin", "/usr/sbin"):
        for program in Path(parent).iterdir():
            link = directory / program.name
            if program.name != "bwrap" and not link.is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(directory))
    caches = (host.unavailable_reason, overlay.namespaces_unavailable_reason)
    for cached in caches:
        cached.cache_clear()  # type: ignore[attr-defined]
    yield directory
    for cached in caches:
        cached.cache_clear()  # type: ignore[attr-defined]
    shutil.rmtree(directory)


def test_bubblewrap_outside_the_system_directories_starts(elsewhere: Path, tmp_path: Path) -> None:
    shutil.copy("/usr/bin/bwrap", elsewhere / "bwrap")
    assert host.unavailable_reason() is None
    assert bubblewrap.find_bubblewrap() == str(elsewhere / "bwrap")
    (tmp_path / "repository").mkdir()
    with sandbox.start(SandboxSpec(backend="host", directory=tmp_path / "repository")) as started:
        assert run(started, "echo started").output.strip() == "started"


def test_the_check_and_the_start_name_the_same_missing_program(elsewhere: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match="bwrap is not installed") as raised:
        bubblewrap.find_bubblewrap()
    assert host.unavailable_reason() == str(raised.value)


@pytest.mark.parametrize("entry", ["", ".", "bin"])
def test_a_relative_entry_of_path_is_not_searched(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory in (tmp_path, tmp_path / "bin"):
        directory.mkdir(exist_ok=True)
        shutil.copy("/bin/true", directory / "planted")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{entry}:/usr/bin")
    with pytest.raises(SandboxUnavailableError):
        ownership.find_program("planted", "none")


@pytest.mark.parametrize("mode", [0o777, 0o700])
def test_a_directory_that_is_writable_for_all_or_closed_is_not_searched(
    mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        shutil.copy("/bin/true", directory / "planted")
        monkeypatch.setenv("PATH", name)
        directory.chmod(0o755)
        assert ownership.find_program("planted", "none") == str(directory / "planted")
        directory.chmod(mode)
        if mode == 0o700 and ownership.owner_uid() is None:
            return  # sandboxes run as this user, who can enter it
        with pytest.raises(SandboxUnavailableError):
            ownership.find_program("planted", "none")
