"""Garbage collection: what runs left on this host and on its Docker daemon, and what of it is stale."""

from __future__ import annotations

from functools import partial
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
    errors: list[str | None] = []
    on_docker = partial(docker.list_resources, sizes=True)
    for list_resources in (files.list_stored, files.list_temporary, on_docker):
        error = None
        try:
            resources += list_resources(request)
        except SandboxUnavailable as raised:
            error = str(raised)
        errors.append(error)
    *others, docker_error = errors
    stale = [each for each in resources if each.is_stale]
    return Survey(
        stale=tuple(sorted(stale, key=lambda each: _ORDER.index(each.kind))),
        kept=tuple(each for each in resources if not each.is_stale),
        docker_error=docker_error,
        errors=tuple(filter(None, others)),
    )


def remove(resource: Resource) -> str | None:
    """Remove a stale resource, unless somebody came to need it meanwhile; the reason if it is still there."""
    is_on_docker = resource.kind in ("container", "image")
    try:
        return (docker.remove_stale if is_on_docker else files.remove_stale)(resource)
    except SandboxUnavailable as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or resource.where}: {error.strerror}"
