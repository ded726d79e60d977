"""What this host can do for machines, what it lacks, and how to get it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, Literal

from sandbox import cgroups, default_backend, overlay, seccomp, storage
from sandbox.machine import Frozen, SandboxSpec, SandboxUnavailable
from sandbox.removal import size

_FREE_ENOUGH = 5 * 10**9


class Fact(Frozen):
    """One thing that machines need or can use."""

    part: str
    name: str
    there: Literal["yes", "less", "no"]
    told: str
    cure: str | None = None
    """What to do about it, where it is not as it might be."""


def facts() -> list[Fact]:
    """Everything, part by part. Starts a few processes, and leaves nothing."""
    return [*_host(), *_docker(), *_process(), *_place()]


def _host() -> list[Fact]:
    from sandbox import host

    reason = host.unavailable()
    spaces = overlay.namespaces_unavailable()
    found = [
        _fact("host", "bubblewrap", reason, shutil.which("bwrap") or "installed"),
        _fact("host", "user namespaces", spaces, "can be made", _namespaces_cure()),
    ]
    if reason is None:
        lacking = overlay.unavailable()
        cure = f"set {storage.PLACE_VARIABLE} to a directory on ext4 or xfs"
        found.append(_fact("host", "files", lacking, "layered by overlayfs", cure, instead="copied, slowly"))
    calls = seccomp.unavailable()
    found.append(
        _fact("host", "system calls", calls, "filtered", "pip install pyseccomp", instead="not filtered")
    )
    return found if reason is not None else [*found, *_limits()]


def _limits() -> list[Fact]:
    """Which limit of a `host` sandbox is enforced how."""
    lacking = cgroups.unavailable()
    reason, _, cure = (lacking or "its control groups cannot limit memory").partition(" (")
    able, cure = cgroups.abilities(), cure.rstrip(")")
    user = f"user {storage.ROOT_UID} of this host, one for all sandboxes" if os.geteuid() == 0 else "your own"
    by_process = "address space of each process, and a watch that kills the largest"
    return [
        _limit("memory limit", "by control group, for the whole sandbox")
        if "memory" in able
        else _limit("memory limit", by_process, reason, cure),
        _limit("stopping", "by control group")
        if "freezer" in able
        else _limit("stopping", "by verified signals; refused after 10 s", reason, cure),
        _limit("processes", "by RLIMIT_NPROC" + (" and control group" if "pids" in able else "")),
        _limit("disk limit", "by counting up to 20 times a second; a command can exceed it for a moment"),
        _limit("shared memory", "64 MiB each in /dev/shm and of SysV segments"),
        _limit("user outside", user),
    ]


def _limit(name: str, told: str, lacking: str = "", cure: str = "") -> Fact:
    return Fact(
        part="host",
        name=name,
        there="less" if lacking else "yes",
        told=f"{told} ({lacking})" if lacking else told,
        cure=cure or None,
    )


def _docker() -> list[Fact]:
    from sandbox.daemon import answering, client, directories

    try:
        with answering("the Docker daemon"):
            told: dict[str, Any] = client().info()
        limited = _has_quota()
    except SandboxUnavailable as error:
        return [
            Fact(
                part="docker",
                name="daemon",
                there="no",
                told=_without_docker(str(error)),
                cure=_START,
            )
        ]
    version, driver = told["ServerVersion"], told["Driver"]
    upper = f"{told['DockerRootDir']}/{driver}"
    readable = directories({"Name": driver, "Data": {"UpperDir": upper}}) is not None
    cure = "run as root beside a daemon with overlay2: a freeze then takes a tenth of the time"
    return [
        Fact(
            part="docker",
            name="daemon",
            there="yes",
            told=f"version {version}, {driver} in {told['DockerRootDir']}",
        ),
        Fact(
            part="docker",
            name="freezing",
            there="yes" if readable else "less",
            told="by layer: the daemon's can be read"
            if readable
            else "by commit: the daemon's layers cannot be read",
            cure=None if readable else cure,
        ),
        Fact(
            part="docker",
            name="disk limit",
            there="yes" if limited else "less",
            told="kept by the daemon" if limited else "kept by looking at how much a container has written",
            cure=None if limited else "keep the daemon's files on xfs, mounted with prjquota",
        ),
    ]


_START = "start it, or name one by DOCKER_HOST; your user must be one that may talk to it"


def _without_docker(told: str) -> str:
    """What the Docker client says, without how it came to know."""
    system = re.search(r"\(\d+, '([^']+)'\)", told)
    short = told.partition("; start it")[0]
    return f"{short.partition(' (')[0]}: {system[1]}" if system else short


def _process() -> list[Fact]:
    default = default_backend()
    told = "bubblewrap" if default == "host" else "plain processes, without isolation"
    cure = None if default == "host" else "get what the host backend lacks, above"
    return [
        Fact(part="process", name="plain processes", there="yes", told="always, without isolation"),
        Fact(
            part="default",
            name="backend",
            there="yes" if default == "host" else "less",
            told=f"{default}: {told}",
            cure=cure,
        ),
    ]


def _place() -> list[Fact]:
    root = storage.root()
    try:
        storage.place()
        with os.scandir(root):
            pass
        free = shutil.disk_usage(root).free
    except SandboxUnavailable as error:
        reason, _, cure = str(error).partition("; ")
        return [Fact(part="place", name="directory", there="no", told=reason, cure=cure)]
    except OSError as error:
        cure = f"set {storage.PLACE_VARIABLE} to a directory of yours"
        return [Fact(part="place", name="directory", there="no", told=f"{root}: {error.strerror}", cure=cure)]
    from rich.filesize import decimal

    tight = "python -m sandbox gc shows what can go"
    return [
        Fact(part="place", name="directory", there="yes", told=str(root)),
        Fact(part="place", name="bases", there="yes", told=_amount(root / "bases")),
        Fact(part="place", name="runs", there="yes", told=_amount(root / "runs")),
        Fact(
            part="place",
            name="free space",
            there="yes" if free > _FREE_ENOUGH else "less",
            told=decimal(free),
            cure=None if free > _FREE_ENOUGH else tight,
        ),
    ]


def _amount(directory: Path) -> str:
    from rich.filesize import decimal

    number = sum(1 for _ in directory.iterdir()) if directory.is_dir() else 0
    return f"{number}, {decimal(size(directory))}" if number else "none"


def _fact(
    part: str, name: str, lacking: str | None, told: str, cure: str | None = None, *, instead: str = ""
) -> Fact:
    """What is there, or else what is lacking and, after a colon or in brackets, why."""
    if lacking is None:
        return Fact(part=part, name=name, there="yes", told=told)
    reason, bracket, named = lacking.partition(" (Debian: ")
    found = f"Debian: {named.removesuffix(')')}" if bracket else cure
    if f"; set {storage.PLACE_VARIABLE}" in reason:
        reason, _, found = reason.partition("; ")
    return Fact(
        part=part,
        name=name,
        there="less" if instead else "no",
        told=f"{instead}: {reason}" if instead else reason,
        cure=found,
    )


def _namespaces_cure() -> str:
    switches = {
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "1"),
        "/proc/sys/user/max_user_namespaces": ("0", "15000"),
    }
    for place, (shut, opened) in switches.items():
        if Path(place).is_file() and Path(place).read_text().strip() == shut:
            return f"sysctl -w {place.removeprefix('/proc/sys/').replace('/', '.')}={opened}"
    return "in a container: start it with --privileged, or use the docker backend"


def _has_quota() -> bool:
    from sandbox.containment import host_config

    made = host_config(SandboxSpec(backend="docker", image="any"))
    return bool(made.get("StorageOpt"))
