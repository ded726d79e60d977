"""The format of a sandbox's difference from its base as a single file: a layer of the Open Container Initiative.

`.wh.NAME` means that NAME was deleted; `.wh..wh..opq` means that the directory hides the base's content. So the same file
is a Docker image's layer and an overlay directory of the `host` back end.
"""

from __future__ import annotations

MAX_LAYER_BYTES = 64 * 1024**3
MAX_MEMBERS = 1_000_000
MAX_EXTENDED_HEADER_BYTES = 1024**2
"""The extended header of one member in bytes: long names, times and attributes. Docker takes no more either."""
MAX_TOTAL_EXTENDED_HEADER_BYTES = 256 * 1024**2
"""The limit for all members together."""
MAX_TOTAL_PATH_BYTES = 128 * 1024**2
"""The paths of all members together, in bytes."""
WHITEOUT_PREFIX = ".wh."
OPAQUE_MARK = ".wh..wh..opq"
ROOT_NAME = "."
BLOCK_BYTES = 256 * 1024
"""Bytes that are read or written at once."""
ZEROS = bytes(BLOCK_BYTES)


def archive_name(digest: str) -> str:
    """Return the file name of a snapshot's archive in its directory, from the digest of its content."""
    return f"{digest}.tar.zst"
