"""The background processes of a sandbox: recorded as data, without secrets, and started again from it."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import secrets
import shlex
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from langgraph_takeover.base.secret_names import PASSWORD_IN_URL, REDACTED, is_secret_name, is_secret_value
from langgraph_takeover.sandbox.interface import (
    MAX_ARGUMENT_CHARS,
    MAX_ARGUMENTS,
    MAX_PATH_CHARS,
    MAX_PORTS,
    MAX_PROCESSES,
    MAX_VALUE_CHARS,
    MAX_VARIABLES,
    BackgroundProcess,
    ExecResult,
    ProcessStart,
)
from langgraph_takeover.sandbox.isolation.freezer import innermost_pid
from langgraph_takeover.sandbox.shell_state import FROM_TEXT, SHELL_VARIABLES, ShellState, to_json_text

_MAX_READ_BYTES = 1 << 20
_MAX_DESCRIPTORS = 4_096
_PROGRAMS = "/opt/takeover/"
"""Programs that the runtime mounts: an external agent is not a process of its own sandbox."""
_SHELL_ARGUMENTS = ("--norc", "--noprofile")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_LISTENS, _UNCONNECTED = "0A", "07"
_NETWORK_FILES = (("tcp", _LISTENS), ("tcp6", _LISTENS), ("udp", _UNCONNECTED), ("udp6", _UNCONNECTED))
_SETTING = re.compile(
    r"(?<![A-Za-z0-9_])([A-Za-z_][\w.-]{0,99}+)((?:=|:\s{0,3}+)[\"']?)((?:(?:Bearer|Basic|Token)\s{1,3}+)?[^\s\"']++)"
)
_OPTION = re.compile(r"--?([A-Za-z][\w-]{0,99})")
_ALWAYS_SECRET = re.compile("PASS|SECRET|TOKEN|CREDENTIAL", re.IGNORECASE)
_NEVER_SECRET = re.compile(r"[0-9]{1,6}|true|false|none|null|(?:~|\.\.?)?/.*|\$.*", re.IGNORECASE | re.DOTALL)

_Sockets = dict[str, tuple[str, int]]
"""Protocol and port of the sockets that take connections or messages, by their links in `/proc/PID/fd`."""


class ObservedProcess(NamedTuple):
    """A process as this host sees it."""

    pid: int
    """Its id on this host."""
    parent: int
    start_tick: int
    argv: tuple[str, ...]
    is_complete: bool
    """Whether the command line was read completely."""

    @property
    def is_forked_shell(self) -> bool:
        """Whether it is a part of the agent's shell, such as a loop in the background."""
        return posixpath.basename(self.argv[0]) == "bash" and self.argv[1:] == _SHELL_ARGUMENTS

    @property
    def is_mounted_program(self) -> bool:
        return any(word.startswith(_PROGRAMS) for word in self.argv[:3])


class ProcessTable:
    """The processes of one sandbox at one moment, with the sockets of each; those that end meanwhile are left out."""

    def __init__(self, pids: Collection[int]) -> None:
        found = [process for pid in pids if (process := _read_process(pid)) is not None]
        self._by_pid = {process.pid: process for process in sorted(found, key=lambda each: each.start_tick)}
        self._children = defaultdict[int, list[ObservedProcess]](list)
        for process in self._by_pid.values():
            self._children[process.parent].append(process)
        self._sockets: dict[str, _Sockets] = {}
        """By the network namespace."""

    def list_ports(self, pid: int) -> dict[str, set[int]]:
        """Return the ports on which a process and its descendants listen, by protocol."""
        found: dict[str, set[int]] = {"tcp": set(), "udp": set()}
        for each in (pid, *(below.pid for below in self._list_descendants(pid))):
            links = [link for link in _list_descriptors(each) if link.startswith("socket:")]
            # The kernel takes milliseconds to list sockets.
            sockets = self._find_sockets(each) if links else {}
            for link in links:
                if link in sockets:
                    protocol, port = sockets[link]
                    found[protocol].add(port)
        return found

    def list_all_ports(self) -> set[int]:
        """Return the TCP ports on which any process listens."""
        return {
            port
            for pid, process in self._by_pid.items()
            if process.parent not in self._by_pid
            for port in self.list_ports(pid)["tcp"]
        }

    def has_inner_pid(self, inner_pid: int) -> bool:
        """Whether a process has that id inside the sandbox."""
        return any(innermost_pid(pid) == inner_pid for pid in self._by_pid)

    def list_top_level(self) -> Iterator[ObservedProcess]:
        """Yield what a person would start again, oldest first: no workers, and a server instead of the shell that started it.

        A part of the shell without a server is yielded itself.
        """
        programs = self._find_mounted_programs()
        waiting = [each for each in self._by_pid.values() if each.parent not in self._by_pid]
        while waiting:
            process = waiting.pop(0)
            below = self._children[process.pid]
            if process.pid in programs:
                waiting[:0] = below
                continue
            servers = [each for each in below if process.is_forked_shell and self._is_server(each)]
            if servers:
                waiting[:0] = servers
            else:
                yield process

    def _is_server(self, process: ObservedProcess) -> bool:
        return any(self.list_ports(process.pid).values())

    def _find_mounted_programs(self) -> set[int]:
        """Return the programs that the runtime has mounted, and the processes that lead to them."""
        found: set[int] = set()
        for process in self._by_pid.values():
            above: ObservedProcess | None = process if process.is_mounted_program else None
            while above is not None and above.pid not in found:
                found.add(above.pid)
                above = self._by_pid.get(above.parent)
        return found

    def _list_descendants(self, pid: int) -> list[ObservedProcess]:
        found, waiting = dict[int, ObservedProcess](), list(self._children[pid])
        while waiting:
            process = waiting.pop()
            if process.pid not in found:
                found[process.pid] = process
                waiting += self._children[process.pid]
        return list(found.values())

    def _find_sockets(self, pid: int) -> _Sockets:
        with contextlib.suppress(OSError):
            namespace = str(Path(f"/proc/{pid}/ns/net").readlink())
            if namespace not in self._sockets:
                self._sockets[namespace] = _read_sockets(pid)
            return self._sockets[namespace]
        return {}


def record_background_processes(pids: Collection[int], state: ShellState) -> tuple[BackgroundProcess, ...]:
    """Record the top-level processes among these, oldest first; `state` is that of the agent's shell, which starts them again.

    More than 100 are counted in a last entry.
    """
    if not pids:
        return ()
    table = ProcessTable(pids)
    exported = {name: each.value for name, each in state.variables.items() if "x" in each.attributes}
    found = [
        _record_process(process, table.list_ports(process.pid), exported)
        for process in table.list_top_level()
    ]
    recorded = [each for each in found if each is not None]
    more = len(recorded) - MAX_PROCESSES
    if more <= 0:
        return tuple(recorded)
    rest = BackgroundProcess(argv=(f"{more} more processes",), directory="/", obstacle="unreadable")
    return (*recorded[:MAX_PROCESSES], rest)


def _record_process(
    process: ObservedProcess, ports: Mapping[str, Collection[int]], exported: Mapping[str, str | None]
) -> BackgroundProcess | None:
    """Return how to start a process again; None if it has ended."""
    try:
        directory = to_json_text(str(Path(f"/proc/{process.pid}/cwd").readlink()))
    except FileNotFoundError:
        return None
    except OSError:
        directory = ""
    argv, has_secret = redact_arguments(process.argv)
    is_usable = process.is_complete and directory.startswith("/") and len(directory) <= MAX_PATH_CHARS
    environment, withheld = _read_environment(process.pid, exported)
    common: dict[str, Any] = {
        "directory": directory if is_usable else "/",
        "tcp_ports": tuple(sorted(ports["tcp"])[:MAX_PORTS]),
        "udp_ports": tuple(sorted(ports["udp"])[:MAX_PORTS]),
    }
    if process.is_forked_shell:
        return BackgroundProcess(**common, obstacle="shell")
    return BackgroundProcess(
        **common,
        argv=argv,
        environment=environment,
        withheld=withheld,
        output=_find_output(process.pid, 1),
        errors=_find_output(process.pid, 2),
        obstacle="secret" if has_secret else "" if is_usable else "unreadable",
    )


def redact_arguments(argv: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return a command line without passwords, tokens and the like, and whether it had any."""
    clean: list[str] = []
    option = ""
    for word in argv:
        if option and not word.startswith("-") and _is_secret_argument(option, word):
            clean.append(REDACTED)
        else:
            clean.append(PASSWORD_IN_URL.sub(f"://{REDACTED}@", _SETTING.sub(_redact_setting, word)))
        found = _OPTION.fullmatch(word)
        option = found[1] if found is not None else ""
    return tuple(clean), clean != list(argv)


def _redact_setting(setting: re.Match[str]) -> str:
    name, sign, value = setting.groups()
    return f"{name}{sign}{REDACTED}" if _is_secret_argument(name, value) else setting[0]


def _is_secret_argument(name: str, value: str) -> bool:
    if not is_secret_name(name) or _NEVER_SECRET.fullmatch(value):
        return False
    return is_secret_value(value) or _ALWAYS_SECRET.search(name) is not None


def _read_environment(pid: int, exported: Mapping[str, str | None]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that differ from the shell's, and the names of those whose values are not recorded."""
    try:
        lines = _read_file(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return {}, ()
    found: dict[str, str] = {}
    withheld: list[str] = []
    for line in lines:
        name, sign, value = to_json_text(os.fsdecode(line)).partition("=")
        is_own = sign and _VARIABLE_NAME.fullmatch(name) and not SHELL_VARIABLES.fullmatch(name)
        if not is_own or exported.get(name) == value:
            continue
        is_withheld = (
            is_secret_name(name)
            or PASSWORD_IN_URL.search(value) is not None
            or len(value) > MAX_VALUE_CHARS
            or len(found) == MAX_VARIABLES
        )
        if is_withheld:
            withheld.append(name)
        else:
            found[name] = value
    return found, tuple(sorted({*withheld}))[:MAX_VARIABLES]


def _find_output(pid: int, descriptor: int) -> str:
    """Return the file that a process writes to; empty if that is no file, such as the shell's own pipe."""
    path = f"/proc/{pid}/fd/{descriptor}"
    with contextlib.suppress(OSError):
        name = to_json_text(str(Path(path).readlink()))
        is_null = name == "/dev/null"
        if (is_null or stat.S_ISREG(Path(path).stat().st_mode)) and len(name) <= MAX_PATH_CHARS:
            return name.removesuffix(" (deleted)")
    return ""


def _read_process(pid: int) -> ObservedProcess | None:
    """Read a process; None if it has ended, or is a zombie."""
    try:
        # The name before the last parenthesis can contain anything.
        before, _, after = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
        raw = _read_file(f"/proc/{pid}/cmdline")
    except OSError:
        return None
    state, *fields = after.split()
    if not raw:
        if state in (b"Z", b"X"):
            return None
        raw = b"[" + before.partition(b"(")[2] + b"]"
    words = [to_json_text(os.fsdecode(word)) for word in raw.rstrip(b"\0").split(b"\0")]
    if len(words) == 1 and " " in words[0] and not words[0].startswith("/"):
        words = words[0].split()  # a program such as npm, which writes its title over its command line
    is_complete = (
        bool(words)
        and len(words) <= MAX_ARGUMENTS
        and sum(map(len, words)) <= MAX_ARGUMENT_CHARS
        and not words[0].startswith("[")
    )
    if not is_complete:
        words = [word[:200] for word in words[:10]]
    return ObservedProcess(pid, int(fields[0]), int(fields[18]), tuple(words), is_complete)


def _read_file(path: str) -> bytes:
    """Read a file of the kernel's, at most 1 MB."""
    with Path(path).open("rb") as file:
        return file.read(_MAX_READ_BYTES)


def _list_descriptors(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for _, entry in zip(range(_MAX_DESCRIPTORS), entries, strict=False):
            with contextlib.suppress(OSError):
                yield str(Path(entry.path).readlink())


def _read_sockets(pid: int) -> _Sockets:
    """Read the sockets of a process's network namespace."""
    found: _Sockets = {}
    for name, wanted in _NETWORK_FILES:
        with contextlib.suppress(OSError):
            for line in _read_file(f"/proc/{pid}/net/{name}").decode(errors="replace").splitlines()[1:]:
                fields = line.split()
                if len(fields) > 9 and fields[3] == wanted:
                    port = int(fields[1].rpartition(":")[2], 16)
                    if port:
                        found[f"socket:[{fields[9]}]"] = name[:3], port
    return found


def relocate_processes(
    processes: Iterable[BackgroundProcess], replace: Callable[[str], str]
) -> tuple[BackgroundProcess, ...]:
    """Replace directories in processes, for a sandbox that has others."""
    return tuple(
        each.model_copy(
            update={
                "argv": tuple(map(replace, each.argv)),
                "environment": {name: replace(value) for name, value in each.environment.items()},
                "directory": replace(each.directory),
                "output": replace(each.output),
                "errors": replace(each.errors),
            }
        )
        for each in processes
    )


def render_start_code(process: BackgroundProcess, mark: str) -> str:
    """Render the code that starts a process in the background of a shell, and prints its id there between two marks."""
    exports = "".join(
        f" && \\builtin export {name}={shlex.quote(value)}" for name, value in process.environment.items()
    )
    output = f" >>{shlex.quote(process.output)}" if process.output else ""
    errors = " 2>&1" if process.errors == process.output else ""
    if process.errors and not errors:
        errors = f" 2>>{shlex.quote(process.errors)}"
    code = (
        f"( \\builtin cd -- {shlex.quote(process.directory)}{exports} && "
        f"\\builtin exec -- {shlex.join(process.argv)} ) </dev/null{output}{errors} &\n"
        f'\\builtin printf "\\n%s %s %s\\n" {mark} "$!" {mark}'
    )
    return code.translate(FROM_TEXT)


def describe_obstacle(process: BackgroundProcess) -> str:
    """Say why a process cannot be started again; empty if nothing is known."""
    obstacles = {
        "": "",
        "secret": "its command line has a secret, which is not recorded",
        "shell": "it is a loop, a function or a list of commands of the shell",
        "unreadable": "its command line could not be recorded",
    }
    return obstacles[process.obstacle]


_RUN_TIMEOUT_S = 30.0
_POLL_S = 0.02
_SETTLE_S = 0.5
"""A process without ports that has not ended by then counts as started."""


class ProcessStarter:
    """Starts recorded processes in the background of a shell, and waits until they listen.

    Args:
        run: runs a command in the shell.
        list_pids: lists what runs in the sandbox, as this host numbers it; None if it cannot be listed.
    """

    def __init__(
        self, run: Callable[[str], ExecResult], list_pids: Callable[[], Collection[int] | None]
    ) -> None:
        self._run, self._list_pids = run, list_pids

    def start_all(
        self, processes: Sequence[BackgroundProcess], *, timeout_s: float
    ) -> tuple[ProcessStart, ...]:
        deadline = time.monotonic() + timeout_s
        return tuple(
            ProcessStart(process=each, problem=self._start(each, deadline, timeout_s)) for each in processes
        )

    def _start(self, process: BackgroundProcess, deadline: float, timeout_s: float) -> str:
        """Start one process; return why it does not run, or an empty text."""
        if reason := describe_obstacle(process):
            return f"not started: {reason}"
        mark, earlier = secrets.token_hex(8), frozenset(self._list_pids() or ())
        result = self._run(render_start_code(process, mark))
        found = re.search(rf"{mark} (\d{{1,9}}) {mark}", result.output)
        if found is None or result.exit_code != 0 or result.shell_ended:
            return "not started: the shell could not start it"
        return self._wait(process, int(found[1]), earlier, deadline, timeout_s)

    def _wait(
        self,
        process: BackgroundProcess,
        inner_pid: int,
        earlier: Collection[int],
        deadline: float,
        timeout_s: float,
    ) -> str:
        settled = time.monotonic() + _SETTLE_S
        missing = set(process.tcp_ports)
        while True:
            pids = self._list_pids()
            if pids is None:
                return (
                    "" if not missing else f"cannot be watched from this host: {_name_ports(missing)} unknown"
                )
            table = ProcessTable({*pids}.difference(earlier))  # an earlier one may have the port
            missing = set(process.tcp_ports) - table.list_all_ports()
            now = time.monotonic()
            if process.tcp_ports and not missing:
                return ""
            if not table.has_inner_pid(inner_pid):
                return self._describe_end(process, inner_pid)
            if not process.tcp_ports and now > min(settled, deadline):
                return ""
            if now > deadline:
                return f"runs, but does not listen on {_name_ports(missing)} after {timeout_s:g} s"
            time.sleep(_POLL_S)

    def _describe_end(self, process: BackgroundProcess, inner_pid: int) -> str:
        mark = secrets.token_hex(8)
        result = self._run(
            f'\\builtin wait {inner_pid}; \\builtin printf "\\n%s %s %s\\n" {mark} "$?" {mark}'
        )
        found = re.search(rf"{mark} (\d{{1,9}}) {mark}", result.output)
        code = f" with exit code {found[1]}" if found is not None else ""
        where = process.errors or process.output
        output = f" (its output: {where})" if where not in ("", "/dev/null") else ""
        return f"ended at once{code}{output}"


def _name_ports(ports: Collection[int]) -> str:
    return f"port{'' if len(ports) == 1 else 's'} {', '.join(map(str, sorted(ports)))}"
