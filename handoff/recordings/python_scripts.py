"""Files that a Python program writes, inferred from its text and its output."""

from __future__ import annotations

import ast
import posixpath
import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice, pairwise, product
from typing import NamedTuple

from langgraph_takeover.handoff.text.word_search import contains_any

_MOVE_CALLS = {"os.rename", "os.replace", "shutil.move"}
_COPY_CALLS = {"shutil.copy", "shutil.copyfile", "shutil.copy2"}
_REMOVE_CALLS = {"os.remove", "os.unlink"}
_MAKE_CALLS = {"os.mkdir", "os.makedirs"}
_EXIT_CALLS = {"sys.exit", "exit", "quit", "os._exit"}
_PRINT_CALLS = _EXIT_CALLS | {"print", "SystemExit", "sys.stderr.write", "sys.stdout.write"}
_PATH_CONVERSIONS = {"Path", "pathlib.Path", "str"}
"""Calls whose result is the same path as their argument."""
_OTHER_TEXT_CHANGES = re.compile(
    r"\bre\.sub|readlines|splitlines|\.insert\(|\.write(?:_text)?\(f?[\"']|\.format\(|, ?[\"']a[\"'+b]"
)
_CODE_PATH = re.compile(r"^[\w./*-]+\.(?:pyx?|pyi|js|ts|c|h|cpp|go|rs|java|rb|php|html|sh)$")
_QUOTED_CODE_PATH = re.compile(r"['\"]([\w./-]{1,200}\.\w{1,5})['\"]")
_WRITING_CALL = re.compile(r"open\([^()\n]{1,200}['\"][wax]\+?['\"]|\.write_text\(")
_EFFECT_STEMS = (
    "open", "write_", "fileinput", "rename", "replace", "shutil", "remove", "unlink", "mkdir", "makedirs",
)  # fmt: skip
"""A program without any of these stems changes no file in a way that is known here."""
_UNKNOWN = "?"
_BLOCKS = ("body", "orelse", "finalbody")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BINDING_NODES = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For)
"""Nodes that may give a name a value, apart from calls of the program's own functions."""
_LEAF_NODES = (ast.Name, ast.Constant, ast.alias)
_LEAF_FIELDS = frozenset(("ctx", "op", "ops", "id", "attr", "kind", "type_comment"))
_MAX_CODE_CHARS, _MAX_TEXT_CHARS = 200_000, 20_000
_MAX_COMBINATIONS, _MAX_TEXTS_PER_NAME, _MAX_WRITES = 4, 50, 200


class FileWrite(NamedTuple):
    """A file that a program writes, and its complete new text if that is a constant."""

    path: str
    text: str | None = None


class ProgramEffects(NamedTuple):
    """Files that one run of a program changed."""

    writes: tuple[FileWrite, ...] = ()
    replacements: tuple[tuple[str, str], ...] = ()
    """Pairs of old and new text, if replacements are the only changes of the written files."""
    moves: tuple[tuple[str, str, bool], ...] = ()
    """Source, target, and whether the source remains."""
    removes: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    """Directories that the program makes."""


def analyze_program(
    code: str, argv: Sequence[str], output: str, exit_code: int | None, name: str
) -> ProgramEffects:
    """Infer the effects of a run of a Python program; `name` is its file name in tracebacks."""
    if len(code) > _MAX_CODE_CHARS or not _may_have_effects(code):
        return ProgramEffects()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
        failed_lines = _find_failed_lines(output, name)
        return _ProgramAnalyzer(tree, argv, output, failed_lines, is_caught=exit_code == 0).analyze(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ProgramEffects()


def list_written_paths(code: str) -> dict[str, bool]:
    """Paths that a Python program may write, as far as its text names them, and whether it reads them too.

    Without those below directories that it makes; of a broken program all quoted paths.
    """
    if len(code) > _MAX_CODE_CHARS or not _may_have_effects(code):
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
        return _ProgramAnalyzer(tree, (), "", {}, is_caught=True).list_named_paths()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return dict.fromkeys(_QUOTED_CODE_PATH.findall(code), True) if _WRITING_CALL.search(code) else {}


def _may_have_effects(code: str) -> bool:
    """Whether a program may change files; a check without parsing and without false negatives."""
    # Python compares identifiers in this normal form.
    return contains_any(unicodedata.normalize("NFKC", code), _EFFECT_STEMS)


class _ProgramAnalyzer:
    """Walks a syntax tree; a name stands for all texts that are assigned to it."""

    def __init__(
        self,
        tree: ast.Module,
        argv: Sequence[str],
        output: str,
        failed_lines: Mapping[str, int],
        *,
        is_caught: bool,
    ) -> None:
        self.nodes = _list_nodes(tree)
        self.argv, self.output = argv, output
        self.failed_lines, self.is_caught = failed_lines, is_caught
        self.calls = [(_dotted_name(node.func), node) for node in self.nodes if isinstance(node, ast.Call)]
        self.functions = {node.name: node for node in self.nodes if isinstance(node, ast.FunctionDef)}
        self.names: dict[str, list[str]] = {}
        binding_nodes = [
            node
            for node in self.nodes
            if isinstance(node, _BINDING_NODES)
            or (isinstance(node, ast.Call) and getattr(node.func, "id", None) in self.functions)
        ]
        # Two passes, because a name may be assigned after a function that uses it.
        for node in (*binding_nodes, *binding_nodes):
            self._bind(node)
        changes = [call for name, call in self.calls if name in ("os.chdir", "chdir")]
        self.directories = [
            text
            for call in changes
            for text in (self.list_texts(call.args[0]) if call.args else []) or [_UNKNOWN]
        ]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in _list_children(node)}

    @cached_property
    def calls_by_name(self) -> dict[str, list[ast.Call]]:
        """The calls by the last part of the function's name."""
        calls: dict[str, list[ast.Call]] = {}
        for name, call in self.calls:
            calls.setdefault(name.rpartition(".")[2], []).append(call)
        return calls

    def analyze(self, code: str) -> ProgramEffects:
        writes: list[FileWrite] = []
        moves: list[tuple[str, str, bool]] = []
        removes: list[str] = []
        for call_name, call in self.calls:
            path_nodes = self._list_written_paths(call, call_name)
            is_move = call_name in _MOVE_CALLS | _COPY_CALLS
            removed_nodes = call.args[:1] if call_name in _REMOVE_CALLS else []
            exceeds_limit = len(writes) + len(moves) + len(removes) > _MAX_WRITES
            if exceeds_limit or not (path_nodes or is_move or removed_nodes) or not self._is_reached(call):
                continue
            text = self._constant_text(call)
            for node in path_nodes:
                writes += [FileWrite(path, text) for path in self.list_texts(node) or self._list_code_paths()]
            for node in removed_nodes:
                removes += self.list_texts(node)
            if is_move:
                ends = product(*(self.list_texts(node)[:1] for node in call.args[:2]))
                moves += [(end[0], end[1], call_name in _COPY_CALLS) for end in ends if len(end) == 2]
        writes = [write._replace(path=path) for write in writes for path in self._resolve(write.path)]
        moves = [
            (a, b, keeps)
            for source, target, keeps in moves
            for a in self._resolve(source)
            for b in self._resolve(target)
        ]
        removes = [path for name in removes for path in self._resolve(name)]
        unique_writes = tuple(dict.fromkeys(write for write in writes if write.path))
        return ProgramEffects(
            unique_writes,
            self._list_replacements(code),
            tuple(moves),
            tuple(removes),
            self._list_made_directories(),
        )

    def _list_made_directories(self) -> tuple[str, ...]:
        calls = [call for call_name, call in self.calls if call_name in _MAKE_CALLS]
        names = (name for call in calls for name in (self.list_texts(call.args[0]) if call.args else ()))
        return tuple(dict.fromkeys(posixpath.normpath(name) for name in names if name))

    def _resolve(self, path: str) -> list[str]:
        """A path as the program sees it after `os.chdir`; none if the directory is unknown."""
        if path.startswith("/") or not self.directories:
            return [path]
        return [] if _UNKNOWN in self.directories else [posixpath.join(self.directories[0], path)]

    def list_named_paths(self) -> dict[str, bool]:
        """The paths of `list_written_paths`."""
        written: list[ast.expr] = []
        read: list[ast.expr] = []
        for call_name, call in self.calls:
            paths = self._list_written_paths(call, call_name)
            written += paths
            written += call.args[1:2] if call_name in _MOVE_CALLS | _COPY_CALLS else []
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("read_text", "read_bytes"):
                read.append(call.func.value)
            elif call_name in ("open", "io.open", "codecs.open", "fileinput.input"):
                read += call.args[:1] if not paths or call_name == "fileinput.input" else []
        made = tuple(f"{directory}/" for directory in self._list_made_directories())
        names = (path for node in written for name in self.list_texts(node) for path in self._resolve(name))
        read_names = {path for node in read for name in self.list_texts(node) for path in self._resolve(name)}
        return {path: path in read_names for path in names if not path.startswith(made)}

    def _list_code_paths(self) -> list[str]:
        """Code files named by variables, as candidates for a path computed at run time."""
        texts = (text for texts in self.names.values() for text in texts)
        return [text for text in texts if _CODE_PATH.match(text) and "/" in text]

    @staticmethod
    def _constant_text(call: ast.Call) -> str | None:
        match call:
            case ast.Call(func=ast.Attribute(attr="write_text"), args=[ast.Constant(value=str(text)), *_]):
                return text
        return None

    def list_texts(self, node: ast.AST | None) -> list[str]:
        """Texts that an expression may evaluate to, as far as known."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.Name(id=name):
                return self.names.get(name, [])
            case ast.BinOp(left=left, op=ast.Add() | ast.Div() as op, right=right):
                joint = "/" if isinstance(op, ast.Div) else ""
                return _join_texts(joint, [self.list_texts(left), self.list_texts(right)])
            case ast.JoinedStr(values=values):
                return _join_texts("", [self.list_texts(value) for value in values])
            case ast.FormattedValue(value=value):
                return self.list_texts(value)
            case ast.Subscript(value=value, slice=index) if _dotted_name(value) == "sys.argv":
                number = index.value if isinstance(index, ast.Constant) else None
                return list(self.argv[number - 1 : number] if isinstance(number, int) else self.argv)
            case ast.Call(func=func, args=[_, *_] as arguments) if _dotted_name(func) == "os.path.join":
                return _join_texts("/", [self.list_texts(argument) for argument in arguments])
            case ast.Call(func=func, args=[argument, *_]) if _dotted_name(func) in _PATH_CONVERSIONS:
                return self.list_texts(argument)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [text for item in items for text in self.list_texts(item)]
        return []

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
            ):
                self._assign(target, value)
            case ast.For(target=target, iter=value):
                self._assign(target, value)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                for parameter, argument in zip(self.functions[name].args.args, arguments, strict=False):
                    self._assign(ast.Name(parameter.arg), argument)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        """Bind a name to all texts of a value, and a tuple of names to each row of the value."""
        match target, value:
            case ast.Name(id=name), _:
                known = self.names.setdefault(name, [])
                known += [
                    text
                    for text in self.list_texts(value)
                    if text not in known and len(known) < _MAX_TEXTS_PER_NAME
                ]
            case ast.Tuple(elts=parts), ast.Tuple(elts=items) | ast.List(elts=items):
                rows = [item.elts for item in items if isinstance(item, ast.Tuple | ast.List)]
                for row in rows or [items]:
                    for part, item in zip(parts, row, strict=False):
                        self._assign(part, item)

    def _list_written_paths(self, call: ast.Call, call_name: str) -> list[ast.expr]:
        """Expressions of the paths that a call writes."""
        function, arguments = call.func, call.args
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if call_name in ("open", "io.open", "codecs.open"):
            path, modes = arguments[:1], arguments[1:2]
        elif isinstance(function, ast.Attribute) and function.attr == "open":
            path, modes = [function.value], arguments[:1]
        elif isinstance(function, ast.Attribute) and function.attr in ("write_text", "write_bytes"):
            return [function.value]
        elif call_name in ("fileinput.input", "fileinput.FileInput"):
            return arguments[:1] if "inplace" in keywords else []
        else:
            return []
        modes = [keywords["mode"]] if "mode" in keywords else modes
        return path if any(set("wax+") & set(mode) for m in modes for mode in self.list_texts(m)[:1]) else []

    def _list_replacements(self, code: str) -> tuple[tuple[str, str], ...]:
        """All `replace` calls with constant texts, if the program changes texts in no other way."""
        if _OTHER_TEXT_CHANGES.search(code):
            return ()
        replacements: list[tuple[str, str]] = []
        for _, call in self.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "replace" and len(call.args) >= 2:
                old, new = self.list_texts(call.args[0]), self.list_texts(call.args[1])
                if len(old) != 1 or len(new) != 1:
                    return ()
                replacements.append((old[0], new[0]))
        return tuple(replacements)

    def _is_reached(self, node: ast.AST) -> bool:
        """Whether the run reached a node, judged by its output and its traceback."""
        ancestors = self._list_ancestors(node)
        if self.failed_lines and not self._is_before_failure(node):
            return False
        for child, parent in pairwise(ancestors):
            blocks = [b for b in (getattr(parent, name, None) for name in _BLOCKS) if isinstance(b, list)]
            own_block = next((block for block in blocks if child in block), None)
            if own_block is None:
                continue
            if isinstance(parent, ast.Try) and own_block is not parent.finalbody:
                was_caught = any(self._did_print(handler.body) for handler in parent.handlers)
                if was_caught and not self._did_print(own_block[own_block.index(child) :]):
                    return False
            if any(self._did_exit(earlier) for earlier in own_block[: own_block.index(child)]):
                return False
            others = (
                [block for block in blocks if block is not own_block] if isinstance(parent, ast.If) else []
            )
            if any(map(self._did_print, others)) and not self._did_print(own_block):
                return False
        return True

    def _list_ancestors(self, node: ast.AST) -> list[ast.AST]:
        """A node and everything around it, from the inside out."""
        ancestors = [node]
        while ancestors[-1] in self.parents:
            ancestors.append(self.parents[ancestors[-1]])
        return ancestors

    def _is_before_failure(self, node: ast.AST) -> bool:
        """Whether the run reached a node before the line at which it failed, in the module or by a call of its function."""
        pending, seen = [node], {node}
        while pending:
            ancestors = self._list_ancestors(pending.pop())
            line = getattr(ancestors[0], "lineno", 0)
            scope = next((n.name for n in ancestors if isinstance(n, _FUNCTIONS)), "<module>")
            failed_line = self.failed_lines.get(scope)
            is_before = failed_line is not None and line < failed_line
            if is_before or self._did_print_after(ancestors):
                return True
            if self.is_caught and failed_line is not None and not self._shares_try(ancestors, failed_line):
                return True
            calls = self.calls_by_name.get(scope, ())
            if failed_line is None and (scope == "<module>" or not calls):
                return True
            pending += [call for call in calls if call not in seen]
            seen.update(calls)
        return False

    def _did_print_after(self, ancestors: Sequence[ast.AST]) -> bool:
        """Whether the run printed in a statement that follows a node in its block."""
        for child, parent in pairwise(ancestors):
            for block in (getattr(parent, name, None) for name in _BLOCKS):
                if isinstance(block, list) and child in block:
                    return self._did_print(block[block.index(child) + 1 :])
        return False

    @staticmethod
    def _shares_try(ancestors: Sequence[ast.AST], failed_line: int) -> bool:
        """Whether the body of a `try` around a node contains the failed line."""
        return any(
            isinstance(parent, ast.Try)
            and child in parent.body
            and parent.body[0].lineno <= failed_line <= (parent.body[-1].end_lineno or 0)
            for child, parent in pairwise(ancestors)
        )

    def _did_exit(self, statement: ast.stmt) -> bool:
        """Whether the run printed in a branch that ends the program, the function or the iteration."""
        if not isinstance(statement, ast.If):
            return False
        return any(
            self._did_print(block)
            and (
                isinstance(block[-1], ast.Return | ast.Raise | ast.Continue)
                or (
                    isinstance(block[-1], ast.Expr)
                    and isinstance(block[-1].value, ast.Call)
                    and _dotted_name(block[-1].value.func) in _EXIT_CALLS
                )
            )
            for block in (statement.body, statement.orelse)
        )

    def _did_print(self, block: Sequence[ast.AST]) -> bool:
        """Whether the output contains a text that a block prints."""
        return any(statement in self.printed_statements for statement in block)

    @cached_property
    def printed_statements(self) -> set[ast.AST]:
        """The calls that printed a text of the output, and everything around them."""
        statements: set[ast.AST] = set()
        for call_name, call in self.calls:
            if call_name not in _PRINT_CALLS:
                continue
            constants = (n.value for a in call.args for n in _list_nodes(a) if isinstance(n, ast.Constant))
            lines = (max(c.split("\n"), key=len).strip() for c in constants if isinstance(c, str))
            node: ast.AST | None = call if any(len(t) >= 4 and t in self.output for t in lines) else None
            while node is not None:
                statements.add(node)
                node = self.parents.get(node)
        return statements


def _list_nodes(root: ast.AST) -> list[ast.AST]:
    """A node and everything below it, level by level."""
    nodes = [root]
    for node in nodes:
        nodes += _list_children(node)
    return nodes


def _list_children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below a node, without operators and contexts."""
    children: list[ast.AST] = []
    if isinstance(node, _LEAF_NODES):
        return children
    for name in node._fields:
        if name in _LEAF_FIELDS:
            continue
        value = getattr(node, name, None)
        if isinstance(value, list):
            children += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST):
            children.append(value)
    return children


def _join_texts(separator: str, parts: Iterable[Sequence[str]]) -> list[str]:
    """Join one text of each part, in a limited number of combinations and up to a maximum length."""
    combinations = islice(product(*(part[:_MAX_COMBINATIONS] for part in parts)), _MAX_COMBINATIONS)
    return [
        separator.join(combination)
        for combination in combinations
        if sum(map(len, combination)) <= _MAX_TEXT_CHARS
    ]


def _dotted_name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{_dotted_name(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def _find_failed_lines(output: str, name: str) -> Mapping[str, int]:
    """Lines at which a program failed, by function, according to its first traceback; 0 in a syntax error, empty without one."""
    lines: dict[str, int] = {}
    frame = rf'File "(?:[^"\n]*/)?{re.escape(name)}", line (\d{{1,7}})(?:, in (\S+))?'
    for line in output.splitlines() if name in output else ():
        found = re.match(frame, line.lstrip(" ")) if line.startswith(" ") else None
        if found:
            lines[found[2] or "<module>"] = int(found[1]) if found[2] else 0
        elif lines and line[:1].strip():
            break
    may_be_broken = not lines and ("SyntaxError: " in output or "IndentationError: " in output)
    if may_be_broken and re.search(r"^(?:Syntax|Indentation)Error: ", output, re.M):
        return {"<module>": 0}
    return lines
