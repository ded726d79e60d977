"""Save the layers of a sandbox again and again: each time only what was added, as one more part.

A layer never changes once it is saved. So each saved snapshot is remembered as the parts that hold its layers, and the
next one writes only the layers above, as a part of its own. Parts are merged by size: a new one takes those below it
in that are at most twice its size. Then each byte is written again about as often as the logarithm of all says, and a
snapshot has few parts.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import heapq
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.interface import SnapshotCorruptError
from langgraph_takeover.sandbox.isolation.limits import bytes_used
from langgraph_takeover.sandbox.ownership import translate_disk_errors
from langgraph_takeover.sandbox.snapshots import archive_reader, archive_writer
from langgraph_takeover.sandbox.snapshots.archive_format import MAX_PARTS, archive_name
from langgraph_takeover.sandbox.snapshots.archive_members import MalformedArchiveError, sort_key
from langgraph_takeover.sandbox.snapshots.archive_parts import (
    ArchivePart,
    PartList,
    find_part_list,
    hold_store,
    link_or_copy,
    write_part_list,
)
from langgraph_takeover.sandbox.snapshots.differences import (
    Difference,
    format_entry,
    list_differences,
)

_REMEMBERED = 3
"""Saved snapshots whose directories a sandbox keeps open: the newest may be removed, as a copy of an earlier one."""
_SHARED = 8
"""Saved snapshots that all sandboxes of this process remember, without their directories."""
_MERGED_SIZE_RATIO = 2
_MAX_MERGED_BYTES = 8 << 20
"""Larger units are written again only when there are many parts, because the snapshot waits for it."""
_MANY_PARTS = MAX_PARTS * 3 // 4


class SavedContent(NamedTuple):
    """What a saved snapshot has, by path: enough to compute the digest of the next one without reading it again."""

    keys: tuple[bytes, ...] | list[bytes] = ()
    """Sorted, as `sort_key` gives them."""
    entries: tuple[bytes, ...] | list[bytes] = ()
    """What the digest covers of each path."""
    links: dict[bytes, list[bytes]] = {}  # noqa: RUF012  # never changed
    """The other names of a file by its first one."""

    def digest(self) -> str:
        found = hashlib.sha256()
        for start in range(0, len(self.entries), 4096):
            found.update(b"".join(self.entries[start : start + 4096]))
        return found.hexdigest()

    def find_kind(self, path: str) -> str | None:
        """Return the kind of a path, as in a `Difference`; None without one."""
        key = sort_key(path)
        at = bisect.bisect_left(self.keys, key)
        if at == len(self.keys) or self.keys[at] != key:
            return None
        return _read_kind(key, self.entries[at])

    def has_below(self, path: str) -> bool:
        """Whether there is anything in a directory."""
        start = sort_key(path) + b"\0"
        at = bisect.bisect_left(self.keys, start)
        return at < len(self.keys) and self.keys[at].startswith(start)


def _read_kind(key: bytes, entry: bytes) -> str:
    start = len(str(len(key))) + len(key) + 2
    return entry[start : entry.index(b" ", start)].decode()


class ContentBuilder:
    """Adds the entries of a part, in their order, to the content of the snapshot below."""

    def __init__(self, below: SavedContent) -> None:
        self._below = below
        self._at = 0
        """The first entry of the snapshot below that is neither taken over nor hidden."""
        self._keys: list[bytes] = []
        self._entries: list[bytes] = []
        self._links: dict[bytes, list[bytes]] = {}
        self._linked = {*below.links, *(name for names in below.links.values() for name in names)}
        self.broken: list[bytes] = []
        """Names below that are unchanged, but whose file was stored under a name that is hidden now; a heap."""

    def add(self, path: str, kind: str, mode: int, payload: bytes) -> None:
        key = sort_key(path)
        keys, entries = self._below.keys, self._below.entries
        at = bisect.bisect_left(keys, key, self._at)
        self._keys += keys[self._at : at]
        self._entries += entries[self._at : at]
        if kind == "directory":
            is_known = at < len(keys) and keys[at] == key
            if is_known and _read_kind(key, entries[at]) == "opaque":
                kind = "opaque"
            self._at = at + is_known
        else:
            self._at = bisect.bisect_left(keys, key + b"\1", at)
            if self._linked:
                self._note_hidden(keys[at : self._at])
        if kind != "masked":
            self._keys.append(key)
            self._entries.append(
                format_entry(path, "directory" if kind == "cleared" else kind, mode, payload)
            )

    def add_link(self, path: str, first_path: str) -> None:
        """Say that the entry that was added last is a hard link to an earlier one."""
        self._links.setdefault(sort_key(first_path), []).append(sort_key(path))

    def is_unchanged(self, key: bytes) -> bool:
        """Whether a name below, behind the last added one, is neither changed nor hidden by it."""
        return bisect.bisect_left(self._below.keys, key) >= self._at

    def _note_hidden(self, keys: Sequence[bytes]) -> None:
        hidden = self._linked.intersection(keys)
        self._linked -= hidden
        for key in hidden:
            for name in self._below.links.get(key, ()):
                if self.is_unchanged(name):
                    heapq.heappush(self.broken, name)

    def finish(self) -> SavedContent:
        self._keys += self._below.keys[self._at :]
        self._entries += self._below.entries[self._at :]
        for first, names in self._below.links.items():
            left = [name for name in names if name in self._linked]
            if first in self._linked and left:
                self._links[first] = left
        return SavedContent(self._keys, self._entries, self._links)


def list_part_differences(
    layers: tuple[Path, ...],
    base: LayerStack,
    *,
    below: tuple[Path, ...],
    content: SavedContent,
    builder: ContentBuilder,
) -> Iterator[Difference]:
    """Yield what `layers` change in the saved layers `below` with this content; the caller adds each to `builder`.

    A file with several names is stored under the first. Where `layers` hide that one, the others are yielded, too, so
    that no part depends on hidden content.
    """
    stack = LayerStack(*below, opaque_attribute=base.opaque_attribute)
    for difference in list_differences(layers, base, below=content):
        key = sort_key(difference.path)
        yield from _list_broken_links(stack, builder, key)
        if builder.broken and builder.broken[0] == key:
            heapq.heappop(builder.broken)
        yield difference
    yield from _list_broken_links(stack, builder, None)


def _list_broken_links(stack: LayerStack, builder: ContentBuilder, end: bytes | None) -> Iterator[Difference]:
    while builder.broken and (end is None or builder.broken[0] < end):
        key = heapq.heappop(builder.broken)
        if builder.is_unchanged(key):
            path = key.replace(b"\0", b"/").decode(errors="surrogateescape")
            item = stack.find(path)
            assert item is not None, f"{path!r:.80} is not in the saved layers"
            yield Difference(path, "file", item)


class SavedUnit(NamedTuple):
    """Layers that were saved together."""

    layers: tuple[Path, ...]
    """The top one first."""
    parts: tuple[ArchivePart, ...]
    """The newest first."""
    used_bytes: int
    content: SavedContent
    """Of these layers and all below."""


def _must_merge(below: SavedUnit, size: int, count: int) -> bool:
    """Whether `size` new bytes are written together with the unit below, of units with `count` parts."""
    may_merge = below.used_bytes <= _MAX_MERGED_BYTES or count >= _MANY_PARTS
    return count >= MAX_PARTS or (may_merge and _MERGED_SIZE_RATIO * size >= below.used_bytes)


Units = tuple[SavedUnit, ...]
_shared_units: OrderedDict[tuple[str, str], Units] = OrderedDict()
_sharing = threading.Lock()


class _Remembered:
    """A snapshot that was saved to a directory, which may have another name by now."""

    def __init__(self, units: Units, store: Path, digest: str) -> None:
        parts = [part for unit in units for part in unit.parts]
        self.units = units
        self._names = {part.sha256: part.name if len(parts) > 1 else archive_name(digest) for part in parts}
        self._directory = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._files = {sha256: self._identify(sha256) for sha256 in self._names}
        except OSError:
            self.close()
            raise

    def _identify(self, sha256: str) -> tuple[int, ...]:
        info = os.stat(self._names[sha256], dir_fd=self._directory)
        return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)

    def is_intact(self) -> bool:
        """Whether all its files are those that were saved."""
        with contextlib.suppress(OSError):
            return all(self._identify(sha256) == file for sha256, file in self._files.items())
        return False

    def give(self, part: ArchivePart, store: Path) -> None:
        link_or_copy(self._names[part.sha256], store / part.name, directory=self._directory)

    def close(self) -> None:
        os.close(self._directory)


class LayerArchives:
    """The saved snapshots of one sandbox's layers. One thread at a time saves."""

    def __init__(self, base: LayerStack, base_digest: str, root_uid: int) -> None:
        self._base, self._base_digest, self._root_uid = base, base_digest, root_uid
        self._remembered: OrderedDict[str, _Remembered] = OrderedDict()
        self._restored: tuple[tuple[Path, ...], Path, str] | None = None
        self._replaced: list[tuple[tuple[Path, ...], Path]] = []
        self._saving = threading.Lock()

    def remember_restored(self, layers: tuple[Path, ...], archive: Path, digest: str) -> None:
        """Say that layers, the top one first, are the content of a snapshot's file."""
        self._restored = (layers, archive, digest)

    def replace_layers(self, layers: tuple[Path, ...], merged: Path) -> None:
        """Say that a layer has the content of these and takes their place in the next snapshot."""
        self._replaced.append((layers, merged))  # without waiting for a snapshot that is being saved

    def save(self, layers: tuple[Path, ...], store: Path) -> str:
        """Save layers, the top one first, as a snapshot in `store`; return the digest of their content.

        A snapshot is in one archive, or its file lists archives in `store`: `archive_name(digest)` either way, which
        appears last. Raises OutOfDiskError and SandboxUnavailableError.
        """
        archive_writer.create_store(store)
        with translate_disk_errors(), self._saving, hold_store(store):
            self._load_restored()
            while self._replaced:
                layers_before, merged = self._replaced.pop(0)
                for each in self._remembered.values():
                    each.units = _replace_layers(each.units, layers_before, merged)
            remembered, units = self._find_saved(layers)
            covered = sum(len(unit.layers) for unit in units)
            new = layers[: len(layers) - covered]
            size = sum(map(bytes_used, new))
            count = sum(len(unit.parts) for unit in units)
            while units and _must_merge(units[0], size, count):
                size += units[0].used_bytes
                new += units[0].layers
                count -= len(units[0].parts)
                units = units[1:]
            try:
                for part in (part for unit in units for part in unit.parts):
                    assert remembered is not None
                    remembered.give(part, store)
            except FileNotFoundError:  # removed this moment
                new, units, size = layers, (), sum(map(bytes_used, layers))
            unit, digest = self._write(new, units, store, size)
            self._remember((unit, *units), store, digest)
        return digest

    def close(self) -> None:
        while self._remembered:
            self._remembered.popitem()[1].close()

    def _find_saved(self, layers: tuple[Path, ...]) -> tuple[_Remembered | None, Units]:
        """Find the newest snapshot whose files are there and whose lower layers are among these."""
        for remembered in reversed(self._remembered.values()):
            units = remembered.units
            while units:
                saved = _list_layers(units)
                if layers[-len(saved) :] == saved:
                    break
                units = units[1:]
            if units and remembered.is_intact():
                return remembered, units
        return None, ()

    def _write(self, new: tuple[Path, ...], units: Units, store: Path, size: int) -> tuple[SavedUnit, str]:
        content = units[0].content if units else SavedContent()
        builder = ContentBuilder(content)
        below = _list_layers(units)
        written = archive_writer.write_differences_to_store(
            list_part_differences(new, self._base, below=below, content=content, builder=builder),
            store,
            base_digest=self._base_digest,
            root_uid=self._root_uid,
            saved=builder,
            is_part=bool(units),
        )
        unit = SavedUnit(
            new,
            (ArchivePart(sha256=written.sha256, size_bytes=written.size_bytes),),
            size,
            builder.finish(),
        )
        if not units:
            return unit, written.digest
        digest = unit.content.digest()
        parts = tuple(part for each in (unit, *units) for part in each.parts)
        write_part_list(PartList(parts=parts), store / archive_name(digest))
        return unit, digest

    def _remember(self, units: Units, store: Path, digest: str) -> None:
        known = self._remembered.pop(digest, None)
        if known is not None and known.is_intact():
            # Its directory stays, and the new one may be removed as its copy.
            self._remembered[digest] = known
            return
        if known is not None:
            known.close()
        with contextlib.suppress(OSError):  # another process has removed it
            self._remembered[digest] = _Remembered(units, store, digest)
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)[1].close()
        with _sharing:
            _shared_units[self._base_digest, digest] = units
            _shared_units.move_to_end((self._base_digest, digest))
            if len(_shared_units) > _SHARED:
                _shared_units.popitem(last=False)

    def _load_restored(self) -> None:
        """Remember the restored snapshot. One that cannot be read is saved again as a whole."""
        if self._restored is None:
            return
        (layers, archive, digest), self._restored = self._restored, None
        with contextlib.suppress(OSError, SnapshotCorruptError, MalformedArchiveError):
            parts = _list_parts(archive)
            units = self._find_shared_units(layers, parts, digest)
            if not units:
                builder = ContentBuilder(SavedContent())
                archive_reader.verify(archive, digest=digest, base_digest=self._base_digest, saved=builder)
                units = (SavedUnit(layers, parts, sum(map(bytes_used, layers)), builder.finish()),)
            self._remembered[digest] = _Remembered(units, archive.parent, digest)

    def _find_shared_units(
        self, layers: tuple[Path, ...], parts: tuple[ArchivePart, ...], digest: str
    ) -> Units:
        with _sharing:
            units = _shared_units.get((self._base_digest, digest), ())
        is_same = (_list_layers(units), tuple(part for unit in units for part in unit.parts)) == (
            layers,
            parts,
        )
        return units if is_same else ()


def _replace_layers(units: Units, layers: tuple[Path, ...], merged: Path) -> Units:
    """Return units that have one layer in place of these, if units have exactly these."""
    for start in range(len(units)):
        for end in range(start + 1, len(units) + 1):
            if _list_layers(units[start:end]) == layers:
                parts = tuple(part for unit in units[start:end] for part in unit.parts)
                unit = SavedUnit((merged,), parts, bytes_used(merged), units[start].content)
                return (*units[:start], unit, *units[end:])
    return units


def _list_layers(units: Units) -> tuple[Path, ...]:
    return tuple(layer for unit in units for layer in unit.layers)


def _list_parts(archive: Path) -> tuple[ArchivePart, ...]:
    """Return the archives of a snapshot's file, which may be the only one. Raises OSError and MalformedArchiveError."""
    found = find_part_list(archive)
    if found is not None:
        return found.parts
    with archive.open("rb") as raw:
        sha256 = hashlib.file_digest(raw, "sha256").hexdigest()
        return (ArchivePart(sha256=sha256, size_bytes=os.fstat(raw.fileno()).st_size),)
