"""The bench of the graph's tests, for the nodes that are tried in whole runs."""

from __future__ import annotations

from ..graph.conftest import backend, bench, database

__all__ = ["backend", "bench", "database"]
