"""Programs of external agents on this host: layouts of packages, versions, errors, and mounts in a sandbox."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.agents.adapter import AgentAdapter, PackagedProgram
from langgraph_takeover.handoff.agents.codex import Codex
from langgraph_takeover.nodes.context.agent_program import (
    AgentProgram,
    AgentProgramError,
    ExternalAgent,
    find_program,
)
from langgraph_takeover.sandbox.backends import host
from langgraph_takeover.sandbox.interface import ProgramMount, SandboxSpec

from ...agent_programs import find_test_program
from ...conftest import skip_missing

BASH = Path(shutil.which("bash") or "/bin/bash").resolve()
"""A native program that prints its version, in the place of an agent's."""


def make_adapter(oldest: str = "1.0.0", newest: str = "99.0.0") -> AgentAdapter:
    """Return an adapter whose program is `agent`, with a native part for each architecture."""
    adapter = Codex()
    adapter.program = Codex.program.model_copy(
        update={
            "executable": "agent",
            "packaged": (PackagedProgram(directory="@vendor/agent-linux-*/vendor/*", file="bin/agent"),),
            "install": "npm install -g @vendor/agent",
            "oldest": oldest,
            "newest": newest,
        }
    )
    return adapter


def make_package(root: Path, *, nested: bool = False, has_native: bool = True) -> Path:
    """Create the files that npm installs for a command with a native program; return the command's directory."""
    modules = root / "node_modules"
    package = modules / "@vendor/agent"
    package.mkdir(parents=True)
    (package / "package.json").write_text("{}")
    (package / "agent.js").write_text("#!/usr/bin/env node\n")
    (package / "agent.js").chmod(0o755)
    base = package / "node_modules" if nested else modules
    for name in ("agent-linux-x64", "agent-linux-arm64") if has_native else ():
        directory = base / f"@vendor/{name}/vendor/target/bin"
        directory.mkdir(parents=True)
        shutil.copy(BASH, directory / "agent")
    commands = modules / ".bin"
    commands.mkdir()
    (commands / "agent").symlink_to("../@vendor/agent/agent.js")
    return commands


@pytest.mark.parametrize("nested", [False, True])
def test_native_program_of_a_package(tmp_path: Path, nested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = make_package(tmp_path, nested=nested)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    found = find_program(make_adapter())
    architecture = {"x86_64": "x64", "aarch64": "arm64"}[os.uname().machine]
    assert found.argv == ("/opt/takeover/codex/bin/agent",)
    assert f"agent-linux-{architecture}/vendor/target/bin/agent" in found.host_argv[0]
    assert str(found.mounts[0].directory).endswith(f"agent-linux-{architecture}/vendor/target")
    printed = subprocess.run([BASH, "--version"], capture_output=True, text=True, check=True).stdout
    assert found.version in printed
    assert not found.warning


def test_native_program_on_its_own(tmp_path: Path) -> None:
    shutil.copy(BASH, tmp_path / "agent")
    (tmp_path / "link").symlink_to("agent")
    for path in (tmp_path, tmp_path / "agent", tmp_path / "link"):
        found = find_program(make_adapter(), path)
        assert found.argv == ("/opt/takeover/codex/agent",)
        assert found.mounts[0].directory == tmp_path


def make_script(modules: Path, *dependencies: str) -> Path:
    """Create an npm package whose command is a script that needs other packages; return the command."""
    package = modules / "@vendor/agent"
    (package / "dist").mkdir(parents=True)
    needs = dict.fromkeys(dependencies, "1.0.0")
    (package / "package.json").write_text(
        json.dumps({"type": "module", "bin": {"agent": "dist/cli.js"}, "dependencies": needs})
    )
    imports = "".join(f'import "{each}";' for each in dependencies)
    (package / "dist/cli.js").write_text(f"#!/usr/bin/env node\n{imports}console.log('1.2.3')\n")
    (modules / ".bin").mkdir()
    (modules / ".bin/agent").symlink_to("../@vendor/agent/dist/cli.js")
    return modules / ".bin/agent"


def add_dependency(modules: Path, name: str) -> None:
    (modules / name).mkdir(parents=True)
    (modules / name / "package.json").write_text('{"main": "index.js"}')
    (modules / name / "index.js").touch()


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
@pytest.mark.parametrize("is_shared", [False, True])
def test_script_is_mounted_with_its_dependencies(tmp_path: Path, is_shared: bool) -> None:
    modules = tmp_path / "project/node_modules"
    command = make_script(modules, "needed")
    package = modules / "@vendor/agent"
    add_dependency(modules if is_shared else package / "node_modules", "needed")
    adapter = make_adapter()
    adapter.program = adapter.program.model_copy(update={"interpreter": "node", "packaged": ()})
    found = find_program(adapter, command)
    assert found.version == "1.2.3"
    assert found.host_argv[1] == str(package / "dist/cli.js")
    expected = (
        (modules, "/opt/takeover/node_modules", "/opt/takeover/node_modules/@vendor/agent/dist/cli.js")
        if is_shared
        else (package, "/opt/takeover/codex", "/opt/takeover/codex/dist/cli.js")
    )
    assert (found.mounts[0].directory, found.mounts[0].inside, found.argv[1]) == expected
    if reason := host.unavailable_reason():
        skip_missing(reason)
    repository = tmp_path / "repository"
    repository.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    spec = SandboxSpec(backend="host", directory=repository, programs=found.mounts, memory_mb=100_000)
    with contextlib.closing(sandbox.start(spec)) as started:
        result = started.run(shlex.join(found.argv), timeout_s=60)
    assert result.output.strip() == "1.2.3"


def test_script_outside_a_package_is_mounted_alone(tmp_path: Path) -> None:
    """A package.json above a script that is not its command belongs to another project."""
    (tmp_path / "package.json").write_text('{"bin": "other.js"}')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/agent").write_text("console.log('1.2.3')\n")
    adapter = make_adapter()
    adapter.program = adapter.program.model_copy(update={"interpreter": "node", "packaged": ()})
    if shutil.which("node") is None:
        skip_missing("Node.js is not installed")
    for content in ('{"bin": "other.js"}', "{", "[]", '{"bin": [1]}'):
        (tmp_path / "package.json").write_text(content)
        assert find_program(adapter, tmp_path / "bin").mounts[0].directory == tmp_path / "bin"


def test_mount_replaces_the_program_of_an_earlier_agent(tmp_path: Path) -> None:
    def make_agent(directory: str) -> ExternalAgent:
        mount = ProgramMount(directory=tmp_path / directory, inside="/opt/takeover/node_modules")
        return ExternalAgent(
            adapter=make_adapter(), program=AgentProgram(mounts=(mount,), argv=("agent",), version="1.0.0")
        )

    spec = make_agent("second").mount(
        make_agent("first").mount(SandboxSpec(backend="host", directory=tmp_path))
    )
    assert [each.directory.name for each in spec.programs] == ["second"]


def test_missing_program_names_its_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        AgentProgramError, match=r"no `agent` on PATH \(install it: npm install -g @vendor/agent"
    ):
        find_program(make_adapter())
    with pytest.raises(AgentProgramError, match=r"no program at .*/nothing"):
        find_program(make_adapter(), tmp_path / "nothing")


def test_stub_without_native_program(tmp_path: Path) -> None:
    commands = make_package(tmp_path, has_native=False)
    with pytest.raises(AgentProgramError, match="lacks its native program"):
        find_program(make_adapter(), commands)


def test_versions(tmp_path: Path) -> None:
    shutil.copy(BASH, tmp_path / "agent")
    with pytest.raises(AgentProgramError, match=r"is too old: 98\.0\.0 or later is needed \(update it"):
        find_program(make_adapter(oldest="98.0.0"), tmp_path)
    found = find_program(make_adapter(newest="1.0.1"), tmp_path)
    assert f"codex {found.version} is newer than the tested 1.0.1: " in found.warning


def test_program_that_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "agent").write_bytes(b"\x7fELF")
    with pytest.raises(AgentProgramError, match="cannot be run: Permission denied") as raised:
        find_program(make_adapter(), tmp_path)
    assert "\n" not in str(raised.value)
    (tmp_path / "agent").chmod(0o755)
    with pytest.raises(AgentProgramError, match="cannot be run"):
        find_program(make_adapter(), tmp_path)


def test_program_without_a_version(tmp_path: Path) -> None:
    shutil.copy(Path(shutil.which("echo") or "/bin/echo"), tmp_path / "agent")
    adapter = make_adapter()
    adapter.program = adapter.program.model_copy(update={"version_argv": ("no number here",)})
    with pytest.raises(AgentProgramError, match="does not print its version but 'no number here'"):
        find_program(adapter, tmp_path)


def test_python_program_needs_an_environment(tmp_path: Path) -> None:
    (tmp_path / "mini").write_text("#!/usr/bin/python3\n")
    with pytest.raises(AgentProgramError, match="not in a virtual environment"):
        find_program(ADAPTERS["mini"], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ADAPTERS)
def test_real_program_runs_in_a_sandbox(name: str, tmp_path: Path) -> None:
    """The mounted program prints the version that it has on the host."""
    found = find_test_program(ADAPTERS[name])
    repository = tmp_path / "repository"
    repository.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    spec = SandboxSpec(backend="host", directory=repository, programs=found.mounts, memory_mb=100_000)
    command = (*found.argv, *ADAPTERS[name].program.version_argv)
    if name == "mini":
        (repository / "version.py").write_text(ADAPTERS[name].program.version_argv[1])
        command = (*found.argv, "version.py")
    with contextlib.closing(sandbox.start(spec)) as box:
        result = box.run(shlex.join(command), timeout_s=120)
    assert result.exit_code == 0, result.output
    assert found.version in result.output
