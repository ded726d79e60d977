"""Names of external agents, views and homes, without imports of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

AGENT_NAMES = ("codex", "claude-code", "mini", "qwen-code", "opencode")

ActionProtocol = Literal["text", "native"]
"""The action format of a model: text in a fixed form, or native tool calls of its provider."""

ViewName = Literal["repository", "trace", "summary", "structured", "payload", "transcript", "cited"]
CONTINUATION: Literal["continuation"] = "continuation"
"""No view of a record: the predecessor's own agent resumes its conversation at the handoff point."""
TakeoverView = Literal[ViewName, "continuation"]
"""What `take_over` accepts as `view`."""
PROJECT_HOME, USER_HOME = Path(".takeover"), Path("~/.takeover")
"""Default homes: of programs and commands in a project, and of a user's own sessions."""
HOME_VARIABLE = "TAKEOVER_RUNS"
"""Environment variable that names another home."""
