"""References of the sandbox benchmark: the daemon's own commands, tar, and SWE-ReX."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.turns import Samples, UnavailableError
from langgraph_takeover.sandbox.backends.docker import ExecChannel
from langgraph_takeover.sandbox.docker_client import client
from langgraph_takeover.sandbox.interface import SandboxSpec
from langgraph_takeover.sandbox.ownership import OWNER_LABEL

_COMMITS = "takeover/benchmark-commit"
_SWEREX_SERVER = """#!/bin/sh
export PYTHONPATH=/opt/swerex
python3 -c 'import pydantic_core' 2>/dev/null || export LD_LIBRARY_PATH=/opt/host
exec python3 -m swerex.server "$@"
"""
_ANSWER = b"answered\n"


def find_container(owner: str) -> str:
    """The id of an owner's only container."""
    (container,) = client().api.containers(filters={"label": f"{OWNER_LABEL}={owner}"})
    return str(container["Id"])


def commit(container: str) -> None:
    """Run `docker commit` with its pause; `remove_commits` removes the image."""
    client().api.commit(container, repository=_COMMITS)


def remove_commits() -> None:
    for image in client().images.list(_COMMITS):
        client().images.remove(image.id, force=True)


def tar_upper_directory(container: str) -> None:
    """Archive the container's upper directory with tar, without pause, digest or flush to disk."""
    upper = client().api.inspect_container(container)["GraphDriver"]["Data"]["UpperDir"]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as work:
        subprocess.run(["tar", "-cf", f"{work}/upper.tar", "-C", upper, "."], check=True)


def measure_bare_start(samples: Samples, spec: SandboxSpec) -> None:
    """Create and start a container with the same limits, start bash in it, and wait for its first answer."""
    api = client().api
    limits: dict[str, Any] = {
        "network_mode": "none",
        "mem_limit": f"{spec.memory_mb}m",
        "pids_limit": spec.pids,
        "security_opt": ["no-new-privileges"],
    }
    with contextlib.ExitStack() as stack, samples.measure_time("docker_start"):
        host_config = api.create_host_config(**limits)
        container = api.create_container(
            spec.image, ["sleep", "infinity"], entrypoint=[], host_config=host_config
        )["Id"]
        stack.callback(api.remove_container, container, force=True, v=True)
        api.start(container)
        shell = ExecChannel(container)
        shell.send(b"true; echo answered\n")
        output = b""
        while not output.endswith(_ANSWER):
            part = shell.receive(30)
            if not part:
                raise UnavailableError("the shell of the reference container did not answer")
            output += part


def exec_run(container: str) -> None:
    client().containers.get(container).exec_run("true")


class SwerexPeer:
    """SWE-ReX in another Python interpreter, measured one round at a time."""

    def __init__(self, python: str, *options: str) -> None:
        command = [python, str(Path(__file__).with_name("swerex_peer.py")), *options]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, **pipes, stderr=subprocess.DEVNULL, text=True)
        self.reasons: dict[str, str] = self._read_answer()

    def run_round(self, _: int) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        medians: dict[str, float] = self._read_answer()
        return medians

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _read_answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise UnavailableError("SWE-ReX exited without an answer")
        return json.loads(line)


@contextlib.contextmanager
def open_swerex(python: str, image: str | None) -> Iterator[SwerexPeer]:
    """Open SWE-ReX's local runtime and, given an image, its Docker runtime. Raises UnavailableError.

    To avoid network access, SWE-ReX's Docker deployment finds its server, with the interpreter's packages, in mounted
    directories of this host.
    """
    program = "import sysconfig, aiohttp, swerex.server; print(sysconfig.get_paths()['purelib'])"
    try:
        packages = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UnavailableError(f"--peer-python {python}: {error.strerror}") from error
    if packages.returncode != 0:
        reason = packages.stderr.strip().splitlines()[-1]
        raise UnavailableError(f"--peer-python cannot import swe-rex and aiohttp ({reason})")
    with contextlib.ExitStack() as stack:
        options: list[str] = []
        if image is not None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
            network = client().networks.create(work.name, driver="bridge")
            stack.callback(network.remove)
            mounts = _list_mounts(work, packages.stdout.strip())
            options = [image, "--network", work.name, *mounts]
        yield stack.enter_context(contextlib.closing(SwerexPeer(python, *options)))


def _list_mounts(work: Path, packages: str) -> Iterator[str]:
    """The options that mount the packages, the server's command, and libraries that a small image may lack."""
    server = work / "swerex-remote"
    server.write_text(_SWEREX_SERVER)
    server.chmod(0o755)
    libraries = ("libgcc_s.so.1", "libpthread.so.0", "librt.so.1", "libdl.so.2")
    targets = {packages: "/opt/swerex", str(server): "/usr/local/bin/swerex-remote"}
    targets |= {
        str(path): f"/opt/host/{name}" for name in libraries for path in Path("/usr/lib").glob(f"*/{name}")
    }
    for source, target in targets.items():
        yield from ("--volume", f"{source}:{target}:ro")
