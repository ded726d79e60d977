"""Write the trace of one takeover as OTLP/JSON, which Jaeger and other viewers open.

Usage: python examples/telemetry.py DIRECTORY
"""

import base64
import re
import sys
from pathlib import Path

from demo_task import TASK, sandbox_spec
from google.protobuf.json_format import MessageToJson
from langchain_openai import ChatOpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from langgraph_takeover import Prices, open_home, run, take_over

ID = re.compile(r'("(?:traceId|spanId|parentSpanId)": )"([^"]+)"')


def main(directory: str) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider(resource=Resource({"service.name": "takeover"}))
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    model, sandbox, prices = (
        ChatOpenAI(model="gpt-5-mini"), sandbox_spec(directory), Prices(prompt=1.25, completion=10)
    )  # fmt: skip
    with open_home(directory) as home, trace.get_tracer("example").start_as_current_span("takeover"):
        predecessor = run(
            home, "begun", task_id=TASK.id, prompt=TASK.prompt, model=model, sandbox=sandbox, prices=prices,
            policy="stop", points=("first_source_edit",),
        )  # fmt: skip
        record = predecessor.records[0]
        take_over(home, "next", record_id=record, view="trace", model=model, sandbox=sandbox, prices=prices)
    finished, path = spans.get_finished_spans(), Path(directory) / "trace.json"
    text = MessageToJson(encode_spans(finished), use_integers_for_enums=True)
    # OTLP/JSON has hexadecimal ids, Protobuf's JSON has Base64.
    path.write_text(ID.sub(lambda match: f'{match[1]}"{base64.b64decode(match[2]).hex()}"', text))
    print(f"{len(finished)} spans: {path}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
