"""Attribution of file changes to the parts of a command line."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence

from langgraph_takeover.handoff.shell.command_effects import is_restore, may_act
from langgraph_takeover.handoff.shell.commands import SimpleCommand
from langgraph_takeover.handoff.shell.runners import find_runner

_INSTALL_COMMAND = re.compile(
    r"(pip[\d.]*|uv pip) install\b|^(?>.*?setup\.py )(.* )?(develop|install|egg_info)\b|cythonize\b",
    re.M,
)

_RESTORE_OR_BUILD_WORD = re.compile(
    r"\b(?:git|make|build|install|setup|develop|cython|compile|mvn|gradle|ninja|tsc)"
)


def may_mention(command: SimpleCommand, paths: Collection[str]) -> bool:
    """Whether the command names one of these paths, or could by a glob or a variable."""
    names = {posixpath.basename(p) for p in paths}
    texts = [*command.argv[1:], command.stdin or ""]
    return any(name in text for name in names for text in texts) or any(
        "$" in w or "*" in w for w in texts[:-1]
    )


def may_restore_or_build(command: str) -> bool:
    """Whether the text may restore or build files; a fast check without false negatives."""
    return _RESTORE_OR_BUILD_WORD.search(command) is not None


def is_restore_only(commands: Sequence[SimpleCommand]) -> bool:
    """Whether the commands only restore files with Git, apart from commands that change nothing."""
    acting = [command for command in commands if may_act(command)]
    return bool(acting) and all(map(is_restore, acting))


def is_build_or_install(commands: Sequence[SimpleCommand]) -> bool:
    """Whether a command builds or installs, so that new files beside the source are generated."""
    for command in commands:
        runner = find_runner(command.argv)
        text = " ".join(command.argv)
        if (runner is not None and runner.kind == "build") or _INSTALL_COMMAND.search(text):
            return True
    return False
