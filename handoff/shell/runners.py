"""Programs whose runs are validations: their table, and their recognition in commands."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from langgraph_takeover.handoff.shell import runner_outputs
from langgraph_takeover.handoff.shell.runner_summaries import (
    LineSummary,
    SummaryParser,
    combine,
    pytest,
    sympy,
    unittest,
)
from langgraph_takeover.handoff.shell.windows import find_program_name

ValidationKind = Literal["test", "lint", "build", "reproduction"]
SuccessOutput = Literal["summary", "nothing", "anything"]
"""What a runner prints when it succeeds: always a summary, nothing or notes without a verdict, or either."""

TEST_FILE = "test file"
"""Name of the row for a Python test file run directly, which may define its tests without running them."""


class Runner(NamedTuple):
    """One row of the table."""

    name: str
    kind: ValidationKind
    pattern: str
    """Matches the normalized command, which is `pytest -q` also for `python3 -m pytest -q`."""
    parse_summary: SummaryParser
    success_output: SuccessOutput
    silenced_by: str = ""
    """Matches options with which it prints no summary."""
    runs_file: bool = False
    """It runs a file, which makes it a reproduction if the predecessor wrote the file."""


def _test(
    name: str,
    pattern: str,
    parser: SummaryParser,
    prints: SuccessOutput = "summary",
    silenced_by: str = "",
    *,
    runs_file: bool = False,
) -> Runner:
    return Runner(name, "test", pattern, parser, prints, silenced_by, runs_file)


def _lint(name: str, pattern: str, parser: SummaryParser, prints: SuccessOutput = "nothing") -> Runner:
    return Runner(name, "lint", pattern, parser, prints)


def _build(name: str, pattern: str, parser: SummaryParser, prints: SuccessOutput = "nothing") -> Runner:
    return Runner(name, "build", pattern, parser, prints)


_S = runner_outputs
_PY_OR_UNIT = combine(pytest, unittest)
_ARGS = "( .*)?"
_PACKAGE_SCRIPT = (
    r"(npm|pnpm|yarn|bun|deno task|rush|rushx)"
    r"( (run|run-script|-r|recursive|workspaces|workspace \S+|foreach|--?(prefix|filter|cwd|workspace|dir|[wCF])[ =]\S+|--?\S+)"
    r"(?= ))*+"
)
_TASK_RUNNER = (
    r"(just|invoke|inv|task|pdm|hatch|poe|rye|pixi|mise|mage|nimble|composer|moon|doit|pipenv|poetry|uv|melos|lerna|wireit"
    r"|devbox|earthly|rake|thor|grunt|gulp|alr|fpm)"
)
_NOT_OTHER_TASK = r"(?!lint|build|type-?check|format|fmt|clean|watch|install|pre|post)"
_TEST_TASK = rf"{_NOT_OTHER_TASK}\+?([\w.@/+]+[:#-])*(tests?|t|e2e|spec|unit|coverage)([:.-]\S+)?"
_LINT_TASK = r"(lint|typecheck|type-check|check-types|types|check|tsc|eslint|format[:-]check|check[:-]format|prettier:check)\S*"
_BUILD_TASK = r"(build|compile|bundle)\S*"

RUNNERS: tuple[Runner, ...] = (
    # Tests: Python
    _test("pytest", rf"(pytest|py\.test)(-[\d.]+)?{_ARGS}", _S.pytest_counts, silenced_by=r"-qq+|-q -q|.*no:terminal"),
    _test("unittest", rf"(unittest|unit2){_ARGS}", unittest),
    _test("tox", rf"tox{_ARGS}", _S.tox, "anything"),
    _test("nox", rf"nox{_ARGS}", _S.tox, "anything"),
    _test("nose", rf"(nose|nosetests|nose2)(-?[\d.]+)?{_ARGS}", unittest),
    _test("trial", rf"(twisted\.)?trial{_ARGS}", unittest),
    _test("zope", rf"(zope-testrunner|zope\.testrunner|stestr){_ARGS}", combine(_S.stestr, _PY_OR_UNIT), "anything"),
    _test("hatch", rf"hatch test{_ARGS}", pytest),
    _test("runtests", rf"(runtests|run_tests)\.py{_ARGS}", _PY_OR_UNIT, "anything"),
    _test("sympy", rf"bin/(test|doctest){_ARGS}", sympy),
    _test("sympy isolated", rf"bin/test_(isolated|\w+\.py){_ARGS}", sympy, "anything"),
    _test("manage", rf"(manage\.py|django-admin(\.py)?|django) test{_ARGS}", unittest),
    _test("setup.py test", rf"setup\.py (.* )?(test|pytest){_ARGS}", _PY_OR_UNIT, "anything"),
    _test("cpython", rf"test{_ARGS}", _PY_OR_UNIT, "anything"),
    _test("dev", rf"(dev\.py|spin|ape|brownie) test{_ARGS}", pytest, "anything"),
    _test("behave", rf"(behave|lettuce){_ARGS}", _S.behave),
    _test("robot", rf"(robot|pabot){_ARGS}", _S.robot),
    _test(TEST_FILE, rf"(test_\w+|\w+_test|tests?)\.py{_ARGS}", _PY_OR_UNIT, "anything", runs_file=True),
    _test("inline", r"-c .*\b(pytest\.main|unittest\.main|(sympy|astropy|numpy|np|scipy)\.(doc)?test)\(.*",
          _S.any_test, "anything"),
    _test("doctest", rf"doctest{_ARGS}", _S.doctest, "nothing"),
    # Tests: JavaScript and TypeScript
    _test("jest", rf"(jest|vitest|mocha|ava|jasmine|karma|cypress|playwright|wdio|testcafe|nightwatch|web-test-runner"
          rf"|wtr|uvu|lab|(react-scripts|ng|hardhat|truffle|blueprint|aegir|craco) test)(\.m?js)?{_ARGS}", _S.javascript),
    _test("anchor test", rf"anchor test{_ARGS}", combine(_S.javascript, _S.cargo)),
    _test("tap", rf"(tap|tape|qunit|bats){_ARGS}", combine(_S.javascript, _S.tap)),
    _test("node", rf"(node|deno|bun) ((?!--test( |$))-\S+ )*+(--test|test){_ARGS}", _S.javascript),
    _test("ng", rf"ng (e2e|t){_ARGS}", _S.javascript),
    # Tests: Java and its relatives
    _test("maven", rf"(mvn|mvnw|mvnd)( .*)? (test|verify|surefire:test|integration-test|failsafe:\S+){_ARGS}",
          _S.maven_test, silenced_by="-q|--quiet"),
    _test("gradle", rf"(gradle|gradlew)( .*)? (\S*:)?(test\w*|\w+Test|check){_ARGS}", _S.maven_test, silenced_by="-q|--quiet"),
    _test("ant", rf"ant( .*)? ([\w-]*test[\w-]*|junit){_ARGS}", combine(_S.maven, _S.junit), silenced_by="-q|-quiet"),
    _test("junit", rf"java .*(junit-platform-console\S*|org\.junit\.\S+|org\.testng\.TestNG"
          rf"|org\.scalatest\.tools\.Runner){_ARGS}",
          combine(_S.junit, _S.sbt)),
    _test("sbt", rf"(sbt|sbtx|mill|scala-cli|scala|amm)( .*)? '?([\w-]+[/.])*(test\w*|Test/\S+|testOnly.*){_ARGS}",
          combine(_S.sbt, _S.junit)),
    # Tests: C#, C and C++
    _test("dotnet test", rf"(dotnet (test|vstest|watch test)|vstest\.console|nunit3?-console|xunit\.console){_ARGS}", _S.dotnet,
          silenced_by=r"-v[ :]q|--verbosity[ =]q"),
    _test("ctest", rf"(ctest|cmake (?>.*?--build ).*(--target|-t) (test|check)\S*){_ARGS}", _S.ctest, silenced_by="-Q|--quiet"),
    _test("meson test", rf"(meson test|ninja (.* )?test){_ARGS}", combine(_S.meson, _S.ctest), silenced_by="-q|--quiet"),
    _test("bazel", rf"(bazel|bazelisk|buck2?|pants|plz|please)( .*)? (test|coverage){_ARGS}", combine(_S.bazel, _PY_OR_UNIT)),
    _test("runtest", rf"(runtest|llvm-lit|lit|lit\.py){_ARGS}", _S.automake),
    # Tests: Go, Rust
    _test("go test", rf"(go (-C \S+ )?test|gotestsum|ginkgo|richgo test){_ARGS}", _S.go, silenced_by="-json"),
    _test("cargo test", rf"(cross|cargo) (\+\S+ )?(-\S+ )*(test|t|nextest run|nextest r|test-sbf|test-bpf|llvm-cov|tarpaulin"
          rf"|miri test|insta test|(make|xtask) test){_ARGS}", _S.cargo),
    _test("wasm-pack test", rf"wasm-pack test{_ARGS}", _S.cargo),
    # Tests: Ruby, PHP, Perl, Lua, shell
    _test("rspec", rf"(rspec|crystal spec|shellspec|(rake|rails) (test|spec)\S*){_ARGS}",
          combine(_S.rspec, unittest)),
    _test("cucumber", rf"(cucumber|cucumber-js|behat|phpspec( run)?){_ARGS}", _S.cucumber),
    _test("phpunit", rf"(phpunit|paratest|pest|codecept( run)?|simple-phpunit|artisan test|sail (test|phpunit|pest|artisan test))"
          rf"(\.phar)?{_ARGS}", _S.phpunit),
    _test("prove", rf"(prove|pg_prove|yath( test)?){_ARGS}", _S.prove, silenced_by="-QQ"),
    _test("busted", rf"(busted|luaunit){_ARGS}", _S.busted),
    # Tests: Swift, Dart, Elixir, Erlang, Gleam
    _test("swift test", rf"swift test{_ARGS}", _S.xctest),
    _test("xcodebuild test", rf"(xcodebuild( .*)? (test|test-without-building)|fastlane (scan|test|run_tests)){_ARGS}",
          _S.xctest, silenced_by="-quiet"),
    _test("flutter test", rf"(flutter|dart|fvm flutter|very_good) test{_ARGS}", _S.flutter),
    _test("mix test", rf"mix (test\S*|coveralls\S*|espec){_ARGS}", combine(_S.exunit, _S.rspec)),
    _test("rebar3", rf"rebar3 (as \S+ )?(do )?(eunit|ct|proper)\b.*|make (eunit|ct){_ARGS}", _S.eunit),
    _test("gleam test", rf"gleam test{_ARGS}", _S.gleam),
    # Tests: Haskell, OCaml, Clojure, Lisp
    _test("cabal test", rf"(cabal|stack)( .*)? (v2-|new-)?(test|spec){_ARGS}", _S.haskell, "anything"),
    _test("dune test", rf"dune (test|runtest|build (.* )?@(runtest|test\S*)){_ARGS}", _S.ocaml, "nothing"),
    _test("lein test", rf"((lein|boot)( .*)? (test|midje|kaocha|eftest|spec)|(clj|clojure|bb) .*(test|kaocha)\S*|kaocha){_ARGS}",
          _S.clojure),
    _test("raco test", rf"raco test{_ARGS}", _S.lisp, "anything"),
    _test("lisp", r"(sbcl|ros|ecl|emacs|eask|eldev|cask|rove|clisp|swipl) .*(test|fiveam|5am|parachute|rove|ert-run"
          r"|buttercup)\S*.*",
          _S.lisp, "anything"),
    # Tests: other languages
    _test("testthat", r"(Rscript|R|r)( -\S+)* (-e|--eval) .*(testthat::|devtools::(test|check)|tinytest::|rcmdcheck|test_(dir"
          r"|file"
          rf"|local|check|package)).*|R CMD check{_ARGS}", _S.testthat),
    _test("julia", rf"julia((?>.*? -\w*e ).*\b(Pkg\.test|runtests)\b.*"
          rf"|( .*)? (\S*/)?(runtests|test_\w+|\w+_test)\.jl{_ARGS})", _S.julia),
    _test("matlab", r"(matlab .*(runtests|TestSuite|assertSuccess)|octave\S* .*\b(test|runtests)\b).*", _S.matlab),
    _test("zig build test", rf"zig( build)?( .*)? test{_ARGS}", _S.zig, "nothing"),
    _test("testament", rf"(testament|nimble test){_ARGS}", _S.nim, "anything"),
    _test("nim", rf"nim (c|cpp|js|r)(?>(?: .*?)?? (?:-r|--run)(?= ))( .*)? (\S*/)?(t|test)\w+(\.nim)?{_ARGS}", _S.nim, "anything"),
    _test("dub test", rf"dub test{_ARGS}", _S.dlang),
    _test("pester", r"(pwsh|powershell) .*(Invoke-Pester).*|Invoke-Pester.*", _S.pester),
    _test("forge test", rf"forge (test|t|coverage){_ARGS}", _S.forge, silenced_by="--json"),
    _test("sui move test", rf"(sui|aptos|move|iota) (move )?(test|unit-test){_ARGS}", _S.move),
    _test("scarb test", rf"(scarb (test|cairo-test)|snforge( test)?|cairo-test|forc test|nargo test){_ARGS}", _S.cairo),
    _test("terraform test", rf"(terraform|tofu)( -\S+)* test{_ARGS}", _S.terraform),
    _test("gut", r"godot\S* .*(gut_cmdln|gdunit|GdUnit|runtest)\S*.*", _S.gut),
    _test("v test", rf"v( -\S+)* test{_ARGS}", _S.vlang),
    _test("apex", rf"(sf|sfdx) (apex run test|force:apex:test:run){_ARGS}", _S.apex, silenced_by="--json"),
    _test("dbt test", rf"dbt test{_ARGS}", _S.dbt),
    _test("elm-test", rf"(elm-test|elm-test-rs){_ARGS}", _S.elm),
    # Tests: programs that run any runner
    _test("make test", rf"g?make (.* )?(([\w-]*[-_])?tests?|(unit|run|py)tests?|check|[\w]*test-[\w-]+|doctest){_ARGS}",
          _S.any_test, "anything"),
    _test("workspace test", rf"(nx|turbo|lerna)( .*)? ({_TEST_TASK}(:\S+)?|(-t|--targets?)[ =]\S*(test|e2e)\S*){_ARGS}",
          combine(_S.workspaces, _S.packages_test)),
    _test("npm test", rf"{_PACKAGE_SCRIPT} {_TEST_TASK}{_ARGS}", combine(_S.workspaces, _S.packages_test), "anything"),
    _test("task test", rf"{_TASK_RUNNER} ((run|exec|cmd|test --) )?(-\S+ )*+{_TEST_TASK}{_ARGS}", _S.any_test, "anything"),
    _test("test script", r"(ruby|node|perl|lua|luajit|Rscript|php|bun|tsx|ts-node|julia|dart|crystal"
          r"|elixir)( run)? (-\S+ )*(\S*/)?"
          rf"((test_\w+|[\w-]+[._-](test|spec)|testthat|tests?)\.(rb|[cm]?[jt]sx?|lua|R|php|dart|cr|exs)|\S+\.t){_ARGS}",
          combine(_S.any_test, _S.shunit), "anything", runs_file=True),
    _test("test program", rf"\./[\w-]*[tT]est[\w-]*(\.sh)?{_ARGS}",
          combine(_S.any_test, _S.shunit), "anything", runs_file=True),
    # Lint and type checks
    _lint("ruff", rf"ruff (check|format .*--(check|diff)){_ARGS}", _S.ruff, "anything"),
    _lint("flake8", rf"(flake8|pyflakes|pycodestyle|pep8|pydocstyle|vulture|bandit|pylama|prospector|yamllint|codespell){_ARGS}",
          _S.error_lines),
    _lint("pylint", rf"pylint{_ARGS}", _S.error_lines),
    _lint("mypy", rf"(mypy|dmypy|pytype|pyre|pyrefly check|ty check){_ARGS}", _S.mypy, "anything"),
    _lint("pyright", rf"(based)?pyright{_ARGS}", _S.pyright, "summary"),
    _lint("format check", rf"(black|isort|yapf|autopep8)( .*)? (--check|--check-only|-c|--diff){_ARGS}", _S.ruff),
    _lint("py_compile", rf"(py_compile|compileall){_ARGS}", _S.syntax_errors),
    _lint("eslint", rf"(eslint|stylelint|jshint|tslint|standard|xo|ng lint|next lint){_ARGS}", combine(_S.eslint, _S.findings)),
    _lint("web check", rf"(svelte-check|astro check|vue-tsc .*--noEmit|biome (check|lint|ci)|prettier .*(--check|-c)|oxlint"
          rf"|flow( check)?"
          rf"|deno (check|lint|fmt .*--check)){_ARGS}", _S.web_check, "anything"),
    _lint("tsc --noEmit", rf"(tsc|vue-tsc)( .*)? --noEmit{_ARGS}", _S.tsc),
    _lint("syntax", r"(node (--check|-c)|(ba|z|da|k)?sh -n|php -l|ruby -c|perl -c|luac -p) .*", LineSummary()),
    _lint("clippy", rf"cargo (clippy|check|fmt .*--check|deny|audit){_ARGS}", _S.cargo),
    _lint("go vet", rf"(go vet|golangci-lint run|staticcheck|gofmt -l|revive){_ARGS}", _S.findings),
    _lint("pre-commit", rf"(pre-commit|prek) run{_ARGS}", LineSummary(failed=r".*\.{3,}Failed$")),
    _lint("make lint", rf"g?make (.* )?(lint|typecheck|mypy|flake8|style){_ARGS}", _S.make),
    _lint("workspace lint", rf"(nx|turbo|lerna)( .*)? ((\S+[:#])?{_LINT_TASK}|(-t|--targets?)[ =]{_LINT_TASK}){_ARGS}",
          combine(_S.workspaces, _S.eslint, _S.tsc), "summary"),
    _lint("npm lint", rf"{_PACKAGE_SCRIPT} {_LINT_TASK}{_ARGS}",
          combine(_S.eslint, _S.web_check, _S.tsc, _S.workspaces), "anything"),
    _lint("task lint", rf"{_TASK_RUNNER} (run )?{_LINT_TASK}{_ARGS}", combine(_S.ruff, _S.mypy, _S.eslint), "anything"),
    _lint("rubocop", rf"(rubocop|standardrb|erb_?lint|srb tc|steep check|dart analyze|flutter analyze|luacheck|clj-kondo"
          rf"|swiftlint"
          rf"|hlint|gdlint|tflint|phpstan( analy[sz]e)?|psalm|dialyzer|mix (dialyzer|credo)|slither){_ARGS}",
          combine(_S.findings, _S.error_lines), "anything"),
    _lint("sqlfluff lint", rf"sqlfluff lint{_ARGS}", _S.findings, "summary"),
    _lint("terraform validate", rf"(terraform|tofu|terragrunt)( -\S+)* validate{_ARGS}", _S.terraform, "summary"),
    _lint("nix flake check", rf"nix flake check{_ARGS}", _S.nix, "anything"),
    _lint("formatting", r"(terraform fmt .*-check|gleam format .*--check|mix format .*--check-formatted|zig fmt .*--check"
          r"|scarb fmt .*--check"
          r"|forge fmt .*--check|nixpkgs-fmt --check|stylua .*--check|dart format .*--set-exit-if-changed|dune fmt"
          r"|scalafmt .*--check"
          r"|clang-format .*(-n|--dry-run)|shfmt -d|gofumpt -l|sqlfmt .*--check|php-cs-fixer .*--dry-run|gdformat .*--check"
          r"|csharpier .*--check|dotnet format .*--verify-no-changes|buf lint|buf format .*-d|actionlint|statix check|deadnix).*",
          LineSummary()),
    _lint("others", rf"(shellcheck|hadolint|clang-tidy|cppcheck|ktlint|detekt|phpcs|phpmd|solhint|ansible-lint|markdownlint\S*"
          rf"|selene|scalafix|checkstyle|cspell|djlint|vale|reek|brakeman|npm-check|gleam check|mix compile --warnings-as-errors"
          rf"|lintr|helm lint|kubeconform|xmllint|jsonlint){_ARGS}", combine(_S.error_lines, _S.gleam)),
    # Builds
    _build("setup.py build", rf"setup\.py (.* )?(build\w*|bdist\w*|sdist){_ARGS}", _S.compiler),
    _build("build", rf"(build|pyproject-build|flit build|poetry build|hatch build|uv build|maturin (build|develop)){_ARGS}",
           combine(_S.compiler, _S.cargo)),
    _build("cargo build", rf"(cross|cargo) (\+\S+ )?(build|b|build-sbf|build-bpf|contract build|rustc|doc|ndk .*build){_ARGS}",
           _S.cargo),
    _build("cargo run", rf"cargo (\+\S+ )?(run|r){_ARGS}", _S.cargo_run, "anything"),
    _build("wasm-pack build", rf"(wasm-pack build|trunk build|anchor build){_ARGS}", _S.cargo),
    _build("go build", rf"go (-C \S+ )?(build|install){_ARGS}", _S.compiler),
    _build("go run", r"go run (?!.*\.go\b).*",
           combine(_S.compiler, LineSummary(failed=r"panic: |exit status [1-9]")), "anything"),
    _build("program run", rf"(dotnet|swift|stack|cabal) run{_ARGS}",
           LineSummary(failed="|".join((_S.dotnet.failed, _S.xctest.failed, _S.haskell.failed))), "anything"),
    _build("bundler", rf"(ng build|vite build|webpack|rollup|next build|astro build|nuxt build|parcel build|tsup|esbuild"
           rf"|vue-cli-service build"
           rf"|gatsby build|remix (vite:)?build|expo export|rspack build|rsbuild build|svelte-kit build|docusaurus build"
           rf"|electron-builder){_ARGS}",
           _S.bundler, "anything"),
    _build("workspace build", rf"(nx|turbo|lerna)( .*)? ((\S+[:#])?{_BUILD_TASK}|(-t|--targets?)[ =]{_BUILD_TASK}){_ARGS}",
           combine(_S.workspaces, _S.bundler), "summary"),
    _build("npm build", rf"{_PACKAGE_SCRIPT} {_BUILD_TASK}{_ARGS}", combine(_S.bundler, _S.tsc, _S.workspaces)),
    _build("tsc", rf"tsc{_ARGS}", _S.tsc),
    _build("maven build", rf"(mvn|mvnw|mvnd|gradle|gradlew|ant)( .*)? (\S*:)?(compile\w*|package|build|assemble\w*"
           rf"|install){_ARGS}", _S.maven),
    _build("sbt compile", rf"(sbt|mill|scala-cli)( .*)? ([\w-]+[/.])*(compile|assembly|package){_ARGS}",
           combine(_S.sbt, _S.compiler)),
    _build("dotnet build", rf"(dotnet (build|publish|pack|msbuild)|msbuild){_ARGS}",
           combine(LineSummary(r"Build succeeded", _S.dotnet.failed, "", _S.dotnet.not_run), _S.compiler), "anything"),
    _build("xcodebuild", r"xcodebuild( .*)?", _S.xcodebuild, "anything"),
    _build("docker build", rf"((docker|podman|nerdctl|buildah)( buildx| image)?|docker-compose|(docker"
           rf"|podman) compose)( -\S++( (?!(?:build|bake|bud)( |$))[^-\s]\S*+)?+)*+ "
           rf"(build|bake|bud){_ARGS}", _S.images, "anything"),
    _build("bazel build", rf"(bazel|bazelisk|buck2?|pants|plz)( .*)? (build|check|lint){_ARGS}",
           LineSummary(r".*Build completed successfully|BUILD SUCCEEDED", _S.bazel.failed, "", _S.bazel.not_run), "anything"),
    _build("cmake", rf"(cmake .*--build|ninja|meson compile|swift build|scons|nmake|gn gen){_ARGS}",
           combine(_S.compiler, _S.make)),
    _build("compiler", rf"(gcc|g\+\+|clang|clang\+\+|cc|c\+\+|nvcc|javac|kotlinc|scalac|rustc|cython|cythonize|solc|vyper"
           rf"|gfortran|ghc"
           rf"|ocamlfind|ocamlopt|dmd|ldc2|fpc|valac){_ARGS}", _S.compiler),
    _build("language build", rf"(dune build|mix compile|gleam build|rebar3 compile|zig (build|build-\w+)|nim (c|cpp|check)"
           rf"|nimble build"
           rf"|crystal build|dub build|v (-\S+ )*(\.|\S+\.v)|dart compile|flutter build|elm make|raco make|cabal (v2-"
           rf"|new-)?build|stack build|lein compile)"
           rf"(?! .*\btest){_ARGS}",
           combine(LineSummary(failed="|".join((_S.exunit.failed, _S.zig.failed, _S.haskell.failed, _S.gleam.failed)),
                                     not_run="|".join((_S.gleam.not_run, _S.zig.not_run, _S.haskell.not_run))),
                      _S.elm, _S.compiler)),
    _build("contracts", rf"(forge (build|compile|b)|hardhat compile|truffle compile|brownie compile|ape compile|scarb build"
           rf"|(sui|aptos) move "
           rf"(build|compile)|tact|starknet-compile|blueprint build){_ARGS}",
           combine(
               LineSummary(r"Compiler run successful|No files changed, compilation skipped|Finished |BUILDING ",
                              rf"{_S.forge.failed}|{_S.move.failed}|{_S.cairo.failed}|Error HH\w*: Compilation failed",
                              "", rf"{_S.move.not_run}|{_S.cairo.not_run}|Error HH(?!600)\d+: ")), "anything"),
    _build("nix build", rf"(nix (build|develop --build)|nix-build){_ARGS}", _S.nix),
    _build("dbt", rf"dbt (build|run|compile|parse){_ARGS}", _S.dbt, "anything"),
    _build("sphinx", rf"(sphinx-build|sphinx|sphinx\.cmd\.build)( .*)? (\./)?docs?(/\S*)?{_ARGS}", _S.sphinx),
    _build("task build", rf"{_TASK_RUNNER} (run )?{_BUILD_TASK}{_ARGS}", combine(_S.bundler, _S.compiler), "anything"),
    _build("make", r"g?make( (?!clean|distclean|install|uninstall|help)\S+)*", combine(_S.make, _S.sphinx)),
)  # fmt: skip


_QUERY_OPTIONS = frozenset({
    "--version", "--help", "-h", "--collect-only", "--co", "--fixtures", "--markers", "--setup-plan",
    "--list-tests", "--listTests", "--list", "--listenvs", "--list-envs", "--notest", "--showconfig",
    "--dry-run", "--print-config", "--show-files", "--show-settings", "--fixtures-per-test", "--cache-show",
    "--init", "--show-only", "--no-run", "-list", "-av", "-version",
})  # fmt: skip
"""Options with which a runner prints information and validates nothing."""
_QUERY_SUBCOMMANDS = {"playwright": "install", "cypress": "verify", "vitest": "list", "tox": "config"}

_VALUED_OPTIONS = {"-W", "-X", "-Q"}
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*|py")
_MAX_WRAPPERS = 20
"""Interpreters and launchers before the runner itself; with more, nothing sensible runs."""
_WORD = re.compile(r"[A-Za-z]{2,}")
_COMMON_WORDS = {
    "py", "run", "script", "install", "uninstall", "package", "clean", "distclean", "help", "format", "diff", "all",
    "write", "only", "check", "verify", "main", "django", "init", "command", "pre", "cmd", "out", "post", "watch", "fmt", "in",
    "exec", "git", "no", "as", "do", "js", "jsx", "rb", "exit", "info", "error", "local", "set", "target", "targets", "eval",
}  # fmt: skip
"""Words of the table that occur in many other commands and never identify a runner alone."""
_COMPOSED_WORDS = {"gmake", "basedpyright", "bash", "zsh", "erblint"}
"""Words that the patterns assemble from parts."""
_RUNNER_WORDS = _COMPOSED_WORDS.union(
    word
    for row in RUNNERS
    for word in _WORD.findall(re.sub(r"\\.", " ", row.pattern))
    if word not in _COMMON_WORDS
)


def may_be_runner(text: str) -> bool:
    """Whether a text contains a word of the table; a fast check without false negatives."""
    return "est" in text or "++" in text or not _RUNNER_WORDS.isdisjoint(_WORD.findall(text))


_ANY_RUNNER = re.compile("|".join(f"(?P<r{n}>{row.pattern})" for n, row in enumerate(RUNNERS)), re.S)


_MAX_CHARS = 10_000
"""A longer command is recognized by its beginning."""


def find_runner(argv: Sequence[str]) -> Runner | None:
    """The runner that a command runs; None if it runs no validation or only prints information."""
    form = normalize_command(argv)
    if (
        not form
        or not _QUERY_OPTIONS.isdisjoint(form)
        or (form[1:2] in (["-V"], ["-v"]) and len(form) == 2 and form[0] == "make")
    ):
        return None
    if form[1:2] == [_QUERY_SUBCOMMANDS.get(form[0])] or (form[0] == "ctest" and "-N" in form):
        return None
    if len(form) == 2 and (form[1] == "-V" or (form[1] == "-v" and form[0] in ("tsc", "gcc"))):
        return None
    if form[0] in ("tox", "nox") and {"-l", "-a", "list", "l"} & set(form[1:2]):
        return None
    if form[0] in ("make", "gmake") and {"-n", "-q", "-p", "-v", "--just-print"} & set(form[1:]):
        return None
    if form[0] not in ("-c", "R", "v") and not may_be_runner(" ".join(form[:2])):
        return None
    text = " ".join(form)[:_MAX_CHARS]
    match = _ANY_RUNNER.fullmatch(text)
    return RUNNERS[int(match.lastgroup[1:])] if match and match.lastgroup else None


_INTERPRETED_RUNNERS = frozenset({
    "jest", "vitest", "mocha", "ava", "tsc", "eslint", "phpunit", "pest", "artisan", "rspec", "tap", "tape", "jasmine", "karma",
    "playwright", "cypress", "wdio", "hardhat", "svelte-check", "astro", "nx", "turbo", "ng", "biome", "prettier", "vue-tsc",
    "oxlint", "stylelint", "vite", "next", "nuxt", "webpack", "rollup", "tsup", "lerna", "react-scripts", "cucumber-js",
    "codecept", "phpstan", "psalm", "behat", "phpspec", "rubocop", "rails", "cucumber", "uvu", "qunit", "standard", "xo",
})  # fmt: skip
"""Runners that are often called by path, as in `node node_modules/.bin/jest`, or by a package manager."""


_TEST_PART = re.compile(r"(?:unit|run|all)?tests?")
_TEST_CLASS = re.compile(r"[A-Z]\w*Tests?")
_WORD_PARTS = re.compile(r"[\w-]+")


def normalize_command(argv: Sequence[str]) -> list[str]:
    """Normalize a command: `/usr/bin/python3 -W error -m pytest -q` and `./venv/bin/pytest -q` to `pytest -q`."""
    words = list(argv)
    for _ in range(_MAX_WRAPPERS):
        name = find_program_name(words[0]) if words else ""
        if name == "coverage" and words[1:2] == ["run"]:
            words = ["python", *words[2:]]
        elif _PYTHON.fullmatch(name):
            target = find_python_target(words[1:])
            if target is None or target[0] == "-c":
                return target or []
            if target[0] == "-m" and target[1] != "coverage":
                return target[1:]
            words = target[1:] if target[0] == "-m" else target
        elif name in ("node", "php", "ruby") and (script := _find_interpreted_runner(words)):
            words = [script, *words[2:]]
        elif name in ("yarn", "pnpm", "bun") and len(words) > 1 and words[1] in _INTERPRETED_RUNNERS:
            words = words[1:]
        else:
            break
    else:
        return []
    if not words:
        return []
    name = find_program_name(words[0])
    if words[0].endswith("bin/" + name) and name.partition("_")[0] in ("test", "doctest"):
        return ["bin/" + name, *words[1:]]
    if name in ("bash", "sh", "zsh") and len(words) > 1 and _is_test_program(posixpath.basename(words[1])):
        return ["./" + posixpath.basename(words[1]), *words[2:]]
    if "/" in words[0] and not words[0].startswith(("/bin/", "/usr/bin/")) and _is_test_program(name):
        return ["./" + name, *words[1:]]
    if name in ("test", "doctest"):
        # `test` is a shell builtin; it is a runner only as a file in a directory.
        return []
    return [name, *words[1:]]


def _is_test_program(name: str) -> bool:
    """Whether it is the name of a compiled test or of a script that runs tests, such as `unit-tests` or `run_tests.sh`."""
    stem = name.removesuffix(".sh")
    if _WORD_PARTS.fullmatch(stem) is None:
        return False
    for part in re.split("[-_]", stem):
        if _TEST_PART.fullmatch(part):
            return True
        if not part[:1].isalpha():
            break
    return stem == name and _TEST_CLASS.fullmatch(name) is not None


def _find_interpreted_runner(words: Sequence[str]) -> str | None:
    """The runner that `node PATH`, `php PATH` or `ruby PATH` runs."""
    path = words[1] if len(words) > 1 and not words[1].startswith("-") else ""
    script = re.sub(r"\.(?:[cm]?js|phar)$", "", posixpath.basename(path))
    return script if script in _INTERPRETED_RUNNERS else None


def find_python_target(words: Sequence[str]) -> list[str] | None:
    """The target of a Python interpreter: `-m mod …`, `-c text …` or `script …`; None if it has none."""
    at = 0
    while at < len(words):
        word = words[at]
        if word in ("-", "--version", "--help", "-V", "-h"):
            return None
        if re.fullmatch(r"-[A-Za-z]*[mc]", word) and not word.startswith(("-W", "-X")):
            return ["-" + word[-1], *words[at + 1 :]] if at + 1 < len(words) else None
        if not word.startswith("-"):
            return list(words[at:])
        is_valued = word in (*_VALUED_OPTIONS, "-a", "--rcfile", "--source", "--omit", "--include")
        at += 2 if is_valued else 1
    return None
