"""The seven tasks: a small repository, and the actions that the scripted model takes in each of them. No LLM is involved."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from benchmarks.testbed import commit_all

SLEEP = "3.25"
"""Seconds that the interrupted command sleeps; also how its process is recognized."""
REASON = "The discount is in percent. Divide by 100 in prices.py, not by 10. Do not change the test."
LOG_MARK = "build-log-line-0200"
"""A text that only the long output of the first agent contains."""
TOP_DIRECTORY = '"$(git rev-parse --show-toplevel)"'
_WHERE = 'echo "directory=$(basename "$PWD") ticket=${ticket:-unset}"'
_ENTER = "cd docs && ticket=42"
_TEST = "python3 -m unittest -q"
_LOOK = f"cd {TOP_DIRECTORY} && cat guide.md hours.md docs/notes.md && ls"
_NUMBERS = (1, 2, 3)
GUIDE = ("Install", "Configure", "Run")
DAYS = ("Monday", "Tuesday", "Friday")
CURRENCIES = ("EUR", "GBP", "USD")
LOSER, LOSERS_FILE, WINNER = "I divide by 1000.", str(111 * 111), "I divide by 100."
"""What the two attempts say, and what only the file of the first one contains."""


class Shell(NamedTuple):
    """Run a command."""

    command: str

    def __str__(self) -> str:
        return self.command


class Edit(NamedTuple):
    """Replace a text in a file, with the agent's editor if it has one."""

    path: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"edit {self.path}: {self.old} -> {self.new}"


class HandOver(NamedTuple):
    """Let the other agent continue."""

    reason: str

    def __str__(self) -> str:
        return f"hand over: {self.reason}"


class Delegate(NamedTuple):
    """Let subagents work at the same time, by several calls in one reply."""

    agents: tuple[str, ...]

    def __str__(self) -> str:
        return f"delegate to {', '.join(self.agents)}, in one reply"


class Finish(NamedTuple):
    """End the task with a message."""

    message: str

    def __str__(self) -> str:
        return f"finish: {self.message}"


Action = Shell | Edit | HandOver | Delegate | Finish
_FIX = Edit("prices.py", "discount / 10)", "discount / 100)")
_DONE = Finish("The task is done.")


class Task(NamedTuple):
    """One task: its title, the actions of each model, and how it is interrupted."""

    title: str
    scripts: dict[str, tuple[Action, ...]]
    phases: tuple[str, ...] = ("start",)
    """The arguments with which the program is called, one after another."""
    kill_in_sleep: bool = False
    """Kill the first call with SIGKILL while its command sleeps."""
    kill_in_wait: bool = False
    """Kill the first call with SIGKILL if it waits for a person instead of returning."""
    groups: tuple[tuple[str, ...], ...] = ()
    """Models that work at once: the second request of each waits until all have sent theirs; their edits take turns."""


def _change_guide(number: int) -> tuple[Action, ...]:
    """Read the guide, change one line and write the whole file; write an own file; edit a line of the opening hours."""
    lines = [f"{line} (step {number})" if index == number else line for index, line in enumerate(GUIDE, 1)]
    text = " '' ".join(f"'{line}'" for line in lines)
    write = f"printf '%s\\n' {text} > guide.md && echo done > worker-{number}.txt"
    day = DAYS[number - 1]
    edit = Edit("hours.md", day, f"{day} (step {number})")
    return Shell("cat guide.md"), Shell(write), edit, Finish("I changed one line of each file.")


def _change_currency(number: int) -> tuple[Action, ...]:
    write = f"echo 'Prices are in {CURRENCIES[number - 1]}.' > docs/notes.md"
    return Shell("cat docs/notes.md"), Shell(write), Finish("I changed the currency.")


TASKS = {
    "fix": Task(
        "Fix a failing test with a shell and an editor",
        {
            "coder": (
                Shell(_TEST),
                Shell("cat prices.py"),
                _FIX,
                Shell(_ENTER),
                Shell(_WHERE),
                Shell(f"cd {TOP_DIRECTORY} && {_TEST}"),
                _DONE,
            )
        },
    ),
    "kill": Task(
        "Resume after SIGKILL in the middle of a command",
        {
            "coder": (
                Shell("echo step-1 >> log.txt"),
                _FIX,
                Shell(_ENTER),
                Shell(
                    f"(cd {TOP_DIRECTORY} && echo begun >> effects.txt && sleep {SLEEP} && echo ended >> effects.txt)"
                ),
                Shell(_WHERE),
                _DONE,
            )
        },
        phases=("start", "resume"),
        kill_in_sleep=True,
    ),
    "handoff": Task(
        "Hand the work over, with the reasons instead of the transcript",
        {
            "finder": (
                Shell("cat build.log"),
                Shell("echo checked >> log.txt"),
                Shell(_ENTER),
                HandOver(REASON),
                _DONE,
            ),
            "fixer": (
                Shell(f"cat {TOP_DIRECTORY}/log.txt; {_WHERE}"),
                _FIX,
                Shell(f"cd {TOP_DIRECTORY} && {_TEST}"),
                _DONE,
            ),
        },
    ),
    "fork": Task(
        "Go back three steps and fork, with the files of that step",
        {
            "coder": (*(Shell(f"echo {number} >> log.txt") for number in range(1, 6)), _DONE),
            "second-coder": (Shell("cat log.txt"), Shell("echo fork >> log.txt"), _DONE),
        },
        phases=("start", "fork"),
    ),
    "approval": Task(
        "Approve a risky command, with a restart while it waits",
        {
            "coder": (
                Shell("echo step-1 >> log.txt"),
                Shell(_ENTER),
                Shell(f"rm -r {TOP_DIRECTORY}/data && echo removed >> {TOP_DIRECTORY}/effects.txt"),
                Shell(_WHERE),
                _DONE,
            )
        },
        phases=("start", "approve"),
        kill_in_wait=True,
    ),
    "parallel": Task(
        "Let three workers write at once",
        {
            **{f"own-line-{number}": _change_guide(number) for number in _NUMBERS},
            **{f"same-line-{number}": _change_currency(number) for number in _NUMBERS},
            "reader": (Shell(_LOOK), _DONE),
            "lead": (Delegate(tuple(f"worker-{number}" for number in _NUMBERS)), Shell(_LOOK), _DONE),
        },
        phases=("own-line", "same-line"),
        groups=tuple(
            tuple(f"{phase}-{number}" for number in _NUMBERS) for phase in ("own-line", "same-line")
        ),
    ),
    "choose": Task(
        "Fork, try twice, keep the better attempt",
        {
            "coder": (Shell("echo prepared >> log.txt"), Shell(_ENTER), Finish("I am ready.")),
            "first": (
                Shell(f"cd {TOP_DIRECTORY} && echo $((111 * 111)) > stray.txt"),
                Edit("prices.py", "discount / 10)", "discount / 1000)"),
                Finish(LOSER),
            ),
            "second": (Shell(_WHERE), _FIX, Finish(WINNER)),
            "closer": (Shell(f"cd {TOP_DIRECTORY} && cat log.txt && {_TEST}"), _DONE),
        },
    ),
}

_FILES = {
    "prices.py": '''"""Prices."""


def total(prices, discount=0):
    """Return the sum of the prices, less the discount in percent."""
    return sum(prices) * (1 - discount / 10)
''',
    "test_prices.py": """import unittest

from prices import total


class TestTotal(unittest.TestCase):
    def test_half_price(self):
        self.assertEqual(total([10, 20], discount=50), 15)


if __name__ == "__main__":
    unittest.main()
""",
    "guide.md": "\n\n".join(GUIDE) + "\n",
    "hours.md": "\n\n".join(DAYS) + "\n",
    "docs/notes.md": "Prices are in cents.\n",
    "data/orders.csv": "10,20\n",
    "build.log": "".join(f"build-log-line-{number:04}: compiled without warnings\n" for number in range(400)),
}


def make_repository(directory: Path) -> None:
    """Create the tasks' repository, with one commit."""
    for name, text in _FILES.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    commit_all(directory)
