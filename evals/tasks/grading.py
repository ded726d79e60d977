"""Official grading, and its verdicts, cached by all their inputs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import re
import shutil
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from langgraph_takeover import sandbox
from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.telemetry import start_span
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.evals.tasks import Task, TaskSourceError
from langgraph_takeover.handoff.records.record import write_durably
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.sandbox.interface import (
    BackendName,
    FileAccessError,
    OutOfDiskError,
    Sandbox,
    SandboxSpec,
    SandboxUnavailableError,
)
from langgraph_takeover.sandbox.untrusted_trees import walk

HandoffState = Literal["needs_completion", "already_solved", "behavior_broken"]
EVAL_TIMEOUT_S = 1800
_ROUTES = Path("/proc/net/route")
_PATCH_NAME = "patch.diff"
_LOG_NAME = "test_output.txt"
_MAX_END_CHARS = 300
_PIECE_BYTES, _MAX_PIECES = 15_000_000, 40
_BROKEN_RUN = re.compile(
    r"Executed \d{1,9} of \d{1,9} [^\n]{0,80}(?:DISCONNECTED|ERROR)|Test suite failed to run|^Node\.js v\d",
    re.MULTILINE,
)
"""Karma that lost tests, Jest that could not load a module, and Node that an error ended."""
_COUNTED_FAILURES = re.compile(
    r"^Test(?:s| Suites): [^\n]{0,80}\b[1-9]\d{0,8} failed|\b[1-9]\d{0,8} failing\b|specs?, [1-9]\d{0,8} failure"
    r"|\([1-9]\d{0,8} FAILED\)|^TOTAL: [1-9]\d{0,8} FAILED|^# fail +[1-9]",
    re.MULTILINE,
)
"""The summaries of Jest, Mocha, Jasmine, Karma and TAP, if they count failures."""


class GradingError(TakeoverError):
    """The grading itself failed, for a reason other than the patch."""


class NoResultError(GradingError):
    """The official tests printed no readable result: the fault of the grader, or of a patch that breaks them."""


class EnvironmentFailureError(NoResultError):
    """The same, with a log from which swebench concludes that the environment failed: it may succeed the next time."""


class Verdict(Frozen):
    """Result of the official validation of a patch."""

    resolved: bool
    detail: str
    fail_to_pass_failures: int | None
    """Number of FAIL_TO_PASS tests that fail with the patch; None if the tests gave no result."""
    pass_to_pass_failures: int | None
    """Number of PASS_TO_PASS tests that fail with the patch; None if the tests gave no result."""

    @property
    def has_result(self) -> bool:
        return self.fail_to_pass_failures is not None

    @property
    def handoff_state(self) -> HandoffState:
        """The state in the authors' order: a regression matters only once all FAIL_TO_PASS tests pass."""
        if self.resolved:
            return "already_solved"
        all_fixed = self.fail_to_pass_failures == 0
        return "behavior_broken" if all_fixed and self.pass_to_pass_failures else "needs_completion"

    @property
    def failing_tests(self) -> dict[str, int | bool | None]:
        """The numbers of failing tests, and whether a regression is one of them, as fields of a row."""
        broken = self.pass_to_pass_failures
        return {
            "fail_to_pass_failures": self.fail_to_pass_failures,
            "pass_to_pass_failures": broken,
            "regressions": None if broken is None else broken > 0,
        }


def describe_network(backend: BackendName) -> str:
    """The network of the official tests if it is requested."""
    if backend == "process":
        return "the host's"
    if backend != "docker":
        return "none (--grading-network affects only Docker)"
    routes = [line.split() for line in _ROUTES.read_text().splitlines()[1:]] if _ROUTES.exists() else []
    if not any(destination == mask == "00000000" for _, destination, *_, mask, _, _, _ in routes):
        return "none: this host has no route to the internet, so tests that need it fail (continuing)"
    return "Docker's default"


def check_gradable(tasks: Iterable[Task]) -> None:
    """Detect tasks that cannot be graded, before the run. Raises TaskSourceError."""
    # Tests cover the bundled tasks, and importing the harness takes seconds.
    tasks = [task for task in tasks if not task.is_bundled]
    if not tasks:
        return
    from swebench.harness.constants import EvalType
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.utils import make_test_spec

    for task in tasks:
        try:
            # The harness requires an image, which other back ends do not need.
            spec = make_test_spec({"image": "", **task.instance})
            EvalType(spec.eval_type)
            if not isinstance(spec.image_assets, dict):
                raise TypeError("image_assets is not an object")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TaskSourceError(f"task {task.id}: swebench cannot read it: {error}") from error
        if spec.log_parser not in PARSER_REGISTRY:
            raise TaskSourceError(
                f"task {task.id}: unknown log_parser {spec.log_parser!r} (use one of swebench's)"
            )


def grade(
    task: Task, patch: str | None, spec: SandboxSpec, logs: Path, name: str, *, network: bool
) -> Verdict:
    """Validate `patch` in a fresh sandbox, with logs in `logs/name`. None runs the tests on the base commit.

    `network` gives the container of the official tests internet access. Raises GradingError, which is a NoResultError if
    the tests printed no readable result, and SandboxUnavailableError.
    """
    if patch is not None and not patch.strip():
        # Given a passing log, the grader reports even an empty patch as resolved.
        return make_unresolved("empty patch")
    attributes = {"takeover.operation": "grade", "takeover.task": task.id, "takeover.backend": spec.backend}
    with start_span("takeover.grade", attributes) as span:
        verdict = _grade(task, patch, spec, logs / name, network)
        span.set({"takeover.grade.resolved": verdict.resolved})
    return verdict


def _grade(task: Task, patch: str | None, spec: SandboxSpec, directory: Path, network: bool) -> Verdict:
    shutil.rmtree(directory, ignore_errors=True)  # the harness reuses an existing report
    directory.mkdir(parents=True)
    try:
        if spec.backend == "docker":
            return _grade_by_harness(task, patch, spec, directory, network)
        return _grade_by_log(task, patch, spec, directory)
    finally:
        # Only the grader needs the unredacted output.
        for path, _ in walk(directory):
            _redact_file(directory / path)


def _redact_file(path: Path) -> None:
    if not path.is_file() or path.is_symlink():
        return
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    clean = redact(text)
    if clean != text:
        path.write_bytes(clean.encode("utf-8", "surrogateescape"))


def _grade_by_harness(
    task: Task, patch: str | None, spec: SandboxSpec, directory: Path, network: bool
) -> Verdict:
    from swebench.harness import run_evaluation
    from swebench.harness.utils import make_test_spec

    from langgraph_takeover.sandbox.docker_client import OwnedClient, require_image
    from langgraph_takeover.sandbox.snapshots.images import without_volumes

    # The harness names its container after this id, and removes an existing container of that name.
    run = f"{spec.owner}.{directory.name}"
    run_evaluation.RUN_EVALUATION_LOG_DIR = directory
    prediction = {"instance_id": task.id, "model_name_or_path": "takeover", "model_patch": patch or ""}
    daemon = OwnedClient(spec.owner, network=network)
    image = without_volumes(
        require_image(task.instance["image"]).attrs, spec.owner
    )  # volumes would stay behind
    test_spec = make_test_spec({**task.instance, "image": image["Id"]})
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        outcome = run_evaluation.run_instance(
            test_spec, prediction, daemon, run, timeout=EVAL_TIMEOUT_S, skip_patch=patch is None
        )
    logs = directory / run / "takeover" / task.id
    if outcome is None:
        log = logs / "run_instance.log"
        return _read_harness_failure(log.read_text(errors="replace") if log.exists() else output.getvalue())
    return _parse_report(outcome[1][task.id], test_spec, logs / _LOG_NAME)


def _read_harness_failure(log: str) -> Verdict:
    """The verdict if the patch caused the missing report. Raises GradingError otherwise."""
    if ">>>>> Patch Apply Failed" in log:
        return make_unresolved("the patch does not apply")
    if re.search(r"Test timed out after \d+ seconds", log):
        return make_unresolved("the tests timed out")
    lines = [line for line in log.splitlines() if "rror" in line]
    raise GradingError(f"swebench's harness wrote no report: {(lines or ['no log'])[0][:300]}")


def _grade_by_log(task: Task, patch: str | None, spec: SandboxSpec, directory: Path) -> Verdict:
    from swebench.harness.grading import get_eval_report
    from swebench.harness.run_evaluation import GIT_APPLY_CMDS
    from swebench.harness.utils import make_test_spec

    test_spec = make_test_spec({"image": "", **task.instance})
    (directory / _PATCH_NAME).write_text(patch or "", errors="surrogateescape")
    with sandbox.start(spec) as grading_sandbox:
        try:
            home = grading_sandbox.inspect('printf %s "$HOME"').output
            if patch is not None and not _apply_patch(grading_sandbox, patch, home, GIT_APPLY_CMDS):
                return make_unresolved("the patch does not apply")
            # Only the `process` back end has its repository at another path than the script expects.
            script = test_spec.eval_script.replace("/testbed", grading_sandbox.workspace)
            grading_sandbox.write_file(f"{home}/eval.sh", script.encode())
            run = grading_sandbox.run(
                f"bash {home}/eval.sh >{home}/{_LOG_NAME} 2>&1", timeout_s=EVAL_TIMEOUT_S
            )
            if run.timed_out:
                return make_unresolved("the tests timed out")
            try:
                log = _read_long_file(grading_sandbox, f"{home}/{_LOG_NAME}")
            except FileAccessError as error:
                return make_unresolved(f"the tests' log cannot be read: {error}")
        except FileAccessError as error:
            raise GradingError(f"cannot write to the grading sandbox: {error}") from error
    log_path = directory / _LOG_NAME
    log_path.write_text(log.decode("utf-8", "replace"))
    prediction = {"instance_id": task.id, "model_name_or_path": "takeover", "model_patch": patch or ""}
    report = get_eval_report(test_spec, prediction, str(log_path), True)[task.id]
    return _parse_report(report, test_spec, log_path)


def _apply_patch(grading_sandbox: Sandbox, patch: str, home: str, commands: Iterable[str]) -> bool:
    """Whether one of the commands applies the patch. A failed attempt leaves no change."""
    grading_sandbox.write_file(f"{home}/{_PATCH_NAME}", patch.encode("utf-8", "surrogateescape"))
    attempts = "; ".join(
        f"{command} {home}/{_PATCH_NAME} >/dev/null 2>&1 && exit 0; git checkout -q -- .; git clean -qfd"
        for command in commands
    )
    return grading_sandbox.inspect(f"{attempts}; exit 1").exit_code == 0


def _read_long_file(grading_sandbox: Sandbox, path: str) -> bytes:
    """A file of up to the maximum length of a log, read in pieces that the sandbox can return."""
    printed = grading_sandbox.inspect(f"stat -Lc %s -- {path}").output.strip()
    size = int(printed) if printed.isdigit() else 0
    if size <= _PIECE_BYTES:
        return grading_sandbox.read_file(path)
    if size > _PIECE_BYTES * _MAX_PIECES:
        raise FileAccessError(f"{path}: longer than {_PIECE_BYTES * _MAX_PIECES:,} bytes")
    grading_sandbox.inspect(
        f"split --bytes={_PIECE_BYTES} --numeric-suffixes --suffix-length=2 -- {path} {path}."
    )
    return b"".join(
        grading_sandbox.read_file(f"{path}.{number:02}") for number in range(-(-size // _PIECE_BYTES))
    )


def _parse_report(report: dict[str, Any], test_spec: Any, log: Path) -> Verdict:
    """The verdict of a report. Raises GradingError."""
    from swebench.harness.constants import EvalType

    if report.get("infra_failure"):
        raise EnvironmentFailureError(
            f"swebench reports an infrastructure failure: {report['infra_failure_reason']}{_describe_log(log)}"
        )
    tests = report.get("tests_status", {})
    if not tests:
        raise NoResultError(f"the tests printed no readable result{_describe_log(log)}")
    if EvalType(test_spec.eval_type) is EvalType.FAIL_ONLY:
        tests = _judge_fail_only(test_spec, log)
    passed, failed = (len(tests["FAIL_TO_PASS"][key]) for key in ("success", "failure"))
    broken = len(tests.get("PASS_TO_PASS", {}).get("failure", ()))
    return Verdict(
        resolved=bool(report["resolved"]) and not failed and not broken,
        detail=f"{passed} of {passed + failed} FAIL_TO_PASS, {broken} regression{'s' if broken != 1 else ''}",
        fail_to_pass_failures=failed,
        pass_to_pass_failures=broken,
    )


def _judge_fail_only(test_spec: Any, log: Path) -> dict[str, dict[str, list[str]]]:
    """The results of `fail_only` tests, where the harness counts each test without a FAILED as passed.

    A missing test passes only if the log names no passed test, and shows a complete run: the runner's summary, no ERROR,
    no module that failed to load, and neither a count of failures nor an exit code other than 0 without a FAILED.
    """
    from swebench.harness import grading
    from swebench.harness.constants import TestStatus

    statuses, _ = grading.get_logs_eval(test_spec, str(log))
    content = log.read_text(errors="replace")
    found = set(statuses.values())
    has_failures = grading.parse_test_exit_code(content) not in (None, 0) or _COUNTED_FAILURES.search(content)
    is_complete = (
        not found & {TestStatus.PASSED.value, TestStatus.XFAIL.value, TestStatus.ERROR.value}
        and grading.SUITE_RAN.search(content) is not None
        and _BROKEN_RUN.search(content) is None
        and (TestStatus.FAILED.value in found or not has_failures)
    )
    results: dict[str, dict[str, list[str]]] = {}
    for name, has_passed in (
        ("FAIL_TO_PASS", grading.test_passed),
        ("PASS_TO_PASS", grading.test_maintained),
    ):
        results[name] = {"success": [], "failure": []}
        for test in getattr(test_spec, name):
            passed = has_passed(test, statuses) or (is_complete and test not in statuses)
            results[name]["success" if passed else "failure"].append(test)
    return results


def _describe_log(log: Path) -> str:
    """The last lines of the tests' output, for an error message."""
    from swebench.harness.constants import END_TEST_OUTPUT, START_TEST_OUTPUT

    text = log.read_text(errors="replace") if log.exists() else ""
    if START_TEST_OUTPUT not in text or END_TEST_OUTPUT not in text:
        return f"; it lacks a line {START_TEST_OUTPUT!r} or {END_TEST_OUTPUT!r}{_describe_end(text)}"
    return _describe_end(text.split(START_TEST_OUTPUT)[1].split(END_TEST_OUTPUT)[0])


def _describe_end(text: str) -> str:
    lines = [" ".join(line.split()) for line in text[-_MAX_END_CHARS:].split("\n")]
    lines = lines[len(text) > _MAX_END_CHARS and len(lines) > 1 :]
    # The script's own traces say nothing about the tests.
    end = " | ".join(line for line in lines if line.strip("'") and not line.startswith("+"))
    return f" (the log ends: {end})" if end else " (their output is empty)"


def make_unresolved(detail: str) -> Verdict:
    """The verdict on a patch whose tests gave no result."""
    return Verdict(resolved=False, detail=detail, fail_to_pass_failures=None, pass_to_pass_failures=None)


MAX_TRIES = 3


def get_verdict(
    task: Task, patch: str, spec: SandboxSpec, logs: Path, name: str, *, network: bool = False
) -> Verdict:
    """The cached verdict on a patch, or a new one. The cache and the grader's logs are in `logs`.

    A patch without test results is unresolved only if the same grader reads results of the gold patch; otherwise the
    grader is at fault. Raises GradingError or SandboxUnavailableError after MAX_TRIES attempts.
    """
    cached = logs / "verdicts" / f"{compute_key(task, patch, spec, network)}.json"
    try:
        return Verdict.model_validate_json(cached.read_bytes())
    except (FileNotFoundError, ValidationError):
        pass  # a truncated file, or one of another version, is replaced
    verdict = _grade_with_control(task, patch, spec, logs, name, network)
    cached.parent.mkdir(parents=True, exist_ok=True)
    write_durably(cached, verdict.model_dump_json())
    return verdict


def _grade_with_control(
    task: Task, patch: str, spec: SandboxSpec, logs: Path, name: str, network: bool
) -> Verdict:
    """The verdict on a patch, with the gold patch as control if the tests give no result. Raises GradingError."""
    try:
        verdict = grade_with_retries(task, patch, spec, logs, name, network)
    except NoResultError as error:
        if task.gold_patch is None:
            raise NoResultError(f"{error}, and the task has no gold patch that shows why") from error
        _check_grader(task, spec, logs, name, network, str(error))
        with contextlib.suppress(NoResultError):  # the sandbox may have failed once
            return grade_with_retries(task, patch, spec, logs, name, network)
        return make_unresolved(
            "the tests print no readable result with this patch, but do with the gold patch"
        )
    if not verdict.has_result and patch.strip() and task.gold_patch is not None:
        _check_grader(task, spec, logs, name, network, verdict.detail)
    return verdict


def _check_grader(task: Task, spec: SandboxSpec, logs: Path, name: str, network: bool, trouble: str) -> None:
    """Raise NoResultError if the tests give no result with the gold patch either. Not cached: the host may have changed."""
    try:
        gold = grade_with_retries(task, task.gold_patch, spec, logs, f"{name}.gold", network)
        reason = gold.detail
    except NoResultError as error:
        gold, reason = None, str(error)
    if gold is None or not gold.has_result:
        raise NoResultError(f"{trouble}; the gold patch has no result either, so the grader failed: {reason}")


def _is_transient(error: BaseException) -> bool:
    is_final = isinstance(error, OutOfDiskError) or type(error) is NoResultError
    return isinstance(error, (GradingError, SandboxUnavailableError)) and not is_final


@retry(
    retry=retry_if_exception(_is_transient),
    stop=stop_after_attempt(MAX_TRIES),
    wait=wait_exponential_jitter(multiplier=0.5, max=30),
    reraise=True,
)
def grade_with_retries(
    task: Task, patch: str | None, spec: SandboxSpec, logs: Path, name: str, network: bool
) -> Verdict:
    """What `grade` returns. Repeats a failed grading, but not one whose tests gave no result."""
    return grade(task, patch, spec, logs, name, network=network)


def compute_key(task: Task, patch: str | None, spec: SandboxSpec, network: bool) -> str:
    """The digest of all inputs of a verdict."""
    inputs = [
        version("swebench"),
        spec.backend,
        _digest_start(task, spec),
        network,
        dict(task.instance),
        patch,
    ]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()


def _digest_start(task: Task, spec: SandboxSpec) -> str:
    """The digest of the image, or of the repository's history."""
    if spec.image is None:
        return _digest_file(task.stream, task.stream.stat().st_mtime_ns) if task.stream is not None else ""
    from langgraph_takeover.sandbox.docker_client import require_image

    return str(require_image(spec.image).id)


@functools.lru_cache(maxsize=64)
def _digest_file(path: Path, modified_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
