"""The parts of a final patch that are not its change."""

from __future__ import annotations

from langgraph_takeover.evals.run.measures.final_patch import clean_patch, measure_patch

DIRECTORIES = ("src", "tests")


def make_section(path: str, *, is_new: bool = False) -> str:
    mode = "new file mode 100644\n--- /dev/null" if is_new else f"--- a/{path}"
    return f"diff --git a/{path} b/{path}\n{mode}\n+++ b/{path}\n@@ -0,0 +1,2 @@\n+one\n+two\n"


CHANGE = make_section("src/a.py") + make_section("src/new.py", is_new=True)
TEST = make_section("tests/test_a.py")
EXTRAS = (
    make_section("reproduce.py", is_new=True)
    + make_section("debug/run.py", is_new=True)
    + make_section("src/__pycache__/a.pyc", is_new=True)
)


def test_scratch_files_and_tests_are_listed() -> None:
    found = measure_patch(CHANGE + TEST + EXTRAS, DIRECTORIES)
    assert (found.patch_files, found.patch_lines) == (6, 12)
    assert found.scratch_files == ("reproduce.py", "debug/run.py", "src/__pycache__/a.pyc")
    assert found.test_files == ("tests/test_a.py",)
    assert measure_patch("", DIRECTORIES) == (0, 0, (), ())
    many = "".join(make_section(f"try{number}.py", is_new=True) for number in range(30))
    assert len(measure_patch(many, DIRECTORIES).scratch_files) == 20


def test_scratch_and_build_files_are_removed() -> None:
    assert clean_patch(CHANGE + TEST + EXTRAS + make_section("setup.py"), DIRECTORIES) == CHANGE + TEST
    assert clean_patch(CHANGE + TEST, DIRECTORIES) == CHANGE + TEST
    assert clean_patch("", DIRECTORIES) == ""
    tracked = make_section("build/generate.py")
    assert clean_patch(tracked + EXTRAS, DIRECTORIES) == tracked
    assert measure_patch(tracked, DIRECTORIES).scratch_files == ()
    assert clean_patch(EXTRAS, DIRECTORIES) == ""
    nested = make_section("src/setup.py")
    assert clean_patch(nested + EXTRAS, DIRECTORIES) == nested
