"""Garbage collection on the Docker daemon: containers and snapshot images, found by their labels."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from langgraph_takeover.sandbox.docker.client import client, translate_errors
from langgraph_takeover.sandbox.gc.resources import DEFAULT_REQUEST, CollectionRequest, Resource, ResourceKind
from langgraph_takeover.sandbox.snapshots.docker_images import LOADED_LABEL, SNAPSHOT_REPOSITORY
from langgraph_takeover.sandbox.storage import host_directories, ownership
from langgraph_takeover.sandbox.storage.ownership import CREATION_LABEL, OWNER_LABEL

_CONFLICT = 409
_RETRY_DELAY_S = 0.2
_MAX_ATTEMPTS = 10
Staleness = tuple[str, bool]
"""Why something is stale or kept, and whether it is stale."""


def list_resources(request: CollectionRequest = DEFAULT_REQUEST, *, sizes: bool = False) -> list[Resource]:
    """The containers and snapshot images of a run, or of all. Raises SandboxUnavailableError."""
    found = [
        _make_resource("container", each, _judge_container(each, request), each.get("SizeRw", 0))
        for each in _list_containers(request.owner, sizes)
    ]
    living = {each.owner for each in found if not each.is_stale}
    stale = {each.location for each in found if each.is_stale}
    for each in _list_images(request.owner):
        verdict = _judge_image(each, request, living, stale)
        found.append(_make_resource("image", each, verdict, *(_measure(each) if sizes else ())))
    return found


def remove(resources: Iterable[Resource]) -> tuple[Resource, ...]:
    """Remove all; return those that are still in use. Raises SandboxUnavailableError."""
    left = tuple(resources)
    while left:
        kept = tuple(each for each in left if not _remove(each))
        if len(kept) == len(left):
            break
        left = kept  # a child may have been among those that are gone now
    return left


def remove_stale(resource: Resource) -> str | None:
    """Remove one, unless its run has come alive; return the reason if it remains."""
    if resource.kind == "container":
        return "it could not be removed just now" if remove([resource]) else None
    with ownership.claim(resource.owner) as is_alone:
        if not is_alone:
            return "a process now holds its run"
        return "a container uses it" if remove([resource]) else None


def remove_owned(owners: Collection[str], kept_images: Collection[str] | None) -> None:
    """Remove the containers of these owners, and their images except those to keep; None keeps all snapshots."""
    owner = next(iter(owners)) if len(owners) == 1 else None
    remove(_make_resource("container", each) for each in _list_containers(owner) if _owner(each) in owners)
    remove(
        _make_resource("image", each)
        for each in _list_images(owner)
        if _owner(each) in owners
        and (LOADED_LABEL in each["Labels"] or (kept_images is not None and each["Id"] not in kept_images))
    )
    for owner in owners:
        ownership.release(owner)


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
        other_host = f"of another host or {host_directories.ROOT_VARIABLE}"
        return f"{other_host} (if its run is over: docker rmi {_name(image)})", False
    # An image made from an archive has no label except its owner, so that it is the same for everybody.
    is_of_this_host = origin == "here" or (is_loaded and ownership.is_known(owner))
    if request.owner != owner and not (is_of_this_host and is_held is False):
        return f"perhaps another host's (remove it with --owner {owner})", False
    if users := _list_container_ids(image["Id"]) - set(stale_containers):
        return f"container {min(users)[:12]} uses it", False
    return ("can be loaded again from its archive" if is_loaded else "its run is dead"), True


def _make_resource(
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


def _remove(resource: Resource) -> bool:
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
