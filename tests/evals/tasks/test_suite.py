"""Bundled tasks: real repositories, real test runs, official grading."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

SUITE = Path(__file__).parents[3] / "evals" / "tasks" / "suite"
LAST_LINES = 60  # a truncated output still contains these lines
LONG_ENOUGH = 12
RUNS = int(os.environ.get("TAKEOVER_STABLE", "3"))  # number of gradings that must agree


@dataclass(frozen=True)
class TaskRepository:
    """One task with a fresh checkout of its repository."""

    directory: Path
    repo: Path

    @property
    def oracle(self) -> dict[str, Any]:
        return yaml.safe_load((self.directory / "oracle.yaml").read_text())

    @property
    def meta(self) -> dict[str, Any]:
        return yaml.safe_load((self.directory / "task.yaml").read_text())

    @property
    def issue(self) -> str:
        return (self.directory / "problem_statement.md").read_text()

    def run(self, command: str, stdin: str | None = None) -> tuple[int, str]:
        """Run a command in the repository, isolated from the user's settings."""
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.repo.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TZ": "Pacific/Chatham",  # nothing may depend on the time zone
            "LC_ALL": "C",
        }
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.repo,
            env=env,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout

    def git(self, arguments: str) -> str:
        code, output = self.run(f"git {arguments}")
        assert code == 0, output
        return output

    def change(self, state: str) -> None:
        """Change every region that has this variant from the base to it."""
        for region in self.oracle["regions"]:
            path = self.repo / region["path"]
            assert path.read_text().count(region["base"]) == 1
            path.write_text(path.read_text().replace(region["base"], region.get(state, region["base"])))

    def suite(self) -> str:
        return self.run(self.oracle["guide"]["command"])[1]

    def reproduce(self) -> tuple[int, str]:
        path = self.repo / self.oracle["reproduction"]["path"]
        path.write_text(self.oracle["reproduction"]["content"])
        result = self.run(f"python3 {path.name}")
        path.unlink()
        return result

    def files(self) -> dict[str, str]:
        return {name: (self.repo / name).read_text() for name in self.git("ls-files").split()}

    def grade(self) -> tuple[bool, dict[str, str]]:
        """Run the evaluation script as the harness does, and let the harness parse its log."""
        from swebench.harness.grading import get_eval_report, get_logs_eval
        from swebench.harness.utils import make_test_spec
        from swebench.task.repo import load_task

        spec = make_test_spec(load_task(self.directory))
        script = spec.eval_script.replace("/testbed", str(self.repo))
        log = self.repo.parent / "test_output.txt"
        log.write_text(self.run("bash -s", stdin=script)[1])
        prediction = {"instance_id": self.directory.name, "model_patch": "", "model_name_or_path": "test"}
        report = get_eval_report(spec, prediction, str(log), include_tests_status=False)
        return report[self.directory.name]["resolved"], get_logs_eval(spec, str(log))[0]


TASKS = sorted((SUITE / "tasks").iterdir())


@pytest.fixture(params=TASKS, ids=lambda directory: directory.name)
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> TaskRepository:
    result = TaskRepository(request.param, tmp_path / "repository")
    result.repo.mkdir()
    result.git("init -q")
    result.git(f"fast-import --quiet < {shlex.quote(str(request.param / 'repo.fast-export'))}")
    result.git("checkout -q main")
    return result


@pytest.fixture
def misleading_repository(repository: TaskRepository) -> TaskRepository:
    if "wrong" not in repository.oracle:
        pytest.skip("no tempting wrong fix")
    return repository


def tail(output: str) -> str:
    return "\n".join(output.splitlines()[-LAST_LINES:])


def long_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if len(line.strip()) >= LONG_ENOUGH]


def test_the_harness_can_load_the_suite() -> None:
    from swebench.task.checks import check_task_repo
    from swebench.task.repo import load_config, published_tasks

    (dataset,) = load_config(SUITE)["datasets"]
    assert len(published_tasks(SUITE)[dataset]["test"]) == len(TASKS) == 12
    # The harness expects all images in its own namespace; these are not.
    assert [p.message for p in check_task_repo(SUITE) if "not the derived name" not in p.message] == []


def test_metadata(repository: TaskRepository) -> None:
    name = repository.directory.name.replace("__", "_1776_")
    assert repository.meta["instance_id"] == repository.directory.name
    assert repository.meta["image"] == f"takeover/suite.{name}:latest"
    assert repository.git("rev-parse HEAD").strip() == repository.meta["base_commit"]


@pytest.mark.slow
def test_the_base_commit_passes_its_own_tests(repository: TaskRepository) -> None:
    assert 4 <= len(repository.git("rev-list HEAD").split()) <= 7
    assert (
        repository.oracle["guide"]["command"]
        in (repository.repo / repository.oracle["guide"]["path"]).read_text()
    )
    assert tail(repository.suite()).endswith("OK")
    assert repository.git("status --porcelain") == ""


def test_repository_is_small_and_self_contained(repository: TaskRepository) -> None:
    files = repository.files()
    assert 400 <= sum(text.count("\n") for text in files.values()) <= 900
    sources = [text for path, text in files.items() if path.endswith(".py")]
    imported = {
        name for text in sources for name in re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
    }
    assert imported <= {*sys.stdlib_module_names, repository.meta["repo"].split("/")[1]}


@pytest.mark.slow
def test_the_gold_patch_resolves(repository: TaskRepository) -> None:
    repository.git(f"apply {shlex.quote(str(repository.directory / 'gold.patch'))}")
    resolved, statuses = repository.grade()
    assert resolved
    assert set(statuses.values()) == {"PASSED"}


@pytest.mark.slow
def test_the_right_variant_is_the_gold_patch(repository: TaskRepository) -> None:
    repository.change("right")
    assert repository.git("diff") == (repository.directory / "gold.patch").read_text()
    assert tail(repository.suite()).endswith("OK")


@pytest.mark.slow
def test_the_base_does_not_resolve(repository: TaskRepository) -> None:
    resolved, statuses = repository.grade()
    assert not resolved
    assert "FAILED" in statuses.values()


@pytest.mark.slow
def test_the_wrong_fix_does_not_resolve(misleading_repository: TaskRepository) -> None:
    misleading_repository.change("wrong")
    assert not misleading_repository.grade()[0]


@pytest.mark.sampled(6)
@pytest.mark.slow
def test_grading_is_deterministic(repository: TaskRepository) -> None:
    for state, resolved in ("base", False), ("right", True):
        repository.change(state)
        grades = [repository.grade() for _ in range(RUNS)]
        assert grades == [(resolved, grades[0][1])] * RUNS


@pytest.mark.slow
def test_the_reproduction_shows_the_symptom_until_the_fix(repository: TaskRepository) -> None:
    symptom = repository.oracle["reproduction"]["symptom"]
    code, output = repository.reproduce()
    assert code == 1
    assert symptom in tail(output)
    repository.change("right")
    code, output = repository.reproduce()
    assert code == 0
    assert symptom not in output


@pytest.mark.slow
def test_one_check_refutes_the_wrong_fix(misleading_repository: TaskRepository) -> None:
    wrong = misleading_repository.oracle["wrong"]
    checks = {
        "suite": misleading_repository.suite,
        "reproduction": lambda: misleading_repository.reproduce()[1],
    }
    assert not any(wrong["refuted_by"] in check() for check in checks.values())
    misleading_repository.change("wrong")
    assert wrong["refuted_by"] in tail(checks[wrong["check"]]())
    assert misleading_repository.oracle["reproduction"]["symptom"] not in misleading_repository.reproduce()[1]
    misleading_repository.git("checkout -q .")
    misleading_repository.change("right")
    assert not any(wrong["refuted_by"] in check() for check in checks.values())


@pytest.mark.slow
def test_only_one_check_refutes_the_wrong_fix(misleading_repository: TaskRepository) -> None:
    misleading_repository.change("wrong")
    suite_passes = tail(misleading_repository.suite()).endswith("OK")
    snippet_works = misleading_repository.reproduce()[0] == 0
    assert (suite_passes, snippet_works) == {"suite": (False, True), "reproduction": (True, False)}[
        misleading_repository.oracle["wrong"]["check"]
    ]


@pytest.mark.slow
def test_markers_occur_only_in_the_output_of_their_check(repository: TaskRepository) -> None:
    oracle = repository.oracle
    markers = [oracle["reproduction"]["symptom"], oracle.get("wrong", {}).get("refuted_by")]
    assert markers[0] != markers[1]
    for text in (
        repository.issue,
        oracle["reproduction"]["content"],
        repository.git("log -p"),
        repository.suite(),
    ):
        assert not any(sign in text for sign in markers if sign)


@pytest.mark.cases(3)
def test_every_variant_has_distinctive_lines(repository: TaskRepository) -> None:
    all_text = "\n".join([repository.issue, *repository.files().values()])
    for region in repository.oracle["regions"]:
        states = {state: region[state] for state in ("base", "wrong", "right") if state in region}
        outside = all_text.replace(region["base"], "")
        for state, text in states.items():
            elsewhere = [outside, *(other for name, other in states.items() if name != state)]
            distinctive = [line for line in long_lines(text) if not any(line in other for other in elsewhere)]
            assert distinctive, (region["path"], state)


@pytest.mark.cases(3)
def test_searches_find_the_regions(repository: TaskRepository) -> None:
    known_text = repository.issue.lower()
    for region in repository.oracle["regions"]:
        command = region.get("search", repository.oracle["search"])
        pattern = shlex.split(command)[2]
        words = [word for word in re.findall(r"[a-z_]+", pattern.lower()) if word != "def"]
        assert words
        assert all(word in known_text for word in words)
        output = repository.run(command)[1]
        assert region["path"] in output
        assert len(output.splitlines()) <= 10
        known_text += (repository.repo / region["path"]).read_text().lower()


@pytest.mark.cases(3)
def test_the_issue_reveals_neither_paths_nor_code(repository: TaskRepository) -> None:
    for region in repository.oracle["regions"]:
        dotted = region["path"].removesuffix(".py").replace("/", ".")
        assert not any(
            hint in repository.issue for hint in (region["path"], Path(region["path"]).name, dotted)
        )
        assert not any(line in repository.issue for line in long_lines(region["right"]))


@pytest.mark.slow
def test_the_issue_shows_the_real_output_of_its_snippet(repository: TaskRepository) -> None:
    snippet, expected, actual = re.findall(r"```\w*\n(.*?)```", repository.issue, re.DOTALL)
    assert repository.run("python3 -", stdin=snippet) == (0, actual)
    repository.change("right")
    assert repository.run("python3 -", stdin=snippet) == (0, expected)
