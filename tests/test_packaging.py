"""What is built from the tree is whole, is nothing but the packages, and runs from wherever it is installed."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("sandbox", "handoff", "nodes", "graph", "evals")
COMMANDS = [
    "handoff",
    "sandbox",
    *(
        f"evals.{name}"
        for name in ("takeover", "report", "compare", "publish", "export", "detect", "poison", "notes")
    ),
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def tracked() -> list[str]:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True)
    return listed.stdout.decode().rstrip("\0").split("\0")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git tracks, so that nothing else that lies about can be in it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in tracked():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    asked = [
        "wheel",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--wheel-dir",
        out,
        source,
    ]
    subprocess.run([sys.executable, "-m", "pip", *asked], check=True)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    asked = ["install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel]
    subprocess.run([sys.executable, "-m", "pip", *asked], check=True)
    return target


def ran(installed: Path, cwd: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert names == {name for name in tracked() if name.split("/")[0] in PACKAGES}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


@pytest.mark.slow
def test_the_main_command_runs_where_it_is_installed(installed: Path, tmp_path: Path) -> None:
    from langgraph_takeover.sandbox import default_backend

    point = ("--task-ids", "galley__galley-31", "--points", "first_source_edit", "--view", "structured")
    how = ("--sandbox", default_backend(), "--workers", "2", "--out", tmp_path / "out")
    done = ran(installed, tmp_path, "-m", "evals.takeover", *point, *how)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out" / "takeovers.jsonl").read_text().splitlines()]
    assert {row["view"]: row["resolved"] for row in rows} == {"repository": True, "structured": True}
    assert (tmp_path / "out" / "report.html").is_file()
    told = ran(installed, tmp_path, "-c", "import evals; print(evals.__file__)").stdout
    assert Path(told.strip()).is_relative_to(installed)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_there(installed: Path, tmp_path: Path, command: str) -> None:
    done = ran(installed, tmp_path, "-m", command, "--help")
    assert done.returncode == 0, done.stderr
    assert f"python -m {command}" in done.stdout


@pytest.mark.slow
def test_a_stranger_of_the_same_name_is_named(installed: Path, tmp_path: Path) -> None:
    for name in ("nodes", "graph"):
        stranger = tmp_path / name / f"{name}.py"
        stranger.parent.mkdir()
        stranger.touch()
        done = ran(installed, stranger.parent, "-m", "evals.takeover", "--help")
        assert done.returncode != 0
        (line,) = done.stderr.splitlines()
        assert f"own package '{name}', {installed / name}, but Python finds {stranger}; rename that" in line
    done = ran(installed, tmp_path / "nodes", "-c", "from graph import run")
    assert "own package 'nodes'" in done.stderr.splitlines()[-1]


MISSING = {
    "ray": ("ray", "from evals.cluster.connection import connect; connect('auto')"),
    "s3": ("s3fs", "from sandbox.snapshots.transfer import import_; import_('s3://bucket/x', Path('store'))"),
    "contract": ("pytest", "import sandbox.contract"),
    "postgres": ("psycopg", "from handoff.ledger import Ledger; Ledger('postgresql://127.0.0.1/x')"),
}


@pytest.mark.slow
@pytest.mark.parametrize("extra", MISSING)
def test_a_missing_extra_is_named(installed: Path, tmp_path: Path, extra: str) -> None:
    module, program = MISSING[extra]
    script = f"import sys; from pathlib import Path; sys.modules['{module}'] = None; {program}"
    done = ran(installed, tmp_path, "-c", script)
    assert f"pip install '.[{extra}]' in the checkout of langgraph-takeover" in done.stderr.splitlines()[-1]


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    needed = {_plain(name) for name in PROJECT["dependencies"]}
    extra = {_plain(name) for names in PROJECT["optional-dependencies"].values() for name in names}
    used: set[str] = set()
    for module in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        if "suite" in module.parts:
            continue
        for name in _imported(module):
            brought_by = _distributions(name)
            assert brought_by & (needed | extra), f"{module}: {name} is not in pyproject.toml"
            used |= brought_by
    assert needed <= used, "pyproject.toml names what nothing imports"


BROUGHT_BY = packages_distributions()


def _distributions(name: str) -> set[str]:
    """Those that bring the module; several share the top of LangGraph's packages."""
    parts = name.split(".")
    if parts[0] == "langgraph":
        saver = parts[1] == "checkpoint" and parts[2] in ("sqlite", "postgres")
        return {f"langgraph-checkpoint-{parts[2]}" if saver else "langgraph"}
    return {_plain(each) for each in BROUGHT_BY.get(parts[0], ())}


def _imported(module: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    return {name for name in names if name.split(".")[0] not in {*sys.stdlib_module_names, *PACKAGES}}


def _plain(requirement: str) -> str:
    return re.split(r"[\[<>=~! ]", requirement)[0].lower().replace("_", "-")
