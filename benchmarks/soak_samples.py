"""What a soak watches: the process that embeds the runtime, what is left on this host and its daemon, and the disk."""

from __future__ import annotations

import contextlib
import gc
import sqlite3
import tempfile
import threading
from collections.abc import Collection
from pathlib import Path

import psutil

from benchmarks.soak_growth import Measure
from sandbox import removal, storage

MB = 1e6
MEASURES = (
    Measure("memory of the process, MB", 24.0, "hour"),
    Measure("open descriptors", 0.02, "operation"),
    Measure("threads", 0.02, "operation"),
    Measure("children", 0.02, "operation"),
    Measure("zombies", 0.02, "operation"),
    Measure("containers", 0.02, "operation"),
    Measure("images", 0.02, "operation"),
    Measure("mounts", 0.02, "operation"),
    Measure("runs in the depot", 0.02, "operation"),
    Measure("marks in the depot", 0.02, "operation"),
    Measure("bases in the depot", 0.02, "operation"),
    Measure("machines in the home", 0.02, "operation"),
    Measure("temporary files", 0.02, "operation"),
    Measure("depot, MB", 0.1, "operation"),
    Measure("home's files, MB", 0.05, "operation"),
    Measure("home's database, MB", 0.1, "operation"),
    Measure("home's write-ahead log, MB", 0.1, "operation"),
    Measure("kept runs, MB", 0.25, "operation"),
)


def of_process() -> dict[str, float]:
    """Of this process, and what it has started or taken in."""
    gc.collect()
    this = psutil.Process()
    dead = 0
    children = this.children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            dead += child.status() == psutil.STATUS_ZOMBIE
    return {
        "memory of the process, MB": this.memory_info().rss / MB,
        "open descriptors": this.num_fds(),
        "threads": threading.active_count(),
        "children": len(children) - dead,
        "zombies": dead,
    }


def of_depot() -> dict[str, float]:
    """Of the directory that `TAKEOVER_HOME` names, and of the one for temporary files."""
    root = storage.root()
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "mounts": sum(line.split()[4].startswith(f"{root}/") for line in mounts),
        "runs in the depot": _names(root / "runs"),
        "marks in the depot": _names(root / "locks"),
        "bases in the depot": _names(root / "bases"),
        "temporary files": _names(Path(tempfile.gettempdir())),
        "depot, MB": removal.size(root) / MB,
    }


def of_homes(home: Path, runs: Path) -> dict[str, float]:
    """Of the home that stays open all the time, and of the runs that are kept for a while."""
    database = home / "takeover.sqlite"
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as opened:
        (pages,), (page,) = (
            opened.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
        )
    log = sum(path.stat().st_size for path in home.glob(f"{database.name}-*"))
    files = removal.size(home) - sum(path.stat().st_blocks * 512 for path in home.glob(f"{database.name}*"))
    return {
        "machines in the home": _names(home / "machines"),
        "home's files, MB": files / MB,
        "home's database, MB": pages * page / MB,
        "home's write-ahead log, MB": log / MB,
        "kept runs, MB": removal.size(runs) / MB,
    }


def of_daemon(owners: Collection[str], *, asked: bool) -> dict[str, float]:
    """Containers and images of these runs and their threads; none where no daemon is `asked`."""
    if not asked:
        return {"containers": 0, "images": 0}
    from sandbox.gc_docker import list_resources

    kinds = [one.kind for one in list_resources() if is_of(one.owner, owners)]
    return {"containers": kinds.count("container"), "images": kinds.count("image")}


def is_of(owner: str, owners: Collection[str]) -> bool:
    """Whether somebody's things are of one of these runs, or of a thread of one."""
    return owner in owners or owner.rpartition(".")[0] in owners


def _names(directory: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return len(list(directory.iterdir()))
    return 0
