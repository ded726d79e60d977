"""What a shell command does to files: whether it can change them, which of them it shows, whether it searches.

One table of programs answers all of these. `find_effect` is for the runtime and never underestimates: an unknown
program can change anything. The other functions are for detectors, notes and measures and answer what is likely: an
unknown program neither edits nor shows a file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from langgraph_takeover.handoff.shell.commands import SimpleCommand, parse_command, resolve_path
from langgraph_takeover.handoff.shell.runners import find_python_target, find_runner

CommandEffect = Literal["nothing", "shell", "anything"]
"""What a command line can change: nothing, the directory of its shell, or anything."""


class _Program(NamedTuple):
    harmless_patterns: tuple[re.Pattern[str], ...] = ()
    """Its words if it certainly changes nothing: one pattern for each, the last also for all that follow."""
    edit_pattern: re.Pattern[str] | None = None
    """The beginning of a word that makes it change files; the empty pattern if it always does."""
    is_mostly_read_only: bool = False
    """It hardly ever changes a file, though some way to use it could."""
    valued_options: str | None = None
    """It prints the files that it names; these one-letter options take a word as value."""
    is_filter: bool = False
    """It prints what it reads from a pipe."""


def _row(
    names: str,
    *harmless: str,
    edits: str | None = None,
    looks: bool = False,
    valued: str | None = None,
    filters: bool = False,
) -> dict[str, _Program]:
    patterns = tuple(re.compile(pattern, re.DOTALL) for pattern in harmless)
    changing = None if edits is None else re.compile(edits)
    shows = valued is not None
    return dict.fromkeys(
        names.split(), _Program(patterns, changing, looks or shows, valued, filters or shows)
    )


_ANY = ".*"
_ALWAYS_HARMLESS = (re.compile(_ANY, re.DOTALL),)
_GIT_READS = "blame|diff|grep|log|ls-files|rev-parse|shortlog|show|status"
# Git takes beginnings of long options for the whole.
_GIT_WRITES = r"--o(?!(?:neline|nly-matching|thers)\Z)|--e|--tex|-[a-zA-Z]*O"
_GIT_RESTORES = {"stash", "checkout", "restore", "reset", "clean"}
_GIT_EDITS = (
    r"(?:am|apply|checkout|cherry-pick|clean|merge|mv|pull|rebase|reset|restore|revert|rm|stash|switch)\Z"
)
_FIND_ACTIONS = "-delete|-exec|-ok|-fprint|-fls"
_NO_SUBSCRIPT = r"(?!-v\Z)[^[]*"  # a subscript is computed, and can assign

_PROGRAMS: dict[str, _Program] = {
    **_row(": basename cmp df diff dirname du echo false id ls pwd readlink realpath", _ANY),
    **_row("stat true type uname wc whereis which whoami egrep fgrep grep", _ANY),
    **_row("cat tac", _ANY, valued=""),
    **_row("nl", _ANY, valued="bdfhilnpsvw"),
    **_row("head tail", _ANY, valued="nc"),
    **_row("cut tr", _ANY, filters=True),
    **_row("sort", r"(?!--|-.*[oT]).*", filters=True),
    **_row("uniq", r"-[cduiz]+", filters=True),  # the second file would be written to
    **_row("column expand fmt fold", filters=True),
    **_row("bat batcat less more view", valued=""),
    **_row("od", valued="AjNStw"),
    **_row("xxd", valued="lsc"),
    **_row("hexdump", valued="nsCe"),
    **_row("strings", valued="n"),
    **_row("pygmentize", valued="lfO"),
    **_row("sed", "-n", r"[\d,$ ;]*p(;[\d,$ ]*p)*", r"(?!-).*", edits="-[nrEsz]*i|--in-place", valued="ef"),
    **_row("awk gawk mawk", edits="-i", valued="fFv"),
    **_row("[ test", _NO_SUBSCRIPT, looks=True),
    **_row("date", r"\+.*|-[uR]|-I\w*", looks=True),
    **_row("printf", r"(?!-)(?!.*%[^a-zA-Z%]*[hjlLtz]*n).*", _ANY, looks=True),
    **_row("file", r"(?!-).*|-[bi]"),
    **_row("rg", r"(?!--(?:pr|hos|se)|-[a-zA-Z]*z).*"),
    **_row("find", rf"(?!{_FIND_ACTIONS}).*", edits=_FIND_ACTIONS, looks=True),
    **_row("git", _GIT_READS, rf"(?!{_GIT_WRITES}).*", edits=_GIT_EDITS),
    **_row("cd pushd popd export set sleep source . exit", looks=True),
    **_row("perl ruby", edits=r"-\w*[ie]"),
    **_row("tee", edits="", filters=True),
    **_row("patch apply_patch mv cp rm ln install rsync tar unzip ed ex vim vi dd truncate touch", edits=""),
    **_row("black autopep8 yapf isort autoflake pyupgrade 2to3 prettier gofmt rustfmt", edits=""),
    **_row("dos2unix unix2dos shutil", edits=""),
}  # fmt: skip
_UNKNOWN = _Program()
_SCRIPT_PROGRAMS = {"sed", "awk", "gawk", "mawk"}
"""Programs whose first operand is a script, unless an option brings it."""
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
# What a pattern stands for begins as the pattern does: with a path, it is no option.
_LITERAL = re.compile(
    rf"""(?:[^\\'"$*?\[\]~{{}}!\#]|{_UNEXPANDED})+|[^\\'"$*?\[\]~{{}}!\#-](?:[^\\'"${{}}]|{_UNEXPANDED})*|[][]""",
    re.DOTALL,
)


def _build_frequent_pattern() -> re.Pattern[str]:
    looks = "|".join(
        re.escape(name)
        for name, program in _PROGRAMS.items()
        if program.harmless_patterns == _ALWAYS_HARMLESS
    )
    command = (
        rf"(?:(?:{looks})(?:[ \t]++(?!\#)(?:{_WORD}|{_SINK}))*+|sed[ \t]+-n[ \t]+'[\d,]+p'(?:[ \t]+[\w./]+)?)"
    )
    return re.compile(rf"[ \t]*+{command}(?:[ \t]*+(?:\||&&|;)[ \t]*+{command})*+\s*")


_FREQUENT_COMMANDS = _build_frequent_pattern()
"""The most frequent command lines that change nothing, recognised without reading word by word."""
_FIRST_WORD = re.compile(r"\s*([\w./-]+)(?=\s)")


@lru_cache(maxsize=256)
def find_effect(command: str) -> CommandEffect:
    """What a command line can change.

    Never underestimates, unless the agent redefined a program, a shell function or a setting of git.
    """
    first = _FIRST_WORD.match(command)
    if (
        first
        and first[1] not in _DIRECTORY_COMMANDS
        and not _PROGRAMS.get(first[1], _UNKNOWN).harmless_patterns
    ):
        return "anything"
    if _FREQUENT_COMMANDS.fullmatch(command) and _is_legible(command):
        return "nothing"
    effects: set[CommandEffect] = set()
    for words in _split_simple_commands(command):
        effects.add(_find_words_effect(words))
        if "anything" in effects:
            return "anything"
    return "shell" if "shell" in effects else "nothing" if effects else "anything"


def _split_simple_commands(text: str) -> Iterator[list[str]]:
    """The words of each simple command as they are written; ends with an empty list where anything else stands.

    The grammar of `handoff.shell.syntax` is no proof: it takes `\\rm` at the start of a line for a word of the line before.
    """
    words: list[str] = []
    place = 0
    for token in _TOKEN.finditer(text) if _is_legible(text) else ():
        if token.start() != place:
            break
        place = token.end()
        if token.lastgroup == "word":
            words.append(token["word"])
        elif token.lastgroup == "separator" and (words or token["separator"] != "\n"):
            yield words
            words = []
    if words or place != len(text):
        yield words if place == len(text) else []


def _is_legible(text: str) -> bool:
    return len(text) <= _MAX_CHARS and not _CONTROL.search(text)


def _find_words_effect(raw_words: Sequence[str]) -> CommandEffect:
    if not raw_words:
        return "anything"
    name, *words = (_unquote(word) if _QUOTES.search(word) else word for word in raw_words)
    if name in _DIRECTORY_COMMANDS:
        return "shell"
    harmless = _PROGRAMS.get(name, _UNKNOWN).harmless_patterns
    proven = harmless == _ALWAYS_HARMLESS or all(map(_LITERAL.fullmatch, raw_words))
    return "nothing" if proven and _matches_words(harmless, words) else "anything"


def _unquote(word: str) -> str:
    return re.sub(r"""\\(.)|'([^']*)'|"((?:[^"\\]|\\.)*)\"""", _unquote_match, word, flags=re.DOTALL)


def _unquote_match(match: re.Match[str]) -> str:
    return match[1] or match[2] or re.sub(r'\\([\\"$`])', r"\1", match[3] or "")


def _matches_words(patterns: Sequence[re.Pattern[str]], words: Sequence[str]) -> bool:
    """Whether every word matches its pattern, and every pattern but the last has a word."""
    if not patterns or len(words) < len(patterns) - 1:
        return False
    return all(patterns[min(n, len(patterns) - 1)].fullmatch(word) for n, word in enumerate(words))


def may_edit(command: SimpleCommand, paths: Collection[str] = ()) -> bool:
    """Whether the command is of a sort that changes files, and could have changed one of these paths."""
    names = {posixpath.basename(p) for p in paths}
    if any(">" in r.operator and posixpath.basename(r.target) in names for r in command.redirects):
        return True
    words = _list_arguments(command)
    if command.name.startswith(("python", "pypy")) and find_runner(command.argv) is None:
        target = find_python_target(words)
        return target is None or target[0] == "-c"
    edits = _PROGRAMS.get(command.name, _UNKNOWN).edit_pattern
    return edits is not None and any(map(edits.match, ("", *words)))


def may_act(command: SimpleCommand) -> bool:
    """Whether the command may do more than print and set up its shell; an unknown program may."""
    program = _PROGRAMS.get(command.name, _UNKNOWN)
    return may_edit(command) or not (
        program.is_mostly_read_only or _matches_words(program.harmless_patterns, _list_arguments(command))
    )


def is_restore(command: SimpleCommand) -> bool:
    """Whether the command can only bring back content that was there before."""
    return command.name == "git" and bool(_GIT_RESTORES.intersection(_list_arguments(command)[:1]))


def _list_arguments(command: SimpleCommand) -> Sequence[str]:
    """The words behind the program's name; of Git, those from its verb on."""
    words = command.argv[1:]
    while command.name == "git" and words and words[0].startswith("-"):
        words = words[2 if words[0] in ("-C", "-c") else 1 :]
    return words


def list_shown_files(command: str) -> tuple[str, ...]:
    """The files whose content the command shows, as paths from where the shell stood; a grep is a search."""
    commands = parse_command(command)
    shown: list[str] = []
    for position, simple in enumerate(commands):
        # What a pipe passes on is shown only if every later stage lets content through.
        later = commands[position + 1 : position + simple.stages - simple.stage]
        if simple.shows_output and all(_is_filter(each) and each.shows_output for each in later):
            fed = [r.target for r in simple.redirects if r.operator == "<" and _is_filter(simple)]
            paths = (*_list_named_files(simple), *fed)
            shown += [resolve_path(path, simple.cwd) for path in paths if path not in ("-", "/dev/null")]
    return tuple(dict.fromkeys(shown))


def is_search(command: str) -> bool:
    """Whether a part of the command looks for names or text in files, not in a program's output."""
    commands = parse_command(command)
    for position, simple in enumerate(commands):
        piped_file = simple.stage > 0 and list(_list_named_files(commands[position - simple.stage]))
        if _is_search_command(simple) or (simple.name in _GREPS and piped_file):
            return True
    return False


def _is_filter(command: SimpleCommand) -> bool:
    return _PROGRAMS.get(command.name, _UNKNOWN).is_filter


def _list_named_files(command: SimpleCommand) -> Iterator[str]:
    """The files that a program prints, as its words name them."""
    name, words = command.name, command.argv[1:]
    valued = _PROGRAMS.get(name, _UNKNOWN).valued_options
    if valued is None or may_edit(command):
        return
    files = _list_operands(words, valued)
    if name in _SCRIPT_PROGRAMS:
        files = files[not any(word in ("-e", "-f", "--expression", "--file") for word in words) :]
    yield from (file for file in files if "=" not in file or not name.endswith("awk"))


def _list_operands(words: Sequence[str], valued: str) -> list[str]:
    found: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-") and len(word) > 1:
            skip = len(word) == 2 and word[1] in valued
        elif not word.startswith("+"):
            found.append(word)
    return found


def _is_search_command(command: SimpleCommand) -> bool:
    name, words = command.name, command.argv[1:]
    flags = "".join(w[1:] for w in words if re.fullmatch(r"-[A-Za-z]+", w))
    if name in _GREPS:
        recursive = bool({"r", "R"} & set(flags)) or "--recursive" in words
        brings = "e" in flags or "f" in flags
        return recursive or bool(_list_operands(words, "ABCmef")[0 if brings else 1 :])
    if name == "find":
        acts = [posixpath.basename(b) for a, b in pairwise(words) if a in ("-exec", "-execdir", "-ok")]
        looks = {*_GREPS, "ls", "wc", "echo"}
        return "-delete" not in words and all(
            act in looks or (act != "sed" and _PROGRAMS.get(act, _UNKNOWN).is_filter) for act in acts
        )
    if name == "git":
        return words[:1] in (("grep",), ("ls-files",)) or (
            words[:1] == ("log",) and any(w.startswith(("-S", "-G", "--grep")) for w in words)
        )
    if name == "ls":
        return "R" in flags or "--recursive" in words
    return name in _SEARCHERS and (command.stage == 0 or name != "rg")
