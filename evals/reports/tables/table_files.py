"""Tables of results and their files: CSV with raw numbers, Markdown, LaTeX and Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

import regex

from langgraph_takeover.evals.run.rows import STAGES, CountedTakeover, Row, Takeover
from langgraph_takeover.handoff.records.record import write_durably
from langgraph_takeover.handoff.text.note_fields import read_field_docs

if TYPE_CHECKING:
    import pyarrow

OTHER_FIELDS = "other_fields"
"""The column with the fields of a row that have no column of their own, as JSON text."""
Kind = Literal["text", "integer", "number", "answer", "list", "object"]
_KINDS: Mapping[Any, Kind] = {str: "text", int: "integer", float: "number", bool: "answer", tuple: "list"}
_PAGE = """# Columns

The fields of rows, in `journal.sqlite`, in the JSON Lines files and in [published tables](results.md#published-rows); \
`takeovers.csv` has those of takeovers without `patch` and objects, and those that need other rows. An empty cell or `null` \
does not apply or is unknown. [Rows and files](results.md#row-by-row) explains the outcomes.

The tables are generated from the code: `python -m langgraph_takeover.evals.reports.tables.table_files >docs/columns.md`.
"""


def find_kind(model: type[Row], name: str) -> Kind:
    """The kind of a column's values."""
    hint = model.model_fields[name].annotation
    alternatives = [each for each in get_args(hint) if each is not NoneType]
    if NoneType in get_args(hint):
        (hint,) = alternatives
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return _KINDS.get(get_origin(hint) or hint, "object")


def build_table(model: type[Row], rows: Iterable[Row]) -> pyarrow.Table:
    """The rows with the columns and types of their stage, whatever they contain. Nested fields are text."""
    import pyarrow

    types = {"integer": pyarrow.int64(), "number": pyarrow.float64(), "answer": pyarrow.bool_()}
    names = model.list_columns()
    fields = [(name, types.get(find_kind(model, name), pyarrow.string())) for name in names]
    schema = pyarrow.schema([*fields, (OTHER_FIELDS, pyarrow.string())])
    flat = [_flatten_row(row, names) for row in rows]
    return pyarrow.table({name: [row[name] for row in flat] for name in schema.names}, schema=schema)


def _flatten_row(row: Row, names: Iterable[str]) -> dict[str, Any]:
    values = row.to_dict()
    others = {name: value for name, value in (row.model_extra or {}).items() if value is not None}
    flat = {name: _to_column_value(values.get(name)) for name in names}
    return flat | {OTHER_FIELDS: json.dumps(others) if others else None}


def _to_column_value(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def format_page() -> str:
    """Return the page of columns."""
    derived = [name for name in CountedTakeover.list_columns() if name not in Takeover.model_fields]
    return "\n".join(
        [
            _PAGE,
            *(_format_stage(stage, model) for stage, model in STAGES.items()),
            "## `takeovers.csv`\n\nFurther columns, which need other rows.\n",
            _format_columns(CountedTakeover, derived),
        ]
    )


def _format_stage(stage: str, model: type[Row]) -> str:
    key = ", ".join(f"`{name}`" for name in model.key_fields)
    return f"## `{stage}`\n\n{model.__doc__} Key: {key}.\n\n{_format_columns(model, model.list_columns())}"


def _format_columns(model: type[Row], names: Iterable[str]) -> str:
    meanings = read_field_docs(model)
    rows = (f"| `{name}` | {find_kind(model, name)} | {meanings[name]} |\n" for name in names)
    return f"| column | type | meaning |\n| --- | --- | --- |\n{''.join(rows)}"


if __name__ == "__main__":
    print(format_page(), end="")


Cell = str | int | float | None
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?%?", re.ASCII)
# A cell starts at the beginning of the text, or after a separator of some locale. Spaces, quotes and invisible
# characters may precede the sign, but no separator: each starts a cell.
_CELL_START = r"(\A|[;|\t\r\n])"
_SIGN = r"""(?:(?![\t\r\n])[\p{C}\p{Z}'"`‘’‚“”„«‹])*+[=+@\-＝＋＠－﹦﹢﹫﹣⁼⁺⁻₌₊₋−]"""
_FIRST_BLANK = r"'*+[\t\r\n]"
_FORMULA = regex.compile(rf"\A(?={_FIRST_BLANK})|{_CELL_START}(?={_SIGN})")
_MARKED_FORMULA = regex.compile(rf"\A'(?={_FIRST_BLANK})|{_CELL_START}'(?={_SIGN})")
MISSING = "–"
_MAX_NARROW_COLUMNS = 7
"""Maximum number of columns of a one-column table."""
_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "Δ": r"$\Delta$", "–": "--", "…": r"\ldots{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "°": r"\textdegree{}",
    "[": "{[}", "]": "{]}", "`": r"\textasciigrave{}", "≥": r"$\geq$", "−": r"$-$",
}  # fmt: skip


class Table(NamedTuple):
    """A numbered table. Columns with `%` in their name hold percentages, columns with `pp` percentage points."""

    number: int
    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def write_tables(directory: Path, tables: Sequence[Table]) -> tuple[Path, ...]:
    """Write each table as `tableN_name` with .csv, .md and .tex."""
    directory.mkdir(exist_ok=True)
    written = []
    for table in tables:
        for suffix, text in (("csv", to_csv(table)), ("md", to_markdown(table)), ("tex", to_latex(table))):
            path = directory / f"table{table.number}_{table.name}.{suffix}"
            write_durably(path, text)
            written.append(path)
    return tuple(written)


def write_takeovers(path: Path, takeovers: Sequence[CountedTakeover]) -> None:
    """Write the graded takeovers with all measures as CSV, one line each; patches are in the rows' own files."""
    ordered = sorted(takeovers, key=lambda row: tuple(map(str, row.key)))
    columns = CountedTakeover.list_columns()
    names = [name for name in columns if name != "patch" and find_kind(CountedTakeover, name) != "object"]
    rows = tuple(tuple(map(_to_cell, row.read(*names))) for row in ordered)
    write_durably(path, to_csv(Table(0, "takeovers", "", tuple(names), rows)))


def _to_cell(value: Any) -> Cell:
    """A truth value as 0 or 1, and a list as its length."""
    if isinstance(value, tuple):
        return len(value)
    return int(value) if isinstance(value, bool) else value


def format_cell(column: str, value: Cell) -> str:
    """Format a cell for its column."""
    if value is None:
        return MISSING
    if isinstance(value, str):
        return " ".join(value.split())
    if column == "p":
        return "< 0.001" if value < 0.001 else f"{value:.3f}"
    if isinstance(value, int):
        return f"{value:,}"
    if "USD" in column:
        return f"{value:,.4f}"
    signed = column.startswith(("Δ", "95 %")) or column == "estimate"
    if signed or "%" in column:
        return f"{value:+,.1f}" if signed else f"{value:,.1f}"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 else f"{value:.3g}"


def to_csv(table: Table) -> str:
    text = io.StringIO()
    # Quote all text: the module leaves a lone carriage return unquoted, which some programs read as the end of a row.
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(map(escape_formula, table.columns))
    writer.writerows(map(escape_formula, row) for row in table.rows)
    return text.getvalue()


def escape_formula(cell: Cell) -> str | int | float:
    """Mark text that a spreadsheet would read as a formula with an apostrophe; numbers are returned unchanged.

    The text is also marked after each separator of some locale. `unescape_formula` removes the marks.
    """
    if cell is None:
        return ""
    is_safe = not isinstance(cell, str) or _NUMBER.fullmatch(cell)
    return cell if is_safe else str(_FORMULA.sub(r"\1'", cell))


def unescape_formula(cell: str) -> str:
    """Undo `escape_formula`."""
    return str(_MARKED_FORMULA.sub(r"\1", cell))


def to_markdown(table: Table) -> str:
    def format_line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |\n"

    text = f"**Table {table.number}: {table.title}**\n\n"
    text += format_line(map(_escape_markdown, table.columns))
    text += format_line("---" if left else "---:" for left in _find_text_columns(table))
    for row in table.rows:
        cells = zip(table.columns, row, strict=True)
        text += format_line(_escape_markdown(format_cell(column, cell)) for column, cell in cells)
    return text + "".join(f"\n{_escape_markdown(note)}\n" for note in table.notes)


def to_latex(table: Table) -> str:
    """LaTeX source that needs `booktabs`, `graphicx` and `[T1]{fontenc}`; wide tables span both columns of a page."""
    wide = len(table.columns) > _MAX_NARROW_COLUMNS
    kind = "table*" if wide else "table"
    alignment = "".join("l" if left else "r" for left in _find_text_columns(table))
    lines = [
        rf"\begin{{{kind}}}",
        r"\centering",
        rf"\caption{{{_escape_latex(table.title)}}}",
        rf"\label{{tab:{table.name.replace('_', '-')}}}",
        *([r"\resizebox{\textwidth}{!}{%"] if wide else []),
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        " & ".join(map(_escape_latex, table.columns)) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = zip(table.columns, row, strict=True)
        lines.append(" & ".join(_escape_latex(format_cell(column, cell)) for column, cell in cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}" + ("}" if wide else "")]
    lines += [rf"\par\footnotesize {_escape_latex(note)}" for note in table.notes]
    return "\n".join([*lines, rf"\end{{{kind}}}", ""])


def _find_text_columns(table: Table) -> list[bool]:
    """Which columns contain text."""
    return [
        any(isinstance(row[index], str) for row in table.rows) or not table.rows
        for index in range(len(table.columns))
    ]


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", " ".join(text.split()))


def _escape_latex(text: str) -> str:
    signed = re.sub(r"^-(?=\d)", "−", " ".join(text.split()))
    return "".join(_LATEX_ESCAPES.get(char, char) for char in signed if char.isprintable())
