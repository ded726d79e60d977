"""Cost of spans and metrics per step: without OpenTelemetry, without a provider, and recorded in memory.

A step is one answer of an instant model and one command with a file change, followed by a snapshot: three spans. The cost
of the spans that nobody records is measured alone, in many repetitions, because it is far below the variation of a step.
Every figure is a median over rounds in which the cases alternate.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from langchain_core.messages import AIMessage

from benchmarks.figures import Goal, format_count, print_figures, run_command
from benchmarks.models import DirectModel
from benchmarks.runtime import time_runtime
from benchmarks.turns import AsJson, Comparison, Rounds, measure_in_turns
from langgraph_takeover.base.telemetry import start_span
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.nodes.genai_spans import (
    describe_request,
    describe_result,
    start_chat_span,
    start_tool_span,
)

_COMMAND = "date >> log.txt"
_MODEL = DirectModel(command="true", steps=1)
_ACTION = Event(index=0, kind="action", tool="shell", text="", arguments={"command": "true"})
_REPLY = AIMessage("```bash\ntrue\n```")


def _make_spans() -> None:
    """What a step adds to the work: the spans of its model call, its command and its snapshot."""
    with start_chat_span(_MODEL) as span:
        describe_request(span, [_REPLY], ())
    with start_tool_span(_ACTION, None, ()) as span:
        describe_result(span, "", (), exit_code=0, refused=False, timed_out=False, changed_files=1)
        with start_span("takeover.snapshot", {"takeover.operation": "snapshot"}, is_current=False):
            pass


def _time_spans(repetitions: int) -> float:
    """Seconds for the spans of one step."""
    start = time.perf_counter()
    for _ in range(repetitions):
        _make_spans()
    return (time.perf_counter() - start) / repetitions


def _time_spans_without_package(repetitions: int) -> float:
    """The same while the package looks as if nothing had imported it."""
    hidden = [name for name in sys.modules if name.startswith("opentelemetry")]
    with patch.dict(sys.modules):
        for name in hidden:
            del sys.modules[name]
        return _time_spans(repetitions)


@contextmanager
def _recording() -> Iterator[Any]:
    """Record spans and metrics in memory; yield the exporter of spans."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    # A process can set its providers only once, and the cases alternate.
    with (
        patch("opentelemetry.trace._TRACER_PROVIDER", provider),
        patch("opentelemetry.metrics._internal._METER_PROVIDER", meters),
    ):
        yield exporter
        provider.force_flush()
    provider.shutdown()
    meters.shutdown()


def _time_recorded_spans(repetitions: int) -> float:
    with _recording():
        return _time_spans(max(repetitions // 20, 1))


def _time_step(steps: int) -> float:
    return statistics.median(time_runtime(DirectModel(command=_COMMAND, steps=steps)).steps)


def _time_recorded_step(steps: int) -> dict[str, float]:
    with _recording() as exporter:
        seconds = _time_step(steps)
    return {"time": seconds, "spans": len(exporter.get_finished_spans()) / steps}


def main(
    steps: Annotated[int, typer.Option(min=3, help="Steps of a run.")] = 60,
    rounds: Rounds = 5,
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions of the spans of a step.")] = 20_000,
    as_json: AsJson = False,
) -> None:
    """Measure what spans and metrics cost, if nobody records them and if somebody does."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    importlib.import_module("opentelemetry.trace")
    importlib.import_module("opentelemetry.metrics")
    samples = measure_in_turns(
        rounds,
        {
            "no_package": lambda _: _time_spans_without_package(repetitions),
            "no_provider": lambda _: _time_spans(repetitions),
            "spans": lambda _: _time_recorded_spans(repetitions),
            "step": lambda _: _time_step(steps),
            "recorded": lambda _: _time_recorded_step(steps),
        },
    )
    spans, goal = "spans of a step", Goal(0.01, "ratio")
    figures = samples.compare(
        Comparison(f"{spans}, without OpenTelemetry", "no_package", "step", "a step", goal, "µs"),
        Comparison(f"{spans}, without a provider", "no_provider", "step", "a step", goal, "µs"),
        Comparison(f"{spans}, recorded in memory", "spans", "step", "a step", unit="µs"),
        Comparison("step, recorded in memory", "recorded_time", "step", "without a provider", paired=True),
        Comparison("spans per step, with those of start and end", "recorded_spans", unit=""),
    )
    title = f"medians of {format_count(rounds, 'round')}; runs of {steps} steps that append a line to a file, on one core"
    print_figures(title, figures, as_json=as_json)


if __name__ == "__main__":
    run_command(main)
