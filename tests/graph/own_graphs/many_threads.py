"""Many threads over a few sandboxes and two processes, which are killed in turn: no run is lost, none has its effect twice.

Usage: python -m tests.graph.own_graphs.many_threads DIRECTORY [--threads 200] [--runs 3] [--kill-s 4] [--database URL]

Each process serves one compiled graph with a saver on PostgreSQL, or on SQLite without --database. A run appends a word to a
file of its thread's sandbox. A client that loses its process sends the run to the other one, which resumes it if it has
begun.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_takeover import open_home
from langgraph_takeover.integrations import IncrementalSaver, Sandboxes
from langgraph_takeover.sandbox import SandboxSpec

from .sandboxes_server import build_graph

_MAX_OPEN, _CLIENTS = 8, 6


class Result(NamedTuple):
    kills: int
    repeated: int
    """Runs that were sent again because their process was killed."""
    seconds: float
    wrong: dict[str, list[str]]
    """The files of threads that are not as they should be."""


@contextmanager
def _open_saver(place: str) -> Iterator[Any]:
    if not place.startswith("postgresql:"):
        with SqliteSaver.from_conn_string(place) as saver:
            saver.conn.execute("PRAGMA busy_timeout=60000")
            yield IncrementalSaver(saver)
        return
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import ConnectionPool

    options: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(place, kwargs=options) as pool:
        postgres = PostgresSaver(pool)
        postgres.setup()
        yield IncrementalSaver(postgres)


def serve(directory: str, place: str, spec: str) -> None:
    """Answer the runs that standard input names, several at once."""
    with (
        open_home(directory) as home,
        _open_saver(place) as saver,
        Sandboxes(
            home, SandboxSpec.model_validate_json(spec), max_open=_MAX_OPEN, wait_s=120, lease_s=10
        ) as sandboxes,
        ThreadPoolExecutor(_CLIENTS) as pool,
    ):
        graph = build_graph(sandboxes, sandboxes.guard(saver))

        def run(thread: str, text: str) -> None:
            config: Any = {"configurable": {"thread_id": thread}}
            try:
                state = graph.get_state(config)
                if state.tasks:  # `next` lacks a node that has ended, but whose step is not saved
                    graph.invoke(None, config, durability="sync")
                    state = graph.get_state(config)
                lines = state.values.get("lines", [])
                if text not in lines:
                    lines = graph.invoke({"text": text}, config, durability="sync")["lines"]
                answer: Any = lines
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
            sys.stdout.write(json.dumps([thread, answer]) + "\n")  # at once: others write, too
            sys.stdout.flush()

        print("ready", flush=True)
        for line in sys.stdin:
            pool.submit(run, *line.split())


class _Server:
    """A process that is started again after each kill."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments, self._lock = arguments, threading.Lock()
        self._answers: dict[str, queue.Queue[Any]] = {}
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", __name__ if __name__ != "__main__" else __spec__.name, "--serve"]
        self.process = subprocess.Popen(
            [*command, *self._arguments],
            stdin=-1,
            stdout=-1,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with suppress(ValueError):  # the last line before a kill
                thread, answer = json.loads(line)
                self._answers[thread].put(answer)
        for each in [*self._answers.values()]:
            each.put(None)

    def run(self, thread: str, text: str) -> Any:
        """Return the lines of the thread's file; None if the process was killed."""
        answers = self._answers[thread] = queue.Queue()
        try:
            with self._lock:
                process = self.process
                assert process.stdin is not None
                process.stdin.write(f"{thread} {text}\n")
                process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return None
        while True:
            try:
                return answers.get(timeout=1)
            except queue.Empty:
                if process.poll() is not None and answers.empty():
                    return None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        with self._lock:
            self.start()


def run_and_kill(
    directory: Path, place: str, spec: SandboxSpec, *, threads: int, runs: int, kill_s: float
) -> Result:
    """Run the threads and kill the two processes in turn, every `kill_s` seconds."""
    begun_at, is_over = time.monotonic(), threading.Event()
    servers = [_Server([str(directory), place, spec.model_dump_json()]) for _ in range(2)]
    kills = repeated = 0

    def kill_in_turn() -> None:
        nonlocal kills
        while not is_over.wait(kill_s):
            servers[kills % 2].kill()
            kills += 1

    def run_thread(number: int) -> tuple[str, list[str]]:
        nonlocal repeated
        name, lines = f"user-{number}", []
        for text in range(1, runs + 1):
            attempt = number + text
            while not isinstance(answer := servers[attempt % 2].run(name, str(text)), list):
                if answer is not None:
                    print(f"{name}: {answer}", file=sys.stderr)
                repeated, attempt = repeated + 1, attempt + 1
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
            each.process.kill()
            each.process.wait()
    expected = [str(text) for text in range(1, runs + 1)]
    wrong = {name: lines for name, lines in found.items() if lines != expected}
    return Result(kills, repeated, time.monotonic() - begun_at, wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kill-s", type=float, default=4.0)
    parser.add_argument("--database", default="")
    given = parser.parse_args()
    repository = given.directory / "repository"
    repository.mkdir(parents=True)
    (repository / "README").write_text("Many threads.\n")
    place = given.database or str(given.directory / "chats.sqlite")
    result = run_and_kill(
        given.directory / "home",
        place,
        SandboxSpec(backend="host", directory=repository, owner="many-threads"),
        threads=given.threads,
        runs=given.runs,
        kill_s=given.kill_s,
    )
    print(
        f"{given.threads} threads x {given.runs} runs, {_MAX_OPEN} sandboxes in each of two processes: {result.kills} kills, "
        f"{result.repeated} runs sent again, {len(result.wrong)} threads wrong, {result.seconds:.0f} s"
    )
    with _open_saver(place) as saver:
        for name, lines in result.wrong.items():
            print(f"{name}: {' '.join(lines)}; its checkpoints, newest first:")
            for each in saver.list({"configurable": {"thread_id": name}}):
                before = (each.parent_config or {}).get("configurable", {}).get("checkpoint_id", "none")
                values = each.checkpoint["channel_values"]
                facts = [values.get(name) for name in ("sandbox_state", "text", "lines")]
                print(
                    each.checkpoint["ts"],
                    each.checkpoint["id"][-20:],
                    "after",
                    before[-20:],
                    each.metadata,
                    facts,
                )
    sys.exit(bool(result.wrong))


if __name__ == "__main__":
    serve(*sys.argv[2:]) if sys.argv[1] == "--serve" else main()
