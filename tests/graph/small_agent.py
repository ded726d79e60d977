"""A complete external agent in one file: it asks a chat endpoint, runs bash, and keeps its session in a file."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def main(port: str, model: str, session: Path) -> None:
    messages: list[dict[str, Any]] = json.loads(session.read_text()) if session.exists() else []
    if message := sys.stdin.read():
        messages.append({"role": "user", "content": message})
    session.parent.mkdir(parents=True, exist_ok=True)
    print(json.dumps({"session": session.stem}), flush=True)
    while True:
        session.write_text(json.dumps(messages))
        body = json.dumps({"model": model, "messages": messages, "tools": [TOOL]}).encode()
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            reply = json.loads(answer.read())["choices"][0]["message"]
        messages.append(reply)
        for call in reply.get("tool_calls") or []:
            command = json.loads(call["function"]["arguments"])["command"]
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
            text = f"exit {done.returncode}\n{done.stdout}{done.stderr}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        if not reply.get("tool_calls"):
            session.write_text(json.dumps(messages))
            print(json.dumps({"done": reply.get("content") or ""}), flush=True)
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
