"""The node that runs a command in the agent's shell."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from langgraph.runtime import Runtime

from langgraph_takeover.handoff.shell.command_effects import find_effect, list_shown_files
from langgraph_takeover.handoff.trace.events import FileRead
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.state_events import clip_text, last_action
from langgraph_takeover.nodes.tools.editor import find_first_read, is_whole_file_read
from langgraph_takeover.nodes.tools.execution import relative_path, run_action
from langgraph_takeover.sandbox.interface import ExecResult, Sandbox


def shell(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Run the command of the last action."""
    context = get_agent_context(runtime)
    command = last_action(state).arguments["command"]

    def run_command(sandbox: Sandbox) -> Observation:
        cwd = sandbox.cwd()
        if is_whole_file_read(command):
            cached_read = _read_from_cache(state, context, sandbox, command, cwd)
            if cached_read is not None:
                return cached_read

        def find_notice(path: str) -> str:
            cached = find_first_read(state, context, sandbox, path)
            return cached.notice if cached else ""

        return execute_command(
            sandbox,
            command,
            timeout_s=context.command_timeout_s,
            max_chars=context.observation_chars,
            find_notice=find_notice,
        )

    return run_action(state, runtime, run_command, find_effect(command))


def execute_command(
    sandbox: Sandbox,
    command: str,
    *,
    timeout_s: float,
    max_chars: int,
    find_notice: Callable[[str], str] = lambda path: "",
) -> Observation:
    """Run a command, and return what the agent sees; `find_notice` returns a notice for a file that it shows."""
    cwd = sandbox.cwd()
    try:
        result = sandbox.run(command, timeout_s=timeout_s)
    except ValueError as error:
        return Observation(text=f"Not run: {error}.", refused=True)
    changes = sandbox.changes()
    reads = _find_reads(command, cwd, sandbox) if result.exit_code is not None else ()
    head = _describe_end(result, timeout_s, sandbox)
    notices = "".join(find_notice(read.path) for read in reads)
    return Observation(
        text=f"{head}\n{notices}{clip_text(result.output, max_chars)}",
        changes=changes,
        reads=reads,
        exit_code=result.exit_code,
        cwd=relative_path(sandbox, cwd),
        timed_out=result.timed_out,
        shell_ended=result.shell_ended,
        seconds=result.seconds,
    )


def _read_from_cache(
    state: AgentState, context: AgentContext, sandbox: Sandbox, command: str, cwd: str
) -> Observation | None:
    """Return the output of a command that prints one file, if the read cache has the file unchanged."""
    read = next(iter(_find_reads(command, cwd, sandbox)), None)
    cached = find_first_read(state, context, sandbox, read.path) if read else None
    if read is None or cached is None or cached.content is None:
        return None
    return Observation(
        text=f"[exit code 0]\n{cached.notice}{clip_text(cached.content, context.observation_chars)}",
        reads=(read,),
        exit_code=0,
        cwd=relative_path(sandbox, cwd),
    )


def _describe_end(result: ExecResult, timeout_s: float, sandbox: Sandbox) -> str:
    lines = list_end_notices(result, timeout_s)
    if result.exit_code is not None:
        lines.insert(0, f"[exit code {result.exit_code}]")
    elif not result.timed_out:
        lines.insert(0, "[the command ended without an exit code]")
    if result.shell_ended:
        lines.append(
            f"[the shell ended; a new one was started in {sandbox.cwd()}, without the old one's variables]"
        )
    return "\n".join(lines)


def list_end_notices(result: ExecResult, timeout_s: float) -> list[str]:
    """Describe why a command was stopped, and the killed processes, for the model; empty if the command ended by itself."""
    lines = []
    if result.disk_full:
        lines.append(
            "[stopped: the sandbox's files exceed its disk limit; everything that ran was killed; delete files first]"
        )
    elif result.timed_out:
        lines.append(f"[stopped after {timeout_s:.0f} s: the command and its child processes were killed]")
    if result.killed:
        lines.append(f"[also killed: {', '.join(result.killed)}]")
    return lines


def _find_reads(command: str, cwd: str, sandbox: Sandbox) -> tuple[FileRead, ...]:
    """Return the existing files that a command printed, named as in changes."""
    reads = []
    for path in list_shown_files(command):
        absolute = posixpath.normpath(posixpath.join(cwd, path))
        digest = sandbox.sha256(absolute)
        if digest is not None:
            reads.append(FileRead(path=relative_path(sandbox, absolute), sha256=digest))
    return tuple(reads)
