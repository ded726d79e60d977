"""The Docker daemon: connection, errors, and the configuration of a container."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from langgraph_takeover.base.failures import cache_unless, clean_up
from langgraph_takeover.sandbox.changes.layers import TRUSTED_OPAQUE, USER_OPAQUE
from langgraph_takeover.sandbox.interface import (
    OutOfDiskError,
    ProgramMount,
    SandboxSpec,
    SandboxUnavailableError,
)
from langgraph_takeover.sandbox.isolation import namespaces, seccomp
from langgraph_takeover.sandbox.isolation.freezer import find_container_group, pause_group
from langgraph_takeover.sandbox.ownership import make_labels

API_TIMEOUT_S = 600
WAIT_COMMAND = ["bash", "-c", "while read -r _; do :; done"]
"""The main process of a container, until its input ends. A bash, because it reaps: orphans that were killed would otherwise
count against the limit forever."""
_FOREIGN_WAIT_COMMAND = "tail -f /dev/null"
QUICK_TIMEOUT_S = 60
"""Time limit for answers that take milliseconds, in case the daemon hangs."""


@functools.cache
def client(timeout_s: int = API_TIMEOUT_S) -> Any:
    """Connect to the Docker daemon of the environment. Raises SandboxUnavailableError if none answers."""
    import docker
    from docker.errors import DockerException

    try:
        found = docker.from_env(timeout=timeout_s)
        found.ping()
    except (DockerException, OSError) as error:
        raise SandboxUnavailableError(
            f"no Docker daemon answers: {summarize_error(error)} (start it, or use --sandbox host)"
        ) from error
    return found


@contextlib.contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Translate the daemon's errors into our exceptions."""
    from docker.errors import DockerException

    try:
        yield
    except SandboxUnavailableError:
        raise  # already translated; one of them is an OSError
    except (DockerException, OSError) as error:
        if "no space left on device" in str(error).lower():
            raise OutOfDiskError(f"{action}: the Docker daemon's disk is full") from error
        raise SandboxUnavailableError(f"{action}: {summarize_error(error)}") from error


def require_image(name: str) -> Any:
    """Return the image of that name. Raises SandboxUnavailableError with a cure."""
    from docker.errors import ImageNotFound

    with translate_errors(f"Docker image {name}"):
        try:
            return client().images.get(name)
        except ImageNotFound as error:
            raise SandboxUnavailableError(
                f"Docker image {name} is not on this daemon (pull or build it first)"
            ) from error


def layer_directories(driver: Mapping[str, Any]) -> tuple[Path, ...] | None:
    """Return the directories of a container's or image's layers, the top one first; None if they cannot be read."""
    if driver.get("Name") != "overlay2" or os.geteuid() != 0:
        return None  # overlayfs's marks can be read only as root
    data = driver["Data"] or {}
    lower = data.get("LowerDir", "").split(":") if data.get("LowerDir") else []
    found = tuple(Path(path) for path in [data.get("UpperDir", ""), *lower])
    return found if all(path.is_absolute() and path.is_dir() for path in found) else None


@functools.cache
def opaque_attribute() -> str:
    """The attribute by which the daemon's layers mark a directory that hides the layers below."""
    with translate_errors("the Docker daemon"):
        options = client().info().get("SecurityOptions") or ()
    return USER_OPAQUE if "name=rootless" in options else TRUSTED_OPAQUE


@cache_unless(lambda options: not options)
def system_call_filter(daemon: Any) -> tuple[str, ...]:
    """Return the security options by which a daemon filters a container's system calls.

    The daemon's default profile remains if this host has no libseccomp, or the daemon no seccomp.
    """
    profile = seccomp.docker_profile()
    with translate_errors("the Docker daemon"):
        options = daemon.info().get("SecurityOptions") or ()
    if profile is None or not any(option.startswith("name=seccomp") for option in options):
        return ()
    return (f"seccomp={profile}",)


def attach_lifetime(container_id: str) -> Any:
    """Bind a container that waits by `WAIT_COMMAND`, before its start, to this process; return the connection.

    The daemon ends the input of the main process, and so the container, when the connection ends: the kernel closes it
    however this process ends.
    """
    with translate_errors(f"container {container_id[:12]}"):
        return client().api.attach_socket(container_id, params={"stdin": 1, "stream": 1})


class OwnedClient:
    """The daemon for code that starts containers by itself.

    Each container gets our label, our system call filter, and no network unless requested. One that only waits for commands
    ends with this process.
    """

    def __init__(self, owner: str, *, network: bool) -> None:
        self._client = client()
        self._lifetimes: list[Any] = []
        self._forced_options: dict[str, Any] = {"labels": make_labels(owner)} | (
            {} if network else {"network_mode": "none"}
        )
        self._filter = system_call_filter(self._client)
        self.containers = self

    def create(self, **options: Any) -> Any:
        security_options = [
            option for option in options.get("security_opt") or () if not option.startswith("seccomp")
        ]
        security = {"security_opt": [*security_options, *self._filter]} if self._filter else {}
        waits = options.get("command") == _FOREIGN_WAIT_COMMAND
        # Attached, so that the input ends with its only connection.
        lifetime = {"command": WAIT_COMMAND, "stdin_open": True, "detach": False} if waits else {}
        created = self._client.containers.create(**options | self._forced_options | security | lifetime)
        if waits:
            self._lifetimes.append(attach_lifetime(created.id))
        return created

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client.containers if name == "get" else self._client, name)


def summarize_error(error: Exception) -> str:
    """Shorten an error for a one-line message."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def listen(container: str, pid: int, port: int) -> socket.socket:
    """Listen on the loopback of a container, whose first process is `pid`. Raises as `loopback.listen_inside` does."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if os.geteuid() == 0 and _belongs_to_container(pid, container):
            return namespaces.listen_inside(process, port)
    raise SandboxUnavailableError(
        f"the network of container {container[:12]} cannot be entered: this needs a runtime that is root on the daemon's own "
        "host, and a container that runs (run as root on that host, or use --sandbox host)"
    )


def _belongs_to_container(pid: int, container: str) -> bool:
    """Whether a process of this host is a container's: the process ids of a remote daemon are of another host."""
    with contextlib.suppress(OSError):
        return container in Path(f"/proc/{pid}/cgroup").read_text()
    return False


@contextlib.contextmanager
def pause_container(container: str, pid: int) -> Iterator[None]:
    """Stop everything in a container, whose first process is `pid`."""
    group = find_container_group(container, pid)
    if group is not None:
        with pause_group(group):
            yield
        return
    with translate_errors("docker pause"):
        client().api.pause(container)

    def unpause() -> None:
        with translate_errors("docker unpause"):
            client().api.unpause(container)

    with clean_up(unpause):
        yield


CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
"""Capabilities that root needs to install packages and run tests: change owners, read, become another user, send signals."""


def make_host_config(spec: SandboxSpec) -> Any:
    """No network, no mounts except the programs, no devices, and the system calls of a host sandbox."""
    memory = f"{spec.memory_mb}m"
    size = spec.disk_mb << 20
    with translate_errors("the Docker daemon"):
        return client().api.create_host_config(
            network_mode="none",
            cap_drop=["ALL"],
            cap_add=list(CAPABILITIES),
            security_opt=["no-new-privileges", *system_call_filter(client())],
            mem_limit=memory,
            memswap_limit=memory,
            pids_limit=spec.pids,
            auto_remove=True,
            nano_cpus=int(spec.cpus * 1e9) if spec.cpus else None,
            ulimits=[
                {"Name": "nofile", "Soft": spec.open_files, "Hard": spec.open_files},
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "fsize", "Soft": size, "Hard": size},
            ],
            mounts=list(map(_make_program_mount, spec.programs)),
            storage_opt={"size": str(size)} if _has_quota(client()) else None,
        )


def _make_program_mount(program: ProgramMount) -> Any:
    from docker.types import Mount

    source = str(program.directory.resolve())
    mount = Mount(program.inside, source, type="bind", read_only=True, propagation="private")
    mount["BindOptions"]["NonRecursive"] = True  # file systems below could be writable
    return mount


@functools.cache
def _has_quota(daemon: Any) -> bool:
    """Whether the daemon's file system can limit the size of a container."""
    found = daemon.info()
    status = dict(found.get("DriverStatus") or [])
    if found["Driver"] != "overlay2":
        return found["Driver"] in ("btrfs", "zfs", "windowsfilter")
    return bool(status.get("Backing Filesystem") == "xfs" and _has_xfs_quota(found["DockerRootDir"]))


def _has_xfs_quota(root: str) -> bool:
    """Whether the mount of a local daemon's layers counts by project."""
    best = ("", "")
    try:
        with open("/proc/self/mounts", encoding="utf-8") as mounts:  # noqa: PTH123
            for line in mounts:
                _, mount_point, _, options, *_ = line.split(" ")
                if root.startswith(mount_point) and len(mount_point) > len(best[0]):
                    best = (mount_point, options)
    except OSError:
        return False
    return not {"prjquota", "pquota"}.isdisjoint(best[1].split(","))
