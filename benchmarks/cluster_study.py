"""A whole study on a Ray cluster of two nodes on this host, one of which is killed during the study.

Bundled tasks replace SWE-bench, and the built-in model, with the latency of an LLM, replaces LLMs. Afterwards, the rows are
audited: no missing, duplicate or failed rows, and equal results for all repeats.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from langgraph_takeover.evals.run.results import load_results
from langgraph_takeover.evals.run.rows import Fields

VIEWS = "repository,trace,summary,structured"
_RAY = Path(sys.executable).with_name("ray")
_RAY_OPTIONS = (
    "--num-cpus=1",
    "--object-store-memory=80000000",
    "--disable-usage-stats",
    "--node-ip-address=127.0.0.1",
)
_EPILOG = """Examples:

python benchmarks/cluster_study.py --out runs/study

python benchmarks/cluster_study.py --repeats 1 --limit 3 --latency-s 0.05 --kill-after 10
"""


def main(
    out: Annotated[Path | None, typer.Option(help="Directory of the run. Default: a temporary one.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of bundled tasks.")] = 12,
    repeats: Annotated[int, typer.Option(min=1, help="Takeovers per point and view.")] = 6,
    latency_s: Annotated[float, typer.Option(min=0.001, help="Mean latency of the model in seconds.")] = 0.1,
    slots: Annotated[int, typer.Option(min=1, help="Sandboxes per node.")] = 2,
    kill_after: Annotated[
        int, typer.Option(min=1, help="Number of takeovers after which a node is killed.")
    ] = 300,
) -> None:
    """Run a study on two nodes, kill one, and audit the rows."""
    with tempfile.TemporaryDirectory(prefix="takeover-study-") as name, contextlib.ExitStack() as stack:
        work = Path(name)
        run_directory = out or work / "run"
        address = _start_cluster(work, stack)
        nodes = [_start_node(work, stack, f"node{number}", address, slots) for number in (1, 2)]
        options = ["--view", VIEWS, "--limit", str(limit), "--repeats", str(repeats)]
        options += ["--model", f"builtin:oracle+{latency_s}s", "--sandbox", "host"]
        command = [sys.executable, "-m", "evals.takeover", "--out", str(run_directory), *options]
        command += ["--executor", "ray", "--address", address]
        start = time.monotonic()
        run = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": sys.path[0]}, stdout=subprocess.PIPE, text=True
        )
        assert run.stdout is not None
        killed_at = 0.0
        takeovers = 0
        for line in run.stdout:
            takeovers += line.startswith("takeovers: ")
            if takeovers == kill_after and not killed_at:
                os.killpg(nodes[0], signal.SIGKILL)
                killed_at = time.monotonic() - start
        code = run.wait()
        result = _audit_rows(run_directory, repeats) | {
            "exit_code": code,
            "seconds": round(time.monotonic() - start, 1),
            "node_killed_after_s": round(killed_at, 1),
        }
    print(json.dumps(result, indent=1))
    raise typer.Exit(0 if code == 0 and result["is_valid"] else 1)


def _audit_rows(out: Path, repeats: int) -> dict[str, Any]:
    results = load_results([out])
    records = [record for row in results.predecessors for record in row.records or ()]
    expected = {
        (record, view, row.successor, repeat)
        for record in records
        for view in VIEWS.split(",")
        for row in results.takeovers[:1]
        for repeat in range(1, repeats + 1)
    }
    lines = [json.loads(line) for line in (out / "takeovers.jsonl").read_text().splitlines()]
    counts = Counter((row["record_id"], row["view"], row["successor"], row["repeat"]) for row in lines)
    missing, duplicates = len(expected - set(counts)), sum(count > 1 for count in counts.values())
    failed = sum(row["outcome"] != "graded" for row in lines)
    inconsistent = sum(len(outcomes) > 1 for outcomes in _group_outcomes(lines).values())
    return {
        "points": len(records),
        "takeovers": len(lines),
        "missing": missing,
        "duplicates": duplicates,
        "infrastructure_failures": failed,
        "inconsistent_points": inconsistent,
        "by_node": dict(Counter(str(row.get("node")) for row in lines)),
        "tries": dict(Counter(str(row.get("tries", 1)) for row in lines)),
        "is_valid": not (missing or duplicates or failed or inconsistent) and len(lines) == len(expected),
    }


def _group_outcomes(rows: list[Fields]) -> dict[tuple[str, str], set[tuple[Any, ...]]]:
    """The distinct outcomes of each point and view; the built-in model is deterministic."""
    outcomes: dict[tuple[str, str], set[tuple[Any, ...]]] = {}
    for row in rows:
        outcome = (row.get("events"), row.get("resolved"), row.get("patch"))
        outcomes.setdefault((row["record_id"], row["view"]), set()).add(outcome)
    return outcomes


def _start_cluster(work: Path, stack: contextlib.ExitStack) -> str:
    """Start a head node without sandboxes; return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sockets = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # socket paths must be short
    stack.callback(shutil.rmtree, sockets, ignore_errors=True)
    _start_ray(
        work, stack, "head", "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={sockets}"
    )
    return f"127.0.0.1:{port}"


def _start_node(work: Path, stack: contextlib.ExitStack, name: str, address: str, slots: int) -> int:
    return _start_ray(work, stack, name, f"--address={address}", f'--resources={{"sandbox": {slots}}}')


def _start_ray(work: Path, stack: contextlib.ExitStack, name: str, *options: str) -> int:
    """Start a node with its own directory; return its process group."""
    directory = work / name
    directory.mkdir()
    environment = os.environ | {
        "TMPDIR": str(directory),
        "PYTHONPATH": sys.path[0],
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    process = subprocess.Popen(
        [str(_RAY), "start", *options, *_RAY_OPTIONS],
        env=environment,
        cwd=directory,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    stack.callback(_kill_group, process.pid)
    if process.wait(120) != 0:
        raise RuntimeError(f"ray start {' '.join(options)} failed")
    return process.pid


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=_EPILOG)(main)
    app()
