"""Working trees as people have them: worktrees, volumes, large or changing files. A copy is whole, or says what it lacks."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from langgraph_takeover.agents import Capture, CaptureError
from langgraph_takeover.graph.continuation.capture import CaptureProgress
from langgraph_takeover.handoff.views import VIEWS
from langgraph_takeover.handoff.views.common import Recipient
from langgraph_takeover.sandbox.backends.checkouts import write_checkout
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.snapshots import archive_writer

from ...agent_sessions import describe_tree, list_default_steps, make_repository, run_git, write_codex_session
from ...sandbox.ordinary_user import make_user_directory, run_python_as_user
from .conftest import Workplace

_LOCAL = ("-c", "protocol.file.allow=always")
Copy = Callable[..., tuple[Capture, Path]]


@pytest.fixture
def copy(workplace: Workplace, tmp_path: Path) -> Copy:
    """Capture a working tree and write the checkout of the record."""

    def capture(repository: Path, **options: object) -> tuple[Capture, Path]:
        write_codex_session(workplace.user_home, str(repository), list_default_steps(repository))
        before = describe_tree(repository)
        done = workplace.capture(repository=repository, **options)
        assert describe_tree(repository) == before
        target = tmp_path / f"copy-{len(list(tmp_path.glob('copy-*')))}"
        assert done.record.snapshot is not None
        write_checkout(done.record.snapshot, done.directory, target)
        return done, target

    return capture


def status(directory: Path) -> str:
    return run_git(directory, "status", "--short", "--branch", "--ignored")


def list_left_out(done: Capture) -> dict[str, str]:
    return {each.path: each.reason for each in done.record.left_out}


def require_independent(directory: Path, *originals: Path) -> None:
    """Nothing that git reads in a copy names the original, but a remote's address."""
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink() and "logs" not in path.parts:
            text = path.read_text(errors="replace")
            lines = [line for line in text.splitlines() if "url = " not in line]
            assert not any(str(each) in line for each in originals for line in lines), path


def test_a_worktree_is_a_repository_of_its_own(workplace: Workplace, tmp_path: Path, copy: Copy) -> None:
    main = workplace.repository
    run_git(main, "stash")
    tree = tmp_path / "feature"
    run_git(main, "worktree", "add", "-q", "-b", "feature", str(tree))
    (tree / "shop/price.py").write_text("staged\n")
    run_git(tree, "add", "-A")
    (tree / "shop/price.py").write_text("worked\n")
    (tree / "new.txt").write_text("new\n")
    (tree / ".env").write_text("A=1\n")
    done, target = copy(tree)
    assert "+worked" in done.record.patch
    assert status(target) == status(tree)
    assert run_git(target, "show", ":shop/price.py") == "staged"
    assert len(run_git(target, "worktree", "list").splitlines()) == 1
    assert run_git(target, "stash", "list") == run_git(main, "stash", "list")
    assert (target / ".git").is_dir()
    assert done.history_sources == (str(main / ".git"), str(main / ".git/worktrees/feature"))
    require_independent(target, main, tree)
    run_git(target, "fsck", "--strict")
    run_git(target, "commit", "-qam", "More")
    run_git(target, "checkout", "-q", "master")
    assert run_git(main, "log", "--format=%s", "-1", "feature") == "Start"


@pytest.mark.parametrize("operation", ["merge", "rebase"])
def test_an_operation_in_progress(workplace: Workplace, tmp_path: Path, copy: Copy, operation: str) -> None:
    run_git(workplace.repository, "commit", "-qam", "Two")
    tree = tmp_path / "feature"
    run_git(workplace.repository, "worktree", "add", "-q", "-b", "feature", str(tree), "HEAD~1")
    (tree / "shop/price.py").write_text("other\n")
    run_git(tree, "commit", "-qam", "Three")
    with pytest.raises(subprocess.CalledProcessError):
        run_git(tree, operation, "master")
    _, target = copy(tree)
    assert status(target) == status(tree)
    run_git(target, operation, "--abort")
    assert run_git(target, "symbolic-ref", "HEAD") == "refs/heads/feature"
    assert run_git(target, "log", "-1", "--format=%s") == "Three"


def make_submodule(workplace: Workplace, tmp_path: Path) -> Path:
    library = make_repository(tmp_path / "library")
    run_git(workplace.repository, *_LOCAL, "submodule", "--quiet", "add", str(library), "deep/lib")
    run_git(workplace.repository, "commit", "-qm", "Library")
    return library


def test_a_submodule_of_a_worktree(workplace: Workplace, tmp_path: Path, copy: Copy) -> None:
    make_submodule(workplace, tmp_path)
    tree = tmp_path / "feature"
    run_git(workplace.repository, "worktree", "add", "-q", str(tree))
    run_git(tree, *_LOCAL, "submodule", "--quiet", "update", "--init")
    (tree / "deep/lib/shop/price.py").write_text("worked\n")
    done, target = copy(tree)
    assert "+worked" in done.record.patch
    assert (target / "deep/lib/.git").read_text() == "gitdir: ../../.git/modules/deep/lib\n"
    assert status(target / "deep/lib") == status(tree / "deep/lib")
    assert status(target) == status(tree)
    require_independent(target, workplace.repository, tree)


def test_a_submodule_with_absolute_paths(workplace: Workplace, tmp_path: Path, copy: Copy) -> None:
    """As older versions of git write them: git in the copy would work on the original."""
    make_submodule(workplace, tmp_path)
    inside = workplace.repository / "deep/lib"
    (inside / ".git").write_text(f"gitdir: {workplace.repository}/.git/modules/deep/lib\n")
    run_git(inside, "config", "core.worktree", str(inside))
    _, target = copy(workplace.repository)
    assert run_git(target / "deep/lib", "rev-parse", "--show-toplevel") == str(target / "deep/lib")
    require_independent(target, workplace.repository)


def test_a_submodule_alone(workplace: Workplace, tmp_path: Path, copy: Copy) -> None:
    make_submodule(workplace, tmp_path)
    inside = workplace.repository / "deep/lib"
    (inside / "shop/price.py").write_text("worked\n")
    _, target = copy(inside)
    assert status(target) == status(inside)
    assert run_git(target, "rev-parse", "--show-toplevel") == str(target)
    require_independent(target, workplace.repository)


def test_worktrees_inside_the_repository(workplace: Workplace, copy: Copy) -> None:
    main = workplace.repository
    tree = main / ".claude/worktrees/one"
    run_git(main, "worktree", "add", "-q", "-b", "one", str(tree))
    (tree / "new.txt").write_text("new\n")
    _, target = copy(main)
    assert len(run_git(target, "worktree", "list").splitlines()) == 1
    assert status(target / ".claude/worktrees/one") == status(tree)
    require_independent(target, main)


def test_a_file_in_the_tree_brings_no_other_repository(
    workplace: Workplace, tmp_path: Path, copy: Copy
) -> None:
    private = make_repository(tmp_path / "private")
    (workplace.repository / "inside").mkdir()
    (workplace.repository / "inside/.git").write_text(f"gitdir: {private}/.git\n")
    done, target = copy(workplace.repository)
    assert "names a git directory elsewhere" in list_left_out(done)["inside/.git"]
    assert list((target / "inside").iterdir()) == []


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", ["separate", "own path", "relative", "alternates", "bare", "lock"])
def test_git_directories(workplace: Workplace, tmp_path: Path, copy: Copy, kind: str) -> None:
    main = tree = workplace.repository
    if kind == "separate":
        run_git(main, "init", "-q", f"--separate-git-dir={tmp_path}/elsewhere.git")
    elif kind == "own path":
        run_git(main, "config", "core.worktree", str(main))
    elif kind == "relative":
        tree = tmp_path / "trees/one"
        run_git(main, "worktree", "add", "-q", str(tree))
        (tree / ".git").write_text("gitdir: ../../shop/.git/worktrees/one\n")
    elif kind == "alternates":
        tree = tmp_path / "shared"
        run_git(tmp_path, "clone", "-q", "--shared", str(main), str(tree))
    elif kind == "bare":
        tree = tmp_path / "tree"
        run_git(tmp_path, "clone", "-q", "--bare", str(main), "bare.git")
        run_git(tmp_path / "bare.git", "worktree", "add", "-q", str(tree))
    else:
        (main / ".git/index.lock").touch()
    (tree / "new.txt").write_text("new\n")
    _, target = copy(tree)
    assert status(target) == status(tree)
    require_independent(target, main, tree, tmp_path / "elsewhere.git", tmp_path / "bare.git")
    run_git(target, "fsck", "--strict")
    run_git(target, "add", "-A")


def test_a_sparse_shallow_and_partial_clone(workplace: Workplace, tmp_path: Path, copy: Copy) -> None:
    main, clone, tree = workplace.repository, tmp_path / "clone", tmp_path / "tree"
    run_git(main, "commit", "-qam", "Two")
    run_git(main, "config", "uploadpack.allowFilter", "true")
    options = ("--depth=1", "--filter=blob:none", "--no-checkout")
    run_git(tmp_path, "clone", "-q", *options, f"file://{main}", str(clone))
    run_git(clone, "sparse-checkout", "set", "--no-cone", "/shop/")
    run_git(clone, "checkout", "-q")
    run_git(clone, "worktree", "add", "-q", str(tree))
    run_git(tree, "sparse-checkout", "set", "--no-cone", "/shop/", "/.gitignore")
    for each in (clone, tree):
        (each / "shop/price.py").write_text("worked\n")
        done, target = copy(each)
        assert status(target) == status(each)
        assert run_git(target, "sparse-checkout", "list") == run_git(each, "sparse-checkout", "list")
        assert done.record.patch.count("diff --git") == 1


def test_git_directories_that_are_refused(
    workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repository(tmp_path / "other")
    tree, shared = tmp_path / "tree", tmp_path / "shared"
    run_git(other, "worktree", "add", "-q", str(tree))
    run_git(tmp_path, "clone", "-q", "--shared", str(workplace.repository), str(shared))
    with monkeypatch.context() as patch:
        patch.setenv("GIT_DIR", str(other / ".git"))
        with pytest.raises(CaptureError, match=r"names another repository than .*unset GIT_DIR"):
            workplace.capture()
    (other / ".git").rename(other / "moved")
    with pytest.raises(CaptureError, match="git worktree repair"):
        workplace.capture(repository=tree)
    workplace.repository.rename(tmp_path / "gone")
    with pytest.raises(CaptureError):
        workplace.capture(repository=shared)


def test_pipes_sockets_and_devices_are_named(
    workplace: Workplace, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = workplace.repository
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    done, target = copy(root)
    assert list_left_out(done) == {
        "pipe": "not in the snapshot: a named pipe",
        "socket": "not in the snapshot: a socket",
    }
    assert not {"pipe", "socket"} & {each.name for each in target.iterdir()}
    text = str(VIEWS["structured"](done.record, Recipient())[-1].content)
    assert "not here, or only as git has them" in text
    assert "`pipe`" in text


def test_patterns_exclude_what_git_does_not_track(workplace: Workplace, copy: Copy) -> None:
    root = workplace.repository
    (root / "data.bin").write_text("tracked")
    run_git(root, "add", "data.bin")
    (root / "node_modules/a/empty").mkdir(parents=True)
    (root / "node_modules/a/index.js").write_text("x" * 1000)
    for name in ("other.bin", "keep.bin", ":(glob)x.bin"):
        (root / name).write_text("0")
    make_repository(root / "vendor/lib")
    patterns = ("node_modules/", "*.bin", "!keep.bin", "/vendor/")
    done, target = copy(root, exclude=patterns)
    assert done.kept_tracked == ("data.bin",)
    left_out = list_left_out(done)
    assert left_out["node_modules/"] == "not in the snapshot: excluded, 1 file, 1,000 bytes"
    assert left_out.keys() == {"node_modules/", "other.bin", ":(glob)x.bin", "vendor/"}
    assert sorted(each.name for each in target.iterdir()) == sorted(
        (".env", ".git", ".gitignore", "data.bin", "keep.bin", "notes.txt", "shop", "test_price.py")
    )
    assert "other.bin" not in done.record.patch
    with pytest.raises(CaptureError, match=r"--exclude: .*not a pattern"):
        workplace.capture(exclude=("a\nb",))


@pytest.fixture
def log(workplace: Workplace) -> Iterator[Path]:
    """A file to which a process writes all the time."""
    path = workplace.repository / "dev.log"
    writer = subprocess.Popen(["sh", "-c", 'while :; do echo line >>"$0"; sleep 0.005; done', str(path)])
    yield path
    writer.kill()
    writer.wait()


def test_a_file_that_is_being_written(workplace: Workplace, log: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match=r"'dev.log' .*--exclude it, or --allow-changing"):
        workplace.capture()
    assert list((workplace.home / "records").iterdir()) == []
    done = workplace.capture(allow_changing=True)
    assert list_left_out(done) == {"dev.log": "changed while it was read; the snapshot has what was read"}
    assert "+line" in done.record.patch
    assert list_left_out(workplace.capture(exclude=("*.log",))).keys() == {"dev.log"}


@pytest.mark.parametrize("change", ["vanish", "shrink", "replace", "history"])
def test_a_change_while_files_are_read(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """After the listing, before the content."""
    write = archive_writer.write_differences_to_store
    root = workplace.repository
    (root / "zoo").mkdir()
    (root / "zoo/a").write_text("x" * 100)

    def change_first(*arguments: object, **options: object) -> archive_writer.WrittenArchive:
        if change == "vanish":
            shutil.rmtree(root / "zoo")
        elif change == "shrink":
            (root / "zoo/a").write_text("y")
        elif change == "replace":
            (root / "zoo/a").unlink()
            os.mkfifo(root / "zoo/a")
        else:
            (root / ".git/description").write_text("new")
        return write(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(archive_writer, "write_differences_to_store", change_first)
    with pytest.raises(SandboxUnavailableError, match="changed while it was read"):
        workplace.capture()
    shutil.rmtree(root / "zoo", ignore_errors=True)
    (root / "zoo").mkdir()
    (root / "zoo/a").write_text("x" * 100)
    if change == "history":
        (root / ".git/description").write_text("old")
        with pytest.raises(SandboxUnavailableError, match=r"\.git/description"):
            workplace.capture(allow_changing=True)
        return
    done = workplace.capture(allow_changing=True)
    assert "zoo/a" in list_left_out(done)


def test_large_files_are_named_first_and_stay_sparse(workplace: Workplace, tmp_path: Path) -> None:
    with (workplace.repository / "disk.img").open("wb") as file:
        file.truncate(40 << 30)
        file.seek(7 << 30)
        file.write(b"data")
    seen: list[CaptureProgress] = []
    done = workplace.capture(on_progress=seen.append)
    target = tmp_path / "copy"
    assert done.record.snapshot is not None
    write_checkout(done.record.snapshot, done.directory, target)
    assert done.snapshot_bytes < 1 << 20
    assert seen[0].large == (
        ("disk.img", 40 << 30, (workplace.repository / "disk.img").stat().st_blocks * 512),
    )
    assert [each.done_bytes for each in seen[:-1]] == sorted(each.done_bytes for each in seen[:-1])
    assert seen[-1].stage == "comparing with the commit"
    info = (target / "disk.img").stat()
    assert (info.st_size, info.st_blocks * 512 <= 1 << 20) == (40 << 30, True)
    with (target / "disk.img").open("rb") as copied:
        copied.seek(7 << 30)
        assert copied.read(5) == b"data\0"


def test_an_interruption_leaves_nothing(workplace: Workplace) -> None:
    def interrupt(progress: CaptureProgress) -> None:
        if progress.done_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workplace.capture(on_progress=interrupt)
    assert list((workplace.home / "records").iterdir()) == []


def test_names_that_are_not_text_and_deep_directories(
    workplace: Workplace, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = workplace.repository
    (root / "b\udcff").mkdir()
    (root / "b\udcff/n\udce9\n").write_text("x")
    (root / "README").write_text("1")
    (root / "readme").write_text("2")
    (root / "one").write_text("same")
    (root / "two").hardlink_to(root / "one")
    monkeypatch.chdir(root)
    for _ in range(210):
        Path("deep").mkdir()
        monkeypatch.chdir("deep")
    monkeypatch.chdir("/")
    done, target = copy(root)
    assert [reason for path, reason in list_left_out(done).items() if path.endswith("deep/")] == [
        "not in the snapshot: nested too deeply"
    ]
    assert (target / "b\udcff/n\udce9\n").read_text() == "x"
    assert {(target / name).read_text() for name in ("README", "readme")} == {"1", "2"}


_AS_USER = """
import json, sys
from pathlib import Path
from langgraph_takeover.agents import capture_session
root = Path(sys.argv[1])
done = capture_session(root / "home", "codex", repository=root / "shop", user_home=root / "user")
print(json.dumps([[[each.path, each.reason] for each in done.record.left_out], done.record.patch, done.unread_tracked]))
"""


@pytest.mark.slow
def test_what_an_ordinary_user_cannot_read() -> None:
    """A database volume of another user, and files without permissions, tracked ones too."""
    with make_user_directory() as directory:
        shop = make_repository(directory / "shop")
        (shop / "volume").mkdir()
        (shop / "volume/tracked").write_text("1\n")
        (shop / "config").write_text("1\n")
        run_git(shop, "add", "volume", "config")
        run_git(shop, "commit", "-qm", "More")
        (shop / "config").write_text("2\n")
        (shop / "config").chmod(0)
        (shop / "volume").chmod(0)
        (shop / "key").touch(mode=0)
        write_codex_session(directory / "user", str(shop), list_default_steps(shop))
        program = directory / "capture.py"
        program.write_text(_AS_USER)
        left_out, patch, unread = json.loads(run_python_as_user(directory, program, directory))
    reasons = dict(left_out)
    assert unread == ["config", "volume/tracked"]
    assert "git tracks it, so the copy has the staged version" in reasons["config"]
    assert reasons["key"].startswith("not in the snapshot: permission denied: mode 000")
    assert {"volume/", "volume/tracked"} <= reasons.keys()
    assert "config" not in patch
    assert "tracked" not in patch
