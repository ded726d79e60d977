"""Detection of validations in command lines, and their outcomes."""

from __future__ import annotations

import pytest

from langgraph_takeover.handoff.points.detectors import extract_evidence
from langgraph_takeover.handoff.points.outcomes import clean_output, judge, judge_output
from langgraph_takeover.handoff.points.validation import classify, find_validations
from langgraph_takeover.handoff.shell.runner_summaries import ValidationOutcome
from langgraph_takeover.handoff.shell.runners import ValidationKind

TRACEBACK = """Traceback (most recent call last):
  File "/testbed/{file}", line 3, in <module>
    from sympy.core import Expr
{error}
"""
PYTEST_FAILED = """..F
=== FAILURES ===
E   assert 1 == 2
=== short test summary info ===
FAILED tests/test_a.py::test_one - assert 1 == 2
===== 1 failed, 2 passed in 0.12s =====
"""
UNITTEST = "test_a (t.T) ... {line}\n\n------\nRan 3 tests in 0.001s\n\n{end}\n"
UNITTEST_FAILED = UNITTEST.format(line="FAIL", end="FAILED (failures=1)")
UNITTEST_PASSED = UNITTEST.format(line="ok", end="OK")
UNITTEST_SKIPPED = UNITTEST.format(line="ok", end="OK (skipped=1, expected failures=2)")
BROKEN_IMPORT = TRACEBACK.format(file="bin/test", error="ImportError: cannot import name 'Expr'")
REPRO_BROKEN = TRACEBACK.format(file="repro.py", error="ValueError: x")
COLORED = "\x1b[31m===== \x1b[1m1 failed\x1b[0m, \x1b[32m2 passed\x1b[0m\x1b[31m in 0.1s\x1b[0m ===="
RAN_OK = "Ran 2 tests in 0.1s\n\nOK\n"
SKIPPED_SOME = "OK, but some tests were skipped!\nTests: 3, Assertions: 3, Skipped: 1."
NEXTEST = "     Summary [ 0.1s] 2 tests run: 1 passed, 1 failed\nerror: test run failed"
CARGO = "test result: ok. 0 passed; 0 failed\ntest result: ok. 2 passed; 0 failed"
MAVEN = "[ERROR] Tests run: 2, Failures: 1, Errors: 0\n[INFO] BUILD FAILURE"
WRITTEN = ("repro.py", "/tmp/repro.py", "tools/check.sh", "pkg/demo.py", "test_mine.py")


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("cd x && pytest -q | tail -5", "test"),
        ("FOO=1 timeout 60 python3.9 -W error -m pytest", "test"),
        ("/opt/venv/bin/pytest", "test"),
        ("coverage run -m pytest", "test"),
        ("python tests/runtests.py migrations", "test"),
        ("python bin/test sympy/core", "test"),
        ("make -C doc check", "test"),
        ("npm run test:unit", "test"),
        ("./mvnw -q test", "test"),
        ("python -c 'import sympy; sympy.test(\"core\")'", "test"),
        ("python test_requests.py", "test"),
        ("bash -c 'cd a && tox -e py'", "test"),
        ("python -m mypy pkg", "lint"),
        ("black --check .", "lint"),
        ("npx tsc --noEmit", "lint"),
        ("npx tsc", "build"),
        ("python setup.py build_ext --inplace", "build"),
        ("make", "build"),
        ("make -j8", "build"),
        ("make latest", "build"),
        ("gmake check", "test"),
        ("yarn jest x", "test"),
        ("php artisan test", "test"),
        ("node node_modules/.bin/jest a", "test"),
        ("npx cross-env X=1 jest", "test"),
        ("npm --prefix web test", "test"),
        ("go -C d test ./...", "test"),
        ("./gradlew testDebugUnitTest", "test"),
        ("uvx ruff check .", "lint"),
        ("node --import tsx tools/check.sh -n", "reproduction"),
        ("tools/check.sh", "reproduction"),
        ("timeout 5 tools/check.sh", "reproduction"),
        ("cat > /tmp/x.py <<'EOF'\n1\nEOF\npython /tmp/x.py && rm /tmp/x.py", "reproduction"),
        ("basedpyright pkg", "lint"),
        ("zsh -n a.sh", "lint"),
        ("mvn -q verify", "test"),
        ("g++ -c a.cc", "build"),
        ("py.test a", "test"),
        ("make && pytest", "test"),
        ("python3 repro.py", "reproduction"),
        ("python3 -u ./repro.py --fast", "reproduction"),
        ("python3 /testbed/repro.py", "reproduction"),
        ("python3 /tmp/repro.py", "reproduction"),
        ("cd /tmp && python3 repro.py", "reproduction"),
        ("python -m pkg.demo", "reproduction"),
        ("cd pkg && python demo.py", "reproduction"),
        ("bash tools/check.sh", "reproduction"),
        ("./tools/check.sh", "reproduction"),
        ("python3 < repro.py", "reproduction"),
        ("python test_mine.py", "reproduction"),
        ("pytest test_mine.py", "test"),
        ("python3 - <<'PY'\nimport subprocess\nsubprocess.run(['pytest', '-q'], check=False)\nPY", "test"),
        ('python3 -c \'import subprocess, sys; subprocess.call([sys.executable, "-m", "mypy"])\'', "lint"),
        ("python3 <<PY\nimport os\nos.system('cd src && make test')\nPY", "test"),
        ("docker compose -f dev.yml exec -T web python manage.py test", "test"),
        ("docker-compose run --rm web npm run lint", "lint"),
        ("docker exec -itu root web bash -c 'cd /app && pytest -q | tail'", "test"),
        ('docker run --rm -v "$PWD:/src" -w /src python:3.12 pytest', "test"),
        ("docker run --rm --entrypoint pytest image -q", "test"),
        ("docker exec web docker exec inner pytest", "test"),
        ("docker exec web python repro.py", "reproduction"),
        ("podman exec app go build ./...", "build"),
        ("kubectl -n dev exec deploy/web -c app -- npm test", "test"),
        ("ssh -p 22 user@host 'cd app && dotnet test'", "test"),
        ("ssh host pytest -q", "test"),
        ("ssh host <<'EOF'\ncd app\npytest -q\nEOF", "test"),
        ("ssh host bash -s <<'EOF'\npytest -q\nEOF", "test"),
        ("su - postgres -c 'pytest -q'", "test"),
        ("nix-shell --run 'make test'", "test"),
        ("hatch run test", "test"),
        ("hatch run dev:pytest", "test"),
        ("xcrun --sdk macosx swift test", "test"),
        ("npx nx run-many -t lint", "lint"),
        ("docker compose build web", "build"),
        ("vagrant ssh box -c 'cd /vagrant && pytest -q' | tail", "test"),
        ("gcloud compute ssh vm --command='pytest -q'", "test"),
        ("nix develop .#ci -c pytest -q | tail", "test"),
        ("nix develop --command bash -c 'pytest -q'", "test"),
        ("guix shell -m manifest.scm -- go test ./...", "test"),
        ("opam exec -- dune test | tail", "test"),
        ("sshpass -p x ssh host 'cargo test'", "test"),
        ("find tests -name 'test_*.py' -exec pytest -q {} +", "test"),
        ("parallel -j 2 pytest ::: tests/a.py tests/b.py", "test"),
        ("fish -c 'mypy pkg'", "lint"),
        ("powershell.exe -Command dotnet test", "test"),
        ("wsl -e make", "build"),
        ("taskset -c 0-3 pytest -q", "test"),
    ],
)
def test_command_lines_that_are_validations(command: str, kind: ValidationKind) -> None:
    assert classify(command, WRITTEN) == kind


@pytest.mark.parametrize(
    "command",
    [
        "find . -name 'test_*.py' -exec grep -n pytest {} +",
        "vagrant ssh -c 'pip install pytest'",
        "grep -rn pytest .",
        "cat tests/test_x.py",
        "pip install pytest",
        "python -m pip install -U pytest",
        "pytest --version",
        "python -m pytest --help",
        "pytest -q --collect-only tests",
        "pytest --co",
        "which pytest",
        "command -v pytest",
        "echo pytest -q",
        "git commit -m 'run pytest'",
        "cat > run.sh <<'EOF'\npytest -q\nEOF",
        "# pytest",
        "sed -n 1,9p repro.py",
        "cat repro.py",
        "rm repro.py",
        "python other.py",
        "python -c 'import repro'",
        "python -c 'import pytest; print(pytest.__version__)'",
        "make clean",
        "make -n test",
        "test -f repro.py",
        "[ -d tests ]",
        "black .",
        "ls bin/test",
        "vim repro.py",
        "tox -l",
        "npx playwright install",
        "npx tsc -v",
        "gcc -v",
        "ctest -N",
        "mypy --version",
        "python3 - <<'PY'\nprint('subprocess.run([\"pytest\"])')\nPY",
        "python3 - <<'PY'\nimport subprocess\nsubprocess.run(['git', 'diff'])\nPY",
        "python setup.py --version",
        "docker exec web cat tests/test_x.py",
        "docker exec web test -f x",
        "docker run --rm image",
        "docker compose up -d",
        "docker exec -it pytest",
        "kubectl get pods",
        "kubectl exec web -- pip install pytest",
        "ssh host",
        "ssh host 'cat test.log'",
        "npm install test",
        "npm run dev",
        "xcodebuild -list",
        "",
    ],
)
def test_mentions_of_runners_are_no_validations(command: str) -> None:
    assert classify(command, WRITTEN) is None


@pytest.mark.parametrize(
    ("command", "output", "exit_code", "expected"),
    [
        # (1) The summary of the runner, whatever the exit code.
        ("pytest -q", PYTEST_FAILED, 1, "failed"),
        ("pytest -q | tail -5", PYTEST_FAILED, 0, "failed"),
        ("pytest; echo $?", "3 passed in 0.01s\n0", 0, "passed"),
        ("pytest", "===== 3 passed, 2 warnings in 0.01s =====", 0, "passed"),
        ("pytest", COLORED, 0, "failed"),
        ("pytest | tail -1", "=== 0 failed, 3 passed in 0.1s ===", 0, "passed"),
        ("pytest", "=== 3 passed, 1 xfailed in 65.10s (0:01:05) ===", 0, "passed"),
        ("pytest || true", "=== 2 passed, 1 error in 0.1 seconds ===", 0, "failed"),
        ("pytest -v | head -9", "tests/test_a.py::test_x FAILED   [ 5%]", 0, "failed"),
        ("pytest", "t.py::test_exception PASSED\ntest_error ok\n== 2 passed in 1s ==", 0, "passed"),
        ("pytest", "AssertionError raised as expected\n== 1 passed in 1s ==", 0, "passed"),
        ("python -m unittest", UNITTEST_PASSED, 0, "passed"),
        ("python -m unittest | tail -3", UNITTEST_FAILED, 0, "failed"),
        ("python -m unittest 2>&1 | tail -1", "FAILED (errors=1)", 0, "failed"),
        ("python -m unittest", UNITTEST_SKIPPED, 0, "passed"),
        ("./tests/runtests.py a", f"Error (expected)\n{RAN_OK}Destroying test database\n", 0, "passed"),
        ("./tests/runtests.py a; true", f"Applying a.0001_failed... OK\n{RAN_OK}", 0, "passed"),
        ("bin/test a | tail", "=== tests finished: 4 passed, in 0.30 seconds ===", 0, "passed"),
        (
            "bin/test a | tail",
            "= tests finished: 4 passed, 1 failed, in 0.3 seconds =\nDO *NOT* COMMIT!",
            0,
            "failed",
        ),
        (
            "bin/test a",
            " tests finished: 41 passed, 5 skipped, \n2 exceptions, in 0.21 seconds \n",
            1,
            "failed",
        ),
        ("npx jest", "Tests:       1 failed, 2 passed, 3 total", 1, "failed"),
        ("cargo test | tail", "test result: ok. 3 passed; 0 failed; 0 ignored", 0, "passed"),
        ("go test ./...", "ok  \tpkg/a\t0.01s\nFAIL\tpkg/b\t0.2s", 1, "failed"),
        ("mypy a | tail -1", "Success: no issues found in 3 source files", 0, "passed"),
        ("mypy a | tail -1", "Found 2 errors in 1 file (checked 3 source files)", 0, "failed"),
        ("ruff check .; true", "All checks passed!", 0, "passed"),
        ("make | tail", "gcc a.c\nmake: *** [Makefile:3: all] Error 1", 0, "failed"),
        ("rspec", "3 examples, 0 failures, 1 pending", 0, "passed"),
        ("rspec | tail", "3 examples, 1 failure", 0, "failed"),
        ("npx vitest run", " Test Files  1 failed | 1 passed (2)\n      Tests  2 passed (2)", 1, "failed"),
        ("npx vitest run", " Test Files  2 passed (2)\n      Tests  2 passed (2)", 0, "passed"),
        ("npx ava | cat", "  1 test failed\n  1 test passed", 0, "failed"),
        ("npx mocha | cat", "  3 passing (1ms)\n  1 failing", 0, "failed"),
        ("bun test | cat", " 1 pass\n 1 fail", 0, "failed"),
        ("npx playwright test | cat", "  1 failed\n  1 passed (1.2s)", 0, "failed"),
        ("npx playwright test | cat", "  2 passed (1.2s)", 0, "passed"),
        ("cargo nextest run | cat", NEXTEST, 0, "failed"),
        ("cargo test | cat", CARGO, 0, "passed"),
        ("go vet ./... | cat", "./a.go:5:2: undefined: x", 0, "failed"),
        ("pytest -q | tail", "Fatal Python error: Segmentation fault\n\nCurrent thread 0x0:", 0, "failed"),
        ("pytest -q | tail", "INTERNALERROR> ValueError: x", 0, "failed"),
        ("cat > r.py <<'EOF'\n1\nEOF\npython r.py | tail", "All tests passed", 0, "passed"),
        ("cat > r.py <<'EOF'\n1\nEOF\npython r.py | tail", "1", 0, "unknown"),
        ("find tests -exec pytest -q {} \\;", "1 failed in 0.1s\n3 passed in 0.1s", 0, "failed"),
        ("vendor/bin/phpunit | tail", SKIPPED_SOME, 0, "passed"),
        ("rails test | tail", "3 runs, 3 assertions, 1 failures, 0 errors, 0 skips", 0, "failed"),
        ("mvn -q test | tail", MAVEN, 0, "failed"),
        ("pytest | tail", "5 passed, 3 subtests passed in 0.02s", 0, "passed"),
        ("pytest | tail", "1 failed, 2 passed, 3 subtests passed in 0.02s", 0, "failed"),
        ("npx eslint . | cat", "✖ 1 problem (0 errors, 1 warning)", 0, "passed"),
        ("npx tsc --noEmit 2>&1 | head -5; echo ${PIPESTATUS[0]}", "2", 0, "failed"),
        ("python3 repro.py; pytest -q", f"{REPRO_BROKEN}3 passed in 0.1s", 0, "failed"),
        ("python3 repro.py && echo done", "FAILED: 3\ndone", 0, "failed"),
        # (2) The exit code, if it belongs to the validation.
        ("pytest -q > /dev/null", "", 0, "passed"),
        ("pytest -qq", "", 1, "failed"),
        ("flake8 a.py", "", 0, "passed"),
        ("pylint a.py", "a.py:1:0: C0114: Missing module docstring", 16, "failed"),
        ("pylint --nope", "usage: pylint [options]", 32, "environment_error"),
        ("python3 repro.py", "ok so far", 1, "failed"),
        ("pytest | tail -5", "", 0, "unknown"),
        ("pytest -q; echo done", "done", 0, "unknown"),
        ("pytest || true", "", 0, "unknown"),
        ("pytest > log 2>&1 &", "[1] 123", 0, "unknown"),
        ("python bin/test a", BROKEN_IMPORT, 1, "failed"),
        ("bin/test a | tail", BROKEN_IMPORT, 0, "failed"),
        ("pytest -q | tail -0 && git push", "remote: push failed: no access", 1, "unknown"),
        ("pytest -q && python3 repro.py", "3 passed in 0.1s\nAssertionError", 1, "failed"),
        # (3) Reproductions with exit code 0.
        ("python3 repro.py", "value: 3", 0, "passed"),
        ("python3 repro.py", "FAIL: got 3", 0, "failed"),
        ("python3 repro.py", "checking\nFAILURE - got 3", 0, "failed"),
        ("python3 repro.py", "ERROR in acreate()", 0, "failed"),
        ("python3 repro.py", "0 failed\nFAILED: 0", 0, "passed"),
        ("python3 repro.py", "Failed as expected\nError (expected)\nit did not FAIL", 0, "passed"),
        ("python3 repro.py", "AssertionError raised as expected", 0, "passed"),
        ("python3 repro.py", REPRO_BROKEN, 0, "failed"),
        ("python3 repro.py | tail -20", REPRO_BROKEN, 0, "failed"),
        # The script's own verdict that it caught a failure.
        ("python3 repro.py", "Error: no such table", 0, "failed"),
        ("python3 repro.py", "Error defining B: no attribute", 0, "failed"),
        ("python3 repro.py", "An error occurred: 'NoneType' object has no attribute 'x'", 0, "failed"),
        ("python3 repro.py", "Exception: boom", 0, "failed"),
        ("python3 repro.py", "Caught exception: TypeError: expected str", 0, "failed"),
        ("python3 repro.py", "LocationParseError: Failed to parse", 0, "failed"),
        ("python3 repro.py", "Test 3 failed", 0, "failed"),
        ("python3 repro.py", "Test Failed!", 0, "failed"),
        ("python3 repro.py", "sum failed: a Vector must be supplied", 0, "failed"),
        ("python3 repro.py", "ASCIIValidator: FAILED - accepted", 0, "failed"),
        ("python3 repro.py", "  ✗ second case", 0, "failed"),
        ("python3 repro.py", "BUG: the query is empty", 0, "failed"),
        ("python3 repro.py", "BUG REPRODUCED: xy changed", 0, "failed"),
        ("python3 repro.py", "Issue reproduced: 0 rows", 0, "failed"),
        ("python3 repro.py", "Values do not match", 0, "failed"),
        ("python3 repro.py", "created (unexpected)", 0, "failed"),
        ("python3 repro.py", "Test 1 passed\nTest 2 failed: result should be 4, got 5", 0, "failed"),
        ("python3 repro.py", "✗ FAIL: output not as expected", 0, "failed"),
        ("python3 repro.py", "✓ a\n✗ b: not escaped properly", 0, "failed"),
        ("python3 repro.py", "Test failed: Expected TypeError but nothing was raised", 0, "failed"),
        ("python3 repro.py", "BUG: not fixed yet", 0, "failed"),
        ("python3 repro.py", "Test failed: the issue is not fixed", 0, "failed"),
        ("python3 repro.py", "BUG CONFIRMED: the fixed version still fails", 0, "failed"),
        # No verdict on this run: headings, expected values and denials.
        ("python3 repro.py", "Tests passed: 5\nTests failed: 0", 0, "passed"),
        ("python3 repro.py", "FAILED tests: 0\nfailed: []\nFailed: None\nFailed: 0", 0, "passed"),
        ("python3 repro.py", "0/5 tests failed\n0 out of 5 tests failed", 0, "passed"),
        ("python3 repro.py", "None of the tests failed\nERROR count: 0\nError: False", 0, "passed"),
        ("python3 repro.py", "Test failed login: OK", 0, "passed"),
        ("python3 repro.py", "BUG FIXED", 0, "passed"),
        ("python3 repro.py", "Error message: x is wrong", 0, "passed"),
        ("python3 repro.py", "Error count: 0", 0, "passed"),
        ("python3 repro.py", "Error: None", 0, "passed"),
        ("python3 repro.py", "Issue: lines are too wide", 0, "passed"),
        ("python3 repro.py", "BUG NOT REPRODUCED: xy unchanged", 0, "passed"),
        ("python3 repro.py", "Caught expected ValueError: no", 0, "passed"),
        ("python3 repro.py", "acquiring (should fail)", 0, "passed"),
        ("python3 repro.py", "SUCCESS: Correctly failed to acquire", 0, "passed"),
        ("python3 repro.py", "InvalidURL: an invalid label", 0, "passed"),
        ("python3 repro.py", "IDs match, 0 tests failed", 0, "passed"),
        ("python3 repro.py", "Test 3 failed as it should be: failed", 0, "failed"),
        ("python3 repro.py", "Case 2 failed correctly with KeyError: failed", 0, "failed"),
        ("python3 repro.py | tail -20", "value: 3", 0, "unknown"),
        ("python3 repro.py", "value: 3", None, "unknown"),
        ("python3 repro.py", f"OK\n{REPRO_BROKEN}", 1, "failed"),
        ("python3 repro.py", UNITTEST_FAILED, 0, "failed"),
    ],
)
def test_outcomes(command: str, output: str, exit_code: int | None, expected: ValidationOutcome) -> None:
    assert judge_output(command, output, exit_code, written_scripts=WRITTEN) == expected


@pytest.mark.parametrize(
    ("command", "output", "exit_code"),
    [
        ("pytest", "bash: line 1: pytest: command not found", 127),
        ("pytest | tail", "bash: pytest: command not found", 0),
        ("python -m pytest", "/usr/bin/python: No module named pytest", 1),
        ("python -m pytest 2>&1 | tail -3", "/usr/bin/python3: No module named pytest", 0),
        ("./bin/test a", "bash: ./bin/test: No such file or directory", 127),
        ("pytest --nope", "ERROR: usage: pytest [options]\npytest: error: unrecognized arguments: --nope", 4),
        ("pytest tests/none.py", "= no tests ran in 0.00s =\nERROR: file or directory not found: x", 4),
        ("pytest -k none", "=== 5 deselected in 0.1s ===", 5),
        ("python -m unittest x", "\nRan 0 tests in 0.000s\n\nOK", 0),
        ("python -m unittest", "Ran 0 tests in 0.000s\n\nNO TESTS RAN", 5),
        ("bin/test none", "== tests finished: 0 passed, in 0.00 seconds ==", 0),
        ("python /tmp/repro.py", "python: can't open file '/tmp/repro.py': [Errno 2] No such file", 2),
        ("timeout 5 pytest", "...", 124),
        ("pytest", "....\nKilled", 137),
        ("make test", "make: *** No rule to make target 'test'.  Stop.", 2),
        ("pytest", "E   ModuleNotFoundError: No module named 'hypothesis'\n= 1 error in 0.1s =\n"
         "!!! Interrupted: 1 error during collection !!!", 2),
        ("python manage.py test", "django.core.exceptions.ImproperlyConfigured: "
         "Requested setting DATABASES, but settings are not configured.", 1),
        ("cd nowhere && pytest", "bash: line 1: cd: nowhere: No such file or directory", 1),
        ("sed -i s/a/b/ nofile && python3 repro.py", "sed: can't read nofile: No such file or directory", 2),
        ("git apply x.patch && pytest -q", "error: patch failed: a.py:3", 1),
        ("python3 - <<'EOF' && pytest -q\nassert 0\nEOF", TRACEBACK.format(file="<stdin>", error="AssertionError"), 1),
        ("pip install x && pytest -q", "ERROR: No matching distribution found for x", 1),
        ("source venv/bin/activate && pytest", "bash: venv/bin/activate: No such file or directory", 1),
        ("which tox && tox", "", 1),
        ("npx mocha", "  0 passing (1ms)", 0),
        ("go test ./a", "ok  \tpkg/a\t0.002s [no tests to run]", 0),
        ("cargo test nothing", "test result: ok. 0 passed; 0 failed; 5 filtered out", 0),
        ("mypy --foo a", "mypy: error: unrecognized arguments: --foo", 2),
        ("make test", "make: pytest: No such file or directory\nmake: *** [Makefile:2: test] Error 127", 2),
        ("npm test", "sh: 1: jest: not found", 127),
        ("cargo test", "error: could not find `Cargo.toml` in `/repo`", 101),
        ("mvn test", "[ERROR] Could not resolve dependencies for project\n[INFO] BUILD FAILURE", 1),
        ("npx vitest run | tail", "bash: line 1: npx: command not found", 0),
        ("docker compose exec web pytest -q", 'service "web" is not running', 1),
        ("docker exec web pytest | tail", "OCI runtime exec failed: exec failed: unable to start container process: "
         'exec: "pytest": executable file not found in $PATH: unknown', 0),
        ("docker exec web pytest -q", "Error response from daemon: No such container: web", 1),
        ("kubectl exec web -- pytest -q", 'Error from server (NotFound): pods "web" not found', 1),
        ("ssh host pytest -q | tail", "ssh: connect to host host port 22: Connection refused", 0),
        ("ssh host pytest -q", "bash: line 1: pytest: command not found", 127),
        ("flake8 nothing.py", "nothing.py:0:1: E902 FileNotFoundError: No such file", 1),
        ("docker run --rm img pytest", "docker: Cannot connect to the Docker daemon at unix:///x.", 125),
        ("kubectl exec pod -- pytest", "The connection to the server localhost:8080 was refused - x", 1),
        ("ssh host pytest -q", "Permission denied (publickey,password).", 255),
        ("vagrant ssh -c 'pytest -q'", "VM must be running to open SSH connection.", 1),
        ("podman exec app pytest", 'Error: no container with name or ID "app" found: no such container', 125),
        ("poetry run pytest | tail", "Command not found: pytest", 0),
        ("uv run pytest | tail", "error: Failed to spawn: `pytest`\n  Caused by: No such file", 0),
        ("npm test", "> jest\n\nsh: jest: command not found", 1),
        ("bundle exec rspec | tail", "bundler: command not found: rspec", 0),
        ("just test", "error: Justfile does not contain recipe `test`.", 1),
        ("timeout 60 pytest -q | tail -3", "Terminated", 0),
        ("pytest -q | tail", "ImportError while loading conftest\nModuleNotFoundError: No module named 'hypothesis'", 0),
    ],
)  # fmt: skip
def test_environment_errors(command: str, output: str, exit_code: int) -> None:
    assert judge_output(command, output, exit_code, written_scripts=WRITTEN) == "environment_error"


@pytest.mark.parametrize(
    ("command", "output", "expected"),
    [
        # A runner that always prints a summary, and printed none, did not run.
        ("npx vitest run", "", ("unknown", None)),
        ("node --version && npx vitest run", "v20.11.0", ("unknown", None)),
        ("docker exec web npx vitest run", "", ("unknown", None)),
        ("pytest -q", "", ("unknown", None)),
        ("pytest -q; echo $?", "0", ("unknown", None)),
        ("pytest -q && echo done", "done", ("unknown", None)),
        ("pytest -q && flake8 a.py", "", ("unknown", None)),
        ("python repro.py && pytest -q", "value: 3", ("unknown", None)),
        ("terraform validate", "", ("unknown", None)),
        # Its summary is not visible, or replaced by another report.
        ("pytest -q > /dev/null", "", ("passed", "exit_code_only")),
        ("set -o pipefail; npx jest | tail -1", "", ("passed", "exit_code_only")),
        ("npx vitest run --reporter=json", "{}", ("passed", "exit_code_only")),
        ("mvn -q test", "", ("passed", "exit_code_only")),
        # A command that may print anything states nothing by its silence.
        ("npm test", "> app@1.0.0 test", ("passed", "exit_code_only")),
        ("make test", "", ("passed", "exit_code_only")),
        ("make test", "All tests passed", ("passed", "explicit")),
        # The silence of a linter or a compiler is its verdict.
        ("flake8 a.py", "", ("passed", "explicit")),
        ("npx tsc --noEmit", "", ("passed", "explicit")),
        ("make", "gcc -c a.c", ("passed", "explicit")),
        ("pytest -q", "3 passed in 0.1s", ("passed", "explicit")),
    ],
)
def test_a_pass_without_a_summary(command: str, output: str, expected: tuple[str, str | None]) -> None:
    assert judge(command, find_validations(command, WRITTEN), output, 0, False) == expected


def test_a_timeout_has_no_outcome_without_a_summary() -> None:
    assert judge_output("pytest", "......", None, timed_out=True) == "environment_error"
    assert judge_output("pytest", "= 1 failed in 3s =", None, timed_out=True) == "failed"


def test_an_import_error_caused_by_an_edit_is_a_failure() -> None:
    output = (
        "___ ERROR collecting tests/test_a.py ___\n/testbed/pkg/core.py:3: in <module>\n    import missing\n"
        "E   ModuleNotFoundError: No module named 'missing'\n=== 1 error in 0.1s ==="
    )
    assert judge_output("pytest", output, 2) == "environment_error"
    assert judge_output("pytest", output, 2, edited_files=("pkg/core.py",)) == "failed"
    missing = "E   ModuleNotFoundError: No module named 'pkg.gone'\n=== 1 error during collection in 0.1s ==="
    output = f"___ ERROR collecting t.py ___\n{missing}"
    assert judge_output("pytest", output, 2, edited_files=("pkg/other.py",)) == "failed"


def test_an_error_in_the_written_script_is_a_failure() -> None:
    by_name = TRACEBACK.format(
        file="repro.py",
        error='  File "<frozen importlib._bootstrap>", line 9, in _find_and_load_unlocked\n'
        "ModuleNotFoundError: No module named 'repro_app'",
    )
    assert judge_output("python repro.py", by_name, 1, written_scripts=WRITTEN) == "failed"
    typo = TRACEBACK.format(file="repro.py", error="NameError: name 'x' is not defined")
    assert judge_output("python repro.py", typo, 1, written_scripts=WRITTEN) == "failed"


def test_one_failing_run_in_a_loop_fails_the_line() -> None:
    output = "= 1 failed in 0.1s =\n= 3 passed in 0.1s ="
    assert judge_output("for t in a b; do pytest $t; done", output, 0) == "failed"
    assert judge_output("pytest a; pytest b", output, 0) == "failed"
    assert judge_output("pytest a", output, 0) == "passed"


def test_no_validation_has_no_outcome() -> None:
    assert judge_output("cat log", "= 1 failed in 0.1s =", 0) == "unknown"


def test_output_is_cleaned() -> None:
    assert clean_output("\x1b[1m\x1b[31ma\x1b[0m\r\nb\x1b]0;title\x07\rc") == "a\nb\nc"


def test_evidence_is_decisive_and_bounded() -> None:
    assert extract_evidence(PYTEST_FAILED) == (
        "E   assert 1 == 2",
        "FAILED tests/test_a.py::test_one - assert 1 == 2",
        "===== 1 failed, 2 passed in 0.12s =====",
    )
    many = "\n".join(f"FAILED t.py::test_{n} - {'x' * 500}" for n in range(99)) + "\n= 99 failed in 1s ="
    lines = extract_evidence(many)
    assert len(lines) == 12
    assert lines[-1] == "= 99 failed in 1s ="
    assert max(map(len, lines)) <= 200
    assert extract_evidence("one\n\ntwo\n") == ("one", "two")


def frames(*exceptions: str, indent: str = "") -> str:
    """A traceback for each exception, one after the other."""
    link = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    return link.join(
        f'{indent}Traceback (most recent call last):\n{indent}  File "a.py", line 3, in f\n'
        f"{indent}    return g(1)\n{indent}           ^^^^\n{indent}{exception}"
        for exception in exceptions
    )


@pytest.mark.parametrize(
    "exceptions",
    [
        ("S.DoesNotExist: S matching query does not exist.",),
        ("AssertionError",),
        ("pkg.mod.Oops: text",),
        ("KeyboardInterrupt",),
        ("KeyError: 'a'", "pkg.Broken: b", "AssertionError"),
        tuple(f"pkg.Broken{number}: x" for number in range(9)),
    ],
)
@pytest.mark.parametrize("summary", ["", "\nFAILED (errors=1)\n", "\n== 1 failed in 0.12s ==\n"])
@pytest.mark.parametrize("indent", ["", "    "])
def test_evidence_keeps_the_last_line_of_every_traceback(
    exceptions: tuple[str, ...], summary: str, indent: str
) -> None:
    text = "starting\n" + frames(*exceptions, indent=indent) + "\nmore output\n" * 3 + summary
    lines = [line.strip() for line in extract_evidence(text)]
    assert [line for line in lines if line in exceptions] == list(exceptions)
    assert len(lines) <= 12


def test_evidence_of_a_cut_traceback_and_of_a_group() -> None:
    cut = '  File "a.py", line 3, in f\n    return g(1)\npkg.Oops: text\n' + "later\n" * 5
    assert "pkg.Oops: text" in extract_evidence(cut)
    group = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "a.py", line 1, in <module>\n  | ExceptionGroup: two (2 sub-exceptions)\n'
        "  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
        '    |   File "a.py", line 2, in f\n    | pkg.Oops: text\n    +------------------------------------\n'
    ) + "later\n" * 5
    assert [line.strip(" |") for line in extract_evidence(group)][:2] == [
        "ExceptionGroup: two (2 sub-exceptions)",
        "pkg.Oops: text",
    ]
    many = frames(*(f"pkg.Oops: {number}" for number in range(50))) + "\nFAILED (errors=50)\n"
    lines = extract_evidence(many)
    assert (len(lines), lines[0], lines[-2:]) == (12, "pkg.Oops: 0", ("pkg.Oops: 49", "FAILED (errors=50)"))


def test_a_script_that_says_success_first_hides_no_failure() -> None:
    text = "Success: checks skipped\nOK, next\nFailed: SystemCheckError: 1 issue\n" + "more\n" * 4
    assert extract_evidence(text) == ("Failed: SystemCheckError: 1 issue", "more")
    success = "Success: no issues found in 3 source files"
    assert extract_evidence(f"{success}\n") == (success,)


def test_evidence_of_a_script_is_what_it_says() -> None:
    error = "An error occurred: 'NoneType' object has no attribute 'x'"
    text = f"step 1\n{error}\n" + "note\n" * 4 + "a\nb\ndone\n"
    assert extract_evidence(text) == (error, "a", "b", "done")


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        ("Mismatch! Expected: [1, 2], Got: [1]", "failed"),
        ("No mismatches!", "passed"),
        ("Mismatch ratio: 0.0", "passed"),
        ("Mismatch count = 0", "passed"),
        ("Mismatches: set()", "passed"),
        ("2 mismatches found", "failed"),
        ("Test dtype mismatch: passed", "passed"),
        ("x failed with: None", "passed"),
        ("failed with exit code 0", "passed"),
        ("Failed: {}", "passed"),
        ("passed=2 failed=1", "failed"),
        ("3 passed, 0 failed", "passed"),
        ("found 10 failed logins", "passed"),
        ("2/3 tests passed", "failed"),
        ("3/3 tests passed", "passed"),
        ("Not all tests passed", "failed"),
        ("Got unexpected result: 3", "failed"),
        ("No unexpected results", "passed"),
        ("AssertionError", "failed"),
        ("Got TypeError: x", "failed"),
        ("raises ✓\nparses ✗", "failed"),
        ("✓ 3 passed ✗ 0 failed", "passed"),
        ("[OK] a\n[FAIL] b", "failed"),
        ("PASS: 3, FAIL: 0", "passed"),
        ("Match: False", "failed"),
        ("Bug present: False", "passed"),
        ("Bug still exists!", "failed"),
        ("NOT FIXED", "failed"),
        ("Result: 4 (expected 3)", "failed"),
        ("Result: 3 (expected 3)", "passed"),
        ("f(2) -> 5, expected 4", "failed"),
        ("expected = 3, result = 4", "failed"),
        ("Result:   3\nExpected: 4", "failed"),
        ("Result: 3\nExpected: 3", "passed"),
        ("Actual: 3 vs Expected: 3", "passed"),
        ("Expected: 5, Got: 5 PASS", "passed"),
        ("Expected ValueError but nothing was raised", "failed"),
        ("OK (expected failures=1)", "passed"),
        ("Segmentation fault (core dumped)", "failed"),
        ("Results don't match!", "failed"),
        ("n=65: mismatch", "failed"),
        ("Output mismatch: 3 lines", "failed"),
        ("Mismatches: 0", "passed"),
        ("No mismatch found", "passed"),
        ("Testing Mismatch handling", "passed"),
        ("typevar-name-mismatch: ok", "passed"),
        ("Eq(b, c).simplify() failed with: 'EmptySet' object has no attribute 'equals'", "failed"),
        ("sum failed with ValueError", "failed"),
        ("merge failed with the expected ValueError", "passed"),
        ("merge failed as expected with: bad", "passed"),
        ("0 failed with errors", "passed"),
        ("row_insert FAILED", "failed"),
        ("Ordering is INCORRECT", "failed"),
        ("Expected: 1\nGot: 2", "failed"),
        ("Got: 2\n\nExpected: 1", "failed"),
        ("  Expected: (1,)\n  Actual:   (1, 2)", "failed"),
        ("Expected output: a b c\nActual output: a b d", "failed"),
        ("Expected 3 but got 4", "failed"),
        ("Got ['b'], expected ['a']", "failed"),
        ("Expected <A>, got <B>", "failed"),
        ("f(3): 0 (Expected: 1)", "failed"),
        ("visible=False, expected=True", "failed"),
        ("Expected: 1000000\nGot: 1000001", "failed"),
        ("Expected: [1, 2]\nGot: [1,2]", "passed"),
        ("Expected: 0.1\nGot: 0.1000000000001", "passed"),
        ("Expected '2', got 2", "passed"),
        ("f(3): 1 (Expected: 1)", "passed"),
        ("Expected: 3\nGot: 3 (OK)", "passed"),
        ("Expected: ValueError\nGot: ValueError: bad", "passed"),
        ("Expected: a list\nGot: [1]", "passed"),
        ("Expected: red (or an equivalent)\nActual: (1, 0, 0)", "passed"),
        ("Expected color: blue", "passed"),
        ("not enough values to unpack (expected 2, got 0)", "passed"),
        ("PASS: raised ValueError as expected: expected 3 got 2", "passed"),
        ("Caught expected error: 'a' received multiple values for 'b'", "passed"),
    ],
)
def test_a_scripts_own_verdict(output: str, outcome: ValidationOutcome) -> None:
    assert judge_output("python3 repro.py", output, 0, written_scripts=("repro.py",)) == outcome
