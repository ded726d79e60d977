"""Kinds of files by their path: source, by a table of languages; test, scratch or generated."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple


class Language(NamedTuple):
    """One row of the table."""

    name: str
    extensions: tuple[str, ...]
    """In lower case; of two languages with one extension, the first has it."""
    example: str
    """The path of a source file."""
    script_extensions: tuple[str, ...] = ()
    """Extensions of files that an interpreter runs directly."""


def _row(name: str, extensions: str, example: str, *, scripts: str = "") -> Language:
    return Language(name, tuple(extensions.split()), example, tuple(scripts.split()))


LANGUAGES: tuple[Language, ...] = (
    _row("ABAP", ".abap", "src/zcl_report.abap"),
    _row("ActionScript", ".as", "src/Main.as"),
    _row("Ada", ".adb .ads .ada", "src/main.adb"),
    _row("Agda", ".agda", "src/Data/Nat.agda"),
    _row("AIDL", ".aidl", "app/IRemote.aidl"),
    _row("Aiken", ".ak", "validators/spend.ak"),
    _row("AMPL", ".ampl", "models/plan.ampl"),
    _row("ANTLR", ".g4", "grammar/Expr.g4"),
    _row("Apex", ".apex .trigger", "force-app/triggers/Order.trigger"),
    _row("APL", ".apl .dyalog", "src/life.apl"),
    _row("AppleScript", ".applescript", "tools/mail.applescript"),
    _row("ASP.NET", ".asp .aspx .ascx .ashx .asmx", "web/index.aspx"),
    _row("Assembly", ".s .asm .nasm", "src/boot.asm"),
    _row("Astro", ".astro", "src/pages/index.astro"),
    _row("AutoHotkey", ".ahk", "src/keys.ahk"),
    _row("AutoIt", ".au3", "src/keys.au3"),
    _row("Awk", ".awk", "tools/sum.awk"),
    _row("Ballerina", ".bal", "src/service.bal"),
    _row("BASIC", ".bas .frm", "src/Module1.bas"),
    _row("Batch", ".bat .cmd", "scripts/build.bat"),
    _row("Bicep", ".bicep", "infra/main.bicep"),
    _row("Bison, Yacc", ".y .yy", "src/parse.y"),
    _row("BitBake", ".bbclass", "meta/classes/image.bbclass"),
    _row("Blade", ".blade", "views/page.blade"),
    _row("BQN", ".bqn", "src/life.bqn"),
    _row("C", ".c .h", "src/main.c"),
    _row("C#", ".cs .csx .cake .razor .cshtml", "src/Program.cs"),
    _row("C++", ".cc .cpp .cxx .c++ .hh .hpp .hxx .h++ .inl .ipp .tpp .tcc .ixx .cppm .ino", "src/main.cpp"),
    _row("Cadence", ".cdc", "contracts/Token.cdc"),
    _row("Cairo", ".cairo", "src/erc20.cairo"),
    _row("Cap'n Proto", ".capnp", "api/user.capnp"),
    _row("Carbon", ".carbon", "src/main.carbon"),
    _row("Chapel", ".chpl", "src/jacobi.chpl"),
    _row("Circom", ".circom", "circuits/hash.circom"),
    _row("Clarity", ".clar", "contracts/token.clar"),
    _row("Clojure", ".clj .cljs .cljc .edn .bb", "src/app/core.clj"),
    _row("CMake", ".cmake", "cmake/FindX.cmake"),
    _row("COBOL", ".cob .cbl .cobol .cpy", "src/PAYROLL.cbl"),
    _row("CodeQL", ".ql .qll", "queries/unused.ql"),
    _row("CoffeeScript", ".coffee", "src/app.coffee"),
    _row("ColdFusion", ".cfm .cfc", "handlers/Main.cfc"),
    _row("Common Lisp", ".lisp .cl .lsp .asd", "src/package.lisp"),
    _row("Crystal", ".cr", "src/server.cr"),
    _row("Csound", ".csd", "src/synth.csd"),
    _row("CSS", ".css .scss .sass .less .styl", "static/site.css"),
    _row("CUDA", ".cu .cuh", "src/kernel.cu"),
    _row("CUE", ".cue", "config/app.cue"),
    _row("CWL", ".cwl", "workflows/align.cwl"),
    _row("Cypher", ".cypher", "queries/friends.cypher"),
    _row("Cython", ".pyx .pxd .pxi", "pkg/fast.pyx"),
    _row("D", ".d .di", "source/app.d"),
    _row("Dafny", ".dfy", "src/Sort.dfy"),
    _row("Dart", ".dart", "lib/main.dart"),
    _row("Dhall", ".dhall", "config/app.dhall"),
    _row("DM", ".dm", "code/game.dm"),
    _row("Eiffel", ".e", "src/application.e"),
    _row("EJS", ".ejs", "views/index.ejs"),
    _row("Elixir", ".ex .exs .eex .heex .leex", "lib/app.ex"),
    _row("Elm", ".elm", "src/Main.elm"),
    _row("Emacs Lisp", ".el", "lisp/mode.el"),
    _row("Erlang", ".erl .hrl .xrl .yrl .escript", "src/server.erl"),
    _row("F#", ".fs .fsx .fsi", "src/Library.fs"),
    _row("F*", ".fst", "src/Basic.fst"),
    _row("Factor", ".factor", "core/words.factor"),
    _row("Faust", ".dsp", "src/synth.dsp"),
    _row("Fennel", ".fnl", "src/main.fnl"),
    _row("Forth", ".fth .4th .forth", "core/words.fth"),
    _row("Fortran", ".f .f77 .f90 .f95 .f03 .f08 .for .fpp", "src/solve.f90"),
    _row("FreeMarker", ".ftl", "templates/mail.ftl"),
    _row("FunC", ".fc .func", "contracts/wallet.fc"),
    _row("Futhark", ".fut", "src/matmul.fut"),
    _row("Game Maker Language", ".gml", "scripts/move.gml"),
    _row("GAMS", ".gms", "models/plan.gms"),
    _row("GDScript", ".gd .gdshader", "scripts/player.gd"),
    _row("Gleam", ".gleam", "src/app.gleam"),
    _row("Glimmer", ".gjs .gts", "app/components/button.gts"),
    _row("GLSL", ".glsl .vert .frag .comp .geom", "shaders/light.frag"),
    _row("Go", ".go .templ", "cmd/app/main.go", scripts=".go"),
    _row("GraphQL", ".graphql .gql", "schema/user.graphql"),
    _row("Groovy", ".groovy .gvy .gsp", "src/App.groovy"),
    _row("Hack", ".hack .hhi", "src/main.hack"),
    _row("Haml", ".haml", "views/index.haml"),
    _row("Handlebars", ".hbs .handlebars", "views/page.hbs"),
    _row("Hare", ".ha", "cmd/main.ha"),
    _row("Haskell", ".hs .lhs .hsc", "src/Main.hs"),
    _row("Haxe", ".hx", "src/Main.hx"),
    _row("HCL", ".tf .hcl .nomad .tofu", "infra/main.tf"),
    _row("HLSL", ".hlsl .fx .shader", "shaders/light.hlsl"),
    _row("HTML", ".html .htm .xhtml", "templates/base.html"),
    _row("Hy", ".hy", "src/app.hy"),
    _row("Idris", ".idr", "src/Main.idr"),
    _row("Imba", ".imba", "src/app.imba"),
    _row("Inno Setup", ".iss", "installer/setup.iss"),
    _row("Interface definition", ".idl", "idl/node.idl"),
    _row("Isabelle", ".thy", "src/Basic.thy"),
    _row("ISPC", ".ispc", "kernels/blur.ispc"),
    _row("J", ".ijs", "src/life.ijs"),
    _row("Jai", ".jai", "src/main.jai"),
    _row("Janet", ".janet", "src/main.janet"),
    _row("Java", ".java", "src/main/java/App.java"),
    _row("JavaScript", ".js .jsx .mjs .cjs .es6", "src/index.js", scripts=".js .mjs .cjs"),
    _row("Jinja", ".jinja .jinja2 .j2 .tpl", "templates/mail.j2"),
    _row("Jison", ".jison", "src/grammar.jison"),
    _row("Jsonnet", ".jsonnet .libsonnet", "config/app.jsonnet"),
    _row("JSP", ".jsp", "web/index.jsp"),
    _row("Julia", ".jl", "src/App.jl", scripts=".jl"),
    _row("Just", ".just", "tasks/ci.just"),
    _row("Koka", ".kk", "src/main.kk"),
    _row("Kotlin", ".kt .kts", "src/Main.kt"),
    _row("Lean", ".lean", "src/Basic.lean"),
    _row("Leo", ".leo", "src/main.leo"),
    _row("Lex", ".l .lex", "src/scan.l"),
    _row("Liquid", ".liquid", "templates/mail.liquid"),
    _row("LLVM", ".ll", "lib/lower.ll"),
    _row("Logtalk", ".lgt", "src/rules.lgt"),
    _row("Lua", ".lua .luau .rockspec", "src/init.lua", scripts=".lua"),
    _row("M4", ".m4", "m4/check.m4"),
    _row("Make", ".mk", "rules/common.mk"),
    _row("Mako", ".mako", "templates/mail.mako"),
    _row("Mercury", ".moo", "src/queens.moo"),
    _row("Metal", ".metal", "shaders/light.metal"),
    _row("MiniZinc", ".mzn", "models/plan.mzn"),
    _row("MLIR", ".mlir", "lib/lower.mlir"),
    _row("Mojo", ".mojo", "src/main.mojo"),
    _row("Monkey C", ".mc", "source/App.mc"),
    _row("MoonBit", ".mbt", "src/lib.mbt"),
    _row("MoonScript", ".moon", "src/main.moon"),
    _row("Move", ".move", "sources/coin.move"),
    _row("MQL", ".mq4 .mq5 .mqh", "Experts/Trend.mq5"),
    _row("Mustache", ".mustache", "views/page.mustache"),
    _row("Nextflow", ".nf", "workflows/align.nf"),
    _row("Nickel", ".ncl", "config/app.ncl"),
    _row("Nim", ".nim .nims .nimble", "src/app.nim"),
    _row("Nix", ".nix", "pkgs/default.nix"),
    _row("Noir", ".nr", "src/main.nr"),
    _row("Notebooks", ".ipynb .rmd .qmd", "notebooks/explore.ipynb"),
    _row("NSIS", ".nsi .nsh", "installer/setup.nsi"),
    _row("Nunjucks", ".njk", "templates/mail.njk"),
    _row("Objective-C, MATLAB", ".m .mm .matlab", "src/View.m"),
    _row("OCaml", ".ml .mli .mll .mly .eliom", "lib/parser.ml"),
    _row("Odin", ".odin", "src/main.odin"),
    _row("Open Policy Agent", ".rego", "policy/allow.rego"),
    _row("OpenCL", ".opencl", "kernels/blur.opencl"),
    _row("OpenQASM", ".qasm", "src/teleport.qasm"),
    _row("OpenSCAD", ".scad", "parts/gear.scad"),
    _row("Oz", ".oz", "src/queens.oz"),
    _row("P4", ".p4", "src/router.p4"),
    _row("Pascal", ".pas .pp .dpr .lpr", "src/Unit1.pas"),
    _row("Pawn", ".pwn .sma", "scripting/admin.pwn"),
    _row("PEG.js", ".pegjs", "src/grammar.pegjs"),
    _row("Perl", ".pl .pm .perl .psgi", "lib/App.pm", scripts=".pl"),
    _row("PHP", ".php .phtml .inc .ctp", "src/Controller.php", scripts=".php"),
    _row("Pike", ".pike .pmod", "src/server.pike"),
    _row("Pkl", ".pkl", "config/app.pkl"),
    _row("PL/pgSQL", ".pgsql", "db/package.pgsql"),
    _row("PL/SQL", ".pls .pkb .pks .plsql", "db/package.pkb"),
    _row("Pony", ".pony", "src/main.pony"),
    _row("PowerShell", ".ps1 .psm1 .psd1", "scripts/Deploy.ps1"),
    _row("Processing", ".pde", "sketch/sketch.pde"),
    _row("Prolog", ".pro .prolog", "src/rules.prolog"),
    _row("Protocol Buffers", ".proto", "api/user.proto"),
    _row("Pug", ".pug", "views/index.pug"),
    _row("PureScript", ".purs", "src/Main.purs"),
    _row("Python", ".py .pyi .pyw .wsgi", "pkg/core.py", scripts=".py"),
    _row("Q#", ".qs", "src/Teleport.qs"),
    _row("QML", ".qml", "ui/Main.qml"),
    _row("R", ".r", "R/model.R", scripts=".r"),
    _row("Racket", ".rkt .scrbl", "src/main.rkt"),
    _row("Ragel", ".rl", "src/parse.rl"),
    _row("Raku", ".raku .rakumod .p6 .pm6", "lib/App.rakumod"),
    _row("Reason", ".re .rei", "src/App.re"),
    _row("Rebol", ".reb", "src/main.reb"),
    _row("Red", ".red", "src/main.red"),
    _row("ReScript", ".res .resi", "src/App.res"),
    _row("REXX", ".rexx .rex", "tools/job.rexx"),
    _row("Ring", ".ring", "src/main.ring"),
    _row("Roc", ".roc", "src/main.roc"),
    _row("Rocq", ".coq", "theories/Basic.coq"),
    _row("Ruby", ".rb .erb .rake .gemspec .ru .rbi .jbuilder .builder", "lib/app.rb", scripts=".rb"),
    _row("Rust", ".rs", "src/lib.rs"),
    _row("Sage", ".sage", "src/curves.sage"),
    _row("SAS", ".sas", "src/report.sas"),
    _row("Scala", ".scala .sc .sbt", "src/Main.scala"),
    _row("Scheme", ".scm .ss .sld", "src/eval.scm"),
    _row("Scilab", ".sci .sce", "src/filter.sci"),
    _row(
        "Shell",
        ".sh .bash .zsh .ksh .fish .csh .tcsh .nu .elv .xsh",
        "scripts/build.sh",
        scripts=".sh .bash .zsh",
    ),
    _row("Slang", ".slang", "shaders/light.slang"),
    _row("Slim", ".slim", "views/index.slim"),
    _row("Smalltalk", ".st", "src/Account.st"),
    _row("Smithy", ".smithy", "api/user.smithy"),
    _row("Snakemake", ".smk", "workflows/align.smk"),
    _row("Solidity", ".sol .yul", "contracts/Token.sol"),
    _row("SourcePawn", ".sp", "scripting/admin.sp"),
    _row("SPARQL", ".rq", "queries/friends.rq"),
    _row("SQL", ".sql .hql .cql .surql", "db/schema.sql"),
    _row("Squirrel", ".nut", "scripting/admin.nut"),
    _row("Stan", ".stan", "models/linear.stan"),
    _row("Standard ML", ".sml .fun", "src/list.sml"),
    _row("Starlark", ".bzl .star .bazel", "tools/defs.bzl"),
    _row("Stata", ".do .ado", "src/report.do"),
    _row("SuperCollider", ".scd", "src/synth.scd"),
    _row("Svelte", ".svelte", "src/App.svelte"),
    _row("Sway", ".sw", "src/main.sw"),
    _row("Swift", ".swift", "Sources/App/main.swift"),
    _row("SystemVerilog", ".sv .svh", "rtl/alu.sv"),
    _row("Tact", ".tact", "contracts/wallet.tact"),
    _row("Tcl", ".tcl .tk .xdc .sdc", "src/gui.tcl"),
    _row("Teal", ".tl", "src/main.tl"),
    _row("TeX classes, Apex", ".cls .sty .tex_t", "sphinx/texinputs/manual.cls"),
    _row("Thrift", ".thrift", "api/user.thrift"),
    _row("TLA+", ".tla", "proofs/Lock.tla"),
    _row("Tolk", ".tolk", "contracts/wallet.tolk"),
    _row("Twig", ".twig", "templates/page.twig"),
    _row("TypeScript", ".ts .tsx .mts .cts", "src/index.ts", scripts=".ts"),
    _row("TypeSpec", ".tsp", "api/main.tsp"),
    _row("Typst", ".typ", "book/main.typ"),
    _row("UnrealScript", ".uc", "src/Weapon.uc"),
    _row("Vala", ".vala .vapi", "src/app.vala"),
    _row("Vale", ".vale", "src/main.vale"),
    _row("Velocity", ".vm", "templates/mail.vm"),
    _row("Verilog, V", ".v .vsh .vh", "src/main.v"),
    _row("Verse", ".verse", "src/weapon.verse"),
    _row("VHDL", ".vhd .vhdl", "rtl/alu.vhd"),
    _row("Vim script", ".vim", "plugin/app.vim"),
    _row("Visual Basic", ".vb .vbs", "src/Module1.vb"),
    _row("Vue", ".vue", "src/App.vue"),
    _row("Vyper", ".vy .vyi", "contracts/token.vy"),
    _row("WDL", ".wdl", "workflows/align.wdl"),
    _row("WebAssembly", ".wat .wast", "src/add.wat"),
    _row("WebIDL", ".webidl", "idl/Node.webidl"),
    _row("WGSL", ".wgsl", "shaders/light.wgsl"),
    _row("Wolfram Language", ".wl .wls .nb", "src/Series.wl"),
    _row("Wren", ".wren", "src/main.wren"),
    _row("XQuery", ".xq .xquery .xqm", "src/page.xq"),
    _row("XSLT", ".xsl .xslt", "xsl/page.xslt"),
    _row("Xtend", ".xtend", "src/Gen.xtend"),
    _row("YARA", ".yar .yara", "rules/mal.yar"),
    _row("Zeek", ".zeek", "scripts/mal.zeek"),
    _row("Zig", ".zig .zon", "src/main.zig"),
)


NEW_PROJECT = "."
"""Among the base directories: the base has no source file, so that every new code file is source, whatever its directory."""
_TEST_PARTS = {"test", "tests", "spec", "specs"}
_GENERATED_PARTS = {
    ".git", "__pycache__", "node_modules", "_build", "htmlcov", ".tox", ".nox", ".eggs", ".venv", "venv",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis",
}  # fmt: skip
_BUILD_DIRECTORIES = {"build", "dist", "target", "out"}
_CODE_EXTENSIONS = frozenset(extension for row in LANGUAGES for extension in row.extensions)
_SCRIPT_EXTENSIONS = frozenset(extension for row in LANGUAGES for extension in row.script_extensions)


@lru_cache(maxsize=1024)
def is_code(path: str) -> bool:
    """Whether the path names program code; backups such as `x.py.bak` and `x.py~` do not."""
    parts = path.split("/")
    extension = posixpath.splitext(parts[-1])[1].lower()
    if extension:
        return extension in _CODE_EXTENSIONS
    return len(parts) > 1 and parts[-2] in ("bin", "scripts") and not parts[-1].startswith(".")


@lru_cache(maxsize=1024)
def is_script(path: str) -> bool:
    """Whether an interpreter could run the file directly."""
    return posixpath.splitext(path)[1].lower() in _SCRIPT_EXTENSIONS


def is_test(path: str) -> bool:
    """Whether the path is in a directory `test(s)`, `spec(s)` or top-level `testing`, or has the name of a test.

    A `testing` package inside another directory is part of the product, so it counts as source.
    """
    *directories, name = path.split("/")
    stem, _, rest = name.partition(".")
    if name.startswith("test_") or name == "conftest.py" or (rest and stem.endswith("_test")):
        return True
    if rest.startswith(("test.", "spec.")):
        return True
    return directories[:1] == ["testing"] or not _TEST_PARTS.isdisjoint(directories)


@lru_cache(maxsize=1024)
def is_generated(path: str) -> bool:
    """Whether the path is in a cache, in a build directory or in the data of Git."""
    directories = path.split("/")[:-1]
    return (
        not _GENERATED_PARTS.isdisjoint(directories)
        or bool(directories and directories[0] in _BUILD_DIRECTORIES)
        or any(d.endswith((".egg-info", ".dist-info")) for d in directories)
    )  # fmt: skip


@lru_cache(maxsize=1024)
def may_be_source(path: str) -> bool:
    """Whether the path is a code file of the repository that is neither test nor generated."""
    return is_code(path) and not is_test(path) and not is_generated(path) and not is_outside_repository(path)


def mark_new_project(directories: Collection[str], base_files: Iterable[str]) -> tuple[str, ...]:
    """Top-level directories of the base, and `NEW_PROJECT` if none of its files may be source."""
    is_new = not any(map(may_be_source, base_files))
    return tuple(sorted({*directories, *((NEW_PROJECT,) if is_new else ())}))


def is_outside_repository(path: str) -> bool:
    return path.startswith(("/", "~", "../"))


def is_scratch(path: str, is_in_base: bool, base_directories: Collection[str]) -> bool:
    """Whether the file is outside the repository, or new in the root or in a new top-level directory of a project with source."""
    if is_outside_repository(path):
        return True
    top, _, rest = path.partition("/")
    is_in_new_place = not rest or top not in base_directories
    return not is_in_base and is_in_new_place and NEW_PROJECT not in base_directories


def is_source(path: str, is_in_base: bool, base_directories: Collection[str]) -> bool:
    """Whether the path is a code file that is neither test, scratch nor generated."""
    return may_be_source(path) and not is_scratch(path, is_in_base, base_directories)
