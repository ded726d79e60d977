"""The program of an external agent on this host: found on PATH, checked, and mounted read-only into sandboxes."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.agents import find_adapter
from langgraph_takeover.sandbox.interface import ProgramMount, SandboxSpec
from langgraph_takeover.sandbox.isolation.cgroups import available_controllers
from langgraph_takeover.sandbox.untrusted_trees import list_matches

if TYPE_CHECKING:
    from langgraph_takeover.handoff.agents.adapter import AgentAdapter, ProgramFiles

_VERSION = re.compile(r"\d{1,5}\.\d{1,5}\.\d{1,5}")
_TIMEOUT_S = 30.0
_MAX_OUTPUT_BYTES = 10_000
_PROGRAMS = "/opt/takeover"
_ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}
_ELF = b"\x7fELF"
# A virtual environment names its interpreter by an absolute path, which the sandbox does not have.
_RUN_WITH_PACKAGES = (
    "import runpy, site, sys; site.addsitedir(sys.argv[1]); del sys.argv[:2]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


class AgentProgramError(TakeoverError, LookupError):
    """The program of an external agent is missing or cannot be used."""

    def __str__(self) -> str:
        return str(self.args[0])


class AgentProgram(Frozen):
    """The program of an external agent: its mounts, its command line, and its version."""

    mounts: tuple[ProgramMount, ...]
    argv: tuple[str, ...]
    """The command line inside a sandbox, without arguments."""
    host_argv: tuple[str, ...] = ()
    """The command line on this host."""
    version: str
    warning: str = ""
    """A sentence for the user if the version is newer than the tested ones."""


def find_program(adapter: AgentAdapter, path: Path | None = None) -> AgentProgram:
    """Return the program of an agent.

    Args:
        path: its command, or a directory that holds it; by default the command on PATH.

    Raises AgentProgramError if it is missing, too old, or cannot be run.
    """
    program = _locate_program(adapter, path)
    return program.model_copy(update=_check_version(adapter.name, adapter.program, program.version))


def describe_untested_program(adapter: AgentAdapter, path: Path) -> str:
    """Return a sentence about a program's version if it is outside the tested range; empty otherwise, and if unreadable."""
    try:
        return adapter.program.describe_untested(adapter.name, _locate_program(adapter, path).version)
    except (AgentProgramError, OSError):
        return ""


def _locate_program(adapter: AgentAdapter, path: Path | None) -> AgentProgram:
    wanted = adapter.program
    command = _find_command(adapter.name, wanted, path)
    inside = f"{_PROGRAMS}/{adapter.name}"
    if wanted.interpreter == "python":
        program = _describe_python(command, inside)
    elif wanted.interpreter == "node":
        program = _describe_node(wanted, command, inside)
    else:
        directory, file = _find_binary(wanted, command)
        program = AgentProgram(
            mounts=(ProgramMount(directory=directory, inside=inside),),
            argv=(f"{inside}/{file}",),
            host_argv=(str(directory / file),),
            version="",
        )
    return program.model_copy(update={"version": _read_version(adapter.name, wanted, program.host_argv)})


def _find_command(name: str, wanted: ProgramFiles, path: Path | None) -> Path:
    if path is None:
        found = shutil.which(wanted.executable)
        if found is None:
            raise AgentProgramError(
                f"{name} is not installed: no `{wanted.executable}` on PATH (install it: {wanted.install}; or name its"
                " program)"
            )
        return Path(found)
    command = path / wanted.executable if path.is_dir() else path
    if not command.is_file():
        raise AgentProgramError(f"{name}: no program at {command} (install it: {wanted.install})")
    return command


def _list_packages(command: Path) -> Iterator[Path]:
    """Yield the package that holds a command, and the directories where npm installs its parts."""
    package = next(
        (each for each in command.resolve().parents if (each / "package.json").is_file()), command.parent
    )
    yield package
    yield package / "node_modules"
    yield from (each for each in package.parents if each.name == "node_modules")


def _find_packaged(wanted: ProgramFiles, command: Path) -> tuple[Path, str] | None:
    """Return directory and name of the real program of a package: that of this architecture first."""
    suffix = f"-linux-{_ARCHITECTURES.get(platform.machine(), platform.machine())}"
    for packaged in wanted.packaged:
        for base in _list_packages(command):
            directories = list_matches(base, packaged.directory) if packaged.directory else [base]
            found = [each for each in directories if (each / packaged.file).is_file()]
            own = [each for each in found if any(part.endswith(suffix) for part in each.parts)]
            if directories := own or ([] if packaged.directory else found):
                return directories[0], packaged.file
    return None


def _find_binary(wanted: ProgramFiles, command: Path) -> tuple[Path, str]:
    if found := _find_packaged(wanted, command):
        return found
    real = command.resolve()
    with real.open("rb") as file:
        is_binary = file.read(len(_ELF)) == _ELF
    if not is_binary:
        raise AgentProgramError(
            f"{command}: the package lacks its native program for {platform.machine()} (install it again, with optional"
            f" dependencies: {wanted.install})"
        )
    return real.parent, real.name


def _describe_node(wanted: ProgramFiles, command: Path, inside: str) -> AgentProgram:
    node = shutil.which("node", path=f"{command.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if node is None:
        raise AgentProgramError(f"{command}: no `node` on PATH (install Node.js)")
    directory, file = _find_packaged(wanted, command) or _find_script(command)
    if directory.name == "node_modules":
        inside = f"{_PROGRAMS}/node_modules"  # Node.js searches directories of that name alone.
    interpreter = Path(node).resolve()
    return AgentProgram(
        mounts=(
            ProgramMount(directory=directory, inside=inside),
            ProgramMount(directory=interpreter.parent, inside=f"{_PROGRAMS}/node"),
        ),
        argv=(f"{_PROGRAMS}/node/{interpreter.name}", f"{inside}/{file}"),
        host_argv=(str(interpreter), str(directory / file)),
        version="",
    )


def _find_script(command: Path) -> tuple[Path, str]:
    """Return the directory to mount for a script of Node.js, and the script below it.

    The directory is the package, or the outermost `node_modules` if that holds what the package needs.
    """
    script = command.resolve()
    package = next((each for each in script.parents if (each / "package.json").is_file()), None)
    # A package.json in a home directory is not that of a script that lies somewhere below it.
    if package is None or script not in _list_commands(package):
        return script.parent, script.name
    modules = [each for each in package.parents if each.name == "node_modules"]
    needed = _read_package(package).get("dependencies")
    is_complete = all((package / "node_modules" / each).is_dir() for each in needed or ())
    directory = package if is_complete or not modules else modules[-1]
    return directory, str(script.relative_to(directory))


def _list_commands(package: Path) -> list[Path]:
    commands = _read_package(package).get("bin")
    files = commands.values() if isinstance(commands, dict) else [commands]
    return [(package / each).resolve() for each in files if isinstance(each, str)]


def _read_package(package: Path) -> dict[str, Any]:
    try:
        content = json.loads((package / "package.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _describe_python(command: Path, inside: str) -> AgentProgram:
    """Describe a program of a virtual environment: its packages, run by the interpreter under the environment."""
    environment = command.resolve().parent.parent
    python = environment / "bin/python"
    packages = list_matches(environment, "lib/python3*/site-packages")
    if not (environment / "pyvenv.cfg").is_file() or not packages:
        raise AgentProgramError(
            f"{command}: not in a virtual environment (install it in one, for instance with pipx or uv tool)"
        )
    interpreter = python.resolve()
    prefix = interpreter.parent.parent
    return AgentProgram(
        mounts=(
            ProgramMount(directory=environment, inside=inside),
            ProgramMount(directory=prefix, inside=f"{_PROGRAMS}/python"),
        ),
        argv=(
            f"{_PROGRAMS}/python/{interpreter.relative_to(prefix)}",
            "-I", "-c", _RUN_WITH_PACKAGES, f"{inside}/{packages[-1].relative_to(environment)}",
        ),
        host_argv=(str(python), "-I"),
        version="",
    )  # fmt: skip


def _read_version(name: str, wanted: ProgramFiles, argv: tuple[str, ...]) -> str:
    changed_at = tuple(Path(each).stat().st_mtime_ns for each in argv if each.startswith("/"))
    program = next(each for each in reversed(argv) if each.startswith("/"))
    try:
        output = _run((*argv, *wanted.version_argv), changed_at)
    except OSError as error:
        raise AgentProgramError(
            f"{name}: {program} cannot be run: {error.strerror} (install it again: {wanted.install})"
        ) from error
    except subprocess.TimeoutExpired:
        raise AgentProgramError(
            f"{name}: {program} does not print its version in {_TIMEOUT_S:.0f} s (install it again: {wanted.install})"
        ) from None
    if found := _VERSION.search(output):
        return found[0]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    raise AgentProgramError(
        f"{name}: {program} does not print its version but {(lines or ['nothing'])[0]!r:.200}"
        f" (install it again: {wanted.install})"
    )


@lru_cache(maxsize=32)
def _run(argv: tuple[str, ...], changed_at: tuple[int, ...]) -> str:
    """Return the output of a program, with an empty environment and a home directory that is thrown away.

    `changed_at` makes the cache forget a program that was installed anew.
    """
    with tempfile.TemporaryDirectory(prefix="takeover-") as home, tempfile.TemporaryFile() as output:
        subprocess.run(
            argv,
            env={"HOME": home, "TMPDIR": home, "PATH": os.defpath},
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        )
        output.seek(0)
        return output.read(_MAX_OUTPUT_BYTES).decode(errors="replace")


def _check_version(name: str, wanted: ProgramFiles, version: str) -> dict[str, str]:
    def key(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    if key(version) < key(wanted.oldest):
        raise AgentProgramError(
            f"{name} {version} is too old: {wanted.oldest} or later is needed (update it: {wanted.install})"
        )
    return {"warning": wanted.describe_untested(name, version)}


class ExternalAgentError(TakeoverError, RuntimeError):
    """An external agent could not be started or resumed, or ended before its first model request."""

    exit_code = 3


class ExternalAgent(Frozen):
    """A coding agent with a program of its own, such as Codex, that works on a thread instead of our agent.

    `external_agent` makes it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    adapter: Any
    """An `AgentAdapter`."""
    program: AgentProgram
    model_name: str = "takeover"
    """The model name that the agent sends with its requests."""

    @property
    def name(self) -> str:
        return str(self.adapter.name)

    def mount(self, spec: SandboxSpec) -> SandboxSpec:
        """Return a sandbox specification that mounts the agent's program."""
        own = {each.inside for each in self.program.mounts}
        kept = tuple(each for each in spec.programs if each.inside not in own)
        programs = (*kept, *self.program.mounts)
        memory_mb = spec.memory_mb
        if spec.backend == "host" and "memory" not in available_controllers():
            # Without a control group the limit counts addresses, which some agents reserve in plenty.
            memory_mb = max(memory_mb, self.adapter.program.address_space_mb)
        return spec.model_copy(update={"programs": programs, "memory_mb": memory_mb})


def external_agent(
    name: str | AgentAdapter, *, program: Path | str | None = None, model_name: str = "takeover"
) -> ExternalAgent:
    """Return an external agent by its name, or with an adapter of your own, to pass as `agent=`.

    `program` is its command; by default the one on PATH. Raises UnknownAgentProgramError, and AgentProgramError if the
    program is missing or too old.
    """
    adapter = find_adapter(name) if isinstance(name, str) else name
    found = find_program(adapter, Path(program) if program is not None else None)
    return ExternalAgent(adapter=adapter, program=found, model_name=model_name)
