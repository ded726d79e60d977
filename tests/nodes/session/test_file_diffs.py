"""Diffs of files that an action changed, in a real sandbox."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from langgraph_takeover.nodes.session.file_diffs import MAX_DIFF_CHARS, MAX_FILE_BYTES, FileDiffs
from langgraph_takeover.sandbox import start
from langgraph_takeover.sandbox.backends import host
from langgraph_takeover.sandbox.interface import Sandbox, SandboxSpec
from langgraph_takeover.sandbox.repository import head_commit

from ...conftest import skip_missing

KEY = "sk-abcdefghijklmnop1234567890"


class DiffSandbox(NamedTuple):
    """A sandbox with its diffs."""

    sandbox: Sandbox
    diffs: FileDiffs
    commit: str
    has_lower_layers: bool
    """Whether the files before the action are in layers; a plain process works on a copy."""

    def act(self, command: str) -> str:
        """Run a command, and return the diff of its changes."""
        result = self.sandbox.run(command, timeout_s=30)
        assert result.exit_code == 0, result.output
        return self.diffs.describe(self.sandbox, self.sandbox.changes(), self.commit)


@pytest.fixture(params=["process", "host"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DiffSandbox]:
    if request.param == "host" and (reason := host.unavailable_reason()):
        skip_missing(reason)
    base = tmp_path / "base"
    base.mkdir()
    (base / "numbers.txt").write_text("".join(f"{number}\n" for number in range(1, 41)))
    (base / "empty.txt").touch()
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(base)]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"]):
        subprocess.run([*git, *command], check=True)
    with start(SandboxSpec(backend=request.param, directory=base, owner="test-diffs")) as sandbox:
        yield DiffSandbox(sandbox, FileDiffs(), head_commit(sandbox), request.param == "host")


def test_an_edit_starts_from_the_base_commit_and_then_from_the_last_step(bench: DiffSandbox) -> None:
    assert bench.act("sed -i 's/^20$/twenty/' numbers.txt") == (
        "--- a/numbers.txt\n+++ b/numbers.txt\n@@ -17,7 +17,7 @@\n 17\n 18\n 19\n-20\n+twenty\n 21\n 22\n 23\n"
    )
    second = bench.act("sed -i 's/^twenty$/20th/; s/^1$/one/' numbers.txt")
    assert "-twenty\n+20th\n" in second
    assert second.count("@@ -") == 2
    assert "@@ -1,4 +1,4 @@\n-1\n+one\n 2\n" in second


def test_git_applies_the_diff(bench: DiffSandbox, tmp_path: Path) -> None:
    before = bench.sandbox.read_file("numbers.txt")
    command = "sed -i '5d; s/^12$/a\\nb/; $a end' numbers.txt; printf 'no line feed' > new.txt; printf x > empty.txt"
    patch = bench.act(command)
    assert patch.count("\\ No newline at end of file\n") == 2
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "numbers.txt").write_bytes(before)
    (copy / "empty.txt").touch()
    subprocess.run(["git", "apply"], cwd=copy, input=patch.encode(), check=True)
    for name in ("numbers.txt", "new.txt", "empty.txt"):
        assert (copy / name).read_bytes() == bench.sandbox.read_file(name)


def test_created_deleted_renamed_files_and_permissions(bench: DiffSandbox) -> None:
    assert bench.act("echo hi > new.txt") == "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1,1 @@\n+hi\n"
    assert bench.act("chmod 700 new.txt").startswith("Permissions of new.txt: ")
    assert bench.act("rm new.txt") == "--- a/new.txt\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-hi\n"
    assert "rename from numbers.txt\nrename to moved.txt\n" in bench.act("mv numbers.txt moved.txt")
    assert bench.act("true") == ""


def test_a_file_outside_the_repository(bench: DiffSandbox) -> None:
    diff = bench.act('echo a > "${TMPDIR:-/tmp}/outside.txt"')
    assert diff.startswith("--- /dev/null\n+++ /")
    assert diff.endswith("/outside.txt\n@@ -0,0 +1,1 @@\n+a\n")


def test_a_change_since_a_snapshot_needs_no_base_commit(bench: DiffSandbox, tmp_path: Path) -> None:
    """The base commit does not have the file."""
    bench.act("echo draft > notes.txt")
    bench.sandbox.snapshot(tmp_path / "store").result()
    resumed = bench._replace(diffs=FileDiffs())
    diff = resumed.act("echo final > notes.txt")
    shown = "-draft\n+final\n" if bench.has_lower_layers else "unknown size before, 6 bytes after\n"
    assert diff.endswith(shown)


def test_binary_and_large_files_are_named_with_their_sizes(bench: DiffSandbox) -> None:
    first = bench.act(f"printf 'a\\0b' > data.bin; head -c {MAX_FILE_BYTES + 1} /dev/zero > large.txt")
    assert "of data.bin: no file before, 3 bytes after\n" in first
    assert f"of large.txt: no file before, {MAX_FILE_BYTES + 1:,} bytes after\n" in first
    second = bench.act("printf 'a\\0bc' > data.bin; echo >> large.txt")
    assert "of data.bin: 3 bytes before, 4 bytes after\n" in second
    assert (
        f"of large.txt: {MAX_FILE_BYTES + 1:,} bytes before, {MAX_FILE_BYTES + 2:,} bytes after\n" in second
    )


def test_the_diff_is_bounded_and_every_file_has_its_share(bench: DiffSandbox) -> None:
    diff = bench.act(
        "seq 1 20000 > a.txt; echo one > b.txt; for n in $(seq 1 40); do echo $n > many$n.txt; done"
    )
    assert len(diff) < MAX_DIFF_CHARS + 1000
    assert "characters left out …]\n--- /dev/null\n+++ b/b.txt\n" in diff
    assert diff.endswith("[… 22 more files changed …]\n")


def test_secrets_and_control_characters(bench: DiffSandbox) -> None:
    name = "'new\nline\033[31m.txt'"
    diff = bench.act(
        f"printf 'key = \"{KEY}\"\\n\\033[2J\\342\\200\\256\\n' > config.py; touch {name}; echo > {name}"
    )
    assert KEY not in diff
    assert "[redacted]" in diff
    assert "\x1b" not in diff
    assert "\u202e" not in diff
    assert "\\x1b[2J\\u202e" in diff
    assert "+++ b/new\\nline\\x1b[31m.txt\n" in diff


def test_a_key_of_several_lines_is_redacted(bench: DiffSandbox) -> None:
    lines = [secrets.token_hex(32) for _ in range(20)]
    block = "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----", ""])
    bench.sandbox.write_file("key.pem", block.encode())
    diff = bench.act("true")
    assert "+++ b/key.pem" in diff
    assert not any(line in diff for line in lines)


def test_a_link_to_a_host_file_is_not_read(bench: DiffSandbox, tmp_path: Path) -> None:
    (tmp_path / "host.txt").write_text("of the host\n")
    assert "of the host" not in bench.act(
        f"ln -s {tmp_path / 'host.txt'} link; ln -sf {tmp_path / 'host.txt'} empty.txt"
    )


def test_a_lying_repository_cannot_show_another_content(bench: DiffSandbox) -> None:
    """The agent replaces the base's object; the digest of the change does not match it."""
    bench.sandbox.run(
        "git replace $(git rev-parse HEAD:numbers.txt) $(echo fake | git hash-object -w --stdin)",
        timeout_s=30,
    )
    bench.sandbox.changes()
    object_file = "$(git rev-parse HEAD:numbers.txt | sed 's#^..#.git/objects/&/#')"
    diff = bench.act(f"rm -f {object_file}; echo 41 >> numbers.txt")
    assert "fake" not in diff
    shown = (
        " 40\n+41\n" if bench.has_lower_layers else "of numbers.txt: unknown size before, 114 bytes after\n"
    )
    assert diff.endswith(shown)


def test_files_of_earlier_steps_are_read_once_after_a_resume(bench: DiffSandbox) -> None:
    bench.act("echo draft > notes.txt")
    digest = bench.sandbox.sha256("notes.txt")
    resumed = bench._replace(diffs=FileDiffs())
    resumed.diffs.read_differences(bench.sandbox, {"notes.txt": (None, digest)})
    assert resumed.act("echo final > notes.txt").endswith("-draft\n+final\n")


def test_hostile_lines_are_compared_quickly(bench: DiffSandbox) -> None:
    """Comparing them line by line takes more than a minute."""
    bench.act("seq 1 7000 > lines.txt")
    started = time.monotonic()
    diff = bench.act("for n in $(seq 1 7000); do echo n$n; echo $n; done > lines.txt")
    assert time.monotonic() - started < 20
    assert len(diff) < MAX_DIFF_CHARS + 100
