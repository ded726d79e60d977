"""The parts of a long edited file around its changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_takeover.handoff.delegation_selection import is_shown_whole, list_excerpts, measure_excerpts

from ..random_examples import examples

HEAD = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n"


def test_a_short_file_is_shown_whole() -> None:
    (whole,) = list_excerpts("a.py", "x\ny\n", "", 128_000)
    assert (whole.first, whole.last, whole.total, whole.text) == (1, 2, 2, "     1\tx\n     2\ty")


def test_hunks_that_meet_are_merged() -> None:
    content = "x" * 40 + "\n"
    patch = f"{HEAD}@@ -200 +200 @@\n-a\n+b\n@@ -300,2 +300,2 @@\n-a\n+b\n@@ -900 +900,0 @@\n-a\n"
    found = list_excerpts("a.py", content * 1000, patch, 128_000)
    assert [(each.first, each.last) for each in found] == [(140, 361), (840, 960)]


def test_hunks_of_other_files_do_not_count() -> None:
    patch = HEAD.replace("a.py", "ba.py") + "@@ -900 +900 @@\n-a\n+b\n"
    (first,) = list_excerpts("a.py", ("x" * 40 + "\n") * 1000, patch, 128_000)
    assert first.first == 1


@given(
    st.integers(1, 3000),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 200)), max_size=6),
    st.integers(1000, 200_000),
)
@settings(max_examples=examples(60))
def test_excerpts_are_in_order_bounded_and_exact(
    total: int, hunks: list[tuple[int, int]], budget: int
) -> None:
    lines = [f"line {number}" for number in range(1, total + 1)]
    content = "\n".join(lines) + "\n"
    patch = HEAD + "".join(f"@@ -1 +{first},{count} @@\n+b\n" for first, count in hunks)
    found = list_excerpts("a.py", content, patch, budget)
    assert measure_excerpts(found) <= max(budget // 3, 0) or is_shown_whole(content, budget)
    last = 0
    for each in found:
        assert last < each.first <= each.last <= each.total == total
        assert [line.partition("\t")[2] for line in each.text.split("\n")] == lines[
            each.first - 1 : each.last
        ]
        last = each.last
