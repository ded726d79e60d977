"""A sandbox without an agent: a snapshot undoes a command, files and shell together.

Usage: python examples/sandbox_alone.py DIRECTORY
"""

import sys
from pathlib import Path

from demo_task import sandbox_spec

from langgraph_takeover.sandbox import restore, start


def main(directory: str) -> None:
    store, spec = Path(directory, "snapshots"), sandbox_spec(directory)
    with start(spec) as sandbox:
        sandbox.run("cd tests && name=kept && echo 1 > new.txt", timeout_s=10)
        before = sandbox.snapshot(store).result()
        sandbox.run(f"cd / && unset name && rm -rf {sandbox.workspace}/*", timeout_s=10)
        print("after rm:", [change.path for change in sandbox.changes()][:3], "…")
    with restore(before, store, spec) as sandbox:
        print(sandbox.run("pwd; echo $name; ls; git status --short", timeout_s=10).output)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
