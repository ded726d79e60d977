"""Which files a Python program writes when it runs, read off its text and off what it printed."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_OPENERS = {"open", "io.open", "codecs.open"}
_MOVES = {"os.rename", "os.replace", "shutil.move"}
_COPIES = {"shutil.copy", "shutil.copyfile", "shutil.copy2"}
_REMOVES = {"os.remove", "os.unlink"}
_SHELLS = {
    "os.system", "os.popen", "subprocess.run", "subprocess.call", "subprocess.check_call",
    "subprocess.check_output", "subprocess.Popen", "subprocess.getoutput",
}  # fmt: skip
_PRINTS = {"print", "sys.exit", "exit", "quit", "SystemExit", "sys.stderr.write", "sys.stdout.write"}
_EFFECTS = {"open", "write_text", "write_bytes", "input", "FileInput"} | {
    name.rpartition(".")[2] for name in (*_MOVES, *_COPIES, *_REMOVES, *_SHELLS)
}
_BINDING = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.Call, ast.FunctionDef)
_OF_THEIR_ARGUMENT = {
    "Path", "pathlib.Path", "str", "os.path.abspath", "os.fspath", "glob.glob", "glob.iglob",
}  # fmt: skip
"""What they return is about what they are given."""
_LONGEST = 200_000
_DEEPEST, _FEW = 8, 4
_LONGEST_TEXT, _MOST_WRITES = 20_000, 200
_CODE_PATH = re.compile(r"^[\w./*-]+\.(?:pyx?|pyi|js|ts|c|h|cpp|go|rs|java|rb|php|html|sh)$")


class Written(NamedTuple):
    """One file that a program writes, and how far its new content is known."""

    path: str
    text: str | None = None
    """The whole new text, or what is appended."""
    appends: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    """`old -> new` on the text it had, if that is all that the program does to it."""


class Program(NamedTuple):
    """What a program does to files, in the order of its text."""

    writes: tuple[Written, ...] = ()
    moves: tuple[tuple[str, str, bool], ...] = ()
    """From, to, and whether the first stays."""
    removes: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    """Command lines that it runs."""


def effects(code: str, argv: Sequence[str], output: str, exit_code: int | None, name: str = "") -> Program:
    """What a run of this Python text did, as its output tells; `name` is how tracebacks call it."""
    if len(code) > _LONGEST:
        return Program()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Program()
    try:
        return _Reader(tree, code, argv, output, exit_code, name).program()
    except RecursionError:
        return Program()


class _Reader:
    """Walks a syntax tree; names stand for every text that is ever assigned to them."""

    def __init__(
        self, tree: ast.Module, code: str, argv: Sequence[str], output: str, exit_code: int | None, name: str
    ) -> None:
        self.tree, self.code, self.argv, self.output = tree, code, tuple(argv), output
        self.exit_code = exit_code
        self.parents: dict[ast.AST, ast.AST] = {}
        binding: list[ast.AST] = []
        waiting: list[ast.AST] = [tree]
        while waiting:
            node = waiting.pop()
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                waiting.append(child)
                if isinstance(child, _BINDING):
                    binding.append(child)
        self.order = sorted(binding, key=lambda n: (getattr(n, "lineno", 0), getattr(n, "col_offset", 0)))
        self.names: dict[str, list[str]] = {}
        self.failed_line = _failed_line(output, name) if exit_code != 0 else None
        self._bind()
        self.heard = self._heard()

    def program(self) -> Program:
        writes: list[Written] = []
        moves: list[tuple[str, str, bool]] = []
        removes: list[str] = []
        shell: list[str] = []
        for node in self.order:
            if not isinstance(node, ast.Call):
                continue
            called = _dotted(node.func)
            if called.rpartition(".")[2] not in _EFFECTS or len(writes) > _MOST_WRITES:
                continue
            if not self._reached(node):
                continue
            if called in _MOVES | _COPIES and len(node.args) >= 2:
                for source in self.texts(node.args[0])[:1]:
                    for target in self.texts(node.args[1])[:1]:
                        moves.append((source, target, called in _COPIES))
            elif called in _REMOVES and node.args:
                removes += self.texts(node.args[0])
            elif called in _SHELLS and node.args:
                shell += self._command_lines(node.args[0])
            else:
                writes += self._written(node, called)
        return Program(tuple(dict.fromkeys(writes)), tuple(moves), tuple(removes), tuple(shell))

    def texts(self, node: ast.AST | None, depth: int = 0) -> list[str]:
        """The texts that an expression may stand for, as far as they can be read off."""
        if depth > _DEEPEST:
            return []
        deeper = depth + 1
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.Name(id=name):
                return self.names.get(name, [])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _joined("", [self.texts(left, deeper), self.texts(right, deeper)])
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return _joined("/", [self.texts(left, deeper), self.texts(right, deeper)])
            case ast.JoinedStr(values=values):
                return _joined("", [self.texts(value, deeper) for value in values])
            case ast.FormattedValue(value=value):
                return self.texts(value, depth)
            case ast.Subscript(value=value, slice=ast.Constant(value=int(index))):
                known = _dotted(value) == "sys.argv" and 0 < index <= len(self.argv)
                return [self.argv[index - 1]] if known else []
            case ast.Call(func=func, args=[_, *_] as arguments):
                return self._returned(_dotted(func), arguments, deeper)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [text for item in items for text in self.texts(item, deeper)]
        return []

    def _returned(self, called: str, arguments: Sequence[ast.expr], depth: int) -> list[str]:
        """The texts that a call may return."""
        if called == "os.path.join":
            return _joined("/", [self.texts(argument, depth)[:1] for argument in arguments])
        return self.texts(arguments[0], depth) if called in _OF_THEIR_ARGUMENT else []

    def _bind(self) -> None:
        functions = {n.name: n for n in self.order if isinstance(n, ast.FunctionDef)}
        for _ in range(2):
            for node in self.order:
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        self._take(target, node.value)
                elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
                    self._take(node.target, node.value)
                elif isinstance(node, ast.For):
                    self._take(node.target, node.iter)
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    function = functions.get(node.func.id)
                    if function is not None:
                        for parameter, argument in zip(function.args.args, node.args, strict=False):
                            self._add(parameter.arg, self.texts(argument))
                        for keyword in node.keywords:
                            self._add(keyword.arg or "", self.texts(keyword.value))

    def _take(self, target: ast.AST, value: ast.AST | None) -> None:
        if isinstance(target, ast.Name):
            self._add(target.id, self.texts(value))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple | ast.List):
            rows = [value] if len(value.elts) == len(target.elts) else []
            rows += [item for item in value.elts if isinstance(item, ast.Tuple | ast.List)]
            for row in rows:
                for name, item in zip(target.elts, row.elts, strict=False):
                    self._take(name, item)

    def _add(self, name: str, texts: Iterable[str]) -> None:
        known = self.names.setdefault(name, [])
        known += [text for text in texts if text not in known and len(known) < 50]

    def _written(self, node: ast.Call, called: str) -> list[Written]:
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if called in _OPENERS and node.args:
            mode = self._mode(node, 1)
            paths = node.args[0]
        elif method == "open" and called not in _OPENERS and isinstance(node.func, ast.Attribute):
            mode, paths = self._mode(node, 0), node.func.value
        elif method in ("write_text", "write_bytes") and isinstance(node.func, ast.Attribute):
            text = (
                self.texts(node.args[0])[:1] if node.args and isinstance(node.args[0], ast.Constant) else []
            )
            return self._with_content(self.texts(node.func.value), text[0] if text else None, False)
        elif called == "fileinput.input" or called == "fileinput.FileInput":
            inplace = any(k.arg == "inplace" for k in node.keywords)
            return self._with_content(self.texts(node.args[0]) if inplace and node.args else [], None, False)
        else:
            return []
        if not set(mode) & set("wax+"):
            return []
        found = self.texts(paths)
        if not found:
            # Computed at run time: the program's own texts that look like code files are what it is about.
            found = [t for texts in self.names.values() for t in texts if _CODE_PATH.match(t) and "/" in t]
        return self._with_content(found, None, "a" in mode)

    def _with_content(self, paths: Iterable[str], text: str | None, appends: bool) -> list[Written]:
        replacements = self._replacements() if text is None and not appends else ()
        return [Written(path, text, appends, replacements) for path in dict.fromkeys(paths) if path]

    def _mode(self, node: ast.Call, position: int) -> str:
        given = next((k.value for k in node.keywords if k.arg == "mode"), None)
        if given is None and len(node.args) > position:
            given = node.args[position]
        return (self.texts(given) or ["r"])[0] if given is not None else "r"

    def _replacements(self) -> tuple[tuple[str, str], ...]:
        """All `replace` calls of constant texts, if the program changes texts in no other way."""
        if re.search(r"\bre\.sub|readlines|splitlines|\.insert\(|\.write\(f?[\"']|\.format\(", self.code):
            return ()
        found: list[tuple[str, str]] = []
        for node in self.order:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "replace"
                and len(node.args) >= 2
            ):
                old, new = self.texts(node.args[0]), self.texts(node.args[1])
                if len(old) != 1 or len(new) != 1:
                    return ()
                found.append((old[0], new[0]))
        return tuple(found)

    def _command_lines(self, node: ast.AST) -> list[str]:
        if isinstance(node, ast.List | ast.Tuple):
            words = [self.texts(item)[:1] for item in node.elts]
            import shlex

            return [shlex.join(word[0] for word in words)] if words and all(words) else []
        return self.texts(node)[:4]

    def _reached(self, node: ast.AST) -> bool:
        """Whether the run came here, as far as its prints and its traceback tell."""
        line = getattr(node, "lineno", 0)
        if self._went_on(node):
            return True
        if self.failed_line is not None and line >= self.failed_line and not self._in_function(node):
            return False
        child, parent = node, self.parents.get(node)
        while parent is not None:
            if isinstance(parent, ast.If) and child is not parent.test:
                inside = parent.body if child in parent.body else parent.orelse
                other = parent.orelse if inside is parent.body else parent.body
                if self._printed(other) and not self._printed(inside):
                    return False
            for block in ("body", "orelse", "finalbody"):
                statements = getattr(parent, block, None)
                if isinstance(statements, list) and child in statements:
                    for earlier in statements[: statements.index(child)]:
                        if isinstance(earlier, ast.If) and self._left_at(earlier):
                            return False
            child, parent = parent, self.parents.get(parent)
        return True

    def _went_on(self, node: ast.AST) -> bool:
        """Whether something behind it in its own block was printed."""
        child, parent = node, self.parents.get(node)
        while parent is not None and not isinstance(child, ast.stmt):
            child, parent = parent, self.parents.get(parent)
        if isinstance(parent, ast.With) and child in parent.body:
            child, parent = parent, self.parents.get(parent)
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(parent, block, None)
            if isinstance(statements, list) and child in statements:
                behind = statements[statements.index(child) + 1 :]
                return self._printed([s for s in behind if isinstance(s, ast.Expr)])
        return False

    def _in_function(self, node: ast.AST) -> bool:
        parent = self.parents.get(node)
        while parent is not None and not isinstance(parent, ast.FunctionDef):
            parent = self.parents.get(parent)
        return parent is not None

    def _left_at(self, branch: ast.If) -> bool:
        for block in (branch.body, branch.orelse):
            if not block:
                continue
            last = block[-1]
            leaves = isinstance(last, ast.Return | ast.Raise | ast.Continue) or (
                isinstance(last, ast.Expr)
                and isinstance(last.value, ast.Call)
                and _dotted(last.value.func) in ("sys.exit", "exit", "quit", "os._exit")
            )
            if leaves and self._printed(block):
                return True
        return False

    def _printed(self, block: Sequence[ast.AST]) -> bool:
        """Whether a text that only this block prints stands in the output."""
        return any(statement in self.heard for statement in block)

    def _heard(self) -> set[ast.AST]:
        """The statements in which something is printed that stands in the output."""
        heard: set[ast.AST] = set()
        for node in self.order:
            if not isinstance(node, ast.Call) or _dotted(node.func) not in _PRINTS:
                continue
            shown = any(len(text) >= 4 and text in self.output for text in self._constants(node))
            above: ast.AST | None = node if shown else None
            while above is not None:
                heard.add(above)
                above = self.parents.get(above)
        return heard

    def _constants(self, call: ast.Call) -> list[str]:
        found = []
        for argument in call.args:
            for node in ast.walk(argument):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(max(node.value.split("\n"), key=len).strip())
        return found


def _joined(joint: str, parts: Sequence[Sequence[str]]) -> list[str]:
    """Texts put together from one of each part, in few of all ways; none where a part has none."""
    texts = _bounded(parts[0][:_FEW]) if parts else [""]
    for part in parts[1:]:
        texts = _bounded(text + joint + more for text in texts[:_FEW] for more in part[:_FEW])
    return texts


def _bounded(texts: Iterable[str]) -> list[str]:
    """Texts put together from others, as long as no program means them to grow without end."""
    return [text for text in texts if len(text) <= _LONGEST_TEXT]


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ""


def _failed_line(output: str, name: str) -> int | None:
    """The line of the program's own text that a traceback in the output ends at."""
    if "Traceback (most recent call last)" not in output and "Error" not in output:
        return None
    lines = re.findall(rf'File "(?:[^"\n]*/)?{re.escape(name)}", line (\d{{1,7}})', output)
    if not lines:
        return (
            0
            if re.search(r"^\w*Error: ", output, re.M) and re.search(r"SyntaxError|Indentation", output)
            else None
        )
    return int(lines[0])
