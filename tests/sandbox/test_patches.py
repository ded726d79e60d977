"""The patch of a sandbox's repository: the whole difference, whatever the agent did to git itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.interface import Sandbox, SandboxSpec
from langgraph_takeover.sandbox.repository import (
    UNRESOLVED,
    Patch,
    RepositoryError,
    base_directories,
    head_commit,
    patch_since,
)
from langgraph_takeover.testing.sandboxes import check_output, git, run


@pytest.fixture
def live_sandbox(repository: Path) -> Iterator[Sandbox]:
    found = sandbox.start(SandboxSpec(backend="process", directory=repository, owner="test-repository"))
    yield found
    found.close()


@pytest.fixture
def base(live_sandbox: Sandbox) -> str:
    return head_commit(live_sandbox)


def tree(directory: Path) -> str:
    """Every file that git does not ignore, with kind, mode and content, as one tree id."""
    git(directory, "add", "-A")
    return git(directory, "write-tree").strip()


def apply_to_checkout(patch: str, repository: Path, tmp_path: Path) -> str:
    """The tree of a new checkout after the patch."""
    checkout = tmp_path / "checkout"
    git(tmp_path, "clone", "-q", str(repository), str(checkout))
    if patch:
        done = subprocess.run(
            ["git", "-C", str(checkout), "apply", "--whitespace=nowarn", "-"],
            input=patch.encode(),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
    return tree(checkout)


def compute_expected_tree(live_sandbox: Sandbox, repository: Path, tmp_path: Path) -> str:
    """The tree of the sandbox's files, by a git directory that the agent never touched."""
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", live_sandbox.workspace, str(copy)], check=True)
    subprocess.run(["rm", "-rf", str(copy / ".git")], check=True)
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(copy / ".git"))
    git(copy, "config", "core.bare", "false")
    git(copy, "read-tree", "HEAD")
    return tree(copy)


CheckTree = Callable[[str], None]


@pytest.fixture
def check_tree(live_sandbox: Sandbox, repository: Path, tmp_path: Path) -> CheckTree:
    def check(patch: str) -> None:
        """Check that the patch makes the sandbox's tree of a new checkout."""
        expected = compute_expected_tree(live_sandbox, repository, tmp_path)
        assert apply_to_checkout(patch, repository, tmp_path) == expected

    return check


def list_paths(patch: Patch) -> list[str]:
    return re.findall("^diff --git a/(.*) b/", patch.text, re.MULTILINE)


def list_lines(patch: Patch) -> list[str]:
    """The removed and added lines."""
    return re.findall("^[+-][^+-].*", patch.text, re.MULTILINE)


def test_the_commit_and_its_directories(live_sandbox: Sandbox, repository: Path) -> None:
    check_output(
        live_sandbox,
        "mkdir größe; touch größe/x; git add -A; git -c user.name=t -c user.email=t@t commit -qm x",
    )
    assert head_commit(live_sandbox) == check_output(live_sandbox, "git rev-parse HEAD").strip()
    assert base_directories(live_sandbox) == ("docs", "größe", "pkg", "tools")


def test_no_difference_is_no_patch(live_sandbox: Sandbox, base: str) -> None:
    assert patch_since(live_sandbox, base).text == ""
    check_output(
        live_sandbox,
        "touch README.txt; chmod 600 pkg/mod.py; mkdir empty; echo x > x.log; mkdir build; touch build/y",
    )
    assert patch_since(live_sandbox, base).text == ""


IDENTITY = "git config user.name a; git config user.email a@example.org; "
WORK = {
    "edit": "sed -i s/41/42/ pkg/mod.py",
    "new": "mkdir -p pkg/sub; echo new > pkg/sub/new.py; touch pkg/empty.py",
    "deleted": "rm README.txt; rm -r docs",
    "renamed": "mv 'pkg/old name.py' pkg/new_name.py; git mv tools/run.sh tools/go.sh",
    "renamed and edited": "git mv 'pkg/old name.py' pkg/n.py; echo more >> pkg/n.py",
    "binary": "printf '\\0\\1changed' >> data.bin; head -c 5000 /dev/urandom > new.bin",
    "mode": "chmod 644 tools/run.sh; chmod 755 pkg/mod.py",
    "kind": "rm link; echo file > link; ln -sf data.bin README.txt; ln -s / rootlink",
    "file to directory": "rm README.txt; mkdir README.txt; echo x > README.txt/x",
    "names": "mkdir 'a b'; echo 1 > 'a b/ü ñ.txt'; echo 2 > \"q'uo\\\"te\"; echo 3 > $'new\\nline'; echo 4 >> docs/größe.txt",
    "no final newline": "printf x >> README.txt; printf 'a\\r\\nb\\r\\n' > crlf.txt",
    "latin-1": "printf 'caf\\xe9\\n' > latin.txt; echo plain >> README.txt; printf '\\xff' >> docs/größe.txt",
    "latin-1 name": "echo x > $'caf\\xe9'; echo plain >> README.txt",
    "committed": IDENTITY
    + "echo 1 >> README.txt; git add -A; git commit -qm 1; echo 2 > two; git add -A; git commit -qm 2",
    "committed and undone": IDENTITY
    + "echo 1 > one; git add -A; git commit -qm 1; rm one; echo 2 >> README.txt",
    "on a branch": IDENTITY + "git checkout -q -b mine; echo 1 >> README.txt; git commit -qam 1",
    "orphan": IDENTITY + "git checkout -q --orphan o; echo 1 >> README.txt; git commit -qam 1",
    "staged": "echo 1 >> README.txt; git add -A; echo 2 >> README.txt; echo 3 > three; git add -N three",
    "staged and gone": "echo 1 > one; git add one; rm one; git rm -q --cached README.txt; echo 2 >> pkg/mod.py",
    "conflict": IDENTITY
    + "git checkout -q -b o; echo o >> README.txt; git commit -qam o; git checkout -q main; "
    "echo m >> README.txt; git commit -qam m; git merge o >/dev/null || :",
    "stash": IDENTITY + "echo 1 >> README.txt; git stash -q; echo 2 > two",
    "many": "for i in {1..300}; do echo $i > pkg/f$i.py; done",
    "text that looks like a patch": "printf 'diff --git a/x b/x\\n--- a/x\\n' > x.patch",
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("work", WORK)
def test_the_patch_makes_the_same_tree(
    live_sandbox: Sandbox, base: str, check_tree: CheckTree, work: str
) -> None:
    run(live_sandbox, WORK[work])
    patch = patch_since(live_sandbox, base).text
    assert patch
    patch.encode()
    check_tree(patch)


def test_only_binary_files_are_reported_in_binary(live_sandbox: Sandbox, base: str) -> None:
    run(live_sandbox, WORK["latin-1"])
    patch = patch_since(live_sandbox, base).text
    assert "+plain\n" in patch
    assert "GIT binary patch" in patch


def test_ignored_files_stay_out_unless_added(live_sandbox: Sandbox, base: str) -> None:
    check_output(
        live_sandbox,
        "mkdir build; echo 1 > build/out; echo 2 > x.log; echo 3 > kept.log; git add -f kept.log",
    )
    patch = patch_since(live_sandbox, base).text
    assert "kept.log" in patch
    assert "build/out" not in patch
    assert "x.log" not in patch


HOSTILE = {
    "external diff": "git config diff.external 'echo owned'; git config diff.x.command 'echo owned'; {attributes} diff=x",
    "textconv": "git config diff.x.textconv 'echo owned'; {attributes} diff=x",
    "filter": "git config filter.x.clean 'echo owned'; git config filter.x.required true; {attributes} filter=x",
    "failing filter": "git config filter.x.process false; git config filter.x.required true; {attributes} filter=x",
    "hooks": "mkdir -p hooks.log; printf '#!/bin/sh\\ntouch $HOME/owned\\n' > .git/hooks/post-index-change; chmod +x .git/hooks/*; "
    "git config core.hooksPath .git/hooks; git config core.fsmonitor .git/hooks/post-index-change",
    "pager and alias": "git config core.pager 'echo owned'; "
    "git config alias.diff '!echo owned'; git config alias.add '!touch $HOME/owned'",
    "looks": "git config diff.noprefix true; git config color.ui always; git config diff.context 0; git config core.abbrev 4; "
    "git config diff.renames false; git config diff.mnemonicPrefix true; git config diff.submodule log",
    "excludes": "echo '*' > .git/info/exclude; echo '*' > $HOME/all; git config core.excludesFile $HOME/all",
    "autocrlf": "git config core.autocrlf input; git config core.fileMode false; "
    "git config core.symlinks false; git config core.ignoreCase true",
    "worktree": "git config core.worktree /tmp",
    "bare": "git config core.bare true",
    "home": "git config --global diff.external 'echo owned'; git config --global core.excludesFile $HOME/x; echo '*' > $HOME/x; "
    "git config --global core.hooksPath /nowhere; git config --global include.path /nowhere",
    "hidden by flags": "git update-index --assume-unchanged pkg/mod.py; git update-index --skip-worktree README.txt",
    "sparse": "git sparse-checkout set --no-cone '/*'",
    "split index": "git update-index --split-index",
    "no index": "rm .git/index",
    "broken index": "echo broken > .git/index",
    "replaced": "git replace $(git rev-parse HEAD^{tree}) $(git mktree </dev/null)",
    "read-only": "chmod -R a-w .git",
    "moved head": "git checkout -q --detach; git update-ref -d refs/heads/main",
    "locked": "touch .git/index.lock",
}


@pytest.mark.cases(3)
@pytest.mark.parametrize("trick", HOSTILE)
def test_hostile_git_settings(live_sandbox: Sandbox, base: str, check_tree: CheckTree, trick: str) -> None:
    run(live_sandbox, HOSTILE[trick].replace("{attributes}", "> .git/info/attributes echo '*'"))
    check_output(
        live_sandbox,
        "sed -i s/41/42/ pkg/mod.py; echo more >> README.txt; chmod -x tools/run.sh; printf 'a\\r\\n' > new.txt",
    )
    patch = patch_since(live_sandbox, base).text
    assert "owned" not in patch
    assert "+    return 42\n" in patch
    check_tree(patch)
    assert run(live_sandbox, 'test -e "$HOME/owned"').exit_code == 1


def test_attributes_of_the_work_tree(live_sandbox: Sandbox, base: str, check_tree: CheckTree) -> None:
    for command in (
        "git config diff.x.textconv 'echo owned'; git config filter.x.clean 'echo owned'",
        "echo '*.py filter=x diff=x' > .gitattributes; echo '*.txt -diff' >> .gitattributes",
        "sed -i s/41/42/ pkg/mod.py; echo more >> README.txt",
    ):
        check_output(live_sandbox, command)
    patch = patch_since(live_sandbox, base).text
    assert "owned" not in patch
    assert "+    return 42\n" in patch
    check_tree(patch)


def test_the_repository_is_not_touched(live_sandbox: Sandbox, base: str) -> None:
    run(live_sandbox, WORK["staged"] + ";" + WORK["conflict"] + "; head -c 100000 /dev/urandom > big")
    live_sandbox.changes()
    look = (
        "find .git -type f -printf '%p %s %T@ %C@ %m\\n' | sort; find .git -type f -exec sha256sum {} + | sort; "
        'find "$HOME" "$TMPDIR"; git for-each-ref; git ls-files --stage'
    )
    before = live_sandbox.inspect("export GIT_OPTIONAL_LOCKS=0; " + look).output
    assert patch_since(live_sandbox, base).text
    assert live_sandbox.inspect("export GIT_OPTIONAL_LOCKS=0; " + look).output == before
    assert live_sandbox.changes() == ()


NO_OBJECTS = "rm -rf .git/objects; mkdir .git/objects"
HARMS = ("rm -rf .git", NO_OBJECTS, "echo '[broken' > .git/config")
FURTHER_HARMS = (
    "rm -rf .git; git init -q",
    "echo x > .git/HEAD",
    "rm -rf .git; echo 'gitdir: /nowhere' > .git",
)


@pytest.mark.parametrize("harm", [*HARMS, *FURTHER_HARMS])
def test_a_broken_repository(live_sandbox: Sandbox, base: str, harm: str) -> None:
    check_output(live_sandbox, harm)
    with pytest.raises(RepositoryError, match="git"):
        patch_since(live_sandbox, base)
    if harm != NO_OBJECTS:
        with pytest.raises(RepositoryError):
            head_commit(live_sandbox)
    assert check_output(live_sandbox, "echo usable") == "usable\n"


def test_an_invalid_base_commit(live_sandbox: Sandbox) -> None:
    for base in ("0" * 40, "no-such-branch", "--help", "$(touch owned)", "HEAD~99"):
        with pytest.raises(RepositoryError):
            patch_since(live_sandbox, base)
    assert run(live_sandbox, "test -e owned").exit_code == 1


COMMIT = "git -c user.name=a -c user.email=b -c protocol.file.allow=always commit -qm x"


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("place", ["inner", "pkg", "docs/in ner/deep"])
def test_a_nested_repository_is_a_directory(
    live_sandbox: Sandbox, base: str, check_tree: CheckTree, place: str, commits: bool
) -> None:
    check_output(
        live_sandbox,
        f"(git init -q '{place}'; cd '{place}'; mkdir d; echo 1 > one.py; echo 2 > d/two; git add -A"
        + (f"; {COMMIT}; echo 3 >> one.py)" if commits else ")"),
    )
    patch = patch_since(live_sandbox, base)
    assert left_out(patch).keys() == ({f"{place}/.git"} if commits else set())
    run(live_sandbox, f"rm -rf '{place}/.git'")
    check_tree(patch.text)


def test_a_nested_repository_that_git_ignores_stays_out(live_sandbox: Sandbox, base: str) -> None:
    check_output(
        live_sandbox, f"git init -q build/x; cd build/x; echo 1 > one; git add -A; {COMMIT}; cd ../.."
    )
    assert patch_since(live_sandbox, base) == Patch()


FILES_OF_SUB = (".gitignore", ".gitmodules", "a.py", "deep/b.py", "kept.log")
IGNORE = "git config diff.ignoreSubmodules all; git config submodule.sub.ignore all"
SUBMODULES = {
    "edit": ("echo more >> sub/a.py; echo more >> sub/deep/b.py", {"sub/a.py", "sub/deep/b.py"}),
    "commit": (f"cd sub; echo more >> a.py; git commit -qam x || {COMMIT} -a", {"sub/a.py"}),
    "new file": ("mkdir sub/new; echo 1 > sub/new/n.py; echo 1 > sub/x.log", {"sub/new/n.py"}),
    "deleted": ("rm -rf sub/deep; rm sub/a.py", {"sub/a.py", "sub/deep/b.py"}),
    "replaced": ("rm -rf sub; echo a file > sub", {"sub", *(f"sub/{name}" for name in FILES_OF_SUB)}),
    "no link": ("rm sub/.git sub/deep/.git; echo more >> sub/deep/b.py", {"sub/deep/b.py"}),
    "no index": ("git rm -rq --cached .; rm -f .git/index; echo more >> sub/a.py", {"sub/a.py"}),
    "staged": ("cd sub; echo more >> a.py; git add -A; cd ..; git add -A", {"sub/a.py"}),
    "flags": (f"{IGNORE}; rm sub/kept.log", {"sub/kept.log"}),
    "unchanged": ("touch sub/a.py; git -C sub status", set()),
}


@pytest.fixture(scope="module")
def with_submodules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a submodule that has a submodule."""
    root = tmp_path_factory.mktemp("modules")
    commit = f"git add -Af && {COMMIT}"
    add = "git -c protocol.file.allow=always submodule --quiet add"
    script = f"""
    git init -q deep && (cd deep && echo 1 > b.py && {commit})
    git init -q sub && (cd sub && echo 1 > a.py && echo '*.log' > .gitignore && echo 1 > kept.log)
    (cd sub && {add} {root}/deep deep && {commit})
    git init -q main && (cd main && echo 1 > README.txt && {add} {root}/sub sub && {commit})
    cd main && git -c protocol.file.allow=always submodule --quiet update --init --recursive
    """
    subprocess.run(["bash", "-ec", script], cwd=root, check=True)
    return root / "main"


@pytest.mark.cases(3)
@pytest.mark.parametrize("work", SUBMODULES)
def test_submodules_are_directories(with_submodules: Path, tmp_path: Path, work: str) -> None:
    command, paths = SUBMODULES[work]
    with sandbox.start(
        SandboxSpec(backend="process", directory=with_submodules, owner="test-modules")
    ) as live:
        base = head_commit(live)
        run(live, command)
        patch = patch_since(live, base)
    assert set(list_paths(patch)) == paths
    assert left_out(patch).keys() <= {"sub/.git"}
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(with_submodules), str(copy)], check=True)
    subprocess.run(["rm", str(copy / "sub/.git"), str(copy / "sub/deep/.git")], check=True)
    if patch.text:
        subprocess.run(["git", "-C", str(copy), "apply", "-"], input=patch.text.encode(), check=True)


def test_the_commit_of_a_submodule_is_lost(with_submodules: Path) -> None:
    """All of its files count as new, unless a sandbox has the commit."""
    spec = SandboxSpec(backend="process", directory=with_submodules, owner="test-modules")
    with sandbox.start(spec) as live:
        base = head_commit(live)
        check_output(live, "rm -rf sub/.git .git/modules; echo more >> sub/a.py")
        patch = patch_since(live, base)
        assert left_out(patch) == {"sub": UNRESOLVED}
        assert "new file mode 100644\n" in patch.text
        patch = patch_since(live, base, open_base=lambda: sandbox.start(spec))
    assert not patch.left_out
    assert list_lines(patch) == ["+more"]


def test_a_submodule_that_was_never_checked_out_is_unchanged(with_submodules: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "-q", str(with_submodules), str(tmp_path / "clone")], check=True)
    with sandbox.start(
        SandboxSpec(backend="process", directory=tmp_path / "clone", owner="test-modules")
    ) as live:
        base = head_commit(live)
        check_output(live, "echo more >> README.txt")
        assert list_lines(patch_since(live, base)) == ["+more"]
        check_output(live, "echo 1 > sub/new.py")
        assert "b/sub/new.py" in patch_since(live, base).text


def left_out(patch: Patch) -> dict[str, str]:
    assert patch.left_out_count == len(patch.left_out)
    return {each.path: each.reason for each in patch.left_out}


def test_the_largest_changes_are_left_out(
    live_sandbox: Sandbox, base: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_takeover.sandbox.repository.MAX_PATCH_BYTES", 5000)
    check_output(
        live_sandbox,
        "for n in 1 2 3; do head -c ${n}500 /dev/urandom > data$n; done; echo more >> README.txt",
    )
    patch = patch_since(live_sandbox, base)
    assert left_out(patch).keys() == {"data2", "data3"}
    apply_to_checkout(patch.text, repository, tmp_path)
    assert "data1" in patch.text
    assert "+more\n" in patch.text


def test_large_files_are_left_out(live_sandbox: Sandbox, base: str) -> None:
    """A core dump, a sparse file and a log that git ignores, beside the correct change."""
    check_output(
        live_sandbox,
        "truncate -s 20G sparse; head -c 20000000 /dev/zero | tee core > x.log; git add core; echo more >> README.txt; "
        "rm data.bin; truncate -s 17M data.bin; mkfifo pipe build.log",
    )
    patch = patch_since(live_sandbox, base)
    found = left_out(patch)
    assert found.pop("pipe") == "no file, link or readable directory"
    assert found == dict.fromkeys(("core", "data.bin", "sparse"), "larger than 16 MiB")
    assert list_paths(patch) == ["README.txt"]


@pytest.mark.parametrize("harm", [*HARMS, "rm -rf .git; git init -q; git add -A"])
def test_a_lost_base_is_read_from_another_sandbox(
    live_sandbox: Sandbox, base: str, repository: Path, check_tree: CheckTree, harm: str
) -> None:
    check_output(
        live_sandbox,
        harm + "; sed -i s/41/42/ pkg/mod.py; rm README.txt; echo new > new.txt; echo log > x.log",
    )

    def open_base() -> Sandbox:
        return sandbox.start(SandboxSpec(backend="process", directory=repository, owner="test-base"))

    patch = patch_since(live_sandbox, base, open_base=open_base)
    assert not patch.left_out
    check_tree(patch.text)
    with pytest.raises(RepositoryError):
        patch_since(live_sandbox, "0" * 40, open_base=open_base)


def test_a_renamed_link_leaves_room_for_a_directory(
    live_sandbox: Sandbox, base: str, check_tree: CheckTree
) -> None:
    """`git apply` does not know that, so the patch has no renames."""
    check_output(live_sandbox, "mv link link.moved; mkdir link; echo x > link/x")
    patch = patch_since(live_sandbox, base)
    check_tree(patch.text)


def test_a_rename_beside_a_file_that_is_not_utf_8(
    live_sandbox: Sandbox, base: str, check_tree: CheckTree
) -> None:
    """The text and the binary form find different renames."""
    check_output(
        live_sandbox,
        "printf 'a\\r\\nb\\r\\nmore\\n' > moved; git mv crlf.txt x || rm -f tools/run.sh; " + WORK["latin-1"],
    )
    patch = patch_since(live_sandbox, base)
    check_tree(patch.text)


SPARSE = "git sparse-checkout set pkg"
MOD = {"pkg/mod.py"}
SETTINGS = {
    "sparse checkout": (SPARSE, MOD),
    "sparse index": ("git sparse-checkout set --sparse-index pkg", MOD),
    "sparse without an index": (f"{SPARSE}; rm .git/index", MOD),
    "a file outside of a sparse checkout": (
        f"{SPARSE}; mkdir docs; echo x > docs/größe.txt",
        {"docs/größe.txt", "pkg/mod.py"},
    ),
    "deleted in a sparse checkout": (f"{SPARSE}; rm 'pkg/old name.py'", {"pkg/old name.py", "pkg/mod.py"}),
    "no modes": (
        "git config core.fileMode false; find . -path ./.git -prune -o -type f -exec chmod +x {} +",
        MOD,
    ),
    "line endings": (
        "git config core.autocrlf true; rm README.txt pkg/mod.py; git checkout -q .; grep -q $'\\r' pkg/mod.py",
        MOD,
    ),
    "attributes": (
        "echo '*.txt text eol=crlf' > .git/info/attributes; rm README.txt; git checkout -q README.txt; grep -q $'\\r' README.txt",
        MOD,
    ),
    "alternates": (
        "git clone -q --bare . ../store; rm -rf .git/objects/??; rm -rf .git/objects/pack; "
        'echo "$PWD/../store/objects" > .git/objects/info/alternates',
        MOD,
    ),
    "quoted paths": ("git config core.quotePath true; git config core.precomposeUnicode true", MOD),
}


@pytest.mark.cases(3)
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_change_nothing(live_sandbox: Sandbox, base: str, setting: str) -> None:
    command, paths = SETTINGS[setting]
    check_output(live_sandbox, command)
    check_output(live_sandbox, "sed -i s/41/42/ pkg/mod.py")
    patch = patch_since(live_sandbox, base)
    assert patch.left_out == ()
    assert set(list_paths(patch)) == paths
    edits = [line for line in patch.text.splitlines() if line[:2] in ("-\t", "- ", "+ ")]
    assert edits == ["-    return 41", "+    return 42"]


def test_files_that_a_filter_has_converted_are_unchanged(tmp_path: Path) -> None:
    """No filter of the repository runs; a file of LFS is what its pointer names."""
    root = tmp_path / "repository"
    script = rf"""
    git init -q {root} && cd {root}
    content='large content'
    digest="$(echo "$content" | sha256sum | cut -c 1-64)"
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 14\n' "$digest" > a.bin
    cp a.bin b.bin
    printf '*.up filter=up\n*.bin filter=lfs diff=lfs merge=lfs -text\n' > .gitattributes
    git config filter.up.clean 'tr a-z A-Z'; git config filter.up.smudge 'tr A-Z a-z'
    echo text > a.up; echo text > b.up
    git add -A; {COMMIT}; rm a.up b.up; git checkout -q .
    git config filter.lfs.clean false; git config filter.lfs.required true
    echo "$content" > a.bin; echo "$content" > b.bin
    """
    subprocess.run(["bash", "-ec", script], check=True)
    with sandbox.start(SandboxSpec(backend="process", directory=root, owner="test-filters")) as live:
        base = head_commit(live)
        assert patch_since(live, base) == Patch()
        check_output(live, "echo more >> b.bin; echo more >> b.up")
        patch = patch_since(live, base)
    assert list_paths(patch) == ["b.bin", "b.up"]
    assert "+large content\n+more\n" in patch.text


@pytest.mark.parametrize("more", ["", "; git add -A"])
def test_a_link_that_git_refuses_is_left_out(live_sandbox: Sandbox, more: str) -> None:
    check_output(live_sandbox, f"echo > .gitmodules; git add -A; {COMMIT}")
    base = head_commit(live_sandbox)
    check_output(live_sandbox, "ln -sf README.txt .gitmodules; echo more >> README.txt" + more)
    patch = patch_since(live_sandbox, base)
    assert left_out(patch) == {".gitmodules": "git refuses a link with this name"}
    assert list_paths(patch) == ["README.txt"]


AUTOCRLF = ("git config core.autocrlf true", "git config core.autocrlf input")


@pytest.mark.parametrize("setting", [*AUTOCRLF, "echo '* text=auto' > .git/info/attributes"])
def test_a_committed_crlf_stays(live_sandbox: Sandbox, setting: str) -> None:
    check_output(
        live_sandbox,
        f"printf 'a\\r\\nb\\r\\n' > dos.txt; printf 'a\\r\\nb\\n' > mixed.txt; git add -A; {COMMIT}",
    )
    base = head_commit(live_sandbox)
    check_output(live_sandbox, f"{setting}; touch mixed.txt; sed -i s/b/c/ dos.txt")
    patch = patch_since(live_sandbox, base)
    assert list_lines(patch) == ["-b\r", "+c\r"]
