"""File changes of single actions: of command lines, from their words and output, and of editors."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.recordings import file_programs, in_place_edits, python_scripts
from langgraph_takeover.handoff.recordings.command_lines import CommandLine, ExpandedCommand, list_operands
from langgraph_takeover.handoff.recordings.file_programs import find_input_text
from langgraph_takeover.handoff.recordings.inferred_content import (
    Content,
    add_opaque_change,
    fingerprint,
    insert_lines,
    known_content,
    replace_lines,
    replace_text,
    unknown_content,
)
from langgraph_takeover.handoff.recordings.inferred_files import InferredFiles
from langgraph_takeover.handoff.recordings.tool_calls import parse_replacement
from langgraph_takeover.handoff.shell.command_effects import find_effect, may_edit
from langgraph_takeover.handoff.shell.runners import find_python_target
from langgraph_takeover.handoff.shell.syntax import SimpleCommand, resolve_path
from langgraph_takeover.handoff.shell.syntax_reader import (
    find_executed_part,
    find_place_after,
    parse_command,
)
from langgraph_takeover.sandbox.interface import FileChange

SHELLS = {"bash", "sh", "zsh", "source", "."}
_READS_FILES = re.compile(
    r"\.read\(|\.read_text\(|readlines|fileinput|for \w+ in (?:f|file|fin|src|infile)\b"
    r"|open\((?:(?!open\()[^)])*['\"](?:r[+bt]*|a[+bt]*)['\"]"
)


def run_python(line: CommandLine, part: ExpandedCommand) -> None:
    """Apply a Python program given as text, on standard input, as a module or as a file."""
    target = find_python_target(part.command.argv[1:])
    if target is None:
        argv = list(part.command.argv[2:]) if part.command.argv[1:2] == ("-",) else []
        code, name = find_input_text(line, part), "<stdin>"
    elif target[0] == "-c":
        argv = list(target[2:])
        code, name = target[1], "<string>"
    else:
        is_module = target[0] == "-m"
        script = target[1].replace(".", "/") + ".py" if is_module else target[0]
        path = line.files.resolve_path(script, part.cwd)
        code, name = _find_written_text(line, path), posixpath.basename(path)
        argv = list(target[2 if is_module else 1 :])
    if code is None:
        return
    if line.timed_out and (part.position == len(line.commands) - 1 or not line.text.strip()):
        return  # a killed program is assumed to have written nothing
    _apply_program(line, part, code, argv, name)


def run_script(line: CommandLine, part: ExpandedCommand) -> None:
    """Apply a script that is run by a shell or directly."""
    names = list_operands(part.words) if part.command.name in SHELLS else [part.command.argv[0]]
    path = line.files.resolve_path(names[0], part.cwd) if names else ""
    text = _find_written_text(line, path)
    if text is None:
        return
    if path.endswith(".py") or re.match(r"#!.*python", text):
        _apply_program(line, part, text, part.words, posixpath.basename(path))
    else:
        line.run_nested(text)


def _find_written_text(line: CommandLine, path: str) -> str | None:
    """The text of a file that the agent wrote, if known."""
    return line.files.text(path) if path in line.files.touched_contents else None


def _apply_program(
    line: CommandLine, part: ExpandedCommand, code: str, argv: Sequence[str], name: str
) -> None:
    exit_code = line.exit_code if part.command.exit_code_is_own else None
    effects = python_scripts.analyze_program(code, argv, line.text, exit_code, name)
    program = fingerprint(code, *argv)
    for write in effects.writes:
        path = line.files.resolve_path(write.path, part.cwd)
        is_new = not line.files.exists(path)
        is_made = any(write.path.startswith(f"{directory}/") for directory in effects.directories)
        reads_files = bool(effects.replacements) or (not is_made and _READS_FILES.search(code) is not None)
        is_created = is_new and (path in line.files.touched_contents or not reads_files)
        if (
            is_new
            and (is_created or write.text is not None)
            and path not in line.files.touched_contents
            and "/" in path
        ):
            line.files.make_directory(path)
        if write.text is not None:
            line.write_file(path, known_content(write.text))
            continue
        if is_created:
            line.write_file(path, unknown_content(f"created:{program}:{path}"))
            continue
        content = line.content_or_empty(path)
        for old, new in effects.replacements:
            content = replace_text(content, line.files.known_lines, old, new)
        line.edit_file(path, content if effects.replacements else add_opaque_change(content, program))
    for source, target, keep_source in effects.moves:
        file_programs.move_paths(line, [source, target], part.cwd, keep_source=keep_source)
    file_programs.remove_paths(line, effects.removes, part.cwd)


_MAX_DEPTH = 3
_HANDLERS: dict[str, Callable[[CommandLine, ExpandedCommand], None]] = {
    **dict.fromkeys(in_place_edits.FORMATTERS, in_place_edits.format_files),
    **dict.fromkeys(("sed", "perl", "ruby", "find"), in_place_edits.edit_in_place),
    **dict.fromkeys(("patch", "apply_patch"), file_programs.apply_patch),
    **dict.fromkeys(("mv", "cp", "install"), file_programs.run_move),
    **dict.fromkeys(("rm", "unlink"), file_programs.run_remove),
    **dict.fromkeys(SHELLS, run_script),
    "git": file_programs.run_git,
    "mkdir": file_programs.run_mkdir,
    "touch": file_programs.run_touch,
}
_CD_FAILURES = ("cd: ", "cd: no such file or directory: ", "can't cd to ")
_PRINT_PROGRAMS = {"cat", "tee", "echo", "printf"}


def find_directory_after(command: str, cwd: str | None) -> str | None:
    """The directory of a shell after a command line; None if unknown."""
    place = find_place_after(command)
    if not place.is_known or place.path is None:
        return cwd if place.is_known else None
    return place.path if cwd is None else resolve_path(place.path, cwd)


def has_failed_cd(commands: Sequence[SimpleCommand], output: str) -> bool:
    """Whether the output says that a `cd` of the command line failed."""
    if "cd: " not in output and "can't cd" not in output:
        return False
    targets = (each.argv[-1] for each in commands if each.name in ("cd", "pushd"))
    return any(f"{phrase}{target}" in output for target in targets for phrase in _CD_FAILURES)


def apply_command_line(
    files: InferredFiles, command: str, text: str, exit_code: int | None, timed_out: bool, depth: int = 0
) -> set[str]:
    """Apply a command line to the files and return the touched paths."""

    def run_nested(inner: str) -> set[str]:
        return (
            apply_command_line(files, inner, text, exit_code, False, depth + 1)
            if depth < _MAX_DEPTH
            else set()
        )

    executed = find_executed_part(command, text)
    # If Bash stopped at a syntax error, the exit code is that of the parser.
    code = exit_code if executed == command else None
    line = CommandLine(files, executed, text, code, timed_out=timed_out, run_nested=run_nested)
    for position in range(len(line.commands)):
        if line.did_run(position):
            _apply_command(line, line.expand_command(position))
    return line.touched_paths


def _apply_command(line: CommandLine, part: ExpandedCommand) -> None:
    name = part.command.name
    if name in _PRINT_PROGRAMS:
        file_programs.run_printer(line, part)
        return
    if name.startswith(("python", "pypy")):
        run_python(line, part)
    elif name in _HANDLERS:
        _HANDLERS[name](line, part)
    elif "/" in part.command.argv[0] or name.endswith(".sh"):
        run_script(line, part)
    file_programs.write_redirects(line, part)


_SHOWING_PROGRAM = re.compile(r"\b(?:cat|sed|head|nl|grep|tail)\b")
_SILENT_PROGRAMS = {"cd", "rm", "mv", "cp", "mkdir", "export", "true", "touch"}
_NUMBERED_LINE = re.compile(r"^[ ]{0,6}(\d{1,6})(?:\t|[:-])(.*)$")
_TABBED_LINE = re.compile(r"^[ ]{0,6}(\d{1,6})\t(.*)$")
_PRINT_COMMAND = re.compile(r"^(\d+)(?:,(\d+|\$))?p$")
_ELISIONS = ("elided_chars", "characters left out", "[... ", "<response clipped>", "truncated")
_MAX_LINES = 3000


def learn_from_editor(files: InferredFiles, arguments: Mapping[str, str], text: str) -> None:
    """Learn the numbered lines that an editor showed of its file."""
    path = arguments.get("path", "")
    if path:
        _learn_numbered_lines(
            files,
            files.resolve_path(path),
            [m for line in text.split("\n") if (m := _TABBED_LINE.match(line))],
        )


def learn_from_shell(files: InferredFiles, command: str, text: str) -> None:
    """Learn the lines that a command line showed, if exactly one of its pipelines prints."""
    if (
        len(command) > 4000
        or not _SHOWING_PROGRAM.search(command)
        or any(notice in text for notice in _ELISIONS)
    ):
        return
    pipeline, lines = _find_printing_pipeline(parse_command(command)), _split_shown_lines(text)
    names = [word for word in pipeline[0].argv[1:] if not word.startswith("-")] if pipeline else []
    if not names or not lines:
        return
    first = pipeline[0]
    path = files.resolve_path(names[-1], _find_directory(files, first))
    if first.name == "grep" and _has_flag(first, "n"):
        if len(names) == 2:
            _learn_numbered_lines(files, path, _match_numbered_lines(lines))
    elif first.name == "nl" or (first.name == "cat" and _has_flag(first, "n")):
        _learn_numbered_lines(files, path, _match_numbered_lines(lines))
    else:
        _learn_lines(files, path, _find_first_line(pipeline), lines)


def _find_printing_pipeline(commands: Sequence[SimpleCommand]) -> Sequence[SimpleCommand]:
    """The only pipeline that prints to the terminal; empty without exactly one."""
    printing = [command for command in commands if command.stage == 0 and not _is_silent(command)]
    if (
        len(printing) != 1
        or printing[0].is_repeated
        or any(">" in redirect.operator for redirect in printing[0].redirects)
    ):
        return ()
    first = printing[0]
    later = commands[commands.index(first) + 1 :]
    return (first, *(command for command in later if command.stage > 0))[: first.stages]


def _split_shown_lines(text: str) -> list[str]:
    """Split an output into lines; empty if it is too long or reports a missing file."""
    lines = text.removesuffix("\n").split("\n")
    is_unusable = (
        not text or len(lines) > _MAX_LINES or re.search(r": No such file|: command not found", lines[0])
    )
    return [] if is_unusable else lines


def _find_directory(files: InferredFiles, command: SimpleCommand) -> str:
    cwd = files.cwd or ""
    if command.cwd is None:
        return cwd
    return f"{cwd}/{command.cwd}" if cwd else command.cwd


def _match_numbered_lines(lines: Sequence[str]) -> list[re.Match[str]]:
    return [match for line in lines if (match := _NUMBERED_LINE.match(line))]


def _learn_lines(files: InferredFiles, path: str, begin: int | None, lines: Sequence[str]) -> None:
    """Learn lines of a file from number `begin`; 0 means the complete file."""
    content = files.content(path)
    if begin is None or content is None:
        return
    files.mark_base_file(path)
    if begin == 0:
        files.known_lines.learn_file(content, lines)
    else:
        files.known_lines.learn(content, begin, lines)


def _learn_numbered_lines(files: InferredFiles, path: str, matches: Sequence[re.Match[str]]) -> None:
    content = files.content(path)
    if content is not None and matches:
        files.mark_base_file(path)
        lines = [(int(match[1]), match[2]) for match in matches[:_MAX_LINES]]
        files.known_lines.learn_numbered(content, lines)


def _find_first_line(pipeline: Sequence[SimpleCommand]) -> int | None:
    """The number of the first line that is shown; 0 for a complete file, None if unknown."""
    first = pipeline[0]
    options = [w for w in first.argv[1:] if w.startswith("-")]
    if first.name == "cat" and not options:
        if len(pipeline) == 1:
            return 0 if len(first.argv) == 2 else None
        second = pipeline[1]
        if len(pipeline) == 2 and second.name == "sed":
            return _find_first_printed_line(second)
        return 1 if len(pipeline) == 2 and second.name == "head" else None
    if len(pipeline) > 1:
        return None
    if first.name == "sed":
        return _find_first_printed_line(first)
    return 1 if first.name == "head" and not _has_flag(first, "c") else None


def _find_first_printed_line(command: SimpleCommand) -> int | None:
    if not _has_flag(command, "n"):
        return None
    programs = [w for w in command.argv[1:] if not w.startswith("-")]
    match = _PRINT_COMMAND.match(programs[0]) if programs else None
    return int(match[1]) if match else None


def _has_flag(command: SimpleCommand, letter: str) -> bool:
    return any(re.fullmatch(rf"-\w*{letter}\w*", w) for w in command.argv[1:])


def _is_silent(command: SimpleCommand) -> bool:
    if command.name == "sed":
        return may_edit(command)
    return command.name in _SILENT_PROGRAMS or (command.name == "cat" and command.stdin is not None)


_MAX_EDITS = 100
_EDIT_COMMANDS = {"str_replace", "insert", "lines", "edit"}


def apply_editor_call(files: InferredFiles, arguments: Mapping[str, str]) -> set[str]:
    """Apply a successful editor call to the files and return the touched paths."""
    command, path = arguments.get("command", ""), files.resolve_path(arguments.get("path", ""))
    if command == "undo":
        earlier = files.replaced_contents.get(path)
        if not earlier:
            return set()
        files.write(path, earlier.pop())
        return {path}
    if command in _EDIT_COMMANDS:
        files.mark_base_file(path)
    elif command == "create" and "/" in path and not files.was_shown(path.split("/")[0]):
        files.make_directory(path)
    content = _edit_content(files, command, files.content(path) or known_content(""), arguments)
    if content is None:
        return set()
    files.replaced_contents.setdefault(path, []).append(files.content(path) if files.exists(path) else None)
    files.write(path, content)
    return {path}


def _edit_content(
    files: InferredFiles, command: str, content: Content, arguments: Mapping[str, str]
) -> Content | None:
    """The content after the call; None if the call changes nothing."""
    new = arguments.get("new", "")
    lines = new.removesuffix("\n").split("\n") if new else []
    if command in ("create", "write"):
        return known_content(arguments.get("content", ""))
    if command == "str_replace":
        return replace_text(content, files.known_lines, arguments.get("old", ""), new)
    if command == "insert":
        line = _parse_number(arguments.get("line", ""))
        return (
            _add_unknown_edit(content, arguments)
            if line is None
            else insert_lines(content, line, lines or [""])
        )
    if command == "lines":
        first, last = _parse_number(arguments.get("start", "")), _parse_number(arguments.get("end", ""))
        if first is None or last is None:
            return _add_unknown_edit(content, arguments)
        return replace_lines(content, max(first, 1), last, lines)
    return _apply_edits(files, content, arguments) if command == "edit" else None


def _apply_edits(files: InferredFiles, content: Content, arguments: Mapping[str, str]) -> Content:
    """Apply the replacements of a call in order; edits of another form have an unknown effect."""
    try:
        edits = [parse_replacement(edit) for edit in parse_json(arguments.get("edits", "[]"))]
    except (ValueError, TypeError):
        edits = []
    if not edits or len(edits) > _MAX_EDITS or None in edits:
        return _add_unknown_edit(content, arguments)
    for old, new in filter(None, edits):
        content = replace_text(content, files.known_lines, old, new)
    return content


def _add_unknown_edit(content: Content, arguments: Mapping[str, str]) -> Content:
    return add_opaque_change(content, repr(sorted(arguments.items())))


def _parse_number(text: str) -> int | None:
    return int(text) if text.isdigit() and len(text) < 10 else None


def infer_changes(
    files: InferredFiles,
    tool: str,
    arguments: Mapping[str, str],
    output: str,
    exit_code: int | None,
    timed_out: bool,
) -> tuple[FileChange, ...]:
    """Infer the changes of an executed action; updates the files and their known lines."""
    before = dict(files.touched_contents)
    touched: set[str] = set()
    if tool == "editor":
        touched = apply_editor_call(files, arguments)
        learn_from_editor(files, arguments, output)
    elif tool == "shell":
        command = arguments.get("command", "")
        if find_effect(command) == "anything":
            touched = apply_command_line(files, command, output, exit_code, timed_out)
        learn_from_shell(files, command, output)
        is_moving = "cd" in command or "pushd" in command or "popd" in command
        if is_moving and not has_failed_cd(parse_command(command), output):
            files.set_directory(find_directory_after(command, files.cwd))
    return files.list_changes(before, touched)
