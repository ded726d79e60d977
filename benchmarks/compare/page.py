"""The comparison as a file and as a page: the measured table, then the code of each task, taken from the programs."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import yaml
from jinja2 import Template
from pydantic import BaseModel

from benchmarks.compare.environments import PROJECTS, REQUIREMENTS
from benchmarks.compare.runs import PROGRAMS, ROOT
from benchmarks.compare.scripts import TASKS

RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "comparison.md"
_TEMPLATE = Path(__file__).with_name("template.txt")
_OFFERS = Path(__file__).with_name("offers.yaml")


class Result(BaseModel, frozen=True, extra="forbid"):
    """The measurements of one project in one task."""

    task: str
    project: str
    cells: dict[str, str]
    """Values by the labels of their rows."""


class Comparison(BaseModel, frozen=True, extra="forbid"):
    """A whole comparison."""

    date: str
    versions: dict[str, str]
    results: tuple[Result, ...]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=1) + "\n")


def load_results(path: Path = RESULTS) -> Comparison:
    """Load a stored comparison. Raises OSError and ValueError."""
    return Comparison.model_validate_json(path.read_text())


def load_offers() -> dict[str, dict[str, tuple[str, str]]]:
    """Load the offers of the projects: a text and a link to its source, by task and project."""
    offers: dict[str, dict[str, tuple[str, str]]] = yaml.safe_load(_OFFERS.read_text())
    return offers


def format_page(comparison: Comparison) -> str:
    """Return the page as Markdown."""
    requirements = {path.stem: path.read_text().splitlines() for path in REQUIREMENTS.glob("*.txt")}
    counts = {name: len(requirements[name]) for name in PROJECTS if name in requirements}
    text: str = Template(_TEMPLATE.read_text(), keep_trailing_newline=True).render(
        date=comparison.date,
        versions=_join(comparison.versions),
        table=format_table(comparison),
        packages=_join(counts),
        tasks=TASKS,
        projects=PROJECTS,
        read_program=_read_program,
    )
    return text


def format_table(comparison: Comparison) -> str:
    """Return the measured values as one Markdown table, with a section per task."""
    offers = load_offers()
    names = [name for name in PROJECTS if any(each.project == name for each in comparison.results)]
    lines = [
        _format_row("", [PROJECTS[name].title for name in names]),
        _format_row("---", ["---"] * len(names)),
    ]
    for number, (task, about) in enumerate(TASKS.items(), 1):
        cells = {each.project: each.cells for each in comparison.results if each.task == task}
        if not cells:
            continue
        lines.append(_format_row(f"**{number}. {about.title}**", [""] * len(names)))
        links = [f"[{text}]({page})" for text, page in (offers[task][name] for name in names)]
        lines.append(_format_row("Offered", links))
        for label in next(iter(cells.values())):
            lines.append(_format_row(label, [cells[name][label] if name in cells else "–" for name in names]))
        lines.append(_format_row("Lines of the program", [str(_count_lines(name, task)) for name in names]))
    return "\n".join(lines)


def _format_row(label: str, cells: list[str]) -> str:
    return f"| {label} | {' | '.join(cells)} |"


def _join(values: Mapping[str, object]) -> str:
    """The projects' titles, each with its value."""
    return ", ".join(f"{PROJECTS[name].title} {value}" for name, value in values.items())


def _read_program(project: str, task: str) -> str:
    return (PROGRAMS / project / f"{task}.py").read_text()


def _count_lines(project: str, task: str) -> int:
    """Count a program's lines, without its docstring and empty lines."""
    text = _read_program(project, task)
    docstring = ast.get_docstring(ast.parse(text), clean=False) or ""
    return sum(bool(line.strip()) for line in text.splitlines()) - len(docstring.splitlines())
