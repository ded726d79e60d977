"""The contract of every machine, second part: reading, writing, and telling what changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from sandbox.contract.kit import FILES, home, run, tmp, told
from sandbox.files import LARGEST_FILE
from sandbox.machine import FileChange, FileRefused, Sandbox


def digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def changed(machine: Sandbox, command: str) -> dict[str, tuple[str | None, str | None]]:
    """What a command changed, by path; and that it is told only once."""
    told(machine, command)
    found = machine.changes()
    assert list(found) == sorted(found, key=lambda change: change.path)
    assert machine.changes() == ()
    for change in found:
        assert change.before != change.after or change.before_mode != change.after_mode
        assert machine.sha256(change.path) == change.after
    return {change.path: (change.before, change.after) for change in found}


def test_nothing_changed_at_the_start(fresh: Sandbox) -> None:
    assert fresh.changes() == ()
    assert fresh.sha256("pkg/mod.py") == digest(FILES["pkg/mod.py"])
    assert fresh.sha256(f"{fresh.workspace}/pkg/../pkg/mod.py") == digest(FILES["pkg/mod.py"])
    assert fresh.sha256("docs/größe.txt") == digest("zwölf\n")
    assert fresh.sha256("pkg") is None
    assert fresh.sha256("missing") is None


def test_create_modify_delete_rename(machine: Sandbox) -> None:
    mod, old = digest(FILES["pkg/mod.py"]), digest(FILES["pkg/old name.py"])
    assert changed(machine, "printf new > pkg/new.py") == {"pkg/new.py": (None, digest("new"))}
    assert changed(machine, "sed -i s/41/42/ pkg/mod.py") == {
        "pkg/mod.py": (mod, digest(FILES["pkg/mod.py"].replace("41", "42")))
    }
    assert changed(machine, "rm README.txt") == {"README.txt": (digest(FILES["README.txt"]), None)}
    assert changed(machine, "git mv 'pkg/old name.py' 'pkg/ümlaut.py'") == {
        "pkg/old name.py": (old, None),
        "pkg/ümlaut.py": (None, old),
    }


def test_several_changes_in_one_look(machine: Sandbox) -> None:
    assert set(changed(machine, "touch z a; rm data.bin")) == {"a", "data.bin", "z"}


def test_an_edit_of_the_same_size_in_the_same_second(machine: Sandbox) -> None:
    assert (
        len(changed(machine, "touch -d @1000000000 pkg/mod.py; printf aaaa > same; touch -r pkg/mod.py same"))
        == 1
    )
    assert changed(machine, "printf bbbb > same; touch -r pkg/mod.py same") == {
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
def test_no_content_changed(machine: Sandbox, command: str) -> None:
    assert changed(machine, command) == {}


def test_a_file_that_may_not_be_read_is_not_deleted(machine: Sandbox) -> None:
    same = digest(FILES["pkg/mod.py"])
    assert changed(machine, "chmod 000 pkg/mod.py") == {"pkg/mod.py": (same, same)}
    assert changed(machine, "chmod 644 pkg/mod.py") == {"pkg/mod.py": (same, same)}


def test_modes_are_told(machine: Sandbox) -> None:
    same = digest(FILES["pkg/mod.py"])
    told(machine, "chmod 755 pkg/mod.py")
    assert machine.changes() == (
        FileChange(path="pkg/mod.py", before=same, after=same, before_mode=0o644, after_mode=0o755),
    )
    told(machine, "chmod 644 pkg/mod.py; echo >> pkg/mod.py")
    (change,) = machine.changes()
    assert (change.before_mode, change.after_mode) == (0o755, 0o644)
    assert change.after != same


def test_caches_are_marked(machine: Sandbox) -> None:
    told(machine, "mkdir -p pkg/__pycache__; echo x > pkg/__pycache__/mod.pyc; echo y > pkg/mine.log")
    generated = {change.path: change.generated for change in machine.changes()}
    assert generated == {"pkg/__pycache__/mod.pyc": True, "pkg/mine.log": False}


def test_renames_are_told(machine: Sandbox) -> None:
    told(machine, "mv pkg/mod.py pkg/moved.py; mv data.bin d1; cp d1 d2; rm README.txt; echo > README.md")
    origins = {change.path: change.renamed_from for change in machine.changes() if change.renamed_from}
    assert origins == {"pkg/moved.py": "pkg/mod.py", "d1": "data.bin", "d2": "data.bin"}


def test_what_comes_and_goes_below_what_was_there(machine: Sandbox) -> None:
    before = {path: digest(content) for path, content in FILES.items()}
    assert changed(machine, "rm -r pkg; echo file > pkg") == {
        "pkg": (None, digest("file\n")),
        **{path: (old, None) for path, old in before.items() if path.startswith("pkg/")},
    }
    assert changed(machine, "rm pkg; mkdir pkg; printf 1 > pkg/mod.py") == {
        "pkg": (digest("file\n"), None),
        "pkg/mod.py": (None, digest("1")),
    }
    assert changed(machine, "git checkout -q -- pkg") == {
        "pkg/mod.py": (digest("1"), before["pkg/mod.py"]),
        "pkg/__init__.py": (None, before["pkg/__init__.py"]),
        "pkg/old name.py": (None, before["pkg/old name.py"]),
    }
    assert changed(
        machine, "ln -s ../docs tools/link; rm -r docs; mkdir docs; echo x > docs/x; rm -r docs"
    ) == {
        "tools/link": (None, machine.sha256("tools/link")),
        "docs/größe.txt": (digest("zwölf\n"), None),
    }


def test_symbolic_links(machine: Sandbox) -> None:
    told(machine, "ln -s nowhere dangling; ln -s / root; ln -s . loop")
    assert {change.path for change in machine.changes()} == {"dangling", "loop", "root"}
    found = changed(machine, "ln -sfn pkg/mod.py link")
    assert set(found) == {"link"}
    assert changed(machine, "ln -sfn README.txt link") == {"link": (found["link"][1], found["link"][0])}
    assert set(changed(machine, "rm link; cp README.txt link")) == {"link"}


def test_a_directory_with_many_files(machine: Sandbox) -> None:
    found = changed(machine, "mkdir many; for i in {1..1000}; do echo $i > many/$i.txt; done")
    assert len(found) == 1000
    assert found["many/77.txt"] == (None, digest("77\n"))
    assert len(changed(machine, "mv many more")) == 2000
    assert len(changed(machine, "rm -r more")) == 1000


def test_files_outside_the_workspace(machine: Sandbox) -> None:
    one, two = f"{home(machine)}/deep/one.txt", f"{tmp(machine)}/two.txt"
    assert changed(machine, f"mkdir {home(machine)}/deep; echo 1 > {one}; echo 2 > {two}") == {
        one: (None, digest("1\n")),
        two: (None, digest("2\n")),
    }


def test_the_runtimes_own_commands_leave_no_change(machine: Sandbox) -> None:
    machine.read_file("pkg/mod.py")
    machine.directory_listing("pkg")
    assert machine.inspect("git diff HEAD").exit_code == 0
    assert machine.changes() == ()


def test_a_written_file_is_a_change(machine: Sandbox) -> None:
    machine.write_file("pkg/written.py", b"x = 1\n")
    assert machine.changes() == (FileChange(path="pkg/written.py", before=None, after=digest("x = 1\n")),)


def test_read_and_write(machine: Sandbox) -> None:
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
        machine.write_file(name, content)
        assert machine.read_file(name) == content
        assert machine.read_file(f"{machine.workspace}/{name}") == content
        machine.write_file(name, b"")
        assert machine.read_file(name) == b""
        assert [change.path for change in machine.changes()] == [name]
        assert machine.sha256(name) == digest("")


def test_relative_paths_start_at_the_workspace_wherever_the_agent_stands(machine: Sandbox) -> None:
    told(machine, "cd /")
    assert machine.read_file("pkg/mod.py") == FILES["pkg/mod.py"].encode()
    assert machine.inspect("pwd").output == f"{machine.workspace}\n"
    assert machine.cwd() == "/"


def test_writing_keeps_mode_and_link(machine: Sandbox) -> None:
    machine.write_file("tools/run.sh", b"#!/bin/sh\necho new\n")
    assert told(machine, "tools/run.sh") == "new\n"
    told(machine, 'echo old > "$HOME/target"; ln -s "$HOME/target" pointer')
    machine.write_file("pointer", b"new")
    assert told(machine, 'cat "$HOME/target"; rm pointer') == "new"


Refused = Callable[[Sandbox], object]


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (lambda machine: machine.read_file("missing.txt"), "no such file"),
        (lambda machine: machine.read_file("pkg"), "is a directory"),
        (lambda machine: machine.read_file("/dev/zero"), "not a regular file"),
        (lambda machine: machine.read_file("fifo"), "not a regular file"),
        (lambda machine: machine.read_file("huge"), "too large"),
        (lambda machine: machine.read_file("nul\0byte"), "NUL"),
        (lambda machine: machine.read_file("README.txt/x"), "no such file"),
        (lambda machine: machine.write_file("pkg", b"x"), "not a regular file"),
        (lambda machine: machine.write_file("fifo", b"x"), "not a regular file"),
        (lambda machine: machine.write_file("/dev/full", b"x"), "not a regular file"),
        (lambda machine: machine.write_file("README.txt/x", b"x"), "README.txt"),
        (lambda machine: machine.write_file("/proc/nothing", b"x"), "/proc/nothing"),
        (lambda machine: machine.write_file("nul\0byte", b"x"), "NUL"),
    ],
)
def test_refusals(machine: Sandbox, refused: Refused, reason: str) -> None:
    make_fifo = "python3 -c 'import os; os.mkfifo(\"fifo\")'"
    told(machine, f"{make_fifo}; truncate -s {LARGEST_FILE + 1} huge")
    with pytest.raises(FileRefused, match=reason):
        refused(machine)
    assert machine.read_file("README.txt") == FILES["README.txt"].encode()


def test_the_largest_file(machine: Sandbox) -> None:
    told(machine, f"head -c {LARGEST_FILE} /dev/zero > large")
    assert machine.read_file("large") == bytes(LARGEST_FILE)


def test_a_listing(machine: Sandbox) -> None:
    told(
        machine, "mkdir -p list/sub list/.hidden; touch list/b list/a $'list/new\\nline'; ln -s sub list/link"
    )
    assert machine.directory_listing("list") == (".hidden/", "a", "b", "link", "new\nline", "sub/")
    assert machine.directory_listing(f"{machine.workspace}/list/link") == ()
    assert machine.directory_listing("list/a") is None
    assert machine.directory_listing("missing") is None


def test_inspect_is_unseen_by_the_agents_shell(machine: Sandbox) -> None:
    told(machine, "cd pkg; x=mine")
    result = machine.inspect("x=other; cd /; echo done; exit 3")
    assert (result.output, result.exit_code) == ("done\n", 3)
    assert machine.inspect('echo "<$x>" # comment').output == "<>\n"
    assert told(machine, "echo $x") == "mine\n"
    assert run(machine, "pwd").output == f"{machine.workspace}/pkg\n"
