"""Records as real runs leave them: one file changed, one created and one removed, with notes and a review."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover import open_home, sandbox
from langgraph_takeover.handoff.records.record import Review
from langgraph_takeover.nodes.session.state_store import build_owner_name
from langgraph_takeover.sandbox.backends import host, overlay

from .. import crash_case
from ..conftest import skip_missing
from ..graph.conftest import DONE, FIX, POINTS, TEST, RunHarness, scripted_model
from .records.test_record import NOTES

EDIT = "```bash\nrm pkg/__init__.py; mkdir -p new; echo 1 >new/made.txt; sed -i 's/n + 1/n * 3/' pkg/core.py\n```"
NAME = "run.first_post_failure_edit"


def make_harness(root: Path, **settings: Any) -> Iterator[RunHarness]:
    """A bench with a run's records, whose base already differs from its commit."""
    with open_home(root / "home") as home:
        bench = RunHarness(root, home, settings.pop("backend", "process"))
        (root / "base" / "test_core.py").open("a").write("# not committed\n")
        if bench.spec.image is not None:
            crash_case.remove_image(bench.spec.image)
            crash_case.build_image(root / "base", bench.spec.image)
        bench.spec = bench.spec.model_copy(update=settings)
        bench.run(scripted_model(EDIT, TEST, FIX, DONE), points=POINTS)
        home.records.add_notes(NAME, NOTES)
        home.records.add_review(NAME, Review(view="trace"))
        yield bench
        if bench.spec.image is not None:
            owners = [build_owner_name(bench.spec.owner, home.ledger, thread) for thread in home.threads()]
            sandbox.remove_stale_resources("docker", *owners)
            crash_case.remove_image(bench.spec.image)


@pytest.fixture(scope="session")
def copy_harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunHarness]:
    """A bench whose records' snapshots are copies; tests must not change it."""
    yield from make_harness(tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="session", params=["host", "docker-layer", "docker-commit"])
def layer_harness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunHarness]:
    """A bench whose snapshots are layers, or images on the daemon."""
    backend, _, way = request.param.partition("-")
    if backend == "docker":
        request.getfixturevalue("base_image")
    elif reason := host.unavailable_reason() or overlay.unavailable_reason():
        skip_missing(reason)
    yield from make_harness(tmp_path_factory.mktemp(backend), backend=backend, snapshots=way or "auto")


@pytest.fixture(scope="session")
def record(copy_harness: RunHarness) -> Path:
    return copy_harness.store.directory(NAME)


@pytest.fixture(scope="session")
def record_archive(record: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the exported record."""
    from langgraph_takeover.handoff.records import archive

    path = tmp_path_factory.mktemp("carried") / "deep" / "one.record"
    archive.export_record(record, str(path))
    return path
