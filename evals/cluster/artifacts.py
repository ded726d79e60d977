"""What the hosts of a run share: the artifact store, named by a fsspec URL, and versions."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from langgraph_takeover.evals.models import parse_model_name
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.evals.run.settings.inputs import digest_path, find_image_id
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.handoff.records.archive import compute_archive_digest, export_record, import_record
from langgraph_takeover.handoff.records.record import RECORD_FILE, RecordError, RecordStore
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError
from langgraph_takeover.sandbox.snapshots.transfer import open_atomically, translate_storage_errors
from langgraph_takeover.sandbox.untrusted_trees import remove_tree, walk

_PACKAGES = ("sandbox", "handoff", "nodes", "graph", "evals")
_DEPENDENCIES = (
    "langchain-core",
    "langchain-openai",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "pydantic",
    "ray",
    "swebench",
)

Versions = dict[str, str]
"""Versions by name."""


def collect_versions(config: RunConfig, tasks: tuple[Task, ...]) -> Versions:
    """The versions, images and recorded trajectories of this host that can influence a row."""
    versions = {"Python": platform.python_version(), "this package's source": _source_digest()}
    versions |= {name: _package_version(name) for name in _DEPENDENCIES}
    if config.sandbox != "process":
        images = [task.build_spec(config.sandbox, config.run_id, Path()).image for task in tasks]
        versions |= {
            f"image {name}": find_image_id(name) for name in dict.fromkeys(images) if name is not None
        }
    for name in (*config.predecessors, *config.successors):
        if parse_model_name(name).kind == "replay":
            recorded = [
                parse_model_name(each).file for each in config.recordings.get(name, {"": name}).values()
            ]
            versions |= {str(file): digest_path(file) for file in recorded}
    return versions


def find_difference(theirs: Versions, ours: Versions) -> str:
    """The first version that differs on another host, as text; empty if none differs."""
    for name, value in ours.items():
        if theirs.get(name) != value:
            return f"{name} is {theirs.get(name) or 'not installed'}, but {value} is required"
    return ""


def _source_digest() -> str:
    digest = hashlib.sha256()
    for package in _PACKAGES:
        root = Path(str(files(f"langgraph_takeover.{package}")))
        for path in sorted(root / name for name, _ in walk(root)):
            if path.is_file() and "__pycache__" not in path.parts:
                name = f"{package}/{path.relative_to(root)}"
                digest.update(f"{name}\0{digest_path(path)}\0".encode())
    return digest.hexdigest()[:12]


def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


class ArtifactStore:
    """A directory at a URL. Its methods raise SandboxUnavailableError if the file system fails."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def put(self, name: str, root: Path, *paths: str) -> None:
        """Upload files and directories below `root` as one archive."""
        url = f"{self.url}/{name}"
        with tempfile.TemporaryFile() as packed:
            _tar("--create", "--gzip", "--format=posix", "-C", str(root), *paths, stdout=packed)
            packed.seek(0)
            with translate_storage_errors(url), open_atomically(url) as out:
                shutil.copyfileobj(packed, out)

    def fetch(self, name: str, root: Path, *paths: str) -> None:
        """Download the files and directories of an archive, replacing existing ones."""
        import fsspec

        url = f"{self.url}/{name}"
        root.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=".fetching-", dir=root) as temporary,
            tempfile.TemporaryFile(dir=root) as packed,
        ):
            with translate_storage_errors(url, into=root), fsspec.open(url, "rb") as source:
                shutil.copyfileobj(source, packed)
            packed.seek(0)
            _tar("--extract", "--gzip", "-p", "--no-same-owner", "-C", temporary, stdin=packed)
            for path in paths:
                target = root / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.is_dir():
                    remove_tree(target)
                (Path(temporary) / path).rename(target)

    def put_record(self, directory: Path) -> str:
        """Upload a record that any host can restore, unless the store has it. Return its name. Raises RecordError."""
        record = RecordStore(directory.parent).load(directory.name)
        name = f"records/{record.id}-{compute_archive_digest(record)[:16]}"
        if not self.has(name):
            export_record(directory, f"{self.url}/{name}")
        return name

    def fetch_record(self, name: str, records: RecordStore) -> None:
        """Download a record unless `records` has it. Raises RecordError if its content changed."""
        record_id, _, digest = Path(name).name.rpartition("-")
        if _has_record(records, record_id, digest):
            return
        import_record(f"{self.url}/{name}", records.root, replace=True)
        if not _has_record(records, record_id, digest):
            raise RecordError(f"{self.url}/{name}: the record differs from the uploaded one")

    def write(self, name: str, value: Any) -> None:
        """Store a value as JSON under a name, replacing an earlier value."""
        url = f"{self.url}/{name}"
        with translate_storage_errors(url), open_atomically(url) as out:
            out.write(json.dumps(value).encode())

    def read(self, name: str) -> Any:
        """The value of that name; None if not found."""
        import fsspec

        url = f"{self.url}/{name}"
        if not self.has(name):
            return None
        with translate_storage_errors(url), fsspec.open(url, "rb") as source:
            return json.load(source)

    def has(self, name: str) -> bool:
        with translate_storage_errors(self.url):
            system, path = self._locate(name)
            return bool(system.exists(path))

    def count(self, name: str) -> int:
        """The number of files in a directory."""
        with translate_storage_errors(self.url):
            system, path = self._locate(name)
            return len(system.ls(path, detail=False))

    def remove(self) -> None:
        with translate_storage_errors(self.url):
            system, path = self._locate("")
            if system.exists(path):
                system.rm(path, recursive=True)

    def _locate(self, name: str) -> tuple[Any, str]:
        """A file system without cached listings, and the path in it."""
        import fsspec

        system, path = fsspec.core.url_to_fs(f"{self.url}/{name}".rstrip("/"), skip_instance_cache=True)
        return system, path


def _has_record(records: RecordStore, record_id: str, digest: str) -> bool:
    """Whether the record exists here, with its snapshot as an archive or as an image of the local daemon."""
    if not (records.directory(record_id) / RECORD_FILE).is_file():
        return False
    try:
        return compute_archive_digest(records.load(record_id)).startswith(digest)
    except RecordError:
        return False


def _tar(*arguments: str, **streams: Any) -> None:
    done = subprocess.run(["tar", *arguments], stderr=subprocess.PIPE, check=False, **streams)
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip()
        kind = OutOfDiskError if "No space left" in message else SandboxUnavailableError
        raise kind(f"tar failed: {message[-300:]}")
