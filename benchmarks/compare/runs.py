"""Run one program: call its phases in turn, kill it where the task requires that, and record what is visible from outside."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from benchmarks.compare.scripts import SLEEP, Task, make_repository
from benchmarks.compare.server import Request, ScriptedServer
from langgraph_takeover.base.takeover_error import TakeoverError

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
_TIMEOUT_S = 180.0
_POLL_S = 0.05
_WAITING_S = 8.0
"""A program that does nothing for so long after its last request waits for a person."""
_SETTLE_S = 0.5


class ProgramError(TakeoverError, RuntimeError):
    """A program of the comparison failed."""


class Phase(NamedTuple):
    """One call of a program."""

    name: str
    requests: tuple[Request, ...]
    killed: bool
    files: dict[str, str]
    """The files of interest afterwards: of the repository, with the patch that the program delivered."""
    output: str = ""
    """What the program printed."""


class Observation(NamedTuple):
    """What is visible from outside: the phases with their requests and files, and the result of the test."""

    phases: tuple[Phase, ...]
    tests_pass: bool


def run_task(task: Task, name: str, project: str, python: Path, work: Path) -> Observation:
    """Run a project's program of a task in a new directory. Raises ProgramError."""
    work.mkdir(parents=True)
    repository = work / "repository"
    make_repository(repository)
    phases: list[Phase] = []
    program = PROGRAMS / project / f"{name}.py"
    with ScriptedServer(task.scripts, task.groups) as server:
        for phase in task.phases:
            before = len(server.requests)
            killed = _call(program, python, work, phase, server, task, may_kill=phase != task.phases[-1])
            result = _copy_result(work, phase)
            output = (work / f"{phase}.log").read_text(errors="replace")
            files = _read_files(result) | _read_files(work)
            phases.append(Phase(phase, server.requests[before:], killed, files, output))
    test = ["python3", "-m", "unittest", "-q"]
    done = subprocess.run(test, cwd=result, capture_output=True, check=False, env=_build_environment())
    return Observation(tuple(phases), done.returncode == 0)


def _call(
    program: Path, python: Path, work: Path, phase: str, server: ScriptedServer, task: Task, *, may_kill: bool
) -> bool:
    """Call one phase; return whether it was killed. Raises ProgramError."""
    log = work / f"{phase}.log"
    with log.open("wb") as output, _start([python, program, work, phase], work, server, output) as process:
        if may_kill and task.kill_in_sleep:
            _kill_in_sleep(process, program)
            return True
        if may_kill and task.kill_in_wait:
            if _kill_in_wait(process, server):
                return True
        elif phase == "approve":
            assert process.stdin is not None
            process.stdin.write(b"\n")  # approves at a prompt; other programs do not read it
            process.stdin.close()
        try:
            code = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise _fail(program, phase, f"still running after {_TIMEOUT_S:.0f} s", log) from None
    if code != 0:
        raise _fail(program, phase, f"exit code {code}", log)
    return False


@contextmanager
def _start(
    words: list[Path | str], work: Path, server: ScriptedServer, output: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    environment = _build_environment() | {
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": server.url,
        "MSWEA_GLOBAL_CONFIG_DIR": str(work / "config"),
    }
    process = subprocess.Popen(
        [*map(str, words)],
        cwd=work,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _build_environment() -> dict[str, str]:
    """The host's environment without its Python, keys and proxies; nothing is sent to any other host."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(
            ("PYTHON", "OPENAI", "LANGSMITH", "LANGCHAIN", "LITELLM", "MSWEA", "GIT_", "VIRTUAL_ENV")
        )
        and not name.lower().endswith("_proxy")
    }
    return kept | {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANGSMITH_TRACING": "false",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_SILENT_STARTUP": "1",
    }


def _kill_in_sleep(process: subprocess.Popen[bytes], program: Path) -> None:
    """Kill the program while its command sleeps; then wait until all processes of that command have ended."""
    deadline = time.monotonic() + _TIMEOUT_S
    sleeping = None
    while sleeping is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise ProgramError(
                f"{program.parent.name}/{program.name}: its command did not start (see start.log)"
            )
        sleeping = _find_sleep(process.pid)
        time.sleep(_POLL_S)
    process.send_signal(signal.SIGKILL)
    process.wait()
    psutil.wait_procs([sleeping], timeout=_TIMEOUT_S)
    time.sleep(_SETTLE_S)


def _find_sleep(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        for each in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if each.cmdline()[-2:] == ["sleep", SLEEP]:
                    return each
    return None


def _kill_in_wait(process: subprocess.Popen[bytes], server: ScriptedServer) -> bool:
    """Kill the program once it makes no request for a while; False if it ends by itself."""
    seen, since = 0, time.monotonic()
    deadline = since + _TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if len(server.requests) != seen:
            seen, since = len(server.requests), time.monotonic()
        if seen and time.monotonic() - since > _WAITING_S:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(_POLL_S)
    return False


def _fail(program: Path, phase: str, reason: str, log: Path) -> ProgramError:
    lines = log.read_text(errors="replace").strip().splitlines()
    last = f": {lines[-1][:200]}" if lines else ""
    return ProgramError(f"{program.parent.name}/{program.name} {phase}: {reason}{last} (see {log})")


def _copy_result(work: Path, phase: str) -> Path:
    """Copy the repository, and apply the patch of a program that works on a copy itself."""
    result = work / f"result-{phase}"
    shutil.copytree(work / "repository", result)
    patch = work / "result.patch"
    if patch.exists() and patch.stat().st_size:
        subprocess.run(["git", "-C", str(result), "apply", str(patch)], check=True)
    return result


def _read_files(directory: Path) -> dict[str, str]:
    names = ("prices.py", "log.txt", "effects.txt", "data/orders.csv", "stray.txt", "loser.txt")
    return {name: (directory / name).read_text() for name in names if (directory / name).is_file()}
