"""The command `handoff continue`: another agent continues a record, in a plain checkout or in a sandbox."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer
from typer import Option

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.graph.cli.handoff_options import UsageError, print_left_out, print_safely
from langgraph_takeover.graph.cli.record_ids import (
    AgentHomeOption,
    RecordArgument,
    find_record,
    print_removal,
    report_continuation_errors,
    show_status,
    suggest_command,
)
from langgraph_takeover.handoff.names import AGENT_NAMES

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from langgraph_takeover.graph.cli.record_ids import ModelBuilder
    from langgraph_takeover.graph.continuation.continue_record import PreparedContinuation
    from langgraph_takeover.sandbox.interface import BackendName, RestartPolicy

CONTINUE_EPILOG = """
Examples:
  handoff continue RECORD --agent codex
  handoff continue RECORD --agent claude-code --view transcript
  handoff continue RECORD --agent codex --in ../shop-2 --print
  handoff continue RECORD --agent codex --sandbox host --model native:gpt-5.5
  handoff continue RECORD --agent codex --sandbox docker --image my-tools
      --model openai:NAME@URL
  handoff continue RECORD --undo

By default the agent starts in this terminal, in a new directory beside the
repository, with your own settings and model. Under the views transcript and
payload it resumes a session of its own kind; under the others it reads a
prompt. With --sandbox, the same command resumes what Ctrl-C or a crash stopped.
Each end has a record.

Exit codes: 0 done, 2 usage, 3 record, sandbox or snapshot failed, or --undo
left something, 4 disk full, 130 interrupted.
"""
ProgramOption = Annotated[
    Path | None, Option("--program", help="Program of the agent.", show_default="the one on PATH")
]


def continue_(
    context: typer.Context,
    record: RecordArgument,
    agent: Annotated[
        str | None,
        Option(help=f"Agent: {', '.join(AGENT_NAMES)}.", show_default=False),
    ] = None,
    view: Annotated[str, Option(help="What the agent sees of the earlier work.")] = "structured",
    directory: Annotated[
        Path | None,
        Option("--in", help="New directory.", show_default="NAME-continued"),
    ] = None,
    program: ProgramOption = None,
    print_only: Annotated[
        bool,
        Option("--print", help="Print the command instead of starting the agent."),
    ] = False,
    verbose: Annotated[bool, Option("--verbose", help="Print the whole account of events.")] = False,
    undo: Annotated[bool, Option("--undo", help="Remove what the record's continuations created.")] = False,
    sandbox: Annotated[
        str | None,
        Option("--sandbox", help="Run in a sandbox: host or docker.", show_default="a plain checkout"),
    ] = None,
    model: Annotated[
        str | None,
        Option(
            help="With --sandbox: openai:NAME[@URL] or native:NAME.",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        str | None,
        Option(
            help="With --sandbox: Docker image with bash and git.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[
        str | None,
        Option(
            "--processes",
            help="With --sandbox: background processes to start again: never, ask or always.",
            show_default="never",
        ),
    ] = None,
    is_new: Annotated[
        bool,
        Option("--new", help="With --sandbox: begin again instead of resuming."),
    ] = False,
    home: AgentHomeOption = None,
    allow_unisolated: Annotated[
        bool,
        Option(
            "--allow-unisolated",
            help="Allow a record that was not captured here.",
        ),
    ] = False,
) -> None:
    """Continue a record with another agent, in a checkout or a sandbox."""
    from langgraph_takeover.graph.continuation.known_records import list_continued

    with report_continuation_errors():
        found = find_record(record, home, list_others=list_continued if undo else lambda _: ())
        home, record_id = found.home, found.id
        if undo:
            from langgraph_takeover.graph.continuation.undo import undo_continuations

            print_removal(undo_continuations(home, record_id))
            return
        if agent is None:
            raise UsageError("--agent: name the agent that continues, such as --agent codex (or pass --undo)")
        if sandbox is not None:
            request = _SandboxRequest(
                context.obj,
                home,
                record_id,
                agent,
                view,
                program,
                sandbox,
                model,
                image,
                is_new,
                processes or "never",
            )
            _continue_in_sandbox(request)
            return
        for option, value in (
            ("--model", model), ("--image", image), ("--new", is_new or None), ("--processes", processes),
        ):  # fmt: skip
            if value is not None:
                raise UsageError(
                    f"{option}: only with --sandbox; in a plain checkout the agent uses your own settings and system"
                )
        from langgraph_takeover.graph.continuation.continue_record import (
            prepare_continuation,
            start_continuation,
        )

        with show_status("writing the checkout"):
            prepared = prepare_continuation(
                home, record_id, agent=agent, view=view, directory=directory, program=program,
                allow_unisolated=allow_unisolated,
            )  # fmt: skip
        _print_continuation(prepared, home, verbose)
        if not print_only:
            start_continuation(prepared)
        print(f"cd {shlex.quote(str(prepared.directory))} && {shlex.join(prepared.command)}", flush=True)


class _SandboxRequest(NamedTuple):
    """The options of a continuation in a sandbox."""

    build_model: ModelBuilder
    home: Path
    record: str
    agent: str
    view: str
    program: Path | None
    sandbox: str
    model: str | None
    image: str | None
    is_new: bool
    processes: str


def _continue_in_sandbox(request: _SandboxRequest) -> None:
    from langgraph_takeover.graph.continuation.sandboxed_continuation import continue_in_sandbox
    from langgraph_takeover.graph.runs.stop_requests import handle_signals
    from langgraph_takeover.handoff import views
    from langgraph_takeover.handoff.records.record import RecordStore, write_durably

    if request.sandbox == "process":
        raise UsageError(
            "--sandbox process: cannot keep an agent from your files and your network (use host or docker, or omit "
            "--sandbox for a plain checkout)"
        )
    if request.sandbox not in ("host", "docker"):
        raise UsageError(f"--sandbox: unknown back end {request.sandbox!r:.40} (use host or docker)")
    if request.processes not in ("never", "ask", "always"):
        raise UsageError(f"--processes: unknown policy {request.processes!r:.40} (use never, ask or always)")
    if request.model is None:
        raise UsageError(
            "--sandbox: name the model that works for the agent (--model openai:NAME@URL or native:NAME)"
        )
    build_view = views.find_view(request.view)
    model, name = _build_model(request, request.model)
    record = _choose_record(request)
    if request.view not in views.HISTORIES:
        source = RecordStore(request.home / "records").load(record)
        messages = build_view(source, views.Recipient(protocol="native"))
        _warn_about_size(request.view, views.measure_view(messages).characters)
    patches = _prepare_patch_directory(request)
    with handle_signals():
        done = continue_in_sandbox(
            request.home,
            record,
            agent=request.agent,
            model=model,
            model_name=name,
            view=request.view,
            program=request.program,
            backend=cast("BackendName", request.sandbox),
            is_new=request.is_new,
            processes=cast("RestartPolicy", request.processes),
            choose=_choose_processes,
            show=print_safely,
        )
        outcome = done.outcome
        patch = patches / f"{outcome.thread}.patch"
        write_durably(patch, outcome.diff_from_base, errors="surrogateescape")
    end = ": ".join(dict.fromkeys((outcome.status.value, outcome.stop_reason or "interrupted")))
    print_safely(f"{end}, {outcome.steps} replies, {len(outcome.events)} events")
    print_safely(f"patch against the record's commit: {patch} ({len(outcome.diff_from_base):,} characters)")
    print_left_out(outcome)
    print_safely(f"apply     {suggest_command(request.home, 'apply', done.record)}")


def _choose_processes(lines: Sequence[str]) -> tuple[int, ...]:
    """Ask in the terminal which background processes to start again."""
    if not sys.stdin.isatty():
        raise UsageError("--processes ask: needs a terminal (use never or always)")
    from langgraph_takeover.handoff.views.display import escape_control_chars

    questions = [f"start again: {escape_control_chars(line)}?" for line in lines]
    return tuple(number for number, question in enumerate(questions) if typer.confirm(question))


def _prepare_patch_directory(request: _SandboxRequest) -> Path:
    """Return the directory of a record's patches, inside the home: a foreign home could hold a link to any other one."""
    directory = request.home / "continuations" / request.record
    expected = Path(os.path.realpath(request.home), "continuations", request.record)
    if Path(os.path.realpath(directory)) != expected:
        raise UsageError(f"--home: {directory}: leads out of the home (remove the link)")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def _choose_record(request: _SandboxRequest) -> str:
    """Return the record to restore: with `--image`, one that has the repository in that image."""
    from langgraph_takeover.graph.continuation.undo import is_captured, rebase_record
    from langgraph_takeover.handoff.records.record import RecordStore

    if request.image is not None:
        with show_status(f"adding the repository to image {request.image}"):
            rebased = rebase_record(request.home, request.record, request.image)
        print_safely(f"record    {rebased.id}, the same work in image {request.image}")
        return rebased.id
    record = RecordStore(request.home / "records").load(request.record)
    if request.sandbox == "docker" and is_captured(record):
        raise UsageError(
            "--sandbox docker: a captured repository has no image (name one with bash, git and your tools: --image NAME)"
        )
    return request.record


def _build_model(request: _SandboxRequest, name: str) -> tuple[BaseChatModel, str]:
    from langgraph_takeover.handoff.agents import find_adapter

    find_adapter(request.agent)
    try:
        return request.build_model(request.agent, name)
    except TakeoverError as error:
        raise UsageError(f"--model: {error}") from error


def _warn_about_size(view: str, chars: int) -> None:
    from langgraph_takeover.handoff.views import CHARS_PER_TOKEN, Recipient
    from langgraph_takeover.handoff.views.display import warn_about_size

    if warning := warn_about_size(view, chars // CHARS_PER_TOKEN, Recipient().window_tokens):
        print(warning, file=sys.stderr)


def _print_continuation(done: PreparedContinuation, home: Path, verbose: bool) -> None:
    if done.warning:
        print_safely(f"warning   {done.warning}")
    print_safely(f"checkout  {done.directory}")
    if done.session_id:
        print_safely(f"session   {done.session_id} in {', '.join(map(str, done.session_files))}")
        print_safely(f"history   {describe_account(done.account, verbose=verbose)}")
    else:
        print_safely(f"prompt    {len(done.prompt):,} characters, view {done.view}")
        _warn_about_size(done.view, len(done.prompt))
    print_safely(f"undo      {suggest_command(home, 'continue', done.record, '--undo')}")


def describe_account(account: Mapping[str, int], *, verbose: bool = False) -> str:
    """Describe what became of the events of the earlier work; `verbose` adds the reasons."""
    numbers: Counter[str] = Counter()
    reasons: list[str] = []
    for entry, number in account.items():
        outcome, _, reason = entry.partition(": ")
        numbers[outcome] += number
        reasons += [f"{number} {outcome}: {reason}"] if reason else []
    total = numbers.total()
    parts = ", ".join(f"{number} {outcome}" for outcome, number in numbers.items())
    line = f"{total} event{'' if total == 1 else 's'}: {parts or 'none'}"
    hint = "" if verbose or not reasons else " (--verbose names the reasons)"
    return "\n          ".join([f"{line}{hint}", *(reasons if verbose else [])])
