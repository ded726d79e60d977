"""The node that runs a command in the agent's shell."""

from __future__ import annotations

import posixpath

from langgraph.runtime import Runtime

from handoff.command_effects import find_effect, shown_files
from handoff.event import FileRead
from nodes.acting import acted
from nodes.events import clipped, last_action
from nodes.observation import Observation
from nodes.read_cache import first_read, shows_whole
from nodes.settings import AgentContext, given
from nodes.state import AgentState
from sandbox.machine import ExecResult, Sandbox


def shell(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    context = given(runtime)
    command = last_action(state).arguments["command"]

    def run(machine: Sandbox) -> Observation:
        cwd = machine.cwd()
        if shows_whole(command) and (shown := _cached(state, context, machine, command, cwd)) is not None:
            return shown
        try:
            result = machine.run(command, timeout_s=context.command_timeout_s)
        except ValueError as error:
            return Observation(text=f"Not run: {error}.", refused=True)
        changes = machine.changes()
        reads = _reads(command, cwd, machine) if result.exit_code is not None else ()
        cached = [first_read(state, context, machine, read.path) for read in reads]
        return Observation(
            text=_told(result, context, machine, "".join(each.said for each in cached if each)),
            changes=changes,
            reads=reads,
            exit_code=result.exit_code,
            cwd=_named(cwd, machine),
            timed_out=result.timed_out,
            shell_ended=result.shell_ended,
            seconds=result.seconds,
        )

    return acted(state, runtime, run, find_effect(command))


def _cached(
    state: AgentState, context: AgentContext, machine: Sandbox, command: str, cwd: str
) -> Observation | None:
    """What a command that shows one whole file would show, where the read cache has that file as it is."""
    read = next(iter(_reads(command, cwd, machine)), None)
    cached = first_read(state, context, machine, read.path) if read else None
    if read is None or cached is None or cached.content is None:
        return None
    return Observation(
        text=f"[exit code 0]\n{cached.said}{clipped(cached.content, context.observation_chars)}",
        reads=(read,),
        exit_code=0,
        cwd=_named(cwd, machine),
    )


def _told(result: ExecResult, context: AgentContext, machine: Sandbox, said: str) -> str:
    if result.timed_out:
        head = f"[stopped after {context.command_timeout_s:.0f} s: it and everything it started were killed]"
    elif result.exit_code is None:
        head = "[it ended without an exit code]"
    else:
        head = f"[exit code {result.exit_code}]"
    if result.shell_ended:
        head += f"\n[the shell ended; a new one stands in {machine.cwd()}, without the old one's variables]"
    return f"{head}\n{said}{clipped(result.output, context.observation_chars)}"


def _named(directory: str, machine: Sandbox) -> str:
    """A directory as changes name paths: relative inside the repository, absolute outside it."""
    if directory == machine.workspace.rstrip("/"):
        return ""
    return directory.removeprefix(machine.workspace.rstrip("/") + "/")


def _reads(command: str, cwd: str, machine: Sandbox) -> tuple[FileRead, ...]:
    """The files that the command showed and that exist, named as changes are."""
    inside = machine.workspace.rstrip("/") + "/"
    found = []
    for path in shown_files(command):
        whole = posixpath.normpath(posixpath.join(cwd, path))
        digest = machine.sha256(whole)
        if digest is not None:
            found.append(FileRead(path=whole.removeprefix(inside), sha256=digest))
    return tuple(found)
