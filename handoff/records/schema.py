"""The JSON Schema of a record's files, for programs in other languages.

`python -m langgraph_takeover.handoff.records.schema >docs/record.schema.json` regenerates it.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.note_fields import read_field_docs

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def build_schema() -> dict[str, Any]:
    """Build the schema of `record.json`; those of `notes.json` and `review.json` are its `$defs` of these names."""
    made = HandoffRecord.model_json_schema()
    made["required"] += ["schema_version", "digest"]
    for model in _list_models():
        definition = made if model is HandoffRecord else made["$defs"][model.__name__]
        definition["description"] = _normalize_text(definition["description"].partition("Example:")[0])
        for name, text in read_field_docs(model).items():
            definition["properties"][name]["description"] = _normalize_text(text)
    return {"$schema": _DIALECT, **made}


def format_schema() -> str:
    """Return the schema as text."""
    return json.dumps(build_schema(), indent=1, ensure_ascii=False) + "\n"


def _normalize_text(text: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))


def _list_models() -> list[type[BaseModel]]:
    """List the record's model and the models of its fields."""
    found: list[type[BaseModel]] = [HandoffRecord]
    for model in found:
        for field in model.model_fields.values():
            found += [part for part in _find_models(field.annotation) if part not in found]
    return found


def _find_models(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _find_models(argument)


if __name__ == "__main__":
    print(format_schema(), end="")
