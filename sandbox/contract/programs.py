"""The contract of every sandbox, sixth part: programs of this host, mounted read-only."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_takeover.sandbox.contract.kit import Kit, check_output, run
from langgraph_takeover.sandbox.interface import (
    FileAccessError,
    ProgramMount,
    Sandbox,
    SandboxUnavailableError,
)

PROGRAM = "/opt/takeover/greeter"
_SCRIPT = "#!/bin/sh\necho hello from {name}\n"
_LIBRARY_BYTES = 3 << 20


def make_program(directory: Path, name: str) -> ProgramMount:
    """Create a program with a library that no archive could compress away."""
    directory.mkdir()
    (directory / "bin").mkdir()
    (directory / "bin/greet").write_text(_SCRIPT.format(name=name))
    (directory / "library").write_bytes(secrets.token_bytes(_LIBRARY_BYTES))
    for path, mode in (
        (directory, 0o755),
        (directory / "bin", 0o755),
        (directory / "bin/greet", 0o755),
        (directory / "library", 0o644),
    ):
        path.chmod(mode)
    return ProgramMount(directory=directory, inside=PROGRAM)


@pytest.fixture(scope="session")
def program(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> ProgramMount:
    """A program in a directory whose parents are closed to other users."""
    if not kit.is_isolated:
        pytest.skip("this back end has no mounts")
    return make_program(tmp_path_factory.mktemp("programs") / "greeter", "this host")


@pytest.fixture(scope="session")
def program_sandbox(kit: Kit, program: ProgramMount) -> Iterator[Sandbox]:
    """One sandbox with a program for all tests that it survives."""
    with kit.close_started():
        yield kit.start(programs=(program,))


def list_contents(program: ProgramMount) -> dict[Path, tuple[int, bytes]]:
    """The program's files as they are on this host."""
    files = [path for path in program.directory.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mode, path.read_bytes()) for path in files}


def greet(sandbox: Sandbox) -> str:
    return check_output(sandbox, f"{PROGRAM}/bin/greet")


def test_a_program_runs(program_sandbox: Sandbox, program: ProgramMount) -> None:
    assert greet(program_sandbox) == "hello from this host\n"
    assert program_sandbox.inspect(f"{PROGRAM}/bin/greet").output == "hello from this host\n"
    assert program_sandbox.read_file(f"{PROGRAM}/library") == (program.directory / "library").read_bytes()


def test_several_programs(kit: Kit, program: ProgramMount, tmp_path: Path) -> None:
    other = make_program(tmp_path / "other", "the other").model_copy(update={"inside": "/opt/takeover/x.y-2"})
    with kit.close_started():
        sandbox = kit.start(programs=(program, other))
        assert greet(sandbox) == "hello from this host\n"
        assert check_output(sandbox, f"{other.inside}/bin/greet") == "hello from the other\n"


def test_a_program_is_read_only(program_sandbox: Sandbox, program: ProgramMount) -> None:
    before = list_contents(program)
    attempts = (
        f"echo x > {PROGRAM}/bin/greet",
        f"echo x >> {PROGRAM}/library",
        f"touch {PROGRAM}/new",
        f"rm -f {PROGRAM}/library",
        f"chmod 777 {PROGRAM}/bin/greet",
        f"ln {PROGRAM}/bin/greet {PROGRAM}/linked",
        f"mv {PROGRAM}/bin/greet /tmp/greet",
        f"rmdir {PROGRAM}",
        f"mount -o remount,rw {PROGRAM}",
        f"mount -o remount,bind,rw {PROGRAM}",
        f"umount {PROGRAM}",
        f"unshare -Urm mount -o remount,bind,rw {PROGRAM}",
    )
    for attempt in attempts:
        assert run(program_sandbox, attempt).exit_code != 0, attempt
    with pytest.raises(FileAccessError):
        program_sandbox.write_file(f"{PROGRAM}/bin/greet", b"x")
    assert list_contents(program) == before
    assert greet(program_sandbox) == "hello from this host\n"


def test_the_programs_host_directory_is_out_of_reach(program_sandbox: Sandbox, program: ProgramMount) -> None:
    place = program.directory.resolve()
    beside = place.parent / "beside"
    beside.write_text("beside the program\n")
    for path in (beside, place, place / "library"):
        for root in ("", "/proc/1/root", "/proc/self/root", "/proc/$$/root", "/proc/1/cwd"):
            assert run(program_sandbox, f"ls -d {root}{path}").exit_code != 0, (root, path)
    # The parent of a mount's root is the sandbox's own directory.
    assert run(program_sandbox, f"cat {PROGRAM}/../beside {PROGRAM}/bin/../../beside").exit_code != 0
    code = f'import os; d = os.open("{PROGRAM}", os.O_RDONLY); os.open("../beside", os.O_RDONLY, dir_fd=d)'
    assert "No such file" in run(program_sandbox, f"python3 -c '{code}'").output


def test_a_set_user_id_bit_of_a_program_gives_nothing(kit: Kit, tmp_path: Path) -> None:
    if not kit.is_isolated:
        pytest.skip("this back end has no mounts")
    program = make_program(tmp_path / "greeter", "this host")
    check = program.directory / "identify"
    check.write_bytes(Path("/usr/bin/id").read_bytes())
    if os.geteuid() == 0:
        os.chown(check, 54_321, 54_321)
    check.chmod(0o6755)
    with kit.close_started():
        sandbox = kit.start(programs=(program,))
        assert check_output(sandbox, f"{PROGRAM}/identify -u; {PROGRAM}/identify -g") == "0\n0\n"
        assert check_output(sandbox, "grep NoNewPrivs /proc/self/status").split() == ["NoNewPrivs:", "1"]


def test_a_program_is_no_change(kit: Kit, program: ProgramMount) -> None:
    with kit.close_started():
        sandbox = kit.start(programs=(program,))
        assert sandbox.changes() == ()
        greet(sandbox)
        check_output(sandbox, "echo 1 > new.txt")
        assert [change.path for change in sandbox.changes()] == ["new.txt"]
        assert sandbox.sha256(f"{PROGRAM}/library") is None


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_snapshot_contains_no_program(kit: Kit, program: ProgramMount, store: Path, is_busy: bool) -> None:
    with kit.close_started():
        sandbox = kit.start(programs=(program,))
        if is_busy:
            check_output(sandbox, f"(while :; do {PROGRAM}/bin/greet; sleep .02; done) >/dev/null 2>&1 &")
        check_output(sandbox, "echo 1 > new.txt")
        snapshot = sandbox.snapshot(store).result()
        assert greet(sandbox) == "hello from this host\n"
        archives = [path for path in store.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in archives) < _LIBRARY_BYTES
        assert str(program.directory) not in snapshot.model_dump_json()

        restored = kit.restore(snapshot, store, programs=(program,))
        assert greet(restored) == "hello from this host\n"
        assert restored.changes() == ()
        without = kit.restore(snapshot, store)
        assert check_output(without, "cat new.txt; find /opt/takeover -type f 2>/dev/null || :") == "1\n"
        assert run(without, f"ls {PROGRAM}/bin").exit_code != 0


def test_a_restored_sandbox_has_the_programs_of_its_spec(
    kit: Kit, program: ProgramMount, store: Path, tmp_path: Path
) -> None:
    other = make_program(tmp_path / "other", "the other")
    with kit.close_started():
        first = kit.start()
        snapshot = first.snapshot(store / "1").result()
        second = kit.restore(snapshot, store / "1", programs=(program,))
        assert greet(second) == "hello from this host\n"
        snapshot = second.snapshot(store / "2").result()
        third = kit.restore(snapshot, store / "2", programs=(other,))
        assert greet(third) == "hello from the other\n"


def test_a_new_shell_has_the_program(kit: Kit, program: ProgramMount) -> None:
    with kit.close_started():
        sandbox = kit.start(programs=(program,))
        assert run(sandbox, "sleep 60", timeout_s=0.3).timed_out
        assert greet(sandbox) == "hello from this host\n"
        assert run(sandbox, "exit 3").shell_ended
        assert greet(sandbox) == "hello from this host\n"


def test_an_agent_that_deletes_the_way_to_a_program(kit: Kit, program: ProgramMount, store: Path) -> None:
    before = list_contents(program)
    with kit.close_started():
        sandbox = kit.start(programs=(program,))
        run(sandbox, "rm -rf --no-preserve-root /opt/takeover /opt; rm -rf /opt/*; ls /opt", timeout_s=60)
        assert list_contents(program) == before
        restored = kit.restore(sandbox.snapshot(store).result(), store, programs=(program,))
        assert greet(restored) == "hello from this host\n"


def test_a_missing_program_directory(kit: Kit, program: ProgramMount, tmp_path: Path) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    lost = program.model_copy(update={"directory": tmp_path / "lost", "inside": "/opt/takeover/lost"})
    with pytest.raises(SandboxUnavailableError, match=r"program directory not found: .*/lost") as caught:
        kit.start(owner=owner, programs=(program, lost))
    assert "\n" not in str(caught.value)
    (tmp_path / "lost").write_text("a file\n")
    with pytest.raises(SandboxUnavailableError, match="program directory not found"):
        kit.start(owner=owner, programs=(lost,))
    assert kit.find_stale_resources(owner) == set()


def test_plain_processes_refuse_programs(kit: Kit, tmp_path: Path) -> None:
    if kit.is_isolated:
        pytest.skip("this back end mounts programs")
    program = make_program(tmp_path / "greeter", "this host")
    with pytest.raises(SandboxUnavailableError, match=r"cannot be mounted \(use --sandbox host"):
        kit.start(programs=(program,))
