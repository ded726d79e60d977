"""Images with volumes: what a container writes there is part of every snapshot."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.changes.file_access import list_unsaved_files
from langgraph_takeover.sandbox.docker_client import client
from langgraph_takeover.sandbox.interface import SandboxSpec
from langgraph_takeover.sandbox.ownership import OWNER_LABEL
from langgraph_takeover.sandbox.repository import head_commit, patch_since
from langgraph_takeover.testing.sandboxes import check_output

OWNER = "test-volumes"
VOLUMES = ("/testbed", "/testbed/pkg/data", "/data", "/root/.cache")
WRITE = (
    "mkdir -p pkg/data && echo 1 > made.txt && echo 2 > pkg/data/x && echo 3 > /data/y && "
    "echo 4 > /root/.cache/z && echo 5 >> README.txt"
)
READ = "cat made.txt pkg/data/x /data/y /root/.cache/z; tail -n 1 README.txt"


@pytest.fixture(scope="module")
def image(testbed_image: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """The repository in /testbed, in an image that declares it and three other directories as volumes."""
    tag = f"takeover/volumes-{secrets.token_hex(4)}"
    with testbed_image() as base:
        container = client().containers.create(base, ["true"])
        try:
            container.commit(tag, changes=[f"VOLUME {path}" for path in VOLUMES])
        finally:
            container.remove(force=True, v=True)
        yield tag
        sandbox.remove_stale_resources("docker", OWNER)
        client().images.remove(tag, force=True)


def make_spec(image: str, **more: Any) -> SandboxSpec:
    return SandboxSpec(backend="docker", image=image, owner=OWNER, **more)


@pytest.mark.cases(1)
@pytest.mark.parametrize("snapshots", ["layer", "commit"])
def test_files_in_volumes_are_restored(image: str, tmp_path: Path, snapshots: Any) -> None:
    spec = make_spec(image, snapshots=snapshots)
    with sandbox.start(spec) as first:
        first.run(WRITE, timeout_s=30)
        changed = {each.path for each in first.changes()}
        patch = patch_since(first, head_commit(first)).text
        snapshot = first.snapshot(tmp_path / "1").result()
    assert {"made.txt", "pkg/data/x", "README.txt", "/data/y"} <= changed
    with sandbox.restore(snapshot, tmp_path / "1", spec) as second:
        assert check_output(second, READ).split() == ["1", "2", "3", "4", "5"]
        assert patch_since(second, head_commit(second)).text == patch
        second.run("echo 6 > /data/y", timeout_s=30)
        again = second.snapshot(tmp_path / "2").result()
    with sandbox.restore(again, tmp_path / "2", spec) as third:
        assert check_output(third, "cat made.txt /data/y").split() == ["1", "6"]


@pytest.mark.slow
def test_no_volume_is_made_and_no_image_stays(image: str) -> None:
    for _ in range(2):  # the second start finds the image of the first, or makes it again
        with sandbox.start(make_spec(image)) as started:
            assert check_output(started, "cat README.txt") == "a small repository\n"
            assert check_output(started, "grep -c testbed /proc/self/mountinfo || :") == "0\n"
            (container,) = client().containers.list(filters={"label": f"{OWNER_LABEL}={OWNER}"})
            assert container.attrs["Mounts"] == []
    assert (
        "/data" in client().images.get(image).attrs["Config"]["Volumes"]
    )  # the user's own image is unchanged
    sandbox.remove_stale_resources("docker", OWNER)
    assert client().api.images(filters={"label": f"{OWNER_LABEL}={OWNER}"}) == []


@pytest.mark.slow
def test_a_host_sandbox_has_the_files_of_a_volume(image: str) -> None:
    spec = SandboxSpec(backend="host", image=image, owner=OWNER)
    with sandbox.start(spec) as started:
        assert check_output(started, "cat README.txt; ls -d /data") == "a small repository\n/data\n"


@pytest.mark.slow
def test_files_that_no_snapshot_has_are_named(image: str) -> None:
    with sandbox.start(make_spec(image)) as started:
        assert list_unsaved_files(started) == ()
        started.run("echo 1 > /dev/shm/cache; sleep 2; echo 127.0.0.1 db >> /etc/hosts", timeout_s=30)
        assert [each.path for each in list_unsaved_files(started)] == ["/dev/shm/cache", "/etc/hosts"]
