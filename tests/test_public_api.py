"""The public API: its names, its documentation, and that every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import pytest

import langgraph_takeover
from langgraph_takeover import hand_over, open_home, run
from langgraph_takeover.evals.models.facts import read_facts
from langgraph_takeover.evals.models.oracle import OracleModel
from langgraph_takeover.evals.tasks import BUNDLED, Task, load_tasks
from langgraph_takeover.sandbox import SandboxSpec, default_backend

ROOT = Path(__file__).parents[1]
TOPICS = [
    importlib.import_module(f"langgraph_takeover{name}")
    for name in ("", ".protocol", ".models", ".views", ".sandbox", ".integrations", ".detection", ".errors")
]
MAX_TOP_LEVEL_NAMES = 25
_PROMPT = '"Make the tests pass."'
_NEEDS_NEW_THREAD = {"open_run", "run", "open_home"}
"""Their examples start from nothing; those of the others continue from the thread `fix-1`."""
_NEEDS_HANDOFF = {"deliver", "Delivery", "roll_back", "Rollback"}


def public_names(module: ModuleType) -> list[str]:
    return list(module.__all__)


def documented_objects() -> dict[str, Any]:
    """The public classes and functions except errors, by name. Aliases of types have no docstring of their own."""
    found = {
        name: getattr(module, name)
        for module in TOPICS
        for name in public_names(module)
        if get_origin(getattr(module, name)) is None
    }
    return {
        name: each
        for name, each in found.items()
        if (inspect.isclass(each) or inspect.isfunction(each))
        and (name == "TakeoverError" or not (inspect.isclass(each) and issubclass(each, Exception)))
    }


@pytest.fixture(scope="module")
def task() -> Task:
    (task,) = load_tasks(BUNDLED, ["galley__galley-31"])
    return task


@pytest.fixture(scope="module")
def sandbox_spec(task: Task, tmp_path_factory: pytest.TempPathFactory) -> SandboxSpec:
    directory = tmp_path_factory.mktemp("repository")
    task.check_out(directory)
    return task.build_spec(default_backend(allow_process=True), "public-api", directory)


@pytest.fixture(scope="module")
def model(task: Task) -> OracleModel:
    assert task.directory is not None
    return OracleModel(facts=(read_facts(task.directory),))


@pytest.fixture(scope="module")
def finished(
    task: Task, model: OracleModel, sandbox_spec: SandboxSpec, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A home with the finished thread `fix-1`, to copy."""
    directory = tmp_path_factory.mktemp("finished") / "home"
    with open_home(directory) as home:
        run(home, "fix-1", task_id="issue-17", prompt=task.prompt, model=model, sandbox=sandbox_spec)
    return directory


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", documented_objects())
def test_the_example_runs(
    name: str,
    finished: Path,
    model: OracleModel,
    task: Task,
    sandbox_spec: SandboxSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    documentation = inspect.getdoc(documented_objects()[name])
    assert documentation is not None
    assert "Example:" in documentation
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {each: getattr(langgraph_takeover, each) for each in langgraph_takeover.__all__}
    names |= {"model": model, "sandbox_spec": sandbox_spec}
    is_new = name in _NEEDS_NEW_THREAD
    directory = tmp_path / "home" if is_new else Path(shutil.copytree(finished, tmp_path / "home"))
    # The built-in model knows its task by the statement.
    text = documentation.replace(_PROMPT, repr(task.prompt))
    output: list[str] = []
    with open_home(directory) as home:
        names["home"] = home
        if not is_new:
            names["record"] = home.records.load("fix-1.first_validation")
        if name in _NEEDS_HANDOFF:
            names["handoff"] = hand_over(home, "fix-1.first_validation", target="tester")
        example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
        assert example.examples
        doctest.DocTestRunner(verbose=False).run(example, out=output.append)
    assert "".join(output) == ""


def test_there_are_few_names_at_the_top() -> None:
    assert len(langgraph_takeover.__all__) <= MAX_TOP_LEVEL_NAMES
    assert len(set(langgraph_takeover.__all__)) == len(langgraph_takeover.__all__)


@pytest.mark.parametrize("module", TOPICS, ids=lambda module: module.__name__)
def test_completion_lists_every_public_name(module: ModuleType) -> None:
    assert set(public_names(module)) <= set(dir(module))


def test_a_name_means_the_same_object_everywhere() -> None:
    for module in TOPICS:
        for name in public_names(module):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                assert getattr(importlib.import_module(value.__module__), name) is value


def test_every_public_error_has_the_common_base() -> None:
    (errors,) = (module for module in TOPICS if module.__name__.endswith(".errors"))
    for name in public_names(errors):
        error = getattr(errors, name)
        assert name.endswith("Error")
        assert issubclass(error, langgraph_takeover.TakeoverError)


def test_every_documented_error_is_exported() -> None:
    """A name that ends in Error, in a public docstring or one of a public class's methods, can be imported to catch it."""
    exported = set(public_names(importlib.import_module("langgraph_takeover.errors")))
    for name, value in documented_objects().items():
        parts = [value, *(vars(value).values() if inspect.isclass(value) else ())]
        for part in parts:
            text = (inspect.getdoc(part) or "") if callable(part) else ""
            words = {word.strip("`.,:;()") for word in text.partition("Example:")[0].split()}
            raised = {word for word in words if word.endswith("Error") and word != "Error"}
            builtin = {word for word in raised if word in dir(__builtins__) or word in __builtins__}  # type: ignore[operator]
            assert raised - builtin <= exported, name


def test_options_are_keyword_only() -> None:
    for module in TOPICS:
        for name in public_names(module):
            value = getattr(module, name)
            if inspect.isfunction(value):
                positional = [
                    each
                    for each in inspect.signature(value).parameters.values()
                    if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
                ]
                limit = 3 if name == "restore" else 2  # a snapshot, its store, and the caller's isolation
                assert len(positional) <= limit, name
                assert "" not in [each.default for each in positional], name


def test_importing_the_package_imports_neither_langgraph_nor_sqlalchemy() -> None:
    program = (
        "import sys, langgraph_takeover; print({'langgraph', 'sqlalchemy', 'docker'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
