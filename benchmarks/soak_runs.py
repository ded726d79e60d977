"""Runs of the experiment within a soak: whole, killed or interrupted ones, gone on with to their end and audited."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from benchmarks.soak_processes import command
from sandbox.removal import remove_tree

VIEWS = ("repository", "trace", "structured", "payload")
POINT: Final = "first_source_edit"
INTERRUPTED, TERMINATED = 130, 143
_SAME = ("outcome", "resolved", "stop_reason", "events", "patch")
"""What a takeover by the built-in model always comes to alike."""
_KEPT = 3
_MOST_KILLS = 3
_LONGEST_S = 900.0
Row = dict[str, Any]
Key = tuple[Any, ...]


class Choice(NamedTuple):
    """What a run is asked for."""

    sandbox: str
    tasks: tuple[str, ...]
    views: tuple[str, ...]
    workers: int = 1

    def options(self) -> list[str]:
        told = {"sandbox": self.sandbox, "task-ids": ",".join(self.tasks), "points": POINT}
        told |= {"view": ",".join(self.views), "workers": str(self.workers), "model": "builtin:oracle"}
        return [word for name, value in told.items() for word in (f"--{name}", value)]


class Told(NamedTuple):
    """What came of one operation."""

    wrong: tuple[str, ...] = ()
    kills: int = 0
    resumes: int = 0


class Runs:
    """The directories of the last few runs, and what an undisturbed one came to in each sandbox."""

    def __init__(self, place: Path, tasks: tuple[str, ...], chance: random.Random) -> None:
        self.place = place
        self._owners: set[str] = set()
        self._tasks = tasks
        self._chance = chance
        self._known: dict[str, dict[Key, Row]] = {}
        self._seconds: dict[str, float] = {}
        self._made = 0
        self._kept: list[Path] = []

    def owners(self) -> set[str]:
        """Whose the machines of all runs so far are."""
        for config in self.place.glob("*/config.json"):
            with contextlib.suppress(OSError, ValueError):
                self._owners.add(json.loads(config.read_text())["run_id"])
        return set(self._owners)

    def undisturbed(self, sandbox: str) -> Told:
        """One run of all tasks under all views, which all later ones are compared with."""
        out, began = self._new(), time.monotonic()
        choice = Choice(sandbox, self._tasks, VIEWS)
        wrong = self._ended(self._begun(choice, out), 0)
        self._seconds[sandbox] = (time.monotonic() - began) / len(self._tasks) / len(VIEWS)
        rows = _rows(out)
        wrong += [f"{key(row)} is {row['outcome']}" for row in rows if row["outcome"] != "graded"]
        if len(rows) != len(self._tasks) * len(VIEWS):
            wrong.append(f"{len(rows)} rows")
        self._known[sandbox] = {key(row): row for row in rows}
        self._retire(out, wrong)
        return Told(tuple(wrong))

    def whole(self, sandbox: str) -> Told:
        """A run that nothing disturbs."""
        choice, out = self._choice(sandbox), self._new()
        wrong = self._ended(self._begun(choice, out), 0)
        return Told(tuple(wrong + self._audited(choice, out)))

    def killed(self, sandbox: str) -> Told:
        """A run that is killed at random moments, and gone on with."""
        choice, out = self._choice(sandbox), self._new()
        wrong: list[str] = []
        kills = resumes = 0
        for _ in range(self._chance.randint(1, _MOST_KILLS)):
            process = self._begun(choice, out)
            resumes += "--resume" in _words(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                wrong += self._ended(process, 0, self._chance.uniform(0.3, self._expected_s(choice)))
                break
            process.kill()
            process.communicate()
            kills += 1
        if not wrong:
            resumes += (out / "config.json").exists()
            wrong += self._ended(self._begun(choice, out), 0)
        return Told(tuple(wrong + self._audited(choice, out)), kills, resumes)

    def interrupted(self, sandbox: str) -> Told:
        return self._told_to_end(sandbox, signal.SIGINT, INTERRUPTED)

    def terminated(self, sandbox: str) -> Told:
        return self._told_to_end(sandbox, signal.SIGTERM, TERMINATED)

    def reported(self, sandbox: str) -> Told:
        """A report on one run; several have takeovers of one name, which it refuses to count twice."""
        if not self._kept:
            return self.whole(sandbox)
        out = self.place / "report"
        process = command("evals.report", str(self._chance.choice(self._kept)), "--out", str(out))
        wrong = self._ended(process, 0)
        if not (out / "report.html").is_file():
            wrong.append("there is no report.html")
        remove_tree(out)
        return Told(tuple(wrong))

    def verified(self, sandbox: str) -> Told:
        """Every record of a run is whole."""
        if not self._kept:
            return self.whole(sandbox)
        records = sorted(map(str, (self._chance.choice(self._kept) / "records").iterdir()))
        process = command("handoff", "verify", *records)
        return Told(tuple(self._ended(process, 0)))

    def _told_to_end(self, sandbox: str, number: signal.Signals, code: int) -> Told:
        choice, out = self._choice(sandbox), self._new()
        process = self._begun(choice, out)
        wrong: list[str] = []
        resumes = 0
        try:
            while not (out / "config.json").exists() and process.poll() is None:
                time.sleep(0.05)
            wrong += self._ended(process, 0, self._chance.uniform(0.0, self._expected_s(choice)))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            wrong += self._ended(process, code, also=0)
            resumes = int(process.returncode == code)
        if not wrong:
            wrong += self._ended(self._begun(choice, out), 0)
        return Told(tuple(wrong + self._audited(choice, out)), 0, resumes)

    def _begun(self, choice: Choice, out: Path) -> subprocess.Popen[str]:
        """Begin a run, or go on with it if it ever began."""
        if (out / "config.json").exists():
            workers = str(choice.workers)
            return command("evals.takeover", "--resume", "--out", str(out), "--workers", workers)
        return command("evals.takeover", *choice.options(), "--out", str(out))

    def _ended(
        self, process: subprocess.Popen[str], code: int, within: float = 0.0, also: int | None = None
    ) -> list[str]:
        """What is wrong with how a command ended. Raises TimeoutExpired if it has not `within` seconds."""
        try:
            _, err = process.communicate(timeout=within or _LONGEST_S)
        except subprocess.TimeoutExpired:
            if within:
                raise
            process.kill()
            process.communicate()
            return [f"{_named(process)} did not end within {_LONGEST_S:.0f} seconds"]
        except BaseException:  # whoever ends a soak early ends this
            process.kill()
            process.communicate()
            raise
        told = " / ".join(err.strip().splitlines()[-3:])[-300:]
        if process.returncode not in (code, code if also is None else also):
            return [f"{_named(process)} ended with {process.returncode}, not {code}: {told}"]
        before, found, after = err.partition("Traceback")
        return [f"{_named(process)}: {before[-200:]}{found}{after[:2000]}"] if found else []

    def _choice(self, sandbox: str) -> Choice:
        chance = self._chance
        tasks = chance.sample(self._tasks, chance.randint(1, min(2, len(self._tasks))))
        views = chance.sample(VIEWS[1:], chance.randint(1, 2))
        return Choice(sandbox, tuple(sorted(tasks)), tuple(views), chance.randint(1, 2))

    def _expected_s(self, choice: Choice) -> float:
        return self._seconds[choice.sandbox] * len(choice.tasks) * (len(choice.views) + 1) + 3

    def _audited(self, choice: Choice, out: Path) -> list[str]:
        views = {"repository", *choice.views}
        known = self._known[choice.sandbox].items()
        wanted = {at: row for at, row in known if row["task_id"] in choice.tasks and row["view"] in views}
        wrong = wrong_rows(_rows(out), wanted)
        if sorted(map(key, _journaled(out))) != sorted(wanted):
            wrong.append("the journal has other takeovers")
        if list((out / "machines").glob("*")):
            wrong.append("machines are left")
        self._retire(out, wrong)
        return [f"{choice.sandbox}, {','.join(choice.tasks)}: {line}" for line in wrong]

    def _new(self) -> Path:
        self._made += 1
        return self.place / f"run{self._made}"

    def _retire(self, out: Path, wrong: list[str]) -> None:
        """Keep the last few, and each that is not as it should be."""
        self.owners()
        if not wrong:
            self._kept.append(out)
        while len(self._kept) > _KEPT:
            remove_tree(self._kept.pop(0))


def key(row: Row) -> Key:
    return tuple(row[name] for name in ("record_id", "view", "successor", "repeat"))


def wrong_rows(rows: list[Row], wanted: dict[Key, Row]) -> list[str]:
    """What of a run's takeovers is missing, there twice, or other than in an undisturbed run; a line each."""
    found = Counter(map(key, rows))
    wrong = [f"{at}: no row" for at in wanted if at not in found]
    wrong += [f"{at}: {number} rows" for at, number in found.items() if number > 1]
    wrong += [f"{at}: nobody asked for it" for at in found if at not in wanted]
    for row in rows:
        usual = wanted.get(key(row), row)
        wrong += [
            f"{key(row)}: {name} is {row.get(name)!r:.60}, else {usual.get(name)!r:.60}"
            for name in _SAME
            if row.get(name) != usual.get(name)
        ]
    return wrong


def _rows(out: Path) -> list[Row]:
    try:
        return [json.loads(line) for line in (out / "takeovers.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []


def _journaled(out: Path) -> list[Row]:
    with contextlib.closing(sqlite3.connect(out / "journal.sqlite", timeout=60)) as database:
        asked = "SELECT row FROM takeover_rows WHERE stage = 'takeovers'"
        return [json.loads(row) for (row,) in database.execute(asked)]


def _words(process: subprocess.Popen[str]) -> list[str]:
    return cast(list[str], process.args)


def _named(process: subprocess.Popen[str]) -> str:
    return " ".join(_words(process)[2:4])
