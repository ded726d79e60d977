"""Cost of spans and metrics per step: without OpenTelemetry, without a provider, and recorded in memory.

A step is one answer of an instant model and one command with a file change, followed by a snapshot: three spans. The cost
of the spans that nobody records is measured alone, in many repetitions, because it is far below the variation of a step.
Every figure is a median over rounds in which the cases alternate.
"""

from __future__ import annotations

import gc
import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from langchain_core.messages import AIMessage

from benchmarks.figures import Figure, Goal, format_count, print_figures, print_progress, run_command
from benchmarks.runtime import DirectModel, time_runtime
from langgraph_takeover.base.telemetry import start_span
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.nodes.genai_spans import (
    describe_request,
    describe_result,
    start_chat_span,
    start_tool_span,
)

_GOAL = 0.01
_COMMAND = "date >> log.txt"
_MODEL = DirectModel(command="true", steps=1)
_ACTION = Event(index=0, kind="action", tool="shell", text="", arguments={"command": "true"})
_REPLY = AIMessage("```bash\ntrue\n```")
_EPILOG = """Examples:

python benchmarks/telemetry.py

python benchmarks/telemetry.py --rounds 9 --json
"""


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


@contextmanager
def _without_package() -> Iterator[None]:
    """Make the package look as if nothing had imported it."""
    hidden = {name: module for name, module in sys.modules.items() if name.startswith("opentelemetry")}
    for name in hidden:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(hidden)


@contextmanager
def _recording() -> Iterator[Any]:
    """Record spans and metrics in memory; yield the exporter of spans."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    trace: Any = importlib.import_module("opentelemetry.trace")
    metrics: Any = importlib.import_module("opentelemetry.metrics._internal")
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    # A process can set its providers only once, and the cases alternate.
    trace._TRACER_PROVIDER, metrics._METER_PROVIDER = provider, meters
    try:
        yield exporter
        provider.force_flush()
    finally:
        trace._TRACER_PROVIDER = metrics._METER_PROVIDER = None
        provider.shutdown()
        meters.shutdown()


def _time_steps(steps: int) -> float:
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir="/var/tmp") as work:
        gc.collect()
        return statistics.median(time_runtime(steps, Path(work), _COMMAND).steps)


def _measure(steps: int, rounds: int, repetitions: int) -> dict[str, float]:
    importlib.import_module("opentelemetry.trace")
    importlib.import_module("opentelemetry.metrics")
    samples: dict[str, list[float]] = {}

    def add(name: str, seconds: float) -> None:
        samples.setdefault(name, []).append(seconds)

    for number in range(rounds):
        print_progress(f"round {number + 1} of {rounds}")
        with _without_package():
            add("spans_without_package", _time_spans(repetitions))
        add("spans_without_provider", _time_spans(repetitions))
        with _recording():
            add("spans_recorded", _time_spans(max(repetitions // 20, 1)))
        cases = ["step", "step_recorded"]
        for name in cases if number % 2 == 0 else reversed(cases):
            if name == "step":
                add(name, _time_steps(steps))
                continue
            with _recording() as exporter:
                add(name, _time_steps(steps))
            add("spans_per_step", len(exporter.get_finished_spans()) / steps)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    pairs = zip(samples["step_recorded"], samples["step"], strict=True)
    medians["recorded_over_step"] = statistics.median(with_sdk / without for with_sdk, without in pairs)
    return medians


def _build_figures(medians: dict[str, float]) -> Iterator[Figure]:
    us = {name: seconds * 1e6 for name, seconds in medians.items()}
    for name, case in (
        ("spans_without_package", "without OpenTelemetry"),
        ("spans_without_provider", "without a provider"),
    ):
        yield Figure(f"spans of a step, {case}", "µs", us[name], us["step"], "a step", Goal(_GOAL, "ratio"))
    yield Figure("spans of a step, recorded in memory", "µs", us["spans_recorded"], us["step"], "a step")
    yield Figure(
        "step, recorded in memory",
        "ms",
        medians["step_recorded"] * 1e3,
        medians["step"] * 1e3,
        "without a provider",
        paired=medians["recorded_over_step"],
    )
    yield Figure("spans per step, with those of start and end", "", medians["spans_per_step"])


def main(
    steps: Annotated[int, typer.Option(min=3, help="Steps of a run.")] = 60,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; figures are medians.")] = 5,
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions of the spans of a step.")] = 20_000,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure what spans and metrics cost, if nobody records them and if somebody does."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    medians = _measure(steps, rounds, repetitions)
    title = f"medians of {format_count(rounds, 'round')}; runs of {steps} steps, `{_COMMAND}`, on one core"
    print_figures(title, _build_figures(medians), as_json=as_json)


if __name__ == "__main__":
    run_command(main, _EPILOG)
