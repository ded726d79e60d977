"""Kill takeover runs at random times, resume them, compare their rows, and count leftover resources.

Each operation is one real run of bundled tasks by the built-in model. It receives SIGKILL, SIGTERM and Ctrl-C in random
order at random times, and is resumed until it completes. Its rows must equal those of a reference run. The exit code is 1
if a row is wrong, a run fails or resources are left.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil
import typer

from benchmarks.figures import choose_names, run_command
from benchmarks.host import run_python, start_python

SANDBOXES = ("host", "docker", "process")
OPTIONS = (
    *("--task-ids", "galley__galley-31,ledger__ledger-12", "--view", "trace,structured"),
    *("--points", "first_source_edit", "--model", "builtin:oracle"),
)
EXIT_CODES = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}
KEY = ("record_id", "view", "successor", "repeat")
COMPARED_FIELDS = ("outcome", "resolved", "stop_reason", "events", "patch")
"""The fields in which two takeovers by the built-in model never differ."""
DATABASES = "databases of a run, kB"
PER_RUN_RESOURCES = ("containers", "images", "snapshots in a run")
"""Counts that restart with each run; the others accumulate."""
_PR_SET_CHILD_SUBREAPER = 36
_TEST_FILE_NAME, _TEST_FILE_CONTENT = re.compile("[a-z0-9_]{8}"), b"blat"  # of tempfile._get_default_tempdir
_CHILDREN_TIMEOUT_S, _RUN_TIMEOUT_S = 15.0, 900.0
_NO_DOCKER = "unix:///none"
Row = dict[str, Any]


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="Duration, after the reference runs.")] = 60.0,
    operations: Annotated[int | None, typer.Option(min=1, help="Maximum number of operations.")] = None,
    sandbox: Annotated[
        str, typer.Option(help=f"Back ends, separated by commas: {', '.join(SANDBOXES)}.")
    ] = "host,docker",
    seed: Annotated[
        int | None, typer.Option(help="Seed of signals and their times. Default: random.")
    ] = None,
) -> None:
    """Kill and resume runs, check each row, and report leftover resources."""
    sandboxes = choose_names("--sandbox", sandbox, SANDBOXES)
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    rng, with_docker = random.Random(seed), "docker" in sandboxes
    samples: list[dict[str, int]] = []
    number = signals = wrong = 0
    print(f"seed {seed}; sandboxes: {', '.join(sandboxes)}", flush=True)
    for each in (signal.SIGINT, signal.SIGTERM):  # runs would inherit an ignored signal
        signal.signal(each, signal.default_int_handler)
    with work_directory(with_docker) as directory, contextlib.suppress(KeyboardInterrupt):
        expected, durations_s = {}, {}
        for name in sandboxes:
            out, start = directory / name, time.monotonic()
            problems = wait_for_run(start_run(out, name))
            expected[name], durations_s[name] = read_rows(out), time.monotonic() - start
            if problems or not expected[name]:
                print(f"error: the reference run on {name} failed: {problems}", file=sys.stderr)
                raise typer.Exit(1)
            print(f"reference: {name}: {len(expected[name])} rows, {durations_s[name]:.0f} s", flush=True)
            samples = [count_resources(out, with_docker)]
        deadline = time.monotonic() + 60 * minutes
        while time.monotonic() < deadline and number != operations:
            name, number = sandboxes[number % len(sandboxes)], number + 1
            out = directory / str(number)
            sent, problems = kill_and_resume(out, name, durations_s[name], rng)
            signals += sent
            problems += compare_rows(read_rows(out), expected[name])
            wrong += bool(problems)
            samples.append(count_resources(out, with_docker))
            shutil.rmtree(out, ignore_errors=True)
            print(f"{number}: {name}: {'; '.join(problems) or 'rows equal'}", flush=True)
    left = print_growth(samples) if samples else []
    print(
        f"{number} operations, {signals} signals, {wrong} wrong; left: {', '.join(left) or 'nothing'}; seed {seed}"
    )
    raise typer.Exit(1 if wrong or left or not samples else 0)


@contextlib.contextmanager
def work_directory(with_docker: bool) -> Iterator[Path]:
    """A directory for all files of the runs; removed at the end."""
    # Orphans of a killed run become children of this process, where they are counted.
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")
    parent = os.environ.get("TMPDIR", "/var/tmp")
    with tempfile.TemporaryDirectory(prefix="takeover-soak-", dir=parent) as name:
        directory = Path(name)
        directory.chmod(0o711)
        (directory / "tmp").mkdir()
        os.environ |= {"TAKEOVER_HOME": f"{directory}/home", "TMPDIR": f"{directory}/tmp"}
        try:
            yield directory
        finally:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            for config in directory.glob("*/config.json") if with_docker else ():
                collect_garbage(config.parent, with_docker)
            run_gc("--bases", "--remove", DOCKER_HOST=_NO_DOCKER)


def start_run(out: Path, sandbox: str) -> subprocess.Popen[str]:
    """Start the run, or resume it if it has started before."""
    options = ("--resume",) if (out / "config.json").exists() else (*OPTIONS, "--sandbox", sandbox)
    command = ["-m", "evals.takeover", *options, "--out", out, "--workers", 2]
    return start_python(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def wait_for_run(
    process: subprocess.Popen[str], code: int = 0, timeout_s: float = _RUN_TIMEOUT_S
) -> list[str]:
    """Wait for the run; return the problems of its exit. Raises subprocess.TimeoutExpired."""
    _, err = process.communicate(timeout=timeout_s)
    if process.returncode in (code, 0) and "Traceback" not in err:
        return []
    return [f"exit code {process.returncode} instead of {code}: {err.strip()[-2000:]}"]


def kill_and_resume(out: Path, sandbox: str, duration_s: float, rng: random.Random) -> tuple[int, list[str]]:
    """Send the signals one after another and resume after each; return their number and the problems of the exits."""
    signals = 0
    for sent in rng.sample(list(EXIT_CODES), len(EXIT_CODES)):
        process, delay_s = start_run(out, sandbox), rng.uniform(0, duration_s / 2)
        if sent != signal.SIGKILL:
            assert process.stdout is not None
            process.stdout.readline()  # before its first line, the process only imports
        try:
            if problems := wait_for_run(process, 0, delay_s):
                return signals, problems
            break
        except subprocess.TimeoutExpired:
            if sent == signal.SIGINT:  # as a terminal does, to all processes in the foreground
                os.killpg(process.pid, sent)
            else:
                process.send_signal(sent)
        signals += 1
        print(f"   {sandbox}: {sent.name} after {delay_s:.1f} s", flush=True)
        if problems := wait_for_run(process, EXIT_CODES[sent]):
            return signals, problems
    return signals, wait_for_run(start_run(out, sandbox))


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def read_rows(out: Path) -> list[Row]:
    file = out / "takeovers.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def compare_rows(found: list[Row], expected: list[Row]) -> list[str]:
    """Describe missing, duplicate, unexpected and different rows."""
    known = {tuple(row[name] for name in KEY): row for row in expected}
    counts = Counter(tuple(row[name] for name in KEY) for row in found)
    problems = [f"{key}: missing" for key in known.keys() - counts.keys()]
    problems += [f"{key}: unexpected" for key in counts.keys() - known.keys()]
    problems += [f"{key}: {count} rows" for key, count in counts.items() if count > 1]
    pairs = [(row, known.get(tuple(row[name] for name in KEY), row)) for row in found]
    return problems + [
        f"{row['record_id']}, {row['view']}: {name} is {row[name]!r:.60}, expected {usual[name]!r:.60}"
        for row, usual in pairs
        for name in COMPARED_FIELDS
        if row[name] != usual[name]
    ]


def count_resources(out: Path, with_docker: bool) -> dict[str, int]:
    """Collect garbage as a user would, then count the remaining resources."""
    psutil.wait_procs(psutil.Process().children(recursive=True), timeout=_CHILDREN_TIMEOUT_S)
    on_daemon = collect_garbage(out, with_docker)
    home, mounts = Path(os.environ["TAKEOVER_HOME"]), Path("/proc/self/mountinfo").read_text().splitlines()
    temporary_files = list_temporary_files(Path(os.environ["TMPDIR"]))
    for path in temporary_files:
        print(f"   temporary file: {path.name}", flush=True)
    return {
        "child processes": len(psutil.Process().children(recursive=True)),
        "containers": on_daemon.count("container"),
        "images": on_daemon.count("image"),
        "mounts": sum(line.split()[4].startswith(str(home)) for line in mounts),
        "temporary files": len(temporary_files),
        "snapshots in a run": len(list(out.glob("snapshots/*"))),
        DATABASES: sum(file.stat().st_size for file in out.glob("*.sqlite*")) // 1000,
        **{f"{each.name} in TAKEOVER_HOME": len(list(each.iterdir())) for each in home.glob("*/")},
    }


def list_temporary_files(directory: Path) -> list[Path]:
    """The directory's files, without the one with which Python's tempfile tests the directory at its first use.

    Python removes it at once; SIGKILL between the two leaves it behind.
    """

    def is_test_file(path: Path) -> bool:
        is_candidate = _TEST_FILE_NAME.fullmatch(path.name) and not path.is_symlink() and path.is_file()
        return bool(is_candidate) and path.read_bytes() in (b"", _TEST_FILE_CONTENT)

    return [path for path in sorted(directory.iterdir()) if not is_test_file(path)]


def collect_garbage(out: Path, with_docker: bool) -> list[str]:
    """Remove the run's resources; return the kinds of its remaining resources on the Docker daemon."""
    run_gc("--remove", DOCKER_HOST=_NO_DOCKER)  # TAKEOVER_HOME and TMPDIR belong to the soak alone
    if not with_docker:
        return []
    run_id = json.loads((out / "config.json").read_text())["run_id"]
    resources = [each for each in list_resources() if each["kind"] in ("container", "image")]
    owners = {each["owner"] for each in resources if each["owner"].split(".")[0] == run_id}
    for owner in owners:
        run_gc("--owner", owner, "--snapshots", "--remove")
    return [each["kind"] for each in list_resources() if each["owner"] in owners]


def list_resources() -> list[dict[str, Any]]:
    return list(json.loads(run_gc("--json"))["resources"])


def run_gc(*options: str, **environment: str) -> str:
    """The output of `python -m sandbox gc`. Raises RuntimeError."""
    return run_python("-m", "sandbox", "gc", *options, environment=environment)


def print_growth(samples: list[dict[str, int]]) -> list[str]:
    """Print the first and the last sample (for resources per run, the largest); return the resources that grew."""
    first, last = samples[0], dict(samples[-1])
    last |= {name: max(each[name] for each in samples[1:] or samples) for name in PER_RUN_RESOURCES}
    print("resources after garbage collection, first and last:")
    for name in first | last:
        print(f"   {name}: {first.get(name, 0)}, {last.get(name, 0)}")
    return [name for name in last if last[name] > first.get(name, 0) and name != DATABASES]


if __name__ == "__main__":
    run_command(main)
