"""Capture the session of an external agent, and the repository as it is now, as a handoff record."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from langgraph_takeover.graph.continuation.files import (
    KnownRecord,
    ensure_private_directory,
    find_manifest_of,
    require_state_directory,
    save_known,
)
from langgraph_takeover.graph.continuation.parents import Parent, find_parent
from langgraph_takeover.graph.continuation.repository import Repository, find_repository
from langgraph_takeover.graph.errors import CaptureError
from langgraph_takeover.handoff.agent_names import AGENT_NAMES
from langgraph_takeover.handoff.interop.recordings import infer_reads, list_handoff_points
from langgraph_takeover.handoff.interop.sessions import (
    find_assigned_secrets,
    find_repository_session,
    is_inside,
    join_task,
    match_changes,
    move_session,
    read_session,
    read_session_directory,
)
from langgraph_takeover.handoff.readers import describe_left_out, describe_skipped_lines
from langgraph_takeover.handoff.readers.external.session_files import (
    AGENTS,
    LATEST,
    SessionFile,
    open_session_file,
)
from langgraph_takeover.handoff.records.record import (
    ExternalSession,
    HandoffRecord,
    RecordStore,
    TaskBrief,
)
from langgraph_takeover.handoff.text.files import read_untrusted_head
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, Trace, compute_differences
from langgraph_takeover.handoff.trace.file_kinds import is_generated
from langgraph_takeover.nodes.records import build_record_id, compute_patch_fields, read_edited_files
from langgraph_takeover.sandbox import remove_stale_resources, restore
from langgraph_takeover.sandbox.backends.checkouts import CHECKOUT_WORKSPACE, snapshot_directory
from langgraph_takeover.sandbox.backends.selection import make_restore_spec, require_isolated_backend
from langgraph_takeover.sandbox.interface import BackendName, Frozen, Sandbox, Snapshot
from langgraph_takeover.sandbox.repository.patches import (
    base_directories,
    head_commit,
    list_files,
)
from langgraph_takeover.sandbox.snapshots.contents import read_contents
from langgraph_takeover.sandbox.storage.failures import clean_up
from langgraph_takeover.sandbox.storage.removal import list_matches

_STALE_S = 24 * 3600
_MAX_ENV_FILES, _MAX_ENV_BYTES = 20, 1 << 16
_PATCHED_PATH = re.compile(r"^diff --git a/(.+) b/\1$", re.MULTILINE)
_SECRET_FILE = re.compile(
    r"(?:^|/)(?:\.env(?:\.[\w-]+)?|[^/]*\.(?:pem|p12|pfx|key)|id_(?:rsa|ed25519|ecdsa)|\.netrc|\.npmrc)$"
)
_HARMLESS_FILE = re.compile(r"\.(?:example|sample|template|dist)$")


class Capture(Frozen):
    """A captured session: its record, and what a person should know about it."""

    record: HandoffRecord
    directory: Path
    """Directory of the record."""
    repository: Path
    points: tuple[HandoffPoint, ...]
    """Every handoff point of the session, the end included."""
    snapshot_bytes: int
    later_files: tuple[str, ...]
    """Files that differ from the commit, although no event of the session changed them."""
    secret_files: tuple[str, ...]
    """Files of the snapshot that usually hold secrets. A snapshot has every file as it is."""
    patch_error: str = ""
    """The reason why the record has no patch."""
    skipped_lines: str = ""
    """Says how many lines of the session's file are damaged, and so not in the record."""
    left_out: str = ""
    """Says what is not in the record because the user went back in the session, and which files that changed."""


def capture_session(
    home: Path,
    agent: str,
    *,
    repository: Path,
    session: str = LATEST,
    user_home: Path | None = None,
    backend: BackendName | None = None,
) -> Capture:
    """Save an agent's session and its repository as a record in `home`; neither is changed.

    `session` is an id, its unique beginning, or `latest`: the newest session that ran in the repository. The session is in
    `user_home`, by default the user's own. The record has the repository at `/testbed`, and the session's paths with it.
    Secrets in the session are redacted; the snapshot holds every file as it is, ignored ones included.
    Default back end: `host`. Raises CaptureError, ContinuationError, SessionError, TraceError, SandboxUnavailableError and
    OutOfDiskError.
    """
    if agent not in AGENTS:
        reason = "keeps no sessions that can be captured" if agent in AGENT_NAMES else "is not known"
        raise CaptureError(f"--agent: {agent!r:.60} {reason} (use {', '.join(AGENTS)})")
    chosen = backend or require_isolated_backend()
    found = find_repository(repository)
    _require_outside(home, found)
    require_state_directory()
    source = find_repository_session(agent, session, found.root, user_home or Path.home())
    with open_session_file(source, user_home or Path.home()) as path:
        before = _identify(path)
        directory = source.directory or read_session_directory(path)
        trace = read_session(path, agent, _select_directory(directory, found.root))
        _require_inside(trace, directory, found.root, source.id)
        earlier = find_manifest_of(found.root)
        if earlier is not None:
            task = join_task(earlier.task, trace.task, earlier.own_texts)
            trace = trace.model_copy(update={"task": task})
        store = RecordStore(ensure_private_directory(home) / "records")
        store.remove_partial(datetime.now(UTC).timestamp() - _STALE_S)
        parent = find_parent(home, earlier, trace.events) if earlier else None
        builder = _CaptureBuilder(found, source, trace, chosen, parent)

        def build(directory: Path) -> HandoffRecord:
            record = builder.build(directory)
            if _identify(path) != before:
                raise CaptureError(
                    f"session {source.id} changed meanwhile (let {agent} finish its turn, then try again)"
                )
            return record

        record = store.create(builder.record_id, build)
        save_known(home, record, KnownRecord(repository=str(found.root), agent=agent))
    return builder.describe(record, store.directory(record.id))


def _select_directory(directory: str, root: Path) -> str:
    """The directory of a session's relative paths: its own in the repository, or the repository below it; else empty."""
    if is_inside(directory, root):
        return directory
    return str(root) if directory.startswith("/") and is_inside(str(root), Path(directory)) else ""


def _require_inside(trace: Trace, directory: str, root: Path, session: str) -> None:
    """Raise CaptureError unless a session ran in the repository, or began above it and worked in it."""
    began_elsewhere = not is_inside(directory, root)
    if is_inside(trace.workspace, root) and (not began_elsewhere or _works_in(trace, root)):
        return
    if not (place := directory if began_elsewhere else trace.workspace):
        raise CaptureError(f"session {session} does not say where it ran (pass another --session)")
    raise CaptureError(
        f"session {session} ran in {place:.300}, not in {root} (pass --repository {place:.300}, or another --session)"
    )


def _works_in(trace: Trace, root: Path) -> bool:
    """Whether a call of a session changed a file of the repository, or names its directory."""
    return any(
        any(not change.path.startswith("/") for change in event.changes)
        or any(str(root) in value for value in event.arguments.values())
        for event in trace.events
    )


def _require_outside(home: Path, repository: Repository) -> None:
    if home.resolve().is_relative_to(repository.root.resolve()):
        raise CaptureError(
            f"--out: {home}: inside the repository, which would contain its own records (pass a directory outside)"
        )


def _identify(path: Path) -> tuple[int, ...]:
    info = path.stat()
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)


class _CaptureBuilder:
    """Builds the record of one capture in the directory that the record store provides."""

    def __init__(
        self,
        repository: Repository,
        source: SessionFile,
        trace: Trace,
        backend: BackendName,
        parent: Parent | None,
    ) -> None:
        self._repository = repository
        self._source = source
        self._started_in = trace.workspace
        self._backend = backend
        self._parent = parent
        self._trace = move_session(trace, repository.root, CHECKOUT_WORKSPACE)
        if parent is not None:
            self._trace = parent.extend(self._trace)
        self._files: tuple[str, ...] = ()
        now = datetime.now(UTC)
        name = f"{source.agent}-{source.id[:8]}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        self.record_id = build_record_id(name, HandoffPoint(kind="requested", event_index=0, detail=""))
        self.record_id = self.record_id.removesuffix(".requested")
        self.points: tuple[HandoffPoint, ...] = ()

    def build(self, directory: Path) -> HandoffRecord:
        snapshot = snapshot_directory(
            self._repository.root, directory, backend=self._backend, owner="capture"
        )
        contents = read_contents(snapshot, directory).files
        self._files = tuple(sorted(contents))
        with _open_snapshot(snapshot, directory, self._backend) as sandbox:
            if head_commit(sandbox) != self._repository.head:
                raise CaptureError(f"{self._repository.root}: a commit was made meanwhile (try again)")
            directories = base_directories(sandbox)
            trace = self._trace.model_copy(
                update={
                    "base_directories": directories,
                    "events": match_changes(self._trace.events, contents),
                }
            )
            self.points = list_handoff_points(trace)
            events = tuple(infer_reads(trace.events, trace.workspace))
            task = TaskBrief(
                id=f"{self._source.agent}-{self._source.id}",
                prompt=trace.task,
                base_commit=self._repository.head,
                base_directories=directories,
                workspace=CHECKOUT_WORKSPACE,
            )
            record = HandoffRecord(
                id=self.record_id,
                task=task,
                predecessor=trace.model or self._source.agent,
                point=select_point(self.points),
                # A session's changes are inferred, and may be in the commit.
                **compute_patch_fields(sandbox, self._repository.head, ()),
                snapshot=snapshot,
                files=list_files(sandbox),
                edited_files=read_edited_files(sandbox, events, task),
                thread_id="",
                checkpoint_id="",
                trace=events,
                created_at=datetime.now(UTC).isoformat(timespec="seconds"),
                external=self._describe_session(trace),
                parent=self._parent.reference if self._parent else None,
            )
        return _redact_record(record, self._find_secrets(events))

    def describe(self, record: HandoffRecord, directory: Path) -> Capture:
        assert record.snapshot is not None
        known = {path for path in compute_differences(record.trace) if not path.startswith("/")}
        known.update(self._trace.withdrawn_files)
        patched = dict.fromkeys(_PATCHED_PATH.findall(record.patch))
        return Capture(
            record=record,
            directory=directory,
            repository=self._repository.root,
            points=self.points,
            snapshot_bytes=(directory / record.snapshot.location).stat().st_size,
            later_files=tuple(path for path in patched if path not in known and not is_generated(path)),
            secret_files=tuple(
                path
                for path in self._files
                if _SECRET_FILE.search(path)
                and not _HARMLESS_FILE.search(path)
                and not path.startswith(".git/")
            ),
            patch_error=record.patch_error,
            skipped_lines=describe_skipped_lines(self._trace),
            left_out=describe_left_out(self._trace),
        )

    def _describe_session(self, trace: Trace) -> ExternalSession:
        return ExternalSession(
            agent=self._source.agent,
            version=trace.agent_version[:60],
            session_id=self._source.id,
            workspace=self._started_in,
            running=trace.running,
            withdrawn_files=trace.withdrawn_files,
        )

    def _find_secrets(self, events: tuple[Event, ...]) -> tuple[str, ...]:
        """List the secrets that the session's outputs and the repository's `.env` files assign to variables."""
        texts = [event.text for event in events if event.kind == "observation"]
        for path in list_matches(self._repository.root, ".env*")[:_MAX_ENV_FILES]:
            with contextlib.suppress(OSError):
                texts.append(read_untrusted_head(path, _MAX_ENV_BYTES).decode(errors="replace"))
        return tuple(dict.fromkeys(find_assigned_secrets(texts)))


def select_point(points: tuple[HandoffPoint, ...]) -> HandoffPoint:
    """Return the detected point at the end of a session; without one, the end itself."""
    last = points[-1]
    at_end = [each for each in points if each.event_index == last.event_index and each.kind != "requested"]
    if at_end:
        return at_end[-1]
    return last.model_copy(update={"detail": "captured at the end of the session"})


@contextlib.contextmanager
def _open_snapshot(snapshot: Snapshot, store: Path, backend: BackendName) -> Iterator[Sandbox]:
    owner = f"capture-{secrets.token_hex(4)}"
    spec = make_restore_spec(snapshot, backend, owner)
    with clean_up(lambda: remove_stale_resources(backend, owner)), restore(snapshot, store, spec) as sandbox:
        yield sandbox


def _redact_record(record: HandoffRecord, known_secrets: tuple[str, ...]) -> HandoffRecord:
    """Redact secrets that neither look like a key nor are in this process's environment."""
    if not known_secrets:
        return record
    content = record.model_dump(mode="json")
    kept = {name: content[name] for name in ("id", "snapshot", "files")}
    return HandoffRecord.model_validate(redact(content, known_secrets) | kept)
