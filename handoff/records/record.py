"""The handoff record: everything a successor needs, as one durable value in one directory."""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar

from pydantic import Field, ValidationError

from langgraph_takeover.base.failures import sync_directory
from langgraph_takeover.base.takeover_error import TakeoverError, describe_other_version
from langgraph_takeover.base.untrusted_input import describe_error, parse_document, read_untrusted_file
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.names import ViewName
from langgraph_takeover.handoff.records.envelope import Envelope, Payload
from langgraph_takeover.handoff.records.process_facts import redact_snapshot
from langgraph_takeover.handoff.text.redaction import redact, redact_known_secrets
from langgraph_takeover.handoff.trace.events import Event, FailFastTuple, HandoffPoint, Usage
from langgraph_takeover.sandbox.interface import Snapshot
from langgraph_takeover.sandbox.repository import LeftOut
from langgraph_takeover.sandbox.untrusted_trees import REMOVED_PREFIX, list_matches, remove_tree, set_aside

SCHEMA_VERSION: Final = 10
"""The version of records: no other one is read."""
RECORD_FILE = "record.json"
NOTES_FILE = "notes.json"
REVIEW_FILE = "review.json"
_REVIEW_PENDING_FILE = "review.awaited"
_SEPARATE_FIELDS = ("notes", "review", "envelope")
"""Fields that are neither in the record's own file nor in its digest."""
_ID_PATTERN = re.compile(r"[\w+-][\w.+-]{0,199}")
_Kind = TypeVar("_Kind", bound=Frozen)


class RecordError(TakeoverError, ValueError):
    """A record is missing, damaged, of another schema, or does not match its digest."""

    exit_code = 3


class TaskBrief(Frozen):
    """The part of a task that an agent may see, without tests or solution."""

    id: str
    prompt: str
    """The original task prompt, verbatim."""
    base_commit: str
    """The commit that the sandbox started from; patches refer to it."""
    base_directories: FailFastTuple[str]
    """Top-level directories of the base commit."""
    workspace: str = ""
    """Absolute path of the repository in the sandbox; empty if unknown."""


class ExternalSession(Frozen):
    """The session of an external agent at a record: enough to resume it with its own command in the restored sandbox."""

    agent: str
    """Name of its adapter, such as `codex`."""
    version: str
    session_id: str = ""
    """Empty before its first completed step."""
    workspace: str = ""
    running: FailFastTuple[str] = ()
    """Commands that ran in the background. A snapshot holds files, so a restored sandbox has lost them."""
    pending: FailFastTuple[str] = ()
    """What was open when the session was captured: commands, calls, questions or a request. Nothing of it has a result."""
    withdrawn_files: FailFastTuple[str] = ()
    """Files that actions changed before the user withdrew them; their edits may still be there."""
    account: Mapping[str, int] = {}
    """Takeovers with a native session only: how many events of the earlier work became what."""
    refused_requests: Mapping[str, int] = {}
    """Requests to the bridge that were refused, by reason."""
    side_requests: int = Field(default=0, ge=0)
    """Requests beside the main conversation that reached the model: of subagents and side tasks."""
    unknown_forms: Mapping[str, int] = {}
    """Calls and other items in a form that this version does not know, by name: their effects and results are unknown."""


class Claim(Frozen):
    """One statement of a model about the earlier work, and the events that it cites."""

    text: str
    events: FailFastTuple[int] = ()


Answer = Literal["yes", "no", "unknown"]


class StatedFields(Frozen):
    """What a model states about the earlier work in a form that the record can check."""

    changed_files: FailFastTuple[str] | None = None
    """The files that differ from the base commit, as the model spells them; None if unknown."""
    validation_passes: Answer = "unknown"
    """Whether the latest validation of the current code passes."""
    work_done: Answer = "unknown"
    """Whether the model believes that the task is solved."""


class Attachment(Frozen):
    """A value that is added to a record later, with its own digest."""

    digest: str = Field(default="", json_schema_extra={"readOnly": True})
    """Covers the other fields and the record's id; empty until it is saved."""

    def seal_for(self, record_id: str) -> Self:
        return self.model_copy(update={"digest": self._content_digest(record_id)})

    def has_digest_for(self, record_id: str) -> bool:
        """Whether the digest matches the content, as part of the record."""
        return self.digest == self._content_digest(record_id)

    def _content_digest(self, record_id: str) -> str:
        return _compute_digest(self.model_dump(mode="json", exclude={"digest"}) | {"record": record_id})


class Notes(Attachment):
    """The notes of the predecessor's model about its own trace, written before any takeover."""

    model: str
    prompts: str = ""
    """The version of the prompts."""
    summary: str
    structured: dict[str, FailFastTuple[Claim]]
    """The model-filled fields of the structured note; fields without content are absent."""
    stated: StatedFields = StatedFields()
    """The stated fields of the structured note; the model's values, also where the record contradicts them."""
    malformed: bool = False
    """The reply for the fields could not be read."""
    retried: Literal["", "malformed", "contradicted"] = ""
    """Reason for the second request of the fields."""
    summary_usage: Usage
    structured_usage: Usage
    """Of both calls, if there were two."""


class Review(Attachment):
    """A person's decision on a record: hand over, and how, or refuse.

    Example:
        >>> from langgraph_takeover import Review
        >>> Review(decision="approve", view="cited").decision
        'approve'
    """

    decision: Literal["approve", "refuse"] = "approve"
    view: ViewName = "structured"
    """The successor's view."""
    successor: str = ""
    """The model that should continue; empty leaves it open."""
    note: str = ""
    """The note as the person rewrote it; the structured view shows it instead of the draft."""


class EditedFile(Frozen):
    """A text file that the run edited, as the snapshot has it."""

    path: str
    """Relative to the repository."""
    sha256: str
    """Of the file itself: a secret in it is redacted in `content`."""
    content: str


class AgentWork(Frozen):
    """One agent's part of a record's events."""

    agent: str
    """Its name, with its model if it is an external agent."""
    events: int = Field(ge=0)


class ParentRecord(Frozen):
    """The record that a record's agent continued. Its events are the first ones of the record itself."""

    id: str
    digest: str
    view: str = ""
    """What the agent saw of the earlier work; empty if unknown."""
    agents: FailFastTuple[AgentWork] = ()
    """The agents of the events before the record's own, oldest first."""
    lost: str = ""
    """The earlier work that this record lacks, with the reason; empty if it has everything."""


class HandoffRecord(Frozen):
    """The durable whole of one handoff: point, snapshot, checkpoint, trace prefix, notes, review, digest.

    `digest` covers everything except itself, the notes and the review, which are added later and have their own.

    Example:
        >>> record = home.records.load("fix-1.first_validation")
        >>> record.predecessor, record.thread_id
        ('OracleModel', 'fix-1')
    """

    schema_version: Literal[10] = SCHEMA_VERSION
    id: str
    task: TaskBrief
    predecessor: str
    point: HandoffPoint
    patch: str
    """The difference between the snapshot's repository and its base commit, as the predecessor could have seen it."""
    left_out: FailFastTuple[LeftOut] = ()
    """Changes that the patch lacks, with the reason: at most 500. The snapshot has them."""
    left_out_count: int = Field(default=0, ge=0)
    """Number of all changes that the patch lacks."""
    patch_error: str = ""
    """The reason for a missing patch; empty if the patch is complete except for `left_out`."""
    snapshot: Snapshot | None
    """None if the sandbox was not saved, as for a recorded run: it can be read, but not taken over."""
    files: FailFastTuple[str] | None = None
    """The files of the snapshot's repository, relative to it; None if unknown, or too many to list."""
    edited_files: FailFastTuple[EditedFile] = ()
    """The current content of files that the run edited: text files only, source first, as far as they fit."""
    thread_id: str
    checkpoint_id: str
    trace: FailFastTuple[Event]
    created_at: str
    payload: Payload | None = None
    """The payload that a parent passes to its child, if the record was made for a delegation."""
    notes: Notes | None = None
    review: Review | None = None
    external: ExternalSession | None = None
    """The predecessor's session, if it is an external agent."""
    parent: ParentRecord | None = None
    """The record that the predecessor continued, if it continued one."""
    envelope: Envelope | None = None
    """The source's message in the current handoff, which belongs to the ledger and is never saved with the record. Without
    a handoff: the text with which the agent requested a successor."""
    digest: str = Field(default="")

    def seal(self) -> HandoffRecord:
        return self.model_copy(update={"digest": self._content_digest()})

    def verify(self) -> None:
        """Raise RecordError if the content does not match the digest."""
        if self.digest != self._content_digest():
            raise RecordError(f"record {self.id}: its content does not match its digest")
        if len(self.trace) != self.point.event_index + 1:
            raise RecordError(f"record {self.id}: its trace does not end at its handoff point")
        if self.parent and sum(each.events for each in self.parent.agents) > len(self.trace):
            raise RecordError(f"record {self.id}: its earlier agents have more events than its trace")

    def verify_attachments(self) -> None:
        """Raise RecordError if the notes or the review do not match their digests."""
        for name, added in self.attachments.items():
            if not added.has_digest_for(self.id):
                raise RecordError(
                    f"record {self.id}: {name} does not match its digest: it was changed, or belongs to another record "
                    f"(import the record again, or write it again)"
                )

    @property
    def attachments(self) -> dict[str, Attachment]:
        """The notes and the review, if any, by the names of their files."""
        both: dict[str, Attachment | None] = {NOTES_FILE: self.notes, REVIEW_FILE: self.review}
        return {name: added for name, added in both.items() if added is not None}

    @property
    def required_snapshot(self) -> Snapshot:
        """The snapshot. Raises RecordError if missing."""
        if self.snapshot is None:
            raise RecordError(f"record {self.id}: its sandbox was not saved, so it cannot be taken over")
        return self.snapshot

    def _content_digest(self) -> str:
        return _compute_digest(self.model_dump(mode="json", exclude={"digest", *_SEPARATE_FIELDS}))


def _compute_digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_request(record: HandoffRecord) -> Envelope | None:
    """Return the message with which the agent itself asked for a successor; None without one."""
    action = next((each for each in reversed(record.trace) if each.kind == "action"), None)
    if record.point.kind != "requested" or action is None or action.tool != "handoff":
        return None
    if record.trace[-1].refused:
        return None
    message = action.arguments.get("message", "").strip()
    return Envelope(message=message) if message else None


class _LoadedRecord(NamedTuple):
    """A verified record, and the identity of the files that it was loaded from."""

    files: tuple[tuple[int, ...], ...]
    record: HandoffRecord


_last_loaded: dict[Path, _LoadedRecord] = {}
"""The record that this process loaded last: one takeover asks for it several times."""


class RecordStore:
    """A directory of records: `<id>/record.json`, its notes, and the snapshot's archive."""

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
        """Save the record that `build` returns, completely or not at all; `build` may add files to the directory it gets.

        The record gets its name inside `commit_guard()`, which raises if another process may have made it meanwhile.
        """
        # Each process uses a name of its own; a partial directory of a dead process is never completed.
        partial = self.root / f".partial-{record_id}.{secrets.token_hex(4)}"
        partial.mkdir(parents=True)
        try:
            record = _redact_model(build(partial)).seal()
            write_durably(partial / RECORD_FILE, to_json(record, exclude=set(_SEPARATE_FIELDS)))
            with commit_guard():
                # Before the record is visible: a caller that finds it does not get here again.
                dead = glob.escape(f".partial-{record_id}")
                for left in {*list_matches(self.root, dead), *list_matches(self.root, f"{dead}.????????")} - {
                    partial
                }:
                    remove_tree(left)
                remove_tree(self.directory(record_id))
                partial.rename(self.directory(record_id))
        except BaseException:
            remove_tree(partial)
            raise
        sync_directory(self.root)
        return record

    def load(self, record_id: str) -> HandoffRecord:
        """Load a record with its notes, verified. Raises RecordError."""
        if not is_valid_id(record_id):
            raise RecordError(f"invalid record id: {record_id!r:.60} ({self._describe_available()})")
        path = self.directory(record_id) / RECORD_FILE
        if not path.is_file():
            raise RecordError(f"record not found: {path} ({self._describe_available()})")
        files = _identify_files(path.parent)
        kept = _last_loaded.get(path)
        if kept is not None and kept.files == files:
            return kept.record
        record = _load_file(path, HandoffRecord)
        if record.id != record_id:
            raise RecordError(
                f"{path}: contains the record {record.id}, but a record's directory has its name"
            )
        record.verify()
        found = record.model_copy(
            update={
                "notes": self._load_attachment(record_id, NOTES_FILE, Notes),
                "review": self._load_attachment(record_id, REVIEW_FILE, Review),
                "envelope": _read_request(record),
            }
        )
        found.verify_attachments()
        _last_loaded.clear()
        _last_loaded[path] = _LoadedRecord(files, found)
        return found

    def load_notes(self, record_id: str) -> Notes | None:
        """Load the notes, verified, if there are any. Raises RecordError."""
        return self.load(record_id).notes if os.path.lexists(self.directory(record_id) / NOTES_FILE) else None

    def load_review(self, record_id: str) -> Review | None:
        """Load the review, verified, if there is one. Raises RecordError."""
        return (
            self.load(record_id).review if os.path.lexists(self.directory(record_id) / REVIEW_FILE) else None
        )

    def _load_attachment(self, record_id: str, name: str, kind: type[_Kind]) -> _Kind | None:
        path = self.directory(record_id) / name
        # Only a missing name means absent: not a directory, a FIFO or a broken link.
        return _load_file(path, kind) if os.path.lexists(path) else None

    def add_review(self, record_id: str, review: Review) -> None:
        _write_attachment(self.directory(record_id) / REVIEW_FILE, record_id, review)
        (self.directory(record_id) / _REVIEW_PENDING_FILE).unlink(missing_ok=True)

    def mark_review_pending(self, record_id: str) -> None:
        """Note that the record waits for a person's decision."""
        (self.directory(record_id) / _REVIEW_PENDING_FILE).touch()

    def is_review_pending(self, record_id: str) -> bool:
        """Whether the record waits for a person's decision."""
        return (self.directory(record_id) / _REVIEW_PENDING_FILE).exists()

    def write_attachments(self, directory: Path, record: HandoffRecord) -> None:
        """Write a record's notes and review to a directory."""
        for name, added in record.attachments.items():
            _write_attachment(directory / name, record.id, added)

    def add_notes(self, record_id: str, notes: Notes) -> None:
        _write_attachment(self.directory(record_id) / NOTES_FILE, record_id, notes)

    def list_ids(self) -> tuple[str, ...]:
        return tuple(sorted(path.parent.name for path in list_matches(self.root, f"[!.]*/{RECORD_FILE}")))

    def remove_thread(self, thread: str) -> None:
        """Remove the records that were made on a thread, and their snapshots."""
        for record_id in self.list_ids():
            with suppress(RecordError):  # damaged: its thread is unknown
                if self.load(record_id).thread_id == thread:
                    set_aside(self.directory(record_id))
        for each in list_matches(self.root, f"{REMOVED_PREFIX}*"):
            remove_tree(each)

    def _describe_available(self) -> str:
        ids = self.list_ids()
        shown = ", ".join(ids[:10]) + (", …" if len(ids) > 10 else "")
        return f"known records: {shown}" if ids else "no records yet"

    def list_files(self) -> frozenset[str]:
        """List the names of all records' files: a snapshot's archive is named by its content."""
        return frozenset(path.name for path in list_matches(self.root, "[!.]*/*"))

    def list_snapshot_locations(self) -> frozenset[str] | None:
        """Return the places of all records' snapshots; None if a record cannot be read, so that they are unknown."""
        try:
            kept = [self.load(record_id).snapshot for record_id in self.list_ids()]
        except RecordError:
            return None
        return frozenset(snapshot.location for snapshot in kept if snapshot is not None)

    def remove_partial(self, older_than: float | None = None) -> int:
        """Remove partial records that a kill left, or those of that age; return their number."""
        left = list_matches(self.root, ".partial-*")
        if older_than is not None:
            left = [each for each in left if _modification_time(each) < older_than]
        for partial in left:
            remove_tree(partial)
        return len(left)


def _modification_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf  # its writer has just finished


def is_valid_id(name: object) -> bool:
    """Whether this is a valid id: the record's directory has that name."""
    return isinstance(name, str) and bool(_ID_PATTERN.fullmatch(name))


def _redact_model(value: _Kind) -> _Kind:
    """Redact what others may read; what restores a sandbox loses only known secrets."""
    if isinstance(value, HandoffRecord) and value.snapshot is not None:
        value = value.model_copy(update={"snapshot": redact_snapshot(value.snapshot)})
    content = value.model_dump(mode="json")
    if isinstance(value, HandoffRecord):
        # Thousands of names are searched as one text.
        names = content.pop("files")
        clean = redact(content) | {"id": value.id, "snapshot": redact_known_secrets(content["snapshot"])}
        content["files"] = names
        clean["files"] = redact("\0".join(names)).split("\0") if names else names
    else:
        clean = redact(content)
    return value if clean == content else type(value).model_validate(clean)


def _write_attachment(path: Path, record_id: str, attachment: Attachment) -> None:
    write_durably(path, to_json(_redact_model(attachment).seal_for(record_id)))


def to_json(value: Frozen, *, exclude: set[str] | None = None) -> str:
    """Return the JSON text of a record or one of its parts."""
    # In ASCII, because a patch or a file name may hold bytes that are not UTF-8.
    return json.dumps(value.model_dump(mode="json", exclude=exclude), indent=1)


def _identify_files(directory: Path) -> tuple[tuple[int, ...], ...]:
    """The identity of a record's files, if they exist: every write changes it, also one that keeps size and time."""
    found: list[tuple[int, ...]] = []
    for name in (RECORD_FILE, NOTES_FILE, REVIEW_FILE):
        try:
            info = (directory / name).stat()
        except OSError:
            found.append(())
        else:
            found.append((info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    return tuple(found)


def _load_file(path: Path, kind: type[_Kind]) -> _Kind:
    try:
        text = read_untrusted_file(path)
    except FileNotFoundError as error:
        missing = (
            "record not found"
            if kind is HandoffRecord
            else "a link to a file that does not exist (remove it)"
        )
        raise RecordError(f"{path}: {missing}") from error
    except OSError as error:
        raise RecordError(f"{path}: {describe_error(error)}") from error
    return parse_model(text, path, kind)


def parse_model(text: bytes, path: Path | str, kind: type[_Kind]) -> _Kind:
    """Parse a file's text. Raises RecordError, which names the file."""
    try:
        content = parse_document(text)
    except ValueError as error:
        raise RecordError(f"{path}: damaged, or not JSON: {error}") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if kind is HandoffRecord and version != SCHEMA_VERSION:
        raise RecordError(
            f"{path}: {describe_other_version(version, SCHEMA_VERSION, 'make the record again')}"
        )
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "file"
        raise RecordError(f"{path}: {field}: {first['msg']}") from error


def write_durably(path: Path, text: str | Iterable[str], *, errors: str = "surrogatepass") -> None:
    """Replace the file by a text or its pieces, so that a crash leaves either the old content or the new."""
    # Two processes may write the same file at once: the last complete one remains.
    partial = path.with_name(f".{path.name[:200]}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8", errors=errors) as file:
            file.writelines((text,) if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        error.filename = str(path)
        raise
    sync_directory(path.parent)
