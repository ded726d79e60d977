"""The file tests of the contract, on every other storage variant of the backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.sandbox.snapshots import images
from langgraph_takeover.testing.sandboxes.files import *  # noqa: F403
from langgraph_takeover.testing.sandboxes.kit import Kit, check_output
from langgraph_takeover.testing.sandboxes.saved_states import *  # noqa: F403

from .conftest import open_kit

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session", params=["host-image", "host-copied", "docker-commit"])
def kit(request: pytest.FixtureRequest, repository: Path, testbed_image: Any) -> Iterator[Kit]:
    with open_kit(request.param, repository, testbed_image) as found:
        yield found


def test_an_image_of_too_many_layers_is_merged(
    repository: Path, testbed_image: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_kit("docker-commit", repository, testbed_image) as kit:
        sandbox = kit.start()
        below = len(images.require_base_image(str(kit.spec().image))["RootFS"]["Layers"])
        monkeypatch.setattr("langgraph_takeover.sandbox.backends.docker._MAX_LAYERS", below + 2)
        for step in range(4):
            check_output(sandbox, f"echo {step} >step; touch step-{step}; rm -f step-{step - 1}")
            snapshot = sandbox.snapshot(tmp_path).result()
            found = images.find_image(snapshot.location)
            assert found is not None
            assert len(found["RootFS"]["Layers"]) <= below + 2
            sandbox.close()
            sandbox = kit.restore(snapshot, tmp_path)
        assert check_output(sandbox, "cat step; ls step-*") == "3\nstep-3\n"
