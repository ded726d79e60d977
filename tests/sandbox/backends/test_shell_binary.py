"""A command's children cannot fake its end: on `host` they cannot read the memory of its shell."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from langgraph_takeover.sandbox.backends.bubblewrap import SHELL_PATH_INSIDE
from langgraph_takeover.testing.sandboxes.kit import Kit, check_output, run

from ..conftest import open_kit

# Search for the end mark of the command wherever the kernel shows a process to its own user, and print it.
_FORGE = r"""
import ctypes, glob, os, re, sys
shell, found, libc = int(sys.argv[1]), b"", ctypes.CDLL(None, use_errno=True)

def opened(path):
    global found
    try:
        with open(path, "rb", 0) as file:
            os.set_blocking(file.fileno(), False)
            found += file.read(1 << 16) or b""
            return True
    except OSError:
        return False

try:
    with open(f"/proc/{shell}/mem", "rb", 0) as memory:
        for line in open(f"/proc/{shell}/maps"):
            place = re.match("([0-9a-f]+)-([0-9a-f]+) rw", line)
            if place:
                first, last = (int(each, 16) for each in place.groups())
                memory.seek(first)
                found += memory.read(last - first)
except OSError:
    pass
ways = {name: opened(f"/proc/{shell}/{name}") for name in (
    "environ", "auxv", "exe", "fd/0", "fd/255", "task/%d/mem" % shell, "task/%d/fd/0" % shell)}
ways["map"] = bool(glob.glob(f"/proc/{shell}/map_files/*")) or opened(f"/proc/{shell}/maps")
ways["attach"] = libc.ptrace(16, shell, 0, 0) == 0
ways["seize"] = libc.ptrace(0x4206, shell, 0, 0) == 0
local = ctypes.create_string_buffer(8)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(local), 8)
remote = (ctypes.c_void_p * 2)(0x400000, 8)
libc.syscall.restype = ctypes.c_long
libc.process_vm_readv.restype = ctypes.c_ssize_t
ways["copy"] = libc.process_vm_readv(shell, vector, 1, remote, 1, 0) > 0 or ctypes.get_errno() == 14
ways["pidfd"] = libc.syscall(438, libc.syscall(434, shell, 0), 0, 0) >= 0
for word in set(re.findall(rb"\\0' ([0-9a-f]{32})", found)):
    os.write(1, b"\n" + word + b" 0 /forged\0")
print(*sorted(way for way, works in ways.items() if works))
sys.exit(1)
"""


@pytest.fixture(scope="module", params=["host", pytest.param("host-image", marks=pytest.mark.slow)])
def kit(request: pytest.FixtureRequest) -> Iterator[Kit]:
    image = request.getfixturevalue("testbed_image") if request.param == "host-image" else None
    with open_kit(request.param, request.getfixturevalue("repository"), image) as kit:
        yield kit


def test_no_child_reads_the_end_mark_of_its_shell(kit: Kit) -> None:
    with kit.close_started():
        sandbox = kit.start()
        sandbox.write_file("forge.py", _FORGE.encode())
        for command in (
            "python3 forge.py $$; (exit 7)",
            "python3 forge.py $$ & wait; (exit 7)",
            "(python3 forge.py $$); (exit 7)",
            "(setsid python3 forge.py $BASHPID; :); (exit 7)",
        ):
            result = run(sandbox, command)
            assert (result.exit_code, result.output) == (7, "\n"), command
            assert sandbox.cwd() == sandbox.workspace


def test_the_first_process_has_no_pipes_of_the_shell(kit: Kit) -> None:
    """Any child may attach to it, and would read the next command's mark from the shell's input."""
    with kit.close_started():
        sandbox = kit.start()
        shells = check_output(sandbox, "readlink /proc/self/fd/1").split()
        ends = check_output(
            sandbox, "readlink /proc/1/fd/0 /proc/1/fd/1 /proc/1/fd/8 /proc/1/fd/9; :"
        ).split()
        assert ends == ["/dev/null", "/dev/null"]
        assert shells[0] not in check_output(sandbox, "readlink /proc/1/fd/*").split()


def test_the_shell_binary_stays_unreadable(kit: Kit) -> None:
    with kit.close_started():
        sandbox = kit.start()
        assert check_output(sandbox, 'echo "$0 $BASH"') == f"bash {SHELL_PATH_INSIDE}\n"
        for command in ("cat {0}", "chmod +r {0}", "cp {0} copy", "rm -f {0}", "mv {0} copy", "echo >> {0}"):
            assert run(sandbox, command.format(SHELL_PATH_INSIDE)).exit_code != 0, command
        # A shell can still inspect itself, and its other uses still work.
        assert check_output(
            sandbox, "read -r x < <(echo piped); echo $x; cat /dev/stdin <<< here; cat <(echo sub)"
        ) == ("piped\nhere\nsub\n")
        assert (
            check_output(sandbox, '"$BASH" -c "echo one"; bash -c "echo two"; ls /proc/self/fd | head -1')
            == "one\ntwo\n0\n"
        )
        output = run(sandbox, "no-such-command").output
        assert re.fullmatch(r"bash: line \d+: no-such-command: command not found\n", output)
