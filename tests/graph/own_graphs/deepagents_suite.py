"""The standard tests of langchain-tests for a backend of deepagents. `test_deepagents.py` runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from langgraph_takeover import open_home
from langgraph_takeover.deepagents import SandboxBackend
from langgraph_takeover.integrations import open_sandbox
from langgraph_takeover.sandbox import SandboxSpec, default_backend


class TestSandboxBackend(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxBackend]:
        directory = tmp_path_factory.mktemp("repository")
        spec = SandboxSpec(backend=default_backend(allow_process=True), directory=directory)
        directory = tmp_path_factory.mktemp("home")
        with open_home(directory) as home, open_sandbox(home, "suite", sandbox=spec) as work:
            yield SandboxBackend(work)
