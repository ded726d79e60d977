"""Inferred file changes, compared with those of the real programs."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_takeover.handoff.recordings import file_programs, in_place_edits
from langgraph_takeover.handoff.recordings.inferred_actions import infer_changes
from langgraph_takeover.handoff.recordings.inferred_content import (
    KnownLines,
    digest_content,
    full_text,
    insert_lines,
    replace_lines,
    unknown_content,
)
from langgraph_takeover.handoff.recordings.inferred_files import InferredFiles
from langgraph_takeover.handoff.trace.file_kinds import is_code

from ...random_examples import examples

FILE = "alpha = 1\nbeta = [2]\n\ndef f(x):\n    return x + alpha\n\n\ndef g(y):\n    return y\n"
HELPER = """import re, sys
path = "pkg/mod.py"
text = open(path).read()
if "alpha = 1" in text:
    text = text.replace("alpha = 1", "alpha = 7")
    with open(path, "w") as f:
        f.write(text)
    print("changed it")
else:
    print("nothing to change")
"""
GIT = "git -c user.name=a -c user.email=a@b"


class Real:
    """A real directory in which commands run, with the inferred files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = InferredFiles(str(root), keeps_directory=True)
        (root / "pkg").mkdir()
        (root / "pkg/mod.py").write_text(FILE)
        (root / "pkg/other.py").write_text("x = 1\n")
        self.run(f"git init -q . && git add -A && {GIT} commit -qm base")
        self.act("cat pkg/mod.py")
        self.act("cat pkg/other.py")

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command], cwd=self.root, capture_output=True, text=True, timeout=60
        )

    def code(self) -> dict[str, str]:
        paths = {p.relative_to(self.root): p for p in self.root.rglob("*") if ".git" not in p.parts}
        return {str(name): p.read_text() for name, p in paths.items() if p.is_file() and is_code(str(name))}

    def act(self, command: str) -> set[str]:
        """Run a command, infer its changes, compare both and return the changed code files."""
        before = self.code()
        process = self.run(command)
        after = self.code()
        output = process.stdout + process.stderr
        changes = infer_changes(self.files, "shell", {"command": command}, output, process.returncode, False)
        self.files.add_shown_text(output)
        inferred = {change.path for change in changes if is_code(change.path)}
        real = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert inferred == real, f"{command}\n{output}"
        for name, text in after.items():
            inferred_text = self.files.text(name)
            assert inferred_text is None or inferred_text == text, f"{command}: {name}"
        return real


@pytest.fixture
def real(tmp_path: Path) -> Real:
    return Real(tmp_path)


EDITS = [
    "sed -i 's/alpha/gamma/' pkg/mod.py",
    "sed -i 's/alpha/gamma/g; s/beta/delta/' pkg/mod.py",
    "sed -i '1d' pkg/mod.py",
    "sed -i '2,3d' pkg/mod.py",
    "sed -i '/^def/d' pkg/mod.py",
    "sed -i '4i\\    # a comment' pkg/mod.py",
    "sed -i '4a\\    z = 1\\n    w = 2' pkg/mod.py",
    "sed -i '5c\\    return x - alpha' pkg/mod.py",
    "sed -i '/def g/,/return/d' pkg/mod.py",
    "sed -i '/def f/,+1d' pkg/mod.py",
    "sed -i '$d' pkg/mod.py",
    "sed -i -E 's/(alpha) = ([0-9])/\\2 = \\1/' pkg/mod.py",
    "sed -i 's/\\(y\\)$/(\\1)/' pkg/mod.py",
    "sed -i 's|return x|return  x|' pkg/mod.py",
    "sed -i -e '1s/1/9/' -e '2s/2/8/' pkg/mod.py",
    "sed -i.bak 's/alpha/gamma/' pkg/mod.py",
    "sed -i 's/beta = \\[2\\]/beta = []/' pkg/mod.py",
    "perl -pi -e 's/alpha/gamma/' pkg/mod.py",
    "cat > pkg/new.py <<'EOF'\nnew = 1\nEOF",
    "cat >> pkg/mod.py <<'EOF'\n\nlast = 1\nEOF",
    "echo 'n = 1' > pkg/new.py",
    "printf 'n = 1\\nm = 2\\n' > pkg/new.py",
    "echo 'n = 1' | tee pkg/new.py",
    "cat <<'EOF' | tee -a pkg/mod.py\nn = 1\nEOF",
    "cp pkg/mod.py pkg/copy.py",
    "mv pkg/mod.py pkg/moved.py",
    "git mv pkg/mod.py pkg/moved.py",
    "rm pkg/mod.py",
    "for f in pkg/mod.py pkg/other.py; do sed -i '1s/1/2/' $f; done",
    "F=pkg/mod.py; sed -i '1s/1/2/' $F",
    "cd pkg && sed -i '1s/1/2/' mod.py",
    "python3 -c \"p = 'pkg/mod.py'; s = open(p).read(); open(p, 'w').write(s.replace('alpha', 'gamma'))\"",
    f"python3 - <<'EOF'\n{HELPER}EOF",
    f"cat > fix.py <<'EOF'\n{HELPER}EOF\npython3 fix.py",
    "python3 - <<'EOF'\nfrom pathlib import Path\nfor n in ('mod', 'other'):\n    p = Path('pkg') / f'{n}.py'\n"
    "    p.write_text(p.read_text() + '# end\\n')\nEOF",
    "python3 - <<'EOF'\nimport os\nos.rename('pkg/mod.py', 'pkg/moved.py')\nEOF",
    "cat > fix.sh <<'EOF'\nsed -i 's/alpha/gamma/' pkg/mod.py\nEOF\nbash fix.sh",
    "bash -c \"sed -i 's/alpha/gamma/' pkg/mod.py\"",
    "timeout 20 sed -i 's/alpha/gamma/' pkg/mod.py",
    "patch -p1 <<'EOF'\n--- a/pkg/mod.py\n+++ b/pkg/mod.py\n@@ -1,3 +1,3 @@\n-alpha = 1\n+alpha = 3\n beta = [2]\n \nEOF",
    "patch -p0 <<'EOF'\n--- pkg/mod.py\n+++ pkg/mod.py\n@@ -8,2 +8,2 @@\n def g(y):\n-    return y\n+    return -y\nEOF",
    "patch pkg/mod.py <<'EOF'\n1,2c1\n< alpha = 1\n< beta = [2]\n---\n> alpha = 3\n5a5\n>     # more\n8d8\n< def g(y):\nEOF",
    "patch -R pkg/mod.py <<'EOF'\n1c1,2\n< alpha = 3\n---\n> alpha = 1\n> beta = [2]\nEOF",
    "git apply <<'EOF'\n--- a/pkg/mod.py\n+++ b/pkg/mod.py\n@@ -1,2 +1,2 @@\n-alpha = 1\n+alpha = 3\n beta = [2]\nEOF",
    "python3 -c \"print(open('pkg/mod.py').read().upper())\" > pkg/t.tmp && mv pkg/t.tmp pkg/mod.py",
]


@pytest.mark.cases(12)
@pytest.mark.parametrize("command", EDITS)
def test_inferred_changes_match_real_changes(real: Real, command: str) -> None:
    assert real.act(command)


@pytest.mark.parametrize(
    "command",
    [
        "sed -i 's/no such text/x/' pkg/mod.py",
        "sed -i '1s/beta/x/' pkg/mod.py",
        "sed -i 's/[[:space:]]*$//' pkg/mod.py",
        "sed -i 's/alpha/alpha/' pkg/mod.py",
        "sed 's/alpha/x/' pkg/mod.py",
        "sed -n '1,3p' pkg/mod.py > listing.txt",
        "grep -n alpha pkg/mod.py > /dev/null",
        "sed -i 's/alpha/x/' pkg/none.py",
        "git stash -q; git stash pop -q",
        "git checkout pkg/mod.py",
        "patch -p1 --dry-run <<'EOF'\n--- a/pkg/mod.py\n+++ b/pkg/mod.py\n@@ -1 +1 @@\n-alpha = 1\n+alpha = 3\nEOF",
        "patch -p1 <<'EOF'\n--- a/pkg/mod.py\n+++ b/pkg/mod.py\n@@ -1 +1 @@\n-omega = 1\n+omega = 3\nEOF",
        "git apply <<'EOF'\n--- a/pkg/mod.py\n+++ b/pkg/mod.py\n@@ -1 +1 @@\n-omega = 1\n+omega = 3\nEOF",
        "false && sed -i 's/alpha/x/' pkg/mod.py",
        "true || sed -i 's/alpha/x/' pkg/mod.py",
        "cat nowhere.py && sed -i 's/alpha/x/' pkg/mod.py",
        f"python3 - <<'EOF'\n{HELPER.replace('alpha = 1', 'omega = 1')}EOF",
        "python3 - <<'EOF'\n1 / 0\nopen('pkg/mod.py', 'w').write('')\nEOF",
        "python3 -c \"print('pkg/mod.py')\"",
        "echo $(cat pkg/mod.py)",
        "sed -i 's/alpha/x/ pkg/mod.py",
    ],
)
def test_commands_without_effect_are_inferred_to_change_nothing(real: Real, command: str) -> None:
    assert real.act(command) == set()


def test_commands_before_a_syntax_error_take_effect(real: Real) -> None:
    assert real.act("sed -i 's/alpha/gamma/' pkg/mod.py\n&& ls") == {"pkg/mod.py"}
    assert real.act("THOUGHT: (first)\nsed -i 's/gamma/alpha/' pkg/mod.py") == set()


ROUNDS = [
    ("sed -i '2s/2/3/' pkg/mod.py", "sed -i '2s/3/2/' pkg/mod.py"),
    ("sed -i '4i\\    # debug' pkg/mod.py", "sed -i '4d' pkg/mod.py"),
    ("sed -i '4i\\    # debug' pkg/mod.py", "sed -i '/# debug/d' pkg/mod.py"),
    ("sed -i '5c\\    return 0' pkg/mod.py", "sed -i '5c\\    return x + alpha' pkg/mod.py"),
    ("sed -i 's/alpha/gamma/g' pkg/mod.py", "sed -i 's/gamma/alpha/g' pkg/mod.py"),
    ("sed -i 's/alpha/gamma/' pkg/mod.py", "git checkout -q pkg/mod.py"),
    ("sed -i 's/alpha/gamma/' pkg/mod.py", "git restore pkg"),
    ("sed -i 's/alpha/gamma/' pkg/mod.py", "git reset -q --hard"),
    ("sed -i 's/alpha/gamma/' pkg/mod.py", "git stash -q"),
    ("cp pkg/mod.py /tmp/copy.txt; sed -i '1d' pkg/mod.py", "cp /tmp/copy.txt pkg/mod.py"),
    ("sed -i '1d' pkg/mod.py; git diff > d.patch", "git apply -R d.patch"),
]


@pytest.mark.parametrize(("edit", "restore"), ROUNDS)
def test_a_restored_file_equals_its_base_content(real: Real, edit: str, restore: str) -> None:
    """The digest is again that of the base, so detectors recognize a restored file."""

    def list_changed() -> set[str]:
        return {path for path in real.files.list_changed_paths() if is_code(path)}

    real.act(edit)
    assert list_changed() == {"pkg/mod.py"}
    real.act(restore)
    assert real.code()["pkg/mod.py"] == FILE
    assert list_changed() == set()


@pytest.mark.parametrize(
    ("edit", "restore"), [(a, b) for a, b in ROUNDS if "/# debug/" not in b and "5c" not in a]
)
def test_a_restored_file_is_recognized_without_its_text(edit: str, restore: str) -> None:
    files = InferredFiles("/repo", keeps_directory=True)
    for command in (edit, restore):
        infer_changes(files, "shell", {"command": command}, "", 0, False)
    assert [path for path in files.list_changed_paths() if is_code(path)] == []


LINES = st.lists(st.sampled_from(["a = 1", "b = 2", "", "    return a", "x.y(z)", "a"]), max_size=7)
PROGRAMS = st.sampled_from(
    [
        "s/a/q/",
        "s/a/q/g",
        "s/^a/q/",
        "s/1$/2/",
        "s/x.y/x/",
        "s/\\(a\\) = /\\1 := /",
        "1d",
        "2,3d",
        "$d",
        "/a/d",
        "/b/,/a/d",
        "2i\\new",
        "1a\\new\\nnewer",
        "/b/a\\new",
        "1c\\new",
        "/return/i\\    pass",
        "1,2s/a/q/",
        "/b/s/2/3/",
        "s/a/&&/",
        "1s/a/q/;2s/b/r/",
    ]
)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(LINES, PROGRAMS)
def test_inferred_sed_matches_real_sed(lines: list[str], program: str) -> None:
    text = "".join(f"{line}\n" for line in lines)
    known_lines = KnownLines()
    content = unknown_content("base")
    known_lines.learn_file(content, lines)
    process = subprocess.run(["sed", program], input=text, capture_output=True, text=True, timeout=60)
    result = full_text(in_place_edits.apply_sed(content, known_lines, program, extended=False), known_lines)
    assert result is None or result == process.stdout


def test_unknown_lines_move_with_inserted_lines() -> None:
    known_lines = KnownLines()
    content = unknown_content("base")
    longer = insert_lines(content, 10, ["one", "two"])
    assert digest_content(replace_lines(longer, 11, 12, ()), known_lines) == digest_content(
        content, known_lines
    )
    assert digest_content(replace_lines(longer, 12, 13, ()), known_lines) != digest_content(
        content, known_lines
    )
    known_lines.learn(longer, 13, ["eleven"])
    assert known_lines.lines == {"base": {11: "eleven"}}


def test_patterns_with_excessive_backtracking_are_rejected() -> None:
    assert in_place_edits.compile_pattern("(a+)+b", extended=True) is None
    assert in_place_edits.compile_pattern(".*x.*y.*z", extended=False) is None


def test_begin_patch_format() -> None:
    text = (
        "*** Begin Patch\n*** Update File: a.py\n@@ def f\n one\n-two\n+three\n"
        "*** Add File: b.py\n+new\n*** Delete File: c.py\n*** End Patch\n"
    )
    files = file_programs.parse_patch(text)
    assert [(p.path, p.is_new, p.is_deleted) for p in files] == [
        ("a.py", False, False),
        ("b.py", True, False),
        ("c.py", False, True),
    ]
    assert files[0].hunks[0].old == ("one", "two")


def test_git_and_patch_are_installed() -> None:
    assert shutil.which("git")
    assert shutil.which("patch")


def test_several_replacements_in_one_call() -> None:
    """They are applied in order, also to a file that the run itself created; edits of another form have an unknown effect."""
    files = InferredFiles("/w", keeps_directory=False)
    edits = [{"oldText": "a", "newText": "b"}, {"old_string": "b\n", "new_string": "c\n"}]
    calls: list[dict[str, str]] = [
        {"command": "create", "path": "x.py", "content": "a\n"},
        {"command": "edit", "path": "x.py", "edits": json.dumps(edits)},
        {"command": "edit", "path": "x.py", "edits": json.dumps([{"append": "d"}])},
        {"command": "edit", "path": "x.py", "edits": "[[[not JSON"},
    ]
    found = [infer_changes(files, "editor", each, "", None, False) for each in calls]
    assert [len(changes) for changes in found] == [1, 1, 1, 1]
    assert found[1][0].after == hashlib.sha256(b"c\n").hexdigest()
