"""New files: the native session in an agent's home, and the files that the agent reads. No file is ever replaced."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from langgraph_takeover.base.failures import clean_up
from langgraph_takeover.graph.continuation.interactive import INTERACTIVE_COMMANDS, find_agent_directory
from langgraph_takeover.graph.continuation.undo import STAGING_SUFFIX
from langgraph_takeover.graph.errors import ContinuationError
from langgraph_takeover.handoff.agents.adapter import NativeSession
from langgraph_takeover.sandbox.interface import OutOfDiskError


def list_session_files(agent: str, user_home: Path, session: NativeSession | None) -> dict[Path, str]:
    """Return the files of the native session by their paths in the agent's home. Raises ContinuationError."""
    files = {}
    for name, text in (session.files if session else {}).items():
        below = Path(name).relative_to(INTERACTIVE_COMMANDS[agent].home_directory)
        path = find_agent_directory(agent, user_home) / below
        if os.path.lexists(path):
            raise ContinuationError(f"{path}: exists already (try again)")
        files[path.absolute()] = text
    return files


def list_missing_directories(files: Mapping[Path, str]) -> list[Path]:
    """Return the directories that the files need and that do not exist, the outermost first."""
    missing = {parent for path in files for parent in path.parents if not parent.exists()}
    return sorted(missing, key=lambda path: len(path.parts))


def create_file(path: Path, text: str) -> None:
    """Write a new file, complete or not at all; never replace one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{secrets.token_hex(8)}{STAGING_SUFFIX}")
    with clean_up(lambda: part.unlink(missing_ok=True)):
        try:
            with part.open("xb") as out:
                part.chmod(0o600)
                out.write(text.encode("utf-8", "backslashreplace"))
                out.flush()
                os.fsync(out.fileno())
            os.link(part, path)
        except FileExistsError as error:
            raise ContinuationError(f"{path}: exists already (try again)") from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OutOfDiskError(f"{path}: the disk is full; nothing was kept") from error
            raise


def digest_text(text: str) -> str:
    """Return the SHA-256 of a file with that text."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
