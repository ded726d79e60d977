"""The contract's parts that are about files, on every other way that a backend can have and keep them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.contract.files import *  # noqa: F403
from sandbox.contract.kit import Kit
from sandbox.contract.snapshots import *  # noqa: F403

from .conftest import kit_of


@pytest.fixture(scope="session", params=["host-image", "host-copied", "docker-commit"])
def kit(request: pytest.FixtureRequest, repository: Path, testbed_image: Any) -> Iterator[Kit]:
    with kit_of(request.param, repository, testbed_image) as found:
        yield found
