"""References of the sandbox benchmark: the daemon's own commands, tar, and SWE-ReX."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import testbed
from langgraph_takeover.sandbox.backends.docker import ExecChannel
from langgraph_takeover.sandbox.docker_client import client
from langgraph_takeover.sandbox.interface import SandboxSpec, SandboxUnavailableError

_SWEREX_PATH = "opt/swerex"
_SWEREX_SERVER = f"""#!/bin/sh
export PYTHONPATH=/{_SWEREX_PATH}
python3 -c 'import pydantic_core' 2>/dev/null || export LD_LIBRARY_PATH=/usr/local/lib/host
exec python3 -m swerex.server "$@"
"""
_EXPECTED_ANSWER = b"answered\n"


def find_container(owner: str) -> str:
    """The id of an owner's only container."""
    from langgraph_takeover.sandbox.ownership import OWNER_LABEL

    (container,) = client().api.containers(filters={"label": f"{OWNER_LABEL}={owner}"})
    return str(container["Id"])


def commit(container: str) -> None:
    """Run `docker commit` with its pause; `remove_commits` removes the image."""
    client().api.commit(container, repository="takeover/benchmark-commit")


def remove_commits() -> None:
    for image in client().images.list("takeover/benchmark-commit"):
        client().images.remove(image.id, force=True)


def tar_upper_directory(container: str) -> None:
    """Archive the container's upper directory with tar, without pause, digest or flush to disk."""
    upper = client().api.inspect_container(container)["GraphDriver"]["Data"]["UpperDir"]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as work:
        subprocess.run(["tar", "-cf", f"{work}/upper.tar", "-C", upper, "."], check=True)


def start_bare(image: str, spec: SandboxSpec) -> str:
    """Create and start a container with the same limits, start bash in it, and wait for its first answer."""
    api = client().api
    limits: dict[str, Any] = {
        "network_mode": "none",
        "mem_limit": f"{spec.memory_mb}m",
        "pids_limit": spec.pids,
        "security_opt": ["no-new-privileges"],
    }
    container = api.create_container(
        image, ["sleep", "infinity"], entrypoint=[], host_config=api.create_host_config(**limits)
    )["Id"]
    try:
        api.start(container)
        shell = ExecChannel(container)
        shell.send(b"true; echo answered\n")
        output = b""
        while not output.endswith(_EXPECTED_ANSWER):
            part = shell.receive(30)
            if not part:
                raise SandboxUnavailableError("the shell of the reference container did not answer")
            output += part
    except BaseException:
        remove(container)
        raise
    return str(container)


def remove(container: str) -> None:
    client().api.remove_container(container, force=True, v=True)


def exec_run(container: str) -> None:
    client().containers.get(container).exec_run("true")


class SwerexPeer:
    """SWE-ReX in another Python interpreter, measured one round at a time."""

    def __init__(self, python: str, *options: str) -> None:
        script = str(Path(__file__).with_name("swerex_peer.py"))
        self._process = subprocess.Popen(
            [python, script, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.reasons: dict[str, str] = self._read_answer()

    def run_round(self) -> dict[str, float]:
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
            raise SandboxUnavailableError("SWE-ReX exited without an answer")
        return json.loads(line)


@contextlib.contextmanager
def open_swerex(python: str | None, base: str | None) -> Iterator[SwerexPeer]:
    """Open SWE-ReX's local runtime and, given a base image, its Docker runtime. Raises SandboxUnavailableError.

    To avoid network access, the interpreter's packages are copied into an image, where SWE-ReX's deployment finds its
    server.
    """
    python = python or sys.executable
    program = "import sysconfig, aiohttp, swerex.server; print(sysconfig.get_paths()['purelib'])"
    try:
        packages = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    except OSError as error:
        raise SandboxUnavailableError(f"--peer-python {python}: {error.strerror}") from error
    if packages.returncode != 0:
        reason = packages.stderr.strip().splitlines()[-1]
        raise SandboxUnavailableError(f"--peer-python cannot import swe-rex and aiohttp ({reason})")
    with contextlib.ExitStack() as stack:
        options: list[str] = []
        if base is not None:
            local = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
            _install_server(local)
            content = {_SWEREX_PATH: Path(packages.stdout.strip()), "usr/local": local}
            image = stack.enter_context(testbed.build_image(base, content))
            network = client().networks.create(local.name, driver="bridge")
            stack.callback(network.remove)
            options = ["--image", image, "--network", str(network.name)]
        peer = SwerexPeer(python, *options)
        stack.callback(peer.close)
        yield peer


def _install_server(local: Path) -> None:
    """Write the server's command, and libraries that a small image may lack, for /usr/local."""
    server, libraries = local / "bin" / "swerex-remote", local / "lib" / "host"
    server.parent.mkdir()
    server.write_text(_SWEREX_SERVER)
    server.chmod(0o755)
    libraries.mkdir(parents=True)
    for name in ("libgcc_s.so.1", "libpthread.so.0", "librt.so.1", "libdl.so.2"):
        for library in Path("/usr/lib").glob(f"*/{name}"):
            shutil.copy(library, libraries)
