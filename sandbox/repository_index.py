"""The script that reads the files of a repository into an index of our own, whatever the repository's settings say."""

from __future__ import annotations

MAX_FILE_BYTES = 16 * 1024 * 1024

# The truth is the file system. Objects are read through `$aside/stores`, which lists the object stores of the repository and
# of the repositories inside it; commands that write do not see them, because git would change the times of their files.
#
# - A git directory of our own: nothing in the agent's configuration, hooks, exclude files or index flags changes the
#   comparison. It is made by hand, because `git init` takes as long as all of the rest. The index is a copy with its own
#   time, by which git detects files that changed too soon after it.
# - Repositories inside count as directories: in `$base`, the tree of its commit takes the place of each submodule; and git
#   enters a nested repository if the index has an entry in it, so each gets one.
# - Files are read as they are. Where the settings of the repository convert contents (`autocrlf`, attributes), the
#   converted form counts if checking it out again gives the same file.
INDEX_SCRIPT = r"""
[ -e .git ] || [ -n "$pack" ] || { echo 'no git repository'; exit 1; }
aside="$(mktemp -d -t takeover-git.XXXXXXXXXX)" && exec 3>&1 >"$aside/told" 2>&1 || exit
trap 'status=$?; [ $status = 0 ] || cat "$aside/told" >&3; rm -rf -- "$aside"; exit $status' EXIT
set -e
tell() { printf '%s\0%s\0' "$1" "$2" >>"$aside/left_out"; }
is_true() { case ${1,,} in true | yes | on | 1 | '') ;; *) return 1 ;; esac; }
is_ignored() { printf '%s\0' "$1" | git check-ignore -q -z --stdin; }
everywhere() { GIT_ALTERNATE_OBJECT_DIRECTORIES="$aside/stores" "$@"; }
list_entries() { git ls-files -v -s -z >"$aside/entries"; }
list_differences() { everywhere git diff-index --cached --raw -z --no-renames --ignore-submodules=none "$@"; }
skip_absent() {
  grep -za '^[sS] ' "$aside/entries" | sed -z 's/^[^\t]*\t//' | while IFS= read -r -d '' path; do
    [ -e "$path" ] || [ -L "$path" ] || printf '%s\0' "$path"
  done | git update-index -z --skip-worktree --stdin
}
# Fields of a line of `list_differences`: modes, object ids and kind.
split() { old_mode=${1:1:6} new_mode=${1:8:6} old=${1#* * } old=${old%% *} new=${1% *} new=${new##* } kind=${1##* }; }

mkdir -p "$aside/git/info" "$aside/git/objects/pack" "$aside/git/refs" "$aside/stores/info" "$aside/stores/pack"
: >"$aside/left_out"
crlf= eol= keeps_modes=yes keeps_links=yes sparse= cone= global="${XDG_CONFIG_HOME:-$HOME/.config}/git/attributes"
while read -r key value; do
  case $key in
    core.autocrlf) if [ "${value,,}" = input ]; then crlf=input; else crlf=; ! is_true "$value" || crlf=true; fi ;;
    core.eol) case ${value,,} in lf | crlf) eol=${value,,} ;; *) eol= ;; esac ;;
    core.filemode) keeps_modes=; ! is_true "$value" || keeps_modes=yes ;;
    core.symlinks) keeps_links=; ! is_true "$value" || keeps_links=yes ;;
    core.sparsecheckout) sparse=; ! is_true "$value" || sparse=yes ;;
    core.sparsecheckoutcone) cone=$value ;;
    core.attributesfile) global=${value/#\~\//$HOME/} ;;
  esac
done < <(git config --get-regexp '^core\.(autocrlf|eol|filemode|symlinks|sparsecheckout|sparsecheckoutcone|attributesfile)$')
[ ! -f "$global" ] || cp -- "$global" "$aside/git/attributes"
export HOME="$aside" XDG_CONFIG_HOME="$aside" GIT_CONFIG_NOSYSTEM=1 GIT_NO_REPLACE_OBJECTS=1

declare -A heads links told_of checked_out
index= format=sha1
[ ${#base} != 64 ] || format=sha256
places=(--git-path objects --git-path index --git-path info/attributes --git-path info/sparse-checkout
  --git-path modules --show-object-format)
if [ -e .git ] && places="$(git rev-parse "${places[@]}")"; then
  for name in objects index local_attributes patterns modules format; do IFS= read -r "${name?}"; done <<<"$places"
  if objects="$(CDPATH= cd -- "$objects" && pwd -P)"; then
    [ "${modules:0:1}" = / ] || modules="$PWD/$modules"
    echo "$objects" >"$aside/stores/info/alternates"
    while IFS= read -r store; do
      echo "$store" >>"$aside/stores/info/alternates"
      place="$(git config -f "${store%/objects}/config" core.worktree)" || continue
      place="$(CDPATH= cd -- "${store%/objects}" && cd -- "$place" && pwd -P)" && checked_out[${place#"$PWD"/}]=yes || :
    done < <(find "${objects%/*}/modules" "$modules" -type d -path '*/objects/pack' -printf '%h\n')
  fi
  [ ! -f "$local_attributes" ] || cp -- "$local_attributes" "$aside/attributes"
  [ ! -f "$patterns" ] || cp -- "$patterns" "$aside/git/info/sparse-checkout"
else
  [ -n "$pack" ]
fi
find . -path ./.git -prune -o -name .git -prune -printf 'nested %P\0' -o -name .gitattributes -printf 'attributes %P\0' \
  -o -type f -size +"$max_file_bytes"c -printf 'large %P\0' \
  -o -type l -iname .gitmodules -printf 'link %P\0' \
  -o \( ! -type d ! -type f ! -type l -o -type d ! \( -readable -executable \) \) -printf 'special %P\0' \
  >"$aside/found" || :
nested=() large=() links_refused=() spared=() special=() converts=$crlf
[ ! -s "$aside/attributes" ] && [ ! -s "$aside/git/attributes" ] || converts=yes
while IFS= read -r -d '' entry; do
  path=${entry#* }
  case $entry in
    attributes*) converts=yes ;;
    large*) large+=("$path") spared+=(":(exclude,literal)$path") ;;
    special*) special+=("$path") ;;
    link*) links_refused+=("$path") spared+=(":(exclude,literal)$path") ;;
    nested*)
      path=${path%/.git}
      nested+=("$path")
      if place="$(cd -- "$path" && git rev-parse --git-path objects)"; then
        heads[$path]=$(git -C "$path" rev-parse -q --verify HEAD || :)
        (cd -- "$path" && cd -- "$place" && pwd -P) >>"$aside/stores/info/alternates" || :
      fi
      ;;
  esac
done <"$aside/found"

echo 'ref: refs/heads/none' >"$aside/git/HEAD"
printf '[core]\nrepositoryformatversion=1\ncompression=0\nsafecrlf=false\n%s%s[extensions]\nobjectformat=%s\n' \
  "${crlf:+autocrlf=$crlf$'\n'}" "${eol:+eol=$eol$'\n'}" "$format" >"$aside/git/config"
export GIT_DIR="$aside/git" GIT_WORK_TREE="$PWD"
[ -z "$pack" ] || git index-pack --stdin <"$pack"
base="$(everywhere git rev-parse --verify "$base^{tree}")"
committed="$base"

# The base, with the files of its submodules.
expand() {
  local entry path oid again=yes
  export GIT_INDEX_FILE="$GIT_DIR/base"
  everywhere git read-tree "$base"
  while [ -n "$again" ]; do
    again=
    git ls-files -s -z | grep -za '^160000 ' >"$aside/links" || :
    while IFS= read -r -d '' entry; do
      path=${entry#*$'\t'} oid=${entry:7} oid=${oid%% *}
      [ -z "${links[$path]}" ] || continue
      links[$path]=$oid
      if [ -d "$path" ] && [ ! -L "$path" ]; then
        # An empty directory is a submodule that was never checked out, or no longer is: no change.
        printf '%s\0' "$path" | git update-index -z --force-remove --stdin
        [ -n "${checked_out[$path]}" ] || [ -n "$(find "$path" -mindepth 1 -maxdepth 1 -print -quit)" ] || continue
        everywhere git cat-file -e "$oid^{tree}" || { tell "$path" "$unresolved"; continue; }
      else
        everywhere git cat-file -e "$oid^{tree}" || continue
        printf '%s\0' "$path" | git update-index -z --force-remove --stdin
      fi
      everywhere git read-tree --prefix="$path/" "$oid"
      again=yes
    done <"$aside/links"
  done
  base="$(git write-tree --missing-ok)"
  unset GIT_INDEX_FILE
}
! everywhere git ls-tree -r "$base" | grep -qa '^160000 ' || expand

# The index: the repository's own, so that unchanged files are not read again, without submodules.
for file in ${index:+"$index" "${index%index}"sharedindex.*}; do
  [ ! -f "$file" ] || cp --preserve=timestamps -- "$file" "$GIT_DIR"
done
is_new=
if [ ! -f "$GIT_DIR/index" ] || ! everywhere list_entries; then
  is_new=yes
  rm -f "$GIT_DIR/index"
  everywhere git read-tree "$base"
  list_entries
fi
if [ -n "$sparse$converts" ]; then
  # Recorded times would hide contents that differ only in what git converts.
  mv "$GIT_DIR/index" "$GIT_DIR/recorded"
  grep -zav '^. 160000 ' "$aside/entries" | sed -z 's/^. //' | git update-index -z --index-info
  [ -z "$sparse" ] || skip_absent
else
  grep -za '^. 160000 ' "$aside/entries" | sed -z 's/^[^\t]*\t//' | git update-index -z --force-remove --stdin
  if grep -qza '^[a-zS] ' "$aside/entries"; then
    git ls-files -z | git update-index -z --no-assume-unchanged --stdin
    git ls-files -z | git update-index -z --no-skip-worktree --stdin
  fi
fi
list_differences --diff-filter=D "$base" | while IFS= read -r -d '' line && IFS= read -r -d '' path; do
  split "$line"
  printf '%s %s 0\t%s\0' "$old_mode" "$old" "$path"
done >"$aside/missing"
[ ${#nested[@]} = 0 ] || empty="$(git hash-object -w --stdin </dev/null)"
for path in "${nested[@]}"; do printf '100644 %s 0\t%s/%s\0' "$empty" "$path" "${aside##*/}"; done >"$aside/places"
cat "$aside/missing" "$aside/places" | git update-index --add --replace -z --index-info
if [ -n "$sparse" ] && { [ -n "$is_new" ] || [ -s "$aside/missing" ]; }; then
  # Without its entry, the patterns say whether a file that is not there was never checked out.
  mkdir "$aside/checkout"
  GIT_INDEX_FILE="$GIT_DIR/cone" GIT_WORK_TREE="$aside/checkout" everywhere git -c core.sparseCheckout=true \
    -c core.sparseCheckoutCone="$cone" read-tree -m -u "$committed"
  GIT_INDEX_FILE="$GIT_DIR/cone" list_entries
  skip_absent
fi

echo '* -text -ident -filter !working-tree-encoding !eol !crlf' >"$GIT_DIR/info/attributes"
git update-index -q --refresh || :
added=0
git add -A --ignore-errors -- . "${spared[@]:0:500}" || added=$?
[ $added -le 1 ]

# What git could not add, and what it never adds.
leave_out() { [ -n "${told_of[$1]}" ] || { told_of[$1]=yes; tell "$1" "$2"; }; }
for path in "${special[@]}"; do is_ignored "$path" || leave_out "$path" "$no_file"; done
if [ $added = 1 ]; then
  for path in "${large[@]}" "${links_refused[@]}"; do told_of[$path]=no; done
  { git ls-files -o --exclude-standard -z; git diff-files --name-only -z; } >"$aside/rest"
  while IFS= read -r -d '' path; do leave_out "$path" "$unreadable"; done <"$aside/rest"
  for path in "${large[@]}" "${links_refused[@]}"; do unset "told_of[$path]"; done
fi
rm "$GIT_DIR/info/attributes"
[ ! -f "$aside/attributes" ] || cp -- "$aside/attributes" "$GIT_DIR/info/attributes"

put() { printf '%s %s 0\t%s\0' "$1" "$2" "$3"; }
is_pointer_to() {
  local text
  [ "$(everywhere git cat-file -s "$1")" -lt 1024 ] || return
  text="$(everywhere git cat-file blob "$1" | tr -d '\0')"
  [[ $text = 'version https://git-lfs'* && $text =~ oid\ sha256:([0-9a-f]{64}) ]] || return
  [ "$(sha256sum <"$2" | head -c 64)" = "${BASH_REMATCH[1]}" ]
}
is_checkout_of() {
  everywhere git cat-file blob "$1" | cmp -s - "$2" ||
    { [ -n "$converts" ] && { everywhere git cat-file --filters --path="$2" "$1" | cmp -s - "$2" || is_pointer_to "$1" "$2"; }; }
}
for path in "${large[@]}" "${links_refused[@]}"; do
  reason=$too_large
  [ ! -L "$path" ] || reason=$no_link
  line="$(everywhere git ls-tree -z "$base" -- "$path" | tr '\0' '\n')" mode=${line%% *} old=${line#* * } old=${old%%$'\t'*}
  if [ -z "$line" ] || [ "$mode" = 040000 ]; then
    ! is_ignored "$path" || continue
    mode=0 old=0000000000000000000000000000000000000000000000000000000000000000 old=${old:0:${#base}}
    leave_out "$path" "$reason"
  else
    { [ ! -L "$path" ] && is_checkout_of "$old" "$path"; } || leave_out "$path" "$reason"
  fi
  put "$mode" "$old" "$path"
done | git update-index --add --replace -z --index-info

has_recorded_time() {
  local found
  found="$(GIT_INDEX_FILE="$GIT_DIR/recorded" everywhere git ls-files -s --debug -- ":(literal)$2" | tr '\0' ' ')"
  [[ $found = *" $1 0"$'\t'* && $found =~ mtime:\ ([0-9]+):([0-9]+).*size:\ ([0-9]+) ]] || return
  printf -v found '%d.%09d %d' "${BASH_REMATCH[@]:1:3}"
  [ "$(stat -c '%.9Y %s' -- "$2")" = "$found" ]
}
# What only the settings make different: modes and links that the file system cannot keep, and converted contents.
if [ -n "$converts" ] || [ -z "$keeps_modes" ] || [ -z "$keeps_links" ]; then
  list_differences "$base" >"$aside/differences"
  if [ -z "$keeps_modes" ]; then
    everywhere git ls-tree -r "$base" >"$aside/tree"
    # One script whose mode changed is a change; a file system without modes changes most of them.
    for mode in 100644 100755; do
      all=$(grep -ac "^$mode " "$aside/tree" || :) changed=$(grep -zac "^:$mode 100... .* M$" "$aside/differences" || :)
      same=$(grep -zac "^:$mode $mode .* M$" "$aside/differences" || :)
      [ $((2 * (changed - same))) -le "$all" ] || [ "$all" -lt 2 ] || keeps_modes=no
    done
  fi
  : >"$aside/names"
  while IFS= read -r -d '' line && IFS= read -r -d '' path; do
    split "$line"
    if [ "$keeps_modes" = no ] && [[ $old_mode$new_mode = 100???100??? ]]; then
      put "$old_mode" "$new" "$path"
    elif [ -z "$keeps_links" ] && [ "$old_mode$new_mode$old" = "120000100644$new" ]; then
      put "$old_mode" "$old" "$path"
    fi
  done <"$aside/differences" >"$aside/kept"
  git update-index --add -z --index-info <"$aside/kept"
fi
if [ -n "$converts" ]; then
  list_differences "$base" | while IFS= read -r -d '' line && IFS= read -r -d '' path; do
    split "$line"
    [[ $new_mode = 100??? && $path != *$'\n'* ]] || continue
    printf '%s\n' "$path" >&4
    printf '%s %s %s\n' "$new_mode" "$old" "$new"
  done >"$aside/differences" 4>"$aside/names"
  git hash-object -w --stdin-paths <"$aside/names" >"$aside/clean"
  paste -d ' ' "$aside/clean" "$aside/differences" "$aside/names" >"$aside/lines"
  # Clean, old and new object ids have the same length.
  fields() { clean=${1:0:n} mode=${1:n+1:6} old=${1:n+8:n} new=${1:2*n+9:n} path=${1:3*n+10}; }
  n=${#base}
  # Git converts no file whose committed version has CRLF.
  while IFS= read -r line; do
    fields "$line"
    [ -z "${old//0/}" ] || put "$mode" "$old" "$path"
  done <"$aside/lines" | GIT_INDEX_FILE="$GIT_DIR/old" git update-index --add -z --index-info
  declare -A has_crlf
  while IFS= read -r -d '' path; do
    has_crlf[$path]=yes
  done < <(GIT_INDEX_FILE="$GIT_DIR/old" everywhere git ls-files --eol -z | grep -zaE '^i/(crlf|mixed)' | sed -z 's/^[^\t]*\t//')
  while IFS= read -r line; do
    fields "$line"
    [ "$clean" != "$new" ] && [ -z "${has_crlf[$path]}" ] || continue
    put "$mode" "$clean" "$path"
    printf '%s\n' "$path" >&4
    printf '%s\n' "$new" >&5
  done <"$aside/lines" 4>"$aside/names" 5>"$aside/raw" >"$aside/converted"
  GIT_INDEX_FILE="$GIT_DIR/clean" git update-index --add -z --index-info <"$aside/converted"
  mkdir "$aside/out"
  GIT_INDEX_FILE="$GIT_DIR/clean" git checkout-index -a -q --prefix="$aside/out/"
  (cd "$aside/out" && GIT_WORK_TREE=. git hash-object --no-filters --stdin-paths) <"$aside/names" >"$aside/again"
  paste -d ' ' "$aside/raw" "$aside/again" | while read -r raw again && IFS= read -r -d '' entry <&4; do
    [ "$raw" != "$again" ] || printf '%s\0' "$entry"
  done 4<"$aside/converted" | git update-index -z --index-info
  # No filter runs. A file with one is unchanged if it has the recorded size and time, or is what a pointer of LFS names.
  while IFS= read -r line; do
    fields "$line"
    [ -z "${old//0/}" ] || printf '%s\0' "$path"
  done <"$aside/lines" | git check-attr -z --stdin filter |
    while IFS= read -r -d '' path && read -r -d '' name && IFS= read -r -d '' value; do
      case $value in unset | unspecified) continue ;; esac
      line="$(list_differences "$base" -- ":(literal)$path" | tr '\0' '\n')"
      split "${line%%$'\n'*}"
      if [ "$kind" = M ] && { has_recorded_time "$old" "$path" || is_pointer_to "$old" "$path"; }; then
        put "$new_mode" "$old" "$path"
      fi
    done | git update-index -z --index-info
fi
"""
