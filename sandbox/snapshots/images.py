"""Images on the Docker daemon and their layers, and raw tars of overlay directories."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from langgraph_takeover.sandbox.changes.layers import USER_OPAQUE, LayerStack, require_shallow, walk_layer
from langgraph_takeover.sandbox.docker_client import (
    client,
    layer_directories,
    opaque_attribute,
    translate_errors,
)
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError, SnapshotCorruptError
from langgraph_takeover.sandbox.ownership import OWNER_LABEL
from langgraph_takeover.sandbox.snapshots import archive_format, archive_reader, archive_writer, differences
from langgraph_takeover.sandbox.snapshots.archive_members import open_decompressed
from langgraph_takeover.sandbox.untrusted_trees import make_readable

_TAR_COMMAND = ("tar", "--sparse", "--xattrs", "--xattrs-include=*", "--numeric-owner")
_EXCLUDE_OVERLAY_ATTRIBUTES = "--xattrs-exclude=*.overlay.*"
"""Docker marks in a tar by names; a sandbox may have set overlayfs's attributes."""
_FATAL_EXIT_CODE = 2
"""The least exit code of `tar` that says more than that a file changed or vanished while it was read."""
_DISK_FULL_MESSAGES = ("No space left on device", "Wrote only", "Disk quota exceeded")
_WHITEOUT_PREFIX = ".wh."
_OPAQUE_MARK = ".wh..wh..opq"


def pack(directory: Path, raw: Path, *, entry_command: Sequence[str] = ()) -> None:
    """Archive an overlay's upper directory with its whiteouts and attributes.

    `entry_command` begins the command line of `tar`, which then reads with the rights of the sandbox's own root.
    Without it other processes may write, so a file that changes meanwhile is not an error.
    """
    failure = 1 if entry_command else _FATAL_EXIT_CODE
    with raw.open("xb") as out:
        _run_tar(
            "-c",
            "-f",
            "-",
            "-C",
            os.fspath(directory),
            ".",
            entry_command=entry_command,
            stdout=out,
            failure_code=failure,
        )


def unpack(
    raw: Path, directory: Path, *, entry_command: Sequence[str] = (), options: Sequence[str] = ()
) -> None:
    """Unpack what `pack` stored."""
    with raw.open("rb") as packed:
        _run_tar(
            *options,
            "-x",
            "-p",
            "-f",
            "-",
            "-C",
            os.fspath(directory),
            entry_command=entry_command,
            stdin=packed,
        )


def unpack_layer(layer: IO[bytes], directory: Path) -> None:
    """Lay an image's layer out as an overlay directory."""
    raw = directory.with_name(f"{directory.name}.tar")
    with raw.open("xb") as out:
        shutil.copyfileobj(layer, out)
    unpack(raw, directory, options=[_EXCLUDE_OVERLAY_ATTRIBUTES])
    raw.unlink()
    _apply_marks(directory)


def _apply_marks(directory: Path, shown: str = "") -> None:
    require_shallow(shown)
    with make_readable(directory.parent, directory.name, directory.lstat(), to_write=True):
        for path in list(directory.iterdir()):
            if path.name.startswith(_WHITEOUT_PREFIX):
                path.unlink()
                _apply_mark(directory, path.name)
            elif path.is_dir() and not path.is_symlink():
                _apply_marks(path, f"{shown}/{path.name}")


def unpack_layer_names(layer: IO[bytes], directory: Path) -> None:
    """Build a directory with the names of a layer and their kinds, which is all that a base must provide."""
    with tarfile.open(fileobj=layer) as tar:
        for member in tar:
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if not parts or ".." in parts:
                continue
            parent = directory.joinpath(*parts[:-1])
            parent.mkdir(parents=True, exist_ok=True)
            if parts[-1].startswith(_WHITEOUT_PREFIX):
                _apply_mark(parent, parts[-1])
            elif member.isdir():
                (parent / parts[-1]).mkdir(exist_ok=True)
            else:
                (parent / parts[-1]).touch()


def find_reserved_name(directory: Path) -> str | None:
    """A path below whose name Docker's layers would read as a mark, and so cannot keep."""
    for item in walk_layer(directory):
        if item.path.rpartition("/")[2].startswith(_WHITEOUT_PREFIX):
            return item.path
    return None


def _apply_mark(parent: Path, name: str) -> None:
    if name == _OPAQUE_MARK:
        os.setxattr(parent, USER_OPAQUE, b"y")
    elif not name.startswith(_WHITEOUT_PREFIX * 2):  # others of the old union file system's own
        with contextlib.suppress(FileExistsError):
            os.mknod(parent / name.removeprefix(_WHITEOUT_PREFIX), stat.S_IFCHR | 0o600, 0)


def _run_tar(
    *arguments: str,
    entry_command: Sequence[str],
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes] | None = None,
    failure_code: int = 1,
) -> None:
    done = subprocess.run(
        [*entry_command, *_TAR_COMMAND, *arguments],
        stdin=stdin or subprocess.DEVNULL,
        stdout=stdout or subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode < 0 or done.returncode >= failure_code:
        complaint = done.stderr.decode(errors="replace").strip()
        if any(words in complaint for words in _DISK_FULL_MESSAGES):
            raise OutOfDiskError("the disk is full; the snapshot was not taken")
        first = (complaint.splitlines() or ["no reason given"])[0]
        raise SandboxUnavailableError(f"tar failed: {first[:300]}")


SNAPSHOT_REPOSITORY = "takeover/snapshot"
"""The repository name of snapshot images; a tag starts with its owner."""
LOADED_LABEL = "takeover.loaded"
"""On images that were made from an archive, and can be made again."""
_BLOCK = 1024 * 1024
_verified_digests: dict[tuple[str, str], str] = {}
_loaded_images: dict[tuple[Any, ...], str] = {}


class ImageLayers(NamedTuple):
    """An image's layers above its base, the top one first, and the base's."""

    layers: tuple[Path, ...]
    base: LayerStack
    root_uid: int


def find_image(image: str) -> Mapping[str, Any] | None:
    """Inspect an image; None if the daemon has none of that name."""
    from docker.errors import ImageNotFound

    with translate_errors(f"image {image[:19]}"):
        try:
            found: Mapping[str, Any] = client().api.inspect_image(image)
        except ImageNotFound:
            return None
    return found


def require_base_image(base: str) -> Mapping[str, Any]:
    found = find_image(base)
    if found is None:
        raise SandboxUnavailableError(
            f"the snapshot's base {base[:19]} is not on this daemon; pull or build it first"
        )
    return found


def count_layers_above(image: Mapping[str, Any], base: Mapping[str, Any]) -> int:
    """The number of layers that an image has above its base. Raises SnapshotCorruptError if its base differs."""
    found, expected = image["RootFS"]["Layers"], base["RootFS"]["Layers"]
    if found[: len(expected)] != expected:
        raise SnapshotCorruptError(f"snapshot image {image['Id'][:19]} was not made from {base['Id'][:19]}")
    return len(found) - len(expected)


@contextlib.contextmanager
def open_image(image: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[ImageLayers]:
    """Return the image's layers as directories: the daemon's own if they can be read, else from its export."""
    above = count_layers_above(image, base)
    directories = layer_directories(image["GraphDriver"])
    if directories is not None and len(directories) == len(image["RootFS"]["Layers"]):
        yield ImageLayers(
            directories[:above],
            LayerStack(*directories[above:], opaque_attribute=opaque_attribute()),
            directories[-1].stat().st_uid,
        )
        return
    with tempfile.TemporaryDirectory(prefix="takeover-image-") as name, translate_errors("docker save"):
        directories = _fetch_layers(image["Id"], above, Path(name))
        yield ImageLayers(directories[:above], LayerStack(*directories[above:]), os.geteuid())


def image_content_digest(image: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """The digest of an image's difference from its base. An image's id is a digest of its whole content,
    so that one look a process is enough."""
    key = (image["Id"], base["Id"])
    if key not in _verified_digests:
        with open_image(image, base) as found:
            _verified_digests[key] = differences.content_digest(found.layers, found.base)
    return _verified_digests[key]


def write_archive(image: Mapping[str, Any], base: Mapping[str, Any], path: Path) -> str:
    """Write an image's difference from its base as an archive; the content's digest."""
    with open_image(image, base) as found:
        return archive_writer.write(
            found.layers, found.base, path, base_digest=base["Id"], root_uid=found.root_uid
        )


def load_archive(
    path: Path,
    digest: str,
    base: Mapping[str, Any],
    labels: Mapping[str, str],
    tag: str,
    max_bytes: int = archive_format.MAX_LAYER_BYTES,
) -> Mapping[str, Any]:
    """The image that is the base with an archive's layer on it; loaded into the daemon if it is not there.

    Raises SnapshotCorruptError when the archive is not what `digest` says, and OutOfDiskError when its files take more than
    `max_bytes` bytes: the daemon writes their holes, too.
    """
    try:
        info = path.stat()
    except OSError as error:
        raise SnapshotCorruptError(
            f"{path}: the snapshot's archive is missing (restore it from a copy)"
        ) from error
    key = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, digest, base["Id"], *labels.items())
    known = find_image(_loaded_images[key]) if key in _loaded_images else None
    if known is not None:
        return known
    with archive_writer.join_parts(path, base["Id"]) as whole:
        held = archive_reader.verify(whole, digest=digest, base_digest=base["Id"], max_bytes=max_bytes)
        if held.literal_path is not None:
            raise SnapshotCorruptError(
                f"{path}: Docker's layers cannot keep a file named {held.literal_path!r:.80}"
            )
        layer, size = _compute_layer_digest(whole)
        config = _make_config(base, labels, layer)
        found = _load_image(config, lambda: _stream_image(base, config, tag, whole, size), str(path))
    _loaded_images[key] = found["Id"]
    return found


def without_volumes(image: Mapping[str, Any], owner: str) -> Mapping[str, Any]:
    """The image with the same layers and no `VOLUME`; loaded into the daemon if it is not there.

    What a container writes to a volume is in none of its layers, so no snapshot would have it.
    """
    if not image["Config"].get("Volumes"):
        return image
    config = _make_config(image, {OWNER_LABEL: owner, LOADED_LABEL: image["Id"]})
    tag = f"{owner}-{image['Id'].removeprefix('sha256:')[:16]}"
    return _load_image(
        config, lambda: _stream_image(image, config, tag), f"{image['Id'][:19]} without volumes"
    )


def _load_image(config: bytes, stream: Callable[[], Iterator[bytes]], what: str) -> Mapping[str, Any]:
    name = f"sha256:{hashlib.sha256(config).hexdigest()}"
    if find_image(name) is None:
        with translate_errors("docker load"):
            for message in client().api.load_image(stream()):
                if "error" in message:
                    raise OSError(message["error"])
    found = find_image(name)
    if found is None:
        raise SandboxUnavailableError(f"the Docker daemon did not take {what} as an image")
    return found


def _compute_layer_digest(path: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with _open_decompressed(path) as content:
        while block := content.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return f"sha256:{digest.hexdigest()}", size


def _make_config(base: Mapping[str, Any], labels: Mapping[str, str], *layers_above: str) -> bytes:
    """Build an image's config without volumes; equal for equal content, so that its id, a digest, identifies the content."""
    layers = [*base["RootFS"]["Layers"], *layers_above]
    config = {name: value for name, value in base["Config"].items() if name != "Volumes"}
    made = {
        "architecture": base["Architecture"],
        "os": base["Os"],
        "created": base["Created"],
        "config": {**config, "Labels": {**(config.get("Labels") or {}), **labels}},
        "rootfs": {"type": "layers", "diff_ids": layers},
        "history": [{"created": base["Created"], "created_by": "takeover"} for _ in layers],
    }
    return json.dumps(made, sort_keys=True).encode()


def _stream_image(
    base: Mapping[str, Any], config: bytes, tag: str, layer: Path | None = None, size: int = 0
) -> Iterator[bytes]:
    """The output of `docker save` without the base's layers, which the daemon has and does not check."""
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    below = [f"base/{number}/layer.tar" for number in range(len(base["RootFS"]["Layers"]))]
    above = [] if layer is None else ["layer.tar"]
    manifest = [{"Config": name, "RepoTags": [f"{SNAPSHOT_REPOSITORY}:{tag}"], "Layers": [*below, *above]}]
    yield from _tar_member(name, config)
    yield from _tar_member("manifest.json", json.dumps(manifest).encode())
    if layer is not None:
        yield _tar_header("layer.tar", size)
        with _open_decompressed(layer) as content:
            while block := content.read(_BLOCK):
                yield block
    yield bytes(-size % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE)


def _tar_member(name: str, content: bytes) -> Iterator[bytes]:
    yield _tar_header(name, len(content))
    yield content + bytes(-len(content) % tarfile.BLOCKSIZE)


def _tar_header(name: str, size: int) -> bytes:
    header = tarfile.TarInfo(name)
    header.size = size
    return header.tobuf(tarfile.GNU_FORMAT)


@contextlib.contextmanager
def _open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as raw, open_decompressed(raw) as content:
        yield content


def _fetch_layers(image: str, above: int, directory: Path) -> tuple[Path, ...]:
    """Fetch an image and lay its layers out, the top one first; of the base's only the names."""
    whole = directory / "image.tar"
    with whole.open("xb") as out:
        for block in client().api.get_image(image):
            out.write(block)
    layers: list[Path] = []
    with tarfile.open(whole) as saved:
        manifest = saved.extractfile("manifest.json")
        assert manifest is not None
        names = json.load(manifest)[0]["Layers"]
        for number, name in enumerate(names):
            target = directory / str(number)
            target.mkdir()
            layer = saved.extractfile(name)
            assert layer is not None
            (unpack_layer if number >= len(names) - above else unpack_layer_names)(layer, target)
            layers.insert(0, target)
    return tuple(layers)
