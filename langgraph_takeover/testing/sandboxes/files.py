"""The contract of every sandbox, second part: reading, writing and listing changes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from langgraph_takeover.sandbox.changes.file_access import MAX_FILE_BYTES
from langgraph_takeover.sandbox.interface import FileAccessError, FileChange, Sandbox
from langgraph_takeover.testing.sandboxes.kit import FILES, check_output, home_directory, run, temp_directory


def digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def collect_changes(sandbox: Sandbox, command: str) -> dict[str, tuple[str | None, str | None]]:
    """The changes of a command, by path; checks that they are listed only once."""
    check_output(sandbox, command)
    found = sandbox.changes()
    assert list(found) == sorted(found, key=lambda change: change.path)
    assert sandbox.changes() == ()
    for change in found:
        assert change.before != change.after or change.before_mode != change.after_mode
        assert sandbox.sha256(change.path) == change.after
    return {change.path: (change.before, change.after) for change in found}


def test_nothing_changed_at_the_start(fresh_sandbox: Sandbox) -> None:
    assert fresh_sandbox.changes() == ()
    assert fresh_sandbox.sha256("pkg/mod.py") == digest(FILES["pkg/mod.py"])
    assert fresh_sandbox.sha256(f"{fresh_sandbox.workspace}/pkg/../pkg/mod.py") == digest(FILES["pkg/mod.py"])
    assert fresh_sandbox.sha256("docs/größe.txt") == digest("zwölf\n")
    assert fresh_sandbox.sha256("pkg") is None
    assert fresh_sandbox.sha256("missing") is None


def test_create_modify_delete_rename(clean_sandbox: Sandbox) -> None:
    mod, old = digest(FILES["pkg/mod.py"]), digest(FILES["pkg/old name.py"])
    assert collect_changes(clean_sandbox, "printf new > pkg/new.py") == {"pkg/new.py": (None, digest("new"))}
    assert collect_changes(clean_sandbox, "sed -i s/41/42/ pkg/mod.py") == {
        "pkg/mod.py": (mod, digest(FILES["pkg/mod.py"].replace("41", "42")))
    }
    assert collect_changes(clean_sandbox, "rm README.txt") == {
        "README.txt": (digest(FILES["README.txt"]), None)
    }
    assert collect_changes(clean_sandbox, "git mv 'pkg/old name.py' 'pkg/ümlaut.py'") == {
        "pkg/old name.py": (old, None),
        "pkg/ümlaut.py": (None, old),
    }


def test_several_changes_in_one_listing(clean_sandbox: Sandbox) -> None:
    assert set(collect_changes(clean_sandbox, "touch z a; rm data.bin")) == {"a", "data.bin", "z"}


def test_an_edit_of_the_same_size_in_the_same_second(clean_sandbox: Sandbox) -> None:
    assert (
        len(
            collect_changes(
                clean_sandbox, "touch -d @1000000000 pkg/mod.py; printf aaaa > same; touch -r pkg/mod.py same"
            )
        )
        == 1
    )
    assert collect_changes(clean_sandbox, "printf bbbb > same; touch -r pkg/mod.py same") == {
        "same": (digest("aaaa"), digest("bbbb"))
    }


@pytest.mark.parametrize(
    "command",
    [
        "touch pkg/mod.py",
        "cp pkg/mod.py x; echo >> pkg/mod.py; mv x pkg/mod.py",
        "echo x >> pkg/mod.py; git checkout -q -- pkg/mod.py",
        "echo x > passing; rm passing",
        "mkdir -p empty/er",
        "git status; git commit -q --allow-empty -m x 2>/dev/null || :",
        "python3 -c 'import os; os.mkfifo(\"pipe\")'",
        "cat pkg/mod.py > /dev/null",
    ],
)
def test_no_content_changed(clean_sandbox: Sandbox, command: str) -> None:
    assert collect_changes(clean_sandbox, command) == {}


def test_an_unreadable_file_is_not_deleted(clean_sandbox: Sandbox) -> None:
    same = digest(FILES["pkg/mod.py"])
    assert collect_changes(clean_sandbox, "chmod 000 pkg/mod.py") == {"pkg/mod.py": (same, same)}
    assert collect_changes(clean_sandbox, "chmod 644 pkg/mod.py") == {"pkg/mod.py": (same, same)}


def test_modes_are_reported(clean_sandbox: Sandbox) -> None:
    same = digest(FILES["pkg/mod.py"])
    check_output(clean_sandbox, "chmod 755 pkg/mod.py")
    assert clean_sandbox.changes() == (
        FileChange(path="pkg/mod.py", before=same, after=same, before_mode=0o644, after_mode=0o755),
    )
    check_output(clean_sandbox, "chmod 644 pkg/mod.py; echo >> pkg/mod.py")
    (change,) = clean_sandbox.changes()
    assert (change.before_mode, change.after_mode) == (0o755, 0o644)
    assert change.after != same


def test_caches_are_marked(clean_sandbox: Sandbox) -> None:
    check_output(
        clean_sandbox, "mkdir -p pkg/__pycache__; echo x > pkg/__pycache__/mod.pyc; echo y > pkg/mine.log"
    )
    generated = {change.path: change.generated for change in clean_sandbox.changes()}
    assert generated == {"pkg/__pycache__/mod.pyc": True, "pkg/mine.log": False}


def test_renames_are_reported(clean_sandbox: Sandbox) -> None:
    check_output(
        clean_sandbox, "mv pkg/mod.py pkg/moved.py; mv data.bin d1; cp d1 d2; rm README.txt; echo > README.md"
    )
    origins = {change.path: change.renamed_from for change in clean_sandbox.changes() if change.renamed_from}
    assert origins == {"pkg/moved.py": "pkg/mod.py", "d1": "data.bin", "d2": "data.bin"}


def test_files_and_directories_that_replace_each_other(clean_sandbox: Sandbox) -> None:
    before = {path: digest(content) for path, content in FILES.items()}
    assert collect_changes(clean_sandbox, "rm -r pkg; echo file > pkg") == {
        "pkg": (None, digest("file\n")),
        **{path: (old, None) for path, old in before.items() if path.startswith("pkg/")},
    }
    assert collect_changes(clean_sandbox, "rm pkg; mkdir pkg; printf 1 > pkg/mod.py") == {
        "pkg": (digest("file\n"), None),
        "pkg/mod.py": (None, digest("1")),
    }
    assert collect_changes(clean_sandbox, "git checkout -q -- pkg") == {
        "pkg/mod.py": (digest("1"), before["pkg/mod.py"]),
        "pkg/__init__.py": (None, before["pkg/__init__.py"]),
        "pkg/old name.py": (None, before["pkg/old name.py"]),
    }
    assert collect_changes(
        clean_sandbox, "ln -s ../docs tools/link; rm -r docs; mkdir docs; echo x > docs/x; rm -r docs"
    ) == {
        "tools/link": (None, clean_sandbox.sha256("tools/link")),
        "docs/größe.txt": (digest("zwölf\n"), None),
    }


def test_symbolic_links(clean_sandbox: Sandbox) -> None:
    check_output(clean_sandbox, "ln -s nowhere dangling; ln -s / root; ln -s . loop")
    assert {change.path for change in clean_sandbox.changes()} == {"dangling", "loop", "root"}
    found = collect_changes(clean_sandbox, "ln -sfn pkg/mod.py link")
    assert set(found) == {"link"}
    assert collect_changes(clean_sandbox, "ln -sfn README.txt link") == {
        "link": (found["link"][1], found["link"][0])
    }
    assert set(collect_changes(clean_sandbox, "rm link; cp README.txt link")) == {"link"}


def test_a_directory_with_many_files(clean_sandbox: Sandbox) -> None:
    found = collect_changes(clean_sandbox, "mkdir many; for i in {1..1000}; do echo $i > many/$i.txt; done")
    assert len(found) == 1000
    assert found["many/77.txt"] == (None, digest("77\n"))
    assert len(collect_changes(clean_sandbox, "mv many more")) == 2000
    assert len(collect_changes(clean_sandbox, "rm -r more")) == 1000


def test_files_outside_the_workspace(clean_sandbox: Sandbox) -> None:
    one, two = f"{home_directory(clean_sandbox)}/deep/one.txt", f"{temp_directory(clean_sandbox)}/two.txt"
    assert collect_changes(
        clean_sandbox, f"mkdir {home_directory(clean_sandbox)}/deep; echo 1 > {one}; echo 2 > {two}"
    ) == {
        one: (None, digest("1\n")),
        two: (None, digest("2\n")),
    }


def test_the_runtimes_own_commands_leave_no_change(clean_sandbox: Sandbox) -> None:
    clean_sandbox.read_file("pkg/mod.py")
    clean_sandbox.directory_listing("pkg")
    assert clean_sandbox.inspect("git diff HEAD").exit_code == 0
    assert clean_sandbox.changes() == ()


def test_a_written_file_is_a_change(clean_sandbox: Sandbox) -> None:
    clean_sandbox.write_file("pkg/written.py", b"x = 1\n")
    assert clean_sandbox.changes() == (
        FileChange(path="pkg/written.py", before=None, after=digest("x = 1\n")),
    )


def test_read_and_write(clean_sandbox: Sandbox) -> None:
    names = [
        "plain.txt",
        "deep/er/file.txt",
        "with space",
        "quo'te\"s",
        "two\nlines",
        "-n",
        "größe",
        "a\\b",
        "$HOME",
    ]
    content = bytes(range(256)) + b"\r\n\n"
    for name in names:
        clean_sandbox.write_file(name, content)
        assert clean_sandbox.read_file(name) == content
        assert clean_sandbox.read_file(f"{clean_sandbox.workspace}/{name}") == content
        clean_sandbox.write_file(name, b"")
        assert clean_sandbox.read_file(name) == b""
        assert [change.path for change in clean_sandbox.changes()] == [name]
        assert clean_sandbox.sha256(name) == digest("")


def test_relative_paths_start_at_the_workspace_in_any_directory(clean_sandbox: Sandbox) -> None:
    check_output(clean_sandbox, "cd /")
    assert clean_sandbox.read_file("pkg/mod.py") == FILES["pkg/mod.py"].encode()
    assert clean_sandbox.inspect("pwd").output == f"{clean_sandbox.workspace}\n"
    assert clean_sandbox.cwd() == "/"


def test_writing_keeps_mode_and_link(clean_sandbox: Sandbox) -> None:
    clean_sandbox.write_file("tools/run.sh", b"#!/bin/sh\necho new\n")
    assert check_output(clean_sandbox, "tools/run.sh") == "new\n"
    check_output(clean_sandbox, 'echo old > "$HOME/target"; ln -s "$HOME/target" pointer')
    clean_sandbox.write_file("pointer", b"new")
    assert check_output(clean_sandbox, 'cat "$HOME/target"; rm pointer') == "new"


FileAction = Callable[[Sandbox], object]


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (lambda sandbox: sandbox.read_file("missing.txt"), "no such file"),
        (lambda sandbox: sandbox.read_file("pkg"), "is a directory"),
        (lambda sandbox: sandbox.read_file("/dev/zero"), "not a regular file"),
        (lambda sandbox: sandbox.read_file("fifo"), "not a regular file"),
        (lambda sandbox: sandbox.read_file("huge"), "too large"),
        (lambda sandbox: sandbox.read_file("nul\0byte"), "NUL"),
        (lambda sandbox: sandbox.read_file("README.txt/x"), "no such file"),
        (lambda sandbox: sandbox.write_file("pkg", b"x"), "not a regular file"),
        (lambda sandbox: sandbox.write_file("fifo", b"x"), "not a regular file"),
        (lambda sandbox: sandbox.write_file("/dev/full", b"x"), "not a regular file"),
        (lambda sandbox: sandbox.write_file("README.txt/x", b"x"), "README.txt"),
        (lambda sandbox: sandbox.write_file("/proc/nothing", b"x"), "/proc/nothing"),
        (lambda sandbox: sandbox.write_file("nul\0byte", b"x"), "NUL"),
    ],
)
def test_refusals(clean_sandbox: Sandbox, refused: FileAction, reason: str) -> None:
    make_fifo = "python3 -c 'import os; os.mkfifo(\"fifo\")'"
    check_output(clean_sandbox, f"{make_fifo}; truncate -s {MAX_FILE_BYTES + 1} huge")
    with pytest.raises(FileAccessError, match=reason):
        refused(clean_sandbox)
    assert clean_sandbox.read_file("README.txt") == FILES["README.txt"].encode()


def test_the_largest_file(clean_sandbox: Sandbox) -> None:
    check_output(clean_sandbox, f"head -c {MAX_FILE_BYTES} /dev/zero > large")
    assert clean_sandbox.read_file("large") == bytes(MAX_FILE_BYTES)


def test_a_listing(clean_sandbox: Sandbox) -> None:
    check_output(
        clean_sandbox,
        "mkdir -p list/sub list/.hidden; touch list/b list/a $'list/new\\nline'; ln -s sub list/link",
    )
    assert clean_sandbox.directory_listing("list") == (".hidden/", "a", "b", "link", "new\nline", "sub/")
    assert clean_sandbox.directory_listing(f"{clean_sandbox.workspace}/list/link") == ()
    assert clean_sandbox.directory_listing("list/a") is None
    assert clean_sandbox.directory_listing("missing") is None


def test_inspect_is_invisible_to_the_agents_shell(clean_sandbox: Sandbox) -> None:
    check_output(clean_sandbox, "cd pkg; x=mine")
    result = clean_sandbox.inspect("x=other; cd /; echo done; exit 3")
    assert (result.output, result.exit_code) == ("done\n", 3)
    assert clean_sandbox.inspect('echo "<$x>" # comment').output == "<>\n"
    assert check_output(clean_sandbox, "echo $x") == "mine\n"
    assert run(clean_sandbox, "pwd").output == f"{clean_sandbox.workspace}/pkg\n"
