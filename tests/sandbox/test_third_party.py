"""The contract as another project runs it: on its own backend, a correct one and a broken one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_THEIRS = '''
import pytest
from langgraph_takeover import sandbox
from langgraph_takeover.testing.sandboxes import *

BROKEN = {broken!r}


class Theirs:
    """Another project's sandbox, with an optional defect."""

    def __init__(self, wrapped):
        self._wrapped = wrapped

    def __getattr__(self, name):
        return getattr(self._wrapped, name)

    def run(self, command, *, timeout_s):
        return self._wrapped.run("cd; " + command if BROKEN == "directory" else command, timeout_s=timeout_s)

    def changes(self):
        return () if BROKEN == "changes" else self._wrapped.changes()


@pytest.fixture(scope="session")
def kit(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository") / "testbed"
    make_repository(repository)
    kit = Kit(
        {{"backend": "process", "directory": repository}},
        start=lambda spec: Theirs(sandbox.start(spec)),
        restore=lambda snapshot, store, spec: Theirs(sandbox.restore(snapshot, store, spec)),
        is_isolated=False,
    )
    with kit.close_started():
        yield kit
    kit.remove_stale_resources(kit.owner)
'''


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["", "directory", "changes"])
def test_another_projects_backend(tmp_path: Path, broken: str) -> None:
    (tmp_path / "test_theirs.py").write_text(_THEIRS.format(broken=broken))
    chosen = "exit_codes or last or renames or modes or two_restores"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (not broken), done.stdout
    failed = {
        "": [],
        "directory": ["test_directory_variables_functions_and_options_last"],
        "changes": ["test_modes_are_reported", "test_renames_are_reported"],
    }
    for name in failed[broken]:
        assert f"::{name}" in done.stdout
    assert "passed" in done.stdout
