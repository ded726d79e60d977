"""Contents of small files in a sandbox and in its repository, read in one call."""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from langgraph_takeover.sandbox.changes.layer_files import FileVersion
from langgraph_takeover.sandbox.interface import Sandbox
from langgraph_takeover.sandbox.repository.patches import LeftOut

_UNSAVED = "outside the sandbox's saved files, so that no restored sandbox has it"
# A link does not count as content; a file that becomes a pipe meanwhile must not block the caller. One `find` tests
# the sizes of all files, because each program that starts takes a millisecond.
_READ_SCRIPT = """
small="$(find {paths} -maxdepth 0 -type f -size -{limit}c -print 2>/dev/null)"
for file in {paths}; do
  case "
$small
" in *"
$file
"*) timeout 20 base64 -w0 -- "$file";; esac
  echo
done
"""


def read_small_files(sandbox: Sandbox, paths: Sequence[str], max_bytes: int) -> dict[str, bytes]:
    """Return the contents of those regular files that have at most `max_bytes` bytes; empty files are left out."""
    paths = [path for path in paths if "\0" not in path]
    if not paths:
        return {}
    quoted = " ".join(shlex.quote(f"./{path}") for path in paths)
    result = sandbox.inspect(_READ_SCRIPT.format(paths=quoted, limit=max_bytes + 1).strip())
    lines = result.output.split("\n")
    if result.exit_code != 0 or len(lines) != len(paths) + 1:
        return {}
    found = {}
    for path, line in zip(paths, lines, strict=False):
        try:
            content = base64.b64decode(line, validate=True)
        except (binascii.Error, ValueError):
            continue
        if content and len(content) <= max_bytes:
            found[path] = content
    return found


# One line for each file: its size, and its content unless it is too large.
_VERSIONS_SCRIPT = """
for file in {paths}; do
  if [ -f "$file" ] && [ ! -L "$file" ] && size="$(stat -c %s -- "$file")"; then
    printf '%s ' "$size"
    [ "$size" -gt {limit} ] || timeout 20 base64 -w0 -- "$file"
  fi
  echo
done
"""
_BASE_VERSIONS_SCRIPT = """
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' GIT_NO_REPLACE_OBJECTS=1
for file in {paths}; do
  if size="$(git cat-file -s {commit}:"$file")"; then
    printf '%s ' "$size"
    [ "$size" -gt {limit} ] || git cat-file blob {commit}:"$file" | base64 -w0
  fi
  echo
done 2>/dev/null
"""


@runtime_checkable
class LayeredSandbox(Protocol):
    """A sandbox whose files can be read without a process inside."""

    def read_layers(
        self, paths: Sequence[str], max_bytes: int, *, earlier: bool = False
    ) -> dict[str, FileVersion]: ...


@runtime_checkable
class _PartlySavedSandbox(Protocol):
    """A sandbox that knows which files no snapshot has."""

    def list_unsaved_files(self) -> tuple[str, ...]: ...


def list_unsaved_files(sandbox: Sandbox) -> tuple[LeftOut, ...]:
    """List files that no restored sandbox has, such as those in memory; at most 20."""
    paths = sandbox.list_unsaved_files() if isinstance(sandbox, _PartlySavedSandbox) else ()
    return tuple(LeftOut(path=path, reason=_UNSAVED) for path in paths)


def read_versions(sandbox: Sandbox, paths: Sequence[str], max_bytes: int) -> dict[str, FileVersion]:
    """Return the regular files among these paths, which are relative to the workspace or absolute."""
    found = sandbox.read_layers(paths, max_bytes) if isinstance(sandbox, LayeredSandbox) else {}
    missing = [path for path in paths if path not in found]
    return found | _run_versions_script(sandbox, _VERSIONS_SCRIPT, missing, max_bytes)


def read_snapshot_versions(sandbox: Sandbox, paths: Sequence[str], max_bytes: int) -> dict[str, FileVersion]:
    """Return the files of the newest snapshot below the sandbox, as far as they can be read without a process inside."""
    if not isinstance(sandbox, LayeredSandbox):
        return {}
    return sandbox.read_layers(paths, max_bytes, earlier=True)


def read_base_versions(
    sandbox: Sandbox, commit: str, paths: Sequence[str], max_bytes: int
) -> dict[str, FileVersion]:
    """Return the files that a commit has; git in the sandbox can be the agent's, so verify contents by their digests."""
    if not re.fullmatch("[0-9a-f]{40,64}", commit):
        return {}
    relative = [path for path in paths if not path.startswith("/")]
    script = _BASE_VERSIONS_SCRIPT.replace("{commit}", commit)
    return _run_versions_script(sandbox, script, relative, max_bytes)


def _run_versions_script(
    sandbox: Sandbox, script: str, paths: Sequence[str], max_bytes: int
) -> dict[str, FileVersion]:
    paths = [path for path in paths if "\0" not in path]
    if not paths:
        return {}
    quoted = " ".join(shlex.quote(path if path.startswith("/") else f"./{path}") for path in paths)
    result = sandbox.inspect(script.format(paths=quoted, limit=max_bytes).strip())
    lines = result.output.split("\n")
    if len(lines) != len(paths) + 1:
        return {}
    found = {}
    for path, line in zip(paths, lines, strict=False):
        size, _, encoded = line.partition(" ")
        if not re.fullmatch("[0-9]{1,18}", size):
            continue
        content = None
        if int(size) <= max_bytes:
            try:
                content = base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError):
                continue
        found[path] = FileVersion(int(size), content)
    return found
