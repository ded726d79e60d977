"""The arguments of a program of the comparison. It imports nothing: each project's environment can import it."""

import sys
from pathlib import Path

work = Path(sys.argv[1])
"""The directory of the program, with the tasks' repository in `repository`."""
phase = sys.argv[2]
"""The part of the task to do: `start`, unless the task names its parts."""
