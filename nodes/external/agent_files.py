"""The files of an agent in its sandbox. Its commands can replace each of them, by a pipe or an endless one as well."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from langgraph_takeover.handoff.agents.adapter import AgentAdapter, Launch
from langgraph_takeover.handoff.agents.session_files import TELEMETRY_MARK
from langgraph_takeover.sandbox.interface import Sandbox

_START_SCRIPT = """\
cd {workspace} || exit 1
export HOME={home}
unset CODEX_HOME CLAUDE_CONFIG_DIR XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME
{exports}
{argv} <{files}/in >{files}/out 2>{files}/err
echo $? >{files}/exit_code
"""
_TIMEOUT_S = 5
_REMOVAL_S = 60
_SETTLE_S, _SETTLE_POLL_S = 5.0, 0.02
_BATCH = 200
"""Files that one command removes."""
_MAX_SESSION_BYTES = 20_000_000
_MAX_ADDED_BYTES = 4_000_000
_SAFE_ID = re.compile(r"[\w.:-]{1,200}")
_IS_FILE = '[ -f "$file" ] && [ ! -L "$file" ]'


def build_start_files(adapter: AgentAdapter, launch: Launch, directory: str) -> dict[str, str]:
    """Return the files of a start by their absolute paths: the agent's settings, and the script `start` in `directory`."""
    setup, command = adapter.setup(launch), adapter.command(launch)
    script = _START_SCRIPT.format(
        workspace=shlex.quote(launch.workspace),
        home=shlex.quote(launch.home),
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in setup.environment.items()),
        argv=shlex.join(command.argv),
        files=shlex.quote(directory),
    )
    files = {f"{launch.home}/{path}": text for path, text in setup.files.items()}
    return files | {f"{directory}/in": command.stdin, f"{directory}/start": script, f"{directory}/out": ""}


def write_files(sandbox: Sandbox, home: str, files: Mapping[str, str]) -> None:
    """Write files below a home directory, and replace links, pipes and files in their way. Raises FileAccessError."""
    directories = {
        each for path in files for each in PurePosixPath(path).parents if each.is_relative_to(home)
    }
    steps = [f"[ -d {shlex.quote(home)} ] || {_build_removal([home])}"]
    for path in map(str, sorted(directories - {PurePosixPath(home)})):
        quoted = shlex.quote(path)
        # A link to a directory could lead into the repository.
        is_usable = f"[ -d {quoted} ] && [ ! -L {quoted} ] && chmod u+rwx {quoted}"
        steps.append(f"{{ {is_usable}; }} || {_build_removal([path])}")
    sandbox.inspect("\n".join(steps))
    for start in range(0, len(files), _BATCH):
        sandbox.inspect(_build_removal(list(files)[start : start + _BATCH]))
    for path, text in files.items():
        sandbox.write_file(path, text.encode())


def _build_removal(paths: Sequence[str]) -> str:
    """Return a command that removes files and directories, also those that were made read-only."""
    remove, quoted = f"timeout {_REMOVAL_S} rm -rf --", shlex.join(paths)
    return f"{{ {remove} {quoted} || {{ chmod -R u+rwX -- {quoted}; {remove} {quoted}; }}; }} 2>/dev/null"


def prepare_directory(sandbox: Sandbox, path: str, names: Sequence[str]) -> None:
    """Remove everything that a command may have put in the place of a directory, or of files in it."""
    directory = shlex.quote(path)
    files = shlex.join(f"{path}/{name}" for name in names)
    sandbox.inspect(
        f"{{ [ -d {directory} ] && [ ! -L {directory} ]; }} || rm -rf -- {directory}; rm -rf -- {files}"
    )


def read_ends(sandbox: Sandbox, path: str, size: int) -> str:
    """Return the first and the last `size` bytes of a regular file; nothing for anything else."""
    # One open file: what the first command has read, the second does not repeat.
    ends = f'{{ head -c {size}; echo; tail -c {size}; }} <"$file"'
    return _inspect(sandbox, f"file={shlex.quote(path)}; {_IS_FILE} && {ends}")


def measure_session(sandbox: Sandbox, home: str, pattern: str) -> int:
    """Return the bytes of a session's files. `pattern` is relative to the agent's home."""
    size = _inspect(sandbox, f"{_build_session(home, pattern)} | wc -c").strip()
    return int(size) if size.isdigit() else 0


def read_session_rows(sandbox: Sandbox, home: str, pattern: str, start: int) -> str:
    """Return the text added to a session's files after `start` bytes, at most its first 4 MB."""
    return _inspect(
        sandbox, f"{_build_session(home, pattern)} | tail -c +{start + 1} | head -c {_MAX_ADDED_BYTES}"
    )


def _build_session(home: str, pattern: str) -> str:
    return f'for file in {shlex.quote(home)}/{pattern}; do {_IS_FILE} && cat -- "$file"; done'


def wait_for_result(sandbox: Sandbox, home: str, pattern: str, call_id: str, count: int = 1) -> None:
    """Wait a few seconds for the result of a call in the session file, which may lag behind the agent's request.

    `count` is the number of results with this id so far, because endpoints use ids again.
    """
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline and not _has_results(sandbox, home, pattern, call_id, count):
        time.sleep(_SETTLE_POLL_S)


def _has_results(sandbox: Sandbox, home: str, pattern: str, call_id: str, count: int) -> bool:
    """Return whether the session file contains so many results with an id. `pattern` is relative to the agent's home.

    An id that cannot be searched counts as found.
    """
    if not _SAFE_ID.fullmatch(call_id):
        return True
    tail = f'{_IS_FILE} && tail -c {_MAX_SESSION_BYTES} -- "$file"'
    # Twice each: the call has the same id as its result. As text: NUL bytes would make the file a binary one.
    script = (
        f"for file in {shlex.quote(home)}/{pattern}; do {tail}; done | grep -avF -- {shlex.quote(TELEMETRY_MARK)} | "
        f"grep -aoF -- {shlex.quote(call_id)} | head -n {2 * count} | wc -l"
    )
    return _inspect(sandbox, script).strip() == str(2 * count)


def _inspect(sandbox: Sandbox, script: str) -> str:
    return sandbox.inspect(f"timeout -s KILL {_TIMEOUT_S} sh -c {shlex.quote(script)} 2>/dev/null").output
