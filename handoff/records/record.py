"""The handoff record: everything a successor needs, as one durable value in one directory."""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError

from langgraph_takeover.handoff.records.envelope import Envelope
from langgraph_takeover.handoff.records.payload import Payload
from langgraph_takeover.handoff.text.files import describe_error, read_untrusted_file
from langgraph_takeover.handoff.text.redaction import redact, redact_known_secrets
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, Usage
from langgraph_takeover.handoff.trace.sequences import FailFastTuple
from langgraph_takeover.sandbox.interface import Frozen, Snapshot, TakeoverError
from langgraph_takeover.sandbox.snapshots.archive import sync_directory
from langgraph_takeover.sandbox.storage.removal import remove_tree
from langgraph_takeover.sandbox.storage.untrusted_json import parse_document

SCHEMA_VERSION = 5
"""That of new records; notes and reviews of those before it may have no digest."""
_SUPPORTED_VERSIONS = (4, 5)
RECORD_FILE = "record.json"
NOTES_FILE = "notes.json"
REVIEW_FILE = "review.json"
_REVIEW_PENDING_FILE = "review.awaited"
_SEPARATE_FIELDS = ("notes", "review", "envelope")
"""What is no part of the record's own file, nor of its digest."""
ViewName = Literal["repository", "trace", "summary", "structured", "payload", "transcript", "cited"]
_ID_PATTERN = re.compile(r"[\w+-][\w.+-]{0,199}")
_Kind = TypeVar("_Kind", bound=Frozen)


class RecordError(TakeoverError, ValueError):
    """A record that is missing, torn, of another schema, or not what its digest says."""


class TaskBrief(Frozen):
    """What an agent may know of a task; nothing of its tests or its solution."""

    id: str
    prompt: str
    """The original task prompt, verbatim."""
    base_commit: str
    """The commit the sandbox started from, which patches are made against."""
    base_directories: FailFastTuple[str]
    """Top-level directories that the base commit has."""
    workspace: str = ""
    """The repository's absolute path in the machine; empty where nobody knows."""


class Claim(Frozen):
    """One statement of a model about the earlier work, and the events that it says it rests on."""

    text: str
    events: FailFastTuple[int] = ()


class Attachment(Frozen):
    """What is written to a record after it was sealed, with a digest of its own."""

    digest: str = Field(default="", json_schema_extra={"readOnly": True})
    """Of the other fields and the record's id; empty where a program wrote it that knew no such digest."""

    def seal_for(self, record_id: str) -> Self:
        return self.model_copy(update={"digest": self._content_digest(record_id)})

    def has_digest_for(self, record_id: str) -> bool:
        """Whether the digest is that of the content, as part of the record."""
        return self.digest == self._content_digest(record_id)

    def _content_digest(self, record_id: str) -> str:
        return _compute_digest(self.model_dump(mode="json", exclude={"digest"}) | {"record": record_id})


class Notes(Attachment):
    """What the predecessor's model wrote about its own trace, before any takeover."""

    model: str
    prompts: str = ""
    """The version of the prompts that asked for them."""
    summary: str
    structured: dict[str, FailFastTuple[Claim]]
    """The model-filled fields of the structured note; those it did not fill are absent."""
    malformed: bool = False
    """Nothing could be read from the reply that was to fill the fields."""
    retried: Literal["", "malformed", "contradicted"] = ""
    """Why the fields were asked for once more."""
    summary_usage: Usage
    structured_usage: Usage
    """Of both calls, where it was asked twice."""


class Review(Attachment):
    """What a person decided on a record: hand over, and how, or refuse."""

    decision: Literal["approve", "refuse"] = "approve"
    view: ViewName = "structured"
    """The view that the successor is to get."""
    successor: str = ""
    """The model that is to go on; empty leaves it open."""
    note: str = ""
    """The note as the person rewrote it, shown in the structured view instead of the draft."""


class HandoffRecord(Frozen):
    """The durable whole of one handoff: point, snapshot, checkpoint, trace prefix, notes, review, digest.

    `digest` covers everything but itself, the notes and the review, which are written later and have their own.
    """

    schema_version: Literal[4, 5] = 5
    id: str
    task: TaskBrief
    predecessor: str
    point: HandoffPoint
    patch: str
    """The difference of the frozen repository to its base commit, as the predecessor could have seen it."""
    snapshot: Snapshot | None
    """None where nobody kept the machine, as of a recorded run: it can be read, but not taken over."""
    files: FailFastTuple[str] | None = None
    """The frozen repository's files, relative to it; None where nobody knows, or where they are too many to list."""
    thread_id: str
    checkpoint_id: str
    trace: FailFastTuple[Event]
    created_at: str
    payload: Payload | None = None
    """What a parent hands its child to start with, where the record is made to delegate."""
    notes: Notes | None = None
    review: Review | None = None
    envelope: Envelope | None = None
    """What its source says beside it, in the handoff at hand; it is the ledger's, and never saved with the record."""
    digest: str = Field(default="")

    def seal(self) -> HandoffRecord:
        return self.model_copy(update={"digest": self._content_digest()})

    def verify(self) -> None:
        """Raises RecordError when the content is not what the digest was made of."""
        if self.digest != self._content_digest():
            raise RecordError(f"record {self.id}: its content does not match its digest")
        if len(self.trace) != self.point.event_index + 1:
            raise RecordError(f"record {self.id}: its trace does not end at its handoff point")

    def verify_attachments(self) -> None:
        """Raises RecordError when the notes or the review are not what their digests were made of.

        Without a digest they are refused too, unless the record is from before there were any.
        """
        for name, added in self.attachments.items():
            if name not in self.files_without_digest and not added.has_digest_for(self.id):
                raise RecordError(
                    f"record {self.id}: {name} does not match its digest: it was changed, or is of another record "
                    f"(import the record again, or write it anew)"
                )

    @property
    def attachments(self) -> dict[str, Attachment]:
        """The notes and the review, where there are any, by the names of their files."""
        both: dict[str, Attachment | None] = {NOTES_FILE: self.notes, REVIEW_FILE: self.review}
        return {name: added for name, added in both.items() if added is not None}

    @property
    def files_without_digest(self) -> tuple[str, ...]:
        """The files of those that no digest covers, because a program wrote them that knew none."""
        if self.schema_version != _SUPPORTED_VERSIONS[0]:
            return ()
        return tuple(name for name, added in self.attachments.items() if not added.digest)

    @property
    def required_snapshot(self) -> Snapshot:
        """The snapshot. Raises RecordError where there is none."""
        if self.snapshot is None:
            raise RecordError(f"record {self.id}: its machine was never kept, so nobody can take it over")
        return self.snapshot

    def _content_digest(self) -> str:
        return _compute_digest(self.model_dump(mode="json", exclude={"digest", *_SEPARATE_FIELDS}))


def _compute_digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class RecordStore:
    """A directory of records: `<id>/record.json`, its notes, and what its snapshot needs."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, record_id: str) -> Path:
        return self.root / record_id

    def create(
        self,
        record_id: str,
        build: Callable[[Path], HandoffRecord],
        *,
        commit_guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> HandoffRecord:
        """Save what `make` returns, whole or not at all; it may put files into the directory it is given.

        The record gets its name inside `alone()`, which raises where somebody else may have made it by now.
        """
        # What another process is making has another name; what a dead one was, nobody finishes.
        partial = self.root / f".partial-{record_id}.{secrets.token_hex(4)}"
        partial.mkdir(parents=True)
        try:
            record = _redact_model(build(partial)).seal()
            write_durably(partial / RECORD_FILE, to_json(record, exclude=set(_SEPARATE_FIELDS)))
            with commit_guard():
                # Before the record is there: whoever finds it does not come by here again.
                dead = glob.escape(f".partial-{record_id}")
                for left in {*self.root.glob(dead), *self.root.glob(f"{dead}.????????")} - {partial}:
                    remove_tree(left)
                remove_tree(self.directory(record_id))
                partial.rename(self.directory(record_id))
        except BaseException:
            remove_tree(partial)
            raise
        sync_directory(self.root)
        return record

    def load(self, record_id: str) -> HandoffRecord:
        """The record with its notes, verified. Raises RecordError."""
        if not is_valid_id(record_id):
            raise RecordError(f"{record_id!r:.60} is no record's id; {self._describe_available()}")
        path = self.directory(record_id) / RECORD_FILE
        if not path.is_file():
            raise RecordError(f"{path}: no such record; {self._describe_available()}")
        record = _load_file(path, HandoffRecord)
        if record.id != record_id:
            raise RecordError(f"{path}: holds the record {record.id}; a record's directory has its name")
        record.verify()
        found = record.model_copy(
            update={
                "notes": self._load_attachment(record_id, NOTES_FILE, Notes),
                "review": self._load_attachment(record_id, REVIEW_FILE, Review),
                "envelope": None,
            }
        )
        found.verify_attachments()
        return found

    def load_notes(self, record_id: str) -> Notes | None:
        """The notes, verified, if they have been written. Raises RecordError."""
        return self.load(record_id).notes if os.path.lexists(self.directory(record_id) / NOTES_FILE) else None

    def load_review(self, record_id: str) -> Review | None:
        """What a person decided, verified, if anybody did. Raises RecordError."""
        return (
            self.load(record_id).review if os.path.lexists(self.directory(record_id) / REVIEW_FILE) else None
        )

    def _load_attachment(self, record_id: str, name: str, kind: type[_Kind]) -> _Kind | None:
        path = self.directory(record_id) / name
        # Only a name that does not exist is absent: not a directory, a FIFO or a link to nothing.
        return _load_file(path, kind) if os.path.lexists(path) else None

    def add_review(self, record_id: str, review: Review) -> None:
        self._write_attachment(record_id, REVIEW_FILE, review)
        (self.directory(record_id) / _REVIEW_PENDING_FILE).unlink(missing_ok=True)

    def mark_review_pending(self, record_id: str) -> None:
        """Nobody has decided on the record, and somebody is to."""
        (self.directory(record_id) / _REVIEW_PENDING_FILE).touch()

    def is_review_pending(self, record_id: str) -> bool:
        return (self.directory(record_id) / _REVIEW_PENDING_FILE).exists()

    def write_attachments(self, directory: Path, record: HandoffRecord) -> None:
        """Write a record's notes and review to a directory; what no digest covered stays uncovered."""
        for name, added in record.attachments.items():
            clean = _redact_model(added)
            write_durably(directory / name, to_json(clean.seal_for(record.id) if added.digest else clean))

    def add_notes(self, record_id: str, notes: Notes) -> None:
        self._write_attachment(record_id, NOTES_FILE, notes)

    def _write_attachment(self, record_id: str, name: str, attachment: Attachment) -> None:
        sealed = _redact_model(attachment).seal_for(record_id)
        write_durably(self.directory(record_id) / name, to_json(sealed))

    def list_ids(self) -> tuple[str, ...]:
        return tuple(sorted(path.parent.name for path in self.root.glob(f"[!.]*/{RECORD_FILE}")))

    def _describe_available(self) -> str:
        ids = self.list_ids()
        shown = ", ".join(ids[:10]) + (", …" if len(ids) > 10 else "")
        return f"there are {shown}" if ids else "there is none yet"

    def list_snapshot_locations(self) -> frozenset[str] | None:
        """Where the snapshots of all records lie; None when a record cannot be read and so might lie anywhere."""
        try:
            kept = [self.load(record_id).snapshot for record_id in self.list_ids()]
        except RecordError:
            return None
        return frozenset(snapshot.location for snapshot in kept if snapshot is not None)

    def remove_partial(self, older_than: float | None = None) -> int:
        """Remove what a kill left of records that were never saved whole, or of those as old as that; how many."""
        left = list(self.root.glob(".partial-*"))
        if older_than is not None:
            left = [each for each in left if _modification_time(each) < older_than]
        for partial in left:
            remove_tree(partial)
        return len(left)


def _modification_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf  # whoever made it has just ended that


def is_valid_id(name: object) -> bool:
    """Whether a record may be called so: its directory has that name."""
    return isinstance(name, str) and bool(_ID_PATTERN.fullmatch(name))


def _redact_model(value: _Kind) -> _Kind:
    """As it may be read by others; what restores a machine lacks known secrets only."""
    content = value.model_dump(mode="json")
    if isinstance(value, HandoffRecord):
        # Thousands of names are looked through as one text.
        names = content.pop("files")
        clean = redact(content) | {"id": value.id, "snapshot": redact_known_secrets(content["snapshot"])}
        content["files"] = names
        clean["files"] = redact("\0".join(names)).split("\0") if names else names
    else:
        clean = redact(content)
    return value if clean == content else type(value).model_validate(clean)


def to_json(value: Frozen, *, exclude: set[str] | None = None) -> str:
    """The text that `parsed` reads."""
    # In ASCII, because a patch or a file name may hold bytes that no UTF-8 text can.
    return json.dumps(value.model_dump(mode="json", exclude=exclude), indent=1)


def _load_file(path: Path, kind: type[_Kind]) -> _Kind:
    try:
        text = read_untrusted_file(path)
    except FileNotFoundError as error:
        missing = (
            "no such record" if kind is HandoffRecord else "a link to a file that does not exist (remove it)"
        )
        raise RecordError(f"{path}: {missing}") from error
    except OSError as error:
        raise RecordError(f"{path}: {describe_error(error)}") from error
    return parse_model(text, path, kind)


def parse_model(text: bytes, path: Path | str, kind: type[_Kind]) -> _Kind:
    """The value of a file's text. Raises RecordError, which names the file."""
    try:
        content = parse_document(text)
    except ValueError as error:
        raise RecordError(f"{path}: torn, or no JSON: {error}") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if kind is HandoffRecord and version not in _SUPPORTED_VERSIONS:
        known = " and ".join(map(str, _SUPPORTED_VERSIONS))
        raise RecordError(f"{path}: schema version {version!r}; this program reads {known}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "file"
        raise RecordError(f"{path}: {field}: {first['msg']}") from error


def write_durably(path: Path, text: str | Iterable[str]) -> None:
    """Replace the file by `text`, or by the pieces of one, so that a crash leaves either the old content or the new."""
    # Two processes may write the same file at once: the last whole one stays.
    partial = path.with_name(f".{path.name[:200]}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8", errors="surrogatepass") as file:
            file.writelines((text,) if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        error.filename = str(path)
        raise
    sync_directory(path.parent)
