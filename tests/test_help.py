"""The help of each command fits a screen of 80 columns, and says where the details of each option are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from langgraph_takeover.evals.cli.command_options import PANELS
from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.agents.session_files import AGENTS
from langgraph_takeover.handoff.names import AGENT_NAMES
from langgraph_takeover.handoff.readers import FORMATS

from .test_docs import DOCUMENTS, SCRIPTS

_COLUMNS, _LINES, _LINES_OF_TAKEOVER = 80, 60, 110


def list_commands() -> Iterator[tuple[str, ...]]:
    """Every program, and each of its subcommands."""
    for script in SCRIPTS:
        yield (script,)
        for name in getattr(typer.main.get_command(load_app(script)), "commands", ()):
            yield (script, name)


def load_app(script: str) -> Any:
    module = SCRIPTS[script]
    return import_module("langgraph_takeover.graph.cli.handoff_cli" if script == "handoff" else module).app


@pytest.mark.cases(10)
@pytest.mark.parametrize("command", list(list_commands()), ids=" ".join)
def test_help_fits_a_screen(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(_COLUMNS))
    script, *names = command
    done = CliRunner().invoke(load_app(script), [*names, "--help"], prog_name=script)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert len(lines) <= (_LINES_OF_TAKEOVER if script == "takeover" else _LINES)
    assert [line for line in lines if len(line) > _COLUMNS] == []
    assert "Examples:" in lines
    assert any(line.startswith(f"  {' '.join(command)}") for line in lines[lines.index("Examples:") :])


def test_the_page_of_options_has_every_option() -> None:
    sections = re.split(r"^## ", DOCUMENTS["docs/options.md"], flags=re.MULTILINE)[1:]
    documented = {
        section.partition("\n")[0]: re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE)
        for section in sections
    }
    assert documented == {
        panel: ["--from" if name == "records_of" else f"--{name.replace('_', '-')}" for name in options]
        for panel, options in PANELS.items()
    }


@pytest.mark.parametrize(
    ("command", "names"),
    [("handoff continue", AGENT_NAMES), ("handoff capture", AGENTS), ("takeover-detect", FORMATS)],
)
def test_the_help_names_every_agent_and_format(command: str, names: tuple[str, ...]) -> None:
    script, *rest = command.split()
    shown = CliRunner().invoke(load_app(script), [*rest, "--help"], prog_name=script).stdout
    assert [name for name in names if not re.search(rf"(?<![\w-]){name}(?![\w-])", shown)] == []


@pytest.mark.parametrize("page", ["options", "switching-agents", "external-agents", "traces"])
def test_the_pages_on_agents_name_every_agent(page: str) -> None:
    assert {*AGENT_NAMES} == {*ADAPTERS}
    quoted = re.findall(r"`([a-z-]+)`", DOCUMENTS[f"docs/{page}.md"])
    needed = {
        "options": AGENT_NAMES,
        "external-agents": AGENT_NAMES,
        "switching-agents": (*AGENT_NAMES, *AGENTS),
    }
    assert {*needed.get(page, AGENTS)} - {*quoted} == set()
