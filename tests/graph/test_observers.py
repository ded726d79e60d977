"""What observes a run cannot end it: providers, exporters, progress, log handlers, prices and plots that raise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics_state
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from langgraph_takeover import RunStatus
from langgraph_takeover.base import failures, telemetry
from langgraph_takeover.base.failures import ObserverErrors, get_logger
from langgraph_takeover.base.telemetry import flush, record_value, start_span
from langgraph_takeover.nodes.context.settings import SettingsError
from langgraph_takeover.nodes.genai_spans import CAPTURE_VARIABLE

from .conftest import DONE, EDIT, RunHarness, scripted_model


class BrokenError(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("even its description fails")


class BrokenProcessor(SpanProcessor):
    """Raises in one of its methods."""

    def __init__(self, method: str) -> None:
        setattr(self, method, self._fail)

    def _fail(self, *_: object, **__: object) -> Any:
        raise BrokenError


class BrokenProvider:
    """A provider of traces and metrics that raises at once."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise BrokenError


@pytest.fixture(autouse=True)
def _nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_reported", set())


@pytest.fixture(params=["on_start", "on_end", "force_flush", "tracer", "meter"])
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    provider: Any = BrokenProvider()
    if request.param not in ("tracer", "meter"):
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BrokenProcessor(request.param))
    module, name = (
        (metrics_state, "_METER_PROVIDER") if request.param == "meter" else (trace, "_TRACER_PROVIDER")
    )
    monkeypatch.setattr(module, name, provider)
    monkeypatch.setenv(CAPTURE_VARIABLE, "true")
    return str(request.param)


@pytest.mark.cases(2)
def test_broken_telemetry_costs_no_reply(
    bench: RunHarness, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = bench.run_to_outcome(scripted_model(EDIT, DONE))
    flush()
    assert (outcome.status, outcome.steps) == (RunStatus.FINISHED, 2)
    lines = [each for each in caplog.messages if each.startswith("telemetry failed")]
    assert lines == ["telemetry failed; the run continues without it: BrokenError: no description"]


def test_an_error_inside_a_span_is_the_caller_s(broken: str) -> None:
    def fail() -> None:
        with start_span("takeover.x", {"a": 1}) as span:
            span.link("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
            record_value("takeover.chat.cost", 1.0, {})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_an_export_that_never_ends_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended, calls = threading.Event(), []

    class EndlessProcessor(SpanProcessor):
        def force_flush(self, timeout_millis: int = 0) -> bool:
            calls.append(timeout_millis)
            return ended.wait()

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(EndlessProcessor())
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(telemetry, "_MAX_FLUSH_S", 0.1)
    flush()
    flush()
    ended.set()
    assert len(calls) == 1
    (line,) = (each for each in caplog.messages if each.startswith("telemetry failed"))
    assert "TimeoutError: its provider of trace exports for more than 0 s" in line


def test_progress_that_raises_is_logged_once(bench: RunHarness, caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    def listen(update: dict[str, Any]) -> None:
        seen.append(update["event"])
        raise BrokenPipeError("nobody reads")

    outcome = bench.run_to_outcome(scripted_model(EDIT, DONE), on_progress=listen)
    assert outcome.status is RunStatus.FINISHED
    assert len(seen) > 3
    assert [each for each in caplog.messages if "on_progress" in each] == [
        "on_progress failed; the run continues without it: BrokenPipeError: nobody reads"
    ]


def test_progress_that_nothing_awaits_is_refused(bench: RunHarness) -> None:
    async def listen(_: dict[str, Any]) -> None:
        pass

    with pytest.raises(SettingsError, match=r"^on_progress: not a plain function: "):
        bench.run_to_outcome(scripted_model(DONE), on_progress=listen)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass(stop: type[BaseException]) -> None:
    with pytest.raises(stop), ObserverErrors("telemetry"):
        raise stop


class BrokenHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise BrokenError


@pytest.fixture
def broken_log() -> Iterator[None]:
    handler, logger = BrokenHandler(), logging.getLogger("langgraph_takeover")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.mark.usefixtures("broken_log")
def test_a_log_handler_that_raises_ends_nothing(bench: RunHarness) -> None:
    def listen(_: dict[str, Any]) -> None:
        raise BrokenError

    assert bench.run_to_outcome(scripted_model(DONE), on_progress=listen).status is RunStatus.FINISHED


def test_a_log_line_names_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("langgraph_takeover.x").warning("here")
    assert caplog.records[0].filename == "test_observers.py"


def test_every_logger_of_the_product_is_contained() -> None:
    from ..test_layers import LAYERS, ROOT

    found = [
        path.relative_to(ROOT).as_posix()
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
        if "logging.getLogger(__name__)" in path.read_text()
    ]
    assert found == []
