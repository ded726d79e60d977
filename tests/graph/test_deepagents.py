"""The backend for deepagents passes the standard tests of langchain-tests, and can be saved and restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from langgraph_takeover.deepagents import SandboxBackend
from langgraph_takeover.sandbox import SandboxSpec, default_backend


@pytest.fixture(scope="class")
def spec(tmp_path_factory: pytest.TempPathFactory) -> SandboxSpec:
    directory = tmp_path_factory.mktemp("deepagents")
    return SandboxSpec(
        backend=default_backend(allow_process=True), directory=directory, owner="test-deepagents"
    )


class TestSandboxBackend(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, spec: SandboxSpec) -> Iterator[SandboxBackend]:
        with SandboxBackend(spec) as backend:
            yield backend


def test_a_snapshot_brings_files_and_shell_back(spec: SandboxSpec, tmp_path: Path) -> None:
    with SandboxBackend(spec) as backend:
        backend.write("/tmp/note", "first")
        backend.execute("cd /tmp; export A=b")
        snapshot = backend.snapshot(tmp_path)
        backend.execute("rm note; unset A")
    with SandboxBackend.restore(snapshot, tmp_path, spec) as backend:
        assert backend.execute("cat note; echo $A; pwd").output == "firstb\n/tmp\n"


def test_a_command_that_takes_too_long_is_stopped(spec: SandboxSpec) -> None:
    with SandboxBackend(spec) as backend:
        result = backend.execute("echo begun; sleep 60", timeout=1)
    assert result.exit_code == 124
    assert result.output == "begun\n\n[stopped after 1 s]"
