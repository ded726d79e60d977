"""What an image on the daemon comes to over the image it was made from, and how an archive becomes an image."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from sandbox import archive
from sandbox.daemon import answering, client, directories, opaque_attribute
from sandbox.layers import Stack
from sandbox.machine import SandboxUnavailable, SnapshotCorrupt
from sandbox.members import unpacked
from sandbox.tarballs import lay_out, lay_out_names

SNAPSHOTS = "takeover/snapshot"
"""The repository of frozen images; a tag begins with its owner."""
LOADED_LABEL = "takeover.loaded"
"""On images that were made from an archive, and can be made again."""
_BLOCK = 1024 * 1024
_verified: dict[tuple[str, str], str] = {}
_loaded: dict[tuple[Any, ...], str] = {}


class Opened(NamedTuple):
    """An image's layers above its base, the top one first, and the base's."""

    layers: tuple[Path, ...]
    base: Stack
    root_uid: int


def find(image: str) -> Mapping[str, Any] | None:
    """What the daemon tells of an image; None if it has none of that name."""
    from docker.errors import ImageNotFound

    with answering(f"image {image[:19]}"):
        try:
            found: Mapping[str, Any] = client().api.inspect_image(image)
        except ImageNotFound:
            return None
    return found


def require_base(base: str) -> Mapping[str, Any]:
    found = find(base)
    if found is None:
        raise SandboxUnavailable(
            f"the snapshot's base {base[:19]} is not on this daemon; pull or build it first"
        )
    return found


def layers_above(image: Mapping[str, Any], base: Mapping[str, Any]) -> int:
    """How many layers an image has above its base. Raises SnapshotCorrupt when it stands on another."""
    found, expected = image["RootFS"]["Layers"], base["RootFS"]["Layers"]
    if found[: len(expected)] != expected:
        raise SnapshotCorrupt(f"snapshot image {image['Id'][:19]} was not made from {base['Id'][:19]}")
    return len(found) - len(expected)


@contextlib.contextmanager
def opened(image: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[Opened]:
    """The image's layers as directories: the daemon's own where they can be read, else its word for them."""
    above = layers_above(image, base)
    places = directories(image["GraphDriver"])
    if places is not None and len(places) == len(image["RootFS"]["Layers"]):
        yield Opened(
            places[:above], Stack(*places[above:], opaque=opaque_attribute()), places[-1].stat().st_uid
        )
        return
    with tempfile.TemporaryDirectory(prefix="takeover-image-") as name, answering("docker save"):
        places = _saved(image["Id"], above, Path(name))
        yield Opened(places[:above], Stack(*places[above:]), os.geteuid())


def content_digest(image: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """The digest of an image's difference from its base. An image's id stands for all that is in it,
    so that one look a process is enough."""
    key = (image["Id"], base["Id"])
    if key not in _verified:
        with opened(image, base) as found:
            _verified[key] = archive.content_digest(found.layers, found.base)
    return _verified[key]


def write_archive(image: Mapping[str, Any], base: Mapping[str, Any], place: Path) -> str:
    """Write an image's difference from its base as an archive; the content's digest."""
    with opened(image, base) as found:
        return archive.write(found.layers, found.base, place, base_digest=base["Id"], root_uid=found.root_uid)


def load(
    place: Path,
    digest: str,
    base: Mapping[str, Any],
    labels: Mapping[str, str],
    tag: str,
    largest: int = archive.LARGEST_LAYER,
) -> Mapping[str, Any]:
    """The image that is the base with an archive's layer on it; loaded into the daemon if it is not there.

    Raises SnapshotCorrupt when the archive is not what `digest` says, and OutOfDisk when its files take more than
    `largest` bytes: the daemon writes their holes, too.
    """
    try:
        info = place.stat()
    except OSError as error:
        raise SnapshotCorrupt(f"{place}: the snapshot's archive is gone") from error
    key = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, digest, base["Id"], *labels.items())
    known = find(_loaded[key]) if key in _loaded else None
    if known is not None:
        return known
    held = archive.verify(place, digest=digest, base_digest=base["Id"], largest=largest)
    if held.literal is not None:
        raise SnapshotCorrupt(f"{place}: Docker's layers cannot keep a file named {held.literal!r:.80}")
    layer, size = _layer_digest(place)
    config = _config(base, layer, labels)
    image = f"sha256:{hashlib.sha256(config).hexdigest()}"
    if find(image) is None:
        with answering("docker load"):
            for told in client().api.load_image(_stream(place, size, base, config, tag)):
                if "error" in told:
                    raise OSError(told["error"])
    found = find(image)
    if found is None:
        raise SandboxUnavailable(f"the Docker daemon did not take {place} as an image")
    _loaded[key] = image
    return found


def _layer_digest(place: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with _unpacked(place) as content:
        while block := content.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return f"sha256:{digest.hexdigest()}", size


def _config(base: Mapping[str, Any], layer: str, labels: Mapping[str, str]) -> bytes:
    """An image's config; equal for equal content, so that its id, which is its digest, tells what it holds."""
    layers = [*base["RootFS"]["Layers"], layer]
    made = {
        "architecture": base["Architecture"],
        "os": base["Os"],
        "created": base["Created"],
        "config": {**base["Config"], "Labels": {**(base["Config"].get("Labels") or {}), **labels}},
        "rootfs": {"type": "layers", "diff_ids": layers},
        "history": [{"created": base["Created"], "created_by": "takeover"} for _ in layers],
    }
    return json.dumps(made, sort_keys=True).encode()


def _stream(place: Path, size: int, base: Mapping[str, Any], config: bytes, tag: str) -> Iterator[bytes]:
    """What `docker save` would write, without the base's layers: the daemon has them and does not look."""
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    below = [f"base/{number}/layer.tar" for number in range(len(base["RootFS"]["Layers"]))]
    manifest = [{"Config": name, "RepoTags": [f"{SNAPSHOTS}:{tag}"], "Layers": [*below, "layer.tar"]}]
    yield from _member(name, config)
    yield from _member("manifest.json", json.dumps(manifest).encode())
    yield _header("layer.tar", size)
    with _unpacked(place) as content:
        while block := content.read(_BLOCK):
            yield block
    yield bytes(-size % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE)


def _member(name: str, content: bytes) -> Iterator[bytes]:
    yield _header(name, len(content))
    yield content + bytes(-len(content) % tarfile.BLOCKSIZE)


def _header(name: str, size: int) -> bytes:
    header = tarfile.TarInfo(name)
    header.size = size
    return header.tobuf(tarfile.GNU_FORMAT)


@contextlib.contextmanager
def _unpacked(place: Path) -> Iterator[IO[bytes]]:
    with place.open("rb") as raw, unpacked(raw) as content:
        yield content


def _saved(image: str, above: int, room: Path) -> tuple[Path, ...]:
    """Fetch an image and lay its layers out, the top one first; of the base's only the names."""
    whole = room / "image.tar"
    with whole.open("xb") as out:
        for block in client().api.get_image(image):
            out.write(block)
    places: list[Path] = []
    with tarfile.open(whole) as saved:
        manifest = saved.extractfile("manifest.json")
        assert manifest is not None
        names = json.load(manifest)[0]["Layers"]
        for number, name in enumerate(names):
            place = room / str(number)
            place.mkdir()
            layer = saved.extractfile(name)
            assert layer is not None
            (lay_out if number >= len(names) - above else lay_out_names)(layer, place)
            places.insert(0, place)
    return tuple(places)
