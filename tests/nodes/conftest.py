"""The run harness of the graph tests, for nodes that are tested in whole runs."""

from __future__ import annotations

from ..graph.conftest import backend, bench, database

__all__ = ["backend", "bench", "database"]
