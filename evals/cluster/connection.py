"""The connection to a Ray cluster, and the nodes that offer sandboxes there."""

from __future__ import annotations

import os
import signal
import socket
from typing import NamedTuple

from langgraph_takeover.evals.run.settings.config import RunUsageError

RESOURCE = "sandbox"
"""The Ray resource of a node that counts its parallel jobs."""
NODE_LABEL = "ray.io/node-id"
_CONNECT_S = 5.0
# Ray takes minutes to report that no cluster answers, so we open an HTTP/2 connection to the address first.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_HTTP2_SETTINGS = 4


class Node(NamedTuple):
    """A living node that offers sandboxes."""

    id: str
    host: str
    slots: int

    @property
    def name(self) -> str:
        return self.id[:12]

    def __str__(self) -> str:
        return f"{self.name} ({self.host})"


def connect(address: str) -> None:
    """Join the cluster as its driver. Raises RunUsageError."""
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # else Ray warns about variables that no sandbox has
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")  # else Ray prints pages of a lost node's log
    try:
        import ray
    except ImportError as error:
        raise RunUsageError(
            "--executor ray: Ray is not installed (pip install 'langgraph-takeover[ray]')"
        ) from error

    disconnect()
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        if address != "auto":
            _check_listener(address)
        ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RunUsageError(
            f"--address: no Ray cluster answers at {address} ({reason}); start one: "
            f"ray start --head --port=6379 --resources='{{\"{RESOURCE}\": 4}}'"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)


def disconnect() -> None:
    import ray

    ray.shutdown()


def _check_listener(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S) as connection:
        connection.sendall(_HTTP2_PREFACE)
        if connection.recv(9)[3:4] != bytes([_HTTP2_SETTINGS]):
            raise ConnectionError("the listener is not a Ray head")


def list_nodes() -> dict[str, Node]:
    """The living nodes that offer sandboxes, by id."""
    import ray

    nodes = [
        Node(node["NodeID"], node["NodeManagerHostname"], int(node["Resources"].get(RESOURCE, 0)))
        for node in ray.nodes()
        if node["Alive"]
    ]
    return {node.id: node for node in nodes if node.slots}
