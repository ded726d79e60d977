"""Spans and metrics, recorded by the OpenTelemetry provider of the program; without one, nothing happens.

This module never imports OpenTelemetry before the program does, and exports nothing by itself. Attributes hold names,
numbers and digests. Messages of errors are content and stay out.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Self, TypeVar

from langgraph_takeover.base.failures import ObserverErrors
from langgraph_takeover.base.texts import escape_surrogates

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_SCOPE = "langgraph_takeover"
_TELEMETRY = "telemetry"
_MAX_CHARS = 500
"""Limit of a text attribute that is no content."""
_MAX_NAME_CHARS = 120
_GENAI_DURATION, _TAKEOVER_DURATION = "gen_ai.client.operation.duration", "takeover.operation.duration"
CONTENT_ATTRIBUTES = (
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.result",
)
"""What agents and models said; whoever sets them redacts and bounds them."""
_METRIC_ATTRIBUTES = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "takeover.operation",
    "takeover.backend",
    "error.type",
)
"""The attributes of a span that its duration has too: those with few values."""
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(float(4**power) for power in range(14))
_COSTS = tuple(float(f"{digit}e{power}") for power in range(-5, 3) for digit in (1, 3))

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue | None]
"""Attributes of a span; those that are None are left out."""
_inherited: ContextVar[Attributes | None] = ContextVar("inherited_attributes", default=None)
"""Attributes of an enclosing span that each span inside has too."""
_ParametersT = ParamSpec("_ParametersT")
_ReturnT = TypeVar("_ReturnT")


class _Instrument(NamedTuple):
    unit: str
    description: str
    boundaries: tuple[float, ...]


_INSTRUMENTS = {
    _GENAI_DURATION: _Instrument("s", "Duration of GenAI operations.", _SECONDS),
    "gen_ai.client.token.usage": _Instrument("{token}", "Number of input and output tokens.", _TOKENS),
    _TAKEOVER_DURATION: _Instrument("s", "Duration of operations of the runtime.", _SECONDS),
    "takeover.chat.cost": _Instrument("1", "Cost of model calls in the currency of `prices`.", _COSTS),
}


class ActiveSpan:
    """A span in progress, as a context manager. This class is the span that nobody records."""

    is_recording = False
    """Whether attributes are kept: compute expensive ones only then."""
    is_measured = False
    """Whether anybody records spans or metrics, even if this span is not sampled."""

    def set(self, attributes: Attributes) -> None:
        """Set attributes."""

    def link(self, traceparent: str | None) -> None:
        """Link a span of another trace."""

    def fail(self, error_type: str) -> None:
        """Give the span the status of an error, although nothing was raised."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        pass


class _SpanOptions(NamedTuple):
    name: str
    attributes: Attributes
    is_client: bool
    is_current: bool
    parent: str | None
    inherited: Attributes


class _RecordedSpan(ActiveSpan):
    """A span of the program's provider, whose errors never reach the caller."""

    is_measured = True

    def __init__(self, tracer: Tracer, options: _SpanOptions) -> None:
        self._span: Span | None = None
        self._tokens: tuple[Any, Any] | None = None
        self._tracer = tracer
        self._options = options
        self._attributes = _clean_attributes({**(_inherited.get() or {}), **options.attributes})

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._start()
        return self

    @ObserverErrors(_TELEMETRY)
    def _start(self) -> None:
        from opentelemetry import context, trace

        options = self._options
        kind = trace.SpanKind.CLIENT if options.is_client else trace.SpanKind.INTERNAL
        parent = _find_parent_context(options.parent)
        self._span = self._tracer.start_span(options.name, parent, kind, self._attributes)
        self.is_recording = self._span.is_recording()
        if options.is_current:
            token = context.attach(trace.set_span_in_context(self._span, parent))
            self._tokens = token, _inherited.set({**(_inherited.get() or {}), **options.inherited})

    @ObserverErrors(_TELEMETRY)
    def set(self, attributes: Attributes) -> None:
        cleaned = _clean_attributes(attributes)
        self._attributes |= cleaned
        if self._span is not None:
            self._span.set_attributes(cleaned)

    @ObserverErrors(_TELEMETRY)
    def link(self, traceparent: str | None) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context

        if traceparent is None or self._span is None:
            return
        linked = trace.get_current_span(_parse_traceparent(traceparent, Context())).get_span_context()
        if linked.is_valid:
            self._span.add_link(linked)

    @ObserverErrors(_TELEMETRY)
    def fail(self, error_type: str) -> None:
        from opentelemetry.trace import StatusCode

        self.set({"error.type": error_type})
        if self._span is not None:
            self._span.set_status(StatusCode.ERROR)

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None:
            self.fail(error_type.__qualname__)
        if self._tokens is not None:
            from opentelemetry import context

            context.detach(self._tokens[0])
            _inherited.reset(self._tokens[1])
        self._record_duration(time.monotonic() - self._started)
        self._end()

    @ObserverErrors(_TELEMETRY)
    def _end(self) -> None:
        if self._span is not None:
            self._span.end()

    def _record_duration(self, seconds: float) -> None:
        labels = {name: self._attributes[name] for name in _METRIC_ATTRIBUTES if name in self._attributes}
        # The conventions require a provider for this metric, and tools have none.
        is_genai = "gen_ai.provider.name" in labels
        if not is_genai:
            labels.setdefault("takeover.operation", labels.pop("gen_ai.operation.name", self._options.name))
        record_value(_GENAI_DURATION if is_genai else _TAKEOVER_DURATION, seconds, labels)


IGNORED_SPAN = ActiveSpan()


def builds_span(build: Callable[_ParametersT, ActiveSpan]) -> Callable[_ParametersT, ActiveSpan]:
    """Make a function return the span that nobody records if it cannot build one."""

    @wraps(build)
    def build_or_ignore(*arguments: _ParametersT.args, **named: _ParametersT.kwargs) -> ActiveSpan:
        with ObserverErrors(_TELEMETRY):
            return build(*arguments, **named)
        return IGNORED_SPAN

    return build_or_ignore


def has_provider() -> bool:
    """Whether the program has configured OpenTelemetry, so that attributes are worth their cost."""
    return _find_provider("trace") is not None or _find_provider("metrics") is not None


@builds_span
def start_span(
    name: str,
    attributes: Attributes,
    *,
    is_client: bool = False,
    is_current: bool = True,
    parent: str | None = None,
    inherited: Attributes | None = None,
) -> ActiveSpan:
    """Return a span to enter; it ends when it is left, with the status of an error if something was raised.

    Every span inside has the attributes `inherited` too. A span that is not `is_current` may end in another thread and
    has no children. `parent` is a `traceparent` of another process; by default the parent is the current span, or that
    of the environment variable TRACEPARENT.
    """
    if (tracer := _find_tracer()) is None:
        return IGNORED_SPAN
    name = escape_surrogates(name[:_MAX_NAME_CHARS])
    return _RecordedSpan(
        tracer, _SpanOptions(name, attributes, is_client, is_current, parent, inherited or {})
    )


@ObserverErrors(_TELEMETRY)
def record_value(metric: str, value: float, attributes: Attributes) -> None:
    """Add a value to the histogram of a metric."""
    provider = _find_provider("metrics")
    if provider is None:
        return
    cached: tuple[Any, dict[str, Any]] | None = _cache.get("histograms")
    if cached is None or cached[0] is not provider:
        meter = provider.get_meter(_SCOPE)
        histograms = {
            name: meter.create_histogram(
                name, each.unit, each.description, explicit_bucket_boundaries_advisory=each.boundaries
            )
            for name, each in _INSTRUMENTS.items()
        }
        cached = _cache["histograms"] = (provider, histograms)
    cached[1][metric].record(value, _clean_attributes(attributes))


@ObserverErrors(_TELEMETRY)
def current_traceparent() -> str | None:
    """Return the current span as a `traceparent` of W3C Trace Context; None without a span."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def bind_context(call: Callable[_ParametersT, _ReturnT]) -> Callable[_ParametersT, _ReturnT]:
    """Return a function that another thread can call, with the current span as the parent of its spans."""
    if "opentelemetry.context" not in sys.modules:
        return call
    from opentelemetry import context

    current, inherited = context.get_current(), _inherited.get()

    @wraps(call)
    def bound(*arguments: _ParametersT.args, **named: _ParametersT.kwargs) -> _ReturnT:
        token, inherited_token = context.attach(current), _inherited.set(inherited)
        try:
            return call(*arguments, **named)
        finally:
            _inherited.reset(inherited_token)
            context.detach(token)

    return bound


def flush() -> None:
    """Export what is pending, for at most 10 seconds: a worker process may end without notice."""
    for kind in ("trace", "metrics"):
        with ObserverErrors(_TELEMETRY):
            provider = _find_provider(kind)
            if hasattr(provider, "force_flush") and not (kind in _flushes and _flushes[kind].is_alive()):
                call = ObserverErrors(_TELEMETRY)(provider.force_flush)
                _flushes[kind] = threading.Thread(target=call, daemon=True)
                _flushes[kind].start()
                _flushes[kind].join(_MAX_FLUSH_S)
                if _flushes[kind].is_alive():
                    raise TimeoutError(f"its provider of {kind} exports for more than {_MAX_FLUSH_S:.0f} s")


_MAX_FLUSH_S = 10.0
_flushes: dict[str, threading.Thread] = {}
"""The last export of each kind. One that never ends is not waited for again."""


_cache: dict[str, Any] = {}
"""The tracer and the histograms, each with the provider that made them."""


def _find_provider(kind: str) -> Any:
    """Return the program's provider of traces or metrics; None if it has configured none."""
    api = sys.modules.get(f"opentelemetry.{kind}")
    get_provider = getattr(api, "get_tracer_provider" if kind == "trace" else "get_meter_provider", None)
    if get_provider is None:  # not imported, or another thread still imports it
        return None
    provider = get_provider()
    # The API's own providers: `ProxyTracerProvider`, `_ProxyMeterProvider`, `NoOpTracerProvider`, `NoOpMeterProvider`.
    return None if type(provider).__name__.lstrip("_").startswith(("Proxy", "NoOp")) else provider


def _find_tracer() -> Tracer | None:
    provider = _find_provider("trace")
    if provider is None:
        if _find_provider("metrics") is None:
            return None
        from opentelemetry.trace import NoOpTracer

        return NoOpTracer()
    cached: tuple[Any, Tracer] | None = _cache.get("tracer")
    if cached is None or cached[0] is not provider:
        cached = _cache["tracer"] = (provider, provider.get_tracer(_SCOPE))
    return cached[1]


def _find_parent_context(traceparent: str | None) -> Any:
    """Return the context of the parent: the named one, the current one, or that of the environment."""
    from opentelemetry import context, trace

    if traceparent is None and trace.get_current_span().get_span_context().is_valid:
        return None
    return _parse_traceparent(traceparent or os.environ.get("TRACEPARENT", ""), context.get_current())


def _parse_traceparent(traceparent: str, context: Any) -> Any:
    """Return the context with the remote span; unchanged if the text is malformed."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent[:_MAX_CHARS]}, context)


def _clean_attributes(attributes: Attributes) -> dict[str, Any]:
    """Return the attributes that have a value, texts shortened and encodable."""
    return {name: _clean_value(name, value) for name, value in attributes.items() if value is not None}


def _clean_value(name: str, value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return escape_surrogates(value if name in CONTENT_ATTRIBUTES else value[:_MAX_CHARS])
    return (
        value
        if isinstance(value, int | float)
        else tuple(escape_surrogates(each[:_MAX_CHARS]) for each in value)
    )
