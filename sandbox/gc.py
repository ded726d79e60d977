"""Garbage collection: what runs left on this host and on its Docker daemon, and what of it is stale."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from sandbox.machine import SandboxUnavailable

Kind = Literal["container", "image", "process", "run", "partial", "room", "base", "other"]
_ORDER = ("container", "image", "process", "run", "partial", "room", "base")
"""Order of removal: images before the locks that say whose they are."""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Something on this host or its Docker daemon that a run made."""

    kind: Kind
    owner: str = ""
    name: str
    where: str
    """Its path, its Docker id or its process id."""
    bytes: int = 0
    age_s: float = 0.0
    reason: str
    """Why it is stale, or why it is kept."""
    is_stale: bool = False


class Request(NamedTuple):
    """What to look at, and what to remove beyond what always goes."""

    owner: str | None = None
    snapshots: bool = False
    bases: bool = False
    stores: tuple[Path, ...] = ()

    def command(self) -> str:
        """The command line of this request."""
        words = ["--owner", self.owner] if self.owner else []
        words += ["--snapshots"] if self.snapshots else []
        words += ["--bases"] if self.bases else []
        words += [word for store in self.stores for word in ("--store", str(store))]
        return shlex.join(["python", "-m", "sandbox", "gc", *words])


EVERYTHING = Request()


class Survey(NamedTuple):
    """All resources, and what could not be looked at, in one line each."""

    stale: tuple[Resource, ...]
    """In order of removal."""
    kept: tuple[Resource, ...]
    docker_error: str | None
    errors: tuple[str, ...]


def survey(request: Request) -> Survey:
    """Look everywhere; nothing is removed."""
    from sandbox import gc_docker, gc_files

    resources: list[Resource] = []
    errors: list[str | None] = []
    on_docker = partial(gc_docker.list_resources, sizes=True)
    for list_resources in (gc_files.list_stored, gc_files.list_temporary, on_docker):
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
    from sandbox import gc_docker, gc_files

    is_on_docker = resource.kind in ("container", "image")
    try:
        return (gc_docker.remove_stale if is_on_docker else gc_files.remove_stale)(resource)
    except SandboxUnavailable as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or resource.where}: {error.strerror}"
