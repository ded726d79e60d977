"""A repository with sessions of two agents, and a home for records."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from langgraph_takeover.agents import Capture, capture_session
from langgraph_takeover.sandbox.backends import host

from ...agent_sessions import (
    list_default_steps,
    make_repository,
    write_codex_session,
)
from ...conftest import skip_missing


class Workplace(NamedTuple):
    """Directories of a user."""

    root: Path
    repository: Path
    user_home: Path
    home: Path

    def capture(self, agent: str = "codex", **options: object) -> Capture:
        arguments = {"repository": self.repository, "user_home": self.user_home} | options
        return capture_session(self.home, agent, **arguments)  # type: ignore[arg-type]

    def list_everything(self) -> set[str]:
        """Every path in the user's home and beside the repository, without the home for records."""
        found = [self.root, *self.root.rglob("*")]
        return {str(path) for path in found if not path.is_relative_to(self.home)}


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    if reason := host.unavailable_reason():
        skip_missing(reason)
    repository = make_repository(tmp_path / "shop")
    user_home = tmp_path / "user"
    write_codex_session(user_home, str(repository), list_default_steps(repository))
    return Workplace(tmp_path, repository, user_home, tmp_path / "home")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program of an agent that shows how it was started."""
    path = tmp_path / "programs" / "agent"
    path.parent.mkdir()
    path.write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$@"\n')
    path.chmod(0o755)
    return path
