"""How one bash that stays alive runs one command after another over a stream of bytes."""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Callable
from typing import Protocol

from sandbox.machine import ExecResult, SandboxUnavailable

OUTPUT_LIMIT = 64 * 1024
ANSWER_LIMIT = 64 * 1024 * 1024
GRACE_S = 2.0
_LOOK_S = 0.25
_LONGEST_PATH = 4096
_SENTINEL_SLACK = 128 + _LONGEST_PATH


class Channel(Protocol):
    """A bash process, or the wire to one: what goes to its input and what comes from its output."""

    def send(self, data: bytes) -> None: ...

    def receive(self, timeout_s: float) -> bytes | None:
        """Bytes that have come; None when none came in time; empty when the shell has ended."""

    def alive(self) -> bool:
        """Whether the shell runs; what it left running may hold its output open."""

    def complaint(self) -> str:
        """Why the shell did not start, where that is known."""

    def end(self) -> int | None:
        """Make sure that the shell is gone; its exit code, as a shell counts it, unless we killed it."""


class Clip:
    """The head and the tail of a stream of any length, in bounded memory."""

    def __init__(self, limit: int, errors: str) -> None:
        self._half = limit // 2
        self._errors = errors
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        excess = len(self._tail) - self._half
        if excess > 0:
            self._dropped += excess
            del self._tail[:excess]

    def text(self) -> str:
        if not self._dropped:
            return (self._head + self._tail).decode("utf-8", self._errors)
        head, tail = (part.decode("utf-8", self._errors) for part in (self._head, self._tail))
        return f"{head}\n[… {self._dropped:,} bytes of output left out …]\n{tail}"


class Shell:
    """One bash; the end of each command is known by a random line that no command can foresee."""

    def __init__(
        self, channel: Channel, *, output_limit: int = OUTPUT_LIMIT, errors: str = "backslashreplace"
    ) -> None:
        self._channel = channel
        self._limit = output_limit
        self._errors = errors
        self._early = b""  # what background jobs wrote after the last command's end
        self.pid = 0
        self.cwd = "/"

    def prepare(self, script: str, *, timeout_s: float = 60.0) -> None:
        """Run what must have happened before the first command, and learn pid and directory."""
        result = self.run(script + '\n\\builtin printf "\\nshell-pid=%s" "$$"', timeout_s=timeout_s)
        match = re.search(r"shell-pid=(\d+)$", result.output)
        if result.exit_code != 0 or match is None:
            told = self._channel.complaint() or result.output.strip()
            raise SandboxUnavailable(f"the sandbox's shell did not start: {told[-400:]}")
        self.pid = int(match.group(1))

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        output_limit: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> ExecResult:
        """Run one command and wait for its end; `shell_ended` means that this shell is of no more use.

        On a time-out, or as soon as `stopped` says so, the command still runs: the caller ends it, then
        calls `settle`.
        """
        if "\0" in command:
            raise ValueError("a command cannot contain a NUL byte")
        nonce = secrets.token_hex(16)
        # The command sees no input and cannot reach ours: bash has read this whole line before it runs.
        # Descriptor 99 makes bash put its output back after an `exec >file`; a backslash steps over an alias,
        # `unset -f` over a function of the agent's that has one of the names that we need.
        line = (
            f"\\unset -f eval; \\eval {shlex.quote(command)} </dev/null 99>&1 >&99 2>&1 99>&-; "
            "__exit_code=$?; \\unset -f builtin; "
            f'\\builtin printf \'\\n%s %d %s\\0\' {nonce} "$__exit_code" "$PWD"\n'
        )
        self._sentinel = re.compile(b"\n" + nonce.encode() + rb" (\d+) ([^\0]*)\0")
        self._clip = Clip(output_limit or self._limit, self._errors)
        self._window = b""
        self._started = time.monotonic()
        self._absorb(self._early)
        self._early = b""
        try:
            self._channel.send(line.encode("utf-8", "surrogateescape"))
        except OSError:
            return self._ended()
        return self._wait(timeout_s, stopped)

    def settle(self) -> ExecResult:
        """After a time-out, when the command has been killed: the shell's own report, if it comes."""
        return self._wait(GRACE_S)

    def close(self) -> None:
        self._channel.end()

    def _wait(self, timeout_s: float, stopped: Callable[[], bool] = lambda: False) -> ExecResult:
        deadline = time.monotonic() + timeout_s
        while True:
            left = 0.0 if stopped() else deadline - time.monotonic()
            data = self._channel.receive(min(left, _LOOK_S)) if left > 0 else None
            if data is None and not self._channel.alive():
                data = self._channel.receive(0) or b""
            elif data is None and left > 0:
                continue
            if data is None:
                return ExecResult(
                    output=self._text(), exit_code=None, timed_out=True, seconds=self._seconds()
                )
            if not data:
                return self._ended()
            match = self._absorb(data)
            if match is not None:
                self.cwd = match.group(2).decode("utf-8", "surrogateescape")
                return ExecResult(output=self._text(), exit_code=int(match.group(1)), seconds=self._seconds())

    def _absorb(self, data: bytes) -> re.Match[bytes] | None:
        """Take in output; everything but a window that may hold the sentinel's beginning is final."""
        self._window += data
        match = self._sentinel.search(self._window)
        if match is not None:
            self._early = self._window[match.end() :]
            self._window = self._window[: match.start()]
            return match
        surplus = len(self._window) - _SENTINEL_SLACK
        if surplus > 0:
            self._clip.add(self._window[:surplus])
            self._window = self._window[surplus:]
        return None

    def _text(self) -> str:
        self._clip.add(self._window)
        self._window = b""
        return self._clip.text()

    def _ended(self) -> ExecResult:
        code = self._channel.end()
        return ExecResult(output=self._text(), exit_code=code, shell_ended=True, seconds=self._seconds())

    def _seconds(self) -> float:
        return time.monotonic() - self._started


class Hand:
    """The runtime's own shell; replaced when a command hung in it or the agent killed it."""

    def __init__(self, open_shell: Callable[[], Channel]) -> None:
        self._open_shell = open_shell
        self._shell = self._new()

    def run(self, command: str, *, timeout_s: float) -> ExecResult:
        """Run one command. Raises SandboxUnavailable when no shell can be had that runs it."""
        result = self._shell.run(command, timeout_s=timeout_s)
        if result.shell_ended:
            self._shell = self._new()
            result = self._shell.run(command, timeout_s=timeout_s)
            if result.shell_ended:
                raise SandboxUnavailable("the sandbox ends every shell that looks into it")
        elif result.timed_out:
            self._shell.close()
            self._shell = self._new()
        return result

    def close(self) -> None:
        self._shell.close()

    def _new(self) -> Shell:
        shell = Shell(self._open_shell(), output_limit=ANSWER_LIMIT, errors="surrogateescape")
        shell.prepare("export LC_ALL=C")
        return shell


def shown(text: str) -> str:
    """Text that came from bytes, with those that are not UTF-8 written out."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
