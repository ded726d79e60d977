"""The repository in a sandbox as git sees it, without touching its index, refs or objects."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator

from langgraph_takeover.sandbox.interface import Sandbox, TakeoverError

MAX_PATCH_BYTES = 32 * 1024 * 1024
MAX_FILES = 20_000

# A git directory of our own: nothing in the agent's configuration, hooks, exclude files or index flags can change the
# comparison. `git add` does not see the repository's objects, because it would change their times. Made by hand, because
# `git init` takes as long as all of the rest; with the index's own time, by which git detects files that changed too soon
# after it.
INDEX_SCRIPT = """
[ -e .git ] || {{ echo 'no git repository'; exit 1; }}
aside="$(mktemp -d -t takeover-git.XXXXXXXXXX)" && trap 'rm -rf -- "$aside"' EXIT && exec 3>&1 >"$aside/told" 2>&1 &&
export HOME="$aside" XDG_CONFIG_HOME="$aside" GIT_CONFIG_NOSYSTEM=1 GIT_NO_REPLACE_OBJECTS=1 &&
places="$(git rev-parse --git-path objects --git-path index --show-object-format)" &&
{{ read -r objects && read -r index && read -r format; }} <<<"$places" &&
objects="$(CDPATH= cd -- "$objects" && pwd -P)" &&
base="$(git rev-parse --verify {base}'^{{tree}}')" &&
mkdir -p "$aside/git/info" "$aside/git/objects" "$aside/git/refs" && echo 'ref: refs/heads/none' >"$aside/git/HEAD" &&
printf '[core]\nrepositoryformatversion=1\ncompression=0\n[extensions]\nobjectformat=%s\n' "$format" >"$aside/git/config" &&
for file in "$index" "${{index%index}}"sharedindex.*; do
  [ ! -e "$file" ] || cp --preserve=timestamps -- "$file" "$aside/git"
done &&
export GIT_DIR="$aside/git" GIT_WORK_TREE="$PWD" &&
if ! {{ [ -e "$GIT_DIR/index" ] && git ls-files -v >"$aside/flags"; }}; then
  rm -f "$GIT_DIR/index" && GIT_ALTERNATE_OBJECT_DIRECTORIES="$objects" git read-tree "$base"
elif grep -q '^[a-zS]' "$aside/flags"; then
  git ls-files -z | git update-index -z --no-assume-unchanged --stdin &&
  git ls-files -z | git update-index -z --no-skip-worktree --stdin
fi &&
{{ git update-index -q --refresh; git add -A --ignore-errors . || [ $? -eq 1 ]; }} && """
"""Prepares the workspace as it is in `$GIT_DIR` and its index; what follows may use `$objects` and `$base`."""
_CLEAN_UP_COMMAND = 'rm -rf -- "${TMPDIR:-/tmp}"/takeover-git.*'
"""Removes what an interrupted command has left of its copy."""
_PATCH_SCRIPT = (
    INDEX_SCRIPT
    + """
export GIT_ALTERNATE_OBJECT_DIRECTORIES="$objects" && start="$base" && earlier={earlier} &&
if [ -n "$earlier" ]; then
  start="$(
    export GIT_INDEX_FILE="$GIT_DIR/start" && git read-tree "$base" &&
    git apply --cached --whitespace=nowarn "$earlier" &&
    env -u GIT_ALTERNATE_OBJECT_DIRECTORIES git write-tree --missing-ok
  )"
fi &&
echo '{attributes}' >"$GIT_DIR/info/attributes" &&
git -c core.quotePath={quoted} diff --cached --binary --no-color "$start" -- >"$aside/patch" &&
{{ [ "$(stat -c %s "$aside/patch")" -le {largest} ] || {{ echo 'the patch is too large'; false; }}; }} &&
cat "$aside/patch" >&3 || {{ cat "$aside/told" >&3; exit 1; }}
"""
)


class RepositoryError(TakeoverError, ValueError):
    """The workspace is no longer a git repository, or git cannot read it."""


def head_commit(sandbox: Sandbox) -> str:
    """Return the commit that is checked out. Raises RepositoryError."""
    return run_git(sandbox, "git rev-parse HEAD").strip()


def base_directories(sandbox: Sandbox) -> tuple[str, ...]:
    """List the top-level directories of the commit that is checked out."""
    return tuple(run_git(sandbox, "git ls-tree -z -d --name-only HEAD").split("\0")[:-1])


def list_files(sandbox: Sandbox) -> tuple[str, ...] | None:
    """List every file of the workspace except git's own, relative to it, sorted; None if there are too many."""
    found = sandbox.inspect(f"find . -path ./.git -prune -o ! -type d -print0 | head -z -n {MAX_FILES + 1}")
    names = found.output.split("\0")[:-1]
    whole = found.exit_code == 0 and len(names) <= MAX_FILES
    return tuple(sorted(name.removeprefix("./") for name in names)) if whole else None


def patch_since(sandbox: Sandbox, base_commit: str, earlier_patch: str = "") -> str:
    """Return everything that differs from `base_commit`, including new files, as a patch for git.

    With `earlier_patch`, an earlier result, the patch starts where that one ends. Empty if nothing differs. Raises
    RepositoryError.
    """
    with _store_patch(sandbox, earlier_patch) as earlier:
        patch = _diff(sandbox, base_commit, earlier, as_text=True)
        if _is_unicode(patch):
            return patch
        # What is not UTF-8 uses git's binary form, so that the patch stays text.
        binary_patch = _diff(sandbox, base_commit, earlier, as_text=False)
    parts = zip(split_by_file(patch), split_by_file(binary_patch), strict=True)
    return "".join(text if _is_unicode(text) else binary for text, binary in parts)


@contextlib.contextmanager
def _store_patch(sandbox: Sandbox, patch: str) -> Iterator[str]:
    """Provide the path of a file in the sandbox with that patch; empty for an empty patch."""
    if not patch:
        yield ""
        return
    path = run_git(sandbox, "mktemp -t takeover-git.XXXXXXXXXX").strip()
    try:
        sandbox.write_file(path, patch.encode())
        yield path
    finally:
        sandbox.inspect(f"rm -f -- {shlex.quote(path)}")


def _diff(sandbox: Sandbox, base_commit: str, earlier: str, *, as_text: bool) -> str:
    attributes, quoted = ("", "false") if as_text else ("* -diff", "true")
    script = _PATCH_SCRIPT.format(
        base=shlex.quote(base_commit),
        earlier=shlex.quote(earlier),
        attributes=attributes,
        quoted=quoted,
        largest=MAX_PATCH_BYTES,
    )
    return run_git(sandbox, script.strip())


def split_by_file(patch: str) -> list[str]:
    """Split a patch before the heading of each file."""
    return re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)


def _is_unicode(text: str) -> bool:
    return not re.search("[\ud800-\udfff]", text)


def run_git(sandbox: Sandbox, command: str) -> str:
    """Return the output of a git command. Raises RepositoryError."""
    # The image's repository may belong to another user than ours.
    trusted = "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'; "
    result = sandbox.inspect(trusted + command)
    if result.disk_full:
        sandbox.inspect(_CLEAN_UP_COMMAND)
        raise RepositoryError(
            "git in the sandbox: a copy of the changed files exceeds the sandbox's disk limit (raise disk_mb)"
        )
    if result.exit_code != 0:
        raise RepositoryError(f"git in the sandbox: {result.output.strip()[-300:] or 'failed'}")
    return result.output
