"""The part of a successor's observations that the predecessor had been shown."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks.reshown_agreement import LabelledStep, measure_labelled_steps
from langgraph_takeover.evals.run.measures.rediscovery import PredecessorText, StepText, TextTotals, sum_text
from langgraph_takeover.handoff.trace.events import Event

from .shell_steps import build_steps

A = "\n".join(f"line {number} of a" for number in range(1, 41))
B = "\n".join(f"other {number} of b" for number in range(1, 41))


def lines(text: str, first: int, last: int) -> str:
    return "\n".join(text.split("\n")[first - 1 : last])


def measure(predecessor: tuple[Event, ...], *commands: tuple[Any, ...]) -> tuple[StepText, ...]:
    return PredecessorText(predecessor, "/repo").measure_steps(build_steps(*commands))


def test_a_file_that_the_predecessor_read_is_reshown() -> None:
    [step] = measure(build_steps(("cat a.py", A)), ("cat a.py", A))
    assert step.share == 1
    assert [(file.path, file.ranges) for file in step.files] == [("a.py", ((1, 40),))]


def test_one_known_and_one_new_file_count_half() -> None:
    [step] = measure(build_steps(("cat a.py", A)), ("cat a.py b.py", f"{A}\n{B}"))
    assert step.share == pytest.approx(len(A) / (len(A) + len(B)), abs=0.03)
    assert [file.path for file in step.files] == ["a.py"]
    assert step.reshown_lines == tuple(range(40))


def test_other_lines_of_a_known_file_are_new() -> None:
    [step] = measure(
        build_steps(("sed -n '1,20p' a.py", lines(A, 1, 20))), ("sed -n '15,30p' a.py", lines(A, 15, 30))
    )
    assert step.files[0].ranges == ((15, 20),)
    assert step.share == pytest.approx(6 / 16, abs=0.02)


def test_equal_text_at_another_place_is_new() -> None:
    body = "    if value is None:\n        return None\n"
    [step] = measure(build_steps(("sed -n '10,11p' a.py", body)), ("sed -n '800,801p' a.py", body))
    assert step.share == 0


def test_the_display_does_not_matter() -> None:
    numbered = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(A.split("\n"), 1))
    for command, output in (("nl -ba a.py", numbered), ("grep -n line a.py", numbered.replace("\t", ":"))):
        [step] = measure(build_steps((command, output)), ("cat a.py", A))
        assert step.share == 1


def test_lines_that_an_edit_moved_are_reshown() -> None:
    moved = f"import new\n{A}"
    predecessor = build_steps(("cat a.py", A), ("sed -i '1i import new' a.py", "", "a.py"))
    [step] = measure(
        predecessor, ("nl -ba a.py", "\n".join(f"{n:6}\t{t}" for n, t in enumerate(moved.split("\n"), 1)))
    )
    assert step.share == 1


def test_text_that_the_predecessor_wrote_is_reshown() -> None:
    script = "from pkg import thing\nprint(thing(30))"
    predecessor = build_steps((f"cat > repro.py <<'EOF'\n{script}\nEOF", "", "repro.py"))
    [step] = measure(predecessor, ("cat repro.py", script))
    assert step.share == 1


def test_a_substitution_is_written_text_but_a_similar_line_is_new() -> None:
    predecessor = build_steps(
        ("cat a.py", "room = width - measure(initial)"),
        ("sed -i 's/measure(initial)/max(measure(initial), 0)/' a.py", "", "a.py"),
    )
    [own] = measure(predecessor, ("cat a.py", "room = width - max(measure(initial), 0)"))
    [new] = measure(predecessor, ("cat a.py", "room = width - measure(hanging if lines else initial)"))
    assert (own.share, new.share) == (1, 0)


def test_a_diff_of_the_predecessors_change_is_reshown() -> None:
    diff = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-line 1 of a\n+the first line\n line 2 of a"
    predecessor = build_steps(("cat a.py", A), ("sed -i '1s/.*/the first line/' a.py", "", "a.py"))
    [step] = measure(predecessor, ("git diff", diff))
    assert step.share == 1


def test_output_of_the_same_command_on_the_same_tree() -> None:
    predecessor = build_steps(("cd /repo && ls -la", "README.md\nsetup.py"))
    [same] = measure(predecessor, ("ls  -la; git status", "README.md\nsetup.py\nnothing to commit"))
    [other] = measure(predecessor, ("ls -l", "README.md\nsetup.py"))
    assert 0.4 < same.share < 0.6
    assert other.share == 0


def test_output_on_another_tree_is_new() -> None:
    predecessor = build_steps(("python repro.py", "value: 30"), ("sed -i s/a/b/ a.py", "", "a.py"))
    [step] = measure(predecessor, ("python repro.py", "value: 30"))
    assert step.share == 0
    unchanged = build_steps(("python repro.py", "value: 30"))
    _, after_edit = measure(unchanged, ("sed -i s/a/b/ a.py", "", "a.py"), ("python repro.py", "value: 30"))
    assert after_edit.share == 0


def test_a_name_with_wildcards() -> None:
    predecessor = build_steps(("cat pkg/a.py", A))
    [step] = measure(predecessor, ("cat pkg/*.py", f"{A}\n{B}"))
    assert step.reshown_lines == tuple(range(40))


def test_long_lines_count_in_part() -> None:
    words = [f"word{number}" for number in range(200)]
    predecessor = build_steps(("cat a.min.js", " ".join(words)))
    [step] = measure(predecessor, ("cat a.min.js", " ".join(words[:100] + [f"new{n}" for n in range(120)])))
    assert 0.4 < step.share < 0.65


@pytest.mark.slow
def test_figures_do_not_depend_on_successors_measured_before() -> None:
    known = "\n".join(f"value_{number} = compute(first)" for number in range(600))
    predecessor = build_steps(("cat a.py", known), ("sed -i 's/first/second, third/' a.py", "", "a.py"))
    successor = build_steps(("grep second a.py", known.replace("first", "second, third")))
    text = PredecessorText(predecessor, "/repo")
    first, again = text.measure_steps(successor), text.measure_steps(successor)
    assert first == again
    assert first[0].reshown_chars > 0


def test_refused_actions_show_nothing() -> None:
    action, seen = build_steps(("cat a.py", A))
    found = PredecessorText((action, seen)).measure_steps((action, seen.model_copy(update={"refused": True})))
    assert found == ()


def test_recalls_are_part_of_the_view() -> None:
    action, seen = build_steps(("cat a.py", A))
    recall = action.model_copy(update={"tool": "recall", "arguments": {"query": "a.py"}})
    found = PredecessorText((action, seen)).measure_steps(
        (recall, seen.model_copy(update={"tool": "recall"}))
    )
    assert found == ()


def test_verification_has_a_sum_of_its_own() -> None:
    found = measure(
        build_steps(("cat a.py", A), ("pytest", "3 passed")), ("cat a.py", A), ("pytest", "3 passed")
    )
    size = len(A) - 39
    assert sum_text(found, None) == TextTotals(size + 8, size + 8, 0)
    assert sum_text(found, found[1].event_index) == TextTotals(size + 8, size, 8)


def test_hostile_text_takes_little_time() -> None:
    number = count()
    same = "\n".join("    pass" for _ in range(20_000))
    similar = "\n".join(f"value_{next(number)} = compute(argument)" for _ in range(4_000))
    predecessor = build_steps((f"cat > a.py <<'EOF'\n{similar}\nEOF", "", "a.py"), ("cat a.py", same))
    [step] = measure(predecessor, ("cat a.py", f"{same}\n{similar.replace('compute', 'calculate')}"))
    assert step.shown_chars > 0


def _mean_error(found: list[LabelledStep]) -> float:
    return mean(step.error for step in found)


@pytest.mark.slow
def test_agreement_with_hand_made_labels_of_live_takeovers() -> None:
    found = list(measure_labelled_steps(None))
    assert len(found) == 40
    assert _mean_error(found) <= 0.05


@pytest.mark.slow
def test_agreement_with_all_hand_made_labels(real_data: Path) -> None:
    found = list(measure_labelled_steps(real_data / "trajectories"))
    assert len(found) == 136
    assert _mean_error(found) <= 0.05
