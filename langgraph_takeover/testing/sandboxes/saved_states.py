"""The contract of every sandbox, third part: taking and restoring snapshots, and cleaning up."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest

from langgraph_takeover.sandbox.interface import (
    BackendName,
    Sandbox,
    SandboxUnavailableError,
    Snapshot,
    SnapshotCorruptError,
)
from langgraph_takeover.testing.sandboxes.kit import Kit, check_output, home_directory, run, temp_directory

SUCCESSORS = 16
CHAIN = 12
_STATE = """
cd pkg; x=$'a b\\n\\377"'; export Y='*'; z=(1 '2 3'); declare -A m=([k]=v); readonly R=r
f() { echo "f:$1"; }; g() { case $1 in @(a|b)) echo ab;; esac; }; alias ll='echo listed'
shopt -s expand_aliases nullglob; umask 027; set -o pipefail; big=$(head -c 200000 /dev/zero | tr '\\0' y)
trap 'echo bye' EXIT; cd ../tools; cd ../pkg; set -x
"""
_SHOW_STATE = """
pwd; printf '%s' "$x" | od -An -tx1; bash -c 'echo "$Y"'; echo "${z[1]} ${m[k]} $R"; f 1; g b
ll; umask; shopt nullglob; set -o | grep pipefail; echo ${#big}; trap -p EXIT; cd -
"""

_FULL_DIGEST = r"""
find . \( -name __pycache__ -o -name .pytest_cache \) -prune -o -printf '%p %y %m %l\n' | sort
find . \( -name __pycache__ -o -name .pytest_cache \) -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
"""


_COMMANDS = (
    "true",
    "cat pkg/mod.py; grep -r import . | sort",
    "cd pkg; x=1; cd ..",
    "touch new; rm new; mkdir new; rmdir new",
    "mkdir -p pkg/__pycache__ .pytest_cache/v; date +%N | tee pkg/__pycache__/mod.pyc .pytest_cache/v/last",
    "chmod u+x pkg/mod.py; chmod u-x pkg/mod.py",
    "echo 1 >> pkg/mod.py",
    "cp -p pkg/mod.py x; sed -i s/a/b/ x; touch -r pkg/mod.py x; mv x pkg/mod.py",
    "chmod 700 pkg",
    "mkdir empty",
    "rm -r docs; mkdir docs",
    "ln -s mod.py pkg/link",
    "mkfifo pipe",
    "mv pkg/mod.py pkg/moved.py",
    "git tag new",
)


def test_unsaved_changes_agree_with_a_full_digest(kit: Kit, fresh_sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox, seen = fresh_sandbox, set()
    for number, command in enumerate(_COMMANDS):
        time.sleep(0.03)  # a file that has just changed may change again within a tick of the clock
        sandbox.snapshot(tmp_path / str(number)).result()
        can_tell = not sandbox.has_unsaved_changes()
        assert can_tell or kit.backend not in get_args(BackendName)
        before = sandbox.inspect(_FULL_DIGEST).output
        run(sandbox, command)
        is_different = sandbox.inspect(_FULL_DIGEST).output != before
        seen.add(is_different)
        if is_different or not can_tell:
            assert sandbox.has_unsaved_changes(), command
        elif "chmod" not in command:  # a file whose times changed counts as changed
            assert not sandbox.has_unsaved_changes(), command
    assert seen == {True, False}


def test_the_shell_state_is_restored(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    run(fresh_sandbox, "shopt -s extglob")
    run(fresh_sandbox, _STATE)
    snapshot = fresh_sandbox.snapshot(store).result()
    restored = kit.restore(snapshot, store)
    assert restored.cwd() == f"{restored.workspace}/pkg"
    assert check_output(restored, "set +x") == "++ set +x\n"
    lines = check_output(restored, _SHOW_STATE).splitlines()
    assert lines == [
        f"{restored.workspace}/pkg",
        " 61 20 62 0a ff 22",
        "*",
        "2 3 v r",
        "f:1",
        "ab",
        "listed",
        "0027",
        "nullglob       \ton",
        "pipefail       \ton",
        "200000",
        "trap -- 'echo bye' EXIT",
        f"{restored.workspace}/tools",
    ]


def test_snapshots_in_one_directory_stay_apart(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    snapshots = []
    for text in ("first", "second", "second"):
        run(fresh_sandbox, f"echo {text} > note")
        snapshots.append(fresh_sandbox.snapshot(store).result())
    for snapshot, text in zip(snapshots, ("first", "second", "second"), strict=True):
        assert check_output(kit.restore(snapshot, store), "cat note") == f"{text}\n"


def test_the_reported_shell_state_equals_the_snapshots(fresh_sandbox: Sandbox, store: Path) -> None:
    assert fresh_sandbox.run("cd /tmp; SAID='one two'", timeout_s=20).exit_code == 0
    first, kept = fresh_sandbox.shell_state(), fresh_sandbox.snapshot(store).result().shell_state
    # Bash sets some of its own variables only on first use.
    changed = set(first.splitlines()) ^ set(kept.splitlines())
    assert all("BASH" in line for line in changed)
    assert any("SAID" in line for line in first.splitlines())
    fresh_sandbox.run("cd /; SAID=three", timeout_s=20)
    assert "one two" not in fresh_sandbox.shell_state()


def test_a_shell_that_the_agent_broke_does_not_stop_a_snapshot(
    kit: Kit, fresh_sandbox: Sandbox, store: Path
) -> None:
    tricks = "trap 'echo debug >&2' DEBUG; declare() { exit 3; }; set() { :; }; enable -n trap shopt"
    run(
        fresh_sandbox,
        f"echo kept > note; cd pkg; {tricks}; alias printf=false builtin=exit; set -eu -o posix; x=1",
    )
    restored = kit.restore(fresh_sandbox.snapshot(store).result(), store)
    assert restored.read_file("note") == b"kept\n"
    assert restored.cwd() == f"{restored.workspace}/pkg"


def test_home_and_temporary_files_are_restored(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    check_output(fresh_sandbox, 'echo h > "$HOME/h"; echo t > "${TMPDIR:-/tmp}/t"; place="$HOME/h"')
    restored = kit.restore(fresh_sandbox.snapshot(store).result(), store)
    fresh_sandbox.close()
    assert check_output(restored, 'cat "$HOME/h" "${TMPDIR:-/tmp}/t" "$place"') == "h\nt\nh\n"


_LIST_TREE_COMMAND = r"find {roots} -xdev -name .git -prune -o -printf '%p %y %m %s %T@ %l\n' | sort"


def test_every_file_is_restored(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    check_output(
        fresh_sandbox,
        """
        mkdir -p empty/dir build; echo i > build/ignored; echo l > x.log; chmod 4750 tools/run.sh
        chmod 000 README.txt; chmod 1770 empty; ln -s nowhere dangling; ln data.bin hard
        python3 -c 'import os; os.mkfifo("fifo")'
        echo n > $'new\\nline'; echo b > $'caf\\xe9'; rm docs/*; git rm -q --cached pkg/mod.py
        mkdir -p "$HOME/.config/deep" "${TMPDIR:-/tmp}/kept"; echo h > "$HOME/.config/deep/h"
        echo t > "${TMPDIR:-/tmp}/kept/t"; head -c 3000000 /dev/urandom > random; truncate -s 5M sparse
        touch -d '2020-02-02 02:02:02.123456789' stamped
        touch -d '2020-02-02 02:02:02.123456789' "$HOME/.config/deep"
        """,
    )
    snapshot = fresh_sandbox.snapshot(store).result()
    restored = kit.restore(snapshot, store)

    def list_tree(sandbox: Sandbox) -> list[str]:
        roots = (sandbox.workspace, home_directory(sandbox), temp_directory(sandbox))
        listed = sandbox.inspect(_LIST_TREE_COMMAND.format(roots=" ".join(roots))).output
        for name, root in zip(("W", "H", "T"), roots, strict=True):
            listed = listed.replace(root, name)
        if not kit.has_exact_times:
            # Layers may keep whole seconds, and `/tmp` and the home change with every start.
            listed = "\n".join(line for line in listed.splitlines() if " d " not in line)
            listed = re.sub(r"(?<= \d{10})\.\d+", "", listed)
        return listed.splitlines()

    assert list_tree(restored) == list_tree(fresh_sandbox)
    sums = "find . -type f ! -name README.txt -exec sha256sum {} + | sort"
    assert restored.inspect(sums).output == fresh_sandbox.inspect(sums).output
    status = "git status --porcelain --ignored"
    assert restored.inspect(status).output == fresh_sandbox.inspect(status).output
    assert restored.changes() == ()


def test_a_socket_in_the_sandbox(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    check_output(
        fresh_sandbox,
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; test -S sock",
    )
    restored = kit.restore(fresh_sandbox.snapshot(store).result(), store)
    assert check_output(restored, "cat README.txt") == "a small repository\n"


def test_two_restores_do_not_see_each_other(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    check_output(fresh_sandbox, "echo frozen > state")
    snapshot = fresh_sandbox.snapshot(store).result()
    check_output(fresh_sandbox, "echo went on > state; touch only-first")
    one, two = kit.restore(snapshot, store), kit.restore(snapshot, store)
    check_output(one, 'echo one > state; echo one > "$HOME/private"; touch only-one')
    assert check_output(two, 'cat state; ls "$HOME"; ls only-* 2>/dev/null || :') == "frozen\n"
    assert check_output(fresh_sandbox, "cat state; ls only-*") == "went on\nonly-first\n"
    again = kit.restore(Snapshot.model_validate_json(snapshot.model_dump_json()), store)
    assert check_output(again, "cat state") == "frozen\n"


def test_the_sandbox_continues_after_a_snapshot(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    check_output(fresh_sandbox, "x=kept; cd pkg; touch edited")
    check_output(
        fresh_sandbox, "while :; do date +%N > $HOME/b; mv $HOME/b $HOME/beat; sleep .02; done & echo on"
    )
    fresh_sandbox.snapshot(store).result()
    assert check_output(fresh_sandbox, "echo $x; pwd") == f"kept\n{fresh_sandbox.workspace}/pkg\n"
    assert "pkg/edited" in [change.path for change in fresh_sandbox.changes()]
    beat = check_output(fresh_sandbox, "cat $HOME/beat")
    time.sleep(0.2)
    assert check_output(fresh_sandbox, "cat $HOME/beat") != beat
    second = fresh_sandbox.snapshot(store / "second").result()
    assert second.location


def test_a_restored_sandbox_can_be_snapshotted(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    check_output(fresh_sandbox, "echo 1 > one")
    second = kit.restore(fresh_sandbox.snapshot(store / "1").result(), store / "1")
    check_output(second, "echo 2 > two; rm README.txt")
    third = kit.restore(second.snapshot(store / "2").result(), store / "2")
    assert check_output(third, "cat one two; ls README.txt 2>/dev/null || :") == "1\n2\n"


def test_changes_are_relative_to_the_restore(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    check_output(fresh_sandbox, "echo 1 > before")
    restored = kit.restore(fresh_sandbox.snapshot(store).result(), store)
    assert restored.changes() == ()
    check_output(restored, "echo 2 > after")
    assert [change.path for change in restored.changes()] == ["after"]


def test_a_lost_or_changed_snapshot(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    snapshot = fresh_sandbox.snapshot(store).result()
    with pytest.raises(SnapshotCorruptError):
        kit.restore(snapshot.model_copy(update={"digest": "sha256:" + "0" * 64}), store)
    with pytest.raises(SnapshotCorruptError):
        kit.restore(snapshot.model_copy(update={"location": "sha256:" + "0" * 64}), store)
    if snapshot.location.startswith("sha256:"):
        kit.remove_stale_resources(kit.owner)
        with pytest.raises(SnapshotCorruptError):
            kit.restore(snapshot, store)
        return
    archive = store / snapshot.location
    whole = archive.read_bytes()
    position = len(whole) // 2
    damages = {
        "changed": whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :],
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "noise": secrets.token_bytes(2000),
    }
    for damage in damages.values():
        archive.write_bytes(damage)
        with pytest.raises(SnapshotCorruptError):
            kit.restore(snapshot, store)
    archive.unlink()
    with pytest.raises(SnapshotCorruptError):
        kit.restore(snapshot, store)
    archive.write_bytes(whole)
    assert check_output(kit.restore(snapshot, store), "cat README.txt") == "a small repository\n"


def test_nothing_is_left_behind(kit: Kit) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    sandbox = kit.start(owner=owner)
    check_output(
        sandbox,
        f"""
        beat() {{ bash -c 'sleep 1000; :' {owner}; }}
        beat & setsid bash -c 'sleep 1000; :' {owner} >/dev/null 2>&1 &
        (setsid bash -c 'sleep 1000; :' {owner} >/dev/null 2>&1 &)
        (nohup bash -c 'trap "" TERM HUP; sleep 1000; :' {owner} >/dev/null 2>&1 &)
        mkdir -p locked/in; touch locked/in/f; chmod 000 locked/in locked; ln -s / root
        """,
    )
    assert kit.find_stale_resources(owner)
    sandbox.close()
    sandbox.close()
    assert kit.find_stale_resources(owner) == set()
    kit.remove_stale_resources(owner)


def test_an_unavailable_sandbox(kit: Kit) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    base = "image" if kit.spec().image else "directory"
    with pytest.raises(SandboxUnavailableError):
        kit.start(owner=owner, **{base: "/no/such-base"})
    with pytest.raises(SandboxUnavailableError):
        kit.start(owner=owner, shell_init="exit 1")
    assert kit.find_stale_resources(owner) == set()
    kit.remove_stale_resources(owner)


def test_a_killed_runs_stale_resources_are_removed(kit: Kit, store: Path) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    with kit.close_started():
        sandbox = kit.start(owner=owner)
        snapshot = sandbox.snapshot(store).result()
        sandbox.close()
    kit.remove_stale_resources(owner, kept_images=(snapshot.location,))
    with kit.close_started():
        assert (
            check_output(kit.restore(snapshot, store, owner=owner), "cat README.txt")
            == "a small repository\n"
        )
    kit.remove_stale_resources(owner)
    assert kit.find_stale_resources(owner) == set()
    if snapshot.location.startswith("sha256:"):
        with pytest.raises(SnapshotCorruptError):
            kit.restore(snapshot, store)


def test_a_sandbox_left_open_by_its_run_is_removed(kit: Kit) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    with kit.close_started():
        sandbox = kit.start(owner=owner)
        check_output(sandbox, f"(setsid bash -c 'sleep 1000; :' {owner} >/dev/null 2>&1 &)")
        assert kit.find_stale_resources(owner)
        kit.remove_stale_resources(owner)
        if kit.backend != "host":  # The run's end, and nothing earlier, ends its processes.
            assert kit.find_stale_resources(owner) == set()
        with pytest.raises(SandboxUnavailableError):
            sandbox.changes()
    assert kit.find_stale_resources(owner) == set()


def test_sixteen_successors_at_once(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    check_output(fresh_sandbox, "echo frozen > state; x=carried")
    snapshot = fresh_sandbox.snapshot(store).result()

    def succeed(number: int) -> str:
        with contextlib.closing(kit.restore(snapshot, store)) as successor:
            check_output(successor, f"echo {number} $x >> state; rm README.txt; echo {number} > pkg/mod.py")
            barrier.wait(timeout=240)
            paths = [change.path for change in successor.changes()]
            assert paths == ["README.txt", "pkg/mod.py", "state"]
            return check_output(successor, "cat state pkg/mod.py")

    barrier = threading.Barrier(SUCCESSORS)
    with ThreadPoolExecutor(SUCCESSORS) as threads:
        told_by_all = list(threads.map(succeed, range(SUCCESSORS)))
    assert told_by_all == [f"frozen\n{n} carried\n{n}\n" for n in range(SUCCESSORS)]
    assert check_output(fresh_sandbox, "cat state; ls README.txt") == "frozen\nREADME.txt\n"


def test_a_long_chain_of_snapshots(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    for number in range(CHAIN):
        check_output(
            fresh_sandbox, f"echo {number} > step; echo {number} > step-{number}; rm -f step-{number - 1}"
        )
        kept = fresh_sandbox.snapshot(store / str(number))
    assert [change.path for change in fresh_sandbox.changes()] == ["step", f"step-{CHAIN - 1}"]
    restored = kit.restore(kept.result(), store / str(CHAIN - 1))
    assert check_output(restored, "cat step; ls step-*") == f"{CHAIN - 1}\nstep-{CHAIN - 1}\n"


def test_an_unwritable_store(kit: Kit, fresh_sandbox: Sandbox, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory\n")
    check_output(fresh_sandbox, "echo 1 > one; x=kept")
    if kit.spec().snapshots != "commit":
        with pytest.raises(SandboxUnavailableError):
            fresh_sandbox.snapshot(blocked / "store").result()
    assert check_output(fresh_sandbox, "cat one; echo $x") == "1\nkept\n"
    restored = kit.restore(fresh_sandbox.snapshot(tmp_path / "store").result(), tmp_path / "store")
    assert check_output(restored, "cat one") == "1\n"
