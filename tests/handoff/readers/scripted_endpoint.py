"""A model endpoint that answers with scripted replies; runs inside the sandbox of `replay_sessions.py`.

Usage: scripted_endpoint.py STEPS.json API COMMAND…, where API is `responses` or `messages`. It needs no packages.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

PORT = 8377
NEXT_OUTPUT = Path("/tmp/replay-next.json")
"""What the replacement shell prints for the next command."""


def write_event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n"


def write_responses(step: dict[str, Any], number: int) -> str:
    """One reply of the Responses API as a stream."""
    items: list[dict[str, Any]] = []
    if step.get("thought"):
        summary = [{"type": "summary_text", "text": step["thought"]}]
        items.append(
            {"type": "reasoning", "id": f"rs_{number}", "summary": summary, "encrypted_content": "e"}
        )
    if step.get("text"):
        content = [{"type": "output_text", "text": step["text"], "annotations": []}]
        items.append({"type": "message", "role": "assistant", "id": f"msg_{number}", "content": content})
    for position, call in enumerate(step.get("calls", ())):
        call_id, name = f"call_{number}_{position}", call["name"]
        if isinstance(call["arguments"], str):
            items.append(
                {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": call["arguments"]}
            )
        else:
            arguments = json.dumps(call["arguments"], ensure_ascii=False)
            items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})
    usage = {"input_tokens": 1000 + number, "input_tokens_details": {"cached_tokens": 900}, "output_tokens": 30,
             "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 1030 + number}  # fmt: skip
    stream = write_event("response.created", {"response": {"id": f"resp_{number}"}})
    for position, item in enumerate(items):
        item = {"id": f"item_{number}_{position}", "status": "completed", **item}
        for name in ("added", "done"):
            stream += write_event(f"response.output_item.{name}", {"output_index": position, "item": item})
    return stream + write_event("response.completed", {"response": {"id": f"resp_{number}", "usage": usage}})


def write_messages(step: dict[str, Any], number: int, model: str) -> str:
    """One reply of the Messages API as a stream."""
    blocks: list[tuple[dict[str, Any], dict[str, Any]]] = []
    if step.get("thought"):
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        blocks.append((empty, {"type": "thinking_delta", "thinking": step["thought"]}))
    if step.get("text"):
        blocks.append(({"type": "text", "text": ""}, {"type": "text_delta", "text": step["text"]}))
    for position, call in enumerate(step.get("calls", ())):
        block = {"type": "tool_use", "id": f"toolu_{number}_{position}", "name": call["name"], "input": {}}
        delta = json.dumps(call["arguments"], ensure_ascii=False)
        blocks.append((block, {"type": "input_json_delta", "partial_json": delta}))
    usage = {"input_tokens": 100 + number, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 7}
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model, "content": [],
               "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1}}  # fmt: skip
    stream = write_event("message_start", {"message": message})
    for position, (block, delta) in enumerate(blocks):
        stream += write_event("content_block_start", {"index": position, "content_block": block})
        stream += write_event("content_block_delta", {"index": position, "delta": delta})
        stream += write_event("content_block_stop", {"index": position})
    end = {"stop_reason": "tool_use" if step.get("calls") else "end_turn", "stop_sequence": None}
    stream += write_event("message_delta", {"delta": end, "usage": {"output_tokens": 30}})
    return stream + write_event("message_stop", {})


class Handler(BaseHTTPRequestHandler):
    """Answers each request of the main conversation with the next step."""

    protocol_version = "HTTP/1.1"
    steps: ClassVar[list[dict[str, Any]]] = []
    api = "responses"
    number = 0

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._answer("text/plain", "")

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["content-length"])).decode()
        body = json.loads(text)
        if "count_tokens" in self.path:
            self._answer("application/json", '{"input_tokens": 100}')
            return
        number = Handler.number
        Handler.number += 1
        step = self.steps[number] if number < len(self.steps) else {"text": "Done."}
        running = re.findall(r"Process running with session ID (\d+)", text)
        for call in step.get("calls", ()) if running else ():
            if isinstance(call["arguments"], dict) and "session_id" in call["arguments"]:
                call["arguments"]["session_id"] = int(running[-1])
        for name, content in step.get("files", {}).items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        if "output" in step:
            NEXT_OUTPUT.write_text(json.dumps(step["output"]))
        is_responses = self.api == "responses"
        model = str(body.get("model"))
        reply = write_responses(step, number) if is_responses else write_messages(step, number, model)
        self._answer("text/event-stream", reply)

    def _answer(self, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def main() -> int:
    Handler.steps = json.loads(Path(sys.argv[1]).read_text())
    Handler.api = sys.argv[2]
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    commands = json.loads(Path(sys.argv[3]).read_text())
    for command in commands:
        # A command of the script may kill the agent; the next one resumes it.
        subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    return 0 if Handler.number >= len(Handler.steps) else 3


if __name__ == "__main__":
    sys.exit(main())
