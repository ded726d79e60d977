"""What git says of the repository in a machine, asked without touching its index, refs or objects."""

from __future__ import annotations

import shlex

from sandbox.machine import Sandbox

_PATCH = """
index="$(git rev-parse --git-path index)" && objects="$(git rev-parse --git-path objects)" &&
aside="$(mktemp -d)" && trap 'rm -rf -- "$aside"' EXIT &&
{{ cp -- "$index" "$aside/index" 2>/dev/null || true; }} &&
export GIT_INDEX_FILE="$aside/index" GIT_OBJECT_DIRECTORY="$aside/objects" &&
export GIT_ALTERNATE_OBJECT_DIRECTORIES="$(realpath -- "$objects")" && mkdir "$aside/objects" &&
git -c core.safecrlf=false add -A . >/dev/null 2>&1 &&
git -c core.quotePath=false diff --cached --binary --no-color --no-ext-diff --no-textconv {base} --
"""


class RepositoryBroken(ValueError):
    """The workspace is no git repository any more, or git cannot read it."""


def head_commit(machine: Sandbox) -> str:
    """The commit that is checked out. Raises RepositoryBroken."""
    return _ask(machine, "git rev-parse HEAD").strip()


def base_directories(machine: Sandbox) -> tuple[str, ...]:
    """The top-level directories of the commit that is checked out."""
    return tuple(_ask(machine, "git ls-tree -d --name-only HEAD").splitlines())


def patch_since(machine: Sandbox, base_commit: str) -> str:
    """Everything that differs from `base_commit`, new files included, as a patch that git can apply.

    Empty when nothing differs. Raises RepositoryBroken.
    """
    return _ask(machine, _PATCH.format(base=shlex.quote(base_commit)).strip())


def _ask(machine: Sandbox, command: str) -> str:
    # The image's repository may belong to another user than the one that we run as.
    trusted = "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'; "
    result = machine.inspect(trusted + command)
    if result.exit_code != 0:
        raise RepositoryBroken(f"git in the sandbox: {result.output.strip()[-300:] or 'failed'}")
    return result.output
