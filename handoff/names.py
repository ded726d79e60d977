"""Names of the external agents and of the views, without imports."""

from __future__ import annotations

from typing import Literal

AGENT_NAMES = ("codex", "claude-code", "mini", "qwen-code", "opencode")


ViewName = Literal["repository", "trace", "summary", "structured", "payload", "transcript", "cited"]
CONTINUATION: Literal["continuation"] = "continuation"
"""No view of a record: the predecessor's own agent resumes its conversation at the handoff point."""
TakeoverView = Literal[ViewName, "continuation"]
"""What `take_over` accepts as `view`."""
