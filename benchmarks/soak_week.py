"""One thing after another that people do with this program, each checked, and samples of what it leaves."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import soak_samples
from benchmarks.soak_embedded import OWNER, Embedded
from benchmarks.soak_growth import Sample
from benchmarks.soak_processes import descendants, left_running
from benchmarks.soak_runs import Runs, Told
from evals.tasks import BUNDLED, load_tasks
from graph import open_home
from sandbox.machine import BackendName

TASKS = ("galley__galley-31", "ledger__ledger-12")
_EVERY = 3
"""Operations between two samples."""
_WITHIN = ("the first embedded", "fork", "take over", "hand over")
"""In this process: what these leave running is counted, not ended."""
_NO_DAEMON = "unix:///nonexistent/docker.sock"


class Done(NamedTuple):
    """One operation."""

    name: str
    sandbox: str
    seconds: float
    told: Told


class Week:
    """What has been done so far, and what was seen of it."""

    def __init__(self, place: Path, sandboxes: tuple[BackendName, ...], seed: int) -> None:
        self.done: list[Done] = []
        self.samples: list[Sample] = []
        self._place = place
        self._sandboxes = sandboxes
        self._chance = random.Random(seed)
        self._began = 0.0
        self._operations = 0
        self._runs = Runs(place / "runs", TASKS, self._chance)
        self._deck: list[tuple[str, BackendName]] = []

    def lived(self, minutes: float, operations: int | None) -> None:
        """Warm up, then do one thing after another until the time is up, or so many are done."""
        tasks = load_tasks(BUNDLED, TASKS)
        with open_home(self._place / "home") as home:
            self._embedded = Embedded(home, tasks, self._place / "checkouts", self._chance)
            self._warm_up()
            self._began = time.monotonic()
            self._sample()
            while time.monotonic() - self._began < 60 * minutes and self._operations != operations:
                name, sandbox = self._drawn()
                self._do(name, sandbox, self._deeds()[name])
                self._operations += 1
                if self._operations % _EVERY == 0:
                    self._sample()
            if self.samples[-1].operations != self._operations:
                self._sample()

    def owners(self) -> set[str]:
        """Whose the machines are that were made, as far as it came."""
        return {*self._runs.owners(), OWNER}

    def _warm_up(self) -> None:
        """Learn what each run comes to where nothing disturbs it, and load whatever is loaded once."""
        for sandbox in self._sandboxes:
            self._do("the first run", sandbox, self._runs.undisturbed)
            self._do("the first embedded", sandbox, self._embedded.undisturbed)
            for name, deed in self._deeds().items():
                if name in ("fork", "take over", "hand over", "run"):
                    self._do(name, sandbox, deed)

    def _deeds(self) -> dict[str, Callable[[BackendName], Told]]:
        runs, embedded = self._runs, self._embedded
        return {
            "run": runs.whole,
            "kill": runs.killed,
            "interrupt": runs.interrupted,
            "terminate": runs.terminated,
            "report": runs.reported,
            "verify": runs.verified,
            "fork": embedded.forked,
            "take over": embedded.taken_over,
            "hand over": embedded.delivered,
        }

    def _drawn(self) -> tuple[str, BackendName]:
        """The next of a shuffled deck that has each operation once for each sandbox."""
        if not self._deck:
            cards = [(name, sandbox) for sandbox in self._sandboxes for name in self._deeds()]
            self._deck = self._chance.sample(cards, len(cards))
        return self._deck.pop()

    def _do(self, name: str, sandbox: BackendName, deed: Callable[[BackendName], Told]) -> None:
        before, began = descendants(), time.monotonic()
        try:
            told = deed(sandbox)
        except Exception as error:  # the week goes on, and tells of it
            traceback.print_exc()
            told = Told((f"{type(error).__name__}: {error}",))
        seconds = time.monotonic() - began
        if name not in _WITHIN:
            told = told._replace(wrong=(*told.wrong, *left_running(before)))
        self._note(name, sandbox, seconds, told)

    def _note(self, name: str, sandbox: str, seconds: float, told: Told) -> None:
        self.done.append(Done(name, sandbox, seconds, told))
        wrong = "".join(f"\n      wrong: {line}" for line in told.wrong)
        print(f"{self._operations:5} {name}, {sandbox}, {seconds:.1f} s{wrong}", file=sys.stderr, flush=True)

    def _sample(self) -> None:
        """Collect what dead runs left, as a person would now and then, and look at what is there."""
        before, began = descendants(), time.monotonic()
        wrong = self._collected()
        seconds = time.monotonic() - began
        self._note("gc", "all", seconds, Told((*wrong, *left_running(before))))
        values = soak_samples.of_process() | soak_samples.of_depot()
        values |= soak_samples.of_homes(self._place / "home", self._place / "runs")
        values |= soak_samples.of_daemon(self.owners(), asked="docker" in self._sandboxes)
        hours = (time.monotonic() - self._began) / 3600
        self.samples.append(Sample(hours, self._operations, values))

    def _collected(self) -> tuple[str, ...]:
        """What is wrong with `gc`: of this place all, and of the daemon what our own runs have made."""
        wrong = _gc("--remove", DOCKER_HOST=_NO_DAEMON)[1]
        if "docker" in self._sandboxes:
            told, more = _gc("--json")
            wrong += more
            found = json.loads(told)["findings"] if not more else ()
            on_daemon = [one["owner"] for one in found if one["kind"] in ("container", "image")]
            ours = self.owners()
            for owner in sorted({each for each in on_daemon if soak_samples.is_of(each, ours)}):
                wrong += _gc("--owner", owner, "--remove")[1]
        return wrong


def _gc(*options: str, **environment: str) -> tuple[str, tuple[str, ...]]:
    """What `gc` prints, and what is wrong with that."""
    words = [sys.executable, "-m", "sandbox", "gc", *options]
    done = subprocess.run(words, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        return "", (f"gc {' '.join(options)} ended with {done.returncode}: {done.stderr[-300:]}",)
    return done.stdout, ()
