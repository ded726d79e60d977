"""What dead runs left on this host and on its Docker daemon: what goes, what stays, and why."""

from __future__ import annotations

import functools
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sandbox import depot, strays
from sandbox.machine import SandboxUnavailable
from sandbox.strays import Finding, Remover, is_owner

if TYPE_CHECKING:
    from sandbox.leftovers import Leftover

_ORDER = ("container", "image", "process", "run", "partial", "room", "base")
"""Images before the marks that say whose they are."""


class Wanted(NamedTuple):
    """What a person asked to be removed beyond what always goes."""

    owner: str | None = None
    snapshots: bool = False
    bases: bool = False
    stores: tuple[Path, ...] = ()

    def command(self) -> str:
        """How a person asks for that."""
        words = ["python", "-m", "sandbox", "gc"]
        words += ["--owner", self.owner] if self.owner else []
        words += ["--snapshots"] if self.snapshots else []
        words += ["--bases"] if self.bases else []
        for store in self.stores:
            words += ["--store", str(store)]
        return shlex.join(words)


class Survey(NamedTuple):
    """All that was found, and what could not be looked at, in a line each."""

    findings: tuple[Finding, ...]
    no_docker: str | None
    troubles: tuple[str, ...]

    def doomed(self) -> tuple[Finding, ...]:
        found = [one for one in self.findings if one.remove is not None]
        return tuple(sorted(found, key=lambda one: _ORDER.index(one.kind)))

    def kept(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.remove is None)


def survey(wanted: Wanted) -> Survey:
    """Look everywhere; nothing is removed."""
    findings: list[Finding] = []
    troubles: list[str] = []
    no_docker = None
    for source in (_in_the_place, _beside_it):
        try:
            findings += source(wanted)
        except SandboxUnavailable as error:
            troubles.append(str(error))
    try:
        findings += _on_docker(wanted)
    except SandboxUnavailable as error:
        no_docker = str(error)
    return Survey(tuple(findings), no_docker, tuple(troubles))


def removed(finding: Finding) -> str | None:
    """Remove one thing, if nobody came to need it meanwhile; why it could not be."""
    assert finding.remove is not None
    try:
        return finding.remove()
    except SandboxUnavailable as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or finding.where}: {error.strerror}"


def _in_the_place(wanted: Wanted) -> Iterator[Finding]:
    yield from strays.runs(wanted.owner)
    if wanted.owner is None:
        yield from strays.bases(wanted=wanted.bases)


def _beside_it(wanted: Wanted) -> Iterator[Finding]:
    if wanted.owner is None:
        yield from strays.rooms(wanted.stores)


def _on_docker(wanted: Wanted) -> Iterator[Finding]:
    from sandbox import leftovers

    containers = leftovers.containers(wanted.owner, sizes=True)
    images = leftovers.snapshots(wanted.owner, sizes=True)
    held = functools.cache(_is_held)
    going: set[str] = set()
    living: set[str] = set()
    for one in (*containers, *images):
        if not is_owner(one.owner):
            yield _finding(one, "not made by this program", None)
    containers, images = (
        tuple(one for one in found if is_owner(one.owner)) for found in (containers, images)
    )
    for one in containers:
        why, goes = _container(one, wanted, held)
        (going if goes else living).add(one.id if goes else one.owner)
        yield _finding(one, why, functools.partial(_taken, one) if goes else None)
    for one in images:
        why, goes = _image(one, wanted, held, living)
        if goes and (users := set(leftovers.users(one.id)) - going):
            why, goes = f"container {min(users)[:12]} stands on it", False
        yield _finding(one, why, functools.partial(_image_taken, one) if goes else None)


def _container(one: Leftover, wanted: Wanted, held: Callable[[str], bool | None]) -> tuple[str, bool]:
    """Whether a container goes, and why or why not."""
    if one.maker == "alive":
        return "alive", False
    if one.maker == "dead":
        return "its process is dead", True
    if not one.ended:
        return f"it runs, perhaps for another host (if not: docker rm -f {one.name})", False
    if held(one.owner):
        return "its run is alive", False
    if one.maker == "earlier" and one.origin == "here" and held(one.owner) is False:
        return "its process is dead since this host started anew", True
    if wanted.owner == one.owner:
        return "it has ended, and was asked for", True
    return f"perhaps another host's; take it by --owner {one.owner}", False


def _image(
    one: Leftover, wanted: Wanted, held: Callable[[str], bool | None], living: set[str]
) -> tuple[str, bool]:
    """Whether a frozen image goes as far as its run is concerned, and why or why not."""
    if one.others:
        return one.others, False
    if held(one.owner) or one.owner in living or one.maker == "alive":
        return "its run may be alive", False
    if not one.loaded and not wanted.snapshots:
        return "a record may name it: --snapshots", False
    # An image that was loaded carries no more than its owner, so that it is the same for everybody.
    seen_here = one.origin == "here" or (one.loaded and depot.is_marked(one.owner))
    if one.origin == "elsewhere":
        # The marks of its run, if it is alive, are where this process does not see them.
        return f"of another host or {depot.PLACE_VARIABLE} (if its run is over: docker rmi {one.name})", False
    if wanted.owner == one.owner or (seen_here and held(one.owner) is False):
        return ("can be loaded again from its archive" if one.loaded else "its run is dead"), True
    return f"perhaps another host's; take it by --owner {one.owner}", False


def _is_held(owner: str) -> bool | None:
    """Whether a living process of this host has the run; None if that cannot be seen."""
    try:
        return depot.root().is_dir() and depot.is_held(owner)
    except (SandboxUnavailable, OSError, ValueError):
        return None


def _taken(one: Leftover) -> str | None:
    from sandbox import leftovers

    return "it could not be removed just now" if leftovers.remove([one]) else None


def _image_taken(one: Leftover) -> str | None:
    from sandbox import leftovers

    with depot.condemned(one.owner) as alone:
        if not alone:
            return "a process has its run by now"
        return "a container stands on it" if leftovers.remove([one]) else None


def _finding(one: Leftover, why: str, remove: Remover | None) -> Finding:
    return Finding(
        kind=one.kind,
        owner=one.owner,
        name=one.name,
        where=one.id,
        bytes=one.bytes,
        # Equal archives make equal images, which therefore do not say when.
        age_s=max(0.0, time.time() - one.made) if one.made > 0 else 0.0,
        why=why,
        remove=remove,
    )
