"""One database by URL, SQLite or PostgreSQL: transactions that no signal interrupts, and errors in one line."""

from __future__ import annotations

import re
import signal
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    MetaData,
    Table,
    TextClause,
    create_engine,
    event,
    insert,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as NoConnection
from tenacity import retry, retry_if_exception, stop_after_attempt, stop_after_delay, wait_fixed

from langgraph_takeover.base.failures import get_logger, run_all
from langgraph_takeover.base.takeover_error import LedgerUnavailableError, describe_other_version
from langgraph_takeover.base.untrusted_input import describe_error

_DEFERRED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_Handler = Callable[[int, Any], Any]


class defer_signals:  # noqa: N801  used as a statement
    """Deliver Ctrl-C and SIGTERM, if Python handles them, at the end of the block.

    A handler's exception may come between taking a lock and the `with` that would release it; the process would then
    wait for itself. Blocking signals in this thread would not help: another thread receives them, and the handler still
    runs here.
    """

    def __init__(self) -> None:
        self._handlers: list[tuple[int, _Handler]] = []
        self._pending: list[tuple[_Handler, int, Any]] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        found = [(number, signal.getsignal(number)) for number in _DEFERRED_SIGNALS]
        self._handlers = [(number, handler) for number, handler in found if callable(handler)]
        try:
            for number, handler in self._handlers:
                signal.signal(number, self._make_recorder(handler))
        except BaseException:  # one arrived before it was deferred
            _restore_handlers(self._handlers)
            raise

    def __exit__(self, *_: object) -> None:
        _restore_handlers(self._handlers)
        _deliver(self._pending)

    def _make_recorder(self, handler: _Handler) -> _Handler:
        return lambda number, frame: self._pending.append((handler, number, frame))


def _restore_handlers(handlers: list[tuple[int, _Handler]]) -> None:
    """Restore all handlers, even if one that is already restored raises."""
    if handlers:
        (number, handler), *others = handlers
        try:
            signal.signal(number, handler)
        finally:
            _restore_handlers(others)


def _deliver(pending: list[tuple[_Handler, int, Any]]) -> None:
    """Run the handler of every signal, even if an earlier one raises."""
    if pending:
        (handler, number, frame), *others = pending
        try:
            handler(number, frame)
        finally:
            _deliver(others)


_LOG = get_logger(__name__)
BUSY_S = 60.0
"""Seconds that a writer waits for another transaction."""
RECONNECT_S = 60.0
"""Seconds that a transaction waits for a PostgreSQL server that has gone away; a first connection does not wait."""
RETRY_PAUSE_S = 0.02
_RECONNECT_PAUSE_S = 0.25
_REPEATS = 3
_CONNECTION_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Parameters of libpq by which a server that disappears is noticed; parameters of the URL override them."""
_READ_ONLY_STATE = "25006"
"""SQLSTATE of a write on a standby, as a primary becomes after a failover."""
_OTHER_VERSION_CURE = "finish its threads with that version, or use another database"
_RESUME_WHEN_BACK = "resume when the server is back"
ERASE_DELETED = "PRAGMA secure_delete=ON"
"""Overwrite deleted rows of SQLite: the results of a deleted thread may be secret."""
_READ_ONLY_OPTION = "takeover_reads"
CLOSED = "it is closed here (use it inside its with block, or open it again)"
_ParametersT = ParamSpec("_ParametersT")
_ResultT = TypeVar("_ResultT")
Synchronous = Literal["NORMAL", "FULL"]
"""Whether an SQLite transaction survives only its process, or a power loss too."""


_POSTGRES_DISK_FULL = "53100"


class LedgerVersionError(LedgerUnavailableError):
    """Another version of this program created the database, and this one cannot use it."""


class ConnectionLostError(LedgerUnavailableError):
    """The server closed the connection inside a transaction."""

    def __init__(self, message: str, *, may_be_committed: bool) -> None:
        super().__init__(message)
        self.may_be_committed = may_be_committed
        """Whether the connection was lost during the commit, so that the transaction may have been applied."""


def repeat_after_loss(
    *, idempotent: bool
) -> Callable[[Callable[_ParametersT, _ResultT]], Callable[_ParametersT, _ResultT]]:
    """Repeat a function of one transaction that lost its connection; only an idempotent one if it may be committed."""

    def may_repeat(error: BaseException) -> bool:
        return isinstance(error, ConnectionLostError) and (idempotent or not error.may_be_committed)

    return retry(retry=retry_if_exception(may_repeat), stop=stop_after_attempt(_REPEATS), reraise=True)


class Database:
    """One open database; safe for several threads and processes at once."""

    def __init__(
        self, url: str, tables: MetaData, version: Table, schema: int, synchronous: Synchronous = "NORMAL"
    ) -> None:
        """Create missing tables. `version` is the table that holds the schema version of the whole database.

        Raises LedgerUnavailableError; LedgerVersionError for a database of another schema version than `schema`.
        """
        self.url = url
        self._engine = _create_engine(url, synchronous)
        self._is_closed = False
        self._gave_up = False
        """Whether a wait for the server has ended without success: nothing waits again until it is back."""
        self._has_refused_write = False
        """Whether the server became a standby: connections are checked until one can write."""
        self.is_sqlite = self._engine.dialect.name == "sqlite"
        try:
            self._create(tables, version, schema)
        except BaseException:
            self.close()
            raise

    def _create(self, tables: MetaData, version: Table, schema: int) -> None:
        with self.translate_errors(), self._engine.begin() as connection:
            if not self.is_sqlite:
                # Two processes that both find no tables must not both make them.
                connection.execute(text("SELECT pg_advisory_xact_lock(8402157)"))
            before = set(inspect(connection).get_table_names())
            known = select(version.c.version)
            found = connection.execute(known).scalar() if version.name in before else None
            if found not in (None, schema):
                raise LedgerVersionError(
                    f"{self.name}: {describe_other_version(found, schema, _OTHER_VERSION_CURE)}"
                )
            if found is None:
                self._check_new(before)
            tables.create_all(connection)
            if found is None:
                connection.execute(insert(version).values(version=schema))

    def _check_new(self, tables: set[str]) -> None:
        """Raise if a database without a schema version, which has those tables, cannot become one of this kind."""

    @contextmanager
    def write_transaction(self, *, waits: bool = True) -> Iterator[Connection]:
        """One transaction without any other writer; it commits completely or not at all.

        `waits` is whether it waits for a server that has gone away, at most `RECONNECT_S`. Raises ConnectionLostError.
        """
        with self._connect(waits) as connection:
            transaction = connection.begin()
            try:
                yield connection
            except BaseException as error:
                self._discard_lost(connection)
                run_all(transaction.rollback, error=error)
                raise
            try:
                transaction.commit()
            except BaseException as error:
                run_all(transaction.rollback, error=error)
                if self._discard_lost(connection):
                    raise self._make_loss(error, may_be_committed=True) from error
                raise

    def execute(self, statement: TextClause, values: dict[str, Any]) -> int:
        """Execute one statement in a transaction of its own, and return the number of its rows.

        Raises ConnectionLostError.
        """
        if self.is_sqlite:
            # Every step does this: with SQLAlchemy's connection, a step of 3.1 ms would take 3.6.
            self._require_open()
            with (
                defer_signals(),
                self.translate_errors(),
                closing(self._engine.raw_connection()) as connection,
            ):
                driver: Any = connection.driver_connection
                return int(driver.execute(statement.text, values).rowcount)
        with self.write_transaction() as connection:
            return connection.execute(statement, values).rowcount

    @contextmanager
    def read_transaction(self, *, waits: bool = True) -> Iterator[Connection]:
        with self._connect(waits) as connection:
            yield connection.execution_options(**{_READ_ONLY_OPTION: True})

    @contextmanager
    def autocommit_connection(self) -> Iterator[Connection]:
        with self._connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def _connect(self, waits: bool = True) -> Iterator[Connection]:
        """Check a connection out of the pool, which tests it; between attempts, Ctrl-C ends the wait."""
        self._require_open()
        began = time.monotonic()
        has_warned = False
        while True:
            with defer_signals(), self.translate_errors():
                try:
                    connection = self._check_out()
                except DBAPIError as error:
                    reason = _describe_cause(error.orig)
                    if self.is_sqlite or not waits or self._gave_up:
                        raise
                    if time.monotonic() - began >= RECONNECT_S:
                        self._gave_up = True
                        raise LedgerUnavailableError(
                            f"{self.name}: {reason} (waited {RECONNECT_S:.0f} s; {_RESUME_WHEN_BACK})"
                        ) from error
                else:
                    self._gave_up = False
                    with connection, self._explain_loss(connection):
                        yield connection
                    return
            if not has_warned:
                _LOG.warning("%s: %s; waiting up to %.0f s", self.name, reason, RECONNECT_S)
                has_warned = True
            time.sleep(_RECONNECT_PAUSE_S)

    def _check_out(self) -> Connection:
        connection = self._engine.connect()
        if self._has_refused_write:
            if connection.execute(text("SHOW transaction_read_only")).scalar() == "on":
                connection.invalidate()
                connection.close()
                raise DBAPIError(None, None, ConnectionError("the server accepts no writes"))
            connection.rollback()
            self._has_refused_write = False
        return connection

    @contextmanager
    def _explain_loss(self, connection: Connection) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, self._driver_error) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            if getattr(cause, "sqlstate", None) == _READ_ONLY_STATE:
                self._has_refused_write = True
                connection.invalidate()
            if self._discard_lost(connection):
                raise self._make_loss(error, may_be_committed=False) from error
            raise

    @property
    def _driver_error(self) -> type[Exception]:
        return self._engine.dialect.loaded_dbapi.Error

    def _make_loss(self, error: BaseException, *, may_be_committed: bool) -> ConnectionLostError:
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = next(iter(str(cause).strip().splitlines()), "")[:200]
        return ConnectionLostError(
            f"{self.name}: connection lost: {reason} ({_RESUME_WHEN_BACK})", may_be_committed=may_be_committed
        )

    def _discard_lost(self, connection: Connection) -> bool:
        """Whether the server has closed the connection; then the pool does not use it again."""
        if self.is_sqlite or connection.closed:
            return False
        if not connection.invalidated and connection.connection.driver_connection.closed:  # type: ignore[union-attr]
            connection.invalidate()
        return connection.invalidated

    def close(self) -> None:
        self._is_closed = True
        self._engine.dispose()

    def _require_open(self) -> None:
        # The engine would open the database again.
        if self._is_closed:
            raise LedgerUnavailableError(f"{self.name}: {CLOSED}")

    @contextmanager
    def translate_errors(self, *errors: type[Exception]) -> Iterator[None]:
        """Raise LedgerUnavailableError, in one line, for what a driver raises: these errors, or any of SQLAlchemy's."""
        try:
            yield
        except DBAPIError as error:
            raise _build_error(self.name, error.orig) from error
        except UnicodeDecodeError as error:  # even the driver's own message can quote damaged bytes
            raise _build_error(self.name, sqlite3.DatabaseError("malformed text")) from error
        except NoConnection as error:
            raise LedgerUnavailableError(f"{self.name}: too many threads use it at once") from error
        except (self._driver_error, *errors) as error:
            raise _build_error(self.name, error) from error

    @property
    def name(self) -> str:
        """The URL without its password."""
        return make_url(self.url).render_as_string(hide_password=True)


def _create_engine(url: str, synchronous: Synchronous) -> Engine:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        shown = re.sub("//[^/]*@", "//***@", url)[:40]
        raise LedgerUnavailableError(
            f"{shown!r} is not a database URL (use sqlite:///FILE or postgresql://…)"
        ) from error
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    options: dict[str, Any] = {}
    if parsed.drivername == "postgresql+psycopg":
        defaults = {name: value for name, value in _CONNECTION_DEFAULTS.items() if name not in parsed.query}
        # A pooler may run a statement on another connection than the one that prepared it.
        options["connect_args"] = defaults | {"prepare_threshold": None}
    if parsed.drivername.startswith("sqlite"):
        options["connect_args"] = {"timeout": BUSY_S, "check_same_thread": False}
        if parsed.database:
            _check_file(Path(parsed.database))
    try:
        engine = create_engine(parsed, pool_pre_ping=not parsed.drivername.startswith("sqlite"), **options)
    except (NoSuchModuleError, ImportError) as error:
        raise LedgerUnavailableError(
            f"{parsed.drivername}: its driver is not installed; pip install 'langgraph-takeover[postgres]', "
            "or give sqlite:///FILE"
        ) from error
    if engine.dialect.name == "sqlite":
        event.listen(
            engine, "connect", lambda connection, record: _configure_connection(connection, synchronous)
        )
        event.listen(engine, "begin", _begin_transaction)
    return engine


_FILE_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _check_file(path: Path) -> None:
    """Raise LedgerUnavailableError where no database file can be opened or created."""
    if not path.parent.is_dir():
        raise LedgerUnavailableError(f"{path}: directory not found: {path.parent} (create it)")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        kind = "a symlink to a missing file" if path.is_symlink() else None
    except OSError as error:
        kind = f"not readable ({describe_error(error)})"
    else:
        kind = _FILE_KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise LedgerUnavailableError(
            f"{path}: {kind}; the ledger must be a writable file (move {path.name} away, or name another file)"
        )


def _begin_transaction(connection: Connection) -> None:
    # A writer takes the lock at its start, so that writers wait for each other; readers never wait.
    reads = connection.get_execution_options().get(_READ_ONLY_OPTION)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _configure_connection(connection: Any, synchronous: Synchronous) -> None:
    # The driver must not begin transactions by itself.
    connection.isolation_level = None
    # Observations are large: small pages would leave an eighth of the file empty. It counts for new files only.
    connection.execute("PRAGMA page_size=16384")
    _enable_wal(connection)
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute(ERASE_DELETED)


def _is_locked(error: BaseException) -> bool:
    return (
        isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
    )


# SQLite itself gives up at once here: it reads by then, and the writer it would wait for may wait for readers.
@retry(
    retry=retry_if_exception(_is_locked),
    wait=wait_fixed(RETRY_PAUSE_S),
    stop=stop_after_delay(BUSY_S),
    reraise=True,
)
def _enable_wal(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")


def _build_error(name: str, cause: BaseException | None) -> LedgerUnavailableError:
    """The error of a driver in one line; a full disk has its own exit code."""
    error = LedgerUnavailableError(f"{name}: {_describe_cause(cause)}")
    code = getattr(cause, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_FULL or getattr(cause, "sqlstate", "") == _POSTGRES_DISK_FULL:
        error.exit_code = 4
    return error


def _describe_cause(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    message = lines[0] if lines else type(error).__name__
    if re.search("closed database|connection is closed", message):
        return CLOSED
    cures = {
        "disk is full": "free some space and resume",
        "readonly|unable to open|read-only": "the file and its directory must be writable",
        "not a database|malformed|decode to UTF-8|no such (column|table)|has no column": (
            "it is no SQLite database, or a damaged one; restore it from a copy, or name another file"
        ),
        "disk I/O error": "check the file and its disk, then restore it from a copy or name another file",
        "connection (refused|failed)|could not connect|connection to server": "is the server running, and the URL right?",
        "locked": "another process has held it for too long",
    }
    cure = next((cure for pattern, cure in cures.items() if re.search(pattern, message, re.IGNORECASE)), None)
    return f"{message[:200]}; {cure}" if cure else message[:200]
