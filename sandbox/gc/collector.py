"""Garbage collection: what runs left on this host and on its Docker daemon, and what of it is stale."""

from __future__ import annotations

from typing import NamedTuple

from sandbox.gc import docker, files
from sandbox.gc.resources import Request, Resource
from sandbox.machine import SandboxUnavailable

_ORDER = ("container", "image", "process", "run", "partial", "room", "base")
"""Order of removal: images before the locks that say whose they are."""


class Survey(NamedTuple):
    """All resources, and what could not be looked at, in one line each."""

    stale: tuple[Resource, ...]
    """In order of removal."""
    kept: tuple[Resource, ...]
    docker_error: str | None
    errors: tuple[str, ...]


def survey(request: Request) -> Survey:
    """Look everywhere; nothing is removed."""
    resources: list[Resource] = []
    errors: list[str] = []
    docker_error: str | None = None
    for list_resources in (files.list_stored, files.list_temporary):
        try:
            resources += list_resources(request)
        except SandboxUnavailable as error:
            errors.append(str(error))
    try:
        resources += docker.list_resources(request, sizes=True)
    except SandboxUnavailable as error:
        docker_error = str(error)
    stale = [each for each in resources if each.is_stale]
    return Survey(
        stale=tuple(sorted(stale, key=lambda each: _ORDER.index(each.kind))),
        kept=tuple(each for each in resources if not each.is_stale),
        docker_error=docker_error,
        errors=tuple(errors),
    )


def remove(resource: Resource) -> str | None:
    """Remove a stale resource unless a process now uses it; the reason if it remains."""
    is_on_docker = resource.kind in ("container", "image")
    try:
        return (docker.remove_stale if is_on_docker else files.remove_stale)(resource)
    except SandboxUnavailable as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or resource.where}: {error.strerror}"
