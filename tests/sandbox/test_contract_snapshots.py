"""The contract of every machine, third part: freezing, thawing, and leaving nothing behind."""

from __future__ import annotations

import secrets
import tempfile
import time
from pathlib import Path

import psutil
import pytest

import sandbox
from sandbox.machine import Sandbox, SandboxUnavailable, Snapshot, SnapshotCorrupt

from .conftest import Kit, home, run, tmp, told

_STATE = """
cd pkg; x=$'a b\\n\\377"'; export Y='*'; z=(1 '2 3'); declare -A m=([k]=v); readonly R=r
f() { echo "f:$1"; }; g() { case $1 in @(a|b)) echo ab;; esac; }; alias ll='echo listed'
shopt -s expand_aliases nullglob; umask 027; set -o pipefail; big=$(head -c 200000 /dev/zero | tr '\\0' y)
trap 'echo debug' DEBUG; set -x
"""
_SHOW_STATE = """
pwd; printf '%s' "$x" | od -An -tx1; bash -c 'echo "$Y"'; echo "${z[1]} ${m[k]} $R"; f 1; g b
ll; umask; shopt nullglob; set -o | grep pipefail; echo ${#big}
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store" / "deep"


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
    ]


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
        if kit.backend == "docker":
            # The daemon's layers keep whole seconds, and `/tmp` and `/root` change with every start.
            listed = "\n".join(line for line in listed.splitlines() if " d " not in line)
            listed = listed.replace(".1234567890", ".0000000000")
        return listed.splitlines()

    if kit.backend == "docker":
        stamps = "stat -c '%Y %n' stamped pkg/mod.py random"
        assert thawed.inspect(stamps).output == fresh.inspect(stamps).output
        shape = "find . /root /tmp -xdev -name .git -prune -o -printf '%p %y %m %s %l\\n' | sort"
        assert thawed.inspect(shape).output == fresh.inspect(shape).output
    else:
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
    told(fresh, "while :; do date +%N > $HOME/beat; sleep .02; done & echo on")
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


def test_a_snapshot_that_is_gone_or_changed(kit: Kit, store: Path) -> None:
    snapshot = kit.start(snapshots="commit").freeze(store).result()
    with pytest.raises(SnapshotCorrupt):
        kit.thaw(snapshot.model_copy(update={"digest": "sha256:" + "0" * 64}), store)
    with pytest.raises(SnapshotCorrupt):
        kit.thaw(snapshot.model_copy(update={"location": "sha256:" + "0" * 64}), store)
    if kit.backend == "docker":
        from sandbox.container import client

        client().images.remove(snapshot.location, force=True)
        with pytest.raises(SnapshotCorrupt):
            kit.thaw(snapshot, store)
        return
    archive = store / snapshot.location
    whole = archive.read_bytes()
    place = whole.index(b"a small repository")
    damages = {
        "changed": whole[:place] + b"A" + whole[place + 1 :],
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


def left_behind(kit: Kit, seconds: str) -> list[str]:
    """Directories, processes and containers that belong to the kit's machines."""
    found = [str(path) for path in Path(tempfile.gettempdir()).glob(f"takeover-{kit.owner}-*")]
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == ["sleep", seconds] and process.status() != psutil.STATUS_ZOMBIE:
            found.append(str(process))
    if kit.backend == "docker":
        from sandbox.container import OWNER_LABEL, client

        mine = {"label": f"{OWNER_LABEL}={kit.owner}"}
        found += [container.name for container in client().containers.list(all=True, filters=mine)]
    return found


def test_nothing_is_left_behind(kit: Kit) -> None:
    before = set(left_behind(kit, "-"))
    seconds = f"{secrets.randbelow(10**6) + 10**6}"
    machine = kit.start()
    told(
        machine,
        f"""
        sleep {seconds} & setsid sleep {seconds} >/dev/null 2>&1 &
        (setsid sleep {seconds} >/dev/null 2>&1 &); (nohup sleep {seconds} >/dev/null 2>&1 &)
        mkdir -p locked/in; touch locked/in/f; chmod 000 locked/in locked; ln -s / root
        """,
    )
    assert len(set(left_behind(kit, seconds)) - before) > 0
    machine.close()
    machine.close()
    assert set(left_behind(kit, seconds)) - before == set()


@pytest.mark.parametrize("lost", [{"directory": Path("/no/such/directory"), "image": "no/such-image:x"}])
def test_a_machine_that_cannot_be_had(kit: Kit, lost: dict[str, object]) -> None:
    before = set(left_behind(kit, "-"))
    with pytest.raises(SandboxUnavailable):
        kit.start(**lost)
    with pytest.raises(SandboxUnavailable):
        kit.start(shell_init="exit 1")
    assert set(left_behind(kit, "-")) == before


def test_a_killed_runs_leftovers_are_removed(kit: Kit, store: Path) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    machine = kit.start(owner=owner, snapshots="commit")
    snapshot = machine.freeze(store).result()
    machine.close()
    sandbox.remove_leftovers(kit.backend, owner, keep=(snapshot.location,))
    assert told(kit.thaw(snapshot, store, owner=owner), "cat README.txt") == "a small repository\n"
    sandbox.remove_leftovers(kit.backend, owner)
    if kit.backend == "docker":
        with pytest.raises(SnapshotCorrupt):
            kit.thaw(snapshot, store)
    else:
        assert list(Path(tempfile.gettempdir()).glob(f"takeover-{owner}-*")) == []


def test_a_machine_that_its_run_did_not_close_is_removed(kit: Kit) -> None:
    if kit.backend == "host":
        pytest.skip("bubblewrap's processes die with the run that started them")
    owner = f"test-{secrets.token_hex(4)}"
    seconds = f"{secrets.randbelow(10**6) + 10**6}"
    with kit.ended():
        machine = kit.start(owner=owner)
        told(machine, f"(setsid sleep {seconds} >/dev/null 2>&1 &); sleep {seconds} &")
        assert left_behind(kit, seconds)
        sandbox.remove_leftovers(kit.backend, owner)
        assert not [found for found in left_behind(kit, seconds) if "sleep" in found]
        assert list(Path(tempfile.gettempdir()).glob(f"takeover-{owner}-*")) == []
        with pytest.raises(SandboxUnavailable):
            machine.changes()
