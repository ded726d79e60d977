"""The shell's state is data, and the caller's spec alone selects the sandbox that a snapshot is restored in."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.backends import host as host_backend
from langgraph_takeover.sandbox.backends.base import make_restore_spec
from langgraph_takeover.sandbox.interface import (
    MAX_SHELL_STATE_CHARS,
    Sandbox,
    SandboxSpec,
    SandboxUnavailableError,
    Snapshot,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.shell_state import (
    ShellState,
    parse_printed_state,
    parse_state,
    render_restore_code,
)
from langgraph_takeover.sandbox.snapshots import bases
from langgraph_takeover.testing.sandboxes.kit import Kit, check_output, run

from .conftest import open_kit

SPOIL = "$(touch {0}) `touch {0}`; touch {0}; a[$(touch {0})] ]=x) ' \" \n touch {0} \\"


@pytest.fixture(scope="module")
def host(repository: Path) -> Iterator[Kit]:
    with open_kit("host", repository, None) as kit:
        yield kit


@pytest.fixture(scope="module")
def process(repository: Path) -> Iterator[Kit]:
    with open_kit("process", repository, None) as kit:
        yield kit


@pytest.fixture
def process_snapshot(process: Kit, tmp_path: Path) -> Snapshot:
    with process.close_started():
        live_sandbox = process.start()
        check_output(
            live_sandbox, 'cd pkg; echo h > "$HOME/h"; echo t > "$TMPDIR/t"; place="$HOME/h"; echo 1 > one'
        )
        check_output(live_sandbox, 'f() { echo "f:$1"; }; other=/tmp/elsewhere; export HERE=$PWD:/usr/bin')
        return live_sandbox.snapshot(tmp_path).result()


def with_state(snapshot: Snapshot, state: ShellState | str) -> Snapshot:
    text = state if isinstance(state, str) else state.model_dump_json(exclude_defaults=True)
    return snapshot.model_copy(update={"shell_state": text})


@contextlib.contextmanager
def restore_snapshot(kit: Kit, snapshot: Snapshot, store: Path) -> Iterator[Sandbox]:
    with kit.close_started():
        yield kit.restore(snapshot, store)


def test_a_snapshot_of_plain_processes_is_converted(
    host: Kit, process: Kit, process_snapshot: Snapshot, tmp_path: Path
) -> None:
    with restore_snapshot(host, process_snapshot, tmp_path) as live_sandbox:
        assert live_sandbox.workspace == "/testbed"
        assert live_sandbox.cwd() == "/testbed/pkg"
        output = check_output(
            live_sandbox, 'hostname; cat "$HOME/h" "${TMPDIR:-/tmp}/t" "$place" one; f 1; echo "$HOME $HERE"'
        )
        assert output == "sandbox\nh\nt\nh\n1\nf:1\n/home/agent /testbed/pkg:/usr/bin\n"
        assert check_output(live_sandbox, "git status --porcelain") == "?? pkg/one\n"
        assert check_output(live_sandbox, "echo 2 > two; stat -c %U two one | uniq") == "root\n"
        again = live_sandbox.snapshot(tmp_path / "again").result()
    assert again.backend == "host"
    with restore_snapshot(process, again, tmp_path / "again") as live_sandbox:
        assert live_sandbox.cwd() == f"{live_sandbox.workspace}/pkg"
        assert check_output(live_sandbox, 'cat "$HOME/h" "$TMPDIR/t" "$place" one two') == "h\nt\nh\n1\n2\n"


@pytest.mark.slow
def test_snapshots_of_images_are_converted_both_ways(
    request: pytest.FixtureRequest, repository: Path, tmp_path: Path
) -> None:
    made = request.getfixturevalue("testbed_image")
    with made() as image:
        at = {
            backend: SandboxSpec.model_validate({"backend": backend, "image": image, "owner": "test-both"})
            for backend in ("docker", "host")
        }
        try:
            for before, after in (("docker", "host"), ("host", "docker")):
                store = tmp_path / before
                with contextlib.closing(sandbox.start(at[before])) as live_sandbox:
                    check_output(live_sandbox, "cd pkg; x=kept; echo 1 > one; rm ../README.txt")
                    snapshot = live_sandbox.snapshot(store).result()
                if snapshot.location.startswith("sha256:"):
                    with pytest.raises(SandboxUnavailableError, match="--sandbox docker"):
                        sandbox.restore(snapshot, store, at[after])
                    continue
                with contextlib.closing(sandbox.restore(snapshot, store, at[after])) as live_sandbox:
                    output = check_output(
                        live_sandbox,
                        "pwd; echo $x; cat one; ls ../README.txt 2>/dev/null || echo gone; hostname",
                    )
                    assert output == "/testbed/pkg\nkept\n1\ngone\nsandbox\n"
        finally:
            for backend in ("docker", "host"):
                sandbox.remove_stale_resources(backend, "test-both")


def test_unconvertible_snapshots_are_refused(host: Kit, process_snapshot: Snapshot, tmp_path: Path) -> None:
    def expect_refusal(snapshot: Snapshot, message: str, **spec: Any) -> None:
        with pytest.raises(SandboxUnavailableError, match=message):
            sandbox.restore(snapshot, tmp_path, SandboxSpec(owner="test-refused", **spec))

    directory = host.spec().directory
    image = {"backend": "docker", "image": "any"}
    says = r"process sandbox that started from a directory \(restore it with --sandbox host"
    expect_refusal(process_snapshot, says, **image)
    base = process_snapshot.base.removeprefix(bases.COPY_PREFIX)
    layers = process_snapshot.model_copy(update={"backend": "host", "base": base})
    expect_refusal(layers, "layers \\(restore it with --sandbox host", backend="process", directory=directory)
    of_image = process_snapshot.model_copy(update={"backend": "docker", "base": "sha256:" + "0" * 64})
    expect_refusal(
        of_image, "image \\(restore it with --sandbox host", backend="process", directory=directory
    )
    committed = of_image.model_copy(update={"location": "sha256:" + "0" * 64})
    expect_refusal(committed, "restore it with --sandbox docker", backend="host", directory=directory)
    for workspace in ("", "pkg", "/a\0b"):
        elsewhere = process_snapshot.model_copy(update={"workspace": workspace})
        expect_refusal(elsewhere, "workspace is not an absolute path", backend="host", directory=directory)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(SnapshotCorruptError, match="was made for base"):
        sandbox.restore(process_snapshot, tmp_path, host.spec(directory=other))


def test_a_spec_for_a_foreign_snapshot_isolates(
    process_snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make_restore_spec(process_snapshot).backend == "host"
    assert make_restore_spec(process_snapshot, "process").backend == "process"
    with pytest.raises(SandboxUnavailableError, match="--sandbox host"):
        make_restore_spec(process_snapshot, "docker")
    of_image = process_snapshot.model_copy(update={"backend": "process", "base": "sha256:" + "0" * 64})
    assert make_restore_spec(of_image).backend == "host"
    with pytest.raises(SandboxUnavailableError, match="--sandbox host"):
        make_restore_spec(of_image, "process")
    monkeypatch.setattr(host_backend, "unavailable_reason", lambda: "bwrap is not installed")
    with pytest.raises(SandboxUnavailableError, match="--sandbox process --allow-unisolated"):
        make_restore_spec(process_snapshot)


@pytest.mark.parametrize("backend", ["host", "process"])
def test_nothing_runs_while_a_state_is_restored(
    backend: str, request: pytest.FixtureRequest, process_snapshot: Snapshot, tmp_path: Path
) -> None:
    kit: Kit = request.getfixturevalue(backend)
    marker = tmp_path / "spoilt" if backend == "process" else Path("/tmp/spoilt")
    spoil = SPOIL.format(marker)
    index = f"a[$(touch {marker})]"
    touch, substitution = f"touch {marker}", f"$(touch {marker})"
    state = {
        "directory": f"/{spoil}",
        "previous_directory": f"/$(touch {marker})",
        "variables": {
            "plain": {"value": spoil},
            "number": {"attributes": "ix", "value": index},
            "RANDOM": {"attributes": "i", "value": index},
            "numbers": {"attributes": "ai", "elements": {"0": index, "7": spoil}},
            "map": {"attributes": "Ai", "elements": {spoil: index, index: spoil, "]": "1", "@": "2"}},
            "upper": {"attributes": "u", "value": "$(touch x)"},
            "PROMPT_COMMAND": {"value": f"touch {marker}"},
            **{key: {"value": substitution} for key in ("BASH_ENV", "ENV", "PS4")},
            **{key: {"value": index} for key in ("SECONDS", "OPTIND", "HISTSIZE")},
            "IFS": {"value": "touch"},
            "POSIXLY_CORRECT": {"value": "1"},
            "BASH_XTRACEFD": {"value": "198"},
            "EUID": {"attributes": "r", "value": "5"},
            "BASHOPTS": {"attributes": "ar", "elements": {"0": "x"}},
        },
        "functions": {
            "ends": {"commands": f":; }}; touch {marker}; {{ :"},
            "closes": {"commands": f":; )\ntouch {marker}; ( :"},
            "both": {"commands": f"}}\n)\n}}\ntouch {marker}\n{{\n(\n{{"},
            "open": {"commands": f"cat <<END\n}}\ntouch {marker}"},
            "quote": {"commands": f"echo '\n}}\ntouch {marker}\n: "},
            "comment": {"commands": f"# }}\ntouch {marker} #"},
            "pattern": {"commands": f"case x in a ) esac\n}} ; touch {marker} ; {{ :"},
            **{key: {"commands": touch} for key in ("builtin", "eval", "declare", "unset", "set", "cd")},
            "fine": {"commands": "    echo fine"},
        },
        "aliases": {"builtin": f"touch {marker}; ", "declare": f"touch {marker}; ", "ll": spoil},
        "shopt": {"expand_aliases": True, "nosuch": True, "extdebug": False, "restricted_shell": True},
        "options": {"errexit": False, "nosuch": True, "noexec": True, "onecmd": True, "posix": False},
        "traps": dict.fromkeys(("SIGUSR1", "SIGRTMAX", "SIGNOSUCH"), touch),
    }
    with restore_snapshot(kit, with_state(process_snapshot, json.dumps(state)), tmp_path) as live_sandbox:
        assert live_sandbox.inspect(f"test -e {marker} || echo untouched").output == "untouched\n"
        assert check_output(live_sandbox, "unset -f set cd declare; fine") == "fine\n"
        assert check_output(live_sandbox, 'printf %s "$plain"') == spoil
        assert check_output(live_sandbox, 'printf %s "${map["@"]} ${map["]"]} ${#map[@]}"') == "2 1 4"
        for broken in ("ends", "closes", "both", "open", "quote", "pattern", "builtin", "eval", "unset"):
            assert run(live_sandbox, f"\\builtin declare -F {broken}").exit_code == 1, broken
        assert check_output(live_sandbox, "trap -p SIGUSR1") == f"trap -- 'touch {marker}' SIGUSR1\n"
        assert live_sandbox.inspect(f"test -e {marker} || echo untouched").output == "untouched\n"


_PIECES = (
    "} { ( ) ; ;; \n if#:;then fi else case#x#in x) (x) esac <<E E\n <<'}' ' \" ` $( ${ \\ # do done while#: & && | "
    "coproc time ! [[ ]] (( )) function#g g() : exit#3 <( >( $'a' \"$(touch#M)\" `touch#M` @(a|b) a=( eval#touch#M "
    "\\\n do\n then\n {\n }\n (\n )\n ;} <<<x é touch#M"
)
_ENDS = ("}; touch#M; {", ") ; touch#M ; (", "}\n)\n touch#M\n(\n{", "case#x#in a) esac; } ; touch#M ; {")


def test_no_text_escapes_its_definition(tmp_path: Path) -> None:
    """An unfinished substitution makes Bash's own parser execute code."""
    marker, random = tmp_path / "spoilt", Random(5)
    pieces, ends = (
        [each.replace("#", " ").replace("M", str(marker)) for each in texts]
        for texts in (_PIECES.split(" "), _ENDS)
    )
    confusing = f"<<<x ]] $'a' ; <( a=( `touch {marker}` ; {{\n $(touch {marker})"
    for _ in range(8):
        functions = {"confusing": {"commands": confusing}, "fine": {"commands": ":"}}
        for number in range(100):
            words = random.choices(pieces, k=random.randint(1, 14))
            if number % 3 == 0:
                words = random.choice(ends).split(" ")
                words.insert(random.randrange(len(words)), random.choice(pieces))
            functions[f"f{number}"] = {"commands": " ".join(words)}
        code = render_restore_code(ShellState.model_validate({"functions": functions}))
        script = f"eval {shlex.quote(code)} 2>/dev/null\ndeclare -F fine confusing"
        done = subprocess.run(["bash", "--norc"], input=script.encode(), capture_output=True)
        assert done.stdout == b"fine\n"
        assert not marker.exists(), code


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("", "is not JSON"),
        ('cd /\ndeclare -- x="1"', "is not JSON"),
        ("touch /tmp/spoilt", "is not JSON"),
        ("{", "malformed"),
        ('{"stranger": 1}', "malformed at 'stranger'"),
        ({"directory": "relative"}, "malformed at 'directory'"),
        ({"directory": "/a\0b"}, "malformed at 'directory'"),
        ({"directory": ["/"]}, "malformed at 'directory'"),
        ({"umask": "077; id"}, "malformed at 'umask'"),
        ({"variables": {"a[$(id)]": {"value": "1"}}}, "malformed at 'variables"),
        ({"variables": {"x\n": {"value": "1"}}}, "malformed at 'variables"),
        ({"variables": {"x": {"value": "a\0b"}}}, "malformed at 'variables.x.value'"),
        ({"variables": {"x": {"attributes": "x; id"}}}, "malformed at 'variables.x.attributes'"),
        ({"variables": {"x": {"attributes": "n", "value": "a[$(id)]"}}}, "malformed at 'variables.x'"),
        ({"variables": {"x": {"attributes": "a", "elements": {"$(id)": "1"}}}}, "malformed at 'variables.x'"),
        ({"variables": {"x": {"attributes": "a", "elements": {"1+a[$(id)]": "1"}}}}, "malformed"),
        ({"variables": {"x": {"attributes": "A", "elements": {"": "1"}}}}, "malformed"),
        ({"variables": {"x": {"elements": {"0": "1"}}}}, "malformed"),
        ({"functions": {"f() { :; }; id; g": {"commands": ":"}}}, "malformed at 'functions"),
        ({"functions": {"f": {"commands": ":", "attributes": "x id"}}}, "malformed at 'functions"),
        ({"aliases": {"a=$(id)": "1"}}, "malformed at 'aliases"),
        ({"shopt": {"nullglob; id": True}}, "malformed at 'shopt"),
        ({"options": {"$(id)": True}}, "malformed at 'options"),
        ({"options": {"errexit": "true; id"}}, "malformed at 'options"),
        ({"traps": {"EXIT; id": "1"}}, "malformed at 'traps"),
        ('{"directory": "/\\udc80"}', "malformed"),
    ],
)
def test_a_malformed_state_is_refused(broken: Any, message: str) -> None:
    text = broken if isinstance(broken, str) else json.dumps(broken)
    with pytest.raises(SnapshotCorruptError, match=re.escape(message)) as refused:
        parse_state(text)
    assert "\n" not in str(refused.value)


def test_a_state_of_a_hundred_megabytes(process: Kit, process_snapshot: Snapshot, tmp_path: Path) -> None:
    huge = ShellState.model_validate({"variables": {"x": {"value": "x" * 100_000_000}}}).to_json()
    with pytest.raises(SnapshotCorruptError, match="longer than"):
        process.restore(with_state(process_snapshot, huge), tmp_path)
    with pytest.raises(ValueError, match="shell_state"):
        Snapshot.model_validate(process_snapshot.model_dump() | {"shell_state": huge})
    with process.close_started():
        live_sandbox = process.start()
        run(live_sandbox, f"cd pkg; x=$(head -c {MAX_SHELL_STATE_CHARS} /dev/zero | tr '\\0' y)")
        kept = live_sandbox.snapshot(tmp_path / "second").result()
        assert parse_state(kept.shell_state) == ShellState(directory=f"{live_sandbox.workspace}/pkg")
        assert check_output(live_sandbox, "echo ${#x}") == f"{MAX_SHELL_STATE_CHARS}\n"


_MADE = r"""
declare -A map=(["a b"]=1 [$'x\ny']='$(id)' ["]"]=3 ["["]=4 ["'"]=5 ['"']=6 ['\']=7 ["@"]=8 [$'\377']=9 ["~"]=10)
array=(zero $'two\nlines' '$(id)'); array[7]='"'; empty=(); declare -A none; declare -i number=5; declare -u up=abc
declare -n same=array; readonly fixed=1; export there=$'caf\xe9 é 􏿿' ; declare unset_one; tab=$'\t\\ \e'
sub() ( echo sub ); to() { echo to; } > /dev/null; test_of() [[ -n a ]]; a-b() { echo ab; }; function if { echo if; }
text() { cat <<END
}
other ()
END
}
export -f sub; readonly -f text; twice() { inner() { echo inner; }; inner; }
alias 'a.b'='echo "x y"' ll="ls 'x'"; trap 'echo "a'\''b
c"' SIGUSR1; trap '' SIGUSR2; set -o noglob; shopt -s nullglob; umask 027
"""
_SHOWN = r"""
declare -p map array empty none number up same fixed there unset_one tab; declare -f sub test_of a-b if text twice
declare -F | grep -v __; alias; trap -p | grep -v SIGRTMAX; set +o; umask; shopt -p nullglob extglob
"""


@pytest.mark.parametrize("backend", ["host", "process"])
def test_the_whole_shell_state_is_restored(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    kit: Kit = request.getfixturevalue(backend)
    with kit.close_started():
        live_sandbox = kit.start()
        assert run(live_sandbox, _MADE).exit_code == 0
        shown, state = check_output(live_sandbox, _SHOWN), live_sandbox.shell_state()
        assert 'declare -r fixed="1"' in shown
        again = kit.restore(live_sandbox.snapshot(tmp_path).result(), tmp_path)
        assert check_output(again, _SHOWN) == shown
        assert check_output(again, "sub; to; a-b; text; twice; bash -c sub") == check_output(
            live_sandbox, "sub; to; a-b; text; twice; bash -c sub"
        )
        kept = again.shell_state()
        if backend == "host":
            before, after = json.loads(state), json.loads(kept)
            for part in (before, after):
                del part["variables"]["there"], part["previous_directory"]
                # `twice` has a redirection in one of them; a redirected body is in its own braces.
                part["functions"].pop("inner", None)
                del part["functions"]["to"]
            assert after == before


def test_values_move_with_the_directories_and_code_does_not() -> None:
    state = ShellState.model_validate(
        {
            "directory": "/old/workspace/pkg",
            "variables": {
                "path": {"value": "/old/workspace/bin:/old/workspaces:/usr"},
                "home": {"attributes": "a", "elements": {"0": "/old/home", "1": "x/old/home"}},
            },
            "functions": {"f": {"commands": "cd /old/workspace"}},
            "traps": {"EXIT": "cd /old/workspace"},
        }
    )
    moved = state.relocate(
        {"/old/workspace": "/new $(id)", "/old/home": "/root", "/": "/spoilt", "": "/spoilt"}
    )
    assert moved.directory == "/new $(id)/pkg"
    assert moved.variables["path"].value == "/new $(id)/bin:/old/workspaces:/usr"
    assert moved.variables["home"].elements == {"0": "/root", "1": "x/old/home"}
    assert (moved.functions, moved.traps) == (state.functions, state.traps)
    assert state.relocate({"/": "/x", "/old/home": "/old/home"}) is state


def test_a_shell_with_unexpected_output() -> None:
    assert parse_printed_state("nothing", "mark") is None
    assert parse_printed_state("\0mark".join(["x"] * 11), "mark") is None
    variables = 'declare -- x="$(id)"\ndeclare -- y="1"'
    parts = ["", "shopt -s a;b\nshopt -s good", variables, "", "", "", "0022\n", "/\0x\0"]
    state = parse_printed_state("\0mark".join([*parts, "set -o $(id)", "trap -- $(id) EXIT", ""]), "mark")
    assert state == ShellState.model_validate(
        {"directory": "/", "umask": "0022", "shopt": {"good": True}, "variables": {"y": {"value": "1"}}}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    ["trap -- \\''", "declare -- x=\\''", "declare -A x=([\\''", 'trap -- "$', "declare -f f", 'x () "'],
)
def test_shell_output_is_parsed_in_linear_time(line: str) -> None:
    """Each line could be the beginning of a statement that ends with the text."""
    seconds = []
    for lines in (20_000, 160_000):
        part = f"{line}\n" * lines
        printed = "\0mark".join(["", "", part, part, "declare -f x\n", part, "", "/\0/\0", "", part, ""])
        start_time = time.process_time()
        parse_printed_state(printed, "mark")
        seconds.append(time.process_time() - start_time)
    assert seconds[1] < 40 * seconds[0] + 1


@pytest.mark.slow
def test_a_function_of_quotes_takes_little_memory(process: Kit, tmp_path: Path) -> None:
    with process.close_started():
        live_sandbox = process.start()
        run(live_sandbox, 'eval "f() { : $(yes "\\\\\'" | head -n 400000 | tr -d \'\\n\'); }"')
        state = parse_state(live_sandbox.shell_state())
        length = len(state.functions["f"].commands)
        assert length > 800_000
        assert len(render_restore_code(state)) < 3 * length
        again = process.restore(live_sandbox.snapshot(tmp_path).result(), tmp_path)
        sizes = [check_output(each, "declare -f f | wc -c") for each in (again, live_sandbox)]
        assert sizes[0] == sizes[1]
