"""The commands for a person who works with external agents: capture a session, continue it with another agent, undo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from typer import Option

from langgraph_takeover.graph.cli.continuation import CONTINUE_EPILOG, continue_
from langgraph_takeover.graph.cli.external_options import (
    DEFAULT_HOME,
    AgentHomeOption,
    RecordArgument,
    locate_record,
    print_removal,
    report_continuation_errors,
    show_status,
    suggest_command,
)
from langgraph_takeover.graph.cli.options import UnisolatedOption, UsageError, print_safely, print_table

if TYPE_CHECKING:
    from langgraph_takeover.graph.continuation.capture import Capture
    from langgraph_takeover.handoff.trace.events import HandoffPoint
    from langgraph_takeover.sandbox.interface import BackendName

_CAPTURE_EPILOG = """
Examples:

  handoff capture --agent claude-code

  handoff capture --agent codex --session 019aa3 --repository ../shop

Saves the newest session of the agent in this repository, and the repository as it is now with uncommitted, untracked and
ignored files, as a record. The session and the repository are only read. Secrets in the session are redacted; the
snapshot holds every file as it is.

Exit codes: 0 done, 2 usage, 3 session, sandbox or snapshot failed, 4 disk full, 130 interrupted.
"""
_DISCARD_EPILOG = """
Examples:

  handoff discard RECORD

Exit codes: 0 done, 2 usage, 3 the record is damaged, 130 interrupted.
"""
_APPLY_EPILOG = """
Examples:

  handoff apply RECORD

  handoff apply RECORD --repository ../shop --partial

Applies what the agents changed since the record that was captured in this repository. Files that you have changed since are
merged by lines. With a conflict, nothing is written. The index and the commits stay as they are.

Exit codes: 0 done, 2 usage, 3 conflicts, or a record is damaged, 4 disk full, 130 interrupted.
"""
_MAX_SHOWN_FILES = 5


def capture(
    agent: Annotated[
        str, Option(help="Agent: codex, claude-code, qwen-code or opencode.", show_default=False)
    ],
    session: Annotated[
        str, Option(help="Id of the session, its unique beginning, or `latest` of the repository.")
    ] = "latest",
    repository: Annotated[
        Path, Option(help="Repository, or a directory in it.", show_default="current directory")
    ] = Path(),
    home: Annotated[
        Path,
        Option(
            "--out",
            "--home",
            envvar="TAKEOVER_RUNS",
            help="Home: directory for the records, outside the repository.",
            show_default="~/.takeover",
        ),
    ] = DEFAULT_HOME,
    sandbox: Annotated[
        str | None,
        Option("--sandbox", help="Back end of the snapshot: host or process.", show_default="host"),
    ] = None,
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
    with report_continuation_errors(), show_status("saving the repository and reading the session"):
        done = capture_session(
            home.expanduser(),
            agent,
            repository=repository,
            session=session,
            backend=cast("BackendName | None", sandbox),
        )
    _print_capture(done, home)


def _print_capture(done: Capture, home: Path) -> None:
    from rich.filesize import decimal

    from langgraph_takeover.handoff.records.chain import list_chain_lines
    from langgraph_takeover.handoff.records.left_out import format_left_out

    record = done.record
    assert record.external is not None
    version = f" {record.external.version}" if record.external.version else ""
    print_safely(f"record    {record.id}")
    print_safely(
        f"session   {record.external.session_id}, {record.external.agent}{version}, {len(record.trace)} events"
    )
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
    for command in record.external.running[:_MAX_SHOWN_FILES]:
        print_safely(f"Left running in the background: {' '.join(command.split())[:160]}")
    if done.later_files:
        print_safely(f"Changed outside the session: {_list_files(done.later_files)}.")
    if done.secret_files:
        print_safely(
            f"The snapshot holds files that usually contain secrets: {_list_files(done.secret_files)}. Keep it private."
        )
    if done.skipped_lines:
        print_safely(f"The session's file is damaged: {done.skipped_lines}.")
    if done.left_out:
        print_safely(f"The user went back in the session: {done.left_out}.")
    for line in format_left_out(record.left_out, record.left_out_count):
        print_safely(f"{line}. The snapshot has it.")
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


def discard(record: RecordArgument, home: AgentHomeOption = DEFAULT_HOME) -> None:
    """Remove a captured record with its snapshot. The agent's session and the repository stay."""
    from langgraph_takeover.graph.continuation.undo import discard_record

    home, record_id = locate_record(record, home)
    with report_continuation_errors():
        print_removal(discard_record(home, record_id))


def apply(
    record: RecordArgument,
    repository: Annotated[
        Path, Option(help="Repository, or a directory in it.", show_default="current directory")
    ] = Path(),
    base: Annotated[
        str | None,
        Option(help="Record to count the changes from.", show_default="the one captured in the repository"),
    ] = None,
    partial: Annotated[bool, Option("--partial", help="With conflicts, apply the other files.")] = False,
    home: AgentHomeOption = DEFAULT_HOME,
) -> None:
    """Apply the agents' changes of a record to your checkout, and nothing else."""
    from langgraph_takeover.graph.continuation.apply import apply_record

    home, record_id = locate_record(record, home)
    with report_continuation_errors(), show_status("comparing the records"):
        done = apply_record(home, record_id, repository=repository, base=base, is_partial=partial)
    for path in done.changed:
        merged = " (merged with your changes)" if path in done.merged else ""
        print_safely(f"{'applied' if done.is_written else 'could be'}   {path}{merged}")
    for path, reason in done.conflicts:
        print_safely(f"conflict  {path}: {reason}")
    if done.ignored:
        print_safely(f"left out  {done.ignored} changed files that git ignores")
    if not done.changed and not done.conflicts:
        print_safely("nothing to apply: your checkout has all changes")
    if done.conflicts:
        rest = (
            "the other files are applied"
            if done.is_written
            else "nothing was written; --partial applies the others"
        )
        print_safely(f"{len(done.conflicts)} conflicts with {done.repository}: {rest}")
        raise typer.Exit(3)


def _list_files(paths: tuple[str, ...]) -> str:
    more = f" and {len(paths) - _MAX_SHOWN_FILES} more" if len(paths) > _MAX_SHOWN_FILES else ""
    return f"{', '.join(paths[:_MAX_SHOWN_FILES])}{more}"


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "capture": (capture, _CAPTURE_EPILOG),
    "continue": (continue_, CONTINUE_EPILOG),
    "discard": (discard, _DISCARD_EPILOG),
    "apply": (apply, _APPLY_EPILOG),
}
