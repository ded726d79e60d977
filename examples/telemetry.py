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


def to_hex(value: Any) -> Any:
    """Return the message with its ids as OTLP/JSON has them: hexadecimal, where Protobuf's JSON has Base64."""
    if isinstance(value, list):
        return [to_hex(each) for each in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {
        name: base64.b64decode(each).hex() if name in ids else to_hex(each) for name, each in value.items()
    }


def main(directory: str) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "takeover-example"}))
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)

    sandbox, prices = sandbox_spec(directory), Prices(prompt=1.25, completion=10)
    model = ChatOpenAI(model="gpt-5-mini")
    with open_home(directory) as home, trace.get_tracer("example").start_as_current_span("takeover"):
        predecessor = run(
            home, "begun", task_id=TASK.id, prompt=TASK.prompt, model=model, sandbox=sandbox, prices=prices,
            policy="stop", points=("first_source_edit",),
        )  # fmt: skip
        (record,) = predecessor.records
        take_over(
            home, "successor", record_id=record, view="trace", model=model, sandbox=sandbox, prices=prices
        )

    finished = spans.get_finished_spans()
    path = Path(directory) / "trace.json"
    message = MessageToDict(encode_spans(finished), use_integers_for_enums=True)
    path.write_text(json.dumps(to_hex(message), indent=1))
    print(f"{len(finished)} spans: {path}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
