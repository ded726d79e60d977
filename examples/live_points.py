"""Handoff points in any agent's messages, as they occur, without a sandbox or a graph.

Usage: python examples/live_points.py
"""

from langgraph_takeover.detection import PointDetector

STEPS = [
    ("cat src/core.py", "def double(n):\n    return n + 1"),
    ("sed -i 's/n + 1/n * 3/' src/core.py", ""),
    ("python3 -m pytest -q", "1 failed in 0.01s\nexit code: 1"),
    ("sed -i 's/n \\* 3/n * 2/' src/core.py", ""),
]


def main() -> None:
    detector = PointDetector(workspace="/testbed", base_directories=("src",))
    messages: list[dict] = [{"role": "user", "content": "Make `double` double."}]
    for number, (command, output) in enumerate(STEPS, 1):
        call = {"id": str(number), "function": {"name": "bash", "arguments": {"command": command}}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": str(number), "content": output})
        for point in detector.feed(messages):  # the list grows; nothing is reported twice
            print(f"step {number}: {point.kind}: {point.detail}")


if __name__ == "__main__":
    main()
