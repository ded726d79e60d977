"""The command `handoff continue`: another agent continues a record, in a plain checkout or in a sandbox."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Option

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
from langgraph_takeover.graph.cli.options import UsageError, print_safely
from langgraph_takeover.sandbox.interface import TakeoverError

if TYPE_CHECKING:
    from langgraph_takeover.graph.continuation.preparation import PreparedContinuation
    from langgraph_takeover.sandbox.interface import BackendName

CONTINUE_EPILOG = """
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
_KEY = "OPENAI_API_KEY"
ProgramOption = Annotated[
    Path | None, Option("--program", help="Program of the agent.", show_default="the one on PATH")
]


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
    home: AgentHomeOption = DEFAULT_HOME,
    allow_unisolated: Annotated[
        bool,
        Option(
            "--allow-unisolated",
            help="Write a checkout of a record that was not captured here, although its content then runs as you.",
        ),
    ] = False,
) -> None:
    """Continue a record with another agent: in a plain checkout in this terminal, or in a sandbox."""
    home, record_id = locate_record(record, home)
    with report_continuation_errors():
        if undo:
            from langgraph_takeover.graph.continuation.undo import undo_continuations

            print_removal(undo_continuations(home, record_id))
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

        with show_status("writing the checkout"):
            prepared = prepare_continuation(
                home, record_id, agent=agent, view=view, directory=directory, program=program,
                allow_unisolated=allow_unisolated,
            )  # fmt: skip
        _print_continuation(prepared, home, verbose)
        if not print_only:
            start_continuation(prepared)
        print(f"cd {shlex.quote(str(prepared.directory))} && {shlex.join(prepared.command)}", flush=True)


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
    key = _KEY if url and os.environ.get(_KEY) else None
    try:
        chat_model = build_chat_model(ModelEntry(model=name, base_url=url, api_key_env=key))
    except TakeoverError as error:
        raise UsageError(f"--model: {error}") from error
    outcome = continue_in_sandbox(
        home,
        record_id,
        agent=agent,
        model=chat_model,
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


def _print_continuation(done: PreparedContinuation, home: Path, verbose: bool) -> None:
    print_safely(f"checkout  {done.directory}")
    if done.session_id:
        print_safely(f"session   {done.session_id} in {', '.join(map(str, done.session_files))}")
        print_safely(f"history   {describe_account(done.account, verbose=verbose)}")
    else:
        print_safely(f"prompt    {len(done.prompt):,} characters, view {done.view}")
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
