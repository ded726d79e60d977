"""One task: its fields, its prompt, its repository and its sandbox."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.sandbox.interface import BackendName, SandboxSpec
from langgraph_takeover.sandbox.untrusted_trees import list_matches

SUITE = Path(str(files("langgraph_takeover.evals.tasks") / "suite"))
_STREAM = "repo.fast-export"
# SWE-bench images keep their interpreter in a conda environment; other images have no such file.
_SHELL_INIT = "[ ! -f /opt/miniconda3/bin/activate ] || { . /opt/miniconda3/bin/activate; conda activate testbed; } >/dev/null 2>&1"
_PACKAGES = "lib*/python3*/*-packages"


class TaskSourceError(TakeoverError, ValueError):
    """An unusable task or task source."""


class Task(Frozen):
    """One SWE-bench instance: `instance` is its row with the columns of swebench 5.

    `directory` is set for tasks of a task repo, which may include the repository's history.
    """

    id: str
    instance: Mapping[str, Any]
    directory: Path | None = None
    prompt_name: Literal["short", "paper"] = "short"

    @property
    def prompt(self) -> str:
        """The task prompt, identical for every agent."""
        statement = str(self.instance["problem_statement"]).replace("\r\n", "\n").strip()
        return self.template.replace("{problem_statement}", statement)

    @property
    def template(self) -> str:
        return load_prompt(self.prompt_name, "evals.tasks")

    def list_files(self) -> list[tuple[str, Path]]:
        """The files and directories of a task repo that results depend on, besides the columns, each with its part."""
        parts = {"repository": _STREAM, "tests": "test_assets", "fields": "oracle.yaml"}
        paths = [(part, self.directory / name) for part, name in parts.items()] if self.directory else []
        return [(part, path) for part, path in paths if path.exists()]

    @property
    def gold_patch(self) -> str | None:
        """The reference fix, if the task has one. No agent sees it."""
        patch = self.instance.get("patch")
        return patch if isinstance(patch, str) and patch.strip() else None

    @property
    def stream(self) -> Path | None:
        """The repository's history as a git fast-export stream, if the task includes one."""
        path = self.directory / _STREAM if self.directory else None
        return path if path is not None and path.is_file() else None

    @property
    def is_bundled(self) -> bool:
        return self.directory is not None and self.directory.is_relative_to(SUITE)

    def find_image(self, backend: BackendName) -> str | None:
        """The Docker image from which the task's sandbox starts, if any."""
        image = self.instance.get("image")
        starts_from_image = backend == "docker" or (backend == "host" and self.stream is None)
        return str(image) if image and starts_from_image else None

    def build_spec(self, backend: BackendName, owner: str, work: Path) -> SandboxSpec:
        """Specify the sandbox in which the task starts. Raises TaskSourceError."""
        if image := self.find_image(backend):
            return SandboxSpec(backend=backend, image=image, shell_init=_SHELL_INIT, owner=owner)
        if backend == "docker":
            raise TaskSourceError(
                f"task {self.id}: no Docker image (add the column 'image' or choose another --sandbox)"
            )
        if self.stream is None:
            raise TaskSourceError(
                f"task {self.id}: the repository exists only as a Docker image (choose --sandbox docker or host)"
            )
        # A package installed below the system's directories contains the solutions of the suite.
        hidden = (*_find_installed_packages(), SUITE) if self.is_bundled else (SUITE,)
        return SandboxSpec(backend=backend, directory=work / self.id, hidden=hidden, owner=owner)

    def check_out(self, work: Path, *, copy_from: Path | None = None) -> None:
        """Check the repository out at `work/<id>`, for sandboxes that start from a directory.

        Checkouts are identical to the byte, so sandboxes of different runs share one base. Snapshots of a sandbox that
        started from a checkout in `copy_from` need a copy of that checkout as their base.
        """
        target, partial = work / self.id, work / f".partial-{self.id}"
        if self.stream is None or target.exists():
            return
        shutil.rmtree(partial, ignore_errors=True)
        if copy_from is not None and (copy_from / self.id).is_dir():
            shutil.copytree(copy_from / self.id, partial, symlinks=True)
            partial.rename(target)
            return
        partial.mkdir(parents=True)
        _run_git(partial, "init", "-q", "-b", "main")
        with self.stream.open("rb") as stream:
            _run_git(partial, "fast-import", "--quiet", stdin=stream)
        _run_git(partial, "checkout", "-q", "-f", "main")
        # Remove times and paths from the index by reading it anew. The reflog, which has them too, is off.
        _run_git(partial, "read-tree", "HEAD")
        partial.rename(target)


@functools.cache
def _find_installed_packages() -> tuple[Path, ...]:
    """Directories of this host's installed Python packages.

    Bundled tasks need none of them. Hiding them makes results independent of the host.
    """
    roots = (Path(sys.base_prefix), Path("/usr"), Path("/usr/local"))
    return tuple(sorted({path for root in roots for path in list_matches(root, _PACKAGES)}))


def _run_git(directory: Path, *arguments: str, stdin: Any = subprocess.DEVNULL) -> None:
    done = subprocess.run(
        ["git", "-C", str(directory), "-c", "core.logAllRefUpdates=false", *arguments],
        # A process started by a git hook inherits GIT_DIR and similar variables of another repository.
        env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        stdin=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())
        raise TaskSourceError(f"{directory}: git {arguments[0]} failed: {reason[-200:]}")


_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")
_REQUIRED_FIELDS = (
    "instance_id",
    "problem_statement",
    "repo",
    "version",
    "FAIL_TO_PASS",
    "eval_script",
    "log_parser",
    "eval_type",
)
_TEST_FIELDS = ("FAIL_TO_PASS", "PASS_TO_PASS")
_TEXT_FIELDS = ("problem_statement", "eval_script", "log_parser", "eval_type")
_BYTE_ORDER_MARK = "\ufeff"
_HEREDOC = re.compile(r"(?<!<)<<(-?)[ \t]*['\"\\]?([A-Za-z_]\w*)")


def read_fields(row: Any, location: str) -> dict[str, Any]:
    """The fields of a task with lists of test names, an LF eval script and an LF gold patch. Raises TaskSourceError."""
    if not isinstance(row, Mapping):
        raise TaskSourceError(
            f"{location}: expected an object with the fields of a task, got {type(row).__name__}"
        )
    missing = [name for name in _REQUIRED_FIELDS if not row.get(name)]
    if missing:
        raise TaskSourceError(
            f"{location}: field {missing[0]!r} is missing or empty (use the columns of swebench 5)"
        )
    if not _ID.fullmatch(str(row["instance_id"])):
        raise TaskSourceError(
            f"{location}: field 'instance_id' contains invalid characters or more than 150 (use letters, digits, '.', '_' and '-')"
        )
    for name in _TEXT_FIELDS:
        if not isinstance(row[name], str):
            raise TaskSourceError(
                f"{location}: field {name!r} is {_describe_kind(row[name])} (write it as text)"
            )
    tests = {name: _read_tests(name, row.get(name), location) for name in _TEST_FIELDS}
    if not tests["FAIL_TO_PASS"]:
        raise TaskSourceError(
            f"{location}: field 'FAIL_TO_PASS' names no test, so any patch would resolve the task (name the tests that "
            "fail before the fix)"
        )
    if both := sorted({*tests["FAIL_TO_PASS"]} & {*tests["PASS_TO_PASS"]}):
        raise TaskSourceError(
            f"{location}: 'FAIL_TO_PASS' and 'PASS_TO_PASS' both contain {both[0]:.100} (remove it from one of them)"
        )
    texts = {"eval_script": normalize_script(row["eval_script"])}
    if isinstance(row.get("patch"), str):
        texts["patch"] = normalize_patch(row["patch"])
    return {**row, **tests, **texts}


def _read_tests(name: str, value: Any, location: str) -> list[str]:
    """The names of tests, from a list or from a list as JSON text. None without a value."""
    cure = "(write a list of test names, or one as JSON text)"
    if value is None or value == "":
        return []
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise TaskSourceError(f"{location}: field {name!r} is not JSON: {error} {cure}") from error
    if not isinstance(value, list | tuple):
        raise TaskSourceError(f"{location}: field {name!r} is {_describe_kind(value)} {cure}")
    for test in value:
        if not isinstance(test, str) or not test.strip():
            raise TaskSourceError(
                f"{location}: field {name!r} contains {json.dumps(test, default=str):.60}, not the name of a test {cure}"
            )
    return [test.rstrip("\r\n") for test in value]


def _describe_kind(value: Any) -> str:
    kinds: tuple[tuple[Any, str], ...] = (
        (bool, "a truth value"),
        (int | float, "a number"),
        (str, "text"),
        (Mapping, "an object"),
        (list, "a list"),
    )
    if value is None:
        return "null"
    return next((text for kind, text in kinds if isinstance(value, kind)), f"a {type(value).__name__}")


def normalize_script(text: str) -> str:
    """A bash script without a byte order mark and with LF line endings.

    A here-document of a script with LF keeps its bytes, because a patch of a file with CRLF needs them.
    """
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if "\r" not in text:
        return text
    if _is_converted(text):
        return _convert(text)
    lines = []
    ends: list[tuple[bool, str]] = []
    for line in text.split("\n"):
        bare = line.removesuffix("\r")
        if not ends:
            lines.append(bare)
            ends = [(bool(dash), word) for dash, word in _HEREDOC.findall(bare)]
            continue
        strips_tabs, word = ends[0]
        is_end = (bare.lstrip("\t") if strips_tabs else bare) == word
        lines.append(bare if is_end else line)
        ends = ends[1:] if is_end else ends
    return "\n".join(lines)


def normalize_patch(text: str) -> str:
    """A patch that git reads: its last line complete, and LF if a conversion made all line endings CRLF, also of headers."""
    text = text.removeprefix(_BYTE_ORDER_MARK)
    text = _convert(text) if _is_converted(text) else text
    return text if not text.strip() or text.endswith("\n") else f"{text}\n"


def _is_converted(text: str) -> bool:
    """Whether each line ends with CRLF, or each with a lone CR."""
    lines = text.rstrip("\n").split("\n")
    body = [line for line in lines[:-1] if not line.endswith("\r")]
    return "\r" in text and not body and (len(lines) > 1 or text.endswith("\r\n") or "\n" not in text)


def _convert(text: str) -> str:
    if "\n" not in text:
        return text.replace("\r", "\n")
    return text.replace("\r\n", "\n").removesuffix("\r")
