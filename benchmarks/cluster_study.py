"""A whole study on a Ray cluster of two nodes on this host, one of which is killed during the study.

Bundled tasks replace SWE-bench, and the built-in model, with the latency of an LLM, replaces LLMs. Afterwards, the rows are
audited: no missing, duplicate or failed rows, and equal results for all repeats.
"""

from __future__ import annotations

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
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks.figures import run_command
from benchmarks.host import start_python
from benchmarks.soak import compare_rows, kill_group, read_rows
from langgraph_takeover.evals.run.results import load_results

VIEWS = "repository,trace,summary,structured"
_LATENCY_S = 0.1
"""Mean latency of the model."""
_RAY_OPTIONS = (
    "--num-cpus=1",
    "--object-store-memory=80000000",
    "--disable-usage-stats",
    "--node-ip-address=127.0.0.1",
)


def main(
    limit: Annotated[int, typer.Option(min=1, help="Number of bundled tasks.")] = 12,
    repeats: Annotated[int, typer.Option(min=1, help="Takeovers per point and view.")] = 6,
    kill_after: Annotated[
        int, typer.Option(min=1, help="Number of takeovers after which a node is killed.")
    ] = 300,
) -> None:
    """Run a study on two nodes, kill one, and audit the rows."""
    with tempfile.TemporaryDirectory(prefix="takeover-study-") as name, ExitStack() as stack:
        work = Path(name)
        out = work / "run"
        address = _start_head(work, stack)
        nodes = [
            _start_ray(work, stack, node, f"--address={address}", '--resources={"sandbox": 2}')
            for node in ("node1", "node2")
        ]
        options = ["--view", VIEWS, "--limit", limit, "--repeats", repeats, "--sandbox", "host"]
        options += ["--model", f"builtin:oracle+{_LATENCY_S}s", "--executor", "ray", "--address", address]
        start, killed_at, takeovers = time.monotonic(), 0.0, 0
        command = ["-m", "evals.takeover", "--out", out, *options]
        with start_python(*command, stdout=subprocess.PIPE) as run:
            for line in run.stdout or ():
                takeovers += line.startswith("takeovers: ")
                if takeovers == kill_after and not killed_at:
                    os.killpg(nodes[0], signal.SIGKILL)
                    killed_at = time.monotonic() - start
        rows, problems = read_rows(out), _audit_rows(out, repeats)
        result: dict[str, Any] = {
            "takeovers": len(rows),
            "problems": problems,
            "by_node": Counter(str(row.get("node")) for row in rows),
            "tries": Counter(str(row.get("tries", 1)) for row in rows),
            "exit_code": run.returncode,
            "seconds": round(time.monotonic() - start, 1),
            "node_killed_after_s": round(killed_at, 1),
        }
    print(json.dumps(result, indent=1))
    raise typer.Exit(1 if run.returncode or problems else 0)


def _audit_rows(out: Path, repeats: int) -> list[str]:
    """Compare the rows with graded ones that are equal for all repeats; the built-in model is deterministic."""
    rows = read_rows(out)
    usual = {(row["record_id"], row["view"]): row for row in rows}
    records = [record for row in load_results([out]).predecessors for record in row.records or ()]
    expected = [
        usual.get((record, view), rows[0])
        | {"record_id": record, "view": view, "repeat": repeat, "outcome": "graded"}
        for record in records
        for view in VIEWS.split(",")
        for repeat in range(1, repeats + 1)
    ]
    return compare_rows(rows, expected)


def _start_head(work: Path, stack: ExitStack) -> str:
    """Start a head node without sandboxes; return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sockets = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # socket paths must be short
    stack.callback(shutil.rmtree, sockets, ignore_errors=True)
    options = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={sockets}")
    _start_ray(work, stack, "head", *options)
    return f"127.0.0.1:{port}"


def _start_ray(work: Path, stack: ExitStack, name: str, *options: str) -> int:
    """Start a node with its own directory; return its process group."""
    directory = work / name
    directory.mkdir()
    process = start_python(
        *("-m", "ray.scripts.scripts", "start", *options, *_RAY_OPTIONS),
        environment={"TMPDIR": str(directory), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
        cwd=directory,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    stack.callback(kill_group, process.pid)
    if process.wait(120) != 0:
        raise RuntimeError(f"ray start {' '.join(options)} failed")
    return process.pid


if __name__ == "__main__":
    run_command(main)
