"""The base image contains everything that tasks need, and is built without a registry."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import docker
import docker.errors
import pytest

from ..conftest import skip_missing

SCRIPT = Path(__file__).parents[2] / "examples" / "offline_images.py"
TAG = "takeover/base-under-test:latest"


@pytest.fixture(scope="module")
def daemon() -> docker.DockerClient:
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException as error:
        skip_missing(f"no Docker daemon answers: {error}")
    return client


@pytest.fixture(scope="module")
def images() -> ModuleType:
    spec = importlib.util.spec_from_file_location("offline_images", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def base(daemon: docker.DockerClient, images: ModuleType) -> Iterator[str]:
    yield images.build_base(TAG)
    daemon.images.remove(TAG, force=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python3 -c \"import ssl, sqlite3, ctypes, lzma; print('é', 1 + 1)\"", "é 2"),
        ("python -m pip --version", "pip "),
        ("cd /tmp && git init -q x && git -C x status --short && echo $LANG $(id -u)", "C.UTF-8 0"),
        ("echo a b | awk '{print $2}' | sed s/b/c/ | grep -c c", "1"),
        ("stat -c %a /tmp; git -C /tmp rev-parse 2>&1 | head -1", "1777\nfatal: not a git repo"),
        (r"printf 'a\n' > x; printf 'b\n' > y; diff -u x y | patch x; cat x", "patching file x\nb"),
    ],
)
def test_base_runs_the_tools_of_a_task_without_a_network(
    daemon: docker.DockerClient, base: str, command: str, expected: str
) -> None:
    output = daemon.containers.run(base, ["bash", "-c", command], remove=True, network_mode="none").decode()
    assert output.startswith(expected)


@pytest.mark.slow
def test_base_stops_at_once_and_is_small(daemon: docker.DockerClient, base: str) -> None:
    image = daemon.images.get(base)
    assert image.attrs["Config"]["StopSignal"] == "SIGKILL"
    assert image.attrs["Size"] < 200_000_000


@pytest.mark.slow
def test_an_existing_base_is_kept(daemon: docker.DockerClient, images: ModuleType, base: str) -> None:
    before = daemon.images.get(base).id
    assert images.build_base(base) == base
    assert daemon.images.get(base).id == before


@pytest.mark.slow
def test_suite_images_are_named_by_their_tasks(
    daemon: docker.DockerClient, images: ModuleType, base: str, tmp_path: Path
) -> None:
    task = tmp_path / "tasks" / "one"
    task.mkdir(parents=True)
    (task / "Dockerfile").write_text("ARG BASE\nFROM $BASE\nCOPY a.txt /testbed/\nRUN git init -q .\n")
    (task / "task.yaml").write_text("image: takeover/suite-under-test:latest\n")
    (task / "a.txt").write_text("here\n")
    (name,) = images.build_suite(tmp_path / "tasks", base)
    try:
        output = daemon.containers.run(name, ["cat", "a.txt"], remove=True, network_mode="none")
    finally:
        daemon.images.remove(name, force=True)
    assert (name, output) == ("takeover/suite-under-test:latest", b"here\n")


def write_instance(folder: Path, images: ModuleType, files: dict[str, str]) -> None:
    """The directory from which the image of an instance is built; its repository has one commit."""
    for directory in ("site", "testbed"):
        (folder / directory).mkdir(parents=True)
    (folder / "activate").write_text("conda() { :; }\n")
    (folder / "Dockerfile").write_text(images.DOCKERFILE)
    for name, text in files.items():
        path = folder / "testbed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    images.run_command("git", "init", "-q", folder / "testbed")
    images.run_command("git", "-C", folder / "testbed", "add", "-A")
    images.run_command("git", "-C", folder / "testbed", "commit", "-qm", "base")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["testing", "utilities"])
def test_an_instance_is_built_wherever_its_test_runner_is(
    daemon: docker.DockerClient, images: ModuleType, base: str, tmp_path: Path, place: str
) -> None:
    files = {"sympy/__init__.py": "VERSION = 1\n", f"sympy/{place}/__init__.py": ""}
    write_instance(tmp_path / "it", images, files | {f"sympy/{place}/runtests.py": "RAN = True\n"})
    tag = f"takeover/instance-{place}-under-test:latest"
    images.build_folder(str(tmp_path / "it"), tag, base)
    try:
        found = daemon.containers.run(
            tag, ["bash", "-c", "find /opt/pycache -name '*runtests*'; python -c 'import sympy'"], remove=True
        )
    finally:
        daemon.images.remove(tag, force=True)
    assert f"sympy/{place}/runtests" in found.decode()


@pytest.mark.slow
def test_a_failed_build_shows_what_it_printed(
    daemon: docker.DockerClient, images: ModuleType, base: str, tmp_path: Path
) -> None:
    broken = {"sympy/__init__.py": "from collections import Mapping\n"}
    write_instance(tmp_path / "it", images, broken)
    with pytest.raises(ValueError, match="cannot import name 'Mapping' from 'collections'") as raised:
        images.build_folder(str(tmp_path / "it"), "takeover/broken-under-test:latest", base)
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("takeover/broken-under-test:latest was not built")
    assert len(lines) <= images.LOG_LINES + 1
