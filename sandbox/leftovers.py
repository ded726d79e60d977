"""What runs left on the Docker daemon: found by its labels, and removed only if it is theirs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple

from sandbox.daemon import answering, client
from sandbox.images import LOADED_LABEL
from sandbox.ownership import OWNER_LABEL, is_abandoned


class Leftover(NamedTuple):
    """One container or image that a run has made."""

    kind: Literal["container", "image"]
    id: str
    name: str
    owner: str
    loaded: bool = False
    """An image that was made from an archive, and can be made again."""


def abandoned() -> tuple[Leftover, ...]:
    """The containers whose process, on this host, is dead. Nothing is removed."""
    return tuple(_container(found) for found in _containers(OWNER_LABEL) if is_abandoned(found["Labels"]))


def containers(owner: str) -> tuple[Leftover, ...]:
    """The containers of a run, whatever process made them."""
    return tuple(_container(found) for found in _containers(f"{OWNER_LABEL}={owner}"))


def snapshots(owner: str | None = None) -> tuple[Leftover, ...]:
    """The frozen images of a run, or of all."""
    label = OWNER_LABEL if owner is None else f"{OWNER_LABEL}={owner}"
    with answering("the list of images"):
        listed = client().api.images(filters={"label": label})
    return tuple(
        Leftover(
            "image",
            found["Id"],
            (found["RepoTags"] or [found["Id"][:19]])[0],
            found["Labels"][OWNER_LABEL],
            LOADED_LABEL in found["Labels"],
        )
        for found in listed
    )


def remove(found: Iterable[Leftover]) -> tuple[Leftover, ...]:
    """Remove them; what could not be, because something still stands on it. Raises SandboxUnavailable."""
    from docker.errors import APIError, NotFound

    api, left = client().api, list(found)
    while left:
        kept = []
        for one in left:
            with answering(f"{one.kind} {one.name} could not be removed"):
                try:
                    if one.kind == "container":
                        api.remove_container(one.id, force=True, v=True)
                    else:
                        api.remove_image(one.id, force=True)
                except NotFound:
                    pass
                except APIError as error:
                    if error.status_code != 409:  # an image has children, or a container is being removed
                        raise
                    kept.append(one)
        if len(kept) == len(left):
            break
        left = kept  # a child may have been among those that are gone now
    return tuple(left)


def remove_owned(owner: str, keep: Collection[str] | None) -> None:
    """Remove an owner's containers, and its images but those to keep; None keeps all snapshots."""
    remove(containers(owner))
    remove(image for image in snapshots(owner) if image.loaded or (keep is not None and image.id not in keep))


def _containers(label: str) -> list[dict[str, Any]]:
    with answering("the list of containers"):
        found: list[dict[str, Any]] = client().api.containers(all=True, filters={"label": label})
    return found


def _container(found: dict[str, Any]) -> Leftover:
    return Leftover("container", found["Id"], found["Names"][0].lstrip("/"), found["Labels"][OWNER_LABEL])
