"""The repository in a sandbox as git sees it: patches, and merges of changes from copies."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from langgraph_takeover.base.failures import clean_up
from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.sandbox.interface import FileAccessError, Sandbox, SandboxUnavailableError
from langgraph_takeover.sandbox.repository_index import INDEX_SCRIPT, MAX_FILE_BYTES

MAX_PATCH_BYTES = 32 * 1024 * 1024
MAX_FILES = 20_000
MAX_LEFT_OUT = 500
UNRESOLVED = "the submodule's commit cannot be read, so all of its files count as new"
_REASONS = {
    "too_large": f"larger than {MAX_FILE_BYTES // 1024**2} MiB",
    "beyond": f"the patch would exceed {MAX_PATCH_BYTES // 1024**2} MiB",
    "no_file": "no file, link or readable directory",
    "unreadable": "git cannot read it, or not store its name",
    "no_link": "git refuses a link with this name",
    "history": "the commits of a nested repository; its files are in the patch",
    "unresolved": UNRESOLVED,
}

_CLEAN_UP_COMMAND = 'rm -rf -- "${TMPDIR:-/tmp}"/takeover-git.*'
"""Removes what an interrupted command has left of its copy."""
_PATCH_SCRIPT = r"""
export GIT_ALTERNATE_OBJECT_DIRECTORIES="$aside/stores"
write_tree() { env -u GIT_ALTERNATE_OBJECT_DIRECTORIES git write-tree --missing-ok; }
start="$base"
if [ -n "$earlier" ]; then
  start="$(
    export GIT_INDEX_FILE="$GIT_DIR/start" && git read-tree "$base" &&
    git apply --cached --whitespace=nowarn "$earlier" && write_tree
  )"
fi
for path in "${!heads[@]}"; do
  [ -z "${heads[$path]}" ] || [ "${heads[$path]}" = "${links[$path]}" ] || is_ignored "$path/" ||
    leave_out "$path/.git" "$history"
done
echo "$attributes" >"$GIT_DIR/info/attributes"
compare() {
  git -c core.quotePath="$quoted" diff --cached --binary --no-color "$renames" --ignore-submodules=none "$start" -- >"$aside/patch"
}
is_too_large() { [ "$(stat -c %s "$aside/patch")" -gt "$max_patch_bytes" ]; }
can_be_applied() (
  export GIT_INDEX_FILE="$GIT_DIR/again"
  git read-tree "$start" && git apply --cached --check "$aside/patch"
)
compare
# The smallest changes stay.
budget=$max_patch_bytes
while is_too_large; do
  [ $budget -gt 0 ] || { echo 'the patch is too large'; exit 1; }
  list_differences "$start" >"$aside/differences"
  while IFS= read -r -d '' line && IFS= read -r -d '' path; do
    split "$line"
    printf '%s\n%s\n' "$old" "$new"
  done <"$aside/differences" | git cat-file --batch-check='%(objectsize)' | sed 's/.* .*/0/' | paste -d ' ' - - |
    cat -n | while read -r number before after; do echo "$((before + after)) $number"; done | sort -n |
    while read -r size number; do
      sum=$((sum + size))
      [ $sum -le $budget ] || echo "$number"
    done | sort -n >"$aside/dropped"
  number=0 next=
  exec 4<"$aside/dropped"
  read -r next <&4 || :
  while IFS= read -r -d '' line && IFS= read -r -d '' path; do
    number=$((number + 1))
    [ "$number" = "$next" ] || continue
    next=
    read -r next <&4 || :
    split "$line"
    # Where a directory takes the place of the file, the file would push its entries out.
    if [ "$kind" = D ] && [ -d "$path" ]; then continue; fi
    leave_out "$path" "$beyond"
    put "${old_mode/000000/0}" "$old" "$path"
  done <"$aside/differences" >"$aside/kept"
  git update-index --add --replace -z --index-info <"$aside/kept"
  budget=$((budget / 2))
  compare
done
# `git apply` does not know that a renamed link leaves room for a directory.
if [ -s "$aside/patch" ] && ! can_be_applied; then
  renames=--no-renames
  compare
  can_be_applied
fi
{
  tr -dc '\0' <"$aside/left_out" | wc -c | tr '\n' '\0'
  head -z -n "$max_left_out" "$aside/left_out"
  printf '\0'
  cat "$aside/patch"
} >&3
"""


_PACK_SCRIPT = r"""
path="$(mktemp -t takeover-git.XXXXXXXXXX)"
echo "$base" | everywhere git pack-objects -q --revs --stdout >"$path"
echo "$base" "$path" >&3
"""

OpenBase = Callable[[], AbstractContextManager[Sandbox]]
"""Starts a sandbox whose repository has the base commit."""


class BaseTree(NamedTuple):
    """The commit or tree that a patch starts from, with its objects if the sandbox lacks them."""

    commit: str
    pack: bytes = b""
    path: str = ""
    """The file in the sandbox that has the objects."""


class RepositoryError(TakeoverError, ValueError):
    """The workspace is no longer a git repository, or git cannot read it."""


class LeftOut(Frozen):
    """What a patch or a snapshot does not hold, and why."""

    path: str
    reason: str


class Patch(Frozen):
    """A difference of the files, as a patch for git."""

    text: str = ""
    """Empty if nothing differs."""
    left_out: tuple[LeftOut, ...] = ()
    """What differs and is not in the text: at most 500 paths."""
    left_out_count: int = 0


def head_commit(sandbox: Sandbox) -> str:
    """Return the commit that is checked out. Raises RepositoryError."""
    return run_git(sandbox, "git rev-parse HEAD").strip()


def base_directories(sandbox: Sandbox) -> tuple[str, ...]:
    """List the top-level directories of the commit that is checked out."""
    return tuple(run_git(sandbox, "git ls-tree -z -d --name-only HEAD").split("\0")[:-1])


def base_files(sandbox: Sandbox, limit: int) -> tuple[str, ...]:
    """List the first files of the commit that is checked out, at most `limit`."""
    command = f"git ls-tree -r -z --name-only HEAD | head -z -n {limit}"
    return tuple(run_git(sandbox, command).split("\0")[:-1])


def list_files(sandbox: Sandbox) -> tuple[str, ...] | None:
    """List every file of the workspace except git's own, relative to it, sorted; None if there are too many."""
    found = sandbox.inspect(f"find . -name .git -prune -o ! -type d -print0 | head -z -n {MAX_FILES + 1}")
    names = found.output.split("\0")[:-1]
    whole = found.exit_code == 0 and len(names) <= MAX_FILES
    return tuple(sorted(name.removeprefix("./") for name in names)) if whole else None


def patch_since(
    sandbox: Sandbox, base_commit: str, earlier_patch: str = "", open_base: OpenBase | None = None
) -> Patch:
    """Return everything that differs from `base_commit`, including new files and the files of repositories inside.

    With `earlier_patch`, an earlier result's text, the patch starts where that one ends. Files of more than 16 MiB, the
    largest changes of a patch of more than 32 MiB, and what git cannot store are left out, and named. If the commit is
    gone from the sandbox, it is read from the one that `open_base` starts. Raises RepositoryError.
    """
    problem, patch = None, Patch()
    try:
        patch = _compute_patch(sandbox, BaseTree(base_commit), earlier_patch)
    except RepositoryError as error:
        problem = error
    if problem is None and all(each.reason != UNRESOLVED for each in patch.left_out):
        return patch
    base = _read_base(open_base, base_commit) if open_base else None
    if base is not None:
        return _compute_patch(sandbox, base, earlier_patch)
    if problem is not None:
        raise problem
    return patch


def _read_base(open_base: OpenBase, commit: str) -> BaseTree | None:
    """Return the tree of a commit with its objects, from a sandbox that has it; None if it has not."""
    try:
        with open_base() as sandbox:
            tree, path = run_git(sandbox, build_index_script(BaseTree(commit)) + _PACK_SCRIPT).split()
            return BaseTree(tree, sandbox.read_file(path))
    except (RepositoryError, SandboxUnavailableError, FileAccessError):
        return None


def _compute_patch(sandbox: Sandbox, base: BaseTree, earlier_patch: str) -> Patch:
    with _store(sandbox, base.pack) as pack, _store(sandbox, earlier_patch.encode()) as earlier:
        base = base._replace(path=pack)
        patch = _diff(sandbox, base, earlier)
        if _is_unicode(patch.text):
            return patch
        # What is not UTF-8 uses git's binary form, so that the patch stays text. Renames depend on the form.
        patch = _diff(sandbox, base, earlier, renames=False)
        binary_patch = _diff(sandbox, base, earlier, renames=False, as_text=False)
    parts = zip(split_by_file(patch.text), split_by_file(binary_patch.text), strict=True)
    text = "".join(text if _is_unicode(text) else binary for text, binary in parts)
    return patch.model_copy(update={"text": text})


@contextlib.contextmanager
def _store(sandbox: Sandbox, content: bytes) -> Iterator[str]:
    """Provide the path of a file in the sandbox with that content; empty for no content."""
    if not content:
        yield ""
        return
    path = run_git(sandbox, "mktemp -t takeover-git.XXXXXXXXXX").strip()
    with clean_up(lambda: sandbox.inspect(f"rm -f -- {shlex.quote(path)}")):
        sandbox.write_file(path, content)
        yield path


def build_index_script(base: BaseTree) -> str:
    """Return the script that reads the workspace into an index of its own; a script after it may use its variables."""
    values = {"base": base.commit, "pack": base.path, "max_file_bytes": str(MAX_FILE_BYTES), **_REASONS}
    return _assign(values) + INDEX_SCRIPT


def _assign(values: dict[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def _diff(
    sandbox: Sandbox, base: BaseTree, earlier: str, *, renames: bool = True, as_text: bool = True
) -> Patch:
    values = {
        "earlier": earlier,
        "renames": "--find-renames" if renames else "--no-renames",
        "attributes": "" if as_text else "* -diff",
        "quoted": "false" if as_text else "true",
        "max_patch_bytes": str(MAX_PATCH_BYTES),
        "max_left_out": str(2 * MAX_LEFT_OUT),
    }
    output = run_git(sandbox, _assign(values) + build_index_script(base) + _PATCH_SCRIPT)
    count, _, rest = output.partition("\0")
    left_out = []
    while not rest.startswith("\0"):
        path, reason, rest = rest.split("\0", 2)
        left_out.append(LeftOut(path=path, reason=reason))
    return Patch(text=rest[1:], left_out=tuple(left_out), left_out_count=int(count) // 2)


def split_by_file(patch: str) -> list[str]:
    """Split a patch before the heading of each file."""
    return re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)


def _is_unicode(text: str) -> bool:
    return not re.search("[\ud800-\udfff]", text)


def run_git(sandbox: Sandbox, command: str) -> str:
    """Return the output of a git command. Raises RepositoryError."""
    # The image's repository may belong to another user than ours.
    trusted = "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'\n"
    result = sandbox.inspect(trusted + command)
    if result.disk_full:
        sandbox.inspect(_CLEAN_UP_COMMAND)
        raise RepositoryError(
            "git in the sandbox: a copy of the changed files exceeds the sandbox's disk limit (raise disk_mb)"
        )
    if result.exit_code != 0:
        raise RepositoryError(f"git in the sandbox: {result.output.strip()[-300:] or 'failed'}")
    return result.output


_MAX_DIFF_CHARS = 50_000

# Each set of changes is merged, file by file, into the result of the ones before: in an index, where no partial state is
# visible. What both sides changed is merged by lines, or stays as it is; only then the workspace is written. The commands
# that write trees do not see the repository's objects either.
_MERGE_SCRIPT = """
{
  put() {
    if [ -n "$2" ]; then git update-index --add --cacheinfo "$1,$2,$3"
    else printf '%s\\0' "$3" | git update-index -z --force-remove --stdin; fi
  }
  one() {
    local entry mode oid stage bm= b= om= o= tm= t=
    git ls-files -u -z -- ":(literal)$1" >"$aside/stages" || return
    [ -s "$aside/stages" ] || return 0
    while IFS= read -r -d '' entry; do
      read -r mode oid stage <<<"${entry%%$'\\t'*}"
      case $stage in 1) bm=$mode b=$oid ;; 2) om=$mode o=$oid ;; 3) tm=$mode t=$oid ;; esac
    done <"$aside/stages"
    # Where one side has a file and the other a directory, git resolves nothing; what goes makes room first.
    if [ "$b $bm" = "$t $tm" ]; then put "$om" "$o" "$1"; return; fi
    [ "$b $bm" != "$o $om" ] || [ -n "$t$2" ] || { put "" "" "$1"; return; }
    [ -n "$2" ] || return 0
    if [ "$b $bm" = "$o $om" ]; then ! put "$tm" "$t" "$1" || return 0
    elif [[ $bm$om$tm = 100???100???100??? ]]; then
      git cat-file blob "$b" >"$aside/b" && git cat-file blob "$o" >"$aside/o" &&
      git cat-file blob "$t" >"$aside/t" || return
      if git merge-file -q "$aside/o" "$aside/b" "$aside/t"; then
        [ "$om" != "$bm" ] || om=$tm
        o=$(env -u GIT_ALTERNATE_OBJECT_DIRECTORIES git hash-object -w --no-filters "$aside/o") || return
        put "$om" "$o" "$1"
        return
      fi
    fi
    printf '%s\\0' "$1" >>"$aside/conflicts"
    put "$om" "$o" "$1"
  }
  tree() { env -u GIT_ALTERNATE_OBJECT_DIRECTORIES git write-tree --missing-ok; }
  side() { git diff --no-color --no-renames "$1" "$2" -- ":(literal)$3" | tr -d '\\0' | head -c "$longest"; }
  merged() {
    local theirs after path
    export GIT_INDEX_FILE="$GIT_DIR/theirs" && rm -f "$GIT_INDEX_FILE" "$aside/conflicts" && git read-tree "$base" &&
    { [ ! -s "$1" ] || git apply --cached --whitespace=nowarn "$1"; } && theirs=$(tree) &&
    GIT_INDEX_FILE="$GIT_DIR/merging" && rm -f "$GIT_INDEX_FILE" && git read-tree "$ours" &&
    git read-tree -i -m --aggressive "$before" "$ours" "$theirs" && : >"$aside/conflicts" &&
    git ls-files -u -z >"$aside/unmerged" || return
    local last entry really
    for really in "" yes; do
      last=
      while IFS= read -r -d '' entry; do
        path=${entry#*$'\\t'}
        [ "$path" = "$last" ] || one "$path" "$really" || return
        last=$path
      done <"$aside/unmerged"
    done
    after=$(tree) && git diff-tree -r -z --no-renames --name-only "$ours" "$after" >"$aside/taken" || return
    while IFS= read -r -d '' path; do printf 'taken\\0%s\\0' "$path"; done <"$aside/taken" >&3
    while IFS= read -r -d '' path; do
      printf 'conflict\\0%s\\0' "$path"; side "$before" "$ours" "$path"; printf '\\0'
      side "$before" "$theirs" "$path"; printf '\\0'
    done <"$aside/conflicts" >&3
    printf 'end\\0' >&3
    ours=$after
  }
  written() {
    local path kind
    export GIT_INDEX_FILE="$GIT_DIR/none"
    git diff --binary --full-index --no-renames "$before" "$ours" >"$aside/all" || return
    [ -s "$aside/all" ] || return 0
    ! git apply --whitespace=nowarn "$aside/all" || return 0
    for kind in D d; do
      git diff-tree -r -z --no-renames --name-only --diff-filter=$kind "$before" "$ours" >"$aside/taken" || return
      while IFS= read -r -d '' path; do
        git diff --binary --full-index --no-renames "$before" "$ours" -- ":(literal)$path" >"$aside/one" || return
        git apply --whitespace=nowarn "$aside/one" && continue
        printf 'unwritten\\0%s\\0' "$path" >&3; side "$before" "$ours" "$path" >&3; printf '\\0' >&3
      done <"$aside/taken"
    done
  }
  all() {
    before=$(tree) && ours=$before && export GIT_ALTERNATE_OBJECT_DIRECTORIES="$aside/stores" || return
    local patch
    for patch in "$given"/*; do merged "$patch" || return; done
    written
  }
  all
}
"""


class MergeConflict(Frozen):
    """One file that stays unchanged in the sandbox, with both sides' changes."""

    path: str
    ours: str
    """As a diff; empty for a file without changes that git does not track."""
    theirs: str


class MergeResult(Frozen):
    """The result of merging one set of changes."""

    changed_files: tuple[str, ...] = ()
    """The files that were changed, relative to the workspace."""
    conflicts: tuple[MergeConflict, ...] = ()


def merge(sandbox: Sandbox, base_commit: str, patches: Sequence[str | None]) -> tuple[MergeResult, ...]:
    """Merge patches, each a complete difference from `base_commit`, into the workspace; None has nothing to merge.

    An empty patch is the base itself: it undoes what the workspace changed. Earlier patches win: files of later ones that
    cannot be merged stay as they are. Raises RepositoryError, and then the workspace is unchanged.
    """
    directory = run_git(sandbox, "mktemp -d").strip()
    quoted = shlex.quote(directory)
    numbered = {number: patch for number, patch in enumerate(patches) if patch is not None}
    with clean_up(lambda: sandbox.inspect(f"rm -rf -- {quoted}")):
        try:
            for number, patch in numbered.items():
                sandbox.write_file(f"{directory}/{number:04}", patch.encode())
            settings = f"given={quoted} longest={_MAX_DIFF_CHARS}\n"
            output = run_git(sandbox, settings + build_index_script(BaseTree(base_commit)) + _MERGE_SCRIPT)
        except FileAccessError as error:
            raise RepositoryError(f"a patch could not be applied in the sandbox: {error}") from error
    found = _parse_results(output)
    if len(found) != len(numbered):
        raise RepositoryError("git in the sandbox: the merge did not report its result")
    by_number = dict(zip(numbered, found, strict=True))
    return tuple(by_number.get(number, MergeResult()) for number in range(len(patches)))


def _parse_results(output: str) -> list[MergeResult]:
    words = iter(output.split("\0")[:-1])
    found: list[MergeResult] = []
    taken: list[str] = []
    conflicts: list[MergeConflict] = []
    for kind in words:
        if kind == "taken":
            taken.append(next(words))
        elif kind == "conflict":
            conflicts.append(MergeConflict(path=next(words), ours=next(words), theirs=next(words)))
        elif kind == "end":
            found.append(MergeResult(changed_files=tuple(taken), conflicts=tuple(conflicts)))
            taken, conflicts = [], []
        else:
            found = _mark_unwritten(found, MergeConflict(path=next(words), ours="", theirs=next(words)))
    return found


def _mark_unwritten(results: list[MergeResult], conflict: MergeConflict) -> list[MergeResult]:
    return [
        each.model_copy(
            update={
                "changed_files": tuple(path for path in each.changed_files if path != conflict.path),
                "conflicts": (*each.conflicts, conflict),
            }
        )
        if conflict.path in each.changed_files
        else each
        for each in results
    ]
