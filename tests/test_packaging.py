"""Built distributions contain the packages and nothing else, and run wherever they are installed."""

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

from langgraph_takeover.evals.cli.runner import MODULES

from .wheels import ROOT, build_wheel, list_tracked_files

PACKAGE = "langgraph_takeover"
LAYERS = ("sandbox", "handoff", "nodes", "graph", "evals")
PARTS = (f"{PACKAGE}/base", *LAYERS, f"{PACKAGE}/testing")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("distribution"))


@pytest.fixture(scope="module")
def wheel_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    arguments = ["install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel]
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)
    return target


def run_installed(installed: Path, cwd: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
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
    links = {f"{PACKAGE}/{layer}" for layer in LAYERS}
    own = {name for name in list_tracked_files() if name.startswith(f"{PACKAGE}/")} - links
    assert names == own | {
        f"{PACKAGE}/{name}" for name in list_tracked_files() if name.split("/")[0] in LAYERS
    }
    assert f"{PACKAGE}/py.typed" in names


@pytest.mark.slow
def test_the_main_command_runs_from_an_installation(wheel_environment: Path, tmp_path: Path) -> None:
    from langgraph_takeover.sandbox import default_backend

    point = ("--task-ids", "galley__galley-31", "--points", "first_source_edit", "--view", "structured")
    how = ("--sandbox", default_backend(allow_process=True), "--workers", "2", "--out", tmp_path / "out")
    done = run_installed(wheel_environment, tmp_path, "-m", f"{PACKAGE}.evals.takeover", *point, *how)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out" / "takeovers.jsonl").read_text().splitlines()]
    assert {row["view"]: row["resolved"] for row in rows} == {"repository": True, "structured": True}
    assert (tmp_path / "out" / "report.html").is_file()
    location = run_installed(
        wheel_environment, tmp_path, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)"
    ).stdout
    assert Path(location.strip()).is_relative_to(wheel_environment)


@pytest.mark.slow
@pytest.mark.parametrize("command", PROJECT["scripts"])
def test_every_console_script_works(wheel_environment: Path, tmp_path: Path, command: str) -> None:
    done = subprocess.run(
        [wheel_environment / "bin" / command, "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(wheel_environment)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"Usage: {command} " in done.stdout


@pytest.mark.slow
def test_a_file_of_a_package_s_short_name_does_no_harm(wheel_environment: Path, tmp_path: Path) -> None:
    """`graph.py` is the most common file name in LangGraph projects."""
    (tmp_path / "graph.py").write_text("from langgraph_takeover import run\nprint(run.__module__)\n")
    done = run_installed(wheel_environment, tmp_path, "graph.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{PACKAGE}.graph.runs.api\n", "")
    done = run_installed(wheel_environment, tmp_path, "-c", "import sandbox")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'sandbox'"


@pytest.mark.slow
def test_a_checkout_s_short_names_are_the_same_modules() -> None:
    program = f"""
import sys, pickle
from graph import run
import graph.runs.api, sandbox.interface, evals.tasks
from {PACKAGE} import run as same
from {PACKAGE}.graph.runs import api
from {PACKAGE}.sandbox.interface import SandboxSpec
assert run is same is api.run
assert graph.runs.api is api
assert sandbox.interface.SandboxSpec is SandboxSpec
assert api.__name__ == api.__spec__.name == "{PACKAGE}.graph.runs.api"
assert pickle.loads(pickle.dumps(SandboxSpec)) is SandboxSpec
files = [module.__file__ for name, module in sys.modules.items() if name.startswith("{PACKAGE}.")]
assert len(files) == len(set(files)) > 50
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.cases(1)
@pytest.mark.parametrize("module", ["sandbox", "handoff", "evals.detect"])
def test_a_checkout_runs_modules_by_their_short_names(module: str) -> None:
    arguments = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: python -m {module} " in done.stdout


@pytest.mark.slow
def test_an_editable_installation_has_the_same_names(tmp_path: Path) -> None:
    """From another directory the package can be imported, and the short names cannot."""
    arguments = [
        *("install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"),
        *("--target", tmp_path / "site", "--editable", ROOT),
    ]
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)
    program = f"""
import site, sys
site.addsitedir({str(tmp_path / "site")!r})
from {PACKAGE} import run
print(sys.modules["{PACKAGE}.graph.runs.api"].__file__)
try:
    import graph
except ModuleNotFoundError:
    print("no short name")
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    file, short = done.stdout.splitlines()
    assert Path(file).samefile(ROOT / "graph" / "runs" / "api.py")
    assert short == "no short name"


MISSING = {
    "ray": ("ray", "from langgraph_takeover.evals.cluster.ray_executor import connect; connect('auto')"),
    "s3": (
        "s3fs",
        "from langgraph_takeover.sandbox.snapshots.transfer import import_snapshot; "
        "import_snapshot('s3://bucket/x', Path('store'))",
    ),
    "contract": ("pytest", "import langgraph_takeover.testing.sandboxes"),
    "langchain": ("langchain", "import langgraph_takeover.middleware"),
    "deepagents": ("deepagents", "import langgraph_takeover.deepagents"),
    "mcp": (
        "mcp",
        "from langgraph_takeover.handoff.__main__ import main; "
        "sys.argv = ['handoff', 'mcp', '--as', 'codex']; main()",
    ),
    "openai": (
        "langchain_openai",
        "from langgraph_takeover.models import ModelEntry, build_chat_model; "
        "build_chat_model(ModelEntry(model='qwen', base_url='http://127.0.0.1:8091/v1'))",
    ),
    "postgres": (
        "psycopg",
        "from langgraph_takeover.handoff.ledger import Ledger; Ledger('postgresql://127.0.0.1/x')",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("extra", MISSING)
def test_a_missing_extra_is_named(wheel_environment: Path, tmp_path: Path, extra: str) -> None:
    module, program = MISSING[extra]
    script = f"import sys; from pathlib import Path; sys.modules['{module}'] = None; {program}"
    done = run_installed(wheel_environment, tmp_path, "-c", script)
    assert f"pip install 'langgraph-takeover[{extra}]'" in done.stderr.splitlines()[-1]


SCOPES = {
    "langgraph_takeover/base": ("otel",),
    "langgraph_takeover/testing": ("contract",),
    "sandbox/snapshots": ("s3",),
    "graph/checkpoints": ("postgres",),
    "graph/own_graphs": ("langchain", "deepagents"),
    "graph/mcp": ("mcp",),
    "graph/langgraph_server.py": ("dev",),  # LangGraph's server imports it
    "evals": ("evals",),
    "evals/models": ("openai",),
    "evals/cluster": ("ray",),
}
"""The extras that a package may import beside the base. The innermost package applies."""


def list_modules(package: str) -> list[Path]:
    """The modules of a package. The driver runs in the interpreter of mini-swe-agent."""
    modules = (ROOT / package).rglob("*.py")
    return [each for each in modules if "suite" not in each.parts and each.name != "mini_driver.py"]


@pytest.mark.cases(2)
@pytest.mark.parametrize("layer", [*PARTS, PACKAGE])
def test_a_layer_imports_the_base_and_the_extras_of_its_scope(layer: str) -> None:
    modules = list_modules(layer) if layer != PACKAGE else list((ROOT / PACKAGE).glob("*.py"))
    assert modules
    for module in modules:
        places = (module, *module.parents)
        folders = [str(each.relative_to(ROOT)) for each in places if each.is_relative_to(ROOT)]
        scope = next((folder for folder in folders if folder in SCOPES), None)
        allowed = BASE.union(*(read_extra(each) for each in SCOPES.get(scope or "", ())))
        for name in _list_imported_modules(module):
            assert _distributions(name) & allowed, f"{module}: {name} is not in the base or in an extra"


def test_no_dependency_is_declared_in_vain() -> None:
    """Of extras without a scope, such as `s3`, the user imports the packages, or other packages do."""
    used = {
        brought
        for layer in PARTS
        for module in list_modules(layer)
        for name in _list_imported_modules(module)
        for brought in _distributions(name)
    }
    scoped = {extra for extras in SCOPES.values() for extra in extras} - {"dev", "s3"}
    assert BASE.union(*map(read_extra, scoped)) <= used
    assert not BASE & set().union(*map(read_extra, scoped))


def test_commands_know_the_modules_of_the_experiment() -> None:
    brought = {name for module in MODULES for name in _distributions(module)}
    assert brought == read_extra("evals") - read_extra("openai")


BROUGHT_BY = packages_distributions()


def _distributions(name: str) -> set[str]:
    """The distributions that provide the module; several share the top of LangGraph's packages."""
    parts = name.split(".")
    if parts[0] == "langgraph":
        saver = parts[1] == "checkpoint" and parts[2] in ("sqlite", "postgres")
        return {f"langgraph-checkpoint-{parts[2]}" if saver else "langgraph"}
    if parts[0] == "deepagents":  # in an environment of its own
        return {"deepagents"}
    return {_plain(each) for each in BROUGHT_BY.get(parts[0], ())}


def _list_imported_modules(module: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    return {name for name in names if name.split(".")[0] not in {*sys.stdlib_module_names, PACKAGE}}


def read_extra(name: str) -> set[str]:
    """The packages of an extra, including those of the extras that it names."""
    found: set[str] = set()
    for requirement in PROJECT["optional-dependencies"][name]:
        inner = re.match(rf"{PROJECT['name']}\[(\w+)\]", requirement)
        found |= read_extra(inner[1]) if inner else {_plain(requirement)}
    return found


def _plain(requirement: str) -> str:
    return re.split(r"[\[<>=~! ]", requirement)[0].lower().replace("_", "-")


BASE = {_plain(name) for name in PROJECT["dependencies"]}
