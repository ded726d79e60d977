"""Which files a machine has and which of them changed, asked from inside it by a shell of our own."""

from __future__ import annotations

import base64
import binascii
import hashlib
import posixpath
import shlex
from collections.abc import Iterable
from typing import NamedTuple

from sandbox.machine import FileChange, FileRefused, SandboxUnavailable
from sandbox.shell import Hand, shown

LARGEST_FILE = 16 * 1024 * 1024
_PRUNED = (".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache")
_TIMEOUT_S = 120.0


class _Stat(NamedTuple):
    signature: str
    link: str | None


class Files:
    """The files below some roots: reading, writing, and the difference since the last look.

    Everything happens inside the machine, so a symbolic link or a device that the agent left there
    can lead us nowhere else. Content is told apart by SHA-256; a file is hashed again when its size,
    times, inode or mode say that it may have changed.
    """

    def __init__(self, hand: Hand, workspace: str, roots: Iterable[str]) -> None:
        self._hand = hand
        self._workspace = workspace
        self._roots = tuple(dict.fromkeys((workspace, *roots)))
        self._stats = self._scan()
        self._sums = self._hash_all()

    def changes(self) -> tuple[FileChange, ...]:
        stats = self._scan()
        suspects = [path for path, stat in stats.items() if self._stats.get(path) != stat]
        # A file that may not be read any more keeps the digest it had.
        sums = {path: self._sums[path] for path in stats if path in self._sums}
        sums.update(self._hash(suspects, stats))
        touched = [*suspects, *(path for path in self._sums if path not in sums)]
        found = [
            FileChange(path=self._shown(path), before=self._sums.get(path), after=sums.get(path))
            for path in sorted(set(touched))
            if self._sums.get(path) != sums.get(path)
        ]
        self._stats, self._sums = stats, sums
        return tuple(found)

    def sha256(self, path: str) -> str | None:
        return self._sums.get(posixpath.normpath(posixpath.join(self._workspace, path)))

    def read(self, path: str) -> bytes:
        quoted = self._quoted(path)
        encoded = self._ask(
            f"if [ -d {quoted} ]; then echo 'is a directory'; exit_code=1; "
            f"elif [ ! -e {quoted} ]; then echo 'no such file'; exit_code=1; "
            f"elif [ ! -f {quoted} ]; then echo 'not a regular file'; exit_code=1; "
            f'elif [ "$(stat -Lc %s -- {quoted})" -gt {LARGEST_FILE} ]; then echo "too large"; exit_code=1; '
            f"else base64 -w0 -- {quoted}; exit_code=$?; fi; (exit $exit_code)",
            path,
        )
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise FileRefused(f"{path}: could not be read: {encoded[:200]}") from error

    def write(self, path: str, content: bytes) -> None:
        quoted = self._quoted(path)
        text = base64.b64encode(content).decode()
        self._ask(
            f"if [ -e {quoted} ] && [ ! -f {quoted} ]; then echo 'not a regular file'; (exit 1); "
            f'else mkdir -p -- "$(dirname -- {quoted})" && printf %s {text} | base64 -d > {quoted}; fi',
            path,
        )

    def listing(self, path: str) -> tuple[str, ...] | None:
        quoted = self._quoted(path)
        command = f"[ -d {quoted} ] && find {quoted}/ -mindepth 1 -maxdepth 1 -printf '%f/%y\\0'"
        result = self._hand.run(command, timeout_s=_TIMEOUT_S)
        if result.exit_code != 0:
            return None
        entries = (entry.rpartition("/") for entry in sorted(result.output.split("\0")[:-1]))
        return tuple(shown(name) + "/" * (kind == "d") for name, _, kind in entries)

    def _quoted(self, path: str) -> str:
        if "\0" in path:
            raise FileRefused("a path cannot contain a NUL byte")
        return shlex.quote(posixpath.join(self._workspace, path))

    def _ask(self, command: str, path: str) -> str:
        result = self._hand.run(command, timeout_s=_TIMEOUT_S)
        if result.timed_out:
            raise FileRefused(f"{path}: no answer in {_TIMEOUT_S:.0f} s")
        if result.exit_code != 0:
            raise FileRefused(f"{path}: {result.output.strip() or 'refused'}")
        return result.output

    def _shown(self, path: str) -> str:
        inside = self._workspace.rstrip("/") + "/"
        return shown(path.removeprefix(inside))

    def _scan(self) -> dict[str, _Stat]:
        fields = self._raw(
            self._find("\\( -type f -o -type l \\) -printf '%p\\0%s %T@ %C@ %i %m %y\\0%l\\0'")
        )
        return {
            path: _Stat(signature, link if signature.endswith(" l") else None)
            for path, signature, link in zip(fields[::3], fields[1::3], fields[2::3], strict=False)
        }

    def _hash_all(self) -> dict[str, str]:
        links = [path for path, stat in self._stats.items() if stat.link is not None]
        return self._sums_of(self._find("-type f -print0")) | self._hash(links, self._stats)

    def _hash(self, paths: list[str], stats: dict[str, _Stat]) -> dict[str, str]:
        sums = {}
        plain = []
        for path in paths:
            link = stats[path].link
            if link is None:
                plain.append(shlex.quote(path))
            else:
                sums[path] = hashlib.sha256(b"symlink:" + link.encode("utf-8", "surrogateescape")).hexdigest()
        return sums | (self._sums_of(f"printf '%s\\0' {' '.join(plain)}") if plain else {})

    def _sums_of(self, names: str) -> dict[str, str]:
        """`names` is a command that prints paths, each ended by a NUL."""
        lines = self._raw(f"{names} | xargs -0 -r sha256sum -z -- 2>/dev/null || true")
        return {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name}

    def _find(self, what: str) -> str:
        roots = " ".join(shlex.quote(root) for root in self._roots)
        pruned = " -o ".join(f"-name {name}" for name in _PRUNED)
        return (
            f"{{ find {roots} -xdev \\( -type d \\( {pruned} \\) -prune \\) -o {what} 2>/dev/null || true; }}"
        )

    def _raw(self, command: str) -> list[str]:
        result = self._hand.run(command, timeout_s=_TIMEOUT_S)
        if result.exit_code != 0:
            raise SandboxUnavailable("the sandbox could not list its files")
        return result.output.split("\0")
