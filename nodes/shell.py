"""The node that runs a command in the agent's shell."""

from __future__ import annotations

import posixpath

from langgraph.runtime import Runtime

from handoff.event import FileRead
from handoff.inspection import reads
from handoff.reach import reach
from nodes.acting import acted
from nodes.events import clipped, last_action
from nodes.observation import Observation
from nodes.settings import AgentContext, given
from nodes.state import AgentState
from sandbox.machine import ExecResult, Sandbox


def shell(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    context = given(runtime)
    command = last_action(state).arguments["command"]

    def run(machine: Sandbox) -> Observation:
        cwd = machine.cwd()
        try:
            result = machine.run(command, timeout_s=context.command_timeout_s)
        except ValueError as error:
            return Observation(text=f"Not run: {error}.", refused=True)
        return Observation(
            text=_told(result, context, machine),
            changes=machine.changes(),
            reads=_reads(command, cwd, machine) if result.exit_code is not None else (),
            exit_code=result.exit_code,
            cwd=_named(cwd, machine),
            timed_out=result.timed_out,
            shell_ended=result.shell_ended,
            seconds=result.seconds,
        )

    return acted(state, runtime, run, reach(command))


def _told(result: ExecResult, context: AgentContext, machine: Sandbox) -> str:
    if result.timed_out:
        head = f"[stopped after {context.command_timeout_s:.0f} s: it and everything it started were killed]"
    elif result.exit_code is None:
        head = "[it ended without an exit code]"
    else:
        head = f"[exit code {result.exit_code}]"
    if result.shell_ended:
        head += f"\n[the shell ended; a new one stands in {machine.cwd()}, without the old one's variables]"
    return f"{head}\n{clipped(result.output, context.observation_chars)}"


def _named(directory: str, machine: Sandbox) -> str:
    """A directory as changes name paths: relative inside the repository, absolute outside it."""
    if directory == machine.workspace.rstrip("/"):
        return ""
    return directory.removeprefix(machine.workspace.rstrip("/") + "/")


def _reads(command: str, cwd: str, machine: Sandbox) -> tuple[FileRead, ...]:
    """The files that the command showed and that exist, named as changes are."""
    inside = machine.workspace.rstrip("/") + "/"
    found = []
    for path in reads(command):
        whole = posixpath.normpath(posixpath.join(cwd, path))
        digest = machine.sha256(whole)
        if digest is not None:
            found.append(FileRead(path=whole.removeprefix(inside), sha256=digest))
    return tuple(found)
