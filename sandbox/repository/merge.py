"""Merge changes from copies of a sandbox's repository into it, without overwriting its own changes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from langgraph_takeover.sandbox.interface import FileAccessError, Frozen, Sandbox
from langgraph_takeover.sandbox.repository.patches import (
    BaseTree,
    RepositoryError,
    build_index_script,
    run_git,
)
from langgraph_takeover.sandbox.storage.failures import clean_up

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
