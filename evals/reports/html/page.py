"""The report as one self-contained HTML page: figures, tables, and timelines around each handoff point."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from langgraph_takeover.evals.reports.caveats import list_result_caveats
from langgraph_takeover.evals.reports.common_points import describe_left_out
from langgraph_takeover.evals.reports.html import overview
from langgraph_takeover.evals.reports.html.chunks import (
    TEXT_LIMITS,
    Chunk,
    TextPool,
    escape_for_page,
    pack_chunks,
)
from langgraph_takeover.evals.reports.html.timelines import build_chunks
from langgraph_takeover.evals.reports.plots.style import Picture
from langgraph_takeover.evals.reports.summary import summarize
from langgraph_takeover.evals.reports.tables.table_files import Table
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import UncountedTakeover
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.handoff.records.record import write_durably

MAX_PAGE_BYTES = 5_000_000
"""Maximum size of the page; texts are cut to fit."""
_SCRIPTS = ("elements.js", "tables.js", "timelines.js", "reader.js", "point.js", "page.js")


def write_page(path: Path, results: Results, tables: Sequence[Table], pictures: Sequence[Picture]) -> None:
    """Write the page. It needs no server, no network and no other file."""
    chunks_by_run = build_chunks(results)
    context = _build_context(results, chunks_by_run, tables, pictures)
    budget = MAX_PAGE_BYTES - len(_render(context, "", (), None).encode("utf-8")) - 1000
    (index,), _ = pack_chunks([TextPool().build_chunk(overview.build_index(results, chunks_by_run))], budget)
    # Reserve space for the markup around each chunk.
    chunks, limit = pack_chunks(list(chunks_by_run.values()), budget - len(index) - 100 * len(chunks_by_run))
    write_durably(path, _render(context, index, chunks, limit))


def _name_tasks(config: RunConfig) -> str:
    """The name of the source of tasks, without the directory of a file."""
    return Path(config.tasks).name if config.tasks.startswith("/") else config.tasks


def _build_context(
    results: Results, chunks_by_run: Mapping[str, Chunk], tables: Sequence[Table], pictures: Sequence[Picture]
) -> dict[str, Any]:
    """The template's variables, without the compressed chunks."""
    summary = summarize(results)
    columns, rows = overview.build_view_table(summary)
    points = [point for chunk in chunks_by_run.values() for point in chunk.body["points"].values()]
    runs = [run for point in points for run in point["runs"].values()]
    return {
        "tasks": ", ".join(dict.fromkeys(_name_tasks(source.config) for source in results.sources)),
        "runs": [
            (source.config.run_id, overview.describe_settings(source.config)) for source in results.sources
        ],
        "caveats": list_result_caveats(results),
        "warnings": results.warnings,
        "failures": summary["infrastructure_failures"],
        "without_points": summary["without_points"],
        "figures": overview.build_key_figures(results, summary),
        "left_out": describe_left_out(
            [UncountedTakeover(**each) for each in summary["left_out"]], list(summary["views"])
        ),
        "view_columns": columns,
        "view_rows": rows,
        "filters": overview.build_filters(results),
        "tables": tables,
        "pictures": [(picture.name, picture.title, _encode_picture(picture)) for picture in pictures],
        "takeovers": len(runs),
        "traces": sum("events" in run for run in runs),
        "records": sum("event_index" in point for point in points),
        "points": len(points),
    }


def _render(context: Mapping[str, Any], index: str, chunks: Sequence[str], limit: int | None) -> str:
    style = _read_asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_read_asset, _SCRIPTS)) + "})();\n"
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_escape_value,
    )
    environment.filters |= {
        "format_value": overview.format_value,
        "find_number_columns": overview.find_number_columns,
    }
    return environment.from_string(_read_asset("page.html")).render(
        context,
        style=Markup(style),
        script=Markup(script),
        policy="; ".join(_content_security_policy(style, script)),
        index=index,
        chunks=chunks,
        limit=limit,
        extended_limit=4 * (limit or TEXT_LIMITS[0]),
    )


def _content_security_policy(style: str, script: str) -> tuple[str, ...]:
    """A policy that allows only the page's own script and style."""
    return (
        "default-src 'none'",
        f"script-src {_hash_source(script)}",
        f"style-src {_hash_source(style)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _encode_picture(picture: Picture) -> str:
    """A plot as a data URL. Browsers run no scripts in images."""
    return f"data:image/{picture.embedded_type};base64,{base64.b64encode(picture.embedded).decode()}"


def _read_asset(name: str) -> str:
    return (files("langgraph_takeover.evals.reports.html") / "assets" / name).read_text(encoding="utf-8")


def _escape_value(value: Any) -> Any:
    return escape_for_page(value) if isinstance(value, str) and not isinstance(value, Markup) else value
