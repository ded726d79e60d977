"""Failures of the environment: a validation that could not start, be set up or finish."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from langgraph_takeover.handoff.shell.syntax import SimpleCommand, runs_in_background
from langgraph_takeover.handoff.text.tool_wrappers import STILL_RUNNING_HEADER, STILL_RUNNING_NOTICE
from langgraph_takeover.handoff.text.word_search import contains_any, matches_line

_KILL_EXIT_CODES = {130, 137, 143, -2, -9, -15}
_HEADER_CHARS = 300
_NO_EXIT_CODE = "[the command ended without an exit code]"
"""What this project's shell prints after a command that did not end by itself."""
_MISSING_SETTINGS = (
    r"ImproperlyConfigured: .{0,300}settings (?:are not configured|module)"
    r"|DJANGO_SETTINGS_MODULE (?:is )?undefined"
    r"|ImproperlyConfigured: The SECRET_KEY setting must not be empty"
    r"|Error: Could not import settings"
)
_MISSING_SETTINGS_WORDS = ("ImproperlyConfigured", "DJANGO_SETTINGS_MODULE", "Could not import settings")
_SETUP_ERROR = re.compile(
    r"^\S*(?:python|pypy)[\d.]*: (?:No module named |can't open file |can't find '__main__')"
    r"|^\S*(?:python|pypy)[\d.]*: Error while finding module"
    r"|^ERROR: (?:usage:|file not found:|file or directory not found:|not found:|Missing dependencies)"
    r"|^(?:\S+: )?error: (?:unrecognized arguments|no such option|argument \S+: )"
    r"|^(?:\S+: )?error: the following arguments are required"
    r"|^Error: (?:No such option|Invalid value)"
    rf"|{_MISSING_SETTINGS}"
    r"|: cd: can't cd to |^Error: could not load cache$|: \d+: \S+: not found$|^make: \S+: No such file or directory$"
    r"|^sh: \d+: \S+: not found$|^error Command \"\S+\" not found|ERR_PNPM_NO_SCRIPT|^error: Script not found"
    r"|could not determine executable to run|Could not read package\.json|This is not the tsc command"
    r"|could not find `Cargo\.toml`|no such command: |^error: failed to get `|no test target named"
    r"|^error: unexpected argument|go\.mod file not found|dial tcp: lookup |^nox > Sessions not found"
    r"|couldn't find an eslint\.config|^Cannot open file |Could not find gem|fatal error: \S+: No such file"
    r"|: E902 |F0001: |^mypy: (?:error: |can't read file)|^\[Errno 2\] No such file"
    r"|\*\*\* No rule to make target|\*\*\* No targets specified and no makefile found"
    r"|^(?:npm (?:ERR!|error) )?[Mm]issing script: "
    r"|^ERROR: (?:tox config file .* not found|could not install deps)"
    r"|^(?:ERROR: )?unknown environment |^Error: Cannot find module '/|^(?:Killed|Terminated)$|^NO TESTS RAN\b",
    re.M,
)
_SETUP_ERROR_WORDS = (
    "No module named", "can't open file", "can't find '__main__'", "Error while finding module", "ERROR: usage:",
    "ERROR: file", "ERROR: not found", "ERROR: Missing", "error: unrecognized", "error: no such option",
    "error: argument", "error: the following", "Error: No such option", "Error: Invalid value", "settings",
    "DJANGO_SETTINGS", "SECRET_KEY", "No rule to make", "No targets specified", "issing script", "tox config file",
    "could not install deps", "unknown environment", "Cannot find module", "Killed", "Terminated", "NO TESTS RAN",
    ": cd: can't", "could not load cache", ": not found", "No such file", '" not found', "ERR_PNPM", "Script not found",
    "could not determine", "Could not read", "not the tsc", "Cargo.toml", "no such command", "failed to get",
    "no test target", "unexpected argument", "go.mod", "dial tcp", "Sessions not found", "eslint.config",
    "Cannot open file", "Could not find gem", "E902", "F0001", "mypy: ",
)  # fmt: skip
"""A text without any of these words cannot match; searching words is much faster than the pattern."""
_MISSING_MODULE = re.compile(r"\b(?:ModuleNotFoundError|ImportError): No module named '?([\w.]+)'?", re.M)
_MISSING_PACKAGE = re.compile(
    r"^(?>.*?ImportError: )(?:(?>.*?requires? the ).*package|.*(?:not installed|pip install|[Pp]lease install))",
    re.M,
)
_DYNAMIC_IMPORT_ERROR = re.compile(r"in _find_and_load(?:_unlocked)?\n+ModuleNotFoundError: ")
_FAILED_COUNT = re.compile(r"\b[1-9]\d* failed\b|\bfailures=[1-9]")
_LOAD_ERROR = re.compile(r"^ERROR: \S+ \(\S*(?:_FailedTest|ModuleImportFailure)\S*\)|^ERROR: \S+$", re.M)
_ERROR_LINE = re.compile(r"^ERROR: ", re.M)
_MISSING_LABEL = re.compile(r"^AttributeError: (?:type object|module) .* has no attribute '\w+'", re.M)
_COLLECTION_ERROR = re.compile(
    r"^(?:E +|\w*Error: )?ImportError while (?:importing|loading)|errors? during collection"
    r"|^_+ ERROR collecting",
    re.M,
)

_COLLECTION_ERROR_WORDS = ("ImportError while", "during collection", "ERROR collecting")


def has_ended(command: str, text: str, exit_code: int | None) -> bool:
    """Whether a command line ran to its end and showed its output, as far as line and output tell."""
    if runs_in_background(command):
        return False
    if exit_code is not None:
        return True
    if text.startswith(_NO_EXIT_CODE) or STILL_RUNNING_HEADER.search(text[:_HEADER_CHARS]):
        return False
    return STILL_RUNNING_NOTICE.search(text[-1000:]) is None


def is_killed(command: str, exit_code: int | None) -> bool:
    """Whether the exit code is that of a killed command, or 124 of `timeout`."""
    return exit_code in _KILL_EXIT_CODES or (exit_code == 124 and "timeout" in command)


_WRAPPER_NAMES = (
    "npx|pnpm|yarn|bunx?|uvx?|poetry|pipenv|pdm|hatch|rye|pixi|conda|bundle|mise|docker(?:-compose)?|podman"
    "|kubectl|ssh|xcrun|sudo"
)
"""Programs that run a runner, and may be missing themselves."""
_LAUNCH_ERROR = re.compile(
    r"OCI runtime exec failed|.{0,200}executable file not found in \$PATH|Error response from daemon: |Error: No such container"
    r"|(?:docker: )?Cannot connect to the Docker daemon|Error: no (?:such )?container |VM must be (?:running|created)"
    r"|The connection to the server \S+ was refused|Permission denied \(publickey|error: experimental Nix feature"
    r"|Command not found: |error: Failed to spawn: |bundler: (?:command not found|failed to load command): "
    r"|Could not find \S+ in (?:any of the sources|locally installed gems)|Bundler could not find compatible versions"
    r"|\*\* \(Mix\) Can't continue due to errors on dependencies|error: (?:Justfile does not contain|No justfile found)"
    r"|ERROR: JAVA_HOME is |The JAVA_HOME environment variable is not |pattern \S+: directory prefix |sh: \S+: command not found$"
    r"|service \"\S+\" is not running|no such service: |no configuration file provided"
    r"|Error from server|error: unable to upgrade connection|error: (?:pod|container) \S+ .{0,80}not (?:found|running|valid)"
    r"|ssh: (?:connect to host|Could not resolve hostname)|Host key verification failed|\S+: Permission denied \(publickey"
    r"|npm (?:ERR!|error) (?:npx canceled|could not determine executable)|Unable to find image .{0,300} locally$"
    r"|(?:\S+ ?: )?The term '.{1,200}' is not recognized|'.{1,200}' is not recognized as an internal or external command"
    r"|The system cannot find the path specified|Python was not found; run without|No Python at "
    r"|.{0,300}running scripts is disabled on this system"
)
"""The start of a line that a wrapper, an engine of containers or SSH prints if it cannot start the program."""


def is_start_failure(command: SimpleCommand, text: str) -> bool:
    """Whether the program is missing, rejects its arguments or lacks required settings."""
    if "not found" in text or "No such file" in text or "Permission denied" in text:
        name = re.escape(command.argv[0])
        reason = "(?:command not found|not found|No such file or directory|Permission denied)"
        if re.search(rf"(?:^|: )(?:{name}|{_WRAPPER_NAMES}): {reason}", text, re.M):
            return True
    return is_setup_failure(text) or any(map(_LAUNCH_ERROR.match, text.splitlines()))


def is_import_failure(text: str, edited_files: Collection[str]) -> bool:
    """Whether only a third-party module is missing; an import broken by an edit is a real failure."""
    missing = _MISSING_MODULE.findall(text) if "No module named" in text else []
    if missing and _DYNAMIC_IMPORT_ERROR.search(text) and not _LOAD_ERROR.search(text):
        # A dynamic import by name, such as an entry of INSTALLED_APPS, is a mistake of the script.
        return False
    if not missing and "ImportError: " in text and _MISSING_PACKAGE.search(text):
        return True
    label_missing = (
        "has no attribute" in text
        and _MISSING_LABEL.search(text) is not None
        and _LOAD_ERROR.search(text) is not None
    )
    if not missing and not label_missing:
        return False
    if any(path in text for path in edited_files):
        return False
    parts = {part for path in edited_files for part in path.split("/")}
    return not any("." in module and module.split(".")[0] in parts for module in missing)


def is_setup_failure(text: str) -> bool:
    """Whether the text reports a missing tool, file or setting."""
    return matches_line(_SETUP_ERROR, _SETUP_ERROR_WORDS, text)


def is_configuration_failure(text: str) -> bool:
    """Whether no test ran because Django has no settings."""
    if not contains_any(text, _MISSING_SETTINGS_WORDS):
        return False
    missing = len(re.findall(_MISSING_SETTINGS, text))
    ran = re.search(r"^Ran (\d+) tests? in ", text, re.M)
    return missing > 0 and (ran is None or int(ran[1][:9]) <= missing)


def has_only_import_errors(text: str) -> bool:
    """Whether all failures in a summary are tests that the runner could not load."""
    if matches_line(_FAILED_COUNT, (" failed", "failures="), text):
        return False
    if is_configuration_failure(text) and not re.search(r"^FAIL: |^ImportError", text, re.M):
        return True
    if matches_line(_COLLECTION_ERROR, _COLLECTION_ERROR_WORDS, text):
        return True
    errors = len(_ERROR_LINE.findall(text)) if "ERROR: " in text else 0
    return errors > 0 and len(_LOAD_ERROR.findall(text)) == errors


def has_earlier_failure(earlier_commands: Sequence[SimpleCommand], text: str) -> bool:
    """Whether a command before `&&` failed, so that the validation after it never ran."""
    return any(_did_fail(command, text) for command in earlier_commands)


_SILENT_PROGRAMS = {"[", "test", "grep", "cmp", "which", "command", "false"}
_ERROR_PATTERNS = {
    "git": re.compile(r"^(?:error|fatal): ", re.M),
    "pip": re.compile(r"^ERROR: ", re.M),
    "conda": re.compile(r"^(?>\w*?(?:Conda|Environment))\w*(?:Error|NotFound)", re.M),
    "npm": re.compile(r"^npm (?:ERR!|error) ", re.M),
    "yarn": re.compile(r"^error ", re.M),
    "apt-get": re.compile(r"^E: ", re.M),
    "apt": re.compile(r"^E: ", re.M),
    "patch": re.compile(r"FAILED|malformed patch|can't find file to patch", re.M),
    "diff": re.compile(r"^[<>] |^(?:---|\+\+\+) |^Only in ", re.M),
}


def _did_fail(command: SimpleCommand, text: str) -> bool:
    name = command.name
    if name in _SILENT_PROGRAMS and not text.strip():
        return True
    if re.search(rf"^(?:\S*sh: )?(?:line \d+: )?{re.escape(name)}: ", text, re.M):
        return True
    pip = name.startswith("python") and "pip" in command.argv[1:3]
    error_pattern = _ERROR_PATTERNS.get("pip" if pip or name.startswith("pip") else name)
    if error_pattern and error_pattern.search(text):
        return True
    if name in ("source", ".") and re.search(r": No such file or directory$", text, re.M):
        return any(f"{word}: No such file" in text for word in command.argv[1:])
    if name.startswith("python"):
        script_names = [a for a in command.argv[1:] if a.endswith(".py")]
        script_names += (
            ["<string>"] if "-c" in command.argv else ["<stdin>"] if command.stdin is not None else []
        )
        return any(f'{script}", line' in text for script in script_names)
    return False
