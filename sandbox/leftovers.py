"""What runs left on the Docker daemon: found by its labels, and removed only if it is theirs."""

from __future__ import annotations

import datetime
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from sandbox import depot
from sandbox.daemon import answering, client
from sandbox.images import LOADED_LABEL, SNAPSHOTS
from sandbox.ownership import MAKING_LABEL, OWNER_LABEL, Maker, Origin, maker, origin

_CONFLICT = 409
_PATIENCE_S = 0.2
_TRIES = 10


class Leftover(NamedTuple):
    """One container or image that a run has made."""

    kind: Literal["container", "image"]
    id: str
    name: str
    owner: str
    maker: Maker
    origin: Origin
    made: float
    """Seconds since 1970."""
    loaded: bool = False
    """An image that was made from an archive, and can be made again."""
    ended: bool = False
    """A container that runs no more, and so is of no use to any run."""
    others: str = ""
    """What somebody else has done to an image's name."""
    bytes: int = 0
    """What removal gives back at least: the container's own layer, or the image's last one."""


def containers(owner: str | None = None, *, sizes: bool = False) -> tuple[Leftover, ...]:
    """The containers of a run, or of all, whatever process made them."""
    with answering("the list of containers"):
        api = client().api
        listed = api.containers(all=True, size=sizes, filters={"label": _label(owner)})
        images = {found["Id"]: found["Labels"] for found in api.images(filters={"label": OWNER_LABEL})}
    return tuple(_container(found) for found in listed if not _inherited(found, images))


def snapshots(owner: str | None = None, *, sizes: bool = False) -> tuple[Leftover, ...]:
    """The frozen images of a run, or of all."""
    with answering("the list of images"):
        listed = client().api.images(filters={"label": _label(owner)})
        return tuple(_image(found, sizes) for found in listed)


def users(image: str) -> tuple[str, ...]:
    """The ids of the containers that stand on an image, whosever they are."""
    with answering("the list of containers"):
        listed = client().api.containers(all=True, filters={"ancestor": image})
    return tuple(found["Id"] for found in listed)


def remove(found: Iterable[Leftover]) -> tuple[Leftover, ...]:
    """Remove them; what could not be, because something still stands on it. Raises SandboxUnavailable."""
    left = list(found)
    while left:
        kept = [one for one in left if not _removed(one)]
        if len(kept) == len(left):
            break
        left = kept  # a child may have been among those that are gone now
    return tuple(left)


def remove_owned(owners: Collection[str], keep: Collection[str] | None) -> None:
    """Remove these owners' containers, and their images but those to keep; None keeps all snapshots."""
    label = next(iter(owners)) if len(owners) == 1 else None
    remove(one for one in containers(label) if one.owner in owners)
    remove(
        one
        for one in snapshots(label)
        if one.owner in owners and (one.loaded or (keep is not None and one.id not in keep))
    )
    for owner in owners:
        depot.release(owner)


def _removed(one: Leftover) -> bool:
    """Whether it is gone now. An image that has a container, or another's name, is not to be forced."""
    from docker.errors import APIError, NotFound

    api = client().api
    with answering(f"{one.kind} {one.name} could not be removed"):
        for _ in range(_TRIES):
            try:
                if one.kind == "image":
                    api.remove_image(one.id)
                else:
                    api.remove_container(one.id, force=True, v=True)
            except NotFound:
                return True
            except APIError as error:
                if error.status_code != _CONFLICT:
                    raise
                if "already in progress" not in str(error):
                    return False
                time.sleep(_PATIENCE_S)  # somebody else removes it
            else:
                return True
    return False


def _label(owner: str | None) -> str:
    return OWNER_LABEL if owner is None else f"{OWNER_LABEL}={owner}"


def _inherited(container: Mapping[str, Any], images: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether a container has our labels only from the image, which a person may start as well."""
    below = images.get(container["ImageID"])
    return below is not None and below.get(MAKING_LABEL) == container["Labels"].get(MAKING_LABEL)


def _container(found: Mapping[str, Any]) -> Leftover:
    labels = found["Labels"]
    return Leftover(
        kind="container",
        id=found["Id"],
        name=found["Names"][0].lstrip("/") if found["Names"] else found["Id"][:12],
        owner=labels[OWNER_LABEL],
        maker=maker(labels),
        origin=origin(labels),
        made=found["Created"],
        ended=found["State"] in ("exited", "dead"),
        bytes=found.get("SizeRw", 0),
    )


def _image(found: Mapping[str, Any], sizes: bool) -> Leftover:
    labels, tags = found["Labels"], found["RepoTags"] or []
    loaded = LOADED_LABEL in labels
    ours = [tag for tag in tags if tag.startswith(f"{SNAPSHOTS}:")]
    others = [tag for tag in tags if tag not in ours and tag != "<none>:<none>"]
    api, made, size = client().api, found["Created"], 0
    if sizes:
        size = next((layer["Size"] for layer in api.history(found["Id"])), 0)
        if loaded:  # its own date is that of its base
            told = api.inspect_image(found["Id"]).get("Metadata", {}).get("LastTagTime", "")
            made = _seconds(told) or made
    return Leftover(
        kind="image",
        id=found["Id"],
        name=(ours or [found["Id"][:19]])[0],
        owner=labels[OWNER_LABEL],
        maker=maker(labels),
        origin=origin(labels),
        made=made,
        loaded=loaded,
        others=f"also called {', '.join(others)}" if others else "" if ours else "its name was taken away",
        bytes=size,
    )


def _seconds(date: str) -> float | None:
    """A moment as Docker writes it, to the second."""
    try:
        return datetime.datetime.fromisoformat(f"{date[:19]}+00:00").timestamp()
    except ValueError:
        return None
