"""What the hosts of a run hand each other, at a place that they all reach: records, notes, traces, logs, checkouts."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

from handoff.carrying import carried_digest, export, import_
from handoff.record import RECORD_FILE, RecordRefused, RecordStore
from sandbox.archive import sync_directory
from sandbox.machine import OutOfDisk, SandboxUnavailable, SnapshotCorrupt
from sandbox.removal import remove_tree
from sandbox.transfer import appearing, failing

Kind = Literal["records", "notes", "traces", "logs", "checkouts", "tokens"]
_NAMED = 16
# Owners differ from host to host; times do not, and neither may the order.
_PACK = ("--format=posix", "--pax-option=delete=atime,delete=ctime", "--sort=name", "--owner=0", "--group=0")


class Item(NamedTuple):
    """One thing that lies there, by its content: what has another digest is another item."""

    kind: Kind
    name: str
    digest: str
    """Of a record its own; of everything else the SHA-256 of its bytes."""


class Depot:
    """A directory that fsspec can name. Its methods raise SandboxUnavailable where it fails them."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._known: set[Item] = set()

    def put(self, kind: Kind, name: str, path: Path) -> Item:
        """A file, under the name that it is to have at the other end."""
        with path.open("rb") as content:
            item = Item(kind, name, hashlib.file_digest(content, "sha256").hexdigest())
        if not self.holds(item):
            url = self._place(item)
            with path.open("rb") as content, failing(url), appearing(url) as out:
                shutil.copyfileobj(content, out)
            self._known.add(item)
        return item

    def put_tree(self, kind: Kind, name: str, directory: Path) -> Item:
        """A directory and all that lies below it."""
        with tempfile.TemporaryDirectory(prefix="takeover-depot-") as room:
            packed = Path(room) / "tree.tar"
            _tar("--create", *_PACK, "--file", str(packed), "--directory", str(directory), ".")
            return self.put(kind, name, packed)

    def put_record(self, directory: Path) -> Item:
        """A record and its snapshot, in the form that another host's daemon can take in. Raises RecordRefused."""
        record = RecordStore(directory.parent).load(directory.name)
        item = Item("records", record.id, carried_digest(record))
        if not self.holds(item):
            export(directory, self._place(item))
            self._known.add(item)
        return item

    def fetch(self, item: Item, target: Path) -> None:
        """Put a file at `target`, whole or not at all. Raises SnapshotCorrupt where it is not what was put there."""
        import fsspec

        url = self._place(item)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".fetching-{secrets.token_hex(8)}")
        try:
            with failing(url, into=target), fsspec.open(url, "rb") as source, partial.open("xb") as out:
                shutil.copyfileobj(source, out)
            with partial.open("rb") as content:
                if hashlib.file_digest(content, "sha256").hexdigest() != item.digest:
                    raise SnapshotCorrupt(f"{url}: is cut short or changed")
            partial.replace(target)
            sync_directory(target.parent)
        finally:
            partial.unlink(missing_ok=True)
        self._known.add(item)

    def fetch_tree(self, item: Item, target: Path) -> None:
        """Put a directory at `target`, in place of what is there."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=target.parent) as room:
            packed, tree = Path(room) / "tree.tar", Path(room) / "tree"
            self.fetch(item, packed)
            tree.mkdir()
            _tar("--extract", "--preserve-permissions", "--no-same-owner", "-f", str(packed), "-C", str(tree))
            remove_tree(target)
            tree.rename(target)

    def fetch_record(self, item: Item, store: RecordStore) -> None:
        """Put a record into a store that lacks it. Raises RecordRefused where it is not what was put there."""
        if has_record(store, item):
            return
        url = self._place(item)
        import_(url, store.root, replace=True)
        if store.load(item.name).digest != item.digest:
            raise RecordRefused(f"{url}: is another record than the one that was put there")
        self._known.add(item)

    def holds(self, item: Item) -> bool:
        """Whether it lies there, as far as this process knows or can see."""
        import fsspec

        if item not in self._known:
            url = self._place(item)
            with failing(url):
                system, path = fsspec.core.url_to_fs(url, skip_instance_cache=True)
                if system.exists(path):
                    self._known.add(item)
        return item in self._known

    def forget(self) -> None:
        """Believe no more that anything lies there, because something did not."""
        self._known.clear()

    def remove(self) -> None:
        """Remove it, with everything in it."""
        import fsspec

        with failing(self.url):
            system, path = fsspec.core.url_to_fs(self.url, skip_instance_cache=True)
            if system.exists(path):
                system.rm(path, recursive=True)
        self.forget()

    def _place(self, item: Item) -> str:
        return f"{self.url}/{item.kind}/{item.name}-{item.digest[:_NAMED]}"


def has_record(store: RecordStore, item: Item) -> bool:
    """Whether a store has that very record, be its snapshot an archive or an image of the daemon here."""
    if not (store.directory(item.name) / RECORD_FILE).is_file():
        return False
    try:
        return carried_digest(store.load(item.name)) == item.digest
    except RecordRefused:
        return False


def digest_of(path: Path) -> str | None:
    """The SHA-256 of a file; None where there is none."""
    try:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _tar(*arguments: str) -> None:
    done = subprocess.run(["tar", *arguments], capture_output=True, check=False)
    if done.returncode != 0:
        told = done.stderr.decode(errors="replace").strip()
        kind = OutOfDisk if "No space left" in told else SandboxUnavailable
        raise kind(f"tar failed: {told[-300:]}")
