"""Garbage collection: resources of runs on this host and its Docker daemon, and which of them are stale."""

from __future__ import annotations

from typing import NamedTuple

from langgraph_takeover.sandbox.gc import docker, files
from langgraph_takeover.sandbox.gc.resources import CollectionRequest, Resource
from langgraph_takeover.sandbox.interface import SandboxUnavailableError

_REMOVAL_ORDER = ("container", "image", "process", "run", "partial", "temporary", "base")
"""Order of removal: images before the locks that say whose they are."""


class Survey(NamedTuple):
    """All resources, and what could not be inspected, one line each."""

    stale_resources: tuple[Resource, ...]
    """In order of removal."""
    kept_resources: tuple[Resource, ...]
    docker_error: str | None
    errors: tuple[str, ...]


def survey(request: CollectionRequest) -> Survey:
    """Inspect everything; nothing is removed."""
    resources: list[Resource] = []
    errors: list[str] = []
    docker_error: str | None = None
    for list_resources in (files.list_stored_resources, files.list_temporary_resources):
        try:
            resources += list_resources(request)
        except SandboxUnavailableError as error:
            errors.append(str(error))
    try:
        resources += docker.list_resources(request, sizes=True)
    except SandboxUnavailableError as error:
        docker_error = str(error)
    stale = [each for each in resources if each.is_stale]
    return Survey(
        stale_resources=tuple(sorted(stale, key=lambda each: _REMOVAL_ORDER.index(each.kind))),
        kept_resources=tuple(each for each in resources if not each.is_stale),
        docker_error=docker_error,
        errors=tuple(errors),
    )


def remove(resource: Resource) -> str | None:
    """Remove a stale resource unless a process now uses it; the reason if it remains."""
    is_on_docker = resource.kind in ("container", "image")
    try:
        return (docker.remove_stale if is_on_docker else files.remove_stale)(resource)
    except SandboxUnavailableError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or resource.location}: {error.strerror}"
