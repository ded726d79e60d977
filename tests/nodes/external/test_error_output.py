"""The error in the output of a program that ended early."""

from __future__ import annotations

import pytest

from langgraph_takeover.nodes.external.agent_process import find_error_line

NODE = """node:internal/modules/package_json_reader:255
  throw new ERR_MODULE_NOT_FOUND(packageName, fileURLToPath(base), null);
        ^

Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'undici' imported from /opt/takeover/pi/dist/cli.js
    at Object.getPackageJSONURL (node:internal/modules/package_json_reader:255:9) {
  code: 'ERR_MODULE_NOT_FOUND'
}

Node.js v20.20.2
"""
PYTHON = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
    import nothing
ModuleNotFoundError: No module named 'nothing'
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NODE, "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'undici' imported from /opt/takeover/pi/dist/cli.js"),
        (PYTHON, "ModuleNotFoundError: No module named 'nothing'"),
        ("warning\nerror: unexpected argument '--x' found\n\nUsage: agent [OPTIONS]\n", "error: unexpected argument '--x' found"),
        ("one\nSegmentation fault\n\n", "Segmentation fault"),
        ("\n \n", ""),
        ("Error: " + "x" * 1000, "Error: " + "x" * 293),
    ],
)  # fmt: skip
def test_line_that_names_the_error(text: str, expected: str) -> None:
    assert find_error_line(text) == expected
