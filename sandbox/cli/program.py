"""What all command lines share: their name in the commands that they suggest, and their standard output."""

from __future__ import annotations

import codecs
import io
import sys
from functools import partial

_PACKAGE = "langgraph_takeover"
_DEGRADE = "takeover.degrade"


def program_name(script: str, module: str) -> str:
    """Return `python -m MODULE` if the program was started so, else the name of the installed script.

    `module` is the short name, such as `evals.takeover`.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    started_as = spec.name.removesuffix(".__main__") if spec else ""
    return f"python -m {started_as}" if started_as in (module, f"{_PACKAGE}.{module}") else script


_LOOK_ALIKES = str.maketrans(
    {"–": "-", "—": "-", "−": "-", "…": "...", "Δ": "delta", "×": "x", "→": "->", "≤": "<=", "≥": ">="}
)


def degrade_output() -> None:
    """Let standard output write, where its encoding lacks a character, a look-alike or an escape such as `\\u4e2d`."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        codecs.register_error(_DEGRADE, partial(_degrade, keeps_bytes=sys.stdout.errors == "surrogateescape"))
        sys.stdout.reconfigure(errors=_DEGRADE)


def _degrade(error: UnicodeError, *, keeps_bytes: bool) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start]
    if keeps_bytes and "\udc80" <= missing <= "\udcff":  # a byte of a file name
        return bytes([ord(missing) - 0xDC00]), error.start + 1
    return missing.translate(_LOOK_ALIKES).encode("ascii", "backslashreplace").decode(), error.start + 1
