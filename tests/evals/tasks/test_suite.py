"""The bundled tasks hold what they promise: real repositories, real test runs, official grading."""

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
LAST_LINES = 60  # what a reader of a cut output still sees
LONG_ENOUGH = 12
RUNS = int(os.environ.get("TAKEOVER_STABLE", "3"))  # how often a grading has to come out the same


@dataclass(frozen=True)
class Bench:
    """One task with a fresh checkout of its repository."""

    folder: Path
    repo: Path

    @property
    def oracle(self) -> dict[str, Any]:
        return yaml.safe_load((self.folder / "oracle.yaml").read_text())

    @property
    def meta(self) -> dict[str, Any]:
        return yaml.safe_load((self.folder / "task.yaml").read_text())

    @property
    def issue(self) -> str:
        return (self.folder / "problem_statement.md").read_text()

    def run(self, command: str, stdin: str | None = None) -> tuple[int, str]:
        """Run a command in the repository, knowing nothing of this machine's user."""
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.repo.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TZ": "Pacific/Chatham",  # nothing may depend on where it runs
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
        """Bring every place that has such a state from base to it."""
        for place in self.oracle["places"]:
            path = self.repo / place["path"]
            assert path.read_text().count(place["base"]) == 1
            path.write_text(path.read_text().replace(place["base"], place.get(state, place["base"])))

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
        """Run the evaluation script as the harness would, and let the harness read its log."""
        from swebench.harness.grading import get_eval_report, get_logs_eval
        from swebench.harness.utils import make_test_spec
        from swebench.task.repo import load_task

        spec = make_test_spec(load_task(self.folder))
        script = spec.eval_script.replace("/testbed", str(self.repo))
        log = self.repo.parent / "test_output.txt"
        log.write_text(self.run("bash -s", stdin=script)[1])
        prediction = {"instance_id": self.folder.name, "model_patch": "", "model_name_or_path": "test"}
        report = get_eval_report(spec, prediction, str(log), include_tests_status=False)
        return report[self.folder.name]["resolved"], get_logs_eval(spec, str(log))[0]


TASKS = sorted((SUITE / "tasks").iterdir())


@pytest.fixture(params=TASKS, ids=lambda folder: folder.name)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    result = Bench(request.param, tmp_path / "repository")
    result.repo.mkdir()
    result.git("init -q")
    result.git(f"fast-import --quiet < {shlex.quote(str(request.param / 'repo.fast-export'))}")
    result.git("checkout -q main")
    return result


@pytest.fixture
def misled(bench: Bench) -> Bench:
    if "wrong" not in bench.oracle:
        pytest.skip("the first fix is right")
    return bench


def last(output: str) -> str:
    return "\n".join(output.splitlines()[-LAST_LINES:])


def long_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if len(line.strip()) >= LONG_ENOUGH]


def test_harness_reads_the_suite() -> None:
    from swebench.task.checks import check_task_repo
    from swebench.task.repo import load_config, published_tasks

    (dataset,) = load_config(SUITE)["datasets"]
    assert len(published_tasks(SUITE)[dataset]["test"]) == len(TASKS) == 12
    # The harness would have every image live under its own namespace; ours do not.
    assert [p.message for p in check_task_repo(SUITE) if "not the derived name" not in p.message] == []


def test_meta(bench: Bench) -> None:
    name = bench.folder.name.replace("__", "_1776_")
    assert bench.meta["instance_id"] == bench.folder.name
    assert bench.meta["image"] == f"takeover/suite.{name}:latest"
    assert bench.git("rev-parse HEAD").strip() == bench.meta["base_commit"]


def test_base(bench: Bench) -> None:
    assert 4 <= len(bench.git("rev-list HEAD").split()) <= 7
    assert bench.oracle["guide"]["command"] in (bench.repo / bench.oracle["guide"]["path"]).read_text()
    assert last(bench.suite()).endswith("OK")
    assert bench.git("status --porcelain") == ""


def test_repository_is_small_and_self_contained(bench: Bench) -> None:
    files = bench.files()
    assert 400 <= sum(text.count("\n") for text in files.values()) <= 900
    sources = [text for path, text in files.items() if path.endswith(".py")]
    imported = {
        name for text in sources for name in re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
    }
    assert imported <= {*sys.stdlib_module_names, bench.meta["repo"].split("/")[1]}


def test_gold_resolves(bench: Bench) -> None:
    bench.git(f"apply {shlex.quote(str(bench.folder / 'gold.patch'))}")
    resolved, statuses = bench.grade()
    assert resolved
    assert set(statuses.values()) == {"PASSED"}


@pytest.mark.slow
def test_right_is_gold(bench: Bench) -> None:
    bench.change("right")
    assert bench.git("diff") == (bench.folder / "gold.patch").read_text()
    assert last(bench.suite()).endswith("OK")


def test_nothing_done_does_not_resolve(bench: Bench) -> None:
    resolved, statuses = bench.grade()
    assert not resolved
    assert "FAILED" in statuses.values()


def test_wrong_fix_does_not_resolve(misled: Bench) -> None:
    misled.change("wrong")
    assert not misled.grade()[0]


@pytest.mark.slow
def test_grading_repeats(bench: Bench) -> None:
    for state, resolved in ("base", False), ("right", True):
        bench.change(state)
        grades = [bench.grade() for _ in range(RUNS)]
        assert grades == [(resolved, grades[0][1])] * RUNS


@pytest.mark.slow
def test_reproduction(bench: Bench) -> None:
    symptom = bench.oracle["reproduction"]["symptom"]
    code, output = bench.reproduce()
    assert code == 1
    assert symptom in last(output)
    bench.change("right")
    code, output = bench.reproduce()
    assert code == 0
    assert symptom not in output


@pytest.mark.slow
def test_refutation(misled: Bench) -> None:
    wrong = misled.oracle["wrong"]
    checks = {"suite": misled.suite, "reproduction": lambda: misled.reproduce()[1]}
    assert not any(wrong["refuted_by"] in check() for check in checks.values())
    misled.change("wrong")
    assert wrong["refuted_by"] in last(checks[wrong["check"]]())
    assert misled.oracle["reproduction"]["symptom"] not in misled.reproduce()[1]
    misled.git("checkout -q .")
    misled.change("right")
    assert not any(wrong["refuted_by"] in check() for check in checks.values())


@pytest.mark.slow
def test_wrong_fix_is_refuted_by_one_check_only(misled: Bench) -> None:
    misled.change("wrong")
    suite_passes = last(misled.suite()).endswith("OK")
    snippet_works = misled.reproduce()[0] == 0
    assert (suite_passes, snippet_works) == {"suite": (False, True), "reproduction": (True, False)}[
        misled.oracle["wrong"]["check"]
    ]


@pytest.mark.slow
def test_signs_are_seen_only_in_their_output(bench: Bench) -> None:
    oracle = bench.oracle
    signs = [oracle["reproduction"]["symptom"], oracle.get("wrong", {}).get("refuted_by")]
    assert signs[0] != signs[1]
    for text in (bench.issue, oracle["reproduction"]["content"], bench.git("log -p"), bench.suite()):
        assert not any(sign in text for sign in signs if sign)


def test_every_state_of_a_place_is_recognisable(bench: Bench) -> None:
    everything = "\n".join([bench.issue, *bench.files().values()])
    for place in bench.oracle["places"]:
        states = {state: place[state] for state in ("base", "wrong", "right") if state in place}
        outside = everything.replace(place["base"], "")
        for state, text in states.items():
            elsewhere = [outside, *(other for name, other in states.items() if name != state)]
            distinctive = [line for line in long_lines(text) if not any(line in other for other in elsewhere)]
            assert distinctive, (place["path"], state)


def test_searches_lead_to_the_places(bench: Bench) -> None:
    known = bench.issue.lower()
    for place in bench.oracle["places"]:
        command = place.get("search", bench.oracle["search"])
        pattern = shlex.split(command)[2]
        words = [word for word in re.findall(r"[a-z_]+", pattern.lower()) if word != "def"]
        assert words
        assert all(word in known for word in words)
        found = bench.run(command)[1]
        assert place["path"] in found
        assert len(found.splitlines()) <= 10
        known += (bench.repo / place["path"]).read_text().lower()


def test_issue_gives_nothing_away(bench: Bench) -> None:
    for place in bench.oracle["places"]:
        dotted = place["path"].removesuffix(".py").replace("/", ".")
        assert not any(hint in bench.issue for hint in (place["path"], Path(place["path"]).name, dotted))
        assert not any(line in bench.issue for line in long_lines(place["right"]))


@pytest.mark.slow
def test_issue_shows_what_its_snippet_prints(bench: Bench) -> None:
    snippet, expected, actual = re.findall(r"```\w*\n(.*?)```", bench.issue, re.DOTALL)
    assert bench.run("python3 -", stdin=snippet) == (0, actual)
    bench.change("right")
    assert bench.run("python3 -", stdin=snippet) == (0, expected)
