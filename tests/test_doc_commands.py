"""Each command of our programs that a reader can see is accepted by the program's own parser, and each run can be planned.

Commands come from README.md, docs/, examples/ and CONTRIBUTING.md, from the help of each program, and from every text in
the code (error messages, docstrings). Files are placeholders.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from langgraph_takeover.evals import models
from langgraph_takeover.evals.cli.command_options import OPTIONS
from langgraph_takeover.evals.models.factory import build_agent_model
from langgraph_takeover.evals.run import preparation
from langgraph_takeover.evals.run.settings.config import RunConfig, read_stages, shorten_model_name
from langgraph_takeover.evals.run.settings.study import get_study
from langgraph_takeover.handoff.names import AGENT_NAMES
from langgraph_takeover.handoff.views import find_view

from .test_docs import DOCUMENTS, SCRIPTS, commands
from .test_layers import LAYERS, ROOT

_MODULES = {
    script: module if script != "handoff" else "langgraph_takeover.graph.cli.handoff_cli"
    for script, module in SCRIPTS.items()
}
_BY_MODULE = {
    **{module: script for script, module in SCRIPTS.items()},
    **{module.removeprefix("langgraph_takeover."): script for script, module in SCRIPTS.items()},
    "handoff": "handoff", "langgraph_takeover.handoff": "handoff", "sandbox": "sandbox", "langgraph_takeover.sandbox": "sandbox",
}  # fmt: skip
_OPENER = r"(?:[(`]|: |; |\bor |\bfirst: |\bwith: |^)"
_IN_TEXT = re.compile(
    rf"{_OPENER}(?P<command>(?:{'|'.join(sorted(SCRIPTS, reverse=True))}) (?:--?[a-z]|[a-z]+\b)[^\n`;)(,]*)",
    re.MULTILINE,
)


def parse(words: tuple[str, ...], *, is_complete: bool) -> dict[str, Any] | None:
    """The parsed values of a command; None if it lacks something that a sentence may leave out. Raises ClickException."""
    program, arguments = words[0], list(words[1:])
    command: Any = _load(program)
    name = program
    if hasattr(command, "commands"):
        if not arguments:
            return None
        if arguments[0] not in command.commands and not arguments[0].startswith("-"):
            raise typer.BadParameter(f"no such subcommand: {arguments[0]}")
        if arguments[0] in command.commands:
            name, command = arguments[0], command.commands[arguments[0]]
            arguments = arguments[1:]
    if "--help" in arguments:
        return None
    try:
        with command.make_context(name, arguments) as context:
            return dict(context.params) | {"": context}
    except typer.BadParameter as error:
        if type(error).__name__ == "MissingParameter" and not is_complete:
            return None
        raise


@cache
def _load(program: str) -> Any:
    return typer.main.get_command(import_module(_MODULES[program]).app)


def find_problem(words: tuple[str, ...], directory: Path, *, is_complete: bool = True) -> str:
    """What the program would refuse; empty if nothing."""
    try:
        values = parse(words, is_complete=is_complete)
        if values is None:
            return ""
        if words[0] == "takeover":
            plan(values, directory)
        elif words[0] == "handoff":
            check_names(values)
    except typer.BadParameter.__mro__[2] as error:
        return error.format_message()  # type: ignore[attr-defined, no-any-return]
    except SystemExit as error:
        return f"exit code {error.code}" if error.code else ""
    except preparation.usage_errors() as error:
        return str(error)
    return ""


def plan(values: dict[str, Any], directory: Path) -> None:
    """Plan a run as `--dry-run` does, with bundled tasks and a models file that has every named entry."""
    context = values.pop("")
    explicit = {name for name in values if context.get_parameter_source(name).name == "COMMANDLINE"}
    read_stages(values["stages"])
    options = {name: values[name] for name in OPTIONS if name in values}
    roles = ("model", "predecessor", "successor", "notes_model")
    names = [name for role in roles for name in _as_list(options[role])]
    parsed = [models.parse_model_name(name) for name in names]
    entries = {each.rest: {"base_url": "http://127.0.0.1:9/v1"} for each in parsed if each.kind == "entry"}
    if options["models"] is None and entries:
        raise preparation.RunUsageError(f"--models: missing, for {', '.join(entries)}")
    if entries:
        options["models"] = directory / "models.yaml"
        options["models"].write_text(yaml.safe_dump(entries))
    else:
        options["models"] = None
    if any(each.kind == "replay" for each in parsed):
        options |= {role: None if role != "model" else "builtin:oracle" for role in roles}
    if options["study"] is not None:
        get_study(options["study"])
    if options["study"] is not None or options["tasks"] != "bundled":
        options |= {"tasks": "bundled", "task_ids": None, "shard": None, "study": None, "records_of": None}
    if values["resume"]:
        return
    options["records_of"] = None
    config, _ = preparation.resolve_run(
        preparation.parse_options(options), explicit, directory / "out", resume=False
    )
    check_models(config)


def check_models(config: RunConfig) -> None:
    writers = map(config.choose_writer, config.predecessors)
    for name in dict.fromkeys((*config.predecessors, *config.successors, *writers)):
        models.check_model(name, (), config.base_url or "http://127.0.0.1:9/v1", config.models)
        assert re.fullmatch(r"[\w-]+", shorten_model_name(name))


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def check_names(values: dict[str, Any]) -> None:
    agent, view, model = (values.get(each) for each in ("agent", "view", "model"))
    if isinstance(agent, str) and not agent.isupper() and agent not in AGENT_NAMES:
        raise typer.BadParameter(f"--agent: unknown agent {agent}")
    if isinstance(view, str) and not view.isupper():
        try:
            find_view(view)
        except ValueError as error:
            raise typer.BadParameter(f"--view: {error}") from None
    if isinstance(model, str):
        build_agent_model(agent or "codex", model.replace("@URL", "@http://127.0.0.1:9/v1"))


def list_document_commands() -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, text in DOCUMENTS.items():
        if name.startswith(("docs/", "examples/")) or "/" not in name:
            filled = re.sub(r"(--[a-z-]+[ =]\"?)…", r"\1X", text.replace("\u00a0", " "))
            for words in commands(re.sub(r"(--[a-z-]+) [NK]\b", r"\1 1", filled)):
                if (found := _name_program(words)) is not None:
                    yield name, found


def _name_program(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """The command with the name of its script; None for other programs."""
    if words[0] in SCRIPTS:
        words = tuple(word for word in words if word.strip())
        return None if "<-" in words else words
    if words[1:2] == ("-m",) and words[2] in _BY_MODULE:
        return (_BY_MODULE[words[2]], *words[3:])
    return None


def list_help_commands() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The examples in the help of each program and subcommand, of which one may take several lines."""
    for script in SCRIPTS:
        root: Any = _load(script)
        for command in (root, *getattr(root, "commands", {}).values()):
            for block in re.split(r"\n(?!   )", command.epilog or ""):
                text = re.sub(r"\s#.*", "", " ".join(block.split()))
                if text.split(" ")[0] in SCRIPTS:
                    text = re.split(r" (?:\||&&|[<>])", text)[0]
                    yield f"{script} {command.name} --help", tuple(shlex.split(text))


def list_texts(tree: ast.AST) -> Iterator[str]:
    """Every text of a module, with X for what it is filled with."""
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            inner.update(map(id, node.values))
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def list_code_commands() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The commands in messages, docstrings and other texts of the code."""
    for layer in (*LAYERS, "examples", "benchmarks"):
        for path in sorted((ROOT / layer).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if not any(f"{script} " in source for script in SCRIPTS):
                continue
            for text in list_texts(ast.parse(source)):
                for match in _IN_TEXT.finditer(text):
                    words = re.sub(r"[\[\]…]|[|>&'\".].*", " ", match["command"]).split()
                    if _is_command(words):
                        yield str(path.relative_to(ROOT)), tuple(words)


def _is_command(words: list[str]) -> bool:
    if words[0] in ("handoff", "sandbox"):
        return len(words) > 1 and words[1] in _load(words[0]).commands
    return len(words) > 1 and words[1].startswith("--")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "key-of-the-runtime")
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "TAKEOVER_RUNS", "TAKEOVER_JOURNAL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("keys")
def test_each_command_of_the_documents_is_accepted(tmp_path: Path) -> None:
    found = {*list_document_commands(), *list_help_commands()}
    assert len(found) > 100
    wrong = {
        f"{name}: {' '.join(words)}": problem
        for name, words in sorted(found)
        if (problem := find_problem(words, tmp_path, is_complete=name.endswith("--help")))
    }
    assert wrong == {}


@pytest.mark.usefixtures("keys")
def test_each_command_in_a_text_of_the_code_is_accepted(tmp_path: Path) -> None:
    found = set(list_code_commands())
    assert len(found) > 20
    wrong = {
        f"{name}: {' '.join(words)}": problem
        for name, words in sorted(found)
        if (problem := find_problem(words, tmp_path, is_complete=False))
    }
    assert wrong == {}


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("takeover --veiw all", "--veiw"),
        ("takeover --view al", "al"),
        ("takeover --resume DIR", "exit code 2"),
        ("takeover --predecessor codex:natve:gpt-5.5", "unknown model"),
        ("takeover --predecessor native:gpt-5.5", "name the agent"),
        ("takeover --model worker", "--models"),
        ("takeover --points first_edit", "first_edit"),
        ("takeover --study man", "man"),
        ("handoff sho ID", "sho"),
        ("handoff show ID --point", "--point"),
        ("handoff show ID --protocol json", "json"),
        ("handoff continue ID --agent cdx", "cdx"),
        ("handoff continue ID --agent codex --sandbox host --model nativ:m", "native:NAME"),
        ("takeover-detect --formt x", "--formt"),
    ],
)
def test_a_wrong_command_is_detected(tmp_path: Path, command: str, problem: str) -> None:
    assert problem in find_problem(tuple(command.split()), tmp_path)


@pytest.mark.cases(6)
@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("role", ["--model", "--predecessor", "--successor", "--notes-model"])
@pytest.mark.parametrize("agent", AGENT_NAMES)
def test_a_vendors_model_is_accepted_in_each_role(tmp_path: Path, role: str, agent: str) -> None:
    for name in (f"{agent}:native:gpt-5.5", f"{agent}:openai:m@http://127.0.0.1:9/v1", f"{agent}:openai:m"):
        assert find_problem(("takeover", role, name, "--view", "all"), tmp_path) == ""
