"""Columns of published rows: their kinds, their Parquet schema, and the page that documents them.

`python -m langgraph_takeover.evals.reports.columns >docs/columns.md` regenerates the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from langgraph_takeover.evals.run.rows import STAGES, CountedTakeover, Row, Takeover
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

The tables are generated from the code: `python -m langgraph_takeover.evals.reports.columns >docs/columns.md`.
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
