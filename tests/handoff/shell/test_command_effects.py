"""Command effects are never underestimated: nothing for harmless commands, anything in case of doubt."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from langgraph_takeover.handoff.shell.command_effects import (
    find_effect,
    is_search,
    list_shown_files,
    may_act,
    may_edit,
)
from langgraph_takeover.handoff.shell.syntax_reader import parse_command

from ...random_examples import SHARED_FIXTURES, examples

NOTHING = """
ls
ls -la src
pwd
cat a.txt
cat < a.txt
cat a.txt b.txt | head -n 3 | tail -1
cat 'a file' "another $NAME"
grep -rn "def wrap" --include=*.py .
grep -c x a.txt || true
rg -n 'TODO|FIXME' src
find . -name '*.py' -type f
find . -newer a.txt -print0
sed -n 1,20p a.txt
sed -n '5p' a.txt
sed -n '1,5p;9p' a.txt
sort a.txt | uniq | wc -l
sort -u -k2,2 a.txt
git status
git log --oneline -5
git show HEAD:a.txt
git diff HEAD~1 -- a.txt
git grep -n x
git blame a.txt
wc -l < a.txt
echo hi
echo a > /dev/null
ls 2>/dev/null
ls 2>&1
ls missing 2>&1 | head
printf '%s\\n' a b
test -f a.txt && echo yes
[ -d src ] && ls src
uniq -c < a.txt
cat src/*.py *.txt
sort src/*.py
ls {a,b}
tail -f a.txt
stat a.txt; du -sh .
which python3
date
date +%s
date -u
ls # a comment
diff a.txt b.txt
nl a.txt
file a.txt
""".strip().splitlines()

SHELL = """
cd src
cd src && ls
cd
cd -
pushd src
popd
cd src; git status
""".strip().splitlines()

ANYTHING = [
    *"""
rm a.txt
python3 x.py
make
ls > out
ls >> out
ls >| out
ls &> out
ls &>> out
ls >& out
ls 2> out
ls 2>> out
ls 1> out
ls 3> out
ls <> out
ls {fd}> out
ls {fd}>/dev/null
ls {fd}< a.txt
date '01010000'>/dev/null
> out
>> out
>| out
ls; > out
ls && >out
>out ls
> out cat a.txt
2>out
ls > /dev/null > out
ls > out > /dev/null
ls > /dev/nullx
ls > /dev/sda
ls > "out"
ls > $OUT
{ ls; } > out
(ls) > out
{ ls; } 2> out
( ls; pwd ) >> out
if true; then ls; fi > out
for f in a b; do echo $f; done > out
while read l; do echo $l; done < a.txt
! ls > out
ls | tee out
ls | tee -a out
ls |& tee out
cat a.txt | sponge a.txt
echo $(rm a.txt)
echo "$(rm a.txt)"
echo `rm a.txt`
echo "`rm a.txt`"
cat <(rm a.txt)
cat <(ls) >(cat > out)
ls >(cat > out)
echo ${X:=rm}
echo "${X:=y}"
echo $((x=1))
echo $[x=1]
echo "$[x=1]"
((x=1))
((x=1)) && ls
ls; ((x++))
[[ x=3 -eq 3 ]] && ls
[[ -v a[0] ]]; ls
[[ -f a.txt ]] && ls
test -v 'a[x=1]'
let x=1
find . -delete
find . -name '*.pyc' -delete
find . -exec rm {} ;
find . -exec rm {} \\;
find . -exec rm {} +
find . -execdir rm {} +
find . -ok rm {} \\;
find . -okdir rm {} \\;
find . -fprint out
find . -fprint0 out
find . -fprintf out %p
find . -fls out
find . "-delete"
find . $ACTION
find . -name x -de""lete
find . -d\\elete
git commit -am x
git checkout .
git -c alias.x=!rm x
git -c core.fsmonitor=./x status
git -c diff.external=./x diff
git -C .. checkout .
git --git-dir=x log
git --exec-path=. log
git diff --output=out
git diff --output out
git diff --ext-diff
git log -p --ext-diff
git log --output=out
git show --output=out HEAD
git show --textconv HEAD
git shortlog --output=out
git grep -O x
git grep -Ovi x
git grep --open-files-in-pager=./x y
git grep --open-files-in-p=./x y
git grep --op x
git diff --outp=out
git diff --out out
git stash
git log $ARGS
git $VERB
git -p log
git --paginate log
sed -i s/a/b/ a.txt
sed -n -i 1p a.txt
sed -ni 1p a.txt
sed -n '1w out' a.txt
sed -n 'w out' a.txt
sed -n 1p;w a.txt
sed -n '1p;w out' a.txt
sed -n 's/a/b/w out' a.txt
sed -n 's/a/rm x/e' a.txt
sed -n '1e rm x' a.txt
sed -n e a.txt
sed -n --in-place 1p a.txt
sed -n -f prog a.txt
sed -n -e 1p -e 'w out' a.txt
sed -n -s 1p a.txt
sed s/a/b/ a.txt
sed -n $PROGRAM a.txt
sed -n 1p a.txt > out
sed -n -- 1p a.txt
sort -o out a.txt
sort -oout a.txt
sort -uo out a.txt
sort -ro a.txt a.txt
sort -no a.txt a.txt
sort a.txt -o a.txt
sort a.txt --output=a.txt
sort --outp=a.txt a.txt
sort --o=a.txt a.txt
sort --output a.txt a.txt
sort -S1 --compress-program=./x a.txt
sort --comp=./x a.txt
sort $ARGS a.txt
sort -T . a.txt
printf -v x y
printf -vx y
printf $ARGS
X=1
X=1 Y=2
X=1 ls
PATH=. ls
LD_PRELOAD=./x.so ls
GIT_EXTERNAL_DIFF=./x git diff
GIT_PAGER=./x git log
env ls
env X=1 ls
env LD_PRELOAD=./x.so ls
env -S 'rm a'
export X=1
export X=1; ls
declare x=1
local x=1
readonly x=1
typeset x=1
unset X
unset X; ls
set -e
set -e; ls
set -- a; ls
shift
shopt -s nullglob
alias ls=rm
alias ls=rm; ls
unalias ls
ls() { rm a.txt; }; ls
function ls { rm a.txt; }; ls
ls () { :; }
umask 000
ulimit -n 5
exec ls
exec > out
exec 3> out
exit
exit 0; ls
return
logout
kill 1
trap 'rm a' EXIT
source a.sh
. a.sh
eval ls
bash -c ls
sh a.sh
bash a.sh
echo 'rm a' | sh
bash <<< 'rm a'
xargs rm < a.txt
ls | xargs
ls | xargs cat
ls | xargs rm
echo --output=out | xargs git log
echo -oout | xargs sort
echo -delete | xargs find .
ls | xargs -I{} find {} -delete
sudo ls
nohup ls
setsid ls
timeout 5 ls
time ls
time -o out ls
/usr/bin/time -o out ls
nice ls
command ls
builtin pwd
stdbuf -o0 ls
ls &
ls & ls
sleep 9 & ls
ls&
ls & disown
(ls &)
coproc ls
date -s 2020-01-01
date --set=2020-01-01
date --se=2020-01-01
date --set 2020-01-01
date 010100002020
date -us 2020-01-01
date $X
file -C -m magic
file -C
file --compile
file -bC -m magic
rg --pre ./x y
rg --pre=./x y
rg --pr ./x y
rg --hostname-bin=./x y
rg --search-zip x
rg -z x
uniq a.txt out
uniq -c a.txt out
uniq $X
sort *
sort {-o,x}
find *
sed -n 1p *
sed -n 1p ?i
git log *
(ls; pwd)
{ ls; pwd; }
! grep -q x a.txt
(cd src && ls)
<ls rm a
< a.txt rm a
2<ls rm a
zgrep x a.gz
tee out
dd if=a of=b
cp a b
mv a b
ln -s a b
touch a
mkdir a
truncate -s0 a
install a b
awk '{print > "out"}' a.txt
awk 'BEGIN{system("rm a")}'
perl -pi -e s/a/b/ a
curl x
./ls
/tmp/ls
bin/cat a.txt
"$CMD"
$CMD
$CMD a
~/ls
l\\s > out
'ls' > out
cat a.txt; python3 x.py
ls; rm a
ls || rm a
ls && rm a
ls | rm a
cd src > out
cd src && rm a
cd $(rm a)
cd src &
CDPATH=/ cd src
pushd -n src > out
hash -p ./x ls
enable -f ./x ls
type -a ls > out
read x
read x < a.txt
mapfile -t x < a.txt
readarray x < a.txt
getopts a x
wait
fg
bg
jobs
history -w out
fc -e ./x
compgen -C ./x
complete -F f ls
bind -x x
dirs -c
suspend
times
whereis -B . -f ls > out
ssh host ls
docker ps
pip list
pytest
less a.txt
more a.txt
vi a.txt
man ls
select x in a b; do break; done
case x in x) rm a;; esac
until false; do rm a; done
if ls; then rm a; fi
for x in a; do ls; done
f() ( rm a ); f
unbalanced 'quote
ls (
ls )
ls <<
""".strip("\n").replace("\\n", "\n").splitlines(),
    "printf 'abc%n' n",
    "printf '%s%-5ln' a n",
    "ls\nrm a.txt",
    "ls \\\n> out",
    "ls; \\\nrm a",
    "cat <<EOF > out\nx\nEOF",
    "cat > out <<EOF\nx\nEOF",
    "cat <<EOF\n$(rm a)\nEOF",
    "cat <<EOF\n`rm a`\nEOF",
    "cat <<EOF\n${x:=1}\nEOF",
    "cat <<EOF\nx\nEOF\nrm a",
    "cat <<EOF | sh\nrm a\nEOF",
    "cat <<'EOF' | tee out\nx\nEOF",
    "python3 - <<EOF\nx\nEOF",
    "bash <<EOF\nrm a\nEOF",
    "ls\r\nrm a",
    "ls \x00; rm a",
    "",
    " ",
    "\n",
    "# only a comment",
    "ls " + "x" * 5_000,
    "{ls,>out}",
    "cat {a,b}>out",
    "\tls>out",
    "ls;>out;ls",
    "echo a>out",
    "echo 2>out",
    "echo a 2>&1>out",
    "echo a >&2 >out",
    "ls 2>&1 1>&out",
    "((ls)) > out",
    "ls ;\n\n> out",
    "time -p ls > out",
    "{\nls\n} >out",
    "ls;;",
    "\\ ls",
    "cat a\n\\rm a",
    "printf 'a'\\%n b",
    "rg -z2>&1 x",
    "grep x a |&>/dev/null head",
    "[ a ] 2>&1 -o -v 'a[$(rm a)]' ]",
    "sort a > /dev/null -o out",
]  # fmt: skip


@pytest.mark.parametrize(
    ("commands", "effect"), [(NOTHING, "nothing"), (SHELL, "shell"), (ANYTHING, "anything")]
)
def test_every_command_has_its_effect(commands: list[str], effect: str) -> None:
    assert {each: find_effect(each) for each in commands} == dict.fromkeys(commands, effect)


PIECES = [
    "ls", "cat a", "echo", "pwd", "cd d", "true", "git status", "git log", "git diff", "find .", "sed -n 1p a", "sort a",
    "printf x", "date", "test -f a", "[ -f a ]", "head a", "grep x a", "wc a", "type ls", "which ls", "tr a b",
    "x", "a", "d", "-o", "-oout", "--output=out", "out", "-delete", "-exec touch out ;", "-fprint out", "w out", "-i", "-v",
    "-vx", "x=1", "PATH=d", "1p", "-n", "-e", "-s", "-c", "touch out", "rm a", "tee out", "xargs", "env", "exec", "command",
    "time", "nohup", "timeout 1", "export X=1", "unset HOME", "set -e", "set -- b", "shopt -s nullglob", "umask 0",
    "alias ls=touch",     "ls() { touch out; }", "f() { :; }", "trap 'touch out' EXIT", "eval", "sh -c 'touch out'",
    ";", "&&", "||", "|", "|&", "&", "\n", "(", ")", "{", "}", "!", ">", ">>", ">|", "<", "<>", "&>", "2>", "2>&1", ">&", ">&2",
    "$(touch out)", "`touch out`", "<(touch out)", "$((y=1))", "$[y=1]", "((y=1))", "[[ y=1 -eq 1 ]]", "${z:=1}", "{fd}>", "<<<",
    "<<E\nx\nE\n", "'", '"', "\\", "#", "if", "then", "fi", "for", "in", "do", "done", "while", "[[", "]]", "/dev/null",
    "$X", "*", "~",
]  # fmt: skip
HARMLESS_PIECES = [
    "ls",
    "cat a",
    "a",
    "echo x",
    "pwd",
    "git log",
    "sort a",
    "find .",
    "sed -n 1p a",
    "cd d",
    ";",
    "&&",
    "|",
    "\n",
    "2>&1",
    "-l",
]
WORDS = st.one_of(st.sampled_from(HARMLESS_PIECES), st.sampled_from(HARMLESS_PIECES), st.sampled_from(PIECES))
COMMANDS = st.tuples(st.lists(WORDS, min_size=1, max_size=6), st.sampled_from(["", " "])).map(
    lambda both: both[1].join(both[0])
)
STATE = "declare -p; declare -f; alias -p; shopt -p; set +o; umask; trap -p; ulimit -a; pwd"
# Variables that Bash changes by itself.
NOISE = (
    "BASH_",
    "_=",
    "LINENO",
    "PIPESTATUS",
    "RANDOM",
    "SECONDS",
    "SRANDOM",
    "EPOCH",
    "FUNCNAME",
    "OLDPWD",
    "BASHPID",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("effects")


def _create_tree(directory: Path) -> Path:
    root = directory / "work"
    shutil.rmtree(root, ignore_errors=True)
    (root / "d").mkdir(parents=True)
    (root / "a").write_text("x\n")
    return root


def _hash_tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "d"
        for path in root.rglob("*")
    }


def _run(command: str, root: Path) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Run a command and return the files before and after, and the changed lines of the shell state."""
    (root.parent / "command").write_text(command)
    before = _hash_tree(root)
    parent = root.parent
    script = (
        f'{{ {STATE}; }} >{parent}/before\neval "$(<{parent}/command)" </dev/null >{parent}/shown 2>&1\n'
        f"{{ {STATE}; }} >{parent}/after\n"
    )
    subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", script],
        cwd=root,
        env={"PATH": os.environ["PATH"], "HOME": str(root), "LC_ALL": "C"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    states = [
        [line for line in (root.parent / name).read_text().splitlines() if not any(n in line for n in NOISE)]
        for name in ("before", "after")
    ]
    for name in ("before", "after"):
        (root.parent / name).unlink()
    return before, _hash_tree(root), sorted(set(states[0]) ^ set(states[1]))


@given(COMMANDS)
@example("ls > out")
@example("echo > out")
@example("[[ y=1 -eq 1 ]] && ls")
@settings(max_examples=examples(150), suppress_health_check=SHARED_FIXTURES)
def test_bash_confirms_effects(directory: Path, command: str) -> None:
    effect = find_effect(command)
    if effect == "anything":
        return
    before, after, changed_state = _run(command, _create_tree(directory))
    assert after == before
    if effect == "nothing":
        assert changed_state == []


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("cat a.py b.py", ("a.py", "b.py")),
        ("cd src && cat a.py", ("src/a.py",)),
        ("head -n 20 a.py", ("a.py",)),
        ("tail -5 ./a.py", ("a.py",)),
        ("sed -n '1,5p' a.py", ("a.py",)),
        ("sed -n -e 1p -e 3p a.py", ("a.py",)),
        ("sed -i s/a/b/ a.py", ()),
        ("awk 'NR<5' a.py", ("a.py",)),
        ("nl -ba a.py | sed -n '1,9p'", ("a.py",)),
        ("cat a.py | grep x", ()),
        ("cat a.py | wc -l", ()),
        ("cat < a.py", ("a.py",)),
        ("cat 2>/dev/null a.py", ("a.py",)),
        ("cat a.py 2>/dev/null b.py", ("a.py", "b.py")),
        ("cat a.py | mawk 1", ("a.py",)),
        ("awk -i inplace 1 a.py", ()),
        ("cat a.py > b.py", ()),
        ("cat <<'EOF' > a.py\ncat b.py\nEOF", ()),
        ("grep -n x a.py", ()),
        ("python -c 'print(open(\"a.py\").read())'", ()),
        ("ls a.py; git diff a.py", ()),
        ("less a.py; cat a.py", ("a.py",)),
    ],
)
def test_shown_files(command: str, paths: tuple[str, ...]) -> None:
    assert list_shown_files(command) == paths


@pytest.mark.parametrize(
    ("command", "search"),
    [
        ("grep -rn pytest .", True),
        ("grep -n x a.py", True),
        ("nl a.py | grep -n x", True),
        ("cd x && rg foo", True),
        ("find . -name '*.py'", True),
        ("find . -name '*.py' | xargs grep -l x", True),
        ("find . -name '*.pyc' -delete", False),
        ("find . -name '*.py' -exec sed -i s/a/b/ {} +", False),
        ("git grep foo", True),
        ("git log -S foo", True),
        ("git log -3", False),
        ("ls -laR src", True),
        ("ls src", False),
        ("pytest | grep FAILED", False),
        ("cat a.py", False),
        ("echo 'grep -r x'", False),
    ],
)
def test_is_search(command: str, search: bool) -> None:
    assert is_search(command) is search


@pytest.mark.parametrize(
    ("command", "edits", "acts"),
    [
        ("sed -i s/a/b/ a.py", True, True),
        ("sed --in-place s/a/b/ a.py", True, True),
        ("sed s/a/b/ a.py", False, False),
        ("awk -i inplace 1 a.py", True, True),
        ("awk 1 a.py", False, False),
        ("find . -name '*.py'", False, False),
        ("find . -name '*.pyc' -delete", True, True),
        ("find . -exec rm {} +", True, True),
        ("git -C x checkout a.py", True, True),
        ("git stash", True, True),
        ("git -C x diff", False, False),
        ("git add a.py", False, True),
        ("perl -pi -e s/a/b/ a.py", True, True),
        ("python3 -c 'open(1)'", True, True),
        ("python3 x.py", False, True),
        ("patch -p1", True, True),
        ("black a.py", True, True),
        ("pytest", False, True),
        ("unheard-of a.py", False, True),
        ("sort a.py", False, False),
        ("sort -o a.py a.py", False, True),
        ("source bin/activate", False, False),
        ("export X=1; sleep 1", False, False),
        ("ls src", False, False),
    ],
)
def test_may_edit_and_may_act(command: str, edits: bool, acts: bool) -> None:
    commands = parse_command(command)
    assert any(may_edit(simple) for simple in commands) is edits
    assert any(may_act(simple) for simple in commands) is acts


def test_a_redirection_edits_the_file_that_it_names() -> None:
    (simple,) = parse_command("ls > src/a.py")
    assert may_edit(simple, ["lib/a.py"])
    assert not may_edit(simple, ["lib/b.py"])


def test_likely_answers_agree_with_proven_effects() -> None:
    assert [
        command
        for command in (*NOTHING, *SHELL)
        if any(may_edit(simple) or may_act(simple) for simple in parse_command(command))
    ] == []


@pytest.mark.parametrize(
    "command", ["ls;" * 1_300, "ls&&" * 900 + "ls", "(" * 4_000, "'" * 3_999, "a=(" * 1_300, "1" * 4_000]
)
def test_long_and_nested_commands_have_an_effect(command: str) -> None:
    assert find_effect(command) in ("nothing", "anything")
