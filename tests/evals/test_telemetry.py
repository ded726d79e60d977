"""Spans of the experiment: jobs in worker processes, and grading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.sandbox import default_backend

ROOT = Path(__file__).parents[2]
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CONFIGURATION = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

provider = TracerProvider()
output = open(f"{os.environ['SPANS']}/{os.getpid()}.jsonl", "a")
format_span = lambda span: span.to_json(indent=None) + "\\n"
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=output, formatter=format_span)))
trace.set_tracer_provider(provider)
"""
"""What a launcher such as OpenTelemetry's puts into every process, workers too."""


def run_with_telemetry(directory: Path, *options: str | Path) -> list[dict[str, Any]]:
    """The spans of all processes of a run."""
    (directory / "site").mkdir()
    (directory / "site" / "sitecustomize.py").write_text(CONFIGURATION)
    (directory / "spans").mkdir()
    subprocess.run(
        [sys.executable, "-m", "langgraph_takeover.evals.takeover", *map(str, options)],
        env=os.environ
        | {"PYTHONPATH": f"{directory / 'site'}{os.pathsep}{ROOT}", "SPANS": str(directory / "spans")}
        | {"TRACEPARENT": f"00-{TRACE_ID}-b7ad6b7169203331-01"},
        capture_output=True,
        timeout=300,
        check=True,
    )
    files = (directory / "spans").iterdir()
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_jobs_of_workers_are_spans(tmp_path: Path) -> None:
    spans = run_with_telemetry(
        tmp_path,
        *("--task-ids", "galley__galley-31", "--points", "first_source_edit", "--view", "structured"),
        *("--sandbox", default_backend(allow_process=True), "--workers", "2", "--out", tmp_path / "out"),
    )
    jobs = {each["context"]["span_id"]: each for each in spans if each["name"] == "takeover.job"}
    stages = [each["attributes"]["takeover.operation"] for each in jobs.values()]
    assert sorted(stages) == [
        "grade_snapshot",
        "run_predecessor",
        "run_takeover",
        "run_takeover",
        "write_note",
    ]
    assert {each["context"]["trace_id"] for each in spans} == {f"0x{TRACE_ID}"}
    views = {each["attributes"].get("takeover.view") for each in jobs.values()}
    assert views == {None, "repository", "structured"}
    inside = [(each["name"].split()[0], each["attributes"]) for each in spans if each["parent_id"] in jobs]
    graded = [attributes for name, attributes in inside if name == "takeover.grade"]
    assert {each["takeover.grade.resolved"] for each in graded} == {True}
    assert {each["takeover.task"] for each in graded} == {"galley__galley-31"}
    assert [name for name, _ in inside].count("invoke_agent") == 3
