"""The standard tests of langchain-tests for a backend of deepagents, and those of saved states. `test_deepagents.py` runs them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, get_args

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from langgraph_takeover import open_home
from langgraph_takeover.deepagents import SandboxBackend, SavedSandbox
from langgraph_takeover.errors import ThreadExistsError
from langgraph_takeover.integrations import Sandboxes, open_sandbox
from langgraph_takeover.sandbox.interface import BackendName

from ..conftest import open_bench


@pytest.fixture(scope="module", params=["open_sandbox", "Sandboxes"])
def opening(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=get_args(BackendName))
def backend(
    request: pytest.FixtureRequest, opening: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SandboxBackend]:
    with ExitStack() as stack:
        home = stack.enter_context(open_home(tmp_path_factory.mktemp("home")))
        root = tmp_path_factory.mktemp("bench")
        spec = stack.enter_context(open_bench(request, root, home, request.param)).spec
        if opening == "open_sandbox":
            yield SandboxBackend(stack.enter_context(open_sandbox(home, "suite", sandbox=spec)))
        else:
            sandboxes = stack.enter_context(Sandboxes(home, spec))
            stack.enter_context(sandboxes.open("suite"))
            yield SandboxBackend(sandboxes)


class TestSandboxBackend(SandboxIntegrationTests):
    root = ""

    @property
    def sandbox_root_dir(self) -> str:
        """A directory of each sandbox's own: under `process`, /tmp is the host's."""
        return self.root

    @pytest.fixture(scope="class")
    def sandbox(self, backend: SandboxBackend) -> Iterator[SandboxBackend]:
        type(self).root = root = f"/tmp/suite-{secrets.token_hex(6)}/"
        directory = backend.execute("pwd").output.strip()
        yield backend
        backend.execute(f"cd {directory}; rm -rf {root}")


class TestSavedSandbox:
    """The contract of `SavedSandbox`: the tests use nothing else of the backend but deepagents' protocol."""

    @pytest.fixture
    def sandbox(self, backend: SavedSandbox[Any]) -> Iterator[SavedSandbox[Any]]:
        before = backend.snapshot()
        yield backend
        backend.restore(before)

    def test_a_restored_sandbox_has_files_and_shell_of_the_snapshot(self, sandbox: Any) -> None:
        sandbox.execute("mkdir -p sub && cd sub && export A=1 && f() { echo f$A; } && echo old > file")
        saved = sandbox.snapshot()
        sandbox.execute("cd ..; export A=2; rm -r sub; unset -f f; echo new > other")
        sandbox.restore(saved)
        done = sandbox.execute("basename $PWD; f; cat file; ls ..")
        assert done.output.split()[:3] == ["sub", "f1", "old"]
        assert "other" not in done.output

    def test_a_snapshot_can_be_restored_again_and_in_a_fork(self, sandbox: Any) -> None:
        sandbox.execute("echo 1 > count")
        saved = sandbox.snapshot()
        with sandbox.fork("again") as fork:
            for each in (sandbox, fork, sandbox):
                each.restore(saved)
                assert each.execute("cat count; echo 2 > count").output.strip() == "1"

    def test_a_fork_begins_in_the_state_of_its_sandbox(self, sandbox: Any) -> None:
        path = sandbox.execute("export A=fork; mkdir sub; cd sub; echo $PWD/uploaded").output.strip()
        sandbox.upload_files([(path, b"bytes")])
        with sandbox.fork("begins") as fork:
            assert fork.id != sandbox.id
            assert fork.execute("cat $PWD/uploaded; basename $PWD; echo $A").output.split() == [
                "bytessub",
                "fork",
            ]

    def test_forks_do_not_see_each_other(self, sandbox: Any) -> None:
        sandbox.execute("echo 0 > shared; A=0")
        with sandbox.fork("left") as left, sandbox.fork("right") as right:
            boxes = {"1": sandbox, "2": left, "3": right}
            for name, each in boxes.items():
                done = each.execute(f"cat shared; echo $A; echo {name} > shared; A={name}")
                assert done.output.split() == ["0", "0"]
            for name, each in boxes.items():
                assert each.execute("cat shared; echo $A").output.split() == [name, name]

    def test_a_fork_can_be_forked_and_its_work_brought_back(self, sandbox: Any) -> None:
        with sandbox.fork("child") as child:
            child.execute("echo child > lineage")
            with child.fork("grandchild") as grandchild:
                grandchild.execute("echo grandchild >> lineage")
                best = grandchild.snapshot()
            assert child.execute("cat lineage").output.split() == ["child"]
        sandbox.restore(best)
        assert sandbox.execute("cat lineage").output.split() == ["child", "grandchild"]

    def test_a_fork_needs_a_new_name(self, sandbox: Any) -> None:
        with sandbox.fork("taken"):
            pass
        with pytest.raises(ThreadExistsError, match="'taken'"), sandbox.fork("taken"):
            pass
