"""Limits and capabilities of a container."""

from __future__ import annotations

import functools
from typing import Any

from langgraph_takeover.sandbox.docker.client import client, system_call_filter, translate_errors
from langgraph_takeover.sandbox.interface import ProgramMount, SandboxSpec

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
