"""An MCP server over stdio, whose tools work outside of any sandbox. `mcp_tools.py` starts it."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server.fastmcp import FastMCP

server = FastMCP("notes", log_level="ERROR")


@server.tool()
def count(text: str) -> int:
    """Add a line to the file of notes, and return the number of its lines."""
    file = Path(sys.argv[1])
    with file.open("a") as notes:
        notes.write(f"{text}\n")
    return len(file.read_text().splitlines())


@server.tool()
def fail(text: str) -> str:
    """Fail."""
    raise ValueError(f"no {text}")


if len(sys.argv) > 2:

    @server.tool(name=sys.argv[2])
    def other(command: str) -> str:
        """Note the command."""
        return str(count(command))


server.run("stdio")
