"""The system calls that a sandbox may not make, as a program for bwrap and as a profile for Docker."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import itertools
import json
import os
import struct
import termios
from collections.abc import Iterator
from typing import Any

from langgraph_takeover.base.failures import cache_unless

# What Docker's default profile refuses a container without added capabilities: mounts and namespaces, the kernel itself,
# clocks, keys, other processes' memory, and subsystems with a history of holes.
_DENIED_SYSCALLS = """
fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_by_handle_at open_tree pivot_root setns
umount umount2 unshare
acct create_module delete_module finit_module get_kernel_syms init_module ioperm iopl kexec_file_load
kexec_load lookup_dcookie nfsservctl pciconfig_iobase pciconfig_read pciconfig_write query_module quotactl
quotactl_fd reboot setdomainname sethostname swapoff swapon syslog vhangup
adjtimex clock_adjtime clock_adjtime64 clock_settime clock_settime64 settimeofday stime
add_key keyctl request_key
get_mempolicy kcmp mbind migrate_pages move_pages pidfd_getfd process_madvise set_mempolicy
set_mempolicy_home_node
bpf fanotify_init io_uring_enter io_uring_register io_uring_setup perf_event_open userfaultfd
sysfs _sysctl uselib ustat vm86 vm86old
"""
# CLONE_NEWTIME is not among them: `clone` reads that bit as part of a signal.
_NAMESPACES = {
    "CLONE_NEWNS": 0x0002_0000,
    "CLONE_NEWCGROUP": 0x0200_0000,
    "CLONE_NEWUTS": 0x0400_0000,
    "CLONE_NEWIPC": 0x0800_0000,
    "CLONE_NEWUSER": 0x1000_0000,
    "CLONE_NEWPID": 0x2000_0000,
    "CLONE_NEWNET": 0x4000_0000,
}
_ALLOWED_SOCKET_FAMILIES = (0, 1, 2, 10, 16)  # unspecified, UNIX, IPv4, IPv6, netlink
_SOCKET_FAMILY_COUNT = 64
_ALLOWED_PERSONALITY_BITS = 0x0002_0008  # UNAME26 and LINUX32, alone or together, and the plain one
_PERSONALITY_QUERY_BIT = 1 << 31  # only as a part of 0xffffffff, which asks and does not set
_TERMINAL_REQUESTS = (termios.TIOCSTI, termios.TIOCLINUX)  # type input, paste from the console
_WORD = 0xFFFF_FFFF
# `open_tree_attr`: the first call that is newer than those that this list covers.
_FIRST_UNKNOWN_SYSCALL = 467
# Architectures of a Docker host, each with the older ones whose programs its kernel also runs. x32 is excluded.
_ARCHITECTURES = {
    "X86_64": ("X86",),
    "AARCH64": ("ARM",),
    "PPC64LE": (),
    "S390X": ("S390",),
    "RISCV64": (),
}
_SYSCALL_NUMBERS = (*range(_FIRST_UNKNOWN_SYSCALL), *range(0xF0001, 0xF0010))  # the latter are ARM's own
_INSTRUCTION = struct.Struct("=HBBI")


@cache_unless(bool)
def unavailable_reason() -> str | None:
    """Return why no filter can be made here, in one line; None if one can."""
    try:
        _compile_filter()
    except ImportError:
        return "pyseccomp is not installed"
    except RuntimeError:
        return "libseccomp is not installed (Debian: apt-get install libseccomp2)"
    except OSError as error:
        return f"libseccomp could not make the filter: {error.strerror}"
    return None


def open_filter_file() -> int | None:
    """Return a descriptor for `bwrap --seccomp`, to be closed by the caller; None if `unavailable_reason` says why not.

    Each call returns its own file: bwrap reads to the end, and a second reader would find nothing.
    """
    if unavailable_reason() is not None:
        return None
    made = os.memfd_create("seccomp")
    try:
        os.write(made, _compile_filter())
        os.lseek(made, 0, os.SEEK_SET)
        # `sh` has redirections of the descriptors below ten.
        return fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(made)


@cache_unless(lambda profile: profile is None)
def docker_profile() -> str | None:
    """The same policy as a profile for Docker; None if `unavailable_reason` says why not.

    It replaces the daemon's own, so it allows by name, as that does. A call that this libseccomp does not know is
    refused.
    """
    if unavailable_reason() is not None:
        return None
    import pyseccomp

    known = set(_list_known_syscalls(pyseccomp))
    judged = {"chroot", "clone", "clone3", "personality", "socket", "socketcall", "socketpair"}
    allowed = sorted(known - judged - set(_DENIED_SYSCALLS.split()) - {"name_to_handle_at"})
    namespaces = sum(_NAMESPACES.values())
    s390 = {"arches": ["s390", "s390x"]}
    rules = [
        {"names": allowed, "action": "SCMP_ACT_ALLOW"},
        {"names": ["chroot"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_CHROOT"]}},
        _make_allow_rule("clone", 0, namespaces, 0) | {"excludes": s390},
        _make_allow_rule("clone", 1, namespaces, 0) | {"includes": s390},
        # libseccomp would let a 32-bit program open any socket by way of `socketcall`, once one may be opened.
        {"names": ["clone3", "socketcall"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        *(
            _make_allow_rule(name, 0, _WORD, family)
            for name in ("socket", "socketpair")
            for family in _ALLOWED_SOCKET_FAMILIES
        ),
        *(_make_allow_rule("personality", 0, _WORD, value) for value in _list_allowed_personalities()),
    ]
    return json.dumps(
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "archMap": [
                {
                    "architecture": f"SCMP_ARCH_{name}",
                    "subArchitectures": [f"SCMP_ARCH_{other}" for other in others],
                }
                for name, others in _ARCHITECTURES.items()
            ],
            "syscalls": rules,
        }
    )


def _list_known_syscalls(library: Any) -> Iterator[str]:
    for name in (name for native, others in _ARCHITECTURES.items() for name in (native, *others)):
        for number in _SYSCALL_NUMBERS:
            # A number that this libseccomp does not know is an error.
            with contextlib.suppress(ValueError):
                yield library.resolve_syscall(getattr(library.Arch, name), number).decode()


def _make_allow_rule(syscall: str, argument: int, mask: int, value: int) -> dict[str, Any]:
    condition = {"index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
    return {"names": [syscall], "action": "SCMP_ACT_ALLOW", "args": [condition]}


def _list_allowed_personalities() -> Iterator[int]:
    bits = [1 << shift for shift in range(32) if _ALLOWED_PERSONALITY_BITS >> shift & 1]
    yield _WORD  # asks, and sets nothing
    for chosen in itertools.product((0, 1), repeat=len(bits)):
        yield sum(bit for bit, is_set in zip(bits, chosen, strict=True) if is_set)


@functools.cache
def _compile_filter() -> bytes:
    import pyseccomp

    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    native = pyseccomp.system_arch()
    if native == pyseccomp.Arch.X86_64:
        rules.add_arch(pyseccomp.Arch.X86)
    # This host has no other way into the kernel, such as x32.
    rules.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.ERRNO(errno.ENOSYS))
    _add_deny_rules(pyseccomp, rules)
    with os.fdopen(os.memfd_create("seccomp"), "w+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        numbered_alike = native in (pyseccomp.Arch.X86_64, pyseccomp.Arch.AARCH64)
        return (_reject_unknown_syscalls() if numbered_alike else b"") + file.read()


def _add_deny_rules(library: Any, rules: Any) -> None:
    refusal = library.ERRNO(errno.EPERM)

    def deny(name: str, *conditions: Any, action: int = refusal) -> None:
        number = library.resolve_syscall(library.Arch.NATIVE, name)
        if number != -1:  # a name that this libseccomp does not know
            rules.add_rule(action, number, *conditions)

    def matches(argument: int, mask: int, value: int) -> Any:
        # Under a mask, because the kernel ignores an argument's upper half.
        return library.Arg(argument, library.MASKED_EQ, mask, value)

    for name in _DENIED_SYSCALLS.split():
        deny(name)
    # Its flags are in memory, where no filter sees them; libc then uses `clone`.
    deny("clone3", action=library.ERRNO(errno.ENOSYS))
    flags = 1 if library.system_arch() == library.Arch.S390X else 0
    for flag in _NAMESPACES.values():
        deny("clone", matches(flags, flag, flag))
    for request in _TERMINAL_REQUESTS:
        deny("ioctl", matches(1, _WORD, request))
    for family in range(_SOCKET_FAMILY_COUNT):
        if family not in _ALLOWED_SOCKET_FAMILIES:
            deny("socket", matches(0, _WORD, family))
            deny("socketpair", matches(0, _WORD, family))
    for bit in (1 << shift for shift in range(31)):
        if not bit & _ALLOWED_PERSONALITY_BITS:
            deny("personality", matches(0, bit | _PERSONALITY_QUERY_BIT, bit))
        deny("personality", matches(0, bit | _PERSONALITY_QUERY_BIT, _PERSONALITY_QUERY_BIT))


def _reject_unknown_syscalls() -> bytes:
    """Instructions before the rules: a call that is newer than they are fails as on an older kernel.

    -1 is not a call: a tracer passes it to skip one.
    """
    load_number, jump_equal, jump_at_least, give_back = 0x20, 0x15, 0x35, 0x06
    failure = 0x0005_0000 | errno.ENOSYS
    instructions = (
        (load_number, 0, 0, 0),
        (jump_equal, 2, 0, _WORD),
        (jump_at_least, 0, 1, _FIRST_UNKNOWN_SYSCALL),
        (give_back, 0, 0, failure),
    )
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in instructions)
