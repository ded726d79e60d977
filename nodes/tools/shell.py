"""The node that runs a command in the agent's shell."""

from __future__ import annotations

import posixpath

from langgraph.runtime import Runtime

from langgraph_takeover.handoff.shell.command_effects import find_effect, list_shown_files
from langgraph_takeover.handoff.trace.events import FileRead
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.events import clip_text, last_action
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.tools.execution import run_action
from langgraph_takeover.nodes.tools.read_cache import find_first_read, is_whole_file_read
from langgraph_takeover.sandbox.interface import ExecResult, Sandbox


def shell(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    context = get_agent_context(runtime)
    command = last_action(state).arguments["command"]

    def run_command(sandbox: Sandbox) -> Observation:
        cwd = sandbox.cwd()
        if (
            is_whole_file_read(command)
            and (shown := _read_from_cache(state, context, sandbox, command, cwd)) is not None
        ):
            return shown
        try:
            result = sandbox.run(command, timeout_s=context.command_timeout_s)
        except ValueError as error:
            return Observation(text=f"Not run: {error}.", refused=True)
        changes = sandbox.changes()
        reads = _find_reads(command, cwd, sandbox) if result.exit_code is not None else ()
        cached = [find_first_read(state, context, sandbox, read.path) for read in reads]
        return Observation(
            text=_format_result(result, context, sandbox, "".join(each.notice for each in cached if each)),
            changes=changes,
            reads=reads,
            exit_code=result.exit_code,
            cwd=_relative_directory(cwd, sandbox),
            timed_out=result.timed_out,
            shell_ended=result.shell_ended,
            seconds=result.seconds,
        )

    return run_action(state, runtime, run_command, find_effect(command))


def _read_from_cache(
    state: AgentState, context: AgentContext, sandbox: Sandbox, command: str, cwd: str
) -> Observation | None:
    """What a command that shows one whole file would show, where the read cache has that file as it is."""
    read = next(iter(_find_reads(command, cwd, sandbox)), None)
    cached = find_first_read(state, context, sandbox, read.path) if read else None
    if read is None or cached is None or cached.content is None:
        return None
    return Observation(
        text=f"[exit code 0]\n{cached.notice}{clip_text(cached.content, context.observation_chars)}",
        reads=(read,),
        exit_code=0,
        cwd=_relative_directory(cwd, sandbox),
    )


def _format_result(result: ExecResult, context: AgentContext, sandbox: Sandbox, notice: str) -> str:
    if result.timed_out:
        head = f"[stopped after {context.command_timeout_s:.0f} s: it and everything it started were killed]"
    elif result.exit_code is None:
        head = "[it ended without an exit code]"
    else:
        head = f"[exit code {result.exit_code}]"
    if result.shell_ended:
        head += f"\n[the shell ended; a new one stands in {sandbox.cwd()}, without the old one's variables]"
    return f"{head}\n{notice}{clip_text(result.output, context.observation_chars)}"


def _relative_directory(directory: str, sandbox: Sandbox) -> str:
    """A directory as changes name paths: relative inside the repository, absolute outside it."""
    if directory == sandbox.workspace.rstrip("/"):
        return ""
    return directory.removeprefix(sandbox.workspace.rstrip("/") + "/")


def _find_reads(command: str, cwd: str, sandbox: Sandbox) -> tuple[FileRead, ...]:
    """The files that the command showed and that exist, named as changes are."""
    inside = sandbox.workspace.rstrip("/") + "/"
    found = []
    for path in list_shown_files(command):
        whole = posixpath.normpath(posixpath.join(cwd, path))
        digest = sandbox.sha256(whole)
        if digest is not None:
            found.append(FileRead(path=whole.removeprefix(inside), sha256=digest))
    return tuple(found)
