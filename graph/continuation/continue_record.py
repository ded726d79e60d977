"""Continue a record with an external agent: in a plain checkout prepared for a person's terminal, or in a sandbox."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.graph.continuation.known_records import (
    IMAGES_DIRECTORY,
    NOTES_DIRECTORY,
    CreatedDirectory,
    CreatedFile,
    Manifest,
    digest_session,
    hash_tree,
    identify,
    load_known,
    remove_empty_state,
    reserve_manifest,
    save_manifest,
)
from langgraph_takeover.graph.continuation.terminal_start import (
    create_file,
    describe_existing,
    digest_text,
    list_missing_directories,
    list_session_files,
    read_model_provider,
)
from langgraph_takeover.graph.continuation.undo import STAGING_SUFFIX, undo_manifest
from langgraph_takeover.graph.usage_errors import ContinuationError
from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.agents import find_adapter
from langgraph_takeover.handoff.agents.adapter import AgentAdapter, Launch
from langgraph_takeover.handoff.agents.openings import Opening, build_record_opening
from langgraph_takeover.handoff.interop.session_records import make_replacement, move_texts
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordStore
from langgraph_takeover.handoff.records.verification import require_changes
from langgraph_takeover.nodes.context.agent_program import describe_untested_program
from langgraph_takeover.sandbox.backends.checkouts import write_checkout
from langgraph_takeover.sandbox.changes.change_report import find_file_digest
from langgraph_takeover.sandbox.changes.layers import LayerLookup, LayerStack
from langgraph_takeover.sandbox.ownership import translate_disk_errors
from langgraph_takeover.sandbox.untrusted_trees import is_directory, remove_tree

_MAX_INLINE_CHARS = 200
_MAX_OWN_CHARS = 80
_PROMPT_FILE = "prompt.md"
_READ_PROMPT = "Read the file {path} completely. It describes unfinished work in this repository and ends with your task."


class PreparedContinuation(Frozen):
    """A prepared continuation: the checkout, and the command that starts the agent in it."""

    record: str
    agent: str
    view: str
    directory: Path
    command: tuple[str, ...]
    session_id: str = ""
    """The native session that the agent resumes; empty if it starts with a prompt."""
    prompt: str
    """What the agent reads first."""
    session_files: tuple[Path, ...] = ()
    account: Mapping[str, int] = {}
    """How many events of the earlier work became what in the native session."""
    manifest: Path
    warning: str = ""
    """A sentence for the user if the agent's version is not a tested one."""


def prepare_continuation(
    home: Path,
    record_id: str,
    *,
    agent: str,
    view: str = "structured",
    directory: Path | None = None,
    program: Path | None = None,
    user_home: Path | None = None,
    allow_unisolated: bool = False,
) -> PreparedContinuation:
    """Write a record's repository to a new directory, and what another agent needs to continue there.

    Under the views `transcript` and `payload` the agent gets a native session in its own home, in new files; under the others
    a first prompt. Default directory: `NAME-continued` beside the captured repository. A record with content that this user
    did not capture into this home needs `allow_unisolated`, because its content would run as you. After an error nothing is left.

    Raises ContinuationError, UnknownAgentProgramError, UnknownViewError, RecordError, SnapshotCorruptError,
    SandboxUnavailableError and OutOfDiskError.
    """
    adapter = find_adapter(agent)
    _check_view(agent, view)
    record = RecordStore(home / "records").load(record_id)
    user_home = user_home or Path.home()
    target = _choose_directory(home, record, directory, user_home, allow_unisolated)
    executable = _find_executable(adapter, program)
    manifest_path = reserve_manifest(home, record_id)
    plan = _Plan(
        record=record,
        store=RecordStore(home / "records").directory(record_id),
        adapter=adapter,
        view=view,
        executable=executable,
        user_home=user_home,
        target=target,
        staging=target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}{STAGING_SUFFIX}"),
    )
    with _undo_on_failure(manifest_path) as save:
        opening, message, files = _create_everything(plan, save)
    session_id = opening.session.session_id if opening.session else ""
    return PreparedContinuation(
        record=record_id,
        agent=agent,
        view=view,
        directory=target,
        command=(executable, *adapter.program.terminal.fill(message, session_id or None)),
        session_id=session_id,
        prompt=opening.message,
        session_files=files,
        account=opening.account,
        manifest=manifest_path,
        warning=describe_untested_program(adapter, Path(executable)),
    )


def _check_view(agent: str, view: str) -> None:
    views.find_view(view)
    if view in views.HISTORIES and not find_adapter(agent).program.terminal.resume:
        raise ContinuationError(
            f"--view {view}: {agent} cannot resume a session that was written for it (use --view structured or trace)"
        )


class _Plan(NamedTuple):
    """The parts of a continuation, before anything is created."""

    record: HandoffRecord
    store: Path
    adapter: AgentAdapter
    view: str
    executable: str
    user_home: Path
    target: Path
    staging: Path

    @property
    def tree(self) -> Path:
        """The checkout before it gets its place."""
        return self.staging / "checkout"


def _create_everything(
    plan: _Plan, save: Callable[[Manifest], None]
) -> tuple[Opening, str, tuple[Path, ...]]:
    """Create the checkout and the session's files; return the opening, the first message and the files."""
    manifest = Manifest(
        record=plan.record.id,
        record_digest=plan.record.digest,
        home=str(plan.store.parent.parent.resolve()),
        agent=plan.adapter.name,
        view=plan.view,
        checkout=str(plan.target),
        staging=str(plan.staging),
        checkout_existed=plan.target.exists(),
    )
    save(manifest)
    with translate_disk_errors():
        plan.staging.mkdir(mode=0o700)
    manifest = manifest.model_copy(update={"staging_inode": identify(plan.staging)})
    save(manifest)
    write_checkout(plan.record.required_snapshot, plan.store, plan.tree)
    find_digest = partial(find_file_digest, LayerLookup(LayerStack(plan.tree)))
    require_changes(find_digest, plan.record.trace, f"record {plan.record.id}")
    notes = NOTES_DIRECTORY if is_directory(plan.tree / ".git") else ".takeover"
    _remove_notes(plan.tree / notes)
    launch = Launch(
        program=(plan.executable,),
        home=str(plan.user_home),
        workspace=str(plan.target),
        port=1,
        model=plan.record.predecessor or "unknown",
        provider=read_model_provider(plan.adapter.name, plan.user_home),
        message="",
    )
    opening = build_record_opening(
        _move_record(plan.record, plan.target),
        plan.view,
        plan.adapter,
        launch,
        event_directory=f"{plan.target}/{notes}/events",
    )
    message = _write_prompt(plan.tree, plan.target, notes, opening)
    files = list_session_files(plan.adapter.name, plan.user_home, opening.session)
    manifest = manifest.model_copy(
        update={
            "checkout_digest": hash_tree(plan.tree),
            "checkout_inode": identify(plan.tree),
            "task": plan.record.task.prompt,
            "own_texts": tuple(each[:_MAX_OWN_CHARS] for each in (message, opening.message)),
            "files": tuple(
                CreatedFile(path=str(path), sha256=digest_text(text)) for path, text in files.items()
            ),
            "directories": tuple(
                CreatedDirectory(path=str(path)) for path in list_missing_directories(files)
            ),
        }
    )
    save(manifest)
    _move_into_place(plan.tree, plan.target)
    plan.staging.rmdir()
    manifest = _create_session_files(files, manifest, save)
    if files:
        save(
            manifest.model_copy(update={"own_events": digest_session(files, plan.adapter.name, plan.target)})
        )
    return opening, message, tuple(files)


def _remove_notes(directory: Path) -> None:
    """Remove what an earlier continuation left; the images of the captured session stay."""
    if not is_directory(directory):
        remove_tree(directory)
        return
    for each in directory.iterdir():
        if each.name != IMAGES_DIRECTORY or not is_directory(each):
            remove_tree(each)


def _create_session_files(
    files: Mapping[Path, str], manifest: Manifest, save: Callable[[Manifest], None]
) -> Manifest:
    """Create the files of the native session and their directories; save the identity of each as soon as it exists."""
    directories: list[CreatedDirectory] = list(manifest.directories)
    for each in manifest.directories:
        try:
            Path(each.path).mkdir(mode=0o700)
        except FileExistsError:  # created by somebody else meanwhile
            directories.remove(each)
        else:
            inode = identify(Path(each.path))
            directories[directories.index(each)] = each.model_copy(update={"inode": inode})
        manifest = manifest.model_copy(update={"directories": tuple(directories)})
        save(manifest)
    for path, text in files.items():
        create_file(path, text)
    created = (each.model_copy(update={"inode": identify(Path(each.path))}) for each in manifest.files)
    manifest = manifest.model_copy(update={"files": tuple(created)})
    save(manifest)
    return manifest


def start_continuation(continuation: PreparedContinuation) -> NoReturn:
    """Replace this process by the agent, in its checkout, with this terminal and this environment."""
    os.chdir(continuation.directory)
    os.environ["PWD"] = str(continuation.directory)
    os.execv(continuation.command[0], continuation.command)


def _choose_directory(
    home: Path, record: HandoffRecord, directory: Path | None, user_home: Path, allow_unisolated: bool
) -> Path:
    known = load_known(home, record)
    origin = known if known is not None and known.repository else None
    if origin is None and not allow_unisolated:
        raise ContinuationError(
            f"record {record.id} was not captured here with this content: in a plain checkout it would run as you (use "
            "--sandbox host, or pass --allow-unisolated)"
        )
    if directory is None and origin is None:
        raise ContinuationError(f"--in: name the new directory: record {record.id} was not captured here")
    repository = Path(origin.repository) if origin else Path()
    chosen = directory or repository.with_name(f"{repository.name}-continued")
    parent = Path(os.path.realpath(chosen.parent))
    target = parent / chosen.name
    if not parent.is_dir() or not chosen.name:
        raise ContinuationError(f"--in: directory not found: {parent} (create it, or pass another --in)")
    if os.path.lexists(target) and (target.is_symlink() or not target.is_dir() or any(target.iterdir())):
        raise ContinuationError(describe_existing(home, target, user_home))
    if origin is not None and target.is_relative_to(os.path.realpath(repository)):
        raise ContinuationError(
            f"--in: {target} is inside the captured repository (pass a directory outside)"
        )
    return target


def _find_executable(adapter: AgentAdapter, program: Path | None) -> str:
    name = str(program) if program is not None else adapter.program.executable
    found = shutil.which(name)
    if found is None:
        where = f"{name}: not an executable file" if program is not None else f"{name} is not on PATH"
        raise ContinuationError(
            f"{adapter.name}: {where} (install it: {adapter.program.install}; or pass --program FILE)"
        )
    return str(Path(found).absolute())


@contextlib.contextmanager
def _undo_on_failure(path: Path) -> Iterator[Callable[[Manifest], None]]:
    """Yield a function that saves the manifest; after any error or interruption, remove everything that it names."""
    saved: list[Manifest] = []

    def save(manifest: Manifest) -> None:
        save_manifest(path, manifest)
        saved.append(manifest)

    try:
        yield save
    except BaseException:
        if saved:
            undo_manifest(saved[-1], [], [])
        path.unlink(missing_ok=True)
        remove_empty_state()
        raise


def _move_record(record: HandoffRecord, target: Path) -> HandoffRecord:
    """Return a record whose texts name the checkout instead of the sandbox's workspace."""
    replace = make_replacement({record.task.workspace: str(target)}) if record.task.workspace else str
    task = record.task.model_copy(update={"prompt": replace(record.task.prompt), "workspace": str(target)})
    external = record.external and record.external.model_copy(
        update={
            name: tuple(map(replace, getattr(record.external, name)))
            for name in ("running", "pending", "withdrawn_files")
        }
    )
    return record.model_copy(
        update={"trace": move_texts(record.trace, replace), "task": task, "external": external}
    )


def _write_prompt(staging: Path, target: Path, notes: str, opening: Opening) -> str:
    """Write the files that the agent reads to the checkout, where git does not see them; return its first message."""
    for name, text in opening.event_files.items():
        create_file(staging / Path(name).relative_to(target), text)
    if len(opening.message) <= _MAX_INLINE_CHARS and "\n" not in opening.message:
        return opening.message
    create_file(staging / notes / _PROMPT_FILE, opening.message)
    return _READ_PROMPT.format(path=f"{notes}/{_PROMPT_FILE}")


def _move_into_place(staging: Path, target: Path) -> None:
    try:
        staging.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise ContinuationError(
                f"--in: {target} exists already (pass a new directory: --in DIR)"
            ) from error
        raise
