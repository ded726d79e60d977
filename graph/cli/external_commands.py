"""The commands for a person who works with external agents: capture a session, continue it with another agent, undo."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from typer import Option

from langgraph_takeover.graph.cli.continue_command import CONTINUE_EPILOG, continue_
from langgraph_takeover.graph.cli.handoff_options import (
    UnisolatedOption,
    UsageError,
    print_safely,
    print_table,
)
from langgraph_takeover.graph.cli.record_ids import (
    MAX_SHOWN,
    AgentHomeOption,
    RecordArgument,
    find_record,
    list_some,
    print_removal,
    report_continuation_errors,
    show_progress,
    show_status,
    suggest_command,
)
from langgraph_takeover.handoff.names import HOME_VARIABLE, USER_HOME

if TYPE_CHECKING:
    from langgraph_takeover.graph.continuation.capture import Capture
    from langgraph_takeover.handoff.trace.events import HandoffPoint
    from langgraph_takeover.sandbox.interface import BackendName

_CAPTURE_EPILOG = """
Examples:
  handoff capture
  handoff capture --agent claude-code
  handoff capture --agent codex --session 019aa3 --repository ../shop
  handoff capture --agent codex --exclude node_modules/ --exclude '*.img'
      --allow-changing

Agents: codex, claude-code, qwen-code, opencode, gemini-cli, pi, copilot-cli,
kimi-code, aider. A FILE needs --agent. --exclude has patterns of .gitignore.

Saves a session and the repository, with uncommitted, untracked and ignored
files, as a record. Both are only read. What cannot be read is left out and
named. Secrets in the session are redacted; the snapshot holds files unchanged.

Exit codes: 0 done, 2 usage, 3 session, sandbox or snapshot failed, 4 disk full,
130 interrupted.
"""
_DISCARD_EPILOG = """
Examples:
  handoff discard RECORD
  handoff discard RECORD --force    # the agent has changed its copy

With --force, the continuations of the record stay, and cannot be undone.

Exit codes: 0 done, 2 usage, 3 the record is damaged, or something was left, 130
interrupted.
"""
_APPLY_EPILOG = """
Examples:
  handoff apply RECORD
  handoff apply RECORD --repository ../shop --partial

Applies the agents' changes since the record that was captured here. Files that
you have changed, too, are merged by lines. With a conflict, nothing is written.
Index and commits stay as they are.

Exit codes: 0 done, 2 usage, 3 conflicts, or a record is damaged, 4 disk full,
130 interrupted.
"""


def capture(
    agent: Annotated[
        str | None,
        Option(
            help="Agent of the session.",
            show_default="that of the newest session here",
        ),
    ] = None,
    session: Annotated[
        str,
        Option(help="Id, its unique beginning, ./FILE or latest."),
    ] = "latest",
    repository: Annotated[
        Path, Option(help="Repository, or a directory in it.", show_default="current directory")
    ] = Path(),
    home: Annotated[
        Path,
        Option(
            "--out",
            "--home",
            envvar=HOME_VARIABLE,
            help="Home for the records.",
            show_default=str(USER_HOME),
        ),
    ] = USER_HOME,
    sandbox: Annotated[
        str | None,
        Option("--sandbox", help="Back end of the snapshot: host or process.", show_default="host"),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        Option(
            help="Leave out files that git does not track (repeatable).",
            metavar="PATTERN",
        ),
    ] = None,
    allow_changing: Annotated[
        bool,
        Option("--allow-changing", help="Save files that change meanwhile, and name them."),
    ] = False,
    allow_unisolated: UnisolatedOption = False,
) -> None:
    """Capture an agent's session and its repository as a record."""
    from langgraph_takeover.graph.continuation.capture import capture_session

    if sandbox not in (None, "host", "process"):
        problem = "cannot capture" if sandbox == "docker" else "unknown back end"
        cure = "; continue has --sandbox docker --image NAME" if sandbox == "docker" else ""
        raise UsageError(f"--sandbox: {problem} {sandbox!r:.40} (use host or process{cure})")
    if sandbox == "process" and not allow_unisolated:
        raise UsageError(
            "--sandbox process would run git on the repository as you, with your files and your network (use host, or "
            "pass --allow-unisolated)"
        )
    with report_continuation_errors():
        if agent is None:
            agent = _choose_agent(repository, session)
        with show_progress("reading the session") as show:
            done = capture_session(
                home.expanduser(),
                agent,
                repository=repository,
                session=Path(session) if "/" in session else session,
                backend=cast("BackendName | None", sandbox),
                exclude=exclude or (),
                allow_changing=allow_changing,
                on_progress=show,
            )
    _print_capture(done, home)


def _choose_agent(repository: Path, session: str) -> str:
    """Return the agent of the newest session in a repository."""
    from langgraph_takeover.graph.continuation.user_repository import find_repository
    from langgraph_takeover.handoff.interop.session_records import list_repository_sessions

    if "/" in session:
        raise UsageError("--agent: name the agent of the session's file, such as --agent codex")
    chosen = list_repository_sessions(session, find_repository(repository).root, Path.home())[0]
    print_safely(f"agent     {chosen.agent}, which has the newest session here")
    return chosen.agent


def _print_capture(done: Capture, home: Path) -> None:
    from rich.filesize import decimal

    from langgraph_takeover.handoff.records.record_facts import format_left_out, is_unsaved, list_chain_lines
    from langgraph_takeover.handoff.text.media import count_missing_images
    from langgraph_takeover.handoff.trace.events import describe_unknown_forms

    record = done.record
    assert record.external is not None
    version = f" {record.external.version}" if record.external.version else ""
    print_safely(f"record    {record.id}")
    print_safely(
        f"session   {record.external.session_id}, {record.external.agent}{version}, {len(record.trace)} events"
    )
    if warning := done.version_warning:
        print_safely(f"warning   {warning}")
    for number, line in enumerate(list_chain_lines(record)):
        print_safely(f"{'' if number else 'chain':<10}{line}")
    task = " ".join(record.task.prompt.split())
    print_safely(f"task      {task[:100]}{'…' if len(task) > 100 else ''}")
    print_safely(
        f"snapshot  {decimal(done.snapshot_bytes)} of {done.repository}, commit {record.task.base_commit[:12]} and its changes"
    )
    print_safely(f"saved in  {done.directory}\n")
    print_table(
        ("point", "event", "cause"),
        [(f"{each.kind}{' *' if each == record.point else ''}", f"e{each.event_index}", each.detail[:90])
         for each in _with_chosen(done)],
    )  # fmt: skip
    print_safely("* the record is at this point\n")
    if record.external.pending:
        print_safely("The session is in the middle of the agent's work. Open:")
        for each in record.external.pending[:MAX_SHOWN]:
            print_safely(f"  {each[:160]}")
    for command in record.external.running[:MAX_SHOWN]:
        print_safely(f"Left running in the background: {' '.join(command.split())[:160]}")
    for session in done.others[:MAX_SHOWN]:
        minutes = int(max(time.time() - session.modified, 0) // 60)
        age = f"{minutes} minutes" if minutes < 120 else f"{minutes // 60} hours"
        print_safely(f"Another recent session here: {session.id}, {session.agent}, last written {age} ago.")
    if done.later_files:
        print_safely(f"Changed outside the session: {list_some(done.later_files)}.")
    if done.secret_files:
        print_safely(
            f"The snapshot holds files that usually contain secrets: {list_some(done.secret_files)}. Keep it private."
        )
    if done.skipped_lines:
        print_safely(f"The session's file is damaged: {done.skipped_lines}.")
    if images := count_missing_images(record.task.prompt):
        print_safely(
            f"The task names {images} image{'' if images == 1 else 's'}, whose content is not in the record."
        )
    if unknown := describe_unknown_forms(record.external.unknown_forms):
        print_safely(f"Not understood: {unknown}. Their effects and results are unknown.")
    if done.left_out:
        print_safely(f"The user went back in the session: {done.left_out}.")
    unsaved = [each for each in record.left_out if is_unsaved(each)]
    for line in format_left_out(unsaved, len(unsaved), "Left out"):
        print_safely(f"{line}.")
    saved = [each for each in record.left_out if not is_unsaved(each)]
    for line in format_left_out(saved, record.left_out_count - len(unsaved)):
        print_safely(f"{line}. The snapshot has it.")
    if done.history_sources:
        print_safely(f"The snapshot has the history of {list_some(done.history_sources)}.")
    if done.unread_tracked:
        print_safely(
            f"Warning: git tracks {list_some(done.unread_tracked)}, which cannot be read: the record, its patch and its "
            "snapshot lack every change to it. Make it readable and capture again."
        )
    if done.kept_tracked:
        print_safely(f"Not excluded, because git tracks it: {list_some(done.kept_tracked)}.")
    if done.patch_error:
        print_safely(f"The record has no patch: {done.patch_error}. The snapshot is complete.")
    other = "claude-code" if record.external.agent == "codex" else "codex"
    print_safely(f"Next: {suggest_command(home, 'continue', record.id, '--agent', other)}")
    print_safely(f"To remove it: {suggest_command(home, 'discard', record.id)}")


def _with_chosen(done: Capture) -> list[HandoffPoint]:
    """The points, the record's own last and under its own description."""
    chosen = done.record.point
    return [
        each for each in done.points if (each.kind, each.event_index) != (chosen.kind, chosen.event_index)
    ] + [chosen]


def discard(
    record: RecordArgument,
    home: AgentHomeOption = None,
    force: Annotated[
        bool,
        Option("--force", help="Discard a continued record too."),
    ] = False,
) -> None:
    """Remove a record and its snapshot; session and repository stay."""
    from langgraph_takeover.graph.continuation.undo import discard_record

    with report_continuation_errors():
        found = find_record(record, home)
        print_removal(discard_record(found.home, found.id, force=force))


def apply(
    record: RecordArgument,
    repository: Annotated[
        Path, Option(help="Repository, or a directory in it.", show_default="current directory")
    ] = Path(),
    base: Annotated[
        str | None,
        Option(help="Record to count the changes from.", show_default="the one captured in the repository"),
    ] = None,
    partial: Annotated[bool, Option("--partial", help="Apply the other files despite conflicts.")] = False,
    home: AgentHomeOption = None,
) -> None:
    """Apply only the agents' changes of a record to your checkout."""
    from langgraph_takeover.graph.continuation.apply import apply_record

    with report_continuation_errors(), show_status("comparing the records"):
        chosen = find_record(record, home)
        done = apply_record(chosen.home, chosen.id, repository=repository, base=base, is_partial=partial)
    for path in done.changed:
        merged = " (merged with your changes)" if path in done.merged else ""
        print_safely(f"{'applied' if done.is_written else 'could be'}   {path}{merged}")
    for path, reason in done.conflicts:
        print_safely(f"conflict  {path}: {reason}")
    if done.ignored:
        print_safely(f"left out  {done.ignored} changed files that git ignores")
    if done.unsaved:
        print_safely(
            f"left out  {list_some(done.unsaved)}: a capture left it out, so its changes are unknown"
        )
    if not done.changed and not done.conflicts and not done.unsaved:
        print_safely("nothing to apply: your checkout has all changes")
    if done.conflicts:
        rest = (
            "the other files are applied"
            if done.is_written
            else "nothing was written; --partial applies the others"
        )
        print_safely(f"{len(done.conflicts)} conflicts with {done.repository}: {rest}")
        raise typer.Exit(3)


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "capture": (capture, _CAPTURE_EPILOG),
    "continue": (continue_, CONTINUE_EPILOG),
    "discard": (discard, _DISCARD_EPILOG),
    "apply": (apply, _APPLY_EPILOG),
}
