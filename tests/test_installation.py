"""The base installation: small, complete for an application, and harmless beside a project's own modules.

Its environment has exactly the packages that pip would install for the wheel without extras.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from langgraph_takeover.evals.cli.runner import MODULES
from langgraph_takeover.evals.tasks import BUNDLED, load_tasks
from langgraph_takeover.sandbox import default_backend

from .test_packaging import PACKAGE, PROJECT
from .wheels import build_wheel

MAX_PACKAGES, MAX_BYTES = 60, 150_000_000
NEEDS_EXPERIMENT = ("takeover", "takeover-compare", "takeover-poison", "takeover-publish", "takeover-report")
LACKING = "error: the experiment is not installed (pip install 'langgraph-takeover[evals]')\n"


def list_base() -> dict[str, Distribution]:
    """The distributions of the base installation by name, ours excepted."""
    found: dict[str, Distribution] = {}
    left = [Requirement(each) for each in PROJECT["dependencies"]]
    while left:
        wanted = left.pop()
        if wanted.marker and not any(
            wanted.marker.evaluate({"extra": each}) for each in ("", *wanted.extras)
        ):
            continue
        one = distribution(wanted.name)
        if found.setdefault(one.metadata["Name"].lower(), one) is one:
            left += [Requirement(each) for each in one.requires or () if "extra ==" not in each]
    return found


def list_files(one: Distribution) -> Iterator[tuple[Path, Path]]:
    """The files of a distribution's modules: the path in `site-packages`, and the real one."""
    for file in one.files or ():
        if ".." not in file.parts and (path := Path(str(one.locate_file(file)))).is_file():
            yield Path(file), path


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and its base dependencies, linked from this environment."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory / "venv", with_pip=False)
    (site,) = (directory / "venv").glob("lib/python*/site-packages")
    for one in list_base().values():
        for inside, real in list_files(one):
            (site / inside).parent.mkdir(parents=True, exist_ok=True)
            (site / inside).symlink_to(real)
    wheel, python = build_wheel(directory), directory / "venv" / "bin" / "python"
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    install = [sys.executable, "-m", "pip", "--python", python, "install", *options, wheel]
    subprocess.run(install, env=make_environment(), check=True)
    return directory / "venv"


def make_environment() -> dict[str, str]:
    """The variables of this process without those that change what Python or our commands do."""
    ours = ("PYTHON", "OPENAI_", "TAKEOVER_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def run_in(environment: Path, cwd: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment without this one's settings."""
    program, *rest = map(str, arguments)
    return subprocess.run(
        [environment / "bin" / program, *rest],
        cwd=cwd,
        env=make_environment() | {"COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_base_is_small() -> None:
    """The size is that on disk, with our package; `benchmarks/install_size.py` measures a fresh environment."""
    base = list_base()
    assert not {"swebench", "datasets", "matplotlib", "numpy", "openai"} & base.keys()
    assert len(base) + 1 < MAX_PACKAGES
    ours = Path(__file__).parents[1]
    own = [
        path
        for layer in ("sandbox", "handoff", "nodes", "graph", "evals")
        for path in (ours / layer).rglob("*")
        if "-pytest-" not in path.name  # what pytest compiles for itself
    ]
    files = {path for one in base.values() for _, path in list_files(one)} | {*own}
    assert sum(path.stat().st_blocks * 512 for path in files if path.is_file()) < MAX_BYTES


@pytest.mark.slow
def test_every_public_name_can_be_imported(environment: Path, tmp_path: Path) -> None:
    program = f"""
import importlib, pkgutil, sys
import {PACKAGE}
topics = [each.name for each in pkgutil.iter_modules({PACKAGE}.__path__) if not each.ispkg]
topics.remove("middleware")  # needs the extra langchain
topics.remove("deepagents")  # needs the extra deepagents
for topic in ("", *(f".{{each}}" for each in topics), ".sandbox"):
    module = importlib.import_module(f"{PACKAGE}{{topic}}")
    for name in getattr(module, "__all__", ()):
        getattr(module, name)
print(sorted({{*{MODULES!r}, "openai"}} & sys.modules.keys()))
"""
    done = run_in(environment, tmp_path, "python", "-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", PROJECT["scripts"])
def test_every_command_shows_its_help(environment: Path, tmp_path: Path, command: str) -> None:
    done = run_in(environment, tmp_path, command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: {command} " in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", NEEDS_EXPERIMENT)
def test_a_command_of_the_experiment_names_its_extra_in_one_line(
    environment: Path, tmp_path: Path, command: str
) -> None:
    arguments = {"takeover": (), "takeover-compare": ("a", "b"), "takeover-publish": ("a", "--out", "b")}
    done = run_in(environment, tmp_path, command, *arguments.get(command, ("a",)))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", LACKING)
    assert [*tmp_path.iterdir()] == []


GRAPH = """
from pathlib import Path

from langgraph.graph import START, MessagesState, StateGraph

import evals, handoff, sandbox
from nodes.work import write_note
from langgraph_takeover import SandboxSpec, open_home, run
from model import Scripted

builder = StateGraph(MessagesState)
builder.add_node("write_note", write_note)
builder.add_edge(START, "write_note")
graph = builder.compile()

if __name__ == "__main__":
    note = graph.invoke({"messages": [("user", "Begin.")]})["messages"][-1].text
    spec = SandboxSpec(backend=BACKEND, directory=Path("repository"))
    with open_home("work") as home:
        outcome = run(home, "fix-1", task_id="issue-17", prompt=note, model=Scripted(), sandbox=spec)
    print(outcome.status, outcome.records, "# checked" in outcome.patch)
    print(evals.OWN, handoff.OWN, sandbox.OWN)
"""
MODEL = """
from langchain_core.language_models import GenericFakeChatModel


def Scripted():
    edit = "sed -i '1i # checked' galley/wrap.py"
    replies = [f"```bash\\n{command}\\n```" for command in (edit, "python3 -c 'import galley'")]
    replies.append("<finish>Done.</finish>")
    return GenericFakeChatModel(messages=iter(replies))
"""
WORK = """
def write_note(state):
    return {"messages": [("ai", "Mark the module as checked.")]}
"""


@pytest.mark.slow
def test_a_project_with_modules_of_the_same_names_works(environment: Path, tmp_path: Path) -> None:
    """A project's own `graph.py` and `nodes/` stay its own; ours work beside them, commands included."""
    (task,) = load_tasks(BUNDLED, ["galley__galley-31"])
    task.check_out(tmp_path)
    (tmp_path / task.id).rename(tmp_path / "repository")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "__init__.py").touch()
    (tmp_path / "nodes" / "work.py").write_text(WORK)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "graph.py").write_text(GRAPH.replace("BACKEND", repr(default_backend(allow_process=True))))
    for name in ("evals", "handoff", "sandbox"):
        (tmp_path / f"{name}.py").write_text(f"OWN = {name!r}\n")
    done = run_in(environment, tmp_path, "python", "graph.py")
    assert (done.returncode, done.stderr) == (0, "")
    status, own = done.stdout.splitlines()
    assert status.startswith("finished ('fix-1.first_source_edit'")
    assert status.endswith("True")
    assert own == "evals handoff sandbox"
    record = "work/records/fix-1.first_source_edit"
    for command, shown in (
        (("handoff", "status", "--home", "work"), "finished"),
        (("handoff", "show", record, "--view", "trace"), "galley/wrap.py"),
        (("python", "-m", f"{PACKAGE}.handoff", "verify", record), "fix-1.first_source_edit"),
        (("takeover-detect", record), "first_source_edit"),
        (("takeover-export", record, "--out", "atif"), ""),
        (("sandbox", "probe"), "process"),
    ):
        done = run_in(environment, tmp_path, *command)
        assert done.returncode == 0, (command, done.stderr)
        assert shown in done.stdout, command
    assert [*(tmp_path / "atif").glob("*.json")]
    done = run_in(
        environment, tmp_path, "takeover-notes", record, "--model", "openai:m@http://127.0.0.1:1/v1"
    )
    assert "pip install 'langgraph-takeover[openai]'" in done.stderr.splitlines()[-1]
