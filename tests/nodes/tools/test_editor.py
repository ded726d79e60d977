"""In a real sandbox, the editor makes exactly the requested edit, or changes nothing and says why."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_takeover import build_agent, open_home
from langgraph_takeover.evals.models.replay import ReplayModel
from langgraph_takeover.evals.models.scripted import Turn
from langgraph_takeover.handoff.trace.events import Action, Event, FileRead
from langgraph_takeover.nodes.context.settings import AgentContext
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.state_store import BASE_STATE
from langgraph_takeover.nodes.state_events import load_events
from langgraph_takeover.sandbox.interface import FileChange, Sandbox, SandboxSpec


class Bench:
    """A sandbox with a repository, and the events of actions that run there."""

    def __init__(self, base: Path, session: Session) -> None:
        self.base, self._session = base, session
        self._sandbox: Sandbox | None = None

    def sandbox(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = self._session.enter_state(BASE_STATE)
        return self._sandbox

    def put(self, name: str, content: bytes) -> None:
        path = self.base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def run(self, *actions: Action) -> list[Event]:
        """Run the actions, and return the observation of each."""
        sandbox = self.sandbox()
        context = AgentContext(
            model=ReplayModel(turns=tuple(Turn("", action) for action in actions)),
            model_name="replay",
            session=self._session,
            observation_chars=100_000,
        )
        state = build_agent().invoke({"task": {"id": "t", "prompt": "Do it."}}, context=context)
        assert self._session.enter_state(state["sandbox_state"]) is sandbox
        return [event for event in load_events(state) if event.kind == "observation"]

    def content(self, name: str) -> bytes:
        return (Path(self.sandbox().workspace) / name).read_bytes()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    base = tmp_path / "base"
    subprocess.run(["git", "init", "-q", base], check=True)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", base]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "base"], check=True)
    spec = SandboxSpec(backend="process", directory=base, owner="test-editor")
    with (
        open_home(tmp_path / "home") as home,
        home.open_session("t", spec, snapshot_every="point") as (session, _),
    ):
        yield Bench(base, session)


def edit(command: str, path: str = "a.py", **arguments: str) -> Action:
    return Action("editor", {"command": command, "path": path, **arguments})


def shell(command: str) -> Action:
    return Action("shell", {"command": command})


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def assert_refused(event: Event, *says: str) -> None:
    assert event.refused
    assert event.changes == ()
    assert event.reads == ()
    assert event.text.startswith("Not done: ")
    for part in says:
        assert part in event.text


LINES = b"".join(b"line %d\n" % number for number in range(1, 11))


def test_view_shows_numbered_lines_and_records_the_read(bench: Bench) -> None:
    bench.put("src/a.py", LINES)
    whole, some, tail, absolute = bench.run(
        edit("view", "src/a.py"),
        edit("view", "./src/../src/a.py", start="3", end="4"),
        edit("view", "src/a.py", start="9", end="99"),
        edit("view", str(bench.sandbox().workspace) + "/src/a.py", end="1"),
    )
    assert whole.text.splitlines()[0] == "src/a.py, lines 1 to 10 of 10:"
    assert whole.text.splitlines()[10] == "    10\tline 10"
    assert some.text.splitlines()[1:] == ["     3\tline 3", "     4\tline 4"]
    assert tail.text.splitlines()[1:] == ["     9\tline 9", "    10\tline 10"]
    for event in (whole, some, tail, absolute):
        assert event.reads == (FileRead(path="src/a.py", sha256=sha256(LINES)),)
        assert event.changes == ()
        assert not event.refused


def test_a_view_hashes_the_content_that_it_shows(bench: Bench) -> None:
    bench.put("a.py", b"old\n")
    bench.run(edit("view"))
    # As a background process would: no action sees it.
    (Path(bench.sandbox().workspace) / "a.py").write_bytes(b"new\n")
    (event,) = bench.run(edit("view"))
    assert event.text.endswith("\tnew")
    assert event.reads == (FileRead(path="a.py", sha256=sha256(b"new\n")),)


def test_view_of_other_things(bench: Bench) -> None:
    bench.put("d/b.txt", b"x")
    bench.put("d/sub/c.txt", b"x")
    bench.put("empty", b"")
    bench.put("latin", "é".encode("latin-1"))
    bench.put("zeros", b"ab\x00cd")
    directory, empty, latin, zeros, missing, beyond, reversed_range = bench.run(
        edit("view", "d"),
        edit("view", "empty"),
        edit("view", "latin"),
        edit("view", "zeros"),
        edit("view", "nowhere.py"),
        edit("view", "d/b.txt", start="2"),
        edit("view", "d/b.txt", start="1", end="0"),
    )
    assert directory.text == "d is a directory:\nb.txt\nsub/"
    assert empty.text == "empty is empty."
    assert empty.reads == (FileRead(path="empty", sha256=sha256(b"")),)
    assert_refused(latin, "not UTF-8")
    assert_refused(zeros, "binary")
    assert_refused(missing, "nowhere.py: no such file")
    assert_refused(beyond, "has 1 lines; lines 2 to 1 do not exist")
    assert_refused(reversed_range, "1 to 0")


def test_lines_are_counted_as_grep_counts_them(bench: Bench) -> None:
    bench.put("a.py", "a\x0c\nb\u2028b\nc\x1cc\n".encode())
    grep, view, _ = bench.run(
        shell("grep -n c a.py"), edit("view", start="3", end="3"), edit("insert", line="3", new="d")
    )
    assert "3:c" in grep.text
    assert view.text.endswith("     3\tc\x1cc")
    assert bench.content("a.py").endswith(b"\nd\n")


def test_create(bench: Bench) -> None:
    bench.put("a.py", b"old\n")
    _, created, empty, exists, directory = bench.run(
        edit("create", "crlf.py", content="a\r\nb"),
        edit("create", "new/deep/b.py", content="x = '日本'"),
        edit("create", "empty.py", content=""),
        edit("create", "a.py", content="new"),
        edit("create", "new/deep", content="new"),
    )
    assert created.changes == (
        FileChange(path="new/deep/b.py", before=None, after=sha256("x = '日本'\n".encode())),
    )
    assert bench.content("new/deep/b.py") == "x = '日本'\n".encode()
    assert bench.content("crlf.py") == b"a\r\nb\r\n"
    assert bench.content("empty.py") == b""
    assert empty.changes[0].after == sha256(b"")
    assert_refused(exists, "already exists", "str_replace")
    assert_refused(directory, "is a directory")
    assert bench.content("a.py") == b"old\n"


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\n", "b", "x\ny", b"a\r\nx\r\ny\r\n"),
        (b"a\r\nb\nc\n", "b", "x\ny", b"a\r\nx\ny\nc\n"),
        (b"a\nb\r\nc", "c", "x\ny", b"a\nb\r\nx\r\ny"),
        (b"a\r\nb\nc\r\n", "a\nb\nc", "a\nX\nb\nC", b"a\r\nX\nb\nC\r\n"),
        (b"a\r\nb\na\nb\n", "a\r\nb", "x\ny", b"x\r\ny\na\nb\n"),
        (b"one", "one", "x\r\ny", b"x\r\ny"),
        (b"\xef\xbb\xbfa\r\nb\r\n", "a\nb", "b", b"\xef\xbb\xbfb\r\n"),
        (b"a\rb\rc\r\n", "b", "x\ny", b"a\rx\r\ny\rc\r\n"),
        (b"a\rb\rc", "b", "x\ny", b"a\rx\ry\rc"),
        (b"a\rb\rc", "a\nb", "a\nx\nb", b"a\rx\rb\rc"),
        (b"x\r\ny\r\nz", "\ny\r\n", "q\r\n", b"xq\r\nz"),
        (b"a\nb\n", "b", "c\r", b"a\nc\n"),
        ("a\u2028b\x0c\r\n".encode(), "b", "x\ny", "a\u2028x\r\ny\x0c\r\n".encode()),
    ],
)
def test_an_edit_takes_the_line_ending_of_its_place(
    bench: Bench, before: bytes, old: str, new: str, after: bytes
) -> None:
    bench.put("a.py", before)
    replaced, undone = bench.run(edit("str_replace", old=old, new=new), edit("undo"))
    assert replaced.changes[0].after == sha256(after), replaced.text
    assert undone.changes[0].after == sha256(before)


def test_matches_that_overlap_are_counted(bench: Bench) -> None:
    bench.put("a.py", b"ababa\r\nx\r\nx\r\nx\r\n")
    bench.put("b.py", b"a\r\nb\na\nb\n")
    bench.put("long.py", b"a" * 3_000)
    events = bench.run(
        edit("str_replace", old="aba", new="-"),
        edit("str_replace", old="x\nx", new="-"),
        edit("str_replace", "b.py", old="a\nb", new="-"),
        edit("str_replace", "long.py", old="a" * 1_000, new="-"),
    )
    counts = ("2 times in a.py (lines 1, 1)", "2 times in a.py (lines 2, 3)", "2 times in b.py (lines 1, 3)")
    for event, says in zip(events, (*counts, "more than 10 times in long.py"), strict=True):
        assert_refused(event, says)


def test_view_names_line_endings_that_it_does_not_show(bench: Bench) -> None:
    bench.put("crlf.py", b"a\r\nb\r\n")
    bench.put("mixed.py", b"\xef\xbb\xbfa\nb\nc\r\nd\r")
    bench.put("cr.py", b"a\rb\r")
    crlf, mixed, cr = bench.run(*(edit("view", name) for name in ("crlf.py", "mixed.py", "cr.py")))
    assert cr.text.startswith("cr.py, lines 1 to 1 of 1 (CR line endings, which count as one line):")
    assert crlf.text == "crlf.py, lines 1 to 2 of 2 (CRLF line endings):\n     1\ta\n     2\tb"
    head, *lines = mixed.text.split("\n")
    assert head == "mixed.py, lines 1 to 4 of 4 (byte order mark, mixed line endings: CRLF in lines 3):"
    assert lines == ["     1\ta", "     2\tb", "     3\tc", "     4\td\r"]


def test_paths_that_a_shell_would_expand(bench: Bench) -> None:
    bench.put("$id/page.py", b"x\n")
    bench.put("~/old.py", b"x\n")
    _, home, user, variable, unset, command, read, *literal = bench.run(
        shell("export PLACE=/elsewhere; name=set"),
        edit("view", "~/n.txt"),
        edit("create", "~root/n.txt", content="x"),
        edit("create", "${PLACE}/n.txt", content="x"),
        edit("create", "$NOWHERE/n.txt", content="x"),
        edit("create", "`pwd`/n.txt", content="x"),
        edit("str_replace", "$name.py", old="x", new="y"),
        edit("create", "$id/$other.py", content="x"),
        edit("str_replace", "~/old.py", old="x", new="y"),
        edit("create", "./~/new.py", content="x"),
        edit("view", "$id/$missing.py"),
        edit("create", "$PWD", content="x"),
        edit("create", "~/other.py", content="x"),
    )
    *literal, missing, directory, in_home = literal
    assert_refused(missing, "$id/$missing.py: no such file")
    assert_refused(directory, "; send /")
    assert_refused(in_home, "; send /")
    assert_refused(home, "~/n.txt: the editor does not expand", "; send /", "/home/n.txt")
    assert_refused(variable, "send /elsewhere/n.txt")
    for event in (user, unset, command):
        assert_refused(event, "send the whole path")
    assert_refused(read, "send set.py")
    assert [event.changes[0].path for event in literal] == ["$id/$other.py", "~/old.py", "~/new.py"]
    assert not (Path(bench.sandbox().workspace) / "$NOWHERE").exists()


@pytest.mark.parametrize("path", ["~/n.txt", "$HOME/n.txt", "~"])
def test_create_makes_no_directory_named_after_the_home(bench: Bench, path: str) -> None:
    (event,) = bench.run(edit("create", path, content="x"))
    assert_refused(event, path, "; send /")
    assert "\n" not in event.text
    assert (bench.sandbox().directory_listing("") or ()) == (".git/",)


def test_mode_link_and_undo_of_a_crlf_file(bench: Bench) -> None:
    bench.put("real.py", b"a\r\nb\r\n")
    *_, seen = bench.run(
        shell("chmod 751 real.py; ln -s real.py a.py"),
        edit("insert", line="2", new="c"),
        edit("str_replace", old="b", new="b\nb2"),
        edit("undo"),
        shell("stat -c %a real.py; readlink a.py; od -An -c real.py | tr -d ' '"),
    )
    assert seen.text.endswith("751\nreal.py\na\\r\\nb\\r\\nc\\r\\n\n")


def test_text_that_utf8_cannot_store_is_refused(bench: Bench) -> None:
    from langgraph_takeover.nodes.tools.editor import execute_editor

    arguments = {"command": "create", "path": "a.py", "content": "\ud800"}
    seen = execute_editor(bench.sandbox(), arguments, [], max_chars=1000)
    assert seen.refused
    assert "U+D800" in seen.text


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\nb\nc\n", "b", "B", b"a\nB\nc\n"),
        (b"a\nb\nc", "c", "C", b"a\nb\nC"),
        (b"a\nb\nc\n", "a\nb", "", b"\nc\n"),
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny", b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\r\ny", b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\nc\nd\n", "c\nd", "C\nD", b"a\r\nb\r\nC\nD\n"),
        ("é = 'ü'\n".encode(), "'ü'", "'日'", "é = '日'\n".encode()),
        (b"    if x:\n\tpass\n", "    if x:\n\tpass", "    if y:\n\tpass", b"    if y:\n\tpass\n"),
        (b"<old>x</old>\n", "<old>x</old>", "<new>y</new>", b"<new>y</new>\n"),
        (b"a.*b\n", ".*", "\\1", b"a\\1b\n"),
    ],
)
def test_str_replace(bench: Bench, before: bytes, old: str, new: str, after: bytes) -> None:
    bench.put("a.py", before)
    sandbox = bench.sandbox()
    sandbox.run("chmod 755 a.py", timeout_s=5)
    sandbox.changes()
    (event,) = bench.run(edit("str_replace", old=old, new=new))
    assert not event.refused, event.text
    assert bench.content("a.py") == after
    assert event.changes == (FileChange(path="a.py", before=sha256(before), after=sha256(after)),)
    assert sandbox.run("stat -c %a a.py", timeout_s=5).output == "755\n"


def test_str_replace_refusals_change_nothing(bench: Bench) -> None:
    text = b"x = 1\ny = 2\nx = 1\n"
    bench.put("a.py", text)
    no_match, two_matches, same, empty_old, missing, ending = bench.run(
        edit("str_replace", old="z = 3", new="z"),
        edit("str_replace", old="x = 1", new="x = 2"),
        edit("str_replace", old="y = 2", new="y = 2"),
        edit("str_replace", old="", new="y"),
        edit("str_replace", "b.py", old="x", new="y"),
        edit("str_replace", old="y = 2", new="y = 2\r"),
    )
    assert_refused(no_match, "does not occur in a.py", "view the lines")
    assert_refused(two_matches, "occurs 2 times", "(lines 1, 3)")
    assert_refused(same, "are the same")
    assert_refused(ending, "are the same")
    assert_refused(empty_old, "old is empty")
    assert_refused(missing, "no such file")
    assert bench.content("a.py") == text


def test_an_edit_shows_the_lines_around_it(bench: Bench) -> None:
    bench.put("a.py", LINES)
    (event,) = bench.run(edit("str_replace", old="line 5\n", new="five\nand a half\n"))
    assert event.text.splitlines()[0] == "a.py has been edited."
    assert "     5\tfive\n     6\tand a half\n     7\tline 6" in event.text
    assert "\tline 10" not in event.text


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("before", "line", "new", "after"),
    [
        (b"a\nb\n", "0", "x", b"x\na\nb\n"),
        (b"a\nb\n", "1", "x\ny\n", b"a\nx\ny\nb\n"),
        (b"a\nb\n", "2", "x", b"a\nb\nx\n"),
        (b"a\nb", "2", "x", b"a\nb\nx\n"),
        (b"a\nb", "1", "x", b"a\nx\nb"),
        (b"", "0", "x", b"x\n"),
        (b"a\r\nb\r\n", "1", "x\ny", b"a\r\nx\r\ny\r\nb\r\n"),
        (b"a\r\nb", "2", "x", b"a\r\nb\r\nx\r\n"),
        (b"a\r\nb\nc\n", "2", "x", b"a\r\nb\nx\nc\n"),
        (b"a\nb\nc\r\n", "0", "x\r\ny", b"x\ny\na\nb\nc\r\n"),
        (b"\xef\xbb\xbfa\n", "0", "x", b"\xef\xbb\xbfx\na\n"),
        (b"a\n", "1", "", b"a\n\n"),
        (b"a\n", "1", "x\r", b"a\nx\n"),
        (b"a\rb\r", "1", "x\ny", b"a\rb\rx\ry\r"),
    ],
)
def test_insert(bench: Bench, before: bytes, line: str, new: str, after: bytes) -> None:
    bench.put("a.py", before)
    (event,) = bench.run(edit("insert", line=line, new=new))
    assert not event.refused, event.text
    assert bench.content("a.py") == after


def test_insert_beyond_the_end_is_refused(bench: Bench) -> None:
    bench.put("a.py", b"a\nb\n")
    (event,) = bench.run(edit("insert", line="3", new="x"))
    assert_refused(event, "has only 2 lines", "after line 3")


def test_undo_reverts_edit_by_edit(bench: Bench) -> None:
    bench.put("a.py", b"one\n")
    bench.put("b.py", b"other\n")
    *_, first, second, no_edit = bench.run(
        edit("str_replace", old="one", new="two"),
        edit("str_replace", "b.py", old="other", new="OTHER"),
        edit("insert", "./a.py", line="1", new="three"),
        edit("undo"),
        edit("undo", "../workspace/a.py"),
        edit("undo"),
    )
    assert first.changes == (FileChange(path="a.py", before=sha256(b"two\nthree\n"), after=sha256(b"two\n")),)
    assert second.changes == (FileChange(path="a.py", before=sha256(b"two\n"), after=sha256(b"one\n")),)
    assert_refused(no_edit, "no edit of a.py")
    assert bench.content("a.py") == b"one\n"
    assert bench.content("b.py") == b"OTHER\n"


def test_an_edit_after_an_undo_can_be_undone(bench: Bench) -> None:
    bench.put("a.py", b"one\n")
    *_, last, no_edit = bench.run(
        edit("str_replace", old="one", new="two"),
        edit("undo"),
        edit("str_replace", old="one", new="three"),
        edit("undo"),
        edit("undo"),
    )
    assert not last.refused
    assert bench.content("a.py") == b"one\n"
    assert_refused(no_edit, "no edit of a.py")


def test_undo_never_reverts_changes_of_the_shell(bench: Bench) -> None:
    bench.put("a.py", b"one\n")
    *_, refused = bench.run(
        edit("str_replace", old="one", new="two"), shell("echo three >> a.py"), edit("undo")
    )
    assert_refused(refused, "has changed since the edit")
    assert bench.content("a.py") == b"two\nthree\n"


def test_undo_does_not_remove_a_created_file(bench: Bench) -> None:
    *_, back, refused = bench.run(
        edit("create", content="x"), edit("insert", line="1", new="y"), edit("undo"), edit("undo")
    )
    assert not back.refused
    assert_refused(refused, "created a.py", "shell")
    assert bench.content("a.py") == b"x\n"


def test_undo_of_a_removed_file(bench: Bench) -> None:
    bench.put("a.py", b"one\n")
    *_, refused = bench.run(edit("str_replace", old="one", new="two"), shell("rm a.py"), edit("undo"))
    assert_refused(refused, "no such file")


def test_invalid_paths_are_refused(bench: Bench) -> None:
    for event in bench.run(
        edit("view", "a\x00b"), edit("create", "a\x00b", content="x"), edit("create", "x" * 300, content="x")
    ):
        assert_refused(event)


def test_file_names_that_are_not_utf8(bench: Bench) -> None:
    created, listed = bench.run(shell(r"echo x > $'caf\xe9.py'"), edit("view", "."))
    assert [change.path for change in created.changes] == ["caf\\xe9.py"]
    assert "caf\\xe9.py" in listed.text
    created.model_dump_json()
    listed.model_dump_json()
