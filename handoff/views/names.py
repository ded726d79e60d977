"""The names of the views, as types."""

from typing import Literal

ViewName = Literal["repository", "trace", "summary", "structured", "payload", "transcript", "cited"]
CONTINUATION: Literal["continuation"] = "continuation"
"""No view of a record: the predecessor's own agent resumes its conversation at the handoff point."""
TakeoverView = Literal[ViewName, "continuation"]
"""What `take_over` accepts as `view`."""
