"""A machine that is a Docker container: frozen by commit, thawed by run."""

from __future__ import annotations

import contextlib
import functools
import secrets
import socket
import struct
import time
from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from sandbox.changes import Mount
from sandbox.layers import Stack
from sandbox.machine import SandboxSpec, SandboxUnavailable, Snapshot, SnapshotCorrupt
from sandbox.shell import Hand, Shell

OWNER_LABEL = "takeover.owner"
SNAPSHOTS = "takeover/snapshot"
"""The repository of frozen images; a tag begins with its owner."""
_API_TIMEOUT_S = 600
_FRAME_HEADER = struct.Struct(">BxxxL")
_STDOUT = 1
_CHUNK = 64 * 1024
_END_S = 1.0
# Many rounds, because a fork bomb makes new processes while the old ones are being stopped.
_SIGNALS = " ".join(["STOP"] * 12 + ["KILL"] * 3)
_KILL_ALL = (
    f"for signal in {_SIGNALS}; " + "do for process in /proc/[0-9]*; do process=${{process##*/}}; "
    'case " 1 $$ {spared} " in *" $process "*) ;; *) kill -$signal "$process" 2>/dev/null ;; esac; done; done; :'
)
# A bash, because it reaps: what was orphaned and killed would count against the limit for ever.
_FIRST_PROCESS = ["bash", "-c", "while :; do sleep 3600 & wait; done"]
_ENVIRONMENT = ("PAGER=cat", "GIT_PAGER=cat", "TERM=dumb", "PYTHONDONTWRITEBYTECODE=1", "LANG=C.UTF-8")


@functools.cache
def client() -> Any:
    """The Docker daemon that the environment names. Raises SandboxUnavailable when none answers."""
    import docker
    from docker.errors import DockerException

    try:
        found = docker.from_env(timeout=_API_TIMEOUT_S)
        found.ping()
    except (DockerException, OSError) as error:
        raise SandboxUnavailable(
            f"no Docker daemon answers ({_reason(error)}); start it, or choose --sandbox host"
        ) from error
    return found


class ExecChannel:
    """The wire to one bash that was exec'd in a container."""

    def __init__(self, container_id: str) -> None:
        api = client().api
        # Its own stderr, where `set -x` would write, is not attached and so not read.
        self._exec = api.exec_create(
            container_id, ["bash", "--norc", "--noprofile"], stdin=True, stdout=True, stderr=False, tty=False
        )["Id"]
        stream = api.exec_start(self._exec, socket=True)
        self._stream = stream
        self._socket: socket.socket = getattr(stream, "_sock", stream)
        self._frame_left = 0
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self._socket.settimeout(_API_TIMEOUT_S)
        self._socket.sendall(data)

    def receive(self, timeout_s: float) -> bytes | None:
        self._socket.settimeout(timeout_s)
        try:
            data = self._socket.recv(_CHUNK)
        except TimeoutError:
            return None
        except OSError:
            return b""
        return self._unframed(data) or None if data else b""

    def alive(self) -> bool:
        from docker.errors import DockerException

        try:
            return bool(client().api.exec_inspect(self._exec)["Running"])
        except (DockerException, OSError):
            return False

    def complaint(self) -> str:
        return ""

    def end(self) -> int | None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._stream.close()
        deadline = time.monotonic() + _END_S
        with contextlib.suppress(Exception):
            while self.alive() and time.monotonic() < deadline:
                time.sleep(0.005)
            code: int | None = client().api.exec_inspect(self._exec)["ExitCode"]
            return code
        return None

    def _unframed(self, data: bytes) -> bytes:
        """The payload of Docker's multiplexed stream: frames with a header of eight bytes."""
        self._buffer += data
        payload = bytearray()
        while self._buffer:
            if not self._frame_left:
                if len(self._buffer) < _FRAME_HEADER.size:
                    break
                self._kind, self._frame_left = _FRAME_HEADER.unpack_from(self._buffer)
                self._buffer = self._buffer[_FRAME_HEADER.size :]
            part = self._buffer[: self._frame_left]
            self._buffer = self._buffer[len(part) :]
            self._frame_left -= len(part)
            if self._kind == _STDOUT:
                payload += part
        return bytes(payload)


class ContainerEnclosure:
    """No network, no host mounts, limited memory and processes, no new privileges."""

    file_roots: tuple[str, ...] = ("/root", "/tmp")

    def __init__(self, spec: SandboxSpec, image: str, base: str) -> None:
        from docker.errors import DockerException, ImageNotFound

        self.workspace = spec.workspace
        self._owner = spec.owner
        self._base = base
        try:
            self._container = client().containers.run(
                image,
                _FIRST_PROCESS,
                entrypoint=[],
                detach=True,
                user="root",
                working_dir=spec.workspace,
                environment=list(_ENVIRONMENT),
                network_mode="none",
                mem_limit=f"{spec.memory_mb}m",
                pids_limit=spec.pids,
                security_opt=["no-new-privileges"],
                labels={OWNER_LABEL: spec.owner},
                hostname="sandbox",
            )
        except ImageNotFound as error:
            raise SandboxUnavailable(
                f"Docker image {image} is not on this daemon; build or pull it"
            ) from error
        except (DockerException, OSError) as error:
            raise SandboxUnavailable(f"container of {image[:19]}: {_reason(error)}") from error

    def open_shell(self) -> ExecChannel:
        from docker.errors import DockerException

        try:
            return ExecChannel(self._container.id)
        except (DockerException, OSError) as error:
            raise SandboxUnavailable(f"container {self._container.short_id}: {_reason(error)}") from error

    def kill_all(self, hand: Hand, *spared: Shell) -> None:
        hand.run(_KILL_ALL.format(spared=" ".join(str(shell.pid) for shell in spared)), timeout_s=30)

    mounts: tuple[Mount, ...] = (Mount("", "/"),)

    def layers(self) -> Stack | None:
        return None

    def freeze(self, store: Path, shell_state: str) -> Future[Snapshot]:
        from docker.errors import DockerException

        try:
            image = self._container.commit(
                repository=SNAPSHOTS,
                tag=f"{self._owner}-{secrets.token_hex(4)}",
                pause=True,
                changes=[f"LABEL {OWNER_LABEL}={self._owner}"],
            )
        except (DockerException, OSError) as error:
            raise SandboxUnavailable(f"docker commit failed: {_reason(error)}") from error
        future: Future[Snapshot] = Future()
        future.set_result(
            Snapshot(
                backend="docker",
                base=self._base,
                location=image.id,
                digest=image.id,
                workspace=self.workspace,
                shell_state=shell_state,
            )
        )
        return future

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._container.remove(force=True, v=True)


def start(spec: SandboxSpec) -> ContainerEnclosure:
    assert spec.image is not None
    image = require_image(spec.image)
    return ContainerEnclosure(spec, image.id, base=image.id)


def thaw(snapshot: Snapshot, store: Path, spec: SandboxSpec) -> ContainerEnclosure:
    from docker.errors import DockerException, ImageNotFound

    try:
        found = client().images.get(snapshot.location).id
    except ImageNotFound as error:
        raise SnapshotCorrupt(f"snapshot image {snapshot.location[:19]} is not on this daemon") from error
    except (DockerException, OSError) as error:
        raise SandboxUnavailable(f"snapshot image {snapshot.location[:19]}: {_reason(error)}") from error
    if found != snapshot.digest:
        raise SnapshotCorrupt(f"{snapshot.location[:19]} is {found[:19]}, not {snapshot.digest[:19]}")
    return ContainerEnclosure(spec, snapshot.location, base=snapshot.base)


def require_image(name: str) -> Any:
    """The image of that name. Raises SandboxUnavailable, saying what to do."""
    from docker.errors import DockerException, ImageNotFound

    try:
        return client().images.get(name)
    except ImageNotFound as error:
        raise SandboxUnavailable(
            f"Docker image {name} is not on this daemon; pull or build it first"
        ) from error
    except (DockerException, OSError) as error:
        raise SandboxUnavailable(f"Docker image {name}: {_reason(error)}") from error


def remove_owned(owner: str, keep: Collection[str] | None) -> None:
    """Remove an owner's containers, and its images but those to keep; None keeps all."""
    from docker.errors import DockerException

    label = {"label": f"{OWNER_LABEL}={owner}"}
    try:
        for container in client().containers.list(all=True, filters=label):
            container.remove(force=True, v=True)
        for image in client().images.list(filters=label):
            if keep is not None and image.id not in keep:
                client().images.remove(image.id, force=True)
    except (DockerException, OSError) as error:
        raise SandboxUnavailable(
            f"the Docker daemon could not remove what run {owner} left: {_reason(error)}"
        ) from error


class OwnedClient:
    """The daemon for code that starts containers by itself: each gets our label, and no network unless told."""

    def __init__(self, owner: str, *, network: bool) -> None:
        self._client = client()
        self._forced = {"labels": {OWNER_LABEL: owner}} | ({} if network else {"network_mode": "none"})
        self.containers = self

    def create(self, **options: Any) -> Any:
        return self._client.containers.create(**options | self._forced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client.containers if name == "get" else self._client, name)


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
