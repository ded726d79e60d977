"""A bash that stays alive and runs one command after another over a stream of bytes."""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import signal
import time
from collections.abc import Callable
from typing import Protocol

from langgraph_takeover.sandbox.interface import MAX_SHELL_STATE_CHARS, ExecResult, SandboxUnavailableError
from langgraph_takeover.sandbox.shell_state import (
    PRINT_STATE,
    ShellState,
    parse_printed_state,
    render_restore_code,
)

OUTPUT_LIMIT = 64 * 1024
RUNTIME_OUTPUT_LIMIT = 64 * 1024 * 1024
EXIT_SIGNAL = signal.SIGRTMAX
"""The signal that makes an agent's shell stop, print its state and become a new bash."""
_OTHER_SIGNALS = " ".join(str(number) for number in range(1, int(EXIT_SIGNAL)) if number not in (32, 33))
"""A program inherits which signals are ignored, and bash cannot trap those; the C library uses two of them."""
GRACE_S = 5.0
_ALIVE_CHECK_S = 0.25
"""Pause between two checks whether a silent shell still runs."""
_STOP_CHECK_S = 0.05
"""Pause between two checks whether a command must end."""
_LONG_COMMAND_BYTES = 2048
_MAX_PATH_BYTES = 4096
_SENTINEL_SLACK = 128 + _MAX_PATH_BYTES
_OUTCOME = re.compile(rb" (\d+) ([^\0]*)\0")
PROTOCOL_DESCRIPTOR = 198
"""A descriptor of every shell that leads to us, wherever a command's output goes."""
_START_COMMAND = f"exec 2>/dev/null {PROTOCOL_DESCRIPTOR}>&1; BASH_ARGV0=bash"
"""A new bash's first line; bash's own messages, as under `set -x`, are discarded from then on."""
_CLOSE_COMMAND = (
    "for __exit_code in /proc/self/fd/*; do case ${__exit_code##*/} in "
    f'[012] | {PROTOCOL_DESCRIPTOR} | 255) ;; *) eval "exec ${{__exit_code##*/}}>&-" ;; esac; done'
)
"""Closes the descriptors that an interrupted command had open, with the locks on them."""
_INPUT_COPY = 100
"""Where bash keeps the shell's input while a command runs: the first descriptor after that of `<&99`."""


class ShellNotStartedError(SandboxUnavailableError):
    """A shell did not start. If the agent's processes use up their limit, another try can succeed."""


class Channel(Protocol):
    """A bash process, or the channel to one: its input and output."""

    limits_command: str
    """Script that limits the bash, run first."""
    state_mark: str
    """The mark of `make_setup` if the bash has run that already; otherwise empty."""

    def send(self, data: bytes) -> None: ...

    def receive(self, timeout_s: float) -> bytes | None:
        """Bytes that arrived; None if none arrived in time; empty when the shell has ended."""

    def is_alive(self) -> bool:
        """Whether the shell runs; background processes may hold its output open."""

    def start_error(self) -> str:
        """Why the shell did not start, if known."""

    def end(self) -> int | None:
        """Make sure that the shell is gone; return its exit code, as a shell counts it, unless we killed it."""


class ClippedOutput:
    """The head and the tail of a stream of any length, in bounded memory."""

    def __init__(self, limit: int, errors: str) -> None:
        self._half = limit // 2
        self._errors = errors
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        space = self._half - len(self._head)
        if space > 0:
            self._head += data[:space]
            data = data[space:]
        self._tail += data
        excess = len(self._tail) - self._half
        if excess > 0:
            self._dropped += excess
            del self._tail[:excess]

    @property
    def is_whole(self) -> bool:
        return not self._dropped

    def text(self) -> str:
        if not self._dropped:
            return (self._head + self._tail).decode("utf-8", self._errors)
        head, tail = (part.decode("utf-8", self._errors) for part in (self._head, self._tail))
        return f"{head}\n[… {self._dropped:,} bytes of output left out …]\n{tail}"


class Shell:
    """One bash; a random line that no command can predict marks each command's end."""

    def __init__(
        self, channel: Channel, *, output_limit: int = OUTPUT_LIMIT, errors: str = "backslashreplace"
    ) -> None:
        self.channel = channel
        self._state_mark = ""
        self._limit = output_limit
        self._errors = errors
        self._early_output = b""  # what background jobs wrote after the last command's end
        self.pid = 0
        self.cwd = "/"

    def prepare(self, script: str, *, timeout_s: float = 60.0) -> None:
        """Prepare the shell, and learn its pid and directory.

        From then on `EXIT_SIGNAL` makes this shell print its state and become a new bash with the same input and output.
        """
        self._state_mark = self.channel.state_mark
        if not self._state_mark:
            self._send_setup()
        result = self.run(script + '\n\\builtin printf "\\nshell-pid=%s" "$$"', timeout_s=timeout_s)
        match = re.search(r"shell-pid=(\d+)$", result.output)
        if result.exit_code != 0 or match is None:
            self.close()
            trouble = self.channel.start_error() or result.output.strip()
            raise ShellNotStartedError(f"the sandbox's shell did not start: {trouble[-400:]}")
        self.pid = int(match.group(1))

    def _send_setup(self, first: str = "") -> None:
        self._state_mark = secrets.token_hex(16)
        with contextlib.suppress(OSError):
            self.channel.send(
                f"{first}{make_setup(self._state_mark, self.channel.limits_command)}\n".encode()
            )

    def restore(self, state: ShellState, *, timeout_s: float) -> bool:
        """Restore another shell's state; return whether this shell is still alive."""
        # Some lines fail, such as those of variables that are read-only here; that is expected, and silent.
        done = self.run(f"\\exec 2>/dev/null\n{render_restore_code(state)}", timeout_s=timeout_s)
        self._early_output = done.output.encode() + self._early_output  # of processes in the background
        return not done.timed_out and not done.shell_ended

    def restart(self, state: ShellState, *, timeout_s: float) -> bool:
        """Give the bash that this shell has become the state of `read_exit_state`; return whether it answers."""
        self._send_setup(f"{_CLOSE_COMMAND}; ")
        return self.restore(state, timeout_s=timeout_s)

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        payload: bytes | None = None,
        output_limit: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> ExecResult:
        """Run one command and wait for its end; `shell_ended` means that this shell cannot be used any more.

        `payload` is the command's standard input, which it must read to the end; default: none. After a time-out, or
        when `should_stop` returns true, the command still runs, and only this shell's state can still be read.
        """
        if not self._send_command(command, payload, output_limit):
            return self._make_ended_result()
        return self._wait(timeout_s, should_stop)

    def _send_command(
        self,
        command: str,
        payload: bytes | None = None,
        output_limit: int | None = None,
        errors: str | None = None,
    ) -> bool:
        """Send the command; return whether there is a shell to run it."""
        nonce = secrets.token_hex(16)
        line = _frame_command(command, nonce, reads_input=payload is not None)
        self._sentinel = b"\n" + nonce.encode()
        self._clip = ClippedOutput(output_limit or self._limit, errors or self._errors)
        self._window = b""
        self._started = time.monotonic()
        self._consume(self._early_output)
        self._early_output = b""
        try:
            self.channel.send(line + (payload or b""))
        except OSError:
            return False
        return True

    def request_state(self) -> Callable[[float], ShellState | None]:
        """Ask the shell for its state in the background; the returned function waits for it, that many seconds.

        It returns None if the shell does not print a state that can be stored.
        """
        mark = secrets.token_hex(16)
        # In a subshell, because the agent's traps do not act there.
        sent = self._send_command(
            f"({PRINT_STATE.format(mark=mark)}) 2>/dev/null",
            output_limit=2 * MAX_SHELL_STATE_CHARS,
            errors="surrogateescape",
        )
        return lambda timeout_s: self._read_state(mark, timeout_s) if sent else None

    def read_exit_state(self) -> ShellState | None:
        """Return the state of a shell that was sent `EXIT_SIGNAL`; afterwards it is a new bash, or gone, or hangs."""
        self._clip = ClippedOutput(2 * MAX_SHELL_STATE_CHARS, "surrogateescape")
        self._sentinel = b"\n" + self._state_mark.encode()
        # If the command ended at the same moment, the signal acts when the shell reads on.
        with contextlib.suppress(OSError):
            self.channel.send(b"\n")
        return self._read_state(self._state_mark, GRACE_S)

    def _read_state(self, mark: str, timeout_s: float) -> ShellState | None:
        printed = self._wait(timeout_s).output
        return parse_printed_state(printed, mark) if self._clip.is_whole else None

    def close(self) -> None:
        self.channel.end()

    def _wait(self, timeout_s: float, should_stop: Callable[[], bool] = lambda: False) -> ExecResult:
        deadline = time.monotonic() + timeout_s
        next_look = time.monotonic() + _ALIVE_CHECK_S
        while True:
            left = 0.0 if should_stop() else deadline - time.monotonic()
            data = self.channel.receive(min(left, _STOP_CHECK_S)) if left > 0 else None
            if data is None and left > 0 and time.monotonic() < next_look:
                continue
            next_look = time.monotonic() + _ALIVE_CHECK_S
            if data is None and not self.channel.is_alive():
                data = self.channel.receive(0) or b""
            elif data is None and left > 0:
                continue
            if data is None:
                return ExecResult(
                    output=self._take_output(), exit_code=None, timed_out=True, seconds=self._elapsed_s()
                )
            if not data:
                return self._make_ended_result()
            match = self._consume(data)
            if match is not None:
                self.cwd = match.group(2).decode("utf-8", "surrogateescape")
                return ExecResult(
                    output=self._take_output(), exit_code=int(match.group(1)), seconds=self._elapsed_s()
                )

    def _consume(self, data: bytes) -> re.Match[bytes] | None:
        """Add output; everything is final except a window that may hold the start of the end mark."""
        self._window += data
        at = -1
        while (at := self._window.find(self._sentinel, at + 1)) >= 0:
            match = _OUTCOME.match(self._window, at + len(self._sentinel))
            if match is not None:
                self._early_output = self._window[match.end() :]
                self._window = self._window[:at]
                return match
        surplus = len(self._window) - _SENTINEL_SLACK
        if surplus > 0:
            self._clip.add(self._window[:surplus])
            self._window = self._window[surplus:]
        return None

    def _take_output(self) -> str:
        self._clip.add(self._window)
        self._window = b""
        return self._clip.text()

    def _make_ended_result(self) -> ExecResult:
        code = self.channel.end()
        self._window = _remove_begun_mark(self._window, self._sentinel)
        return ExecResult(
            output=self._take_output(), exit_code=code, shell_ended=True, seconds=self._elapsed_s()
        )

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started


def _remove_begun_mark(output: bytes, sentinel: bytes) -> bytes:
    """Return the output without the start of the end mark, which a shell writes in two pieces and may not finish."""
    begun = next((size for size in range(len(sentinel), 0, -1) if output.endswith(sentinel[:size])), 0)
    before = output[: len(output) - begun]
    # A newline alone may be the command's own.
    return output if begun == 1 and before and not before.endswith(b"\n") else before


class RuntimeShell:
    """The runtime's own shell; opened at first use, replaced if a command hung in it or the agent killed it."""

    def __init__(self, open_shell: Callable[[], Channel]) -> None:
        self._open_shell = open_shell
        self._shell: Shell | None = None

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        payload: bytes | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> ExecResult:
        """Like `Shell.run`. Raises SandboxUnavailableError if no shell can run the command."""
        for _ in range(2):
            self._shell = self._shell or self._start_shell()
            result = self._shell.run(command, timeout_s=timeout_s, payload=payload, should_stop=should_stop)
            if result.timed_out or result.shell_ended:
                self.close()
            if not result.shell_ended:
                return result
        raise SandboxUnavailableError("the sandbox ends every shell of the runtime")

    @property
    def pid(self) -> int | None:
        """Its process id as the sandbox shows it; None if it is not open."""
        return None if self._shell is None else self._shell.pid

    def close(self) -> None:
        if self._shell is not None:
            self._shell.close()
            self._shell = None

    def _start_shell(self) -> Shell:
        shell = Shell(self._open_shell(), output_limit=RUNTIME_OUTPUT_LIMIT, errors="surrogateescape")
        shell.prepare("export LC_ALL=C")
        return shell


def make_setup(mark: str, limits_command: str) -> str:
    """Return the first line of a new bash. After `EXIT_SIGNAL` the bash prints its state between these marks."""
    return f"{_START_COMMAND}; {limits_command}; {_make_exit_trap(mark)}"


def _make_exit_trap(mark: str) -> str:
    """Return the command that sets the trap of `EXIT_SIGNAL`.

    A new bash in place of the old one, not beside it, keeps what belongs to the old one: its children, the namespaces
    that end with it, the pipes to which background processes write.
    """
    tell = f'{PRINT_STATE.format(mark=mark)}; \\builtin printf "\\n%s 0 %s\\0" {mark} "$PWD"'
    # With `set -m` bash ends stopped processes when it becomes another program; an ignored signal would stay ignored.
    prepare = f"\\builtin set +em; \\builtin trap - {_OTHER_SIGNALS}"
    become = '\\builtin exec -c "\'"$BASH"\'" --norc --noprofile'
    # Between two commands, the shell's input is where it was.
    leave = (
        f"{{ \\builtin trap - {int(EXIT_SIGNAL)}; {tell}; {prepare}; {become} <&{_INPUT_COPY} || {become}; "
        f"\\builtin kill -KILL $$; }} >&{PROTOCOL_DESCRIPTOR} 2>/dev/null"
    )
    return f"trap -- '{leave}' {int(EXIT_SIGNAL)}"


def _frame_command(command: str, nonce: str, *, reads_input: bool) -> bytes:
    """Return the line that makes a bash run the command and then print the mark; `reads_input`: whether input follows."""
    if "\0" in command:
        raise ValueError("a command cannot contain a NUL byte")
    raw = command.encode("utf-8", "surrogateescape")
    ahead, text, carried = "", shlex.quote(command), b""
    if len(raw) > _LONG_COMMAND_BYTES:
        # Bash reads a line from a pipe byte by byte, but a counted text, which must be ASCII, in pieces.
        carried = raw if raw.isascii() else _quote_ansi(raw)
        ahead = f"\\builtin read -r -N {len(carried)} __command; "
        # Unset before it runs: a `set -a` would pass it to every program, and it is too long for that.
        opened = "'\\unset -v __command'$'\\n'" if raw.isascii() else "'\\unset -v __command; \\eval '"
        text = opened + '"$__command"'
    # The command sees no input and cannot reach ours: bash has read this whole line before it runs.
    # Descriptor 99 makes bash put its output back after an `exec >file`, and tells where it keeps its input; a backslash
    # steps over an alias, `unset -f` over a function of the agent's that has one of the names that we need.
    stdin = "" if reads_input else "99</dev/null <&99 "
    line = (
        f"\\unset -f builtin eval; {ahead}\\eval {text} {stdin}99>&1 >&99 2>&1 99>&-; "
        "__exit_code=$?; \\unset -f builtin; "
        f'\\builtin printf \'\\n%s %d %s\\0\' {nonce} "$__exit_code" "$PWD"\n'
    )
    return line.encode("utf-8", "surrogateescape") + carried


def _quote_ansi(raw: bytes) -> bytes:
    """Write bytes as one ASCII word for bash."""
    escaped = raw.replace(b"\\", b"\\\\").replace(b"'", b"\\'")
    return b"$'" + re.sub(rb"[\x80-\xff]", lambda found: b"\\x%02x" % found[0][0], escaped) + b"'"


def escape_non_utf8(text: str) -> str:
    """Write text that came from bytes, with those that are not UTF-8 escaped."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
