"""Write the trace of one takeover as OTLP/JSON, which Jaeger and other viewers open.

Usage: python examples/telemetry.py DIRECTORY
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

from demo_task import TASK, sandbox_spec
from google.protobuf.json_format import MessageToDict
from langchain_openai import ChatOpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from langgraph_takeover import Prices, open_home, run, take_over

ID_FIELDS = {"traceId", "spanId", "parentSpanId"}


def to_hex(message: Any) -> Any:
    """Return the message with ids in hexadecimal, as in OTLP/JSON, instead of Base64."""
    if isinstance(message, dict):
        ids = {name: base64.b64decode(message[name]).hex() for name in ID_FIELDS & message.keys()}
        return {name: to_hex(value) for name, value in message.items()} | ids
    return [to_hex(each) for each in message] if isinstance(message, list) else message


def main(directory: str) -> None:
    spans, provider = (
        InMemorySpanExporter(),
        TracerProvider(resource=Resource.create({"service.name": "takeover"})),
    )
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    agent: dict[str, Any] = {"model": ChatOpenAI(model="gpt-5-mini"), "sandbox": sandbox_spec(directory)}
    agent["prices"] = Prices(prompt=1.25, completion=10)
    with open_home(directory) as home, trace.get_tracer("example").start_as_current_span("takeover"):
        predecessor = run(
            home,
            "begun",
            task_id=TASK.id,
            prompt=TASK.prompt,
            policy="stop",
            points=("first_source_edit",),
            **agent,
        )
        take_over(home, "successor", record_id=predecessor.records[0], view="trace", **agent)
    path, message = Path(directory) / "trace.json", encode_spans(spans.get_finished_spans())
    path.write_text(json.dumps(to_hex(MessageToDict(message, use_integers_for_enums=True)), indent=1))
    print(f"{len(spans.get_finished_spans())} spans: {path}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
