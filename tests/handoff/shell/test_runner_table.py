"""Every row of the table of runners has examples, and each is recognized and judged right."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from langgraph_takeover.handoff.points.outcomes import judge_output
from langgraph_takeover.handoff.points.validation import find_validations
from langgraph_takeover.handoff.shell.runners import RUNNERS, Runner, find_runner

_HEADER = re.compile(r"(?P<row>[^:#\n]+): (?P<outcome>\w+)(?: exit (?P<code>\d+))? \$ (?P<command>.+)")


class Example(NamedTuple):
    """One run of a runner, with its expected outcome."""

    row: str
    outcome: str
    exit_code: int | None
    command: str
    output: str


def _read_examples() -> list[Example]:
    examples: list[Example] = []
    for line in (Path(__file__).parent / "runner_examples.txt").read_text().splitlines():
        header = _HEADER.fullmatch(line)
        if header is not None:
            code = header["code"]
            examples.append(
                Example(header["row"], header["outcome"], int(code) if code else None, header["command"], "")
            )
        elif line.startswith("    ") or (not line and examples):
            examples[-1] = examples[-1]._replace(output=f"{examples[-1].output}{line[4:]}\n")
        else:
            assert not line or line.startswith("#"), f"neither a header nor an output: {line}"
    return examples


EXAMPLES = _read_examples()


@pytest.mark.parametrize("row", RUNNERS, ids=lambda row: row.name)
def test_every_row_has_a_passing_and_a_failing_example(row: Runner) -> None:
    assert {"passed", "failed"} <= {example.outcome for example in EXAMPLES if example.row == row.name}


def test_the_names_of_the_rows_are_unique() -> None:
    names = [row.name for row in RUNNERS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.row}: {example.command}")
def test_every_example_is_recognized_and_judged_right(example: Example) -> None:
    matches = find_validations(example.command, ())
    assert [match.runner.name for match in matches if match.runner] == [example.row]
    assert judge_output(example.command, example.output, example.exit_code) == example.outcome


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "text",
    [
        "\n" * 1_000_000,
        "1 failed, " * 100_000,
        "".join(f"Tests: {number} passed, 1 \n" for number in range(5_000)),
    ],
    ids=["blank lines", "one line", "many lines"],
)
def test_the_time_of_every_summary_is_linear(text: str) -> None:
    started = time.monotonic()
    for parse in {row.parse_summary for row in RUNNERS}:
        parse(text)
    assert time.monotonic() - started < 100


@pytest.mark.parametrize(
    "words",
    ["npm --prefix", "npm -w", "docker -a", "docker compose -f", "julia -e", "mvn -q", "cargo -v", "nx -t", "make a", "java junit-",
     "turbo a:", "R -e", "lisp emacs test", "go run a", "zig test", "godot gut_cmdln", "clojure test", "npm a-a-a:"],
)  # fmt: skip
def test_the_time_to_recognize_a_command_is_linear(words: str) -> None:
    name, word = words.split(" ", 1)
    started = time.monotonic()
    find_runner([name, *f"{word} ".split() * 30_000, "!"])
    find_runner([name, *f"{word} ".split() * 60, "!"])
    assert time.monotonic() - started < 100
