"""Garbage collection: what runs left on this host and on its Docker daemon, and what of it is stale."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shlex
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil

from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.backends import processes
from langgraph_takeover.sandbox.docker_client import client, translate_errors
from langgraph_takeover.sandbox.interface import BackendName, SandboxUnavailableError
from langgraph_takeover.sandbox.ownership import BASES_LOCK, CREATION_LABEL, OWNER_LABEL
from langgraph_takeover.sandbox.snapshots.archive_format import PART_SUFFIX
from langgraph_takeover.sandbox.snapshots.archive_parts import list_unused_parts, remove_unused_part
from langgraph_takeover.sandbox.snapshots.images import LOADED_LABEL, SNAPSHOT_REPOSITORY
from langgraph_takeover.sandbox.untrusted_trees import (
    REMOVED_PREFIX,
    disk_usage,
    is_directory,
    list_directory,
    remove_tree,
    set_aside,
    walk,
)

ResourceKind = Literal["container", "image", "process", "run", "partial", "temporary", "base", "other"]


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Something on this host or its Docker daemon that a run made."""

    kind: ResourceKind
    owner: str = ""
    name: str
    location: str
    """Its path, its Docker id or its process id."""
    size_bytes: int = 0
    age_s: float = 0.0
    reason: str
    """Why it is stale, or why it is kept."""
    is_stale: bool = False


class CollectionRequest(NamedTuple):
    """Options of a collection: what to inspect and what to remove beyond the default."""

    owner: str | None = None
    include_snapshots: bool = False
    include_bases: bool = False
    stores: tuple[Path, ...] = ()

    def command_line(self, program: str) -> str:
        """The command line of this request, as `PROGRAM gc …`."""
        words = ["--owner", self.owner] if self.owner else []
        words += ["--snapshots"] if self.include_snapshots else []
        words += ["--bases"] if self.include_bases else []
        words += [word for store in self.stores for word in ("--store", str(store))]
        return shlex.join([*program.split(), "gc", *words])


DEFAULT_REQUEST = CollectionRequest()


_BASE_NAME = re.compile(r"[0-9a-f]{24}")
_TEMPORARY_NAME = re.compile(
    r"takeover-(?:squash|image|export|check|merge)-[a-z0-9_]{8}|\.freezing-[a-z0-9_]{8}|\.importing-[0-9a-f]{16}"
    r"|\.[0-9a-f]{16}\.partial"
)
_MARKER_LIBRARY = "zstandard"  # a library that creates temporary directories
_FIRST_NAMESPACE = 4026531836  # the process namespace that sees all others
_DAY_S = 24 * 3600.0


def list_stored_resources(request: CollectionRequest) -> Iterator[Resource]:
    """Runs, plain processes of dead runs, and bases. Raises SandboxUnavailableError."""
    yield from _list_runs(request.owner)
    if request.owner is None:
        is_used = ownership.is_held(BASES_LOCK) is not False
        for path in _list_directory(ownership.root() / "bases"):
            with contextlib.suppress(FileNotFoundError):  # it is complete now, or another removes it
                yield _make_base_resource(path, is_used, request.include_bases)


def list_temporary_resources(request: CollectionRequest) -> Iterator[Resource]:
    """Temporary directories and files: in the system's place for them, and below `request.stores`.

    Parts of snapshots that no snapshot in their directory names count as temporary.
    """
    if request.owner is not None:
        return
    paths = [*_list_directory(Path(tempfile.gettempdir()))]
    stored = [store / path for store in request.stores for path, _ in walk(store)]
    named = [path for path in (*paths, *stored) if _TEMPORARY_NAME.fullmatch(path.name)]
    directories = {path.parent for path in stored if path.name.endswith(PART_SUFFIX)}
    unused = [path for directory in directories for path in list_unused_parts(directory)]
    for path in sorted({*named, *unused}):
        with contextlib.suppress(FileNotFoundError):  # its maker has removed it
            use = _describe_temporary_use(path)
            yield _make_resource(
                path, "temporary", use or "the process that made it is dead", is_stale=use is None
            )


def remove_stale_directory(resource: Resource) -> str | None:
    """Remove one, unless a living process needs it now; return the reason if it remains."""
    path = Path(resource.location)
    if resource.kind == "temporary":
        with contextlib.suppress(FileNotFoundError):  # another collector has removed it
            if (use := _describe_temporary_use(path)) is not None:
                return use
            if path.name.endswith(PART_SUFFIX):
                return None if remove_unused_part(path) else "a snapshot needs it now"
    elif not path.name.startswith(REMOVED_PREFIX):
        with ownership.claim(resource.owner or BASES_LOCK) as is_alone:
            if not is_alone:
                return "a process holds it now"
            if resource.owner:
                path = ownership.runs_directory() / resource.owner
                processes.kill_run_processes(path)
            if resource.kind == "process":
                return None
            try:
                path = set_aside(path)
            except FileNotFoundError:
                return None
    error = remove_tree(path)
    return None if error is None else f"{error.filename or path}: {error.strerror or error}"


def _list_runs(owner: str | None) -> Iterator[Resource]:
    directories, locks = (
        {path.name: path for path in _list_directory(ownership.root() / part)} for part in ("runs", "locks")
    )
    alive: set[str] = set()
    for name, path in sorted((locks | directories).items()):
        if name == BASES_LOCK or owner not in (None, name):
            continue
        with contextlib.suppress(FileNotFoundError):  # the run has ended, or another collector removes it
            run = _make_run_resource(path, "files and lock" if name in directories else "lock")
            alive |= set() if run.is_stale else {name}
            yield run
    home = ownership.root() / "runs"
    for process, tmp in processes.find_run_processes(home).items():
        name = "".join(tmp.relative_to(home).parts[:1])
        if name not in alive and owner in (None, name) and ownership.is_owner(name):
            yield _make_process_resource(process, name)


def _make_run_resource(path: Path, parts: str) -> Resource:
    name = path.name
    if name.startswith(REMOVED_PREFIX):
        return _make_resource(path, "run", "its removal was interrupted", is_stale=True)
    if not ownership.is_owner(name) or (path.parent.name == "runs" and not is_directory(path)):
        return _make_resource(path, "other", "not made by this program")
    is_held = ownership.is_held(name)
    if is_held is None:
        return _make_resource(path, "other", "its lock cannot be read", owner=name)
    reason = f"alive{_describe_holders(name)}" if is_held else "no living process has it"
    return _make_resource(path, "run", reason, is_stale=not is_held, owner=name, name=parts)


def _make_base_resource(path: Path, is_used: bool, is_requested: bool) -> Resource:
    if path.name.startswith(REMOVED_PREFIX):
        return _make_resource(path, "partial", "its removal was interrupted", is_stale=True)
    if path.name.endswith(".partial"):
        reason = "a living run may be making it" if is_used else "the process that started it is dead"
        return _make_resource(path, "partial", reason, is_stale=not is_used)
    if not _BASE_NAME.fullmatch(path.name) or not is_directory(path):
        return _make_resource(path, "other", "not made by this program")
    if is_used:
        reason = f"a living run may use it{_describe_holders(BASES_LOCK)}"
    else:
        reason = "no living run uses it" if is_requested else "the next run starts from it: --bases"
    return _make_resource(path, "base", reason, is_stale=is_requested and not is_used, name=_base_name(path))


def _base_name(path: Path) -> str:
    try:
        about = json.loads((path / "base.json").read_text())
        kind = "system" if about["whole"] else "repository"
        return f"{kind} {about['digest'].removeprefix('sha256:')[:12]}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return path.name


def _make_process_resource(process: psutil.Process, owner: str) -> Resource:
    command, since = "?", time.time()
    with contextlib.suppress(psutil.Error):
        command, since = " ".join(process.cmdline()) or process.name(), process.create_time()
    return Resource(
        kind="process",
        owner=owner,
        name=command[:80],
        location=str(process.pid),
        age_s=max(0.0, time.time() - since),
        reason="its run is dead",
        is_stale=True,
    )


def _make_resource(
    path: Path, kind: ResourceKind, reason: str, *, is_stale: bool = False, owner: str = "", name: str = ""
) -> Resource:
    info = path.lstat()
    return Resource(
        kind=kind,
        owner=owner,
        name=name or path.name,
        location=str(path),
        size_bytes=disk_usage(path) if is_directory(path) else info.st_blocks * 512,
        age_s=max(0.0, time.time() - info.st_mtime),
        reason=reason,
        is_stale=is_stale,
    )


def _describe_holders(owner: str) -> str:
    """Name the processes that hold a run, as far as visible, to end a reason with."""
    found = ownership.list_holders(owner)
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f": process {', '.join(map(str, found[:3]))}{more}" if found else ""


def _list_directory(directory: Path) -> list[Path]:
    try:
        return list_directory(directory)
    except OSError as error:
        is_ours = directory.is_relative_to(ownership.root())
        cure = (
            f" (run as its user, or set {ownership.ROOT_VARIABLE} to the directory to inspect)"
            if is_ours
            else ""
        )
        raise SandboxUnavailableError(f"{directory}: {error.strerror}{cure}") from error


def _describe_temporary_use(path: Path) -> str | None:
    """Describe the process that may still use a temporary file or directory; None without one."""
    made = path.lstat().st_mtime  # at the latest
    if path.lstat().st_uid != os.geteuid():
        return "another user's"
    if Path("/proc/self/ns/pid").stat().st_ino != _FIRST_NAMESPACE and time.time() - made < _DAY_S:
        return "less than a day old, and its process may be invisible to this one"
    for process in psutil.process_iter():
        # A process that has ended, or belongs to another user, does not use it.
        with contextlib.suppress(OSError, psutil.Error):
            is_older = process.pid != os.getpid() and process.create_time() <= made + 1
            if is_older and _MARKER_LIBRARY in Path(f"/proc/{process.pid}/maps").read_text():
                return f"process {process.pid} may be using it"
    return None


_CONFLICT = 409
_RETRY_DELAY_S = 0.2
_MAX_ATTEMPTS = 10
Staleness = tuple[str, bool]
"""Why something is stale or kept, and whether it is stale."""


def list_docker_resources(
    request: CollectionRequest = DEFAULT_REQUEST, *, sizes: bool = False
) -> list[Resource]:
    """The containers and snapshot images of a run, or of all. Raises SandboxUnavailableError."""
    found = [
        _make_docker_resource("container", each, _judge_container(each, request), each.get("SizeRw", 0))
        for each in _list_containers(request.owner, sizes)
    ]
    living = {each.owner for each in found if not each.is_stale}
    stale = {each.location for each in found if each.is_stale}
    for each in _list_images(request.owner):
        verdict = _judge_image(each, request, living, stale)
        found.append(_make_docker_resource("image", each, verdict, *(_measure(each) if sizes else ())))
    return found


def remove_objects(resources: Iterable[Resource]) -> tuple[Resource, ...]:
    """Remove all; return those that are still in use. Raises SandboxUnavailableError."""
    left = tuple(resources)
    while left:
        kept = tuple(each for each in left if not _remove_image(each))
        if len(kept) == len(left):
            break
        left = kept  # a child may have been among those that are gone now
    return left


def remove_stale_object(resource: Resource) -> str | None:
    """Remove one, unless its run has come alive; return the reason if it remains."""
    if resource.kind == "container":
        return "it could not be removed just now" if remove_objects([resource]) else None
    with ownership.claim(resource.owner) as is_alone:
        if not is_alone:
            return "a process now holds its run"
        return "a container uses it" if remove_objects([resource]) else None


def remove_owned(owners: Collection[str], kept_images: Collection[str] | None) -> None:
    """Remove the containers of these owners, and their images except those to keep; None keeps all snapshots."""
    owner = next(iter(owners)) if len(owners) == 1 else None
    remove_objects(
        _make_docker_resource("container", each) for each in _list_containers(owner) if _owner(each) in owners
    )
    remove_objects(
        _make_docker_resource("image", each)
        for each in _list_images(owner)
        if _owner(each) in owners
        and (LOADED_LABEL in each["Labels"] or (kept_images is not None and each["Id"] not in kept_images))
    )
    for owner in owners:
        ownership.release(owner)


def remove_dead_owners(backend: BackendName, names: re.Pattern[str]) -> None:
    """Remove the sandboxes of all owners of these names whose process is dead; snapshots stay.

    Raises SandboxUnavailableError.
    """
    if backend == "docker":
        containers = [each for each in list_docker_resources() if each.kind == "container" and each.is_stale]
        remove_objects(each for each in containers if names.fullmatch(each.owner))
        return
    for path in _list_directory(ownership.runs_directory()):
        if not names.fullmatch(path.name) or ownership.is_held(path.name) is not False:
            continue
        # A process that needs this owner now waits, and starts again.
        with ownership.claim(path.name) as is_alone, contextlib.suppress(FileNotFoundError):
            if is_alone:
                processes.kill_run_processes(path)
                remove_tree(set_aside(path))


def _list_containers(owner: str | None, sizes: bool = False) -> list[Mapping[str, Any]]:
    with translate_errors("the list of containers"):
        api = client().api
        listed = api.containers(all=True, size=sizes, filters={"label": _label_filter(owner)})
        images = {each["Id"]: each["Labels"] for each in api.images(filters={"label": OWNER_LABEL})}
    # A container that a person starts from a snapshot image has our labels too: those of the image.
    return [
        each
        for each in listed
        if each["ImageID"] not in images
        or images[each["ImageID"]].get(CREATION_LABEL) != each["Labels"].get(CREATION_LABEL)
    ]


def _list_images(owner: str | None) -> list[Mapping[str, Any]]:
    with translate_errors("the list of images"):
        found: list[Mapping[str, Any]] = client().api.images(filters={"label": _label_filter(owner)})
    return found


def _list_container_ids(image: str) -> set[str]:
    """The ids of all containers made from an image or from its children."""
    with translate_errors("the list of containers"):
        return {each["Id"] for each in client().api.containers(all=True, filters={"ancestor": image})}


def _judge_container(container: Mapping[str, Any], request: CollectionRequest) -> Staleness:
    labels, owner = container["Labels"], _owner(container)
    if not ownership.is_owner(owner):
        return "not made by this program", False
    maker = ownership.creator_state(labels)
    if maker == "alive":
        return "alive", False
    if maker == "dead":
        return "its process is dead", True
    if container["State"] not in ("exited", "dead"):
        return f"it runs, perhaps for another host (if not: docker rm -f {_name(container)})", False
    is_held = ownership.is_held(owner)
    if is_held:
        return "its run is alive", False
    if maker == "earlier" and ownership.origin(labels) == "here" and is_held is False:
        return "its process is dead since this host started anew", True
    if request.owner == owner:
        return "it has ended, and its owner was named", True
    return f"perhaps another host's (remove it with --owner {owner})", False


def _judge_image(
    image: Mapping[str, Any],
    request: CollectionRequest,
    live_owners: Collection[str],
    stale_containers: Collection[str],
) -> Staleness:
    """`living` are the owners of containers that are kept, `stale` the other containers."""
    labels, owner, origin = image["Labels"], _owner(image), ownership.origin(image["Labels"])
    if not ownership.is_owner(owner):
        return "not made by this program", False
    is_loaded, is_held = LOADED_LABEL in labels, ownership.is_held(owner)
    tags = [tag for tag in image["RepoTags"] or [] if tag != "<none>:<none>"]
    others = [tag for tag in tags if not tag.startswith(f"{SNAPSHOT_REPOSITORY}:")]
    if others or not tags:
        return (f"also called {', '.join(others)}" if others else "its name was removed"), False
    if is_held or owner in live_owners or ownership.creator_state(labels) == "alive":
        return "its run may be alive", False
    if not is_loaded and not request.include_snapshots:
        return "a record may refer to it: --snapshots", False
    if origin == "elsewhere":
        # The locks of its run, if it is alive, may be invisible to this process.
        other_host = f"of another host or {ownership.ROOT_VARIABLE}"
        return f"{other_host} (if its run is over: docker rmi {_name(image)})", False
    # An image made from an archive has no label except its owner, so that it is the same for everybody.
    is_of_this_host = origin == "here" or (is_loaded and ownership.is_known(owner))
    if request.owner != owner and not (is_of_this_host and is_held is False):
        return f"perhaps another host's (remove it with --owner {owner})", False
    if users := _list_container_ids(image["Id"]) - set(stale_containers):
        return f"container {min(users)[:12]} uses it", False
    return ("can be loaded again from its archive" if is_loaded else "its run is dead"), True


def _make_docker_resource(
    kind: ResourceKind,
    attributes: Mapping[str, Any],
    staleness: Staleness = ("", True),
    size: int = 0,
    created_at_s: float | None = None,
) -> Resource:
    created_at_s = attributes["Created"] if created_at_s is None else created_at_s
    return Resource(
        kind=kind,
        owner=_owner(attributes),
        name=_name(attributes),
        location=attributes["Id"],
        size_bytes=size,
        # Equal archives make equal images, which therefore have no date of their own.
        age_s=max(0.0, time.time() - created_at_s) if created_at_s > 0 else 0.0,
        reason=staleness[0],
        is_stale=staleness[1],
    )


def _measure(image: Mapping[str, Any]) -> tuple[int, float]:
    """The minimum size that removing an image frees, and when it was made."""
    from docker.errors import NotFound

    api, size, made = client().api, 0, image["Created"]
    with (
        translate_errors(f"image {image['Id'][:19]}"),
        contextlib.suppress(NotFound),
    ):  # another process removes it
        size = next((layer["Size"] for layer in api.history(image["Id"])), 0)
        if LOADED_LABEL in image["Labels"]:  # its own date is that of its base
            tagged = api.inspect_image(image["Id"]).get("Metadata", {}).get("LastTagTime", "")
            with contextlib.suppress(ValueError):
                made = datetime.datetime.fromisoformat(f"{tagged[:19]}+00:00").timestamp()
    return size, made


def _remove_image(resource: Resource) -> bool:
    """Remove an image without force; True if it is gone. One with a container or another name must stay."""
    from docker.errors import APIError, NotFound

    api = client().api
    with translate_errors(f"{resource.kind} {resource.name} could not be removed"):
        for _ in range(_MAX_ATTEMPTS):
            try:
                if resource.kind == "image":
                    api.remove_image(resource.location)
                else:
                    api.remove_container(resource.location, force=True, v=True)
            except NotFound:
                return True
            except APIError as error:
                if error.status_code != _CONFLICT:
                    raise
                if "already in progress" not in str(error):
                    return False
                time.sleep(_RETRY_DELAY_S)  # another process is removing it
            else:
                return True
    return False


def _name(attributes: Mapping[str, Any]) -> str:
    if "Names" in attributes:
        names = [name.lstrip("/") for name in attributes["Names"] or []] or [attributes["Id"][:12]]
    else:
        names = [tag for tag in attributes["RepoTags"] or [] if tag.startswith(f"{SNAPSHOT_REPOSITORY}:")]
    return str((names or [attributes["Id"][:19]])[0])


def _owner(attributes: Mapping[str, Any]) -> str:
    return str(attributes["Labels"][OWNER_LABEL])


def _label_filter(owner: str | None) -> str:
    return OWNER_LABEL if owner is None else f"{OWNER_LABEL}={owner}"


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
    for list_resources in (list_stored_resources, list_temporary_resources):
        try:
            resources += list_resources(request)
        except SandboxUnavailableError as error:
            errors.append(str(error))
    try:
        resources += list_docker_resources(request, sizes=True)
    except SandboxUnavailableError as error:
        docker_error = str(error)
    stale = [each for each in resources if each.is_stale]
    return Survey(
        stale_resources=tuple(sorted(stale, key=lambda each: _REMOVAL_ORDER.index(each.kind))),
        kept_resources=tuple(each for each in resources if not each.is_stale),
        docker_error=docker_error,
        errors=tuple(errors),
    )


def remove_resource(resource: Resource) -> str | None:
    """Remove a stale resource unless a process now uses it; the reason if it remains."""
    is_on_docker = resource.kind in ("container", "image")
    try:
        return (remove_stale_object if is_on_docker else remove_stale_directory)(resource)
    except SandboxUnavailableError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or resource.location}: {error.strerror}"
