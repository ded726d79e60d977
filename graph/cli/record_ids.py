"""The homes of a user, and the ids of records and handoffs, as all commands read them."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer
from typer import Argument, Option

from langgraph_takeover.base.texts import escape_unprintable
from langgraph_takeover.base.untrusted_input import describe_error
from langgraph_takeover.graph.cli.handoff_options import DATABASE_FILE, UsageError, list_homes, print_safely
from langgraph_takeover.handoff.names import HOME_VARIABLE, PROJECT_HOME, USER_HOME

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from langgraph_takeover.graph.continuation.capture import CaptureProgress
    from langgraph_takeover.graph.continuation.undo import Removal
    from langgraph_takeover.handoff.ledger import Ledger
    from langgraph_takeover.handoff.ledger.handoffs import Handoff

_MAX_SHOWN = 10
RecordArgument = Annotated[
    str,
    Argument(
        help="Id of a record or handoff, its beginning, or a directory.",
        metavar="RECORD",
        show_default=False,
    ),
]


class FoundRecord(NamedTuple):
    """Where a record is."""

    directory: Path
    handoff: Handoff | None = None
    """The handoff, if its id was named."""

    @property
    def id(self) -> str:
        return self.directory.name

    @property
    def home(self) -> Path:
        """The home with the record. Raises UsageError if its directory is in none."""
        if self.directory.parent.name != "records":
            raise UsageError(
                f"RECORD: {self.directory}: not in a home (use: handoff export, then handoff import)"
            )
        return self.directory.parent.parent


def select_id(kind: str, text: str, ids: Iterable[str]) -> str | None:
    """Return the id that a text names: the same one, or the only one that begins with it; None without one.

    Raises UsageError if several begin with it.
    """
    known = list(dict.fromkeys(ids))
    if text in known:
        return text
    matching = sorted(each for each in known if text and each.startswith(text))
    if len(matching) > 1:
        more = f" and {len(matching) - _MAX_SHOWN} more" if len(matching) > _MAX_SHOWN else ""
        raise UsageError(
            f"{kind} {text!r:.80} is ambiguous: {', '.join(matching[:_MAX_SHOWN])}{more} (pass more of the id)"
        )
    return matching[0] if matching else None


def find_record(
    text: str,
    home: Path | None,
    *,
    database: str | None = None,
    list_others: Callable[[Path], Iterable[str]] = lambda home: (),
) -> FoundRecord:
    """Return where the record is that a text names: its directory, its `record.json`, its id, or a handoff's id.

    Without a home, the homes are those of `list_homes`. `list_others` lists further ids of a home, whose records may be
    gone. Raises UsageError.
    """
    from langgraph_takeover.handoff.records.record import RECORD_FILE, RecordStore

    path = Path(text).expanduser()
    try:
        is_record = (path / RECORD_FILE).is_file()
        if path.name == RECORD_FILE and path.is_file():
            return FoundRecord(path.resolve().parent)
    except OSError as error:
        raise UsageError(f"RECORD: {text:.200}: {describe_error(error)}") from error
    if is_record:
        return FoundRecord(path.resolve())
    homes = list_homes(home)
    if len(path.parts) > 1:
        raise UsageError(f"RECORD: record not found: {text:.200} (pass its id, or its directory)")
    ids = {each: [*RecordStore(each / "records").list_ids(), *list_others(each)] for each in homes}
    chosen = select_id("RECORD:", text, (name for own in ids.values() for name in own))
    if chosen is not None:
        places = [each for each, own in ids.items() if chosen in own]
        if len(places) > 1:
            names = " and ".join(map(str, places))
            raise UsageError(f"RECORD: {chosen} is in {names} (name one: --home {places[0]})")
        return FoundRecord(places[0].absolute() / "records" / chosen)
    for each in homes:
        if (handoff := _find_handoff(text, each, database)) is not None:
            return FoundRecord(each.absolute() / "records" / handoff.record, handoff)
    where = ", ".join(map(str, homes))
    place = f" --home {home}" if home is not None else ""
    raise UsageError(f"RECORD: record not found: {text!r:.80} in {where} (list them: handoff list{place})")


def _find_handoff(text: str, home: Path, database: str | None) -> Handoff | None:
    with open_ledger(home, database) as ledger:
        return find_handoff(ledger, text) if ledger is not None else None


def find_handoff(ledger: Ledger, text: str) -> Handoff | None:
    """Return the handoff that a text names by its id or the id's beginning. Raises UsageError if several match."""
    from langgraph_takeover.handoff.ledger import handoffs

    chosen = select_id("HANDOFF:", text, (each.id for each in handoffs.list_handoffs(ledger)))
    return handoffs.find(ledger, chosen) if chosen is not None else None


def load_handoff(ledger: Ledger, text: str) -> Handoff:
    """Return the handoff that a text names. Raises HandoffNotFoundError, and UsageError if several match."""
    from langgraph_takeover.handoff.ledger import handoffs

    return find_handoff(ledger, text) or handoffs.load(ledger, text)


@contextmanager
def open_ledger(home: Path, database: str | None) -> Iterator[Ledger | None]:
    """Open a home's ledger; None if it has none. Raises LedgerUnavailableError."""
    from langgraph_takeover.handoff.ledger import Ledger

    file = home / DATABASE_FILE
    if database is None and not file.is_file():
        yield None
        return
    ledger = Ledger(database or f"sqlite:///{file.absolute()}")
    try:
        yield ledger
    finally:
        ledger.close()


class ListedRecord(NamedTuple):
    """A record in a list."""

    id: str
    home: str
    source: str
    """The captured agent, or the predecessor."""
    point: str
    """The handoff point; of a record that cannot be read, the reason."""
    made_at: float
    """Seconds since 1970."""
    task: str
    events: int = 0
    """The number of events before the point."""

    def to_json(self) -> dict[str, Any]:
        """The record beside handoffs in one list."""
        return {"kind": "record", "record": self.id, "state": "record", "target": "", **self._asdict()}


def describe_records(home: Path) -> list[ListedRecord]:
    """Describe the records of a home, the oldest first; one that cannot be read, too."""
    from langgraph_takeover.handoff.records.record import RecordError, RecordStore

    store = RecordStore(home / "records")
    found = []
    for record_id in store.list_ids():
        try:
            record = store.load(record_id)
        except RecordError:
            found.append(ListedRecord(record_id, str(home), "", "cannot be read", 0.0, ""))
            continue
        source = record.external.agent if record.external else record.predecessor
        try:
            made_at = datetime.fromisoformat(record.created_at).timestamp()
        except ValueError:
            made_at = 0.0
        task = " ".join(record.task.prompt.split())
        found.append(
            ListedRecord(
                record_id, str(home), source, record.point.kind, made_at, task, record.point.event_index + 1
            )
        )
    return sorted(found, key=lambda each: (each.made_at, each.events))  # times have whole seconds


ModelBuilder: TypeAlias = "Callable[[str, str], tuple[BaseChatModel, str]]"
"""Builds the model of a name for an external agent; also returns the model name that the agent sends."""
_MAX_LARGE = 20
_LARGE_BYTES = 100 * 1000**2
_STATUS_S, _LOG_S = 0.2, 5.0
MAX_SHOWN = 5
AgentHomeOption = Annotated[
    Path | None,
    Option(
        "--home",
        envvar=HOME_VARIABLE,
        help="Home: directory of the records.",
        show_default=f"{PROJECT_HOME}, and {USER_HOME}",
    ),
]


def list_some(names: tuple[str, ...]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return f"{', '.join(names[:MAX_SHOWN])}{more}"


def print_removal(done: Removal) -> None:
    """Print the removed and the remaining files. Raises Exit with code 3 if any remain."""
    for path in done.removed:
        print_safely(f"removed   {path}")
    for path in done.left:
        print_safely(f"left      {path}")
    for path in done.kept:
        print_safely(f"stays     {path}")
    if not done.removed and not done.left:
        print_safely("nothing to remove: everything is gone already")
    if done.left:
        raise typer.Exit(3)


def suggest_command(home: Path, *words: str) -> str:
    """Return a command of Takeover as a person types it."""
    from langgraph_takeover.sandbox.cli.program import program_name

    is_default = home.expanduser().absolute() == USER_HOME.expanduser()
    place = () if is_default else ("--home", str(home))
    return f"{program_name('handoff', 'handoff')} {shlex.join((*words, *place))}"


@contextmanager
def show_status(action: str) -> Iterator[None]:
    """Show a spinner with an action on standard error."""
    from rich.console import Console

    with Console(file=sys.stderr, highlight=False).status(action):
        yield


@contextmanager
def show_progress(action: str) -> Iterator[Callable[[CaptureProgress], None]]:
    """Show on standard error how far a capture is: a spinner, or in a log a line every few seconds.

    Large files are named before they are read.
    """
    from rich.console import Console
    from rich.filesize import decimal

    console = Console(file=sys.stderr, highlight=False, markup=False, soft_wrap=True)
    last = time.monotonic()
    with console.status(action) as status:

        def show(progress: CaptureProgress) -> None:
            nonlocal last
            is_first = not progress.done_bytes
            for path, size, stored in progress.large[:_MAX_LARGE] if is_first else ():
                holes = f", {decimal(stored)} without its holes" if stored < size else ""
                console.print(
                    f"large file: {escape_unprintable(path)} ({decimal(size)}{holes}); to leave it out: --exclude"
                )
            now = time.monotonic()
            if not is_first and now - last < (_STATUS_S if console.is_terminal else _LOG_S):
                return
            text = progress.stage
            if progress.total_bytes:
                text += f": {decimal(progress.done_bytes)} of {decimal(progress.total_bytes)}, {progress.files:,} files"
            if console.is_terminal:
                status.update(text)
                last = now
            elif now - last >= _LOG_S or (is_first and progress.total_bytes >= _LARGE_BYTES):
                console.print(text)
                last = now

        yield show


@contextmanager
def report_continuation_errors() -> Iterator[None]:
    """Name the option of an unknown view."""
    from langgraph_takeover.handoff.views import UnknownViewError

    try:
        yield
    except UnknownViewError as error:
        raise UsageError(f"--view: {error}") from error
