"""A Docker daemon that stops, dies, restarts, fills its disk, or was replaced by another one."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox import docker_client
from langgraph_takeover.sandbox.interface import (
    OutOfDiskError,
    SandboxSpec,
    SandboxUnavailableError,
    Snapshot,
)
from langgraph_takeover.sandbox.snapshots import transfer
from langgraph_takeover.testing.sandboxes import check_output

from ..conftest import skip_missing

OWNER = "test-daemon"
PASSWD = "test -e /etc/passwd || echo gone"


class Daemon:
    """A second daemon, separate from this host's own; ended by its process id."""

    def __init__(self, directory: Path, data: Path) -> None:
        self._directory = directory
        self.data = data
        self.address = f"unix://{directory}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "unshare",
                    "--net",  # without its own bridge it would remove the other daemon's
                    "dockerd",
                    f"--data-root={self.data}",
                    f"--exec-root={self._directory}/exec",
                    f"--pidfile={self._directory}/pid",
                    f"--host={self.address}",
                    "--storage-driver=overlay2",
                    "--iptables=false",
                    "--bridge=none",
                    "--shutdown-timeout=1",
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(Exception), contextlib.closing(self.open()) as found:
                found.ping()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                last_line = (self._directory / "log").read_text(errors="replace").splitlines()[-1:]
                self.end(signal.SIGKILL)
                skip_missing(f"no second Docker daemon starts here: {last_line}")
            time.sleep(0.05)

    def open(self) -> Any:
        return docker.DockerClient(self.address, timeout=60)

    def end(self, by: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(by)
            self._process.wait(30)
            self._process = None
        # A daemon that starts before this one has ended would wait for it in vain.
        for left in self._directory.glob("exec/containerd/containerd.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(left.read_text()), signal.SIGKILL)
            left.unlink()

    def ensure(self) -> None:
        if self._process is None:
            self.start()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def load(self, saved: Path) -> None:
        with contextlib.closing(self.open()) as found, saved.open("rb") as content:
            found.images.load(content)

    def restart(self) -> None:
        self.end()
        self.start()

    def remove_containers(self) -> None:
        with contextlib.closing(self.open()) as found:
            for container in found.containers.list(all=True):
                container.remove(force=True)


@contextlib.contextmanager
def second_daemon(data: Path | None = None) -> Iterator[Daemon]:
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        skip_missing("only root, with dockerd installed, starts a second Docker daemon")
    with tempfile.TemporaryDirectory(prefix="dockerd-", ignore_cleanup_errors=True) as directory:
        found = Daemon(Path(directory), data or Path(directory) / "data")
        try:
            found.start()
            yield found
        finally:
            found.ensure()
            found.remove_containers()
            found.end()
            _unmount_below(Path(directory))


def _unmount_below(directory: Path) -> None:
    """A killed daemon leaves its mounts."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed(mounted):
        if mount.startswith(f"{directory}/"):
            subprocess.run(["umount", mount], check=True)


_TINY_TREE = r"""
mkdir -p /tiny/testbed /tiny/root /tiny/tmp /tiny/etc && cd / && cp /etc/passwd /tiny/etc
for name in bash sh env cat ls dd rm mv ln mkdir mkfifo sleep stat chmod find sort head xargs sha256sum
do place=$(command -v $name) && { echo $place; ldd $place | grep -o '/[^ ]*'; } | xargs -n1 cp -Lu --parents -t /tiny
done"""


@pytest.fixture(scope="module")
def tiny_image(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The smallest image of a sandbox, with bash and the core tools: its name on this host's daemon, and a file."""
    path = tmp_path_factory.mktemp("tiny") / "image.tar"
    name = f"takeover/tiny-{secrets.token_hex(4)}"
    with contextlib.closing(docker.from_env()) as own:
        made = own.containers.create(base_image, ["bash", "-ec", _TINY_TREE], network_mode="none")
        try:
            made.start()
            assert made.wait()["StatusCode"] == 0, made.logs()
            tree, _ = made.get_archive("/tiny/.")
            own.api.import_image_from_data(b"".join(tree), repository=name, changes=["WORKDIR /testbed"])
        finally:
            made.remove(force=True)
        path.write_bytes(b"".join(own.images.get(name).save(named=True)))
        yield name, path
        own.images.remove(name, force=True)


@pytest.fixture(scope="module")
def second(tiny_image: tuple[str, Path]) -> Iterator[Daemon]:
    with second_daemon() as found:
        found.load(tiny_image[1])
        yield found


@pytest.fixture
def selected_daemon(second: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """The second daemon, selected by the environment."""
    second.ensure()
    with use_daemon(second, monkeypatch):
        yield second


@contextlib.contextmanager
def use_daemon(found: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("DOCKER_HOST", found.address)
        docker_client.client.cache_clear()
        yield
    docker_client.client.cache_clear()


def spec(image: tuple[str, Path], **more: Any) -> SandboxSpec:
    return SandboxSpec(backend="docker", image=image[0], owner=OWNER, **more)


@pytest.mark.slow
def test_snapshots_outlive_the_daemon(
    selected_daemon: Daemon, tiny_image: tuple[str, Path], tmp_path: Path
) -> None:
    frozen: dict[Any, Snapshot] = {}
    for way in ("layer", "commit"):
        with contextlib.closing(sandbox.start(spec(tiny_image, snapshots=way))) as live_sandbox:
            check_output(
                live_sandbox, "echo kept > kept; ln kept hard; rm /etc/passwd; mkdir d; chmod 4711 d"
            )
            frozen[way] = live_sandbox.snapshot(tmp_path, labels={"takeover.thread": "t"}).result()
    selected_daemon.restart()
    for way, snapshot in frozen.items():
        with contextlib.closing(sandbox.restore(snapshot, tmp_path, spec(tiny_image))) as live_sandbox:
            assert check_output(live_sandbox, f"cat hard; stat -c %a d; {PASSWD}") == "kept\n4711\ngone\n", (
                way
            )
    assert frozen["layer"].digest == frozen["commit"].digest
    found = docker_client.client().images.get(frozen["commit"].location)
    assert found.labels["takeover.thread"] == "t"
    assert found.labels["takeover.owner"] == OWNER


def stop_container(daemon: Daemon, container: Any) -> None:
    daemon.end()


def kill_container(daemon: Daemon, container: Any) -> None:
    daemon.end(signal.SIGKILL)


def remove_container(daemon: Daemon, container: Any) -> None:
    container.remove(force=True)


def shut_down(daemon: Daemon, container: Any) -> None:
    container.kill()


@pytest.mark.slow
@pytest.mark.parametrize("deed", [stop_container, kill_container, remove_container, shut_down])
def test_the_end_of_a_sandbox_is_no_command_output(
    selected_daemon: Daemon, tiny_image: tuple[str, Path], tmp_path: Path, deed: Callable[[Daemon, Any], None]
) -> None:
    live_sandbox = sandbox.start(spec(tiny_image))
    try:
        with contextlib.closing(selected_daemon.open()) as other:
            (container,) = other.containers.list()

            def act_while_it_runs() -> None:
                while "sleep 300" not in str(container.top()):
                    time.sleep(0.05)
                deed(selected_daemon, container)

            soon = threading.Thread(target=act_while_it_runs)
            soon.start()
            with pytest.raises(SandboxUnavailableError) as told_of:
                live_sandbox.run("echo begun; sleep 300", timeout_s=300)
            soon.join()
        assert "begun" not in str(told_of.value)
        for call in (
            lambda: live_sandbox.run("echo next", timeout_s=5),
            lambda: live_sandbox.inspect("echo next"),
            lambda: live_sandbox.read_file("/etc/passwd"),
            lambda: live_sandbox.snapshot(tmp_path / "store").result(),
        ):
            with pytest.raises(SandboxUnavailableError):
                call()
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    finally:
        live_sandbox.close()


@pytest.mark.slow
def test_a_hanging_daemon_is_noticed(
    selected_daemon: Daemon, tiny_image: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_client, "QUICK_TIMEOUT_S", 1)
    live_sandbox = sandbox.start(spec(tiny_image))
    selected_daemon.signal(signal.SIGSTOP)
    try:
        with pytest.raises(SandboxUnavailableError, match="timed out"):
            live_sandbox.run("sleep 300", timeout_s=5)
    finally:
        selected_daemon.signal(signal.SIGCONT)
        live_sandbox.close()


@pytest.mark.slow
def test_a_snapshot_moves_to_another_daemon(
    second: Daemon, tiny_image: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second.ensure()
    frozen = {}
    for way in ("layer", "commit"):
        with contextlib.closing(sandbox.start(spec(tiny_image, snapshots=way))) as live_sandbox:
            check_output(live_sandbox, "echo moved > moved; rm /etc/passwd")
            frozen[way] = live_sandbox.snapshot(tmp_path / way).result()
        transfer.export_snapshot(frozen[way], tmp_path / way, f"{tmp_path}/{way}.file")
    sandbox.remove_stale_resources("docker", OWNER)
    with use_daemon(second, monkeypatch):
        for way, snapshot in frozen.items():
            found = transfer.import_snapshot(f"{tmp_path}/{way}.file", tmp_path / "there")
            with contextlib.closing(
                sandbox.restore(found, tmp_path / "there", spec(tiny_image))
            ) as live_sandbox:
                assert check_output(live_sandbox, f"cat moved; {PASSWD}") == "moved\ngone\n"
                assert live_sandbox.snapshot(tmp_path / "again").result().digest == snapshot.digest
        sandbox.remove_stale_resources("docker", OWNER)
        with contextlib.closing(second.open()) as other:
            other.images.remove(tiny_image[0], force=True)
        with pytest.raises(
            SandboxUnavailableError, match=r"base sha256:.* is not on this daemon; pull or build it"
        ):
            sandbox.restore(found, tmp_path / "there", spec(tiny_image))
        second.load(tiny_image[1])


@pytest.fixture
def full_daemon(tiny_image: tuple[str, Path]) -> Iterator[Daemon]:
    """A daemon whose disk has little room beyond the image."""
    if os.geteuid() != 0:
        skip_missing("only root can mount a small file system")
    with tempfile.TemporaryDirectory(prefix="small-") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", directory], check=True)
        try:
            with second_daemon(Path(directory)) as found:
                found.load(tiny_image[1])
                yield found
        finally:
            subprocess.run(["umount", directory], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["layer", "commit"])
def test_a_full_disk_during_a_snapshot(
    full_daemon: Daemon,
    tiny_image: tuple[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    with use_daemon(full_daemon, monkeypatch):
        store = tmp_path if way == "commit" else full_daemon.data / "store"
        images = len(docker_client.client().images.list(all=True))
        with contextlib.closing(sandbox.start(spec(tiny_image, snapshots=way))) as live_sandbox:
            check_output(
                live_sandbox, "echo before > before; dd if=/dev/urandom of=/root/big bs=1M count=32 2>&1"
            )
            with pytest.raises(OutOfDiskError, match="disk is full"):
                live_sandbox.snapshot(store).result()
            assert not store.exists() or list(store.iterdir()) == []
            assert len(docker_client.client().images.list(all=True)) == images
            assert check_output(live_sandbox, "cat before") == "before\n"
            check_output(live_sandbox, "rm /root/big")
            snapshot = live_sandbox.snapshot(store).result()
        with contextlib.closing(sandbox.restore(snapshot, store, spec(tiny_image))) as live_sandbox:
            assert check_output(live_sandbox, "cat before; ls /root") == "before\n"
