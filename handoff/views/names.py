"""The names of the views, as a type."""

from typing import Literal

ViewName = Literal["repository", "trace", "summary", "structured", "payload", "transcript", "cited"]
