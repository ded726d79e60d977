"""The commands for a person who works with external agents: capture a session, continue it with another agent, undo."""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from typer import Argument, Option

from langgraph_takeover.graph.cli.options import UnisolatedOption, UsageError, print_safely, print_table

if TYPE_CHECKING:
    from langgraph_takeover.graph.continuation.capture import Capture
    from langgraph_takeover.graph.continuation.preparation import Continuation
    from langgraph_takeover.graph.continuation.undo import Removal
    from langgraph_takeover.handoff.trace.events import HandoffPoint
    from langgraph_takeover.sandbox.interface import BackendName

_CAPTURE_EPILOG = """
Examples:

  handoff capture --agent claude-code

  handoff capture --agent codex --session 019aa3 --repository ~/work/shop

Saves the newest session of the agent in this repository, and the repository as it is now with uncommitted, untracked and
ignored files, as a record. The session and the repository are only read. Secrets in the session are redacted; the
snapshot holds every file as it is.

Exit codes: 0 done, 2 usage, 3 session, sandbox or snapshot failed, 4 disk full, 130 interrupted.
"""
_CONTINUE_EPILOG = """
Examples:

  handoff continue RECORD --agent codex

  handoff continue RECORD --agent claude-code --view transcript

  handoff continue RECORD --agent codex --in ../shop-2 --print

  handoff continue RECORD --agent codex --sandbox host --model openai:gpt-5.5

  handoff continue RECORD --undo

By default the agent starts in this terminal, in a new directory beside the repository, with your own settings and model.
Under the views transcript and payload it resumes a session of its own kind; under the others it reads a prompt.

Exit codes: 0 done, 2 usage, 3 record, sandbox or snapshot failed, 4 disk full, 130 interrupted.
"""
_DISCARD_EPILOG = """
Examples:

  handoff discard RECORD

Exit codes: 0 done, 2 usage, 3 the record is damaged, 130 interrupted.
"""
_DEFAULT_HOME = Path("~/.takeover")
_MAX_SHOWN_FILES = 5

CaptureHomeOption = Annotated[
    Path,
    Option(
        "--home", "--out", envvar="TAKEOVER_RUNS", help="Directory of the home.", show_default="~/.takeover"
    ),
]
RecordArgument = Annotated[
    str, Argument(help="Id of a record in the home, or its directory.", metavar="RECORD", show_default=False)
]
ProgramOption = Annotated[
    Path | None, Option("--program", help="Program of the agent.", show_default="the one on PATH")
]


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
    home: CaptureHomeOption = _DEFAULT_HOME,
    sandbox: Annotated[
        str | None,
        Option("--sandbox", help="Back end of the snapshot: host or process.", show_default="host"),
    ] = None,
    allow_unisolated: UnisolatedOption = False,
) -> None:
    """Capture an agent's session and its repository as a record."""
    from langgraph_takeover.graph.continuation.capture import capture_session

    if sandbox not in (None, "host", "process"):
        raise UsageError(f"--sandbox: unknown back end {sandbox!r:.40} (use host or process)")
    if sandbox == "process" and not allow_unisolated:
        raise UsageError(
            "--sandbox process would run git on the repository as you, with your files and your network (use host, or "
            "pass --allow-unisolated)"
        )
    with _report_continuation_errors(), _show_status("saving the repository and reading the session"):
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

    record = done.record
    assert record.external is not None
    version = f" {record.external.version}" if record.external.version else ""
    print_safely(f"record    {record.id}")
    print_safely(
        f"session   {record.external.session_id}, {record.external.agent}{version}, {len(record.trace)} events"
    )
    task = " ".join(record.task.prompt.split())
    print_safely(f"task      {task[:100]}{'…' if len(task) > 100 else ''}")
    print_safely(
        f"snapshot  {decimal(done.snapshot_bytes)} of {done.repository}, commit {record.task.base_commit[:12]} and its changes"
    )
    print_safely(f"saved in  {done.directory}")
    print_table(
        ("\npoint", "\nevent", "\ncause"),
        [(f"{each.kind}{' *' if each == record.point else ''}", f"e{each.event_index}", each.detail[:90])
         for each in _with_chosen(done)],
    )  # fmt: skip
    print_safely("* the record is at this point\n")
    if done.later_files:
        print_safely(f"Changed, but by no event of the session: {_list_files(done.later_files)}.")
    if done.secret_files:
        print_safely(
            f"The snapshot holds files that usually contain secrets: {_list_files(done.secret_files)}. Keep it private."
        )
    if done.patch_error:
        print_safely(f"The record has no patch: {done.patch_error}. The snapshot is complete.")
    other = "claude-code" if record.external.agent == "codex" else "codex"
    place = "" if home == _DEFAULT_HOME else f" --home {shlex.quote(str(home))}"
    print_safely(f"Next: {_own_name()} continue {record.id} --agent {other}{place}")
    print_safely(f"To remove it: {_own_name()} discard {record.id}{place}")


def _with_chosen(done: Capture) -> list[HandoffPoint]:
    """The points, the record's own last and under its own description."""
    chosen = done.record.point
    return [
        each for each in done.points if (each.kind, each.event_index) != (chosen.kind, chosen.event_index)
    ] + [chosen]


def continue_(
    record: RecordArgument,
    agent: Annotated[
        str | None,
        Option(help="Agent: codex, claude-code, qwen-code, opencode or mini.", show_default=False),
    ] = None,
    view: Annotated[str, Option(help="What the agent sees of the earlier work.")] = "structured",
    directory: Annotated[
        Path | None,
        Option("--in", help="New directory.", show_default="NAME-continued beside the repository"),
    ] = None,
    program: ProgramOption = None,
    print_only: Annotated[
        bool,
        Option("--print", help="Prepare everything, and print the command instead of starting the agent."),
    ] = False,
    verbose: Annotated[bool, Option("--verbose", help="Print the whole account of events.")] = False,
    undo: Annotated[bool, Option("--undo", help="Remove what the record's continuations created.")] = False,
    sandbox: Annotated[
        str | None,
        Option(
            "--sandbox", help="Run in a sandbox instead: host or docker.", show_default="a plain checkout"
        ),
    ] = None,
    model: Annotated[
        str | None,
        Option(help="With --sandbox: model, as openai:NAME or openai:NAME@URL.", show_default=False),
    ] = None,
    home: CaptureHomeOption = _DEFAULT_HOME,
    allow_unisolated: UnisolatedOption = False,
) -> None:
    """Continue a record with another agent: in a plain checkout in this terminal, or in a sandbox."""
    home, record_id = _locate_record(record, home)
    with _report_continuation_errors():
        if undo:
            from langgraph_takeover.graph.continuation.undo import undo_continuations

            _print_removal(undo_continuations(home, record_id))
            return
        if agent is None:
            raise UsageError("--agent: name the agent that continues, such as --agent codex (or pass --undo)")
        if sandbox is not None:
            _continue_in_sandbox(home, record_id, agent, view, program, sandbox, model)
            return
        if model is not None:
            raise UsageError(
                "--model: only with --sandbox; in a plain checkout the agent uses your own settings"
            )
        from langgraph_takeover.graph.continuation.preparation import prepare_continuation, start_continuation

        with _show_status("writing the checkout"):
            prepared = prepare_continuation(
                home,
                record_id,
                agent=agent,
                view=view,
                directory=directory,
                program=program,
                allow_unisolated=allow_unisolated,
            )
        _print_continuation(prepared, verbose)
        if print_only:
            command = f"cd {shlex.quote(str(prepared.directory))} && {shlex.join(prepared.command)}"
            print(command, flush=True)
            return
        start_continuation(prepared)


def _continue_in_sandbox(
    home: Path, record_id: str, agent: str, view: str, program: Path | None, sandbox: str, model: str | None
) -> None:
    from langgraph_takeover.graph.continuation.sandboxed import continue_in_sandbox

    if sandbox not in ("host", "docker"):
        raise UsageError(f"--sandbox: unknown back end {sandbox!r:.40} (use host or docker)")
    if model is None:
        raise UsageError("--sandbox: name the model that works for the agent (--model openai:NAME@URL)")
    from langgraph_takeover.models import ModelEntry, build_chat_model

    name, url = _parse_model(model)
    outcome = continue_in_sandbox(
        home,
        record_id,
        agent=agent,
        model=build_chat_model(ModelEntry(model=name, base_url=url)),
        view=view,
        program=program,
        backend=cast("BackendName", sandbox),
        show=print_safely,
    )
    patch = home / "continuations" / record_id / f"{outcome.thread}.patch"
    patch.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    patch.write_text(outcome.patch, encoding="utf-8", errors="surrogateescape")
    print_safely(
        f"{outcome.status.value}: {outcome.stop_reason}, {outcome.steps} replies, {len(outcome.events)} events"
    )
    print_safely(f"patch against the record's commit: {patch} ({len(outcome.patch):,} characters)")


def _parse_model(text: str) -> tuple[str, str | None]:
    found = re.fullmatch(r"openai:(.+?)(?:@(https?://.+))?", text)
    if found is None:
        raise UsageError(f"--model: {text!r:.80} (use openai:NAME or openai:NAME@URL)")
    return found[1], found[2]


def _print_continuation(done: Continuation, verbose: bool) -> None:
    print_safely(f"checkout  {done.directory}")
    if done.session_id:
        print_safely(f"session   {done.session_id} in {', '.join(map(str, done.session_files))}")
        print_safely(f"history   {describe_account(done.account, len(done.dropped), verbose=verbose)}")
        if verbose and done.dropped:
            print_safely(f"          left out: {', '.join(f'e{index}' for index in done.dropped)}")
    else:
        print_safely(f"prompt    {len(done.prompt):,} characters, view {done.view}")
    print_safely(f"undo      {_own_name()} continue {done.record} --undo")


def describe_account(account: Mapping[str, int], dropped: int, *, verbose: bool = False) -> str:
    """Describe what became of the events of the earlier work; `verbose` adds the reasons."""
    numbers: Counter[str] = Counter()
    reasons: list[str] = []
    for entry, number in account.items():
        outcome, _, reason = entry.partition(": ")
        numbers[outcome] += number
        reasons += [f"{number} {outcome}: {reason}"] if reason else []
    if dropped:
        numbers["left out by the view"] += dropped
    line = ", ".join(f"{number} {outcome}" for outcome, number in numbers.items()) or "no event"
    hint = "" if verbose or not reasons else " (--verbose names the reasons)"
    return "\n          ".join([f"{line}{hint}", *(reasons if verbose else [])])


def discard(record: RecordArgument, home: CaptureHomeOption = _DEFAULT_HOME) -> None:
    """Remove a captured record with its snapshot. The agent's session and the repository stay."""
    from langgraph_takeover.graph.continuation.undo import discard_record

    home, record_id = _locate_record(record, home)
    with _report_continuation_errors():
        _print_removal(discard_record(home, record_id))


def _locate_record(record: str, home: Path) -> tuple[Path, str]:
    """Return the home and the id of a record that is named by its id or its directory."""
    path = Path(record).expanduser()
    if len(path.parts) == 1 and not (path / "record.json").exists():
        return home.expanduser(), record
    directory = (path.parent if path.name == "record.json" else path).absolute()
    if directory.parent.name != "records":
        raise UsageError(
            f"RECORD: {record}: not in a home (use: handoff export, then handoff import into HOME/records)"
        )
    return directory.parent.parent, directory.name


def _print_removal(done: Removal) -> None:
    for path in done.removed:
        print_safely(f"removed   {path}")
    for path in done.left:
        print_safely(f"left      {path}")
    if not done.removed and not done.left:
        print_safely("nothing was left to remove")
    if done.left:
        raise typer.Exit(3)


def _list_files(paths: tuple[str, ...]) -> str:
    more = f" and {len(paths) - _MAX_SHOWN_FILES} more" if len(paths) > _MAX_SHOWN_FILES else ""
    return f"{', '.join(paths[:_MAX_SHOWN_FILES])}{more}"


def _own_name() -> str:
    from langgraph_takeover.sandbox.cli.program import program_name

    return program_name("handoff", "handoff")


@contextmanager
def _show_status(action: str) -> Iterator[None]:
    from rich.console import Console

    with Console(file=sys.stderr, highlight=False).status(action):
        yield


@contextmanager
def _report_continuation_errors() -> Iterator[None]:
    """Report errors that the user can correct in one line."""
    from langgraph_takeover.graph.errors import CaptureError, ContinuationError
    from langgraph_takeover.handoff.agents.adapter import UnknownAgentProgramError
    from langgraph_takeover.handoff.readers import TraceError
    from langgraph_takeover.handoff.readers.session_files import SessionError
    from langgraph_takeover.handoff.views import UnknownViewError
    from langgraph_takeover.nodes.external.agent import ExternalAgentError
    from langgraph_takeover.nodes.external.program import AgentProgramError
    from langgraph_takeover.nodes.model.errors import ModelError

    try:
        yield
    except (
        CaptureError,
        ContinuationError,
        UnknownAgentProgramError,
        AgentProgramError,
        SessionError,
    ) as error:
        raise UsageError(str(error)) from error
    except UnknownViewError as error:
        raise UsageError(f"--view: {error}") from error
    except (TraceError, ExternalAgentError, ModelError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(3) from None


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "capture": (capture, _CAPTURE_EPILOG),
    "continue": (continue_, _CONTINUE_EPILOG),
    "discard": (discard, _DISCARD_EPILOG),
}
