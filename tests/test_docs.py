"""Commands in README.md and docs/ work, and their links and files exist.

Blocks marked ```sh run unchanged, in order, in one directory per document. Other commands do not run; the --help
of their program or subcommand must name each of their options.
"""

from __future__ import annotations

import contextlib
import graphlib
import importlib
import importlib.util
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import yaml

from .command_line import call_main
from .conftest import skip_missing
from .test_layers import LAYERS, MODULES, ROOT, imports

DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for place in (ROOT, *(ROOT / name for name in ("docs", "examples", "benchmarks", "tests", *LAYERS)))
    for path in sorted(place.glob("*.md") if place == ROOT else place.rglob("*.md"))
    if "suite" not in path.parts
}
READER_DOCUMENTS = {
    name: text for name, text in DOCUMENTS.items() if "/" not in name or name.startswith("docs/")
}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPTS = {
    script: target.split(":")[0]
    for script, target in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].items()
}
_PROGRAM = (
    rf"(?:(?:{'|'.join(sorted(SCRIPTS, reverse=True))})\s|python (?:-m [a-z]|(?:examples|benchmarks|tests)/))"
)
_INLINE = re.compile(rf"`({_PROGRAM}[^`]*)`")
_OPTION = re.compile(r"--[a-z][a-z-]*")
_ARCHITECTURE = DOCUMENTS["docs/architecture.md"]


def blocks(text: str, kind: str) -> list[str]:
    return [body for of, body in _FENCE.findall(text) if of == kind]


def lines(text: str) -> list[str]:
    """The lines of all command blocks, without comments."""
    found = "\n".join(body for of, body in _FENCE.findall(text) if of != "python").replace("\\\n", " ")
    return [re.sub(r"\s#.*", "", line) for line in found.splitlines()]


def commands(text: str) -> list[tuple[str, ...]]:
    """Our own commands as words, including those in sentences, with optional parts."""
    inline = [" ".join(each.split()) for each in _INLINE.findall(_FENCE.sub("", text))]
    ours = [line for line in (*lines(text), *inline) if re.match(_PROGRAM, line)]
    return [tuple(shlex.split(re.sub(r"[\[\]…]|[|>].*", " ", line))) for line in ours]


def find_unknown(command: tuple[str, ...]) -> list[str]:
    """The parts of a command that do not exist: its program, or its options."""
    if command[0] in SCRIPTS:
        command = ("python", "-m", SCRIPTS[command[0]], *command[1:])
    length = 3 if command[1] == "-m" else 2
    program, rest = command[:length], command[length:]
    if length == 2 and not (ROOT / program[1]).is_file():
        return [program[1]]
    if length == 3 and importlib.util.find_spec(program[2]) is None:
        return [program[2]]
    options = [word.split("=")[0] for word in rest if _OPTION.match(word)]
    # A plain word right after the program is a subcommand; paths and placeholders are no plain words.
    if rest and re.fullmatch("[a-z]+", rest[0]):
        program = (*program, rest[0])
    elif not options:
        return []
    shown = _help(program[1:])
    return [option for option in options if option not in shown] if shown else [" ".join(program)]


def _find_main(module: str) -> Callable[[], None] | None:
    """The main function of a module of ours, by its name in a checkout or in an installation; None for other programs."""
    name = f"langgraph_takeover.{module.removeprefix('langgraph_takeover.')}"
    for each in (f"{name}.__main__", name):
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(each) is not None:
                return getattr(importlib.import_module(each), "main", None)
    return None


@cache
def _help(program: tuple[str, ...]) -> set[str]:
    """The options that a program's help names; none if the program does not exist."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "250", "NO_COLOR": "1"}
    main = _find_main(program[1]) if program[0] == "-m" else None
    if main is not None:
        done = call_main(main, *program[2:], "--help", environment=environment)
        return set(_OPTION.findall(done.stdout)) if done.returncode == 0 else set()
    done = subprocess.run(
        [sys.executable, *program, "--help"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return set(_OPTION.findall(done.stdout)) if done.returncode == 0 else set()


@pytest.mark.slow
def test_commands_that_do_not_run_exist_with_their_options() -> None:
    wrong = {
        f"{name}: {' '.join(command)}": lacking
        for name, text in READER_DOCUMENTS.items()
        for command in commands(text)
        if (lacking := find_unknown(command))
    }
    assert wrong == {}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {
        shlex.split(line)[1]
        for text in READER_DOCUMENTS.values()
        for line in lines(text)
        if line.startswith("make ")
    }
    assert made <= targets


@pytest.mark.slow
def test_an_unknown_command_is_detected() -> None:
    def of(line: str) -> list[str]:
        return find_unknown(commands(f"```\n{line}\n```\n")[0])

    assert of("takeover --view all \\\n    --veiw all  # --no") == ["--veiw"]
    assert of("handoff sho runs/X/records/ID [--view trace]") == [
        "python -m langgraph_takeover.handoff.__main__ sho"
    ]
    assert of("handoff show RECORD [--view trace] [--veiw trace]") == ["--veiw"]
    assert of("python examples/offline_images.py instance ID --tasks PARQUET --taks X") == ["--taks"]
    assert of("python -m langgraph_takeover.evals.takeovr") == ["langgraph_takeover.evals.takeovr"]
    assert of("python examples/swam.py DIRECTORY") == ["examples/swam.py"]
    assert commands("Type `python -m\n   evals.detect X`.") == []  # the -m stays with its module
    assert commands("Type `takeover-detect\n   X`.") == [("takeover-detect", "X")]


def run_document(name: str, directory: Path) -> str:
    """The output of a document's ```sh blocks, run in order."""
    script = "".join(blocks(DOCUMENTS[name], "sh"))
    if "--sandbox host" in script:
        from langgraph_takeover.sandbox.backends.host import unavailable_reason

        if reason := unavailable_reason():
            skip_missing(reason)
    (directory / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{_functions()}\n{script}"],
        cwd=directory,
        env={key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done.stdout


def _functions() -> str:
    """Shell functions that replace the installed programs."""
    programs = {"python": "", **{script: f"-m {module}" for script, module in SCRIPTS.items()}}
    return "\n".join(
        f'{name}() {{ {shlex.quote(sys.executable)} {arguments} "$@"; }}'
        for name, arguments in programs.items()
    )


def rows(directory: Path, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_the_first_five_minutes(tmp_path: Path) -> None:
    shown = run_document("README.md", tmp_path)
    takeovers = rows(tmp_path / "runs" / "first", "takeovers")
    assert len(takeovers) == 9
    assert {row["view"] for row in takeovers} == {"repository", "trace", "structured"}
    assert all(row["resolved"] for row in takeovers)
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
    assert list((tmp_path / "dataset").iterdir()) != []
    assert "killed during: str_replace galley/wrap.py" in shown
    assert "You continue the work of another agent in this repository." in shown


@pytest.mark.slow
def test_an_own_task(tmp_path: Path) -> None:
    shown = run_document("docs/own-tasks.md", tmp_path)
    takeovers, labels = (rows(tmp_path / "runs" / "shop", name) for name in ("takeovers", "labels"))
    assert [row["resolved"] for row in takeovers] == [True] * 4
    assert [row["handoff_state"] for row in labels] == ["already_solved"] * 2
    assert "first_source_edit, action 1:" in shown
    assert "first_validation, action 2: test passed" in shown


def test_every_runnable_block_is_run() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    assert [
        name
        for name, text in READER_DOCUMENTS.items()
        if blocks(text, "sh") and f'run_document("{name}"' not in here
    ] == []


def anchors(text: str) -> set[str]:
    """The headings of a document as its links name them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_link_targets_exist(name: str) -> None:
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", DOCUMENTS[name])):
        if re.match(r"\w+://|mailto:", target):
            continue
        document, _, anchor = target.partition("#")
        path = ((ROOT / name).parent / document).resolve() if document else ROOT / name
        text = path.read_text(encoding="utf-8") if anchor and path.is_file() else ""
        if not path.exists() or (anchor and anchor not in anchors(text)):
            lost.append(target)
    assert lost == []


def test_every_document_is_linked_from_the_index() -> None:
    named = set(re.findall(r"\]\((\w[\w-]*\.md)", DOCUMENTS["docs/index.md"]))
    assert {name for name in DOCUMENTS if name.startswith("docs/")} == {
        "docs/index.md",
        *(f"docs/{name}" for name in named),
    }


def test_the_readme_takes_three_minutes() -> None:
    text = DOCUMENTS["README.md"]
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 1200


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "site" / "embedding" / "index.html").is_file()


def test_files_named_in_the_architecture_exist() -> None:
    named = re.findall(r"`([\w/]+/[\w.]*\w*\.py|[a-z_]+(?:/[a-z_]+)*/)`", _ARCHITECTURE)
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_tests_named_in_compatibility_exist() -> None:
    named = set(re.findall(r"`([\w/]+/test_\w+\.py)`", DOCUMENTS["docs/compatibility.md"]))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []


def _room(module: str) -> str:
    """The box of a module of evals in the figure: its package, or the commands."""
    first = module.split(".")[1]
    return first if (ROOT / "evals" / first).is_dir() else "commands"


def test_the_figure_matches_the_imports() -> None:
    (figure,) = blocks(_ARCHITECTURE, "mermaid")
    drawn = {
        (a.rstrip("_"), b.rstrip("_")) for a, b in re.findall(r"^ *(\w+) --> (\w+)$", figure, re.MULTILINE)
    }
    real, packages = set(), set()
    for path in MODULES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in imports(path):
            packages.add((module.split(".")[0], name.split(".")[0]))
            if module.startswith("evals.") and name.startswith("evals."):
                real.add((_room(module), _room(name)))
    neighbours = {(right, left) for left, right in itertools.pairwise(LAYERS)}
    assert neighbours <= packages
    assert drawn == neighbours | {(a, b) for a, b in real if a != b}
    rooms = {init.parent.name for init in (ROOT / "evals").glob("*/__init__.py")}
    assert {box for arrow in drawn for box in arrow} == {*LAYERS, *rooms, "commands"}
    inside = graphlib.TopologicalSorter[str]()
    for importing, imported in real:
        if importing != imported:
            inside.add(importing, imported)
    inside.prepare()  # raises CycleError, which names the circle


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["version"] == version
    assert f"## {version}" in DOCUMENTS["CHANGELOG.md"]
