"""Contents of small files of the repository in a sandbox, read in one call."""

from __future__ import annotations

import base64
import binascii
import shlex
from collections.abc import Sequence

from langgraph_takeover.sandbox.interface import Sandbox

# A link is no content of the repository; a file that becomes a pipe meanwhile must not block the caller. One `find` tests
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
