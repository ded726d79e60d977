"""Files in a sandbox and in its repository, read and written from inside."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import posixpath
import re
import secrets
import shlex
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from langgraph_takeover.sandbox.changes.change_report import (
    EXCLUDED_DIRECTORY,
    MAX_HASHED_BYTES,
    MAX_HASHED_FILE_BYTES,
    FileState,
    FileVersion,
    compare_states,
)
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.interface import FileAccessError, FileChange, Sandbox, SandboxUnavailableError
from langgraph_takeover.sandbox.repository import LeftOut
from langgraph_takeover.sandbox.shell import RuntimeShell, escape_non_utf8

MAX_FILE_BYTES = 16 * 1024 * 1024
_TOO_LARGE = f"too large, more than {MAX_FILE_BYTES >> 20} MiB (use the shell)"
_TIMEOUT_S = 120.0
_FILE_TIMEOUT_S = 20.0
"""Time limit for a file that something else may replace, such as a pipe without a writer."""
# The content is stored completely before it replaces the file, so a full disk costs nothing. A file with several names,
# or of another owner, is overwritten in place, as an editor would. All input must be read.
_WRITE_SCRIPT = """
head -c {size} | {{ (
  file=$(realpath -m -- {path}; echo .) file=${{file%??}} directory=${{file%/*}}/ part=$directory.{token}.part
  fail() {{ rm -f -- "$part"; echo "$1"; exit 1; }}
  [ ! -e "$file" ] || [ -f "$file" ] || fail 'not a regular file'
  [ ! -e "$file" ] || [ -w "$file" ] || fail 'Permission denied'
  [ -d "$directory" ] || mkdir -p -- "$directory" || fail
  (set -C; : >"$part") && cat >"$part" || fail
  if [ -e "$file" ]; then
    if [ "$(stat -c %h -- "$file")" != 1 ] ||
      ! cp --attributes-only --preserve=mode,ownership,xattr -- "$file" "$part"; then
      cat -- "$part" >"$file" || fail; rm -f -- "$part"; exit
    fi
  fi
  mv -T -- "$part" "$file" || fail
) 2>&1; done=$?; cat >/dev/null; (exit $done); }}
"""


# Docker makes its own files of /etc anew for each container, all at once: a later one is an edit.
_UNSAVED_SCRIPT = """
{{
  find {directories} -xdev -type f ! -name 'sem.*' -print0
  mounts="$(</proc/self/mountinfo)" oldest= times=
  for path in /etc/hostname /etc/hosts /etc/resolv.conf; do
    case "$mounts" in *" $path "*) ;; *) continue ;; esac
    changed="$(stat -c %Y "$path")" || continue
    [ -n "$oldest" ] && [ "$oldest" -le "$changed" ] || oldest=$changed
    times="$times $changed $path"
  done
  set -- $times
  while [ $# -gt 0 ]; do [ "$1" -le $((oldest + 1)) ] || printf '%s\\0' "$2"; shift 2; done
}} 2>/dev/null | head -z -n 20
"""


def find_unsaved_files(runtime_shell: RuntimeShell, directories: Sequence[str]) -> tuple[str, ...]:
    """List the files in these directories, and those of Docker's own that were edited; at most 20."""
    script = _UNSAVED_SCRIPT.format(directories=" ".join(map(shlex.quote, directories)))
    output = runtime_shell.run(script, timeout_s=_TIMEOUT_S).output
    return tuple(escape_non_utf8(path) for path in output.split("\0")[:-1])


class SandboxFiles:
    """Reads and writes files inside the sandbox, so that no link or device of the agent leads out of it."""

    def __init__(self, runtime_shell: RuntimeShell, workspace: str) -> None:
        self._runtime_shell = runtime_shell
        self._workspace = workspace

    def switch_shell(self, runtime_shell: RuntimeShell) -> None:
        """Use another shell from now on."""
        self._runtime_shell = runtime_shell

    def read(self, path: str) -> bytes:
        quoted = self._quote(path)
        encoded = self._run(
            f"if [ -d {quoted} ]; then echo 'is a directory'; exit_code=1; "
            f"elif [ ! -e {quoted} ]; then echo 'no such file'; exit_code=1; "
            f"elif [ ! -f {quoted} ]; then echo 'not a regular file'; exit_code=1; "
            f'elif [ "$(stat -Lc %s -- {quoted})" -gt {MAX_FILE_BYTES} ]; then echo "{_TOO_LARGE}"; exit_code=1; '
            f"else base64 -w0 -- {quoted}; exit_code=$?; fi; (exit $exit_code)",
            path,
        )
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise FileAccessError(f"{path}: could not be read: {encoded[:200]}") from error

    def write(self, path: str, content: bytes) -> None:
        if path.endswith("/"):
            raise FileAccessError(f"{path}: not a regular file")
        command = _WRITE_SCRIPT.format(path=self._quote(path), size=len(content), token=secrets.token_hex(8))
        self._run(command, path, payload=content)

    def list_directory(self, path: str) -> tuple[str, ...] | None:
        quoted = self._quote(path)
        command = f"[ -d {quoted} ] && find {quoted}/ -mindepth 1 -maxdepth 1 -printf '%f/%y\\0'"
        result = self._runtime_shell.run(command, timeout_s=_TIMEOUT_S)
        if result.exit_code != 0:
            return None
        entries = (entry.rpartition("/") for entry in sorted(result.output.split("\0")[:-1]))
        return tuple(escape_non_utf8(name) + "/" * (kind == "d") for name, _, kind in entries)

    def _quote(self, path: str) -> str:
        if "\0" in path:
            raise FileAccessError("a path cannot contain a NUL byte")
        return shlex.quote(posixpath.join(self._workspace, path))

    def _run(self, command: str, path: str, payload: bytes | None = None) -> str:
        result = self._runtime_shell.run(command, timeout_s=_FILE_TIMEOUT_S, payload=payload)
        if result.timed_out:
            raise FileAccessError(f"{path}: no answer in {_FILE_TIMEOUT_S:.0f} s")
        if result.exit_code != 0:
            reason = result.output.strip().partition("\n")[0].rpartition(": ")[2]
            raise FileAccessError(f"{path}: {reason or 'refused'}")
        return result.output


class ScanChangeTracker:
    """The changes since the last look at the files below some directories, for sandboxes whose files are elsewhere.

    Content is compared by SHA-256; a file is hashed again when its size, times, inode or mode say that it may have
    changed. It relies on the sandbox's own `find` and `sha256sum`.
    """

    def __init__(self, runtime_shell: RuntimeShell, workspace: str, roots: Iterable[str]) -> None:
        self._runtime_shell = runtime_shell
        self._workspace = workspace
        self._roots = tuple(dict.fromkeys((workspace, *roots)))
        self._signatures: dict[str, str] = {}
        self._states: dict[str, FileState] = {}
        self.changes()

    def switch_layers(self, stack: LayerStack) -> None:
        raise NotImplementedError("a sandbox whose files are elsewhere has no layers here")

    def changes(self) -> tuple[FileChange, ...]:
        before = self._states
        found = self._scan_files()
        suspects = [path for path, seen in found.items() if self._signatures.get(path) != seen[0]]
        sums = self._hash_files({path: found[path][2] for path in suspects if not found[path][3]})
        # A file that can no longer be read keeps its digest.
        known = {path: state.sha256 for path, state in before.items()} | sums
        known |= {path: _size_digest(seen[0]) for path, seen in found.items() if seen[3]}
        self._states = {
            path: FileState(known[path], seen[1], is_hashed=not seen[3])
            for path, seen in found.items()
            if path in known
        }
        self._signatures = {path: seen[0] for path, seen in found.items()}
        paths = {*suspects, *(path for path in before if path not in self._states)}
        return compare_states(
            ((path, before.get(path), self._states.get(path)) for path in paths), self._workspace
        )

    def sha256(self, path: str) -> str | None:
        state = self._states.get(posixpath.normpath(posixpath.join(self._workspace, path)))
        return state.sha256 if state else None

    def _scan_files(self) -> dict[str, tuple[str, int, str | None, bool]]:
        """By path: the facts that change with the file, its permission bits, a link's target, whether it is too large."""
        roots = " ".join(shlex.quote(root) for root in self._roots)
        fields = self._run_and_split(
            f"{{ find {roots} -xdev -type d -name {EXCLUDED_DIRECTORY} -prune -o \\( -type f -o -type l \\) "
            "-printf '%p\\0%s %T@ %C@ %i %y %m\\0%l\\0' 2>/dev/null || true; }"
        )
        found = {}
        left = MAX_HASHED_BYTES
        for path, signature, target in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
            size, *_, kind, mode = signature.split()
            is_new = kind == "f" and self._signatures.get(path) != signature
            before = self._states.get(path)
            too_large = (
                int(size) > min(MAX_HASHED_FILE_BYTES, left)
                if is_new
                else not (before is None or before.is_hashed)
            )
            left -= int(size) if is_new and not too_large else 0
            found[path] = (signature, int(mode, 8), target if kind == "l" else None, too_large)
        return found

    def _hash_files(self, paths: dict[str, str | None]) -> dict[str, str]:
        links = {path: link for path, link in paths.items() if link is not None}
        sums = {
            path: hashlib.sha256(b"symlink:" + os.fsencode(link)).hexdigest() for path, link in links.items()
        }
        names = "\0".join(path for path in paths if path not in links)
        if names:
            listed = base64.b64encode(os.fsencode(names)).decode()
            lines = self._run_and_split(
                f"printf %s {listed} | base64 -d | xargs -0 -r sha256sum -z -- 2>/dev/null || true"
            )
            sums |= {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name}
        return sums

    def _run_and_split(self, command: str) -> list[str]:
        result = self._runtime_shell.run(command, timeout_s=_TIMEOUT_S)
        if result.exit_code != 0:
            raise SandboxUnavailableError("the sandbox could not list its files")
        return result.output.split("\0")


def _size_digest(signature: str) -> str:
    """The placeholder for the content of a file that is too large to hash."""
    size, time, *_ = signature.split()
    return hashlib.sha256(f"large:{size}:{time}".encode()).hexdigest()


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
