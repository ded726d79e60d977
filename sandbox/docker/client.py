"""The Docker daemon: connection, errors, and what can be read from here."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from langgraph_takeover.sandbox.changes.layers import TRUSTED_OPAQUE, USER_OPAQUE
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError
from langgraph_takeover.sandbox.isolation import seccomp
from langgraph_takeover.sandbox.storage.failures import cache_unless
from langgraph_takeover.sandbox.storage.ownership import make_labels

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
