"""The channel to one bash in a container: a single exec for all commands."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import psutil

from langgraph_takeover.sandbox import docker_client, ownership
from langgraph_takeover.sandbox.backends.mounted_programs import require_programs
from langgraph_takeover.sandbox.backends.processes import pause_processes
from langgraph_takeover.sandbox.changes.change_report import Mount
from langgraph_takeover.sandbox.changes.file_access import find_unsaved_files
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.changes.saved_files import SavedFiles
from langgraph_takeover.sandbox.docker_client import (
    WAIT_COMMAND,
    attach_lifetime,
    client,
    layer_directories,
    make_host_config,
    opaque_attribute,
    pause_container,
    require_image,
    translate_errors,
)
from langgraph_takeover.sandbox.interface import (
    SandboxSpec,
    SandboxUnavailableError,
    Snapshot,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.isolation.freezer import (
    NO_PROCESSES,
    EarlierProcesses,
    innermost_pid,
    list_container_processes,
)
from langgraph_takeover.sandbox.isolation.limits import DiskWatch, bytes_unlinked, bytes_used
from langgraph_takeover.sandbox.ownership import OWNER_LABEL
from langgraph_takeover.sandbox.shell import EXIT_SIGNAL, RuntimeShell, Shell, ShellNotStartedError
from langgraph_takeover.sandbox.snapshots import archive_writer, images
from langgraph_takeover.sandbox.snapshots.archive_format import archive_name
from langgraph_takeover.sandbox.untrusted_trees import remove_on_failure, remove_tree

_FRAME_HEADER = struct.Struct(">BxxxL")
_STDOUT = 1
_CHUNK = 64 * 1024
_END_S = 1.0


class ExecChannel:
    """Implements `Channel`. Distinguishes a shell that ended from a container or daemon that did."""

    limits_command = ":"  # the container has limits of its own
    state_mark = ""

    def __init__(self, container_id: str) -> None:
        self._api = api = docker_client.client(docker_client.QUICK_TIMEOUT_S).api
        self._container = container_id
        self._exec = api.exec_create(
            container_id, ["bash", "--norc", "--noprofile"], stdin=True, stdout=True, stderr=False, tty=False
        )["Id"]
        stream = api.exec_start(self._exec, socket=True)
        self._stream = stream
        self._socket: socket.socket = getattr(stream, "_sock", stream)
        self._frame_left = 0
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self._socket.settimeout(docker_client.QUICK_TIMEOUT_S)
        try:
            self._socket.sendall(data)
        except OSError:
            self._require_container()
            raise

    def receive(self, timeout_s: float) -> bytes | None:
        self._socket.settimeout(timeout_s)
        try:
            data = self._socket.recv(_CHUNK)
        except (TimeoutError, BlockingIOError):
            return None
        except OSError:
            data = b""
        if not data:
            self._require_container()
            return b""
        return self._unframe(data) or None

    def is_alive(self) -> bool:
        with translate_errors(f"container {self._container[:12]}"):
            return bool(self._api.exec_inspect(self._exec)["Running"])

    def start_error(self) -> str:
        return ""

    def end(self) -> int | None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._stream.close()
        deadline = time.monotonic() + _END_S
        with contextlib.suppress(SandboxUnavailableError):
            while self.is_alive() and time.monotonic() < deadline:
                time.sleep(0.005)
            with translate_errors("the shell's exit code"):
                code: int | None = self._api.exec_inspect(self._exec)["ExitCode"]
                return code
        return None

    def _require_container(self) -> None:
        with translate_errors(f"container {self._container[:12]} is lost"):
            state = self._api.inspect_container(self._container)["State"]
        if not state["Running"]:
            raise SandboxUnavailableError(f"container {self._container[:12]} was stopped while a command ran")

    def _unframe(self, data: bytes) -> bytes:
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


_MAX_LAYERS = 100
"""The daemon accepts at most 125 layers per image."""
# Many rounds, because a fork bomb makes new processes while the old ones are being stopped.
_SIGNALS = " ".join(["STOP"] * 12 + ["KILL"] * 3)
# Only builtins, because there may be no room for another process. The kernel escapes a name in `status`, not in `stat`.
_KILL_SCRIPT = (
    "is_spared() {{ while [ '{spared}' ] && [ \"$1\" -gt 1 ]; do "
    'case " {spared} " in *" $1 "*) return 0 ;; esac; '
    'parent=; while read -r key parent; do [ "$key" != PPid: ] || break; done <"/proc/$1/status"; '
    'set -- "$parent"; done 2>/dev/null; return 1; }}; '
    f"for signal in {_SIGNALS}; " + "do for process in /proc/[0-9]*; do process=${{process##*/}}; "
    'case " 1 $$ {shell} " in *" $process "*) ;; '
    '*) is_spared "$process" || kill -$signal "$process" 2>/dev/null ;; esac; done; done; :'
)
_KILL_TIMEOUT_S, _KILL_PAUSE_S = 5.0, 0.2
_ENVIRONMENT = (
    "HOME=/root",
    "PAGER=cat",
    "GIT_PAGER=cat",
    "TERM=dumb",
    "PYTHONDONTWRITEBYTECODE=1",
    "LANG=C.UTF-8",
)


class DockerBackend:
    """No network, no host mounts except the programs, few capabilities, limited resources, no new privileges."""

    file_roots: tuple[str, ...] = ("/root", "/tmp")
    keeps_processes = True
    mounts: tuple[Mount, ...] = (Mount("", "/"),)

    def __init__(self, spec: SandboxSpec, image: Mapping[str, Any], base: Mapping[str, Any]) -> None:
        self.workspace = spec.workspace
        self._spec = spec
        labels = ownership.make_labels(spec.owner)  # garbage collection spares a run's images from now on
        self._image = images.without_volumes(image, spec.owner)
        self._base = base
        self._lifetime: Any = None
        require_programs(spec.programs)
        api = client().api
        with translate_errors(f"container of {image['Id'][:19]}"):
            self._id: str = api.create_container(
                self._image["Id"],
                WAIT_COMMAND,
                stdin_open=True,
                entrypoint=[],
                user="0:0",  # by number, because the agent may have removed /etc/passwd
                working_dir=spec.workspace,
                environment=list(_ENVIRONMENT),
                hostname="sandbox",
                stop_signal="SIGKILL",
                labels=labels,
                host_config=make_host_config(spec),
            )["Id"]
        try:
            self._lifetime = attach_lifetime(self._id)
            with translate_errors(f"container of {image['Id'][:19]}"):
                api.start(self._id)
                found = api.inspect_container(self._id)
        except BaseException:
            self.close()
            raise
        self._pid: int = found["State"]["Pid"]
        self._layer_directories = layer_directories(found["GraphDriver"])
        if spec.snapshots == "layer" and self._layer_directories is None:
            self.close()
            raise SandboxUnavailableError(
                "the daemon's layers cannot be read from here (use snapshots by commit)"
            )
        disk = self._layer_directories[0] if self._layer_directories is not None else None
        self.watch = DiskWatch(self._measure_disk_use, spec.disk_mb << 20, disk)

    def open_shell(self) -> ExecChannel:
        with translate_errors(f"container {self._id[:12]}"):
            return ExecChannel(self._id)

    def layers(self) -> LayerStack | None:
        """Return the container's files, its own layer first; None if they cannot be read from here."""
        return (
            LayerStack(*self._layer_directories, opaque_attribute=opaque_attribute())
            if self._layer_directories is not None
            else None
        )

    def saved_layers(self) -> LayerStack | None:
        stack = self.layers()
        return stack and LayerStack(*stack.layers[1:], opaque_attribute=stack.opaque_attribute)

    def list_unsaved_files(self, agent_shell: Shell, runtime_shell: RuntimeShell) -> tuple[str, ...]:
        return find_unsaved_files(runtime_shell, ("/dev", "/dev/shm"))

    def listen(self, agent_shell: Shell, port: int) -> socket.socket:
        """All shells of a container have one network."""
        return docker_client.listen(self._id, self._pid, port)

    def list_processes(self, agent_shell: Shell, runtime_shell: RuntimeShell) -> Collection[int] | None:
        ours = (1, agent_shell.pid, runtime_shell.pid)
        found = list_container_processes(self._id, self._pid)
        return {pid for pid in found if innermost_pid(pid) not in ours} if found else None

    def pause(
        self, agent_shell: Shell, runtime_shell: RuntimeShell, earlier: EarlierProcesses
    ) -> contextlib.AbstractContextManager[None]:
        def find() -> list[psutil.Process]:
            found = []
            for pid in earlier.select(self.list_processes(agent_shell, runtime_shell) or ()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(pid))
            return found

        def send(processes: Collection[psutil.Process], number: signal.Signals) -> None:
            if pids := " ".join(str(innermost_pid(process.pid) or "") for process in processes):
                self._run_builtins(runtime_shell, f"kill -{int(number)} {pids}")

        return pause_processes(find, send)

    def signal_shell(self, agent_shell: Shell, runtime_shell: RuntimeShell) -> None:
        self._run_builtins(runtime_shell, f"kill -{int(EXIT_SIGNAL)} {agent_shell.pid}")

    def kill_all(
        self, agent_shell: Shell | None, runtime_shell: RuntimeShell, spared: EarlierProcesses
    ) -> None:
        kept: set[int] = set()
        if agent_shell is not None and spared is not NO_PROCESSES:
            kept = spared.select(self.list_processes(agent_shell, runtime_shell) or ())
        script = _KILL_SCRIPT.format(
            shell="" if agent_shell is None else agent_shell.pid,
            spared=" ".join(str(innermost_pid(pid) or "") for pid in kept),
        )
        self._run_builtins(runtime_shell, script)

    def _run_builtins(self, runtime_shell: RuntimeShell, script: str) -> None:
        last_try = time.monotonic() + _KILL_TIMEOUT_S
        while True:
            try:
                runtime_shell.run(script, timeout_s=30)
                return
            except ShellNotStartedError:  # a fork bomb uses each freed process slot
                if time.monotonic() > last_try:
                    raise
                time.sleep(_KILL_PAUSE_S)

    def is_idle(self) -> bool:
        return False

    def begin_snapshot(
        self, store: Path, labels: Mapping[str, str], *, is_idle: bool, saved: SavedFiles
    ) -> Callable[[str], Snapshot]:
        if self._layer_directories is not None and self._spec.snapshots != "commit":
            finish = self._archive_layer(self._layer_directories[0], store)
        else:
            finish = self._commit(labels)

        def make_snapshot(shell_state: str) -> Snapshot:
            location, digest = finish()
            return Snapshot(
                backend="docker",
                base=self._base["Id"],
                location=location,
                digest=digest,
                workspace=self.workspace,
                shell_state=shell_state,
            )

        return make_snapshot

    def close(self) -> None:
        with contextlib.suppress(Exception):
            client().api.remove_container(self._id, force=True, v=True)
        if self._lifetime is not None:
            self._lifetime.close()

    def _archive_layer(self, upper: Path, store: Path) -> Callable[[], tuple[str, str]]:
        try:
            store.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SandboxUnavailableError(f"{store}: {error.strerror}") from error
        work_directory = Path(tempfile.mkdtemp(prefix=".freezing-", dir=store))
        raw = work_directory / "layer.tar"
        with remove_on_failure(work_directory), pause_container(self._id, self._pid):
            images.pack(upper, raw)

        def finish() -> tuple[str, str]:
            with contextlib.ExitStack() as stack:
                stack.callback(remove_tree, work_directory)
                below = stack.enter_context(images.open_image(self._image, self._base))
                if below.base.opaque_attribute != opaque_attribute():
                    raise SandboxUnavailableError(
                        "the image's layers cannot be read from here (use snapshots by commit)"
                    )
                layer = work_directory / "layer"
                layer.mkdir()
                images.unpack(raw, layer)
                raw.unlink()
                _reject_reserved_names(layer)
                digest = archive_writer.write_to_store(
                    (layer, *below.layers),
                    below.base,
                    store,
                    base_digest=self._base["Id"],
                    root_uid=below.root_uid,
                )
            return archive_name(digest), digest

        return finish

    def _commit(self, labels: Mapping[str, str]) -> Callable[[], tuple[str, str]]:
        every = {**labels, **ownership.make_labels(self._spec.owner)}
        tag = f"{self._spec.owner}-{secrets.token_hex(4)}"
        with translate_errors("docker commit failed"):
            made = client().api.commit(
                self._id, repository=images.SNAPSHOT_REPOSITORY, tag=tag, conf={"Labels": every}
            )

        def finish() -> tuple[str, str]:
            image = images.find_image(made["Id"])
            if image is None:
                raise SandboxUnavailableError(f"image {made['Id'][:19]} was removed before it was read")
            if self._layer_directories is not None:
                _reject_reserved_names(self._layer_directories[0])
            if len(image["RootFS"]["Layers"]) > _MAX_LAYERS:
                image = _squash_layers(image, self._base, every, tag)
            return image["Id"], images.image_content_digest(image, self._base)

        return finish

    def _measure_disk_use(self) -> int:
        if self._layer_directories is not None:
            return bytes_used(self._layer_directories[0]) + bytes_unlinked(
                list_container_processes(self._id, self._pid)
            )
        with translate_errors(f"size of container {self._id[:12]}"):
            found = client().api.containers(all=True, size=True, filters={"id": self._id})
        return int(found[0].get("SizeRw", 0)) if found else 0


def start(spec: SandboxSpec) -> DockerBackend:
    assert spec.image is not None
    image = require_image(spec.image).attrs
    return DockerBackend(spec, image, image)


def restore(snapshot: Snapshot, store: Path, spec: SandboxSpec) -> DockerBackend:
    ownership.hold(spec.owner)
    base = images.require_base_image(snapshot.base)
    if spec.image is not None and (wanted := require_image(spec.image).id) != base["Id"]:
        raise SnapshotCorruptError(f"the snapshot needs base {base['Id'][:19]}, not {wanted[:19]}")
    return DockerBackend(spec, load_snapshot_image(snapshot, store, spec, base), base)


def load_snapshot_image(
    snapshot: Snapshot, store: Path, spec: SandboxSpec, base: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the snapshot's image on this daemon, verified. Raises SnapshotCorruptError."""
    if not is_image_id(snapshot.location):
        if Path(snapshot.location).name != snapshot.location:
            raise SnapshotCorruptError(f"not the name of an archive: {snapshot.location!r}")
        labels = {OWNER_LABEL: spec.owner, images.LOADED_LABEL: snapshot.digest}
        tag = f"{spec.owner}-{snapshot.digest[:16]}"
        largest = spec.disk_mb << 20
        return images.load_archive(store / snapshot.location, snapshot.digest, base, labels, tag, largest)
    image = images.find_image(snapshot.location)
    if image is None:
        raise SnapshotCorruptError(f"snapshot image {snapshot.location[:19]} is not on this daemon")
    found = images.image_content_digest(image, base)
    if found != snapshot.digest:
        raise SnapshotCorruptError(
            f"{snapshot.location[:19]} has digest {found[:12]}…, but the snapshot says {snapshot.digest[:12]}…"
        )
    return image


def is_image_id(location: str) -> bool:
    """Whether a snapshot is an image on the daemon, not a file in a store."""
    return location.startswith("sha256:")


def _squash_layers(
    image: Mapping[str, Any], base: Mapping[str, Any], labels: Mapping[str, str], tag: str
) -> Mapping[str, Any]:
    """Combine the layers above the base into one; the image with many layers is removed."""
    with tempfile.TemporaryDirectory(prefix="takeover-squash-") as work_directory:
        archive_path = Path(work_directory) / "archive"
        digest = images.write_archive(image, base, archive_path)
        found = images.load_archive(archive_path, digest, base, labels, tag)
    with contextlib.suppress(SandboxUnavailableError), translate_errors("docker rmi"):
        client().api.remove_image(image["Id"], force=True)
    return found


def _reject_reserved_names(layer: Path) -> None:
    found = images.find_reserved_name(layer)
    if found is not None:
        raise SandboxUnavailableError(f"no snapshot: Docker's layers cannot store a file named {found!r}")
