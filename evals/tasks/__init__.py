"""Tasks: SWE-bench instances from files, task repos, the hub or the bundled suite."""

from langgraph_takeover.evals.tasks.sources import BUNDLED, load_tasks, locate_source
from langgraph_takeover.evals.tasks.task import SUITE, Task, TaskSourceError

__all__ = ["BUNDLED", "SUITE", "Task", "TaskSourceError", "load_tasks", "locate_source"]
