"""What is done on a node of a cluster: it is asked whether it can work, works, and is tidied."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import sandbox
from evals.cluster.depot import Depot, Item, digest_of
from evals.cluster.likeness import Likeness, likeness
from evals.models import BadModel
from evals.run import threads
from evals.run.config import RunConfig
from evals.run.endings import TERMINATED, ending_on_sigterm
from evals.run.journal import Row
from evals.run.places import Places
from evals.run.setup import check, usage_errors
from evals.run.tidying import tidy
from evals.tasks import SUITE, Task
from handoff.ledger import LedgerUnusable
from handoff.record import NOTES_FILE, RecordRefused
from nodes.session import owner_of
from sandbox.machine import OutOfDisk, SandboxUnavailable
from sandbox.ownership import process_state as became_of
from sandbox.ownership import this_process
from sandbox.removal import remove_tree

FAILURES = (SandboxUnavailable, RecordRefused, LedgerUnusable)
"""What can go wrong on one node, and not on the next."""
DEPOT_CURE = "name a place that all nodes reach and may write to: --depot s3://BUCKET/DIRECTORY"
End = Literal["tidied", "killed", "told", "removed"]
_AT_WORK, _ENDING, _LOCK = ".at-work", ".ending", ".lock"
_LOOK_S = 0.2


class Post(NamedTuple):
    """One node's place in a run. Every node has a directory and machines of its own, whatever it shares."""

    node: str
    config: RunConfig
    depot: str
    parent: str | None
    suite: Path
    """Where the bundled tasks lie on the host that sends the jobs."""

    @property
    def own_config(self) -> RunConfig:
        """As its machines are named: another node's, on the same host or daemon, are not."""
        return self.config.model_copy(update={"run_id": f"{self.config.run_id}.{self.node}"})

    @property
    def directory(self) -> Path:
        return self._beside / f"{self._prefix}{self.node}"

    def others(self) -> dict[str, Path]:
        """The directories that nodes of this run have or had on this host."""
        found = {each.name.removeprefix(self._prefix): each for each in self._beside.glob(f"{self._prefix}*")}
        return {node: each for node, each in found.items() if node != self.node}

    @property
    def _beside(self) -> Path:
        return Path(self.parent or tempfile.gettempdir())

    @property
    def _prefix(self) -> str:
        return f"takeover-{self.config.run_id}-"


class Held(NamedTuple):
    """What a node has of earlier work of the run."""

    records: frozenset[str] = frozenset()
    threads: frozenset[str] = frozenset()


class Answer(NamedTuple):
    """What a node says of itself."""

    likeness: Likeness
    reason: str = ""
    """Why it cannot work, if it cannot."""
    token: Item | None = None
    """What it put into the depot."""
    held: Held | None = None


class Parcel(NamedTuple):
    """One job, with what the node must have for it."""

    stage: Callable[..., Row]
    arguments: tuple[Any, ...]
    needs: tuple[Item, ...]
    done: tuple[tuple[Task, Row], ...] = ()
    """Rows of this node that are safe by now."""


class Delivery(NamedTuple):
    """What came of a parcel: a row and what was put into the depot with it, or what went wrong here."""

    row: Row | None
    items: tuple[Item, ...] = ()
    trouble: str = ""
    full: bool = False
    """The trouble is that there is no room left on this node's disk."""


def answer(post: Post, tasks: tuple[Task, ...], token: Item, alive: frozenset[str] | None = None) -> Answer:
    """Whether this node can do what the run asks for, and what it works with.

    With the nodes that are alive, it is laid out as well if it can.
    """
    about = likeness(post.config, tasks)
    depot = Depot(post.depot)
    try:
        with tempfile.TemporaryDirectory(prefix="takeover-token-") as room:
            depot.fetch(token, Path(room) / "token")
            mine = Path(room) / "mine"
            mine.write_text(post.node)
            back = depot.put("tokens", post.node, mine)
    except SandboxUnavailable as error:
        return Answer(about, f"it does not share the depot ({error}); {DEPOT_CURE}")
    try:
        post.directory.parent.mkdir(parents=True, exist_ok=True)
        # An earlier run lies with the coordinator alone, which sends what it takes from it.
        own = post.own_config.model_copy(update={"records_of": None})
        check(own, tuple(located(task, post) for task in tasks), post.directory)
    except BadModel as error:
        return Answer(about, f"{error} (what counts is the environment of its `ray start`)")
    except usage_errors(OSError) as error:
        return Answer(about, str(error))
    return Answer(about, token=back, held=begun(post, alive) if alive is not None else None)


def begun(post: Post, alive: frozenset[str]) -> Held:
    """Lay the node's directory out, or find it; nothing runs in it, nor in those of nodes that are no more."""
    for node, directory in post.others().items():
        if node not in alive:
            _remove(post._replace(node=node), directory)
    places = Places(post.directory)
    with places.home() as home:
        remove_tree(post.directory / _AT_WORK)
        (post.directory / _AT_WORK).mkdir()
        (post.directory / _ENDING).unlink(missing_ok=True)
        tidy(post.own_config, places, home)
        return Held(frozenset(places.records.ids()), frozenset(home.threads()))


def carried_out(post: Post, parcel: Parcel) -> Delivery:
    """Do one job in the node's directory, and put what came of it where the others reach it."""
    try:
        with _at_work(post):
            return _carried_out(post, parcel)
    except OutOfDisk as error:
        return Delivery(None, trouble=str(error), full=True)
    except FAILURES as error:
        return Delivery(None, trouble=str(error))
    except SystemExit:
        return Delivery(None, trouble="it was told to end")


def ended(post: Post, how: End) -> None:
    """End what runs in the node's directory, at once or after the action it is at, and leave no machine of it."""
    if not post.directory.is_dir():
        return
    (post.directory / _ENDING).touch()
    number = {"told": signal.SIGTERM, "killed": signal.SIGKILL}.get(how)
    told: set[int] = set()
    while number is not None and (working := _working(post)):
        for pid in working - told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        told |= working
        time.sleep(_LOOK_S)
    if how == "removed":
        _remove(post, post.directory)
        return
    places = Places(post.directory)
    with places.home() as home:
        tidy(post.own_config, places, home)


def _carried_out(post: Post, parcel: Parcel) -> Delivery:
    places, depot, config = Places(post.directory), Depot(post.depot), post.own_config
    with places.home() as home:
        for task, row in parcel.done:
            threads.forget_machines(config, home, located(task, post), row)
    with _alone(post):
        for item in parcel.needs:
            _fetch(depot, item, places)
    first, *others = parcel.arguments
    row = parcel.stage(config, post.directory, located(first, post), *others)
    if "digest" in row:  # the daemon here may have the same record as an image
        row["digest"] = next(item.digest for item in parcel.needs if item.kind == "records")
    return Delivery(row, tuple(_put(depot, row, places)))


def _fetch(depot: Depot, item: Item, places: Places) -> None:
    if item.kind == "records":
        depot.fetch_record(item, places.records)
    elif item.kind == "notes":
        target = places.records.directory(item.name) / NOTES_FILE
        if digest_of(target) != item.digest:
            depot.fetch(item, target)
    elif not (places.work / item.name).exists():
        depot.fetch_tree(item, places.work / item.name)


def _put(depot: Depot, row: Row, places: Places) -> Iterator[Item]:
    for record in row.get("records", ()):
        yield depot.put_record(places.records.directory(record))
    if "trace" in row and (places.traces / f"{row['trace']}.json").is_file():
        yield depot.put("traces", row["trace"], places.traces / f"{row['trace']}.json")
    if row["outcome"] == "written":
        notes = places.records.directory(row["record_id"]) / NOTES_FILE
        yield depot.put("notes", row["record_id"], notes)
    for name in (row.get("trace"), f"snapshot.{row.get('record_id')}"):
        if name and (places.logs / name).is_dir():
            yield depot.put_tree("logs", name, places.logs / name)
            shutil.rmtree(places.logs / name)


def taken_up(depot: Depot, item: Item, places: Places) -> None:
    """Put what a node delivered where a run keeps it."""
    if item.kind == "traces":
        depot.fetch(item, places.traces / f"{item.name}.json")
    elif item.kind == "logs":
        depot.fetch_tree(item, places.logs / item.name)
    else:
        _fetch(depot, item, places)


def located(task: Task, post: Post) -> Task:
    """The task with its directory as this host has it."""
    if task.directory is None or not task.directory.is_relative_to(post.suite):
        return task
    return task.model_copy(update={"directory": SUITE / task.directory.relative_to(post.suite)})


@contextlib.contextmanager
def _at_work(post: Post) -> Iterator[None]:
    """Let `ended` know of this process meanwhile, and be ended by SIGTERM as a worker of one host is."""
    mark = post.directory / _AT_WORK / str(os.getpid())
    with ending_on_sigterm():
        try:
            mark.write_text(this_process())
            if (post.directory / _ENDING).exists():
                raise SystemExit(TERMINATED)
            yield
        finally:
            mark.unlink(missing_ok=True)


def _working(post: Post) -> set[int]:
    """The processes that are at a job of this node."""
    found = set()
    for mark in (post.directory / _AT_WORK).glob("*"):
        with contextlib.suppress(FileNotFoundError):
            if became_of(mark.read_text()) == "alive":
                found.add(int(mark.name))
    return found


@contextlib.contextmanager
def _alone(post: Post) -> Iterator[None]:
    """One process of the node at a time: they need the same checkouts and records."""
    with (post.directory / _LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove(post: Post, directory: Path) -> None:
    """Remove a node's directory, its machines and what they were frozen to."""
    config, places = post.own_config, Places(directory)
    owners = [config.run_id]
    with contextlib.suppress(LedgerUnusable), places.home() as home:
        owners += [owner_of(config.run_id, home.ledger, thread) for thread in home.threads()]
    with contextlib.suppress(SandboxUnavailable):
        sandbox.remove_leftovers(config.sandbox, *owners)
    remove_tree(directory)
