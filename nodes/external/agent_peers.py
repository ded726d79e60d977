"""Which connections to the bridge are the agent's own: those of its process, of its descendants and of its session.

The kernel knows the socket of a connection's other end by its inode, and each process its open sockets. So nothing that
a process in the sandbox sends takes part in the decision.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import psutil

_SIOCGSKNS = 0x894C
"""Opens the network namespace of a socket."""
_LOCAL, _REMOTE, _INODE = 1, 2, 9
"""Columns of the kernel's tables of connections."""


class AgentPeers:
    """The processes of an agent, as this host sees them.

    Args:
        agent: the first process of the agent, the leader of its session.
    """

    def __init__(self, agent: psutil.Process) -> None:
        self._agent = agent
        self._last = agent
        """The process of the last connection, probably that of the next one, too."""

    def owns(self, peer: socket.socket) -> bool:
        """Whether a process of the agent holds the other end of a connection, or hides its sockets from this user."""
        inode = _find_inode(self._agent.pid, peer)
        if inode is None:
            return False
        # A process may move its connection to another descriptor, or to a child, while this looks; so it looks twice.
        for process in chain(self._list_processes(), self._list_processes()):
            if process.is_running() and _holds(process.pid, inode):
                self._last = process
                return True
        return False

    def _list_processes(self) -> Iterator[psutil.Process]:
        yield self._last
        with contextlib.suppress(psutil.NoSuchProcess):
            yield self._agent
            yield from self._agent.children(recursive=True)
        for process in psutil.process_iter():
            # A process whose parent has ended still belongs to the agent's session.
            with contextlib.suppress(OSError):
                if os.getsid(process.pid) == self._agent.pid:
                    yield process


def find_agent_peers(listener: socket.socket, pid: int) -> AgentPeers | None:
    """Return the processes of the agent that has the id `pid` in the sandbox of a listening socket.

    None if this host does not show them, such as one that hides the processes of others.
    """
    network = _get_network(listener)
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            directory = Path(f"/proc/{process.pid}")
            is_inside = os.path.samestat((directory / "ns/net").stat(), network)
            if is_inside and _read_inner_id(directory) == pid:
                return AgentPeers(process)
    return None


def _get_network(listener: socket.socket) -> os.stat_result:
    """Identify the network namespace of a socket; without power over it, it is this process's own."""
    try:
        namespace = fcntl.ioctl(listener, _SIOCGSKNS)
    except PermissionError:
        return Path("/proc/self/ns/net").stat()
    try:
        return os.fstat(namespace)
    finally:
        os.close(namespace)


def _read_inner_id(directory: Path) -> int:
    """Return the id of a process in its own namespace."""
    for line in (directory / "status").read_text().splitlines():
        name, _, ids = line.partition(":")
        if name == "NSpid":
            return int(ids.split()[-1])
    return 0


def _find_inode(pid: int, peer: socket.socket) -> str | None:
    """Return the inode of a connection's other end, in the tables of a process's network."""
    try:
        (address, port), (_, own_port) = peer.getpeername(), peer.getsockname()
    except OSError:
        return None
    (number,) = struct.unpack("=I", socket.inet_aton(address))
    local, remote = f"{number:08X}:{port:04X}", f":{own_port:04X}"
    for table in ("tcp", "tcp6"):  # An IPv6 socket can connect to an IPv4 address.
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                columns = line.split()
                if columns[_LOCAL].endswith(local) and columns[_REMOTE].endswith(remote):
                    return columns[_INODE]
    return None


def _holds(pid: int, inode: str) -> bool:
    name = f"socket:[{inode}]"
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except PermissionError:
        return True
    except OSError:
        return False
    for each in descriptors:
        with contextlib.suppress(OSError):
            if str(each.readlink()) == name:
                return True
    return False
