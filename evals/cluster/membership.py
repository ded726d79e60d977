"""A Ray cluster as a run sees it: how one joins it, which nodes it has, and how one of them is given work."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from evals.run.config import BadUsage

RESOURCE = "sandbox"
"""What a node must offer, one for each job that it is to do at a time."""
_CONNECT_S = 5.0
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_SETTINGS = 4


class Member(NamedTuple):
    """A living node that offers to do jobs."""

    id: str
    host: str
    slots: int

    @property
    def short(self) -> str:
        return self.id[:12]

    def __str__(self) -> str:
        return f"{self.short} ({self.host})"


def join(address: str) -> None:
    """Belong to the cluster until `leave`. Raises BadUsage where it is not to be had."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of what no sandbox has
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise BadUsage(
            "--executor ray: Ray is not installed; pip install '.[ray]' in the checkout of langgraph-takeover"
        ) from error
    import ray._private.worker as driver
    from ray._private.services import canonicalize_bootstrap_address_or_die

    leave()
    on_sigterm = signal.getsignal(signal.SIGTERM)
    # Its listener prints pages of a lost node's log to whoever only wants to know that it was lost.
    driver.listen_error_messages = lambda *_: None
    try:
        found = canonicalize_bootstrap_address_or_die(address)
        _greet(found)
        ray.init(address=found, log_to_driver=False, logging_level="CRITICAL")
    except (OSError, ValueError, RuntimeError) as error:  # the first of them is a ConnectionError as well
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadUsage(
            f"--address: no Ray cluster answers at {address} ({reason}); start one with: "
            f"ray start --head --port=6379 --resources='{{\"{RESOURCE}\": 4}}'"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)


def leave() -> None:
    import ray

    ray.shutdown()


def _greet(address: str) -> None:
    """Find out in seconds what Ray itself takes minutes for: that nobody of its kind listens there."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S) as there:
        there.sendall(_GREETING)
        if there.recv(9)[3:4] != bytes([_SETTINGS]):
            raise ConnectionError("something else listens there")


def members() -> dict[str, Member]:
    """The living nodes that offer to do jobs, by id."""
    import ray

    found = {}
    for node in ray.nodes():
        slots = int(node["Resources"].get(RESOURCE, 0)) if node["Alive"] else 0
        if slots:
            found[node["NodeID"]] = Member(node["NodeID"], node["NodeManagerHostname"], slots)
    return found


def given(member: Member, work: Callable[..., Any], *arguments: Any, slots: int = 0) -> Any:
    """A reference to what the work comes to on that node, and on no other; it is not tried again."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(member.id, soft=False)
    resources = {RESOURCE: slots} if slots else {}
    remote = ray.remote(num_cpus=0, max_retries=0, resources=resources, scheduling_strategy=there)
    return remote(work).remote(*arguments)


def shared(value: Any) -> Any:
    """A value that is sent to every node once, and given to work as itself."""
    import ray

    return ray.put(value)


def first_of(references: list[Any], timeout_s: float | None) -> Any | None:
    """One of them that is there, or whose node is lost; None where none is in that time."""
    import ray

    done, _ = ray.wait(references, timeout=timeout_s)
    return done[0] if done else None


def come_to(reference: Any) -> Any:
    """What the work came to. Raises what it raised, or Lost."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return ray.get(reference)
    except RayTaskError:
        raise
    except RayError as error:
        raise Lost(str(error).strip().splitlines()[0][:200]) from error


class Lost(Exception):
    """The node, or the process on it that did the work, is no more."""
