"""Types of garbage collection: a resource, and a request."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

ResourceKind = Literal["container", "image", "process", "run", "partial", "temporary", "base", "other"]


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Something on this host or its Docker daemon that a run made."""

    kind: ResourceKind
    owner: str = ""
    name: str
    location: str
    """Its path, its Docker id or its process id."""
    size_bytes: int = 0
    age_s: float = 0.0
    reason: str
    """Why it is stale, or why it is kept."""
    is_stale: bool = False


class CollectionRequest(NamedTuple):
    """Options of a collection: what to inspect and what to remove beyond the default."""

    owner: str | None = None
    include_snapshots: bool = False
    include_bases: bool = False
    stores: tuple[Path, ...] = ()

    def command_line(self, program: str) -> str:
        """The command line of this request, as `PROGRAM gc …`."""
        words = ["--owner", self.owner] if self.owner else []
        words += ["--snapshots"] if self.include_snapshots else []
        words += ["--bases"] if self.include_bases else []
        words += [word for store in self.stores for word in ("--store", str(store))]
        return shlex.join([*program.split(), "gc", *words])


DEFAULT_REQUEST = CollectionRequest()
