"""Background processes in records and notes: without secrets, and described in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from langgraph_takeover.handoff.text.fence import format_inline_code, neutralize
from langgraph_takeover.handoff.text.redaction import redact, redact_known_secrets
from langgraph_takeover.sandbox.interface import BackgroundProcess, ProcessStart, Snapshot

_MAX_COMMAND_CHARS, _MAX_TEXT_CHARS, _MAX_SHOWN = 200, 120, 20
_UNKNOWN = "unknown: what ran in the background could not be listed from the host"


def redact_snapshot(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot as it is saved: its shell loses known secrets only, because it is restored; its processes lose all."""
    return snapshot.model_copy(
        update={
            "shell_state": redact_known_secrets(snapshot.shell_state),
            "processes": redact_processes(snapshot.processes),
        }
    )


def redact_processes(
    processes: tuple[BackgroundProcess, ...] | None,
) -> tuple[BackgroundProcess, ...] | None:
    """Return processes without secrets. One that had a secret in its command line cannot be started again."""
    return None if processes is None else tuple(map(_redact_process, processes))


def _redact_process(process: BackgroundProcess) -> BackgroundProcess:
    content = process.model_dump(exclude={"tcp_ports", "udp_ports", "obstacle"})
    clean = redact(content)
    if clean == content:
        return process
    kept = {
        name: value for name, value in process.environment.items() if clean["environment"].get(name) == value
    }
    removed = [name for name in process.environment if name not in kept]
    is_secret = clean["argv"] != content["argv"] or clean["directory"] != content["directory"]
    return process.model_copy(
        update={
            "argv": tuple(clean["argv"]),
            "directory": process.directory if clean["directory"] == process.directory else "/",
            "environment": kept,
            "withheld": tuple(dict.fromkeys((*process.withheld, *removed))),
            "output": process.output if clean["output"] == process.output else "",
            "errors": process.errors if clean["errors"] == process.errors else "",
            "obstacle": process.obstacle or ("secret" if is_secret else ""),
        }
    )


def describe_command(process: BackgroundProcess) -> str:
    """Return the command line of a process as one line of code."""
    if not process.argv:
        return "a loop, a function or a list of commands of the shell"
    return _format(shlex.join(process.argv), _MAX_COMMAND_CHARS)


def describe_process(process: BackgroundProcess) -> str:
    """Describe a process in one line: its command, directory, ports, environment and output."""
    parts = [f"{describe_command(process)} in {_format(process.directory)}"]
    for protocol, ports in (("TCP", process.tcp_ports), ("UDP", process.udp_ports)):
        if ports:
            parts.append(f"listened on {protocol} {', '.join(map(str, ports[:10]))}")
    if process.environment:
        settings = (f"{name}={shlex.quote(value)}" for name, value in process.environment.items())
        parts.append(f"environment {_format(' '.join(settings), _MAX_COMMAND_CHARS)}")
    if process.withheld:
        parts.append(f"values not recorded: {_format(', '.join(process.withheld))}")
    if process.output:
        parts.append(f"output in {_format(process.output)}")
    return "; ".join(parts)


def list_process_lines(processes: Sequence[BackgroundProcess] | None) -> tuple[str, ...]:
    """Describe the processes of a snapshot, one line each; empty if none ran."""
    if processes is None:
        return (_UNKNOWN,)
    more = len(processes) - _MAX_SHOWN
    lines = map(describe_process, processes[:_MAX_SHOWN])
    return (*lines, f"{more} more") if more > 0 else tuple(lines)


def describe_starts(
    processes: Sequence[BackgroundProcess] | None, starts: Iterable[ProcessStart]
) -> tuple[str, ...]:
    """Describe what became of a snapshot's processes in a restored sandbox; those without a start do not run."""
    if processes is None:
        return (_UNKNOWN,)
    left, lines = list(starts), []
    for process in processes[:_MAX_SHOWN]:
        start = next((each for each in left if each.process == process), None)
        if start is not None:
            left.remove(start)
        problem = None if start is None else start.problem
        if problem is None:
            became = "does not run any more"
        elif problem:
            became = _clean(problem)
        else:
            ports = ", ".join(map(str, process.tcp_ports[:10]))
            became = f"started again{f' and listens on TCP {ports}' if ports else ''}"
        left_out = (
            f" without the value of {', '.join(process.withheld[:5])}"
            if problem == "" and process.withheld
            else ""
        )
        lines.append(f"{describe_command(process)} in {_format(process.directory)}: {became}{left_out}")
    more = len(processes) - _MAX_SHOWN
    return (*lines, f"{more} more") if more > 0 else tuple(lines)


def _format(text: str, limit: int = _MAX_TEXT_CHARS) -> str:
    clean = _clean(text)
    return format_inline_code(clean if len(clean) <= limit else f"{clean[:limit]}…")


def _clean(text: str) -> str:
    return " ".join(neutralize(text).split())
