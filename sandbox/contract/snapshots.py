"""The contract of every machine, third part: freezing, thawing, and leaving nothing behind."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox.contract.kit import Kit, home, run, tmp, told
from sandbox.machine import Sandbox, SandboxUnavailable, Snapshot, SnapshotCorrupt

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


def test_the_shell_is_carried_over(kit: Kit, fresh: Sandbox, store: Path) -> None:
    run(fresh, "shopt -s extglob")
    run(fresh, _STATE)
    snapshot = fresh.freeze(store).result()
    thawed = kit.thaw(snapshot, store)
    assert thawed.cwd() == f"{thawed.workspace}/pkg"
    assert told(thawed, "set +x") == "++ set +x\n"
    lines = told(thawed, _SHOW_STATE).splitlines()
    assert lines == [
        f"{thawed.workspace}/pkg",
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
        f"{thawed.workspace}/tools",
    ]


def test_the_state_of_the_shell_is_told_as_a_snapshot_keeps_it(fresh: Sandbox, store: Path) -> None:
    assert fresh.run("cd /tmp; SAID='one two'", timeout_s=20).exit_code == 0
    first, kept = fresh.shell_state(), fresh.freeze(store).result().shell_state
    # Bash gives some of its own variables a value only once somebody has asked for it.
    changed = set(first.splitlines()) ^ set(kept.splitlines())
    assert all("BASH" in line for line in changed)
    assert any("SAID" in line for line in first.splitlines())
    fresh.run("cd /; SAID=three", timeout_s=20)
    assert "one two" not in fresh.shell_state()


def test_a_shell_that_the_agent_broke_does_not_stop_a_freeze(kit: Kit, fresh: Sandbox, store: Path) -> None:
    tricks = "trap 'echo debug >&2' DEBUG; declare() { exit 3; }; set() { :; }; enable -n trap shopt"
    run(fresh, f"echo kept > note; cd pkg; {tricks}; alias printf=false builtin=exit; set -eu -o posix; x=1")
    thawed = kit.thaw(fresh.freeze(store).result(), store)
    assert thawed.read_file("note") == b"kept\n"
    assert thawed.cwd() == f"{thawed.workspace}/pkg"


def test_home_and_temporary_files_are_found_after_a_thaw(kit: Kit, fresh: Sandbox, store: Path) -> None:
    told(fresh, 'echo h > "$HOME/h"; echo t > "${TMPDIR:-/tmp}/t"; place="$HOME/h"')
    thawed = kit.thaw(fresh.freeze(store).result(), store)
    fresh.close()
    assert told(thawed, 'cat "$HOME/h" "${TMPDIR:-/tmp}/t" "$place"') == "h\nt\nh\n"


_TREE = r"find {roots} -xdev -name .git -prune -o -printf '%p %y %m %s %T@ %l\n' | sort"


def test_every_file_is_carried_over(kit: Kit, fresh: Sandbox, store: Path) -> None:
    told(
        fresh,
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
    snapshot = fresh.freeze(store).result()
    thawed = kit.thaw(snapshot, store)

    def tree(machine: Sandbox) -> list[str]:
        roots = (machine.workspace, home(machine), tmp(machine))
        listed = machine.inspect(_TREE.format(roots=" ".join(roots))).output
        for name, root in zip(("W", "H", "T"), roots, strict=True):
            listed = listed.replace(root, name)
        if not kit.exact_times:
            # Layers may keep whole seconds, and `/tmp` and the home change with every start.
            listed = "\n".join(line for line in listed.splitlines() if " d " not in line)
            listed = re.sub(r"(?<= \d{10})\.\d+", "", listed)
        return listed.splitlines()

    assert tree(thawed) == tree(fresh)
    sums = "find . -type f ! -name README.txt -exec sha256sum {} + | sort"
    assert thawed.inspect(sums).output == fresh.inspect(sums).output
    status = "git status --porcelain --ignored"
    assert thawed.inspect(status).output == fresh.inspect(status).output
    assert thawed.changes() == ()


def test_a_socket_in_the_machine(kit: Kit, fresh: Sandbox, store: Path) -> None:
    told(fresh, "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; test -S sock")
    thawed = kit.thaw(fresh.freeze(store).result(), store)
    assert told(thawed, "cat README.txt") == "a small repository\n"


def test_two_thaws_do_not_see_each_other(kit: Kit, fresh: Sandbox, store: Path) -> None:
    told(fresh, "echo frozen > state")
    snapshot = fresh.freeze(store).result()
    told(fresh, "echo went on > state; touch only-first")
    one, two = kit.thaw(snapshot, store), kit.thaw(snapshot, store)
    told(one, 'echo one > state; echo one > "$HOME/private"; touch only-one')
    assert told(two, 'cat state; ls "$HOME"; ls only-* 2>/dev/null || :') == "frozen\n"
    assert told(fresh, "cat state; ls only-*") == "went on\nonly-first\n"
    again = kit.thaw(Snapshot.model_validate_json(snapshot.model_dump_json()), store)
    assert told(again, "cat state") == "frozen\n"


def test_the_machine_goes_on_after_a_freeze(kit: Kit, fresh: Sandbox, store: Path) -> None:
    told(fresh, "x=kept; cd pkg; touch edited")
    told(fresh, "while :; do date +%N > $HOME/b; mv $HOME/b $HOME/beat; sleep .02; done & echo on")
    fresh.freeze(store).result()
    assert told(fresh, "echo $x; pwd") == f"kept\n{fresh.workspace}/pkg\n"
    assert "pkg/edited" in [change.path for change in fresh.changes()]
    beat = told(fresh, "cat $HOME/beat")
    time.sleep(0.2)
    assert told(fresh, "cat $HOME/beat") != beat
    second = fresh.freeze(store / "second").result()
    assert second.location


def test_a_thawed_machine_can_be_frozen(kit: Kit, fresh: Sandbox, store: Path) -> None:
    told(fresh, "echo 1 > one")
    second = kit.thaw(fresh.freeze(store / "1").result(), store / "1")
    told(second, "echo 2 > two; rm README.txt")
    third = kit.thaw(second.freeze(store / "2").result(), store / "2")
    assert told(third, "cat one two; ls README.txt 2>/dev/null || :") == "1\n2\n"


def test_what_changed_is_counted_from_the_thaw(kit: Kit, fresh: Sandbox, store: Path) -> None:
    told(fresh, "echo 1 > before")
    thawed = kit.thaw(fresh.freeze(store).result(), store)
    assert thawed.changes() == ()
    told(thawed, "echo 2 > after")
    assert [change.path for change in thawed.changes()] == ["after"]


def test_a_snapshot_that_is_gone_or_changed(kit: Kit, fresh: Sandbox, store: Path) -> None:
    snapshot = fresh.freeze(store).result()
    with pytest.raises(SnapshotCorrupt):
        kit.thaw(snapshot.model_copy(update={"digest": "sha256:" + "0" * 64}), store)
    with pytest.raises(SnapshotCorrupt):
        kit.thaw(snapshot.model_copy(update={"location": "sha256:" + "0" * 64}), store)
    if snapshot.location.startswith("sha256:"):
        kit.remove_leftovers(kit.owner)
        with pytest.raises(SnapshotCorrupt):
            kit.thaw(snapshot, store)
        return
    archive = store / snapshot.location
    whole = archive.read_bytes()
    place = len(whole) // 2
    damages = {
        "changed": whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :],
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "noise": secrets.token_bytes(2000),
    }
    for damage in damages.values():
        archive.write_bytes(damage)
        with pytest.raises(SnapshotCorrupt):
            kit.thaw(snapshot, store)
    archive.unlink()
    with pytest.raises(SnapshotCorrupt):
        kit.thaw(snapshot, store)
    archive.write_bytes(whole)
    assert told(kit.thaw(snapshot, store), "cat README.txt") == "a small repository\n"


def test_nothing_is_left_behind(kit: Kit) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    machine = kit.start(owner=owner)
    told(
        machine,
        f"""
        beat() {{ bash -c 'sleep 1000; :' {owner}; }}
        beat & setsid bash -c 'sleep 1000; :' {owner} >/dev/null 2>&1 &
        (setsid bash -c 'sleep 1000; :' {owner} >/dev/null 2>&1 &)
        (nohup bash -c 'trap "" TERM HUP; sleep 1000; :' {owner} >/dev/null 2>&1 &)
        mkdir -p locked/in; touch locked/in/f; chmod 000 locked/in locked; ln -s / root
        """,
    )
    assert kit.left_behind(owner)
    machine.close()
    machine.close()
    assert kit.left_behind(owner) == set()
    kit.remove_leftovers(owner)


def test_a_machine_that_cannot_be_had(kit: Kit) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    base = "image" if kit.spec().image else "directory"
    with pytest.raises(SandboxUnavailable):
        kit.start(owner=owner, **{base: "/no/such-base"})
    with pytest.raises(SandboxUnavailable):
        kit.start(owner=owner, shell_init="exit 1")
    assert kit.left_behind(owner) == set()
    kit.remove_leftovers(owner)


def test_a_killed_runs_leftovers_are_removed(kit: Kit, store: Path) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    with kit.ended():
        machine = kit.start(owner=owner)
        snapshot = machine.freeze(store).result()
        machine.close()
    kit.remove_leftovers(owner, keep=(snapshot.location,))
    with kit.ended():
        assert told(kit.thaw(snapshot, store, owner=owner), "cat README.txt") == "a small repository\n"
    kit.remove_leftovers(owner)
    assert kit.left_behind(owner) == set()
    if snapshot.location.startswith("sha256:"):
        with pytest.raises(SnapshotCorrupt):
            kit.thaw(snapshot, store)


def test_a_machine_that_its_run_did_not_close_is_removed(kit: Kit) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    with kit.ended():
        machine = kit.start(owner=owner)
        told(machine, f"(setsid bash -c 'sleep 1000; :' {owner} >/dev/null 2>&1 &)")
        assert kit.left_behind(owner)
        kit.remove_leftovers(owner)
        if kit.backend != "host":  # whose processes end with the run, and not before
            assert kit.left_behind(owner) == set()
        with pytest.raises(SandboxUnavailable):
            machine.changes()
    assert kit.left_behind(owner) == set()


def test_sixteen_successors_at_once(kit: Kit, fresh: Sandbox, store: Path) -> None:
    told(fresh, "echo frozen > state; x=carried")
    snapshot = fresh.freeze(store).result()

    def succeed(number: int) -> str:
        with contextlib.closing(kit.thaw(snapshot, store)) as successor:
            told(successor, f"echo {number} $x >> state; rm README.txt; echo {number} > pkg/mod.py")
            barrier.wait(timeout=120)
            paths = [change.path for change in successor.changes()]
            assert paths == ["README.txt", "pkg/mod.py", "state"]
            return told(successor, "cat state pkg/mod.py")

    barrier = threading.Barrier(SUCCESSORS)
    with ThreadPoolExecutor(SUCCESSORS) as threads:
        told_by_all = list(threads.map(succeed, range(SUCCESSORS)))
    assert told_by_all == [f"frozen\n{n} carried\n{n}\n" for n in range(SUCCESSORS)]
    assert told(fresh, "cat state; ls README.txt") == "frozen\nREADME.txt\n"


def test_a_long_chain_of_freezes(kit: Kit, fresh: Sandbox, store: Path) -> None:
    for number in range(CHAIN):
        told(fresh, f"echo {number} > step; echo {number} > step-{number}; rm -f step-{number - 1}")
        kept = fresh.freeze(store / str(number))
    assert [change.path for change in fresh.changes()] == ["step", f"step-{CHAIN - 1}"]
    thawed = kit.thaw(kept.result(), store / str(CHAIN - 1))
    assert told(thawed, "cat step; ls step-*") == f"{CHAIN - 1}\nstep-{CHAIN - 1}\n"


def test_a_store_that_cannot_be_written(kit: Kit, fresh: Sandbox, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory\n")
    told(fresh, "echo 1 > one; x=kept")
    if kit.spec().snapshots != "commit":
        with pytest.raises(SandboxUnavailable):
            fresh.freeze(blocked / "store").result()
    assert told(fresh, "cat one; echo $x") == "1\nkept\n"
    thawed = kit.thaw(fresh.freeze(tmp_path / "store").result(), tmp_path / "store")
    assert told(thawed, "cat one") == "1\n"
