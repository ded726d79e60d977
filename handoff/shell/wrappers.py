"""Programs that only run another program, such as `timeout` and `poetry run`."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Collection, Sequence
from typing import NamedTuple

from langgraph_takeover.handoff.shell.windows import (
    WINDOWS_SHELLS,
    find_program_name,
    find_windows_script,
)

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PROJECT_SCRIPT = re.compile(r"(?:[\w.-]+:)?(?:tests?|lint|build|check|types?|typecheck|cov)(?:[:-][\w-]+)?")
"""The name of a script of the project, which `hatch run` and its relatives run like a program."""
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}


class _Wrapper(NamedTuple):
    words: tuple[str, ...]
    """The words that it starts with."""
    valued_options: frozenset[str] = frozenset()
    """Options with a separate value."""
    operand_count: int = 0
    """Number of its operands before the wrapped command."""


def _row(words: str, valued: str = "", operands: int = 0) -> _Wrapper:
    return _Wrapper(tuple(words.split()), frozenset(valued.split()), operands)


_WRAPPERS = (
    _row("env", "-u --unset -C --chdir"),
    _row("timeout", "-s --signal -k --kill-after", operands=1),
    _row("gtimeout", "-s --signal -k --kill-after", operands=1),
    _row("time", "-f --format -o --output"),
    _row("nohup"),
    _row("exec", "-a"),
    _row("command"),
    _row("builtin"),
    _row("nice", "-n --adjustment"),
    _row("ionice", "-c -n"),
    _row("stdbuf", "-i -o -e"),
    _row("setsid"),
    _row("unbuffer"),
    _row("sudo", "-u -g -E"),
    _row("xvfb-run", "-n -s -e"),
    _row("xargs", "-n -I -P -d -L -a -s -E --max-args --max-procs --delimiter"),
    _row("uv run", "--with --python -p --extra --group --project"),
    _row("uvx", "--with --python -p --from"),
    _row("uv tool run", "--with --python -p --from"),
    _row("pipx run"),
    _row("taskset", operands=1),
    _row("cross-env", operands=1),
    _row("nyc"),
    _row("c8"),
    _row("poetry run"),
    _row("pipenv run"),
    _row("pdm run"),
    _row("hatch run"),
    _row("rye run"),
    _row("conda run", "-n --name -p --prefix --cwd"),
    _row("mamba run", "-n --name -p --prefix"),
    _row("micromamba run", "-n --name -p --prefix"),
    _row("bundle exec"),
    _row("npx", "-p --package"),
    _row("pnpm exec"),
    _row("pnpm dlx"),
    _row("yarn exec"),
    _row("bunx"),
    _row("bun x"),
    _row("yarn dlx"),
    _row("yarn node"),
    _row("corepack"),
    _row("pixi run", "-e --environment --manifest-path"),
    _row("mise exec"),
    _row("mise x"),
    _row("asdf exec"),
    _row("pyenv exec"),
    _row("rbenv exec"),
    _row("nvm exec", operands=1),
    _row("fnm exec", "--using"),
    _row("volta run", "--node --npm --yarn"),
    _row("rustup run", operands=1),
    _row("direnv exec", operands=1),
    _row("devbox run", "-c --config"),
    _row("dotenv run", "-f --file"),
    _row("dotenv", "-f --file -e"),
    _row("dotenvx run", "-f --env-file"),
    _row("env-cmd", "-f --file"),
    _row("doppler run", "-p --project -c --config"),
    _row("op run", "--env-file"),
    _row("spring"),
    _row("xcrun", "--sdk --toolchain"),
    _row("arch"),
    _row("doas", "-u"),
    _row("gosu", operands=1),
    _row("runuser", "-u --user -g --group"),
    _row("chronic"),
    _row("flock", "-w --timeout -E", operands=1),
    _row("strace", "-e -o -f -p"),
    _row("valgrind"),
    _row("kcov", operands=1),
    _row("ddtrace-run"),
)
_WRAPPERS_BY_NAME = {
    name: tuple(w for w in _WRAPPERS if w.words[0] == name) for name in {w.words[0] for w in _WRAPPERS}
}


class UnwrappedCommand(NamedTuple):
    """A command without its wrappers."""

    argv: tuple[str, ...]
    environment: tuple[str, ...]
    """The assignments of `env`, such as `NAME=value`."""


def unwrap_command(words: Sequence[str]) -> UnwrappedCommand:
    """Remove the wrappers of a command."""
    argv = list(words)
    environment: list[str] = []
    start = 0
    while start < len(argv):
        candidates = _WRAPPERS_BY_NAME.get(find_program_name(argv[start]))
        if candidates is None:
            break
        wrapper = next(
            (w for w in candidates if tuple(argv[start + 1 : start + len(w.words)]) == w.words[1:]), None
        )
        if wrapper is None or (
            wrapper.words == ("command",) and argv[start + 1 : start + 2] in (["-v"], ["-V"])
        ):
            break
        at = start + len(wrapper.words)
        while at < len(argv) and argv[at].startswith("-") and len(argv[at]) > 1:
            option = argv[at]
            at += 2 if option in wrapper.valued_options else 1
            if option == "--":
                break
        at += wrapper.operand_count
        if wrapper.words[-1] == "run" and at < len(argv) and _PROJECT_SCRIPT.fullmatch(argv[at]):
            break
        if wrapper.words == ("hatch", "run") and at < len(argv):
            argv[at] = argv[at].rpartition(":")[2]  # the environment before the program
        while wrapper.words == ("env",) and at < len(argv) and _ASSIGNMENT.match(argv[at]):
            environment.append(argv[at])
            at += 1
        if at >= len(argv):
            break
        start = at
    return UnwrappedCommand(tuple(argv[start:]), tuple(environment))


_TEXT_OPTIONS = {
    "su": re.compile("-c|--command"),
    "script": re.compile("-[a-z]*c|--command"),
    "nix-shell": re.compile("--run|--command"),
}
"""Programs that run a shell text, with the option before it."""


def may_run_text(words: Sequence[str]) -> bool:
    """Whether a program of `_TEXT_OPTIONS` may be among the words."""
    return not _TEXT_OPTIONS.keys().isdisjoint(map(find_program_name, words))


class _Launcher(NamedTuple):
    """A program that runs another program in a container or on another host."""

    words: tuple[str, ...]
    valued_options: frozenset[str]
    """Options with a separate value, before and after its words."""


def _launcher(words: str, valued: str) -> _Launcher:
    return _Launcher(tuple(words.split()), frozenset(valued.split()))


_ENGINE_OPTIONS = "-c --context -H --host -l --log-level --connection --url"
_EXEC_OPTIONS = f"{_ENGINE_OPTIONS} -u --user -w --workdir -e --env --env-file --detach-keys --index"
_RUN_OPTIONS = (
    f"{_EXEC_OPTIONS} -v --volume --name -p --publish --network --net --entrypoint -m --memory --cpus --mount --platform --label"
    " --add-host --ipc --pid --gpus --shm-size --tmpfs --cap-add --cap-drop --security-opt --ulimit -h --hostname --restart"
    " --volumes-from --pull --userns --group-add --device --dns --link"
)
_COMPOSE_OPTIONS = "-f --file -p --project-name --profile --project-directory --ansi --progress"
_CLUSTER_OPTIONS = "-n --namespace -c --container --context --kubeconfig -f --filename --pod-running-timeout"
_SSH_OPTIONS = "-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w"
_LAUNCHERS = (
    *(
        _launcher(f"{engine} {words}", options)
        for engine in ("docker", "podman", "nerdctl")
        for words, options in (
            ("exec", _EXEC_OPTIONS),
            ("container exec", _EXEC_OPTIONS),
            ("run", _RUN_OPTIONS),
            ("container run", _RUN_OPTIONS),
            ("compose exec", f"{_COMPOSE_OPTIONS} {_EXEC_OPTIONS}"),
            ("compose run", f"{_COMPOSE_OPTIONS} {_RUN_OPTIONS}"),
        )
    ),
    *(
        _launcher(f"{program} {word}", f"{_COMPOSE_OPTIONS} {options}")
        for program in ("docker-compose", "podman-compose")
        for word, options in (("exec", _EXEC_OPTIONS), ("run", _RUN_OPTIONS))
    ),
    *(
        _launcher(f"{program} exec", _CLUSTER_OPTIONS)
        for program in ("kubectl", "oc", "k3s kubectl", "microk8s kubectl")
    ),
    *(_launcher(f"{program} exec", "-B --bind --env --pwd") for program in ("singularity", "apptainer")),
    *(_launcher(f"{program} exec", "--env --cwd --user") for program in ("lxc", "incus")),
    _launcher("ssh", _SSH_OPTIONS),
    _launcher("chroot", "--userspec --groups"),
    _launcher("devcontainer exec", "--workspace-folder --container-id --config --remote-env"),
    _launcher("ddev exec", "-s --service -d --dir"),
    _launcher("heroku run", "-a --app"),
    _launcher("opam exec", "--switch"),
    _launcher("srun", "-n -N -c -p -t -J -A --ntasks --nodes --partition --time --gres --mem"),
    _launcher("mpirun", "-n -np -c -H --host --hostfile -x"),
    _launcher("mpiexec", "-n -np -H --host --hostfile -x"),
    _launcher("numactl", "-N -m -C -l -i"),
    _launcher("catchsegv", ""),
    _launcher("sshpass", "-p -f -d -e"),
    _launcher("parallel", "-j --jobs -n -N -L"),
    _launcher("wsl", "-d --distribution -u --user --cd"),
    _launcher("lima", ""),
    _launcher("limactl shell", "--workdir"),
    _launcher("devenv shell", ""),
    _launcher("toolbox run", "-c --container -d -r"),
)
_LAUNCHERS_BY_NAME = {
    name: tuple(each for each in _LAUNCHERS if each.words[0] == name)
    for name in {each.words[0] for each in _LAUNCHERS}
}
_WITHOUT_TARGET = {
    "devcontainer", "ddev", "heroku", "opam", "srun", "mpirun", "mpiexec", "numactl", "catchsegv", "sshpass", "parallel", "wsl",
    "lima", "devenv", "toolbox",
}  # fmt: skip
"""Launchers that name no container or host before the command."""
_TEXT_MARKS = {
    "vagrant": re.compile("-c|--command"),
    "gcloud": re.compile("--command"),
    "fish": re.compile("-c|--command"),
}
"""Launchers of a shell text, with the option before it; those that run in this shell are `_TEXT_OPTIONS`."""
_COMMAND_MARKS = {
    "nix": re.compile("-c|--command"),
    "guix": re.compile("--"),
    "distrobox": re.compile("--|-e"),
    "multipass": re.compile("--"),
    "colima": re.compile("--"),
    "find": re.compile("-exec(?:dir)?"),
    "fd": re.compile("-x|-X|--exec|--exec-batch"),
}
"""Launchers of a command, with the word before it."""


def find_remote_script(argv: Sequence[str], stdin: str | None) -> str | None:
    """The shell text that a command runs in a container or on another host; None for other commands."""
    name = find_program_name(argv[0])
    marked = _find_marked_script(name, argv)
    if marked is not None:
        return marked
    for launcher in _LAUNCHERS_BY_NAME.get(name, ()):
        position, entry_point = 1, None
        for expected in (*launcher.words[1:], *([] if name in _WITHOUT_TARGET else [None]), ""):
            position, found = _skip_options(argv, position, launcher.valued_options)
            entry_point = entry_point or found
            if expected == "" or position == len(argv) or expected not in (None, argv[position]):
                break
            position += 1
        words = [*([entry_point] if entry_point else []), *argv[position:]]
        if expected == "" and not words and name == "ssh":
            return stdin
        if expected == "" and words:
            is_shell = stdin is not None and posixpath.basename(words[0]) in _SHELLS
            script = find_inline_script(words, stdin) if is_shell else None
            return script or (" ".join(words) if name == "ssh" else shlex.join(words))
    return None


def _find_marked_script(name: str, argv: Sequence[str]) -> str | None:
    """The shell text after the option with which a launcher marks it; None for other launchers."""
    mark = _TEXT_MARKS.get(name) or _COMMAND_MARKS.get(name)
    for number, word in enumerate(argv[1:] if mark is not None else (), 1):
        option, has_value, value = word.partition("=")
        if mark is None or not mark.fullmatch(option) or (has_value and not value):
            continue
        if name in _TEXT_MARKS:
            return value or " ".join(argv[number + 1 : number + 2])
        words = list(argv[number + 1 :])
        if name != "find":
            return shlex.join(words)
        end = next((at for at, each in enumerate(words) if each in (";", "+")), len(words))
        # With `;` the exit code of `find` says nothing.
        return shlex.join(words[:end]) + ("; true" if words[end : end + 1] == [";"] else "")
    return None


def _skip_options(argv: Sequence[str], position: int, valued: Collection[str]) -> tuple[int, str | None]:
    """The position after the options, and the value of `--entrypoint`."""
    entry_point = None
    while position < len(argv) and argv[position].startswith("-") and len(argv[position]) > 1:
        option, has_value, value = argv[position].partition("=")
        position += 1
        if option == "--":
            break
        is_valued = option in valued or (f"-{option[-1]}" in valued and set(option[1:-1]) <= set("itdTq"))
        if is_valued and not has_value and position < len(argv):
            value = argv[position]
            position += 1
        if option == "--entrypoint":
            entry_point = value
    return position, entry_point


def find_inline_script(argv: Sequence[str], stdin: str | None) -> str | None:
    """The shell text that `bash -c TEXT`, `eval TEXT`, `cmd /c TEXT` or `bash <<EOF` runs; None for other commands."""
    name = find_program_name(argv[0])
    if name.lower() in WINDOWS_SHELLS:
        return find_windows_script(argv, stdin)
    if name == "eval":
        return " ".join(argv[1:])
    if name in _TEXT_OPTIONS:
        option = next((word for word in argv[1:-1] if _TEXT_OPTIONS[name].fullmatch(word)), None)
        return argv[argv.index(option) + 1] if option is not None else None
    if name not in _SHELLS:
        return None
    at, prefix = 1, ""
    while at < len(argv) and argv[at][:1] in "-+" and len(argv[at]) > 1:
        flag = argv[at]
        at += 1
        if flag.startswith("--"):
            continue
        if flag.endswith("o") and at < len(argv):
            prefix += f"set -o {argv[at]}\n"
            at += 1
        if "e" in flag:
            prefix += "set -e\n"
        if "c" in flag:
            return prefix + argv[at] if at < len(argv) else None
    no_script = at == len(argv) or tuple(argv[at:]) == ("-",)
    return prefix + stdin if no_script and stdin is not None else None
