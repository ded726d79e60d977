"""Many threads over a few sandboxes and two processes, which are killed in turn: no run is lost, none has its effect twice.

Usage: python -m tests.graph.own_graphs.many_threads DIRECTORY --database URL [--threads 200] [--runs 3] [--kill-s 4]

Both processes serve the graphs of `examples/langgraph_server`, which `langgraph dev` serves too, by its `service.py`. A run
appends a number to a file of its thread's sandbox. A client that loses its process lets the other one resume the run, and
sends it again if it had not begun.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.postgres import PostgresSaver

from langgraph_takeover.integrations import IncrementalSaver

_CLIENTS, _START_S = 6, 60.0
_EXAMPLE = Path(__file__).parents[3] / "examples" / "langgraph_server"


class Result(NamedTuple):
    kills: int
    repeated: int
    """Requests that were lost because their process was killed."""
    seconds: float
    wrong: dict[str, list[str]]
    """The files of threads that are not as they should be."""


class _Server:
    """A process of the service, which is started again after each kill."""

    def __init__(self, directory: Path, database: str) -> None:
        self._directory, self._log = directory, directory / "service.log"
        with socket.create_server(("127.0.0.1", 0)) as found:
            self._port = found.getsockname()[1]
        self._environment = os.environ | {"DATABASE": database, "OPENAI_API_KEY": "unused"}
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "--app-dir", str(_EXAMPLE), "service:app"]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self._port)],
                cwd=self._directory,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        ends_at = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > ends_at:
                    raise RuntimeError(
                        f"the service does not start: {self._log.read_text()[-2000:]}"
                    ) from None
            time.sleep(0.05)

    def post(self, thread: str, given: dict[str, str]) -> list[str] | None:
        """Return the lines of the thread's file; None if the process was killed."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"/commands/{thread}", json.dumps(given), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{thread}: {text} ({self._log.read_text()[-2000:]})")
        found = json.loads(text)
        return str(found).split() if found else []

    def kill(self) -> None:
        self.end()
        self.start()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def run_and_kill(directory: Path, database: str, *, threads: int, runs: int, kill_s: float) -> Result:
    """Run the threads and kill the two processes in turn, every `kill_s` seconds; the repository is in the directory."""
    begun_at, is_over = time.monotonic(), threading.Event()
    servers = [_Server(directory, database) for _ in range(2)]
    kills = repeated = 0

    def kill_in_turn() -> None:
        nonlocal kills
        while not is_over.wait(kill_s):
            servers[kills % 2].kill()
            kills += 1

    def run_thread(number: int) -> tuple[str, list[str]]:
        nonlocal repeated
        name, lines = f"user-{number}", list[str]()
        for text in map(str, range(1, runs + 1)):
            while number == 0 and text == str(runs) and kills < 2 and killer.is_alive():
                time.sleep(0.05)  # a run follows the kill of each process, however fast this machine is
            attempt, given = number + int(text), {"command": f"echo {text} >> log; cat log"}
            while (answer := servers[attempt % 2].post(name, given)) is None or text not in answer:
                # Lost, or not begun: an empty request resumes what has begun.
                repeated, attempt = repeated + (answer is None), attempt + 1
                given = {"command": f"echo {text} >> log; cat log"} if answer is not None else {}
                time.sleep(0.05)
            lines = answer
        return name, lines

    killer = threading.Thread(target=kill_in_turn)
    killer.start()
    try:
        with ThreadPoolExecutor(_CLIENTS) as clients:
            found = dict(clients.map(run_thread, range(threads)))
    finally:
        is_over.set()
        killer.join()
        for each in servers:
            each.end()
    expected = [str(text) for text in range(1, runs + 1)]
    wrong = {name: lines for name, lines in found.items() if lines != expected}
    return Result(kills, repeated, time.monotonic() - begun_at, wrong)


def make_repository(directory: Path) -> Path:
    """Make the repository of the sandboxes, and return the directory."""
    (directory / "repository").mkdir(parents=True)
    (directory / "repository" / "README").write_text("Many threads.\n")
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--database", required=True)
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kill-s", type=float, default=4.0)
    given = parser.parse_args()
    result = run_and_kill(
        make_repository(given.directory),
        given.database,
        threads=given.threads,
        runs=given.runs,
        kill_s=given.kill_s,
    )
    print(
        f"{given.threads} threads x {given.runs} runs, 8 sandboxes in each of two processes: {result.kills} kills, "
        f"{result.repeated} requests lost, {len(result.wrong)} threads wrong, {result.seconds:.0f} s"
    )
    with PostgresSaver.from_conn_string(given.database) as postgres:
        for name, lines in result.wrong.items():
            print(f"{name}: {' '.join(lines)}; its checkpoints, newest first:")
            for each in IncrementalSaver(postgres).list({"configurable": {"thread_id": name}}):
                values: dict[str, Any] = each.checkpoint["channel_values"]
                print(each.config["configurable"]["checkpoint_id"], each.metadata, values)
    sys.exit(bool(result.wrong))


if __name__ == "__main__":
    main()
