"""A whole study on a Ray cluster of two nodes on this host, one of which is killed in the middle.

The bundled tasks stand for SWE-bench's, and the built-in model, which waits as an LLM would, for models. Afterwards the
rows are audited: none missing, none twice, none that failed, and all as a run without a cluster has them.
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

from langgraph_takeover.evals.run.journal import Row
from langgraph_takeover.evals.run.results import load_results

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
    out: Annotated[Path | None, typer.Option(help="Directory for the run. Default: a temporary one.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of bundled tasks.")] = 12,
    repeats: Annotated[int, typer.Option(min=1, help="Takeovers per point and view.")] = 6,
    latency_s: Annotated[float, typer.Option(min=0.001, help="Mean seconds that the model waits.")] = 0.1,
    slots: Annotated[int, typer.Option(min=1, help="Sandboxes a node.")] = 2,
    kill_after: Annotated[int, typer.Option(min=1, help="Kill a node after so many takeovers.")] = 300,
) -> None:
    """Run a study on two nodes, kill one, and audit the rows."""
    with tempfile.TemporaryDirectory(prefix="takeover-study-") as place, contextlib.ExitStack() as stack:
        where = out or Path(place) / "run"
        address = _start_cluster(Path(place), stack)
        nodes = [_start_node(Path(place), stack, f"node{n}", address, slots) for n in (1, 2)]
        asked = ["--view", VIEWS, "--limit", str(limit), "--repeats", str(repeats)]
        asked += ["--model", f"builtin:oracle+{latency_s}s", "--sandbox", "host"]
        command = [sys.executable, "-m", "evals.takeover", "--out", str(where), *asked]
        command += ["--executor", "ray", "--address", address]
        began = time.monotonic()
        run = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": sys.path[0]}, stdout=subprocess.PIPE, text=True
        )
        assert run.stdout is not None
        killed_at = 0.0
        taken = 0
        for line in run.stdout:
            taken += line.startswith("takeovers: ")
            if taken == kill_after and not killed_at:
                os.killpg(nodes[0], signal.SIGKILL)
                killed_at = time.monotonic() - began
        code = run.wait()
        told = _audit_rows(where, repeats) | {
            "exit_code": code,
            "seconds": round(time.monotonic() - began, 1),
            "node_killed_after_s": round(killed_at, 1),
        }
    print(json.dumps(told, indent=1))
    raise typer.Exit(0 if code == 0 and told["sound"] else 1)


def _audit_rows(out: Path, repeats: int) -> dict[str, Any]:
    results = load_results([out])
    records = [record for row in results.predecessors for record in row["records"]]
    wanted = {
        (record, view, row["successor"], repeat)
        for record in records
        for view in VIEWS.split(",")
        for row in results.takeovers[:1]
        for repeat in range(1, repeats + 1)
    }
    lines = [json.loads(line) for line in (out / "takeovers.jsonl").read_text().splitlines()]
    found = Counter((row["record_id"], row["view"], row["successor"], row["repeat"]) for row in lines)
    missing, twice = len(wanted - set(found)), sum(number > 1 for number in found.values())
    failed = sum(row["outcome"] != "graded" for row in lines)
    unlike = sum(len(same) > 1 for same in _group_outcomes(lines).values())
    return {
        "points": len(records),
        "takeovers": len(lines),
        "missing": missing,
        "twice": twice,
        "infrastructure_failures": failed,
        "points_whose_repeats_differ": unlike,
        "by_node": dict(Counter(str(row.get("node")) for row in lines)),
        "tries": dict(Counter(str(row.get("tries", 1)) for row in lines)),
        "sound": not (missing or twice or failed or unlike) and len(lines) == len(wanted),
    }


def _group_outcomes(rows: list[Row]) -> dict[tuple[str, str], set[tuple[Any, ...]]]:
    """What the repeats of a takeover came to: the built-in model always does the same."""
    found: dict[tuple[str, str], set[tuple[Any, ...]]] = {}
    for row in rows:
        came_to = (row.get("events"), row.get("resolved"), row.get("patch"))
        found.setdefault((row["record_id"], row["view"]), set()).add(came_to)
    return found


def _start_cluster(place: Path, stack: contextlib.ExitStack) -> str:
    """A head that offers no sandbox; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sockets = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # their paths must be short
    stack.callback(shutil.rmtree, sockets, ignore_errors=True)
    _start_ray(
        place, stack, "head", "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={sockets}"
    )
    return f"127.0.0.1:{port}"


def _start_node(place: Path, stack: contextlib.ExitStack, name: str, address: str, slots: int) -> int:
    return _start_ray(place, stack, name, f"--address={address}", f'--resources={{"sandbox": {slots}}}')


def _start_ray(place: Path, stack: contextlib.ExitStack, name: str, *options: str) -> int:
    """The process group of a node that has a directory of its own."""
    own = place / name
    own.mkdir()
    environment = os.environ | {
        "TMPDIR": str(own),
        "PYTHONPATH": sys.path[0],
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    started = subprocess.Popen(
        [str(_RAY), "start", *options, *_RAY_OPTIONS],
        env=environment,
        cwd=own,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    stack.callback(_kill_group, started.pid)
    if started.wait(120) != 0:
        raise RuntimeError(f"ray start {' '.join(options)} failed")
    return started.pid


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=_EPILOG)(main)
    app()
