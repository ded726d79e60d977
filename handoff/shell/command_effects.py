"""Effects of shell command lines: the files that they change, show and search.

`find_effect` serves the runtime and never underestimates: an unknown program can change anything. The other functions
serve detectors, notes and metrics and answer what is likely: an unknown program neither edits nor shows a file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from langgraph_takeover.handoff.shell.program_table import (
    ALWAYS_HARMLESS,
    GIT_RESTORES,
    PROGRAMS,
    find_program,
)
from langgraph_takeover.handoff.shell.runners import find_python_target, find_runner
from langgraph_takeover.handoff.shell.syntax import SimpleCommand, resolve_path
from langgraph_takeover.handoff.shell.syntax_reader import parse_command

CommandEffect = Literal["nothing", "shell", "anything"]
"""The possible effect of a command line: none, only the shell's directory, or any."""
_SCRIPT_PROGRAMS = {"sed", "awk", "gawk", "mawk"}
"""Programs whose first operand is a script, unless an option supplies the script."""
_DIRECTORY_COMMANDS = {"cd", "pushd", "popd"}
_GREPS = {"grep", "egrep", "fgrep"}
_SEARCHERS = {"rg", "ag", "ack", "fd", "fdfind", "locate", "tree", "zgrep", "pcregrep"}

_MAX_CHARS = 4_000
_QUOTED = r"""\\[^\n\t]|'[^']*'|"(?:[^"\\`$]|\\[^\n]|\$[A-Za-z_]\w*|\$(?=["\s]))*+\""""
_WORD = rf"""(?:[^\s\\'"`$;&|<>()]|{_QUOTED}|\$(?:[A-Za-z_]\w*|[?\#0-9]))++(?!(?<=\}})[<>])"""
_SINK = r"(?:[0-9]*>>?[ \t]*/dev/null|&>>?[ \t]*/dev/null|[0-9]*>&[12])(?=[\s;|]|$)"
_TOKEN = re.compile(
    rf"""[ \t]+ | \#[^\n]*                                               # a comment
    | {_SINK}
    | [0-9]*<[ \t]*(?=[\w./'"-]){_WORD}
    | (?P<word>{_WORD})[ \t]* | (?P<separator>&&|\|\||;(?!;)|\n|\|(?!&))[ \t]*""",
    re.VERBOSE,
)
_QUOTES = re.compile(r"[\\'\"]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")
_UNEXPANDED = r"""\\.|'[^']*'|"(?:[^"\\$]|\\.)*\""""
# The expansion of a glob starts like the glob, so it is an option only if the glob starts with a dash.
_LITERAL = re.compile(
    rf"""(?:[^\\'"$*?\[\]~{{}}!\#]|{_UNEXPANDED})+|[^\\'"$*?\[\]~{{}}!\#-](?:[^\\'"${{}}]|{_UNEXPANDED})*|[][]""",
    re.DOTALL,
)


def _build_frequent_pattern() -> re.Pattern[str]:
    names = "|".join(
        re.escape(name) for name, program in PROGRAMS.items() if program.harmless_patterns == ALWAYS_HARMLESS
    )
    command = (
        rf"(?:(?:{names})(?:[ \t]++(?!\#)(?:{_WORD}|{_SINK}))*+|sed[ \t]+-n[ \t]+'[\d,]+p'(?:[ \t]+[\w./]+)?)"
    )
    return re.compile(rf"[ \t]*+{command}(?:[ \t]*+(?:\||&&|;)[ \t]*+{command})*+\s*")


_FREQUENT_COMMANDS = _build_frequent_pattern()
"""The most frequent harmless command lines; a single match replaces parsing word by word."""
_FIRST_WORD = re.compile(r"\s*([\w./-]+)(?=\s)")


_INSTALL_COMMAND = re.compile(
    r"(pip[\d.]*|uv pip) install\b|^(?>.*?setup\.py )(.* )?(develop|install|egg_info)\b|cythonize\b",
    re.M,
)

_RESTORE_OR_BUILD_WORD = re.compile(
    r"\b(?:git|make|build|install|setup|develop|cython|compile|mvn|gradle|ninja|tsc)"
)


@lru_cache(maxsize=256)
def find_effect(command: str) -> CommandEffect:
    """Effect of a command line.

    Never underestimates, unless the agent redefined a program, a shell function or a setting of Git.
    """
    first = _FIRST_WORD.match(command)
    if first and first[1] not in _DIRECTORY_COMMANDS and not find_program(first[1]).harmless_patterns:
        return "anything"
    if not _is_legible(command):
        return "anything"
    if _FREQUENT_COMMANDS.fullmatch(command):
        return "nothing"
    effects: set[CommandEffect] = set()
    for words in _split_simple_commands(command):
        effects.add(_find_words_effect(words))
        if "anything" in effects:
            return "anything"
    return "shell" if "shell" in effects else "nothing" if effects else "anything"


def _split_simple_commands(text: str) -> Iterator[list[str]]:
    """Raw words of each simple command of a legible text; an empty list marks text that cannot be split safely.

    The grammar of `handoff.shell.syntax` proves nothing: it reads `\\rm` at a line start as a word of the previous line.
    """
    words: list[str] = []
    position = 0
    for token in _TOKEN.finditer(text):
        if token.start() != position:
            break
        position = token.end()
        if token.lastgroup == "word":
            words.append(token["word"])
        elif token.lastgroup == "separator" and (words or token["separator"] != "\n"):
            yield words
            words = []
    if words or position != len(text):
        yield words if position == len(text) else []


def _is_legible(text: str) -> bool:
    return len(text) <= _MAX_CHARS and (text.isprintable() or not _CONTROL.search(text))


def _find_words_effect(raw_words: Sequence[str]) -> CommandEffect:
    if not raw_words:
        return "anything"
    name, *words = (_unquote(word) if _QUOTES.search(word) else word for word in raw_words)
    if name in _DIRECTORY_COMMANDS:
        return "shell"
    harmless = find_program(name).harmless_patterns
    is_proven = harmless == ALWAYS_HARMLESS or all(map(_LITERAL.fullmatch, raw_words))
    return "nothing" if is_proven and _matches_words(harmless, words) else "anything"


def _unquote(word: str) -> str:
    return re.sub(r"""\\(.)|'([^']*)'|"((?:[^"\\]|\\.)*)\"""", _unquote_match, word, flags=re.DOTALL)


def _unquote_match(match: re.Match[str]) -> str:
    return match[1] or match[2] or re.sub(r'\\([\\"$`])', r"\1", match[3] or "")


def _matches_words(patterns: Sequence[re.Pattern[str]], words: Sequence[str]) -> bool:
    """Whether every word matches its pattern and every pattern except the last has a word."""
    if not patterns or len(words) < len(patterns) - 1:
        return False
    return all(patterns[min(n, len(patterns) - 1)].fullmatch(word) for n, word in enumerate(words))


def may_edit(command: SimpleCommand, paths: Collection[str] = ()) -> bool:
    """Whether the command probably edits files, or redirects its output into one of `paths`."""
    names = {posixpath.basename(p) for p in paths}
    if any(">" in r.operator and posixpath.basename(r.target) in names for r in command.redirects):
        return True
    words = _list_arguments(command)
    if command.name.startswith(("python", "pypy")) and find_runner(command.argv) is None:
        target = find_python_target(words)
        return target is None or target[0] == "-c"
    edits = find_program(command.name).edit_pattern
    return edits is not None and any(map(edits.match, ("", *words)))


def may_act(command: SimpleCommand) -> bool:
    """Whether the command may do more than print and configure its shell; true for an unknown program."""
    program = find_program(command.name)
    return may_edit(command) or not (
        program.is_mostly_read_only or _matches_words(program.harmless_patterns, _list_arguments(command))
    )


def is_restore(command: SimpleCommand) -> bool:
    """Whether the command can only restore earlier content."""
    return command.name == "git" and bool(GIT_RESTORES.intersection(_list_arguments(command)[:1]))


def _list_arguments(command: SimpleCommand) -> Sequence[str]:
    """The arguments of a program; for Git, starting at its subcommand."""
    words = command.argv[1:]
    while command.name == "git" and words and words[0].startswith("-"):
        words = words[2 if words[0] in ("-C", "-c") else 1 :]
    return words


def list_shown_files(command: str) -> tuple[str, ...]:
    """Paths of the files whose content the command prints, relative to the directory of the shell; not those of grep."""
    commands = parse_command(command)
    shown_paths: list[str] = []
    for position, simple in enumerate(commands):
        # Piped content reaches the agent only if every later stage is a filter.
        later = commands[position + 1 : position + simple.stages - simple.stage]
        if simple.shows_output and all(_is_filter(each) and each.shows_output for each in later):
            input_paths = [r.target for r in simple.redirects if r.operator == "<" and _is_filter(simple)]
            paths = (*_list_named_files(simple), *input_paths)
            shown_paths += [
                resolve_path(path, simple.cwd) for path in paths if path not in ("-", "/dev/null")
            ]
    return tuple(dict.fromkeys(shown_paths))


def is_search(command: str) -> bool:
    """Whether part of the command searches files for names or text, rather than a program's output."""
    commands = parse_command(command)
    for position, simple in enumerate(commands):
        piped_file = simple.stage > 0 and list(_list_named_files(commands[position - simple.stage]))
        if _is_search_command(simple) or (simple.name in _GREPS and piped_file):
            return True
    return False


def _is_filter(command: SimpleCommand) -> bool:
    return find_program(command.name).is_filter


def _list_named_files(command: SimpleCommand) -> Iterator[str]:
    """Operands of a program that name the files that it prints."""
    name, words = command.name, command.argv[1:]
    valued = find_program(name).valued_options
    if valued is None or may_edit(command):
        return
    files = _list_operands(words, valued)
    if name in _SCRIPT_PROGRAMS:
        files = files[not any(word in ("-e", "-f", "--expression", "--file") for word in words) :]
    yield from (file for file in files if "=" not in file or not name.endswith("awk"))


def _list_operands(words: Sequence[str], valued: str) -> list[str]:
    operands: list[str] = []
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith("-") and len(word) > 1:
            is_value = len(word) == 2 and word[1] in valued
        elif not word.startswith("+"):
            operands.append(word)
    return operands


def _is_search_command(command: SimpleCommand) -> bool:
    name, words = command.name, command.argv[1:]
    flags = "".join(w[1:] for w in words if re.fullmatch(r"-[A-Za-z]+", w))
    if name in _GREPS:
        recursive = bool({"r", "R"} & set(flags)) or "--recursive" in words
        has_pattern_option = "e" in flags or "f" in flags
        return recursive or bool(_list_operands(words, "ABCmef")[0 if has_pattern_option else 1 :])
    if name == "find":
        executed_programs = [
            posixpath.basename(b) for a, b in pairwise(words) if a in ("-exec", "-execdir", "-ok")
        ]
        harmless_programs = {*_GREPS, "ls", "wc", "echo"}
        return "-delete" not in words and all(
            program in harmless_programs or (program != "sed" and find_program(program).is_filter)
            for program in executed_programs
        )
    if name == "git":
        return words[:1] in (("grep",), ("ls-files",)) or (
            words[:1] == ("log",) and any(w.startswith(("-S", "-G", "--grep")) for w in words)
        )
    if name == "ls":
        return "R" in flags or "--recursive" in words
    return name in _SEARCHERS and (command.stage == 0 or name != "rg")


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
