"""Records of recorded runs, and sessions of external agents as the trace of a record."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from langgraph_takeover.base.secret_names import is_secret_setting
from langgraph_takeover.base.untrusted_input import read_untrusted_head
from langgraph_takeover.handoff.agents.session_files import (
    AGENTS,
    LATEST,
    SessionError,
    SessionFile,
    find_session_file,
    list_sessions,
    select_session,
)
from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.readers import TraceError, read_traces
from langgraph_takeover.handoff.recordings.recorded_run import LATER_REQUEST_PREFIX, list_unknown_tools
from langgraph_takeover.handoff.records.record import ExternalSession, HandoffRecord, TaskBrief
from langgraph_takeover.handoff.shell.command_effects import list_shown_files
from langgraph_takeover.handoff.shell.syntax import is_drive, is_windows_path, list_spellings, normalize_path
from langgraph_takeover.handoff.trace.conversation import EMPTY_RESULT, RESULT_NOT_RECORDED
from langgraph_takeover.handoff.trace.events import Event, FileRead, HandoffPoint, Trace, count_forms
from langgraph_takeover.sandbox.interface import FileChange


def list_handoff_points(trace: Trace) -> tuple[HandoffPoint, ...]:
    """List the handoff points of a recorded run; agents' requests and the end count as requested."""
    found = detectors.list_points(trace.events, trace.base_directories, trace.workspace)
    if not trace.events:
        return found
    requested, last = tuple(_find_requested_points(trace.events)), len(trace.events) - 1
    if not requested or requested[-1].event_index < last:
        requested += (HandoffPoint(kind="requested", event_index=last, detail="the recording ends"),)
    return (*found, *requested)


def _find_requested_points(events: Iterable[Event]) -> Iterator[HandoffPoint]:
    """Yield the point after each successful call of a handoff tool."""
    action: Event | None = None
    for event in events:
        if event.kind == "action":
            action = event
        elif action is not None and action.tool == event.tool == "handoff" and not event.refused:
            to = " ".join(action.arguments.get("to", "").split())
            detail = f"handed over to {to:.200}" if to else "the agent asked"
            yield HandoffPoint(kind="requested", event_index=event.index, detail=detail)


def build_record(trace: Trace, point: HandoffPoint) -> HandoffRecord:
    """Build the record of a recorded run at one of its points."""
    later = count_forms(
        list_unknown_tools(e for e in trace.events[point.event_index + 1 :] if e.kind == "action")
    )
    unknown = dict(Counter(trace.unknown_forms) - Counter(later))
    agent = trace.agent or trace.format
    return HandoffRecord(
        id=f"{trace.id}.{point.kind}",
        task=TaskBrief(
            id=trace.id,
            prompt=trace.task,
            base_commit="",
            base_directories=trace.base_directories,
            workspace=trace.workspace,
        ),
        predecessor=trace.model,
        point=point,
        patch="",
        snapshot=None,
        thread_id="",
        checkpoint_id="",
        trace=tuple(infer_reads(trace.events[: point.event_index + 1], trace.workspace)),
        created_at="",
        external=ExternalSession(agent=agent, version=trace.agent_version, unknown_forms=unknown)
        if unknown
        else None,
    ).seal()


def infer_reads(events: Iterable[Event], workspace: str) -> Iterator[Event]:
    """Add the files that actions must have read, because a recording does not list them.

    As with the changes of a recorded run, digests only distinguish contents of a file.
    """
    now: dict[str, str] = {}
    action: Event | None = None
    for event in events:
        if event.kind == "action":
            action = event
        elif action is not None and not event.reads and not event.refused and event.exit_code in (0, None):
            found = (_normalize_path(path, event.cwd or "", workspace) for path in _list_shown_paths(action))
            event = event.model_copy(
                update={
                    "reads": tuple(
                        FileRead(path=p, sha256=now.get(p) or _placeholder_digest(p)) for p in found
                    )
                }
            )
        now |= {change.path: change.after or "" for change in event.changes}
        yield event


def _list_shown_paths(action: Event) -> tuple[str, ...]:
    if action.tool == "shell":
        return list_shown_files(action.arguments.get("command", ""))
    if action.tool == "editor" and action.arguments.get("command") == "view":
        return (action.arguments.get("path", ""),)
    return ()


def _normalize_path(path: str, cwd: str, workspace: str) -> str:
    """Return a path as changes name it: relative inside the repository, absolute outside."""
    whole = posixpath.normpath(posixpath.join(workspace, cwd, path))
    return whole.removeprefix(workspace.rstrip("/") + "/" if workspace else "")


def _placeholder_digest(path: str) -> str:
    return hashlib.sha256(f"base of {path}".encode("utf-8", "surrogatepass")).hexdigest()


_HEAD_BYTES = 1 << 18
_MAX_LOOKED_AT = 2_000
_MAX_SHOWN_IDS = 5
_RECENT_S = 24 * 3600
_CWD = re.compile(r'"cwd"\s*:\s*("(?:[^"\\]|\\.){1,4096}")')
"""Inside a JSON text, the quotes of this name would be escaped: it is a field of a row."""
_SLASHES = re.compile(r"[\\/]{1,2}")
_ASSIGNMENT = re.compile(
    r"^[^\S\n]*(?:export |declare -x )?([A-Z][A-Z0-9_]{2,60})=([\"']?)([\w+/=.~:@%!^*-]{8,4096})\2[^\S\n]*$",
    re.MULTILINE,
)


def find_repository_session(
    agent: str, session_id: str | Path, repository: Path, user_home: Path
) -> SessionFile:
    """Return a session by its id, its unique beginning, or its file; `latest` is the newest in the repository.

    Raises SessionError.
    """
    if isinstance(session_id, Path):
        return find_session_file(agent, session_id)
    if session_id != LATEST:
        return select_session(session_id, user_home, (agent,), repository)
    others: dict[str, None] = {}
    for session in list_sessions(agent, user_home, repository)[:_MAX_LOOKED_AT]:
        cwd = session.directory or (read_session_directory(session.path) if session.path is not None else "")
        if cwd and is_inside(cwd, repository):
            return session
        if cwd:
            others[cwd] = None
    seen = f"; it has sessions in {', '.join(list(others)[:_MAX_SHOWN_IDS])}" if others else ""
    raise SessionError(f"{agent}: no session in {repository}{seen} (pass --repository, or --session ID)")


def _list_agents(repository: Path) -> list[str]:
    """List the agents to ask for sessions: opencode, whose program would write its id, only if it has worked here."""
    has_worked = (repository / ".git" / "opencode").exists()
    return [agent for agent in AGENTS if agent != "opencode" or has_worked]


def list_other_sessions(
    session: SessionFile, repository: Path, user_home: Path, now: float
) -> list[SessionFile]:
    """List the other sessions of any agent that ran in a repository within a day before `now`, the newest first."""
    found: list[SessionFile] = []
    for agent in _list_agents(repository):
        for other in list_sessions(agent, user_home, repository)[:_MAX_LOOKED_AT]:
            if now - other.modified > _RECENT_S:
                break
            directory = other.directory or (read_session_directory(other.path) if other.path else "")
            if (other.agent, other.id) != (session.agent, session.id) and is_inside(directory, repository):
                found.append(other)
    return sorted(found, key=lambda other: -other.modified)


def list_repository_sessions(session_id: str, repository: Path, user_home: Path) -> list[SessionFile]:
    """List the session that `find_repository_session` finds of each agent, the newest first. Raises SessionError if none does."""
    found: list[SessionFile] = []
    errors: list[str] = []
    for agent in _list_agents(repository):
        try:
            found.append(find_repository_session(agent, session_id, repository, user_home))
        except SessionError as error:
            errors.append(str(error))
    if len(found) > 1 and session_id != LATEST:
        names = ", ".join(f"{each.id} ({each.agent})" for each in found)
        raise SessionError(
            f"session {session_id!r:.80} is ambiguous: {names} (pass --agent, or more of the id)"
        )
    if not found:
        named = [each for each in errors if "it has sessions in" in each or "ambiguous" in each]
        known = ", ".join(AGENTS)
        missing = (
            f"no session of {known} in {repository} (pass --repository, or --session ID)"
            if session_id == LATEST
            else f"session {session_id!r:.80} of {known} not found (pass --agent, or the session's file)"
        )
        raise SessionError(named[0] if named else missing)
    return sorted(found, key=lambda each: -each.modified)


def read_session_directory(path: Path) -> str:
    """Return the directory in which a session ran, from the start of its file; empty if it names none."""
    try:
        head = read_untrusted_head(path, _HEAD_BYTES).decode(errors="replace")
    except OSError:
        return ""
    match = _CWD.search(head)
    try:
        return str(json.loads(match[1])) if match else ""
    except ValueError:
        return ""


def is_inside(directory: str, repository: Path) -> bool:
    """Whether a session's directory is the repository or below it; symbolic links are resolved.

    A directory on a drive of Windows is looked for below `/mnt`, where a Linux on Windows has it.
    """
    if is_windows_path(directory):
        directory = f"/mnt{normalize_path(directory)}"
    if not directory.startswith("/") or "\0" in directory:
        return False
    try:
        return Path(os.path.realpath(directory)).is_relative_to(os.path.realpath(repository))
    except (OSError, ValueError):  # a name that no file can have
        return False


def read_session(path: Path, agent: str, workspace: str = "") -> Trace:
    """Return the trace of a session's file; `workspace` as for `read_traces`. Raises TraceError, also if it holds no action."""
    # Of the chats in a history of aider, the last one is the newest.
    found = next(iter(deque(read_traces(path, agent, workspace), maxlen=1)), None)
    if found is None or isinstance(found, TraceError):
        raise found or TraceError(f"{path}: no session in it")
    if not found.events:
        raise TraceError(f"{path}: the session has no action yet (let {agent} work first)")
    return found


def move_session(trace: Trace, repository: Path, workspace: str) -> Trace:
    """Return a trace as if its repository had been at `workspace`: in texts, arguments, directories and changes.

    A session may have begun in a directory of the repository; the changes become relative to the repository.
    """
    started_in = trace.workspace
    real, root = os.path.realpath(started_in), os.path.realpath(repository)
    below = os.path.relpath(real, root) if is_inside(started_in, repository) else "."
    prefix = "" if below == "." else f"{below}/"
    # The session may name the repository by a link to it.
    top = started_in.removesuffix(f"/{below}") if prefix else started_in
    replace = make_replacement({each: workspace for each in (top, root, str(repository)) if each.strip("/")})

    def move_path(path: str) -> str:
        path = posixpath.normpath(f"{prefix}{path}") if not path.startswith("/") else replace(path)
        return path.removeprefix(f"{workspace}/")

    def move_cwd(cwd: str | None) -> str | None:
        if cwd is None:
            return None
        moved = replace(cwd) if cwd.startswith("/") else posixpath.normpath(f"{prefix}{cwd}")
        return "" if moved in (".", workspace) else moved.removeprefix(f"{workspace}/")

    return trace.model_copy(
        update={
            "events": tuple(_move_event(event, replace, move_path, move_cwd) for event in trace.events),
            "task": replace(trace.task),
            "running": tuple(map(replace, trace.running)),
            "pending": tuple(map(replace, trace.pending)),
            "withdrawn_files": tuple(map(move_path, trace.withdrawn_files)),
            "workspace": workspace,
        }
    )


def move_texts(events: Iterable[Event], replace: Callable[[str], str]) -> tuple[Event, ...]:
    """Return events with replaced texts, arguments and directories."""
    return tuple(_move_event(event, replace, replace, lambda cwd: cwd and replace(cwd)) for event in events)


def _move_event(
    event: Event,
    replace: Callable[[str], str],
    move_path: Callable[[str], str],
    move_cwd: Callable[[str | None], str | None],
) -> Event:
    return event.model_copy(
        update={
            "text": replace(event.text),
            "arguments": {name: replace(value) for name, value in event.arguments.items()},
            "cwd": move_cwd(event.cwd),
            "changes": tuple(
                each.model_copy(
                    update={
                        "path": move_path(each.path),
                        "renamed_from": each.renamed_from and move_path(each.renamed_from),
                    }
                )
                for each in event.changes
            ),
        }
    )


def make_replacement(directories: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces directories in a text, but no longer names that begin with one."""
    moved = {
        spelling: after
        for before, after in directories.items()
        if before.rstrip("/") != after
        for spelling in list_spellings(before.rstrip("/"))
    }
    if not moved:
        return lambda text: text
    longest_first = sorted(moved, key=len, reverse=True)
    found = re.compile(rf"(?<![\w.~-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-]|\.\w)")
    drives = [_make_drive_replacement(each, moved[each]) for each in longest_first if is_drive(each)]

    def replace(text: str) -> str:
        for drive in drives:
            text = drive(text)
        return found.sub(lambda match: moved[match[0]], text)

    return replace


def _make_drive_replacement(before: str, after: str) -> Callable[[str], str]:
    """Return a function that replaces a directory on a drive of Windows, as `C:\\x` or `c:/x`, and the slashes after it."""
    names = r"[\\/]{1,2}".join(map(re.escape, before.split("/")[2:]))
    found = re.compile(
        rf"(?<![\w.~-]){before[1]}:[\\/]{{1,2}}{names}(?![\w-]|\.\w)(?P<rest>(?:[\\/]{{1,2}}[\w.@+~-]+)*+)",
        re.I,
    )
    return lambda text: found.sub(lambda match: after + _SLASHES.sub("/", match["rest"]), text)


def join_task(task: str, session_task: str, own_texts: Iterable[str]) -> str:
    """Return the task of a session that continues a record: that of the record, and what the user asked for since.

    `own_texts` are the beginnings of messages that the continuation wrote.
    """
    separator = f"\n\n{LATER_REQUEST_PREFIX}\n\n"
    known = (*filter(None, own_texts), load_prompt("takeover")[:80], RESULT_NOT_RECORDED, EMPTY_RESULT)
    later = [each for each in session_task.split(separator) if not each.startswith(known)]
    return separator.join([task, *later])


def match_changes(events: Iterable[Event], files: Mapping[str, str | None]) -> tuple[Event, ...]:
    """Return events whose last content of each file has the digest that the file really has, by relative path.

    The digests of a session only tell contents apart. A file that is not there keeps them: it was changed later.
    """
    events = tuple(events)
    last: dict[str, str | None] = {}
    for event in events:
        last |= {change.path: change.after for change in event.changes}
    real = {
        (path, after): actual
        for path, after in last.items()
        if after is not None and (actual := files.get(path)) is not None
    }

    def match(change: FileChange) -> FileChange:
        before, after = (
            digest if digest is None else real.get((change.path, digest), digest)
            for digest in (change.before, change.after)
        )
        return change.model_copy(update={"before": before, "after": after})

    return tuple(
        event.model_copy(update={"changes": tuple(map(match, event.changes))}) if event.changes else event
        for event in events
    )


def find_assigned_secrets(texts: Iterable[str]) -> Iterator[str]:
    """Yield the values of secret variables in texts with a line for each variable, as `env` prints and `.env` files have."""
    for text in texts:
        for name, _, value in _ASSIGNMENT.findall(text):
            if is_secret_setting(name, value) and any(letter.isdigit() for letter in value):
                yield value
