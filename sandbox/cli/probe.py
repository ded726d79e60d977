"""Sandbox capabilities of this host, with fixes for missing ones."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, Literal

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.sandbox import default_backend, ownership
from langgraph_takeover.sandbox.backends import overlay
from langgraph_takeover.sandbox.cli.program import program_name
from langgraph_takeover.sandbox.interface import SandboxSpec, SandboxUnavailableError
from langgraph_takeover.sandbox.isolation import cgroups, seccomp
from langgraph_takeover.sandbox.untrusted_trees import disk_usage, list_directory

_MIN_FREE_BYTES = 5 * 10**9


class HostCapability(Frozen):
    """One capability that sandboxes need or can use."""

    component: str
    name: str
    status: Literal["ok", "limited", "missing"]
    detail: str
    fix: str | None = None
    """The fix, if the capability is missing or limited."""


def list_capabilities() -> list[HostCapability]:
    """Check everything, component by component. Starts a few processes, and leaves nothing behind."""
    return [*_probe_host(), *_probe_docker(), *_probe_process(), *_probe_storage()]


def _probe_host() -> list[HostCapability]:
    from langgraph_takeover.sandbox.backends import bubblewrap, host

    reason = host.unavailable_reason()
    spaces = overlay.namespaces_unavailable_reason()
    found = [
        _make_capability("host", "bubblewrap", reason, "" if reason else bubblewrap.find_bubblewrap()),
        _make_capability("host", "user namespaces", spaces, "available", _namespaces_fix()),
    ]
    if reason is None:
        lacking = overlay.unavailable_reason()
        cure = f"set {ownership.ROOT_VARIABLE} to a directory on ext4 or xfs"
        found.append(
            _make_capability(
                "host", "files", lacking, "layered by overlayfs", cure, fallback="copied, slowly"
            )
        )
    calls = seccomp.unavailable_reason()
    found.append(
        _make_capability(
            "host", "system calls", calls, "filtered", "pip install pyseccomp", fallback="not filtered"
        )
    )
    return found if reason is not None else [*found, *_probe_limits()]


def _probe_limits() -> list[HostCapability]:
    """Describe how each limit of a `host` sandbox is enforced."""
    lacking = cgroups.unavailable_reason()
    reason, _, cure = (lacking or "its control groups cannot limit memory").partition(" (")
    able, cure = cgroups.available_controllers(), cure.rstrip(")")
    user = (
        f"user {ownership.ROOT_UID} of this host, one for all sandboxes" if os.geteuid() == 0 else "your own"
    )
    by_process = "address space of each process, and a watch that kills the largest"
    return [
        _make_limit("memory limit", "by control group, for the whole sandbox")
        if "memory" in able
        else _make_limit("memory limit", by_process, reason, cure),
        _make_limit("stopping", "by control group")
        if "freezer" in able
        else _make_limit("stopping", "by verified signals; refused after 10 s", reason, cure),
        _make_limit("processes", "by RLIMIT_NPROC" + (" and control group" if "pids" in able else "")),
        _make_limit(
            "disk limit", "by counting up to 20 times a second; a command can exceed it for a moment"
        ),
        _make_limit("shared memory", "64 MiB each in /dev/shm and of SysV segments"),
        _make_limit("user outside", user),
    ]


def _make_limit(name: str, detail: str, problem: str = "", fix: str = "") -> HostCapability:
    return HostCapability(
        component="host",
        name=name,
        status="limited" if problem else "ok",
        detail=f"{detail} ({problem})" if problem else detail,
        fix=fix or None,
    )


def _probe_docker() -> list[HostCapability]:
    from langgraph_takeover.sandbox.docker_client import client, layer_directories, translate_errors

    try:
        with translate_errors("the Docker daemon"):
            info: dict[str, Any] = client().info()
        limited = _has_quota()
    except SandboxUnavailableError as error:
        return [
            HostCapability(
                component="docker",
                name="daemon",
                status="missing",
                detail=_shorten_docker_error(str(error)),
                fix=_DOCKER_FIX,
            )
        ]
    version, driver = info["ServerVersion"], info["Driver"]
    upper = f"{info['DockerRootDir']}/{driver}"
    readable = layer_directories({"Name": driver, "Data": {"UpperDir": upper}}) is not None
    cure = "run as root beside a daemon with overlay2: a snapshot then takes a tenth of the time"
    return [
        HostCapability(
            component="docker",
            name="daemon",
            status="ok",
            detail=f"version {version}, {driver} in {info['DockerRootDir']}",
        ),
        HostCapability(
            component="docker",
            name="snapshots",
            status="ok" if readable else "limited",
            detail="by layer: the daemon's layers can be read"
            if readable
            else "by commit: the daemon's layers cannot be read",
            fix=None if readable else cure,
        ),
        HostCapability(
            component="docker",
            name="disk limit",
            status="ok" if limited else "limited",
            detail="enforced by the daemon"
            if limited
            else "enforced by checking how much a container has written",
            fix=None if limited else "keep the daemon's files on xfs, mounted with prjquota",
        ),
    ]


_DOCKER_FIX = "start it, or set DOCKER_HOST; your user needs access to it"


def _shorten_docker_error(message: str) -> str:
    """Summarize the Docker client's error without its history."""
    system = re.search(r"\(\d+, '([^']+)'\)", message)
    short = message.partition("; start it")[0]
    return f"{short.partition(' (')[0]}: {system[1]}" if system else short


def _probe_process() -> list[HostCapability]:
    default = default_backend(allow_process=True)
    description = "bubblewrap" if default == "host" else "plain processes, without isolation"
    cure = None if default == "host" else "install what the host back end lacks, above"
    return [
        HostCapability(
            component="process", name="plain processes", status="ok", detail="always, without isolation"
        ),
        HostCapability(
            component="default",
            name="backend",
            status="ok" if default == "host" else "limited",
            detail=f"{default}: {description}",
            fix=cure,
        ),
    ]


def _probe_storage() -> list[HostCapability]:
    root = ownership.root()
    try:
        ownership.ensure_root()
        with os.scandir(root):
            pass
        free = shutil.disk_usage(root).free
    except SandboxUnavailableError as error:
        reason, _, cure = str(error).partition("; ")
        return [
            HostCapability(component="storage", name="directory", status="missing", detail=reason, fix=cure)
        ]
    except OSError as error:
        cure = f"set {ownership.ROOT_VARIABLE} to a directory that you own"
        return [
            HostCapability(
                component="storage",
                name="directory",
                status="missing",
                detail=f"{root}: {error.strerror}",
                fix=cure,
            )
        ]
    from rich.filesize import decimal

    tight = f"list removable resources: {program_name('sandbox', 'sandbox')} gc"
    return [
        HostCapability(component="storage", name="directory", status="ok", detail=str(root)),
        HostCapability(
            component="storage", name="bases", status="ok", detail=_describe_directory(root / "bases")
        ),
        HostCapability(
            component="storage", name="runs", status="ok", detail=_describe_directory(root / "runs")
        ),
        HostCapability(
            component="storage",
            name="free space",
            status="ok" if free > _MIN_FREE_BYTES else "limited",
            detail=decimal(free),
            fix=None if free > _MIN_FREE_BYTES else tight,
        ),
    ]


def _describe_directory(directory: Path) -> str:
    from rich.filesize import decimal

    number = len(list_directory(directory)) if directory.is_dir() else 0
    return f"{number}, {decimal(disk_usage(directory))}" if number else "none"


def _make_capability(
    component: str, name: str, problem: str | None, detail: str, fix: str | None = None, *, fallback: str = ""
) -> HostCapability:
    """Return the capability, or the missing part and, after a colon or in brackets, the reason."""
    if problem is None:
        return HostCapability(component=component, name=name, status="ok", detail=detail)
    reason, bracket, named = problem.partition(" (Debian: ")
    found = f"Debian: {named.removesuffix(')')}" if bracket else fix
    if (opening := f" (set {ownership.ROOT_VARIABLE}") in reason:
        reason, _, cure = reason.partition(opening)
        found = f"{opening[2:]}{cure.removesuffix(')')}"
    return HostCapability(
        component=component,
        name=name,
        status="limited" if fallback else "missing",
        detail=f"{fallback}: {reason}" if fallback else reason,
        fix=found,
    )


def _namespaces_fix() -> str:
    switches = {
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "1"),
        "/proc/sys/user/max_user_namespaces": ("0", "15000"),
    }
    for path, (shut, opened) in switches.items():
        if Path(path).is_file() and Path(path).read_text().strip() == shut:
            return f"sysctl -w {path.removeprefix('/proc/sys/').replace('/', '.')}={opened}"
    return "in a container: start it with --security-opt seccomp=unconfined --security-opt systempaths=unconfined"


def _has_quota() -> bool:
    from langgraph_takeover.sandbox.docker_client import make_host_config

    made = make_host_config(SandboxSpec(backend="docker", image="any"))
    return bool(made.get("StorageOpt"))
