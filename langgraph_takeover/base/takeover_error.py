"""The base class of all errors, the error of a database, and the refusal of what another version wrote."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


class TakeoverError(Exception):
    """Base class of all errors that this project raises on purpose.

    Example:
        >>> from langgraph_takeover import TakeoverError, take_over
        >>> try:
        ...     take_over(home, "fix-3", record_id="unknown", model=model, sandbox=sandbox_spec)
        ... except TakeoverError as error:
        ...     print(type(error).__name__)
        RecordError
    """

    exit_code: int = 2
    """Exit code of a command: 2 if the caller can correct it, 3 if the host or a stored state failed, 4 if a disk is full."""


class LedgerUnavailableError(TakeoverError):
    """The database cannot be opened, read or written; one line that says which, why, and what to do."""

    exit_code = 3


PROGRAM = "langgraph-takeover"
_EARLIER_RELEASE = "0.1"
"""The release that reads every earlier form."""


def find_program_version() -> str:
    """Return the version of this program; `unknown` if it is not installed."""
    try:
        return version(PROGRAM)
    except PackageNotFoundError:
        return "unknown"


def describe_other_version(found: object, current: int, cure: str) -> str:
    """Say in one line who reads a form of the schema version `found`; `cure` is the fix for an older form.

    Example:
        >>> describe_other_version(9, 10, "make it again")  # doctest: +ELLIPSIS
        'schema version 9, which version 0.1 reads; langgraph-takeover ... reads only 10 (make it again)'
    """
    origin = ""
    if isinstance(found, int):
        origin = (
            f", which version {_EARLIER_RELEASE} reads"
            if found < current
            else ", which a newer version wrote"
        )
        cure = cure if found < current else "update the program"
    shown = f"{found!r:.40}"
    return f"schema version {shown}{origin}; {PROGRAM} {find_program_version()} reads only {current} ({cure})"
