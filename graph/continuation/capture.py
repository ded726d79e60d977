"""Capture the session of an external agent, and the repository as it is now, as a handoff record."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from langgraph_takeover.base.failures import clean_up
from langgraph_takeover.base.untrusted_input import read_untrusted_head
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.graph.continuation.known_records import (
    IMAGES_DIRECTORY,
    NOTES_DIRECTORY,
    KnownRecord,
    Parent,
    ensure_private_directory,
    find_manifest_of,
    find_parent,
    require_state_directory,
    save_known,
)
from langgraph_takeover.graph.continuation.user_repository import Repository, find_repository
from langgraph_takeover.graph.continuation.working_tree import WorkingCopy, escape_name, select_secret_files
from langgraph_takeover.graph.usage_errors import CaptureError
from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.agents.session_files import (
    AGENTS,
    LATEST,
    SessionFile,
    find_prompt,
    open_session_file,
)
from langgraph_takeover.handoff.interop.session_records import (
    find_assigned_secrets,
    find_repository_session,
    infer_reads,
    is_inside,
    join_task,
    list_handoff_points,
    list_other_sessions,
    match_changes,
    move_session,
    read_session,
    read_session_directory,
)
from langgraph_takeover.handoff.names import AGENT_NAMES
from langgraph_takeover.handoff.readers import describe_left_out, describe_skipped_lines
from langgraph_takeover.handoff.records.record import (
    ExternalSession,
    HandoffRecord,
    RecordStore,
    TaskBrief,
)
from langgraph_takeover.handoff.shell.syntax import is_windows_path
from langgraph_takeover.handoff.text.media import read_images
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, Trace, compute_differences
from langgraph_takeover.handoff.trace.file_kinds import is_generated
from langgraph_takeover.nodes.records import (
    build_record_id,
    compute_patch_fields,
    list_base_directories,
    read_edited_files,
)
from langgraph_takeover.sandbox import remove_stale_resources, restore
from langgraph_takeover.sandbox.backends.base import make_restore_spec, require_isolated_backend
from langgraph_takeover.sandbox.backends.checkouts import (
    CHECKOUT_WORKSPACE,
    TreeEntry,
    TreeSnapshot,
    create_scratch_directory,
    measure,
    snapshot_tree,
)
from langgraph_takeover.sandbox.interface import BackendName, Sandbox, Snapshot
from langgraph_takeover.sandbox.repository import MAX_LEFT_OUT, LeftOut, head_commit, list_files
from langgraph_takeover.sandbox.snapshots.transfer import select_workspace
from langgraph_takeover.sandbox.untrusted_trees import list_matches

_STALE_S = 24 * 3600
_LARGE_BYTES = 100 * 1000**2
_CHANGED = "changed while it was read; the snapshot has what was read"
_MAX_ENV_FILES, _MAX_ENV_BYTES = 20, 1 << 16
_PATCHED_PATH = re.compile(r"^diff --git a/(.+) b/\1$", re.MULTILINE)


class CaptureProgress(NamedTuple):
    """How far a capture is."""

    stage: str
    files: int = 0
    done_bytes: int = 0
    total_bytes: int = 0
    """Bytes that are read, holes excluded."""
    large: tuple[tuple[str, int, int], ...] = ()
    """Files of 100 MB or more: path, size, and size without holes."""


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
    kept_tracked: tuple[str, ...] = ()
    """Tracked files that `exclude` names: they are in the snapshot, because a pattern excludes other files only."""
    unread_tracked: tuple[str, ...] = ()
    """Tracked files that cannot be read: the record lacks the changes to them, and the snapshot has what git has."""
    history_sources: tuple[str, ...] = ()
    """Git directories and object stores outside the repository that the snapshot has in its own."""
    skipped_lines: str = ""
    """Says how many lines of the session's file are damaged, and so not in the record."""
    version_warning: str = ""
    """Names the agent's version if it is not a tested one."""
    others: tuple[SessionFile, ...] = ()
    """Other sessions of the last day in the repository, of any agent, the newest first."""
    left_out: str = ""
    """The part of the session that the user withdrew and the record lacks, and the files that it changed."""


def capture_session(
    home: Path,
    agent: str,
    *,
    repository: Path,
    session: str | Path = LATEST,
    user_home: Path | None = None,
    backend: BackendName | None = None,
    exclude: Sequence[str] = (),
    allow_changing: bool = False,
    on_progress: Callable[[CaptureProgress], None] | None = None,
) -> Capture:
    """Save an agent's session and its repository as a record in `home`; neither is changed.

    `session` is an id, its unique beginning, the path of its file, or `latest`: the newest session that ran in
    the repository. A named session of Windows counts as one of this repository. Sessions are in `user_home`, by default the
    user's own. The record has the repository at `/testbed`, and the session's paths with it.
    Secrets in the session are redacted; the snapshot holds every file as it is, ignored ones included. A linked worktree
    becomes a repository of its own. What cannot be read, and pipes, sockets and devices, are in the record's `left_out`.

    `exclude` has patterns in the syntax of `.gitignore`, for untracked and ignored files. A file that changes while it is
    read is an error; with `allow_changing` it is saved as it was read, and named. Default back end: `host`.
    Raises CaptureError, ContinuationError, SessionError, TraceError, SandboxUnavailableError and OutOfDiskError.
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
        if session == LATEST or not is_windows_path(directory):
            _require_inside(trace, directory, found.root, source.id)
        if trace.pending and (prompt := find_prompt(source, user_home or Path.home())):
            trace = trace.model_copy(update={"pending": (*trace.pending, f"the agent waits at a {prompt}")})
        images, trace = _read_images(path, trace)
        earlier = find_manifest_of(found.root)
        if earlier is not None:
            task = join_task(earlier.task, trace.task, earlier.own_texts)
            trace = trace.model_copy(update={"task": task})
        store = RecordStore(ensure_private_directory(home) / "records")
        store.remove_partial(datetime.now(UTC).timestamp() - _STALE_S)
        parent = find_parent(home, earlier, trace.events) if earlier else None
        builder = _CaptureBuilder(
            found,
            source,
            trace,
            chosen,
            parent,
            images=images,
            exclude=exclude,
            allow_changing=allow_changing,
            on_progress=on_progress,
        )

        def build(directory: Path) -> HandoffRecord:
            record = builder.build(directory)
            if _identify(path) != before:
                raise CaptureError(
                    f"session {source.id} changed meanwhile (let {agent} finish its turn, then try again)"
                )
            return record

        record = store.create(builder.record_id, build)
        save_known(home, record, KnownRecord(repository=str(found.root), agent=agent))
    others = list_other_sessions(source, found.root, user_home or Path.home(), time.time())
    return builder.describe(record, store.directory(record.id)).model_copy(update={"others": tuple(others)})


def _read_images(path: Path, trace: Trace) -> tuple[Mapping[str, bytes], Trace]:
    """Return the images that a session shows, by name, and its trace, whose texts name their files."""
    texts = [trace.task, *(event.text for event in trace.events)]
    images, names = read_images(path, texts, f"{NOTES_DIRECTORY}/{IMAGES_DIRECTORY}")
    if not images:
        return images, trace
    pattern = re.compile("|".join(map(re.escape, names)))

    def replace(text: str) -> str:
        return pattern.sub(lambda found: names[found[0]], text)

    events = (event.model_copy(update={"text": replace(event.text)}) for event in trace.events)
    return images, trace.model_copy(update={"task": replace(trace.task), "events": tuple(events)})


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
        *,
        images: Mapping[str, bytes],
        exclude: Sequence[str],
        allow_changing: bool,
        on_progress: Callable[[CaptureProgress], None] | None,
    ) -> None:
        self._repository = repository
        self._source = source
        self._started_in = trace.workspace
        self._backend = backend
        self._images = images
        self._exclude = exclude
        self._allow_changing = allow_changing
        self._on_progress = on_progress or (lambda progress: None)
        self._kept_tracked: tuple[str, ...] = ()
        self._unread_tracked: tuple[str, ...] = ()
        self._history_sources: tuple[str, ...] = ()
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
        saved, left_out = self._save_files(directory)
        snapshot = saved.snapshot
        contents = select_workspace(snapshot, saved.contents).files
        self._files = tuple(sorted(contents))
        self._on_progress(CaptureProgress("comparing with the commit"))
        with _open_snapshot(snapshot, directory, self._backend) as sandbox:
            if head_commit(sandbox) != self._repository.head:
                raise CaptureError(f"{self._repository.root}: a commit was made meanwhile (try again)")
            directories = list_base_directories(sandbox, self._trace.events)
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
                point=select_point(self.points, is_at_work=bool(trace.pending)),
                # A session's changes are inferred, and may be in the commit.
                **_add_unsaved(compute_patch_fields(sandbox, self._repository.head, ()), left_out),
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

    def _save_files(self, directory: Path) -> tuple[TreeSnapshot, tuple[LeftOut, ...]]:
        with create_scratch_directory("capture") as scratch:
            inside = PurePosixPath(NOTES_DIRECTORY, IMAGES_DIRECTORY).relative_to(".git")
            images = {f"{inside}/{name}": content for name, content in self._images.items()}
            copy = WorkingCopy(self._repository, scratch, self._exclude, images)
            self._kept_tracked, self._unread_tracked = copy.kept_tracked, copy.unread_tracked
            self._history_sources = copy.sources
            files = [each for each in copy.listing.entries if each.kind == "file"]
            large = [(each.path, *_sizes(each)) for each in files if each.item.info.st_size >= _LARGE_BYTES]
            progress = CaptureProgress(
                "saving files",
                files=len(files),
                total_bytes=copy.listing.count_bytes(),
                large=tuple(sorted(large, key=lambda each: -each[1])),
            )
            self._on_progress(progress)
            done = 0

            def report(size: int) -> None:
                nonlocal done
                done += size
                self._on_progress(progress._replace(done_bytes=min(done, progress.total_bytes)))

            saved = snapshot_tree(
                self._repository.root,
                copy.listing,
                copy.list_all,
                directory,
                backend=self._backend,
                owner="capture",
                may_change=lambda path: self._allow_changing and ".git" not in path.split("/"),
                on_bytes=report,
            )
            changed = (LeftOut(path=escape_name(path), reason=_CHANGED) for path in saved.changed)
            return saved, (*copy.list_left_out(), *changed)

    def describe(self, record: HandoffRecord, directory: Path) -> Capture:
        assert record.snapshot is not None
        known = {path for path in compute_differences(record.trace) if not path.startswith("/")}
        known.update(self._trace.withdrawn_files)
        patched = dict.fromkeys(_PATCHED_PATH.findall(record.patch))
        adapter, version = ADAPTERS.get(self._source.agent), self._trace.agent_version
        return Capture(
            record=record,
            directory=directory,
            repository=self._repository.root,
            points=self.points,
            snapshot_bytes=(directory / record.snapshot.location).stat().st_size,
            later_files=tuple(path for path in patched if path not in known and not is_generated(path)),
            secret_files=select_secret_files(self._files),
            patch_error=record.patch_error,
            kept_tracked=self._kept_tracked,
            unread_tracked=self._unread_tracked,
            history_sources=self._history_sources,
            skipped_lines=describe_skipped_lines(self._trace),
            version_warning=adapter.program.describe_untested(adapter.name, version) if adapter else "",
            left_out=describe_left_out(self._trace),
        )

    def _describe_session(self, trace: Trace) -> ExternalSession:
        return ExternalSession(
            agent=self._source.agent,
            version=trace.agent_version[:60],
            session_id=self._source.id,
            workspace=self._started_in,
            running=trace.running,
            pending=trace.pending,
            withdrawn_files=trace.withdrawn_files,
            unknown_forms=trace.unknown_forms,
        )

    def _find_secrets(self, events: tuple[Event, ...]) -> tuple[str, ...]:
        """List the secrets that the session's outputs and the repository's `.env` files assign to variables."""
        texts = [event.text for event in events if event.kind == "observation"]
        for path in list_matches(self._repository.root, ".env*")[:_MAX_ENV_FILES]:
            with contextlib.suppress(OSError):
                texts.append(read_untrusted_head(path, _MAX_ENV_BYTES).decode(errors="replace"))
        return tuple(dict.fromkeys(find_assigned_secrets(texts)))


def select_point(points: tuple[HandoffPoint, ...], *, is_at_work: bool = False) -> HandoffPoint:
    """Return the detected point at the end of a session; without one, the end itself."""
    last = points[-1]
    at_end = [each for each in points if each.event_index == last.event_index and each.kind != "requested"]
    if at_end:
        return at_end[-1]
    place = "in the middle of the agent's work" if is_at_work else "at the end of the session"
    return last.model_copy(update={"detail": f"captured {place}"})


def _sizes(entry: TreeEntry) -> tuple[int, int]:
    return entry.item.info.st_size, measure(entry)


def _add_unsaved(fields: dict[str, Any], left_out: tuple[LeftOut, ...]) -> dict[str, Any]:
    """Return a record's fields about its patch with the files that the snapshot lacks, before the others."""
    known = {each.path for each in left_out}
    others = tuple(each for each in fields.get("left_out", ()) if each.path not in known)
    count = fields.get("left_out_count", 0) - len(fields.get("left_out", ())) + len(others) + len(left_out)
    return {**fields, "left_out": (*left_out, *others)[:MAX_LEFT_OUT], "left_out_count": count}


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
