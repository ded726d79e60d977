"""Images and commands of other projects that could move work out of the container's layer, or change who works."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.changes.file_access import list_unsaved_files
from langgraph_takeover.sandbox.docker_client import client
from langgraph_takeover.sandbox.interface import SandboxSpec
from langgraph_takeover.sandbox.repository import head_commit, patch_since
from langgraph_takeover.testing.sandboxes import check_output

OWNER = "test-compatible-images"
CHANGES = ["USER 1000", "ENV HOME=/elsewhere", "WORKDIR /srv", 'ENTRYPOINT ["/bin/false"]']
WRITE = (
    "mkdir -p built && { mount -t tmpfs none built 2>/dev/null; echo 1 > built/x; }; echo 2 > /tmp/y; "
    "echo 3 > /var/tmp/z; mkdir -p /srv/other /run/lock; echo 4 > /srv/other/n; echo 5 > /run/lock/l"
)
READ = "cat built/x /tmp/y /var/tmp/z /srv/other/n /run/lock/l"


@pytest.fixture(scope="module")
def image(testbed_image: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """The repository of user 1000 in /testbed, in an image with another user, home, directory and entry point."""
    tag = f"takeover/compatible-{secrets.token_hex(4)}"
    with testbed_image() as base:
        container = client().containers.create(base, ["chown", "-R", "1000", "/testbed"])
        try:
            container.start()
            assert container.wait()["StatusCode"] == 0
            container.commit(tag, changes=CHANGES)
        finally:
            container.remove(force=True, v=True)
        yield tag
        sandbox.remove_stale_resources("docker", OWNER)
        client().images.remove(tag, force=True)


@pytest.mark.slow
def test_files_outside_the_repository_are_restored(image: str, tmp_path: Path) -> None:
    spec = SandboxSpec(backend="docker", image=image, owner=OWNER)
    with sandbox.start(spec) as first:
        first.run(WRITE, timeout_s=30)
        assert list_unsaved_files(first) == ()
        snapshot = first.snapshot(tmp_path).result()
    with sandbox.restore(snapshot, tmp_path, spec) as second:
        assert check_output(second, READ).split() == ["1", "2", "3", "4", "5"]


def test_commands_run_as_root_in_the_workspace(image: str) -> None:
    with sandbox.start(SandboxSpec(backend="docker", image=image, owner=OWNER)) as started:
        assert check_output(started, "id -u; echo $HOME; pwd").split() == ["0", "/root", "/testbed"]
        started.run("echo 1 >> README.txt", timeout_s=30)
        assert "README.txt" in patch_since(started, head_commit(started)).text
        assert "dubious ownership" in started.run("git status", timeout_s=30).output
        check_output(started, "git config --global --add safe.directory /testbed && git status")
