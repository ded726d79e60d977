"""Runs within a soak's own process, all of them in one home that stays open: forks, takeovers and handoffs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from benchmarks.soak_runs import POINT, VIEWS, Told
from evals.models.facts import read_facts
from evals.models.oracle import OracleModel
from evals.tasks import Task
from graph import Envelope, Home, Outcome, deliver, hand_over, open_run, resume, run, take_over
from handoff.ledger import machines
from sandbox.machine import BackendName
from sandbox.removal import remove_tree

OWNER = "soak"


class Embedded:
    """One home, and what each task comes to in each sandbox."""

    def __init__(self, home: Home, tasks: tuple[Task, ...], checkouts: Path, chance: random.Random) -> None:
        self._home = home
        self._tasks = tasks
        self._checkouts = checkouts
        self._chance = chance
        self._patches: dict[tuple[str, str], str] = {}
        self._made = 0
        for task in tasks:
            task.check_out(checkouts)

    def undisturbed(self, sandbox: BackendName) -> Told:
        """Each task to its end, which all later runs are compared with."""
        wrong: list[str] = []
        for task in self._tasks:
            thread, agent = self._thread("first"), self._agent(task, sandbox)
            done = run(self._home, thread, task.id, task.prompt, **agent, points=())
            self._patches[task.id, sandbox] = done.patch
            wrong += self._as_known(done, task, sandbox)
            self._given_back(agent, thread)
        return Told(tuple(wrong))

    def forked(self, sandbox: BackendName) -> Told:
        """A run to its end, resumed when it has ended, and gone on with from an earlier checkpoint."""
        task, agent = self._chosen(sandbox)
        thread = self._thread("run")
        done = run(self._home, thread, task.id, task.prompt, **agent, points=())
        wrong = self._as_known(done, task, sandbox)
        again = resume(self._home, thread, **agent, points=())
        if (again.steps, again.patch) != (done.steps, done.patch):
            wrong.append(f"{thread}: resumed, it is at step {again.steps}, not {done.steps}")
        moments = self._home.history(thread)
        early = self._chance.choice(
            [each for each in moments if each.kept and 0 < each.step < done.steps and each.next]
        )
        fork = resume(self._home, thread, **agent, points=(), checkpoint=early.checkpoint)
        wrong += self._as_known(fork, task, sandbox)
        if fork.steps != done.steps:
            wrong.append(f"{thread}: forked at step {early.step}, it took {fork.steps}, not {done.steps}")
        return Told(tuple(wrong + self._given_back(agent, thread)), 0, 1)

    def taken_over(self, sandbox: BackendName) -> Told:
        """A run that stops at its first edit, and another that takes its record over."""
        task, agent = self._chosen(sandbox)
        thread, record = self._stopped(task, agent)
        view = self._chance.choice(VIEWS)
        done = take_over(self._home, f"{thread}.next", record, view, **agent, points=())
        wrong = self._as_known(done, task, sandbox)
        wrong += self._given_back(agent, thread, f"{thread}.next")
        self._forget(record)
        return Told(tuple(wrong))

    def delivered(self, sandbox: BackendName) -> Told:
        """The same by the ledger: offered, confirmed, and worked on to its end."""
        task, agent = self._chosen(sandbox)
        thread, record = self._stopped(task, agent)
        # Once the handoff is accepted nobody can write to the thread any more, not even to give this back.
        with open_run(self._home, thread, **agent) as held:
            held.forget_machines()
        letter = Envelope(message="The edit is a first try.")
        offered = hand_over(self._home, record, "tester", source="writer", envelope=letter)
        done = deliver(self._home, offered.id, agent="tester", **agent, points=())
        wrong = []
        if done.handoff.state != "completed" or done.outcome is None:
            wrong.append(f"handoff {offered.id} is {done.handoff.state}")
        else:
            wrong += self._as_known(done.outcome, task, sandbox)
            wrong += self._given_back(agent, done.outcome.thread)
        self._forget(record)
        return Told(tuple(wrong))

    def _stopped(self, task: Task, agent: dict[str, Any]) -> tuple[str, str]:
        """A thread that stopped at its first edit, and the record of it."""
        thread = self._thread("begun")
        begun = run(self._home, thread, task.id, task.prompt, **agent, policy="stop", points=(POINT,))
        (record,) = begun.records
        return thread, record

    def _as_known(self, done: Outcome, task: Task, sandbox: str) -> list[str]:
        wrong = []
        if done.stop_reason != "finished":
            wrong.append(f"{done.thread}: it ended with {done.stop_reason}")
        if not done.patch or done.patch != self._patches[task.id, sandbox]:
            wrong.append(f"{done.thread}: another patch than usual: {done.trouble or done.patch[-200:]!r}")
        return wrong

    def _given_back(self, agent: dict[str, Any], *threads: str) -> list[str]:
        """Prune threads and forget their machines, so that only where they stand is left."""
        wrong = []
        for thread in threads:
            with open_run(self._home, thread, **agent) as held:
                before = held.outcome()
                held.prune()
                if held.outcome().patch != before.patch or len(self._home.history(thread)) != 1:
                    wrong.append(f"{thread}: pruned, it is not what it was")
                held.forget_machines()
            if machines.kept(self._home.ledger, thread):
                wrong.append(f"{thread}: machines are kept although they were forgotten")
        return wrong

    def _forget(self, record: str) -> None:
        remove_tree(self._home.records.directory(record))
        self._home.remove_unused_machines()

    def _thread(self, kind: str) -> str:
        self._made += 1
        return f"{kind}-{self._made}"

    def _chosen(self, sandbox: BackendName) -> tuple[Task, dict[str, Any]]:
        task = self._chance.choice(self._tasks)
        return task, self._agent(task, sandbox)

    def _agent(self, task: Task, sandbox: BackendName) -> dict[str, Any]:
        assert task.directory is not None
        model = OracleModel(facts=(read_facts(task.directory),))
        return {"model": model, "sandbox": task.spec(sandbox, OWNER, self._checkouts)}
