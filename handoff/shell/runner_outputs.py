"""The summaries that test runners, linters and build tools print, by language."""

from __future__ import annotations

import re

from langgraph_takeover.handoff.shell.runner_summaries import (
    LineSummary,
    ValidationOutcome,
    combine,
    matches_any,
    merge,
    pytest,
    split_lines,
    sympy,
    unittest,
)

_N = r"[1-9]\d*"

# Python
pytest_counts = combine(
    pytest,
    LineSummary(
        rf"=* ?(?:\d+ [a-z]+, )*{_N} passed(?:, \d+ [a-z]+)*$",
        rf"=* ?(?:\d+ [a-z]+, )*{_N} (?:failed|errors?)(?:, \d+ [a-z]+)*$|INTERNALERROR> ",
    ),
)
"""The summary of pytest, also without its duration."""
tox = combine(
    LineSummary(
        empty=r".*could not find python interpreter|\S+: install_deps> |.*: skipped because could not find"
    ),
    LineSummary(
        r".*congratulations :\)|nox > Session \S+ was successful",
        r".*evaluation failed :\(|ERROR: +\S+: commands failed|.*: FAIL (?:code|✖)|nox > Session \S+ failed",
    ),
    pytest,
    unittest,
)
doctest = LineSummary(r"Test passed\.$", r"\*\*\*Test Failed\*\*\* [1-9]")
stestr = LineSummary(rf"- Passed: {_N}$", rf"- Failed: {_N}$", r"No tests were successful")
behave = LineSummary(
    rf"{_N} scenarios? passed, 0 failed",
    rf"\d+ (?:features?|scenarios?) passed, {_N} failed",
    r"0 scenarios passed, 0 failed|No steps directory in |ConfigError: |InvalidFileLocationError",
)
robot = LineSummary(
    rf"{_N} tests?, {_N} passed, 0 failed",
    rf"\d+ tests?, \d+ passed, {_N} failed",
    r"\[ ERROR \] (?:Parsing '.*' failed|Suite '.*' contains no tests)",
)

# JavaScript and TypeScript
javascript = LineSummary(
    rf"Tests:?\s(?!.*\b{_N} failed).*\d passed|{_N} passing\b|[#ℹ] fail 0$|{_N} tests? passed\b|{_N} passed \("
    rf"|{_N} pass$|ok \| {_N} passed|{_N} specs?, 0 failures|.*: Executed {_N} of {_N} .*SUCCESS|TOTAL: {_N} SUCCESS$"
    rf"|✔ +All specs passed!|Spec Files:\s+{_N} passed, (?!.*failed)|Passed: +{_N}$|# ok$",
    rf"Tests:?\s.*\b{_N} failed|{_N} failing\b|Test Files\s.*\b{_N} failed|Errors\s+{_N}\b|{_N} tests? failed\b"
    rf"|[#ℹ] fail +{_N}|Test Suites: .*\b{_N} failed|{_N} failed$|{_N} fail$|FAILED \| |\d+ specs?, {_N} failures?"
    rf"|.*: Executed \d+ of \d+ .*\(\d+ FAILED\)|TOTAL: {_N} FAILED|✖ +\d+ of \d+ failed|Spec Files:\s.*\b{_N} failed"
    rf"|# \{{ total: \d+, pass: \d+, fail: {_N}|Suites: .*\b{_N} fail\b|\d+/\d+ failed \(|FAIL +\""
    rf"|{_N} uncaught exceptions?$",
    r"0 passing\b|0 specs\b|No specs found|Total: +0$",
    r"No tests? (?:files? )?found|Error: No tests? (?:files? )?found|[#ℹ] tests 0$|error: No test modules found"
    r"|Couldn't find any files to test|.*[Mm]issing script:|.*: not found$|.*could not determine executable"
    r"|.*Could not read package\.json|.*Script not found|npm (?:ERR!|error) npx canceled|Could not find '"
    r"|.*test files were found, but did not match|No valid test files found|No files were found matching"
    r"|.*did not match any test files|Can't run because no spec files|Error HHE?\d+: You are not inside",
)  # fmt: skip

# Java and its relatives
maven = LineSummary(
    rf"(?:\[\w+\] +)?(?:BUILD SUCCESS|Tests run: {_N}, Failures: 0, Errors: 0(?:, Skipped: \d+)?$)",
    rf"(?:\[\w+\] +)?(?:BUILD FAIL|Tests run:.*(?:Failures|Errors): {_N})|\d+ tests? completed, {_N} failed"
    r"|\[ERROR\] (?:COMPILATION ERROR|Failed to execute goal .*(?:Compilation failure|There are test failures))",
    "",
    r".*Could not resolve (?:dependencies|all)|.*No tests were executed|.*there is no POM|.*No tests found for given"
    r"|.*Task '\S+' not found|.*No tests matching pattern|.*does not contain a Gradle build",
)


def maven_test(text: str) -> ValidationOutcome | None:
    """Parse the output of Maven or Gradle for its tests; a build without tests succeeds too."""
    lines = split_lines(text)
    has_none = matches_any(
        r"\[INFO\] No tests to run|> Task :\S*[tT]est NO-SOURCE", lines
    ) and not matches_any(rf".*Tests run: {_N}|> Task :\S*[tT]est(?: (?!NO-SOURCE)|$)", lines)
    return "environment_error" if has_none and maven(text) == "passed" else maven(text)


junit = LineSummary(
    rf"OK \({_N} tests?\)|\[ +{_N} tests successful +\]|Total tests run: {_N}, (?:Passes: \d+, )?Failures: 0",
    rf"FAILURES!!!|\[ +{_N} (?:tests|containers) failed +\]|Tests run: \d+, +Failures: {_N}"
    rf"|Total tests run: \d+, (?:Passes: \d+, )?Failures: {_N}",
    r"OK \(0 tests\)|Total tests run: 0\b|\[ +0 tests found +\]",
)
sbt = LineSummary(
    rf"(?:\[info\] )?(?:All tests passed\.|Passed: Total {_N}|Tests: succeeded {_N}, failed 0)"
    r"|Test run .* finished: 0 failed, \d+ ignored, [1-9]",
    rf"\[error\] (?:Failed tests|Failed: Total|Error: Total|\(.*TestsFailedException|\S+\.scala:\d+)"
    rf"|(?:\[info\] )?(?:\*\*\* {_N} TESTS? FAILED|Tests: succeeded \d+, failed {_N})"
    rf"|{_N} (?:targets|tasks) failed|Test run .* finished: {_N} failed",
    r"(?:\[info\] )?(?:No tests to run|No tests were executed|Passed: Total 0)|\[error\] Not a valid command: ",
)

# C# and F#
dotnet = LineSummary(
    rf"Passed! +- +Failed: +0, +Passed: +{_N}|Test Run Successful|Test summary: total: {_N}, failed: 0"
    rf"|Test run summary: Passed!|\S+ +Total: {_N}, Errors: 0, Failed: 0|Test Count: {_N}, Passed: \d+, Failed: 0"
    rf"|EXPECTO! .*\b0 failed, 0 errored|failed: 0$|Passed: {_N}$"
    rf"|\w+! +[-:] +[^:,]{{1,40}}: +0[,，] *[^:,]{{1,40}}: +{_N}[,，]",
    rf"Failed! +- +Failed: +{_N}|Test Run (?:Failed|Aborted)|Test summary: total: \d+, failed: {_N}"
    rf"|Test run summary: Failed!|\S+ +Total: \d+, Errors: (?:{_N}|0, Failed: {_N})|Test Count: .*\bFailed: {_N}"
    rf"|EXPECTO! .*\b{_N} (?:failed|errored)|failed: {_N}$|.*: error (?:CS|FS|BC)\d+: |Build FAILED|Build failed with "
    rf"|Failed: {_N}$|\w+! +[-:] +[^:,]{{1,40}}: +{_N}[,，] *[^:,]{{1,40}}: +\d+[,，]",
    r".*No test (?:is available in|matches the given testcase filter)|Skipped! +- +Failed: +0, Passed: +0"
    r"|Test summary: total: 0|.*Zero tests ran",
    r".*: error (?:MSB1003|MSB1009|NU\d+|NETSDK\d+): |Could not execute because",
)

# C and C++
ctest = LineSummary(
    r"100% tests passed",
    rf".*tests passed, {_N} tests? failed out of",
    "",
    r"No tests were found|.*Could not find executable|Failed to change working directory",
)
meson = LineSummary(
    rf"Ok: +{_N}",
    rf"(?:Fail|Timeout|Unexpected Pass): +{_N}",
    r"No tests defined|No suitable tests defined",
    r"ERROR: (?:No such build data file|Build data file|Current directory is not a meson build|.*does not match any test)",
)
cpp_tests = LineSummary(
    rf"\[  PASSED  \] {_N} test|All tests passed \({_N} assertion|(?:\[doctest\] )?test cases: +{_N} \|.*\| +0 failed"
    rf"|\*\*\* No errors detected|OK \({_N}(?:\)| tests?, {_N} ran)|100%: Checks: {_N}, Failures: 0, Errors: 0"
    rf"|{_N} Tests 0 Failures",
    r"\[  FAILED  \] |\d+ FAILED TESTS?$|(?:\[doctest\] )?test cases: +\d+ \|(?:.*\|)? +"
    rf"{_N} failed|\*\*\* {_N} failures? (?:is|are) detected|Errors \({_N} failure|!!!FAILURES!!!"
    rf"|\d+%: Checks: \d+, (?:Failures: {_N}|Failures: 0, Errors: {_N})|\d+ Tests {_N} Failures",
    r"\[  PASSED  \] 0 test|No tests ran|No test cases matched|\[doctest\] test cases: +0 \||Test setup error: no test cases",
)
"""GoogleTest, Catch2, doctest, Boost.Test, CppUnit, CppUTest, Check, cmocka and Unity."""
automake = LineSummary(
    rf"# PASS: +{_N}|# of expected passes\s+{_N}|Passed *: +{_N} \(",
    rf"# (?:FAIL|ERROR|XPASS): +{_N}|# of unexpected (?:failures|successes)\s+{_N}|Failed *: +{_N} \(",
    r"# TOTAL: +0$",
)
bazel = LineSummary(
    rf"Executed \d+ out of {_N} tests?: {_N} tests? pass(?:es)?\b|Tests finished: Pass {_N}\. Fail 0\.",
    rf"Executed .*\bfails?\b|.* (?:FAILED TO BUILD|(?:FAILED|TIMEOUT) in [\d.]+s)|.*Build did NOT complete|.*\b{_N} tests? FAILED"
    rf"|Tests finished: Pass \d+\. Fail {_N}|BUILD FAILED|.*[✕𐄂] .* failed",
    r"",
    r"ERROR: .*(?:no such (?:package|target)|not found in workspace|Unable to find package)"
    r"|.*No test targets were found|.*only supported from within a workspace",
)

# Go
go = LineSummary(
    r"ok\s+\S+\s+(?:\(cached\)|[\d.]+s)(?!.*\[no tests to run\])|DONE \d+ tests?(?:, \d+ skipped)? in "
    rf"|SUCCESS! -- {_N} Passed|Test Suite Passed|\{{\"Time\":\"[^\"]*\",\"Action\":\"pass\",\"Package\":\"[^\"]*\",\"Elapsed\"",
    rf"(?:--- )?FAIL\b(?!.*\[setup failed\])|.*\[build failed\]|\S+\.go:\d+:\d+: |\{{.*\"Action\":\"fail\""
    rf"|DONE \d+ tests?,.*\b{_N} (?:failure|error)",
    r"no Go files|.*no packages to test|.*\[no tests to run\]|.*\[no test files\]|.*\[setup failed\]"
    r"|DONE 0 tests|Found no test suites|stat .*: directory not found$",
)

# Rust, and what builds with Cargo
cargo = LineSummary(
    rf"test result: ok\. {_N} passed|Summary .*\b{_N} passed(?!.*\b{_N} failed)|Finished (?!`test)",
    r"(?:error: )?test result: FAILED|test \S.* \.\.\. FAILED$"
    r"|error(?:\[E\d+\])?: (?:could not compile|test failed|test run failed|aborting)"
    rf"|error\[E\d+\]|Error: Compiling your crate to WebAssembly failed|Summary .*\b{_N} failed",
    r"test result: ok\. 0 passed|error: no tests to run",
)
cargo_run = LineSummary("", cargo.failed + r"|thread '.*' (?:\(\d+\) )?panicked at ")

# Ruby
rspec = LineSummary(
    rf".*\b{_N} (?:examples?|runs|tests), (?:.*\b)?0 failures\b(?!, {_N} error|.* {_N} errors)",
    rf".*\b\d+ (?:examples?|runs|tests), .*\b{_N} (?:failures?|errors?)\b",
    r"0 examples, 0 failures$|0 (?:runs|tests), |.*Could not find gem",
    r"cannot load such file -- \S+_spec(?:\.rb)?$|Don't know how to build task",
)
cucumber = LineSummary(
    rf"{_N} (?:scenarios?|examples?) \((?!.*failed|.*undefined|.*ambiguous|.*broken).*\d passed",
    rf"{_N} (?:scenarios?|examples?) \(.*\b{_N} (?:failed|undefined|ambiguous|broken)",
    r"0 scenarios|0 examples|No such file or directory - features",
)

# PHP
phpunit = LineSummary(
    rf"OK \({_N} tests?|OK, but |Tests:\s(?!.*failed).*\d passed|Tests: {_N}, Assertions: \d+(?!.*(?:Failures|Errors): )",
    rf"PHP (?:Fatal|Parse) error: |(?:FAILURES|ERRORS)!$|Tests: .*(?:Failures|Errors): {_N}|Tests:\s.*\b{_N} failed",
    r"No tests executed!|No tests found|Test file \".*\" not found|Cannot open file ",
)

# Swift and Objective-C
xctest = LineSummary(
    rf"Executed {_N} tests?, with (?:{_N} tests? skipped and )?0 failures|[✔􁁛◇]? ?Test run with {_N} tests? .*passed"
    r"|\*\* TEST SUCCEEDED \*\*|▸ Test Succeeded|Test Succeeded$",
    rf"Executed \d+ tests?, with (?:\d+ tests? skipped and )?{_N} failures?|[✘􀢄]? ?Test run with .*\bfailed\b"
    r"|\*\* (?:TEST|BUILD|ARCHIVE|TEST BUILD) (?:EXECUTE )?FAILED \*\*|▸ Test Failed|Test Failed$"
    r"|\S+\.(?:swift|mm?|h):\d+:\d+: (?:fatal )?error: |error: (?:fatalError|Exited with)",
    r"Executed 0 tests|error: no tests found|No matching test cases were run",
    r"error: Could not find Package\.swift|xcodebuild: error: |xcode-select: error: ",
)
xcodebuild = LineSummary(
    r"\*\* [A-Z ]*SUCCEEDED \*\*|(?:▸ )?Build Succeeded", xctest.failed, "", xctest.not_run
)

# Dart
flutter = LineSummary(
    r".*: All tests passed!|🎉 \d+ tests passed",
    r".*: Some tests failed\.|❌ |.*Failed to load \"",
    r".*No tests (?:ran|match)|No tests were found|Test directory \".*\" (?:not found|does not)",
)

# Elixir, Erlang, Gleam
exunit = LineSummary(
    rf"(?:\d+ (?:doctests?|features?|propert(?:y|ies)), )*(?P<tests>{_N}) tests?, 0 failures(?!, (?P=tests) excluded)",
    rf"(?:\d+ (?:doctests?|features?|propert(?:y|ies)), )*\d+ tests?, {_N} failures?|== Compilation error in file"
    r"|\*\* \(\w*CompileError\)",
    rf"There are no tests to run|0 tests, 0 failures|(?P<excluded>{_N}) tests?, 0 failures, (?P=excluded) excluded",
    r"Paths given to \"mix test\" did not match|.*no test was executed|\*\* \(Mix\) (?:Could not find|The task)",
)
eunit = LineSummary(
    rf"(?:All )?{_N} tests passed|{_N} tests?, 0 failures|.*, 0 failed, {_N} (?:passed|ok)|Test passed\.$",
    rf"Failed: {_N}\.|Failed {_N} tests\.|\d+ tests?, {_N} failures?|===> (?:Error|Compiling .* failed)|.*\b{_N} failed, ",
    r"There were no tests to run|All 0 tests passed|0 tests, 0 failures",
    r"===> (?:Command \S+ not found|Unable to|Could not find|Failed to fetch|Package not found)",
)
gleam = LineSummary(
    rf"{_N} tests?, 0 failures|{_N} passed, no failures",
    rf"\d+ tests?, {_N} failures?|\d+ passed, {_N} failures?|error: (?!.*(?:not found|No such|File IO))",
    r"No tests found",
    r"error: (?:.*not found|File IO failure)",
)

# Haskell
haskell = LineSummary(
    rf"(?P<suites>{_N}) of (?P=suites) test suites \(|All {_N} tests passed|{_N} examples?, 0 failures"
    rf"|(?:Cases|Examples): {_N} +Tried: {_N} +Errors: 0 +Failures: 0$|\+\+\+ OK, passed|Test suite \S+: PASS",
    rf"(?P<suites>\d+) of (?!(?P=suites) )\d+ test suites|{_N} out of \d+ tests failed"
    rf"|\d+ examples?, {_N} failures?|(?:Cases|Examples): \d+ +Tried: \d+ +Errors: (?:{_N}|0 +Failures: {_N})|\*\*\* Failed!"
    r"|Test suite \S+: FAIL|Test suite failure for package|Error: \[S-7282\]|\S+\.hs:\d+:\d+: error",
    r".*no test suites|All 0 tests passed",
    r".*(?:Could not resolve dependencies|No cabal file found|The package directory|no 'cabal\.project')",
)

# Clojure
clojure = LineSummary(
    rf"0 failures, 0 errors\.|{_N} tests?, \d+ assertions?, 0 failures\.",
    rf"(?:{_N} failures?, \d+ errors?|\d+ failures?, {_N} errors?)\.|\d+ tests?, \d+ assertions?,.* {_N} (?:failure|error)s?\."
    r"|Tests failed\.|Syntax error (?:compiling|reading)",
    r"Ran 0 tests containing|0 tests, 0 assertions",
    r".*Could not (?:find artifact|locate|transfer)|Error building classpath|.*is not a task",
)

# Lua, Perl and the Test Anything Protocol
busted = LineSummary(
    rf"{_N} success(?:es)? / 0 failures / 0 errors|Ran {_N} tests in [\d.]+ seconds, {_N} success(?:es)?, 0 failures",
    rf"\d+ success(?:es)? / (?:{_N} failures?|\d+ failures? / {_N} errors?)|Ran \d+ tests in .*\b{_N} (?:failure|error)",
    r"0 successes / 0 failures / 0 errors",
    r"Error -> (?:Cannot find file or directory|No test files found)",
)
prove = LineSummary(r"Result: PASS$", r"Result: FAIL$", r"Result: NOTESTS")
shunit = LineSummary("OK$", rf"FAILED \((?:failures|errors)={_N}|.*shunit2:ERROR")


def tap(text: str) -> ValidationOutcome | None:
    """Parse the Test Anything Protocol and the summary of Bats; a pass needs the plan `1..3` and every result."""
    lines = split_lines(text)
    if matches_any(
        rf"{_N} tests?, {_N} failures?|not ok \d+(?!.*# (?:TODO|SKIP|todo|skip))|Bail out!", lines
    ):
        return "failed"
    if matches_any(rf"{_N} tests?, 0 failures", lines):
        return "passed"
    if matches_any(r"0 tests, 0 failures|1\.\.0\b|(?:Error|ERROR): Test file .* does not exist", lines):
        return "environment_error"
    plan = next((int(line[3:9]) for line in lines if re.fullmatch(r"1\.\.\d{1,6}", line)), None)
    results = sum(line.startswith(("ok ", "not ok ")) for line in lines)
    return "passed" if plan and results >= plan else None


# R, Julia
testthat = LineSummary(
    rf"\[ FAIL 0 \| WARN \d+ \| SKIP \d+ \| PASS {_N} \]|Status: (?:OK|\d+ (?:WARNING|NOTE))|0 errors ✔|All ok, {_N} results",
    rf"\[ FAIL {_N} \||Status: {_N} ERROR|{_N} errors? ✖|Error: Test failures|\* checking tests .*ERROR",
    r"\[ FAIL 0 \| WARN \d+ \| SKIP 0 \| PASS 0 \]$|.*No test files found",
    r"Error in (?:library|loadNamespace)\(.*there is no package",
)
julia = LineSummary(
    r"Testing \S+ tests passed|Test Summary: +\| +Pass +Total",
    r".*Some tests did not pass|.*errored during testing|Test Failed at |Test Summary: +\|.*\b(?:Fail|Error)\b",
    "",
    r".*Package \S+ not found in current path|.*expected package .* to be registered",
)

# Other languages
ocaml = LineSummary(
    rf"Test Successful in|Ran: {_N} tests in: .*|OK$",
    rf"{_N} failures?! in |FAILED: Cases: {_N}|Error: (?!I cannot find the root)",
    "",
    r"Error: I cannot find the root|Error: Library \".*\" not found",
)
zig = LineSummary(
    rf"All {_N} tests passed|{_N} passed; \d+ skipped; 0 failed|Build Summary: (?P<steps>\d+)/(?P=steps) steps succeeded",
    rf"error: {_N} of \d+ tests? failed|\d+ passed; \d+ skipped; {_N} failed|Build Summary: .*\b{_N} failed"
    r"|error: the following (?:test )?command (?:failed|terminated)|\S+\.zig:\d+:\d+: error: |.* transitive failure",
    r"All 0 tests passed",
    r"error: (?:no build\.zig|.*build\.zig file|unable to find zig installation)",
)
nim = LineSummary(
    r"PASS: \S+|\[OK\] |.*Success: All tests passed",
    r"FAIL: \S+|\[FAILED\] |.*Error: +(?:execution|Execution|Some tests)",
)
dlang = LineSummary(
    rf"{_N} modules passed unittests|All unit tests have been run successfully",
    r"\d+/\d+ modules FAILED unittests|core\.exception\.\w+@|Error Program exited with code|.*: Error: ",
    "",
    r"No (?:package|configuration) .*found|Error .*No valid root package",
)
pester = LineSummary(
    rf"Tests Passed: {_N}, Failed: 0\b",
    rf"Tests Passed: \d+, Failed: {_N}|Tests completed .*failed",
    r"Tests Passed: 0, Failed: 0\b",
    r".*No test files were found|.*The term 'Invoke-Pester' is not recognized",
)
forge = LineSummary(
    rf"(?:Suite|Test) result: ok\. {_N} passed; 0 failed|Ran {_N} test suites?.*: {_N} tests passed, 0 failed",
    rf"(?:Suite|Test) result: FAILED|Ran \d+ test suites?.*, {_N} failed|Encountered a total of {_N} failing"
    r"|(?:Error: )?Compiler run failed",
    "",
    r"No tests (?:found in project|match the provided pattern)|.*could not (?:download|install) solc",
)
move = LineSummary(
    rf"Test result: OK\. Total tests: {_N}; passed: {_N}; failed: 0",
    r"Test result: FAILED|error\[[EW]\d+\]|.*Failed to build Move modules|.*Move Compilation failed|\"Error\": \"Move unit test",
    r"Test result: OK\. Total tests: 0\b",
    r".*Unable to find package manifest|.*Unable to resolve packages",
)
cairo = LineSummary(
    rf"Tests: {_N} passed, 0 failed|test result: (?:ok|OK)\. {_N} passed; 0 failed|(?:\[\S+\] )?{_N} tests? passed",
    rf"Tests: \d+ passed, {_N} failed|(?:Error: )?test result: FAILED|(?:\[\S+\] )?{_N} tests? failed"
    r"|error: could not compile|error(?:\[E\d+\])?: (?!.*manifest)",
    r"Tests: 0 passed, 0 failed|test result: ok\. 0 passed",
    r"error: (?:failed to read manifest|manifest path|could not find `?Scarb\.toml)|.*no such command: ",
)
terraform = LineSummary(
    rf'Success! (?:The configuration is valid|{_N} passed, 0 failed)|\{{?"valid": ?true',
    r'(?:│ )?Error: |Failure! |\{?"valid": ?false',
    r"Success! 0 passed, 0 failed",
    r"(?:│ )?Error: (?:Missing required provider|Module not installed|Could not load plugin|Inconsistent dependency lock"
    r"|Initialization required|Backend initialization required|Required plugins are not installed|Failed to query available)",
)
gut = LineSummary(
    rf"-+ +All tests passed! +-+|Overall Summary: {_N} test cases \| 0 errors \| 0 failures|Passing(?: Tests)? +{_N}$",
    rf"-+ +{_N} failing tests|Failing(?: Tests)? +{_N}$|Overall Summary: .*\| {_N} (?:errors|failures)",
    r"Tests +0$|.*Could not find any tests|.*No tests found",
)
vlang = LineSummary(
    rf"Summary for all V _test\.v files: {_N} passed",
    rf"Summary for all V _test\.v files: {_N} failed",
    r"Summary for all V _test\.v files: 0 total|No test files found",
)
lisp = LineSummary(
    rf"Fail: 0 \( *0%\)|% All {_N} tests passed|✓ {_N} tests? completed|{_N} tests? passed$|0 failure\(s\) 0 error\(s\) {_N} test"
    rf"|Ran {_N} (?:tests|specs), (?:\d+ results as expected, 0 unexpected|0 failed)",
    rf"Fail: {_N} \(|(?:% )?{_N} tests? (?:are )?failed|× {_N} of \d+ tests? failed|{_N}/\d+ test failures"
    rf"|.*\b(?:{_N} failure\(s\)|{_N} error\(s\))"
    rf"|Ran \d+ (?:tests|specs),.*\b{_N} (?:unexpected|failed)",
    r"Ran 0 (?:tests|specs)",
)
matlab = LineSummary(
    rf"{_N} Passed, 0 Failed|PASSES (?P<octave>{_N}) out of (?P=octave) test",
    rf"\d+ Passed, {_N} Failed|!!!!! test failed|PASSES (?P<octave>\d+) out of (?!(?P=octave) )\d+ test",
    "0 Passed, 0 Failed",
)
apex = LineSummary(r"Outcome +Passed", r"Outcome +Failed", r"Outcome +Skipped|Tests Ran +0$")
dbt = LineSummary(
    r"(?:[\d:]+ +)?Done\. PASS=\d+ WARN=\d+ ERROR=0\b|(?:[\d:]+ +)?Completed successfully",
    rf"(?:[\d:]+ +)?(?:Done\. PASS=\d+ WARN=\d+ ERROR={_N}|Completed with {_N} error|Encountered an error)",
    r".*Nothing to do\.",
    r".*(?:No dbt_project\.yml found|Could not find profile|Could not find adapter type|not find profile named)",
)
elm = LineSummary(
    r"TEST RUN PASSED", r"TEST RUN FAILED|-- [A-Z ]+ -+ .*\.elm$", r"TEST RUN INCOMPLETE because there are no"
)

# Programs that run the scripts of packages
workspaces = LineSummary(
    rf"Tasks: +(?P<tasks>{_N}) successful, (?P=tasks) total|> *NX +Successfully ran targets?|NX +Successfully ran targets?"
    r"|lerna success run Ran |==\[ SUCCESS: \d+",
    rf"(?:> *)?NX +(?:Running targets? .* failed|Ran target.*failed)|✖ +\d+/\d+ (?:targets )?failed|Failed: +\S+#\S+"
    rf"|(?:\d+ )?ERROR +run failed|lerna ERR! .* exited {_N}|==\[ FAILURE: \d+|.*ERR_PNPM_RECURSIVE_RUN",
    r"Tasks: +0 successful, 0 total|No tasks were executed",
    r"(?:> *)?NX +(?:Cannot find (?:project|configuration)|Could not find|The current directory isn't part of an Nx workspace)"
    r"|.*(?:[Cc]ould not find task|[Mm]issing tasks in project|Could not find `?turbo\.json)",
)

# Linters
syntax_errors = LineSummary("", r"(?:Sorry: )?(?:Syntax|Indentation|Tab)Error: ")
error_lines = LineSummary("", r"\S+\.\w+:\d+(?::\d+)?:? (?:[A-Z]+\d+\b|error:|[A-Z]+ ).*")
ruff = LineSummary(
    r"All checks passed!|.*already formatted$|.*would be left unchanged\.$",
    rf"Found {_N} errors?|.*would be reformatted",
)
mypy = LineSummary(r"Success: no issues found", rf"Found {_N} errors? in |\S+:\d+(?::\d+)?: error: ")
pyright = LineSummary(r"0 errors\b", rf"{_N} errors?,")
eslint = LineSummary(
    rf"✖ {_N} problems? \(0 errors",
    rf"✖ {_N} problems? \([1-9]|\S+\.[cm]?[jt]sx?:\d+:\d+: ",
    not_run="No files matching the pattern|ESLint couldn't find",
)
tsc = LineSummary("", r".*\berror TS\d+")
web_check = LineSummary(
    r"svelte-check found 0 errors|- 0 errors$|.*COMPLETED \d+ FILES 0 ERRORS|Checked \d+ files? .*No fixes applied"
    r"|All matched files use Prettier|Found \d+ warnings? and 0 errors|No errors!|Checked \d+ files?$",
    rf"svelte-check found {_N} errors?|- {_N} errors?$|.*COMPLETED \d+ FILES {_N} ERRORS|Found {_N} errors?\b"
    rf"|.*Code style issues (?:found|in)|Found \d+ warnings? and {_N} errors?|.*\berror TS\d+|Found {_N} problem"
    r"|.*\bTS\d+ \[ERROR\]|error: (?:Found|Type checking)",
    "",
    r"No (?:svelte|files) (?:input )?files were found|\[error\] No files matching|.*No files were processed",
)
findings = LineSummary(
    r"No issues found|.*no offenses detected|\[OK\] No errors|0 issues\.|.*Done linting! Found 0 violations"
    r"|.*errors: 0, warnings: |No errors! Great job|No type error detected|No hints|Success: no problems found"
    r"|Total: 0 warnings / 0 errors|All Finished|.*found no issues|.*0 lint findings|done \(passed successfully\)",
    rf"{_N} issues? found|{_N} issues?:$|.*\b{_N} offenses? detected|\[ERROR\] Found {_N} error|.*linting took .*errors: {_N}"
    rf"|{_N} issue\(s\) found|Errors: {_N}$|Detected {_N} problem|{_N} hints?$|Failure: {_N} problem"
    rf"|Total: \d+ warnings? / {_N} errors?|L: +\d+ \| P: +\d+ \| +\w+ \|"
    rf"|.*Done linting! Found \d+ violations?, {_N} serious|(?:error|warning) -? ?.* [-•] \S+:\d+:\d+ [-•]"
    r"|(?:vet: )?\S+\.go:\d+:\d+: ",
    "",
    r"User Error: (?:No dialect|Specified path)|No Gemfile|No such file",
)

# Builds
make = LineSummary("", r"(?:g?make|mingw32-make)(?:\[\d+\])?: \*\*\* .*\bError \d+")
sphinx = LineSummary(r"build succeeded\b", r"build finished with problems|Sphinx error:|Extension error")
compiler = LineSummary(
    "",
    r"\S+:\d+:(?:\d+:)? (?:fatal )?error: |error: (?!unexpected argument|no such command)|error: command '.*' failed"
    r"|\S+\.go:\d+:\d+: ",
)
bundler = LineSummary(
    r"Application bundle generation complete|Build at: .* - Hash: |✓ (?:built in|Compiled successfully)"
    r"|webpack .*compiled successfully|✨ +Built in|\[build\] Complete!|created \S+ in \d",
    r"(?:X|✘) \[ERROR\]|Application bundle generation failed|Error: .*error (?:TS|NG)\d+|Failed to compile|error during build:"
    rf"|webpack .*compiled with {_N} error|\[!\] |🚨 +Build failed|.*\berror TS\d+|ERROR in |Build failed|✖ Failed to",
    "",
    r"Error: This command is not available when running the Angular CLI outside|.*Could not find the '@angular",
)
images = LineSummary(
    r"Successfully (?:built|tagged) |(?:#\d+ )?naming to .* done|=> => naming to |COMMIT |.* (?:Built|built)$",
    r"ERROR: failed to (?:solve|build)|failed to solve: |(?:ERROR: )?The command '.*' returned a non-zero code"
    r"|(?:ERROR: )?Service '.*' failed to build|Error: (?:building at STEP|error building)|target \S+: failed to solve",
    "",
    r".*Cannot connect to the Docker daemon|.*no configuration file provided|.*no such service: |unable to prepare context"
    r"|.*failed to read dockerfile|.*no such host|.*TLS handshake timeout|.*i/o timeout",
)
nix = LineSummary(
    "all checks passed!",
    r"error: (?!.*(?:experimental Nix feature|could not find a flake|unable to download))",
)

any_test = merge(
    pytest, unittest, sympy, tap, behave, robot, javascript, maven, junit, sbt, dotnet, ctest, meson, cpp_tests,
    automake, bazel, go, cargo, rspec, cucumber, phpunit, xctest, flutter, exunit, eunit, haskell, clojure, busted,
    prove, testthat, julia, zig, matlab, dlang, pester, forge, move, terraform, dbt, workspaces, make,
)  # fmt: skip
"""For commands that may run any test runner, such as `make test`."""


_PACKAGE_PREFIX = re.compile(r"^[\w@./-]{1,100}(?::[\w-]{1,40})?(?: [\w:.-]{1,40})?(?:: | ?\| ?)")
"""What runs of several packages print before each line: `packages/a test: `, `web:test: `, `web-1  | `."""


def packages_test(text: str) -> ValidationOutcome | None:
    """Parse the output of any test runner, also if each line starts with the name of its package."""
    outcome = any_test(text)
    if outcome is not None:
        return outcome
    return any_test("\n".join(_PACKAGE_PREFIX.sub("", line[:1_000]) for line in text.split("\n")))
