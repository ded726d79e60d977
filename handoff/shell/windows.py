"""Translation of PowerShell and `cmd` command lines to a POSIX shell, so that one parser reads all of them.

The translation serves reading only: what a line runs, shows and writes. Conditions, loops and expressions keep the commands
in them and lose their values.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Literal, NamedTuple

WINDOWS_SHELLS = ("powershell", "pwsh", "cmd")
WindowsShell = Literal["powershell", "cmd"]
_MAX_CHARS = 30_000
_MAX_VARIABLES = 200
_MAX_VALUE_CHARS = 2_000
_PROGRAM_SUFFIX = re.compile(r"\.(?:exe|cmd|bat|ps1)$", re.I)
_BEGIN = re.compile(
    r"\A\s*(?:\$(?:env:)?\w+ *=(?!=)|& ?['\"]?(?:[A-Za-z]:|\.{1,2})?\\|\[[\w.]+\]::|\(Get-[A-Z])"
    r"|(?:\A|[;&|\n])[ \t]*(?:\.{1,2}\\[\w.]|['\"]?(?:[A-Za-z]:|[\w.-]+)\\[\w .()\\-]+\.(?:exe|cmd|bat|ps1)\b"
    r"|(?:Get|Set|Add|Remove|Copy|Move|Rename|New|Select|Out|Test|Push|Pop|Start|Where|ForEach|Measure|Write|Invoke|Tee|Sort)"
    r"-[A-Z][A-Za-z]+(?=[\s;|)}]|\Z))"
)
"""The begin of a line or a command that only PowerShell understands."""
_PATH = re.compile(r"(?:[A-Za-z]:|\.{1,2}|~|\\|[\w@$%{}.+-][\w@$%{} .+-]*)?(?:\\[\w@$%{} .()\[\]*+~-]+)*\\?")
_VARIABLE = re.compile(r"\$\{?(?:script:|global:)?(\w+)\}?")
_FILE_METHOD = re.compile(r"(?:IO\.)?File\]::(WriteAll|AppendAll|ReadAll)(?:Text|Lines|Bytes)$", re.I)
_REDIRECT = re.compile(r"(?:[0-9*]?>>?(?:&[0-9])?|<)")
_KEYWORDS = frozenset(
    ("if", "elseif", "else", "foreach", "for", "while", "do", "until", "switch", "try", "catch", "finally", "function", "filter",
     "param", "begin", "process", "end", "return", "throw", "in", "not", "exist", "call")
)  # fmt: skip
_SWITCHES = frozenset(
    ("recurse", "force", "raw", "nonewline", "append", "wait", "nonewwindow", "allmatches", "casesensitive", "simplematch",
     "list", "quiet", "directory", "file", "name", "passthru", "confirm", "whatif", "usebasicparsing", "noclobber", "hidden")
)  # fmt: skip
_PATH_PARAMETERS = ("path", "literalpath", "filepath", "name")
_ALIASES = {
    "cd": "set-location sl chdir push-location pushd", "popd": "pop-location", "cat": "get-content gc type",
    "set-content": "sc out-file", "add-content": "ac", "tee": "tee-object",
    "rm": "remove-item del erase ri rd rmdir", "cp": "copy-item copy cpi", "mv": "move-item move mi", "ren": "rename-item rni",
    "new-item": "ni", "mkdir": "md", "ls": "get-childitem gci dir get-item gi test-path resolve-path", "pwd": "get-location gl",
    "grep": "select-string sls findstr", "select": "select-object", "echo": "write-output write-host",
    "start-process": "saps start",
    "filter": "where-object where ? foreach-object foreach % sort-object measure-object measure format-table ft format-list fl "
    "out-string out-host out-null out-default convertfrom-json convertto-json get-unique tee-object",
}  # fmt: skip
_COMMANDS = {alias: name for name, aliases in _ALIASES.items() for alias in (name, *aliases.split())}
_CMD_SWITCHES = re.compile(r"/[A-Za-z?]\b.*")


class _Word(NamedTuple):
    text: str
    is_quoted: bool = False


def find_program_name(word: str) -> str:
    """The name of the program that a word runs, without directory and without a suffix of Windows.

    Example:
        >>> find_program_name("/c/p/.venv/Scripts/python.exe"), find_program_name("npx.cmd")
        ('python', 'npx')
    """
    name = word.rpartition("/")[2]
    return _PROGRAM_SUFFIX.sub("", name) if "." in name else name


def is_powershell(text: str) -> bool:
    """Whether a command line is certainly one of PowerShell, and of no POSIX shell."""
    may_be = "-" in text or "\\" in text or "$" in text
    return may_be and "<<" not in text and _BEGIN.search(text[:_MAX_CHARS]) is not None


def write_powershell_command(text: str) -> str:
    """The command line that runs a PowerShell text from any shell; a text that means the same everywhere is unchanged."""
    if translate(text, "powershell") == text.strip():
        return text
    if "'" not in text:
        return f"powershell -Command '{text}'"
    end = _choose_delimiter(text)
    return f"powershell -Command - <<'{end}'\n{text}\n{end}"


def find_windows_script(argv: Sequence[str], stdin: str | None) -> str | None:
    """The POSIX form of the text that `powershell -Command TEXT` or `cmd /c TEXT` runs; None for other commands."""
    name = find_program_name(argv[0].replace("\\", "/")).lower()
    if name not in WINDOWS_SHELLS:
        return None
    for number, word in enumerate(argv[1:], 1):
        option = word.lower().replace("//", "/")
        if name == "cmd" and option in ("/c", "/k"):
            return translate(" ".join(argv[number + 1 :]), "cmd")
        if name != "cmd" and option in ("-c", "-command", "/c", "/command"):
            words = argv[number + 1 :]
            text = stdin if words == ("-",) else " ".join(words)
            return None if text is None else translate(text, "powershell")
        if name != "cmd" and option in ("-f", "-file") and len(argv) > number + 1:
            return shlex.join([_to_path(argv[number + 1]), *argv[number + 2 :]])
    return None if stdin is None else translate(stdin, "cmd" if name == "cmd" else "powershell")


def translate(text: str, shell: WindowsShell) -> str:
    """Translate a command line to a POSIX shell; of a very long one, the start."""
    return _Translator(text[:_MAX_CHARS], shell).run()


class _Translator:
    """One pass over a command line: words become commands, and commands become POSIX text."""

    def __init__(self, text: str, shell: WindowsShell) -> None:
        self.text, self.is_cmd = text, shell == "cmd"
        self.position = 0
        self.words: list[_Word] = []
        self.redirects: list[str] = []
        self.outer: list[tuple[list[_Word], list[str]]] = []
        """The words before each open parenthesis."""
        self.blocks: list[bool] = []
        """Of each open brace, whether it began a branch."""
        self.out: list[str] = []
        self.bodies: list[tuple[str, str]] = []
        """Delimiters and texts of here-documents after the current line."""
        self.piped: str | None = None
        """A literal text that the next command reads."""
        self.variables: dict[str, str] = {}

    def run(self) -> str:
        while self.position < len(self.text):
            self._read_token()
        for _ in self.outer:
            self._end_command("")
            self.words, self.redirects = self.outer[-1]
        self._end_command("")
        self.out += [" fi" for is_branch in self.blocks if is_branch]
        self._end_line()
        return "".join(self.out).strip().removesuffix(";").strip()

    def _read_token(self) -> None:
        text, at = self.text, self.position
        char = text[at]
        if char in " \t\r,;\n|&" or text.startswith("`\n", at):
            self._read_separator(char)
        elif self.is_cmd and char in "()@":
            self.position += 1
        elif char in "(){}" or text.startswith(("$(", "@(", "@{"), at):
            self.position += 1 if char in "(){}" else 2
            self._read_bracket(text[self.position - 1])
        elif char == "#" and not self.is_cmd:
            end = text.find("\n", at)
            self.position = len(text) if end < 0 else end
        elif text.startswith("<#", at) and not self.is_cmd:
            end = text.find("#>", at)
            self.position = len(text) if end < 0 else end + 2
        elif (redirect := _REDIRECT.match(text, at)) is not None:
            self._read_redirect(redirect[0].replace("*", "&"))
        else:
            self.words.append(self._read_word())

    def _read_separator(self, char: str) -> None:
        two = self.text[self.position : self.position + 2]
        self.position += 2 if two in ("&&", "||", "`\n") else 1
        if two in ("&&", "||"):
            self._end_command(f" {two} ")
        elif char == "|":
            self._end_command(" | ")
        elif char in ";\n" or (char == "&" and self.is_cmd):
            if self.outer and char == "\n":
                return
            self._end_command("; " if char != "\n" else "\n")
        elif char == "&" and self.words:
            self._end_command(" & ")

    def _read_bracket(self, bracket: str) -> None:
        if bracket == "(":
            self.outer.append((self.words, self.redirects))
            self.words, self.redirects = [], []
        elif bracket == ")":
            inner = self.words
            if self.outer:
                words, redirects = self.outer.pop()
                if not self._write_file_method(words, inner):
                    self._end_command("; ")
                self.words, self.redirects = [*words, _Word("(…)", True)], redirects
        elif bracket == "{":
            names = {word.text.lower() for word in self.words if not word.is_quoted}
            is_branch = not names or not names.isdisjoint(_KEYWORDS)
            self.words, self.redirects = ([], []) if is_branch else (self.words, self.redirects)
            if not is_branch:
                self._end_command("; ")
            self.blocks.append(True)
            self.out.append("if :; then :; ")
        elif self.blocks:
            self._end_command("; ")
            self.blocks.pop()
            self.out.append("fi; ")

    def _read_redirect(self, operator: str) -> None:
        self.position += len(operator)
        if operator[-2:-1] == "&" and operator[-1].isdigit():
            self.redirects.append("2>&1" if operator[0] == "&" else operator)
            return
        while self.text[self.position : self.position + 1] in (" ", "\t"):
            self.position += 1
        if self.position < len(self.text) and self.text[self.position] not in ";|&\n(){}":
            target = self._read_word().text
            sink = target.lower() in ("$null", "nul")
            self.redirects.append(f"{operator} {'/dev/null' if sink else shlex.quote(_to_path(target))}")

    def _read_word(self) -> _Word:
        """Read a word, with its quoted parts."""
        parts: list[str] = []
        first = self.position
        is_quoted = False
        while self.position < len(self.text):
            char = self.text[self.position]
            if char in " \t\r\n;|(){},<>" or (char == "&" and self.position > first):
                break
            if char == "=" and self.text[first] in "$=":
                self.position += self.position == first
                break
            if (
                char == '"'
                or (char == "'" and not self.is_cmd)
                or self.text.startswith(("@'", '@"'), self.position)
            ):
                is_quoted = is_quoted or self.position == first
                parts.append(self._read_quoted())
            elif char == ("^" if self.is_cmd else "`"):
                parts.append(self.text[self.position + 1 : self.position + 2])
                self.position += 2
            else:
                parts.append(char)
                self.position += 1
        if self.position == first:
            self.position += 1
        return _Word("".join(parts) or ("" if is_quoted else self.text[first : self.position]), is_quoted)

    def _read_quoted(self) -> str:
        if self.text[self.position] == "@":
            return self._read_here_string()
        quote, start = self.text[self.position], self.position + 1
        at, parts = start, []
        while at < len(self.text):
            char = self.text[at]
            if char == quote:
                if self.text[at + 1 : at + 2] != quote:
                    break
                at += 1
            elif char == "`" and quote == '"' and not self.is_cmd and at + 1 < len(self.text):
                at += 1
                char = {"n": "\n", "t": "\t", "r": "\r"}.get(self.text[at], self.text[at])
            parts.append(self.text[at] if char == quote else char)
            at += 1
        self.position = at + 1
        value = "".join(parts)
        return self._expand(value) if quote == '"' else value

    def _read_here_string(self) -> str:
        quote = self.text[self.position + 1]
        start = self.text.find("\n", self.position)
        end = self.text.find(f"\n{quote}@", max(start - 1, self.position)) if start >= 0 else -1
        self.position = len(self.text) if end < 0 else end + 3
        body = self.text[start + 1 : end] if 0 <= start < end else ""
        return body.replace("\r\n", "\n")

    def _expand(self, text: str) -> str:
        if "$" not in text or not self.variables:
            return text
        expanded = _VARIABLE.sub(lambda found: self.variables.get(found[1].lower(), found[0]), text)
        return expanded if len(expanded) <= _MAX_VALUE_CHARS else text

    def _end_command(self, connector: str) -> None:
        words, redirects = self._take_words()
        literal = words[0].text if len(words) == 1 and words[0].is_quoted else None
        if (
            words
            and words[0].is_quoted
            and words[0].text != "(…)"
            and literal is None
            and self._is_expression(words)
        ):
            words = []
        command = "" if literal is not None or not words else self._write_command(words)
        if literal is not None and connector.strip() == "|":
            self.piped = literal
            return
        if not command and (connector.strip() == "|" or redirects):
            command = "true"
        if command:
            self.out.append(" ".join([command, *redirects]))
            if self.piped is not None and "<<" not in command:
                self.out.append(self._add_body(self.piped))
            self.piped = None
            if connector.strip() in ("", ";"):
                self.out.append("; " if connector.strip() else "")
                self._end_line(is_needed=bool(self.bodies) or connector == "\n")
            else:
                self.out.append(connector)

    def _take_words(self) -> tuple[list[_Word], list[str]]:
        words, self.words = self.words, []
        redirects, self.redirects = self.redirects, []
        while words and not words[0].is_quoted and words[0].text.lower() in _KEYWORDS | {"&", "."}:
            words = words[1:]
        assigned = (
            len(words) > 1
            and not words[0].is_quoted
            and words[0].text[:1] in ("$", "[")
            and words[1].text in ("=", "+=")
        )
        if assigned:
            name = words[0].text.lstrip("$").lower()
            words = words[2:]
            if len(words) == 1 and words[0].is_quoted and len(self.variables) < _MAX_VARIABLES:
                self.variables[name] = words[0].text[:_MAX_VALUE_CHARS]
                return [], redirects
        return [
            word._replace(text=self._expand(word.text)) if not word.is_quoted else word for word in words
        ], redirects

    @staticmethod
    def _is_expression(words: Sequence[_Word]) -> bool:
        return not _PROGRAM_SUFFIX.search(words[0].text) and "\\" not in words[0].text

    def _write_command(self, words: list[_Word]) -> str:
        name = words[0].text
        if name.startswith(("$", "[", "-", "(…)", "%", "/")) or (
            self.is_cmd and name.lower() in ("set", "rem", "echo.")
        ):
            return "" if not name.startswith("/") else shlex.join(word.text for word in words)
        if name.lower() == "exit" and any(word.text.startswith("$") for word in words):
            return ""
        known = _COMMANDS.get(name.lower())
        if known is not None:
            return self._write_builtin(known, words[1:])
        return shlex.join(
            [_to_path(name), *(_to_path(word.text, is_literal=word.is_quoted) for word in words[1:])]
        )

    def _write_builtin(self, name: str, words: Sequence[_Word]) -> str:
        options, operands = self._split_parameters(words)
        named = [_to_path(value) for key in _PATH_PARAMETERS if (value := options.get(key))]
        paths = [*named, *map(_to_path, operands)]
        value = options.get("value", options.get("inputobject"))
        if name in ("set-content", "add-content"):
            if value is None and not named and len(operands) > 1:
                paths, value = paths[:1], operands[1]
            elif value is None and named and operands:
                value = operands[0]
            operator = ">>" if name == "add-content" or "append" in options else ">"
            target = shlex.quote(paths[0]) if paths else "/dev/null"
            text = self.piped if value is None else value
            is_known = text is not None and text != "(…)" and not text.startswith("$")
            body = self._add_body(text or "") if is_known else ""
            return (
                f"cat {operator} {target}{body}" if is_known or value is None else f"true {operator} {target}"
            )
        if name == "cat" and (options.keys() & {"totalcount", "head", "first", "tail", "last"}):
            key = next(key for key in ("totalcount", "head", "first", "tail", "last") if key in options)
            program = "tail" if key in ("tail", "last") else "head"
            return shlex.join([program, "-n", options[key] or "1", *paths])
        if name == "select":
            counts = [("head", options.get("first")), ("tail", options.get("last"))]
            return next((f"{program} -n {shlex.quote(count)}" for program, count in counts if count), "cat")
        if name == "filter":
            return "cat"
        if name == "new-item":
            kind = (options.get("itemtype") or options.get("type") or "").lower()
            target = shlex.join(paths[:1])
            if value is not None:
                return f"cat > {target}{self._add_body(value)}"
            return f"{'mkdir -p' if kind == 'directory' else 'touch'} {target}"
        if name == "start-process":
            arguments = (options.get("argumentlist") or "").split()
            return shlex.join([*paths[:1], *arguments, *paths[1:]])
        if name in ("rm", "cp"):
            return shlex.join(
                [name, "-r", *paths, *filter(None, [_to_path(options.get("destination") or "")])]
            )
        if name == "mv":
            return shlex.join([name, *paths, *filter(None, [_to_path(options.get("destination") or "")])])
        if name == "ren":
            paths += filter(None, [options.get("newname") or ""])
            directory = paths[0].rpartition("/") if paths else ("", "", "")
            return shlex.join(["mv", *paths[:1], *("".join([*directory[:2], each]) for each in paths[1:2])])
        if name == "ls" and "recurse" in options:
            return shlex.join(["find", *(paths or ["."])])
        if name == "grep":
            pattern = options.get("pattern") or ""
            return shlex.join(["grep", *filter(None, [pattern]), *paths])
        if name == "echo":
            return shlex.join(["echo", *operands])
        return shlex.join([*(["mkdir", "-p"] if name == "mkdir" else [name]), *paths])

    def _split_parameters(self, words: Sequence[_Word]) -> tuple[dict[str, str | None], list[str]]:
        """The parameters of a cmdlet by their names in lower case, and its operands."""
        options: dict[str, str | None] = {}
        operands: list[str] = []
        waiting = ""
        for word in words:
            if waiting:
                options[waiting], waiting = word.text, ""
            elif not word.is_quoted and re.match(r"-[A-Za-z]", word.text):
                name, has_value, value = word.text[1:].lower().partition(":")
                options[name] = value if has_value and value else None
                waiting = "" if name in _SWITCHES or has_value else name
            elif not (self.is_cmd and not word.is_quoted and _CMD_SWITCHES.fullmatch(word.text)):
                operands.append(word.text)
        return options, operands

    def _write_file_method(self, words: Sequence[_Word], inner: Sequence[_Word]) -> bool:
        """Write the form of `[IO.File]::WriteAllText(path, text)`; false for other calls."""
        method = _FILE_METHOD.search(words[-1].text) if words and not words[-1].is_quoted else None
        arguments = [self._expand(word.text) for word in inner]
        if method is None or not arguments or arguments[0].startswith("$"):
            return False
        path = shlex.quote(_to_path(arguments[0]))
        if method[1].lower() == "readall":
            command = f"cat {path}"
        else:
            operator = ">>" if method[1].lower() == "appendall" else ">"
            is_known = len(inner) == 2 and inner[1].is_quoted and inner[1].text != "(…)"
            command = (
                f"cat {operator} {path}{self._add_body(inner[1].text)}"
                if is_known
                else f"true {operator} {path}"
            )
        self.out.append(command)
        self._end_line(is_needed=True)
        return True

    def _add_body(self, text: str) -> str:
        end = _choose_delimiter(text)
        self.bodies.append((end, text))
        return f" <<'{end}'"

    def _end_line(self, *, is_needed: bool = True) -> None:
        if is_needed:
            self.out.append("\n")
            self.out += [f"{text.rstrip(chr(10))}\n{end}\n" for end, text in self.bodies]
            self.bodies.clear()


def _choose_delimiter(text: str) -> str:
    lines = set(text.split("\n"))
    return next(end for end in (f"END{number or ''}" for number in range(len(lines) + 1)) if end not in lines)


def _to_path(word: str, *, is_literal: bool = False) -> str:
    """A word with slashes if it can be a path of Windows; a quoted one only if it has a drive or begins with a dot."""
    if "\\" not in word or len(word) > 1_000 or not _PATH.fullmatch(word):
        return word
    if is_literal and not re.match(r"[A-Za-z]:\\|\.{1,2}\\", word):
        return word
    return word.replace("\\", "/")
