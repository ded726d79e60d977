"""Text that a terminal, a file or an exporter can take."""

from __future__ import annotations


def escape_surrogates(text: str) -> str:
    """Return the text with bytes that are not UTF-8, as in old file names, written as escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def escape_unprintable(text: str) -> str:
    """Return a line that cannot control a terminal, whatever the name of a file or container in it."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in escape_surrogates(text)
    )
