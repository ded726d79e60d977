"""Programs in a complete system that belongs to the agent, and directories that cannot be mounted."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.backends import overlay, warm_shells
from langgraph_takeover.sandbox.interface import ProgramMount, SandboxSpec, SandboxUnavailableError
from langgraph_takeover.testing.sandboxes import PROGRAM, Kit, check_output, greet, make_program, run

from ...conftest import skip_missing
from ..conftest import disable_overlays, open_kit
from ..ordinary_user import make_user_directory, run_python_as_user


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ProgramMount:
    return make_program(tmp_path_factory.mktemp("programs") / "greeter", "this host")


@pytest.fixture(scope="module")
def kit(repository: Path, testbed_image: Any) -> Iterator[Kit]:
    """Complete systems that `host` layers over an image."""
    with open_kit("host-image", repository, testbed_image) as found:
        if reason := overlay.unavailable_reason():
            skip_missing(reason)
        yield found


@pytest.fixture(scope="module")
def copied_kit(kit: Kit) -> Iterator[Kit]:
    """Complete systems that `host` copies."""
    copied = Kit(
        kit.spec().model_dump(),
        start=disable_overlays(sandbox.start),
        restore=disable_overlays(sandbox.restore),
    )
    yield copied
    copied.remove_stale_resources(copied.owner)


@pytest.mark.parametrize(
    "inside",
    [
        "",
        "/",
        "opt/takeover/x",
        "/opt/takeover",
        "/opt/takeover/",
        "/opt/takeover/x/",
        "/opt/takeover/x/y",
        "/opt/takeover/..",
        "/opt/takeover/.hidden",
        "/opt/takeover//x",
        "/opt/takeover/../bin",
        "/opt/./takeover/x",
        "/usr/bin",
        "/opt/takeover/x\n",
        "/opt/takeover/x y",
        "/opt/takeover/x:y",
        "/opt/takeover/x,y",
        "/opt/takeover/" + "x" * 101,
    ],
)
def test_an_invalid_path_inside(inside: str) -> None:
    with pytest.raises(ValidationError):
        ProgramMount(directory=Path("/usr"), inside=inside)


def test_two_programs_with_one_path(tmp_path: Path) -> None:
    programs = tuple(ProgramMount(directory=tmp_path / name, inside=PROGRAM) for name in ("a", "b"))
    with pytest.raises(ValidationError, match="two programs have the same path inside"):
        SandboxSpec(backend="host", directory=tmp_path, programs=programs)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("is_copied", [False, True])
def test_a_complete_systems_snapshot_contains_no_program(
    kit: Kit, copied_kit: Kit, program: ProgramMount, tmp_path: Path, is_copied: bool, is_busy: bool
) -> None:
    used = copied_kit if is_copied else kit
    with used.close_started():
        started = used.start(programs=(program,))
        assert started.changes() == ()
        if is_busy:
            check_output(started, f"(while :; do {PROGRAM}/bin/greet; sleep .02; done) >/dev/null 2>&1 &")
        check_output(started, "echo 1 > new.txt")
        snapshot = started.snapshot(tmp_path).result()
        assert greet(started) == "hello from this host\n"
        assert [change.path for change in started.changes()] == ["new.txt"]
        names = subprocess.run(
            ["tar", "--zstd", "-tf", tmp_path / snapshot.location], capture_output=True, text=True, check=True
        ).stdout
        assert "new.txt" in names
        assert not [name for name in names.splitlines() if "greet" in name and not name.endswith("/")]
        assert greet(used.restore(snapshot, tmp_path, programs=(program,))) == "hello from this host\n"
        without = used.restore(snapshot, tmp_path)
        assert check_output(without, "cat new.txt; find /opt/takeover -type f") == "1\n"


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "trick",
    [
        "rm -rf /opt; ln -s /tmp /opt",
        "rm -rf /opt; ln -s /oldroot/tmp /opt",
        "rm -rf /opt; ln -s /../../proc /opt",
        "mkdir -p /opt; rm -rf /opt/takeover; ln -s ../../tmp /opt/takeover",
        "mkdir -p /opt/takeover; ln -s /usr /opt/takeover/greeter",
        "mkdir -p /opt/takeover; ln -s nowhere /opt/takeover/greeter",
        "mkdir -p /opt; echo file > /opt/takeover",
        "mkdir -p /opt/takeover; echo file > /opt/takeover/greeter",
    ],
)
def test_a_link_or_a_file_in_the_way_is_refused(
    kit: Kit, program: ProgramMount, tmp_path: Path, trick: str
) -> None:
    places = [Path(place, name) for place in ("/tmp", "/opt", "/usr") for name in ("takeover", "greeter")]
    before = [path for path in places if path.exists()]
    with kit.close_started():
        attacker = kit.start()
        check_output(attacker, trick)
        snapshot = attacker.snapshot(tmp_path).result()
        with pytest.raises(
            SandboxUnavailableError, match="programs of the sandbox cannot be mounted"
        ) as caught:
            kit.restore(snapshot, tmp_path, programs=(program,))
        assert "\n" not in str(caught.value)
        assert check_output(kit.restore(snapshot, tmp_path), "cat README.txt") == "a small repository\n"
    assert [path for path in places if path.exists()] == before


def test_an_agent_that_renames_the_way_to_a_program(kit: Kit, program: ProgramMount) -> None:
    with kit.close_started():
        started = kit.start(programs=(program,))
        run(started, "mv /opt /elsewhere; ln -s /tmp /opt; mkdir -p /tmp/takeover/greeter")
        assert run(started, "exit 3").shell_ended
        assert (
            run(started, f"echo x > /elsewhere/takeover/greeter/bin/greet; {PROGRAM}/bin/greet").exit_code
            != 0
        )
        assert (program.directory / "bin/greet").read_text().startswith("#!/bin/sh")


def test_a_directory_that_is_closed_to_sandboxes(kit: Kit, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("sandboxes run as the user who starts them")
    program = make_program(tmp_path / "closed", "nobody")
    program.directory.chmod(0o700)
    with pytest.raises(
        SandboxUnavailableError, match=r"closed to user 1073741824.*\(chmod -R o\+rX"
    ) as caught:
        kit.start(programs=(program,))
    assert "\n" not in str(caught.value)


def test_a_directory_behind_a_link(kit: Kit, program: ProgramMount, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(program.directory)
    linked = program.model_copy(update={"directory": tmp_path / "link"})
    with kit.close_started():
        assert greet(kit.start(programs=(linked,))) == "hello from this host\n"


def test_a_file_system_below_a_program_stays_out(repository: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        skip_missing("only root mounts a file system")
    program = make_program(tmp_path / "greeter", "this host")
    below = program.directory / "a disk"
    below.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", below], check=True)
    try:
        (below / "secret").write_text("secret\n")
        with open_kit("host", repository, None) as kit:
            # The second one enters namespaces that were made after the mount.
            for _ in range(2):
                started = kit.start(programs=(program,))
                assert check_output(started, f"ls {PROGRAM}; ls {PROGRAM}/a*disk") == "a disk\nbin\nlibrary\n"
    finally:
        subprocess.run(["umount", below], check=True)


def test_a_file_system_mounted_after_the_first_sandbox(repository: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        skip_missing("only root mounts a file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    with open_kit("host", repository, None) as kit:
        kit.start()
        warm_shells.finish_preparing()  # the namespaces of the next one
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=True)
        try:
            program = make_program(disk / "greeter", "a new disk")
            with pytest.raises(SandboxUnavailableError) as caught:
                kit.start(programs=(program,))
            assert "try again" in str(caught.value)
            kit.start()
            assert greet(kit.start(programs=(program,))) == "hello from a new disk\n"
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)


_AS_ANYBODY = f"""
import json, socket, sys
from pathlib import Path
from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.interface import ProgramMount, SandboxSpec
repository, program, store = map(Path, sys.argv[1:])
spec = SandboxSpec(
    backend="host", directory=repository, owner="anybody",
    programs=(ProgramMount(directory=program, inside={PROGRAM!r}),),
)
live = sandbox.start(spec)
outputs = [live.run("{PROGRAM}/bin/greet; echo x >{PROGRAM}/bin/greet", timeout_s=30).output]
snapshot = live.snapshot(store).result()
restored = sandbox.restore(snapshot, store, spec)
with restored.listen(18377) as listener:
    restored.run("(exec 5<>/dev/tcp/127.0.0.1/18377; echo ping >&5; read -r answer <&5; echo $answer >answer) &", timeout_s=30)
    connection, _ = listener.accept()
    heard = connection.recv(99).decode()
    connection.sendall(b"pong\\n")
outputs.append(restored.run("wait; {PROGRAM}/bin/greet; cat answer", timeout_s=30).output)
try:
    socket.create_connection(("127.0.0.1", 18377), timeout=1)
    heard = "the host's loopback answered"
except OSError:
    pass
for each in (live, restored):
    each.close()
print(json.dumps({{"outputs": outputs, "heard": heard}}))
"""


@pytest.mark.slow
def test_as_an_ordinary_user(repository: Path) -> None:
    with make_user_directory() as directory:
        subprocess.run(["cp", "-a", repository, directory / "testbed"], check=True)
        make_program(directory / "greeter", "another user")
        (directory / "greeter").chmod(0o700)
        names = (directory / name for name in ("testbed", "greeter", "store"))
        found = json.loads(run_python_as_user(directory, "-c", _AS_ANYBODY, *names))
    assert found["heard"] == "ping\n"
    assert found["outputs"][0].startswith("hello from another user\n")
    assert "Read-only file system" in found["outputs"][0]
    assert found["outputs"][1].endswith("hello from another user\npong\n")
