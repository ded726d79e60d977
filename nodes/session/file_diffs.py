"""Unified diffs, for a person, of the files that an action changed."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.text.skeleton import escape_invisible
from langgraph_takeover.handoff.trace.events import Differences
from langgraph_takeover.sandbox.changes.change_report import FileVersion
from langgraph_takeover.sandbox.changes.file_access import (
    read_base_versions,
    read_snapshot_versions,
    read_versions,
)
from langgraph_takeover.sandbox.interface import FileChange, Sandbox

MAX_DIFF_CHARS = 10_000
MAX_FILE_BYTES = 128_000
"""Of a larger file, the diff only has the size."""
_MAX_FILES = 20
_MAX_CACHED_BYTES = 8_000_000
_MAX_EQUAL_PAIRS = 1_000
"""Pairs of equal lines between the first and the last change. With more, all are shown as removed and added, because
comparing them takes seconds."""
_CONTEXT_LINES = 3


class FileDiffs:
    """The contents of files before an action, by digest, and the diffs to their contents after it.

    Contents are always verified by the digests of the changes, so a fork or a background program cannot mix them up.
    """

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}
        self._cached_bytes = 0
        self._has_read_differences = False
        self.add_content(b"")

    def add_content(self, content: bytes) -> None:
        """Add the content of a file before an action."""
        digest = hashlib.sha256(content).hexdigest()
        if digest not in self._contents:
            self._cached_bytes += len(content)
        self._contents[digest], self._sizes[digest] = content, len(content)
        while self._cached_bytes > _MAX_CACHED_BYTES:
            self._cached_bytes -= len(self._contents.pop(next(iter(self._contents))))

    def read_differences(self, sandbox: Sandbox, differences: Differences) -> None:
        """Read the files that earlier actions changed, once: after a resume their contents are only in the sandbox."""
        if not self._has_read_differences:
            paths = [path for path, (_, now) in differences.items() if now is not None]
            self._add_versions(read_versions(sandbox, paths[-_MAX_FILES:], MAX_FILE_BYTES).values())
        self._has_read_differences = True

    def describe(
        self, sandbox: Sandbox, changes: Iterable[FileChange], base_commit: str, keys: Collection[str] = ()
    ) -> str:
        """Return the diff of an action's changes without secrets, at most `MAX_DIFF_CHARS` long."""
        seen = [change for change in changes if not change.generated]
        shown = seen[:_MAX_FILES]
        self._read_contents(sandbox, shown, base_commit)
        found = ""
        for number, change in enumerate(shown):
            limit = (MAX_DIFF_CHARS - len(found)) // (len(shown) - number)
            section = _cut_text("".join(self._describe_file(change, keys)), limit)
            found += _cut_text(escape_invisible(section), limit)
        return found + (
            f"[… {len(seen) - len(shown)} more files changed …]\n" if len(seen) > len(shown) else ""
        )

    def _read_contents(self, sandbox: Sandbox, changes: Sequence[FileChange], base_commit: str) -> None:
        """Read the unknown contents after the action, and those before it, from the last snapshot or the base commit."""
        changed = [change for change in changes if change.renamed_from is None]
        after = {
            change.path: change.after
            for change in changed
            if change.after and change.after not in self._sizes
        }
        before = self._list_unknown(changed)
        self._add_versions(read_snapshot_versions(sandbox, before, MAX_FILE_BYTES).values())
        found = read_versions(sandbox, list(after), MAX_FILE_BYTES)
        self._add_versions(found.values())
        self._sizes |= {str(after[path]): each.size for path, each in found.items() if each.content is None}
        if before := self._list_unknown(changed):
            self._add_versions(read_base_versions(sandbox, base_commit, before, MAX_FILE_BYTES).values())

    def _list_unknown(self, changes: Iterable[FileChange]) -> list[str]:
        return [each.path for each in changes if each.before and each.before not in self._sizes]

    def _add_versions(self, versions: Iterable[FileVersion]) -> None:
        for each in versions:
            if each.content is not None:
                self.add_content(each.content)

    def _describe_file(self, change: FileChange, keys: Collection[str]) -> Iterator[str]:
        path = _escape_path(change.path)
        if change.renamed_from is not None:
            yield f"rename from {_escape_path(change.renamed_from)}\nrename to {path}\n"
        elif change.before != change.after:
            texts = self._find_text(change.before, keys), self._find_text(change.after, keys)
            if None in texts:
                sizes = self._describe_size(change.before), self._describe_size(change.after)
                yield f"Binary, large or unknown content of {path}: {sizes[0]} before, {sizes[1]} after\n"
            else:
                is_outside = change.path.startswith("/")
                names = (path, path) if is_outside else (f"a/{path}", f"b/{path}")
                yield f"--- {'/dev/null' if change.before is None else names[0]}\n"
                yield f"+++ {'/dev/null' if change.after is None else names[1]}\n"
                yield from _format_hunks(*(_split_lines(text or "") for text in texts))
        if change.before_mode is not None and change.after_mode is not None:
            yield f"Permissions of {path}: {change.before_mode:o} before, {change.after_mode:o} after\n"

    def _find_text(self, digest: str | None, keys: Collection[str]) -> str | None:
        """Return the text of a content, redacted; None if it is unknown or binary."""
        content = b"" if digest is None else self._contents.get(digest)
        if content is None or b"\0" in content:
            return None
        try:
            # Before comparing: a secret of several lines is not recognized between the marks of a diff.
            return redact(content.decode(), keys)
        except UnicodeDecodeError:
            return None

    def _describe_size(self, digest: str | None) -> str:
        if digest is None:
            return "no file"
        return f"{self._sizes[digest]:,} bytes" if digest in self._sizes else "unknown size"


def _escape_path(path: str) -> str:
    return escape_invisible(redact(path)).replace("\n", "\\n").replace("\t", "\\t")


def _split_lines(text: str) -> list[str]:
    """Return the lines as git counts them; a last line without a line feed is marked."""
    *lines, last = text.split("\n")
    return [f"{line}\n" for line in lines] + ([f"{last}\n\\ No newline at end of file\n"] if last else [])


def _format_hunks(before: list[str], after: list[str]) -> Iterator[str]:
    shortest = min(len(before), len(after))
    head = next((n for n in range(shortest) if before[n] != after[n]), shortest)
    rest = shortest - head
    tail = next((n for n in range(rest) if before[-1 - n] != after[-1 - n]), rest)
    start, end = max(head - _CONTEXT_LINES, 0), max(tail - _CONTEXT_LINES, 0)
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    counts = Counter(old)
    if sum(counts[line] for line in new) > _MAX_EQUAL_PAIRS:
        groups = [[("replace", 0, len(old), 0, len(new))]]
    else:
        groups = list(difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(_CONTEXT_LINES))
    for group in groups:
        (_, a, _, c, _), (_, _, b, _, d) = group[0], group[-1]
        yield f"@@ -{_format_range(start + a, b - a)} +{_format_range(start + c, d - c)} @@\n"
        for tag, i, j, k, m in group:
            if tag == "equal":
                yield from (f" {line}" for line in old[i:j])
            else:
                yield from (f"-{line}" for line in old[i:j])
                yield from (f"+{line}" for line in new[k:m])


def _format_range(start: int, length: int) -> str:
    return f"{start + 1 if length else start},{length}"


def _cut_text(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    kept = text[:limit].rpartition("\n")[0]
    return f"{kept}\n[… {len(text) - len(kept):,} characters left out …]\n"
