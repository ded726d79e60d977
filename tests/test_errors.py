"""Every error of this package that leaves a public function can be imported from `langgraph_takeover.errors`."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from langgraph_takeover import TakeoverError, errors

from .test_layers import MODULES, PACKAGE, ROOT

REPORTER = "sandbox/cli/program.py"
"""Prints any of them in one line."""
INTERNAL = {
    "AccessError": "graph/langgraph_server.py",
    "CallCancelledError": "nodes/model/exchange.py",
    "DeadlineExceededError": "nodes/model/exchange.py",
    "EditError": "nodes/tools/editor.py",
    "HttpRefusalError": "nodes/external/bridge.py",
    "HumanLeftError": "graph/delivery/participants.py",
    "LateConfirmationError": "nodes/agent/take_over.py",
    "MalformedArchiveError": "sandbox/snapshots/archive_reader.py",
    "PeerLostError": "nodes/external/bridge.py",
    "PromptTooLongError": "handoff/notes/writer.py",
    "PatchError": "graph/delivery/participants.py",
    "RequestError": "nodes/external/bridge.py",
    "ResourceError": "graph/mcp/server.py",
    "ServedRunError": "graph/studio_factory.py",
    "ServerAddressError": "graph/cli/participant_commands.py",
    "ToolArgumentError": "graph/mcp/server.py",
    "UnknownToolError": "graph/mcp/server.py",
    "UsageError": "sandbox/cli/program.py",
    "WaitEndedError": "nodes/session/workers.py",
}
"""Errors that no public function lets through, with the module that catches them."""


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def list_error_classes() -> Iterator[type[TakeoverError]]:
    """The errors that the runtime's layers define."""
    for path in MODULES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        defined = [each.name for each in parse(path).body if isinstance(each, ast.ClassDef)]
        if name.startswith("evals") or not any(each.endswith("Error") for each in defined):
            continue
        module = importlib.import_module(f"{PACKAGE}.{name}")
        classes = (getattr(module, each) for each in defined)
        yield from (each for each in classes if issubclass(each, TakeoverError))


def list_caught(path: Path) -> set[str]:
    """The names in a module's except clauses and calls of `suppress`."""
    found: set[str] = set()
    for node in ast.walk(parse(path)):
        caught: list[ast.expr | None] = []
        if isinstance(node, ast.ExceptHandler):
            caught = [node.type]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            caught = [*node.args]
        found |= {part.id for each in caught if each for part in ast.walk(each) if isinstance(part, ast.Name)}
    return found


def test_every_error_of_the_runtime_is_exported_or_caught() -> None:
    found = {each.__name__: each for each in list_error_classes()}
    assert len(found) > 50
    assert found.keys() - set(errors.__all__) == INTERNAL.keys()
    for name, module in INTERNAL.items():
        bases = {each.__name__ for each in found[name].__mro__} - {"BaseException"}
        if module != REPORTER:
            bases.discard("TakeoverError")
        assert bases & list_caught(ROOT / module), f"{module} does not catch {name}"
