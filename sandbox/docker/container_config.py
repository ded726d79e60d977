"""Limits, capabilities, ports and pauses of a container."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from langgraph_takeover.sandbox.docker.client import client, system_call_filter, translate_errors
from langgraph_takeover.sandbox.interface import ProgramMount, SandboxSpec, SandboxUnavailableError
from langgraph_takeover.sandbox.isolation import loopback
from langgraph_takeover.sandbox.isolation.cgroup_freezer import find_container_group, pause_group
from langgraph_takeover.sandbox.storage.failures import clean_up


def listen(container: str, pid: int, port: int) -> socket.socket:
    """Listen on the loopback of a container, whose first process is `pid`. Raises as `loopback.listen_inside` does."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if os.geteuid() == 0 and _belongs_to_container(pid, container):
            return loopback.listen_inside(process, port)
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
