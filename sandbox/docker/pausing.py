"""Pause a container."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from langgraph_takeover.sandbox.docker.client import client, translate_errors
from langgraph_takeover.sandbox.isolation.cgroup_freezer import find_container_group, pause_group
from langgraph_takeover.sandbox.storage.failures import clean_up


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
