"""All benchmarks, one after another, each in a process of its own; one table, and the same as a file."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from pydantic import ValidationError

from benchmarks.account import Account, Part, markdown, table
from benchmarks.figures import Figure, paper, refuse, say
from benchmarks.host import Meter, this_host
from benchmarks.recorded import HELP

_HERE = Path(__file__).resolve().parent
SIZES = {
    "sandbox": (["--rounds", "5"], ["--rounds", "1", "--files", "600", "--no-peers"]),
    "runtime": (["--rounds", "5"], ["--rounds", "1", "--steps", "10", "--long-steps", "200"]),
    "detection": (["--rounds", "7"], ["--rounds", "1"]),
    "experiment": (["--repeats", "2"], ["--repeats", "1", "--limit", "1", "--rows", "1000", "--jobs", "400"]),
    "report": (["--rounds", "3"], ["--rounds", "1", "--takeovers", "24", "--few", "8"]),
    "handoffs": (["--handoffs", "2000"], ["--handoffs", "80", "--processes", "4"]),
    "shares": (["--steps", "300"], ["--steps", "20", "--freezes", "2", "--files", "200"]),
}
"""The benchmarks and what each is asked for, usually and quickly."""
_WITH_PEERS = ("sandbox", "runtime")
_WITH_TRACES = ("detection", "report")
FAILED, INTERRUPTED = 1, 130
_EPILOG = """Examples:

python -m benchmarks

python -m benchmarks --quick --only sandbox,report

python -m benchmarks --peer-python ~/peers/bin/python --traces ../shared/trajectories --write docs/performance.md

python -m benchmarks --from bench/20261123-020000.json --write docs/performance.md

Exit codes: 0 done, whether goals are met or not; 1 a benchmark failed, and the others' figures are told; 2 usage; 130
interrupted, with what was measured until then.
"""


def main(
    only: Annotated[
        str | None, typer.Option(help=f"Some of {', '.join(SIZES)}, with commas. Default: all.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Sizes that show that all of it works, and nothing else.")
    ] = False,
    peer_python: Annotated[
        str | None,
        typer.Option(help="A Python that has mini-swe-agent and swe-rex. Default: this one."),
    ] = None,
    traces: Annotated[list[str] | None, typer.Option(help=f"{HELP} May be given more than once.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the figures as JSON. Default: bench/<date>.json.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Markdown file to write from them, such as docs/performance.md.")
    ] = None,
    told: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: take the figures of this JSON file.")
    ] = None,
) -> None:
    """Run the benchmarks, about 20 minutes on two slow cores, and tell their figures beside peers, limits and goals."""
    if told is not None:
        account, where, code = _load(told), told, 0
    else:
        began = datetime.now(UTC)
        where = out or Path("bench") / f"{began:%Y%m%d-%H%M%S}.json"
        empty = Account(
            date=f"{began:%Y-%m-%d %H:%M} UTC",
            command=_command(quick, only, peer_python, traces),
            quick=quick,
            host=this_host(),
        )
        account, code = _measured(empty, _chosen(only), where, _asked(quick, peer_python, traces or ()))
    paper().print(table(account))
    if write is not None:
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(markdown(account))
    paper().print(
        " ".join(["Figures:", str(where), *(["  page:", str(write)] if write else [])]), markup=False
    )
    raise typer.Exit(code)


def _chosen(only: str | None) -> list[str]:
    names = list(SIZES) if only is None else only.replace(",", " ").split()
    unknown = [name for name in names if name not in SIZES]
    if unknown or not names:
        refuse(f"--only: {', '.join(unknown) or 'nothing'} is no benchmark; there are {', '.join(SIZES)}")
    return [name for name in SIZES if name in names]


def _asked(quick: bool, peer_python: str | None, traces: list[str] | tuple[str, ...]) -> dict[str, list[str]]:
    asked = {name: list(sizes[quick]) for name, sizes in SIZES.items()}
    for name in _WITH_PEERS if peer_python else ():
        asked[name] += ["--peer-python", str(peer_python)]
    for name in _WITH_TRACES:
        asked[name] += traces
    return asked


def _command(quick: bool, only: str | None, peer_python: str | None, traces: list[str] | None) -> str:
    """What was asked for, without the names that files have on this host."""
    words = ["python -m benchmarks", *(["--quick"] if quick else []), *([f"--only {only}"] if only else [])]
    words += ["--peer-python PYTHON"] if peer_python else []
    return " ".join([*words, *(["--traces DIR"] if traces else [])])


def _measured(
    account: Account, names: list[str], where: Path, asked: dict[str, list[str]]
) -> tuple[Account, int]:
    """Every benchmark's part, in the file as soon as it is there; and the exit code."""
    code = 0
    for number, name in enumerate(names, 1):
        say(f"{number}/{len(names)} {name}")
        part, interrupted = _run(name, asked[name])
        account = account.model_copy(update={"parts": (*account.parts, part)})
        account.save(where)
        say(f"{number}/{len(names)} {name}: {part.error or f'{part.seconds:.0f} s'}")
        if interrupted:
            return account, INTERRUPTED
        code = FAILED if part.error else code
    return account, code


def _run(name: str, asked: list[str]) -> tuple[Part, bool]:
    """One benchmark's figures, and whether a person ended it."""
    script = _HERE / f"{name}.py"
    about = ast.get_docstring(ast.parse(script.read_text())) or ""
    meter, began, error, interrupted = Meter(), time.perf_counter(), "", False
    with tempfile.TemporaryFile("w+") as output:
        try:
            code, last = _followed([sys.executable, str(script), *asked, "--json"], output)
        except KeyboardInterrupt:
            code, last, interrupted = INTERRUPTED, "interrupted", True
        output.seek(0)
        title, figures = _told(output.read())
    if code != 0:
        error = f"exit code {code}" if figures else last or f"exit code {code}"
    elif not figures:
        error = "it told no figures"
    part = Part(
        name=name,
        about=about,
        command=_shown(name, asked),
        title=title,
        seconds=round(time.perf_counter() - began, 1),
        stolen=round(meter.read().stolen, 4),
        figures=figures,
        error=error,
    )
    return part, interrupted


def _shown(name: str, asked: list[str]) -> str:
    """The command without the names that files have on this host."""
    words, after = [f"python benchmarks/{name}.py"], ""
    for word in asked:
        words.append("PYTHON" if after == "--peer-python" else "DIR" if os.sep in word else word)
        after = word
    return " ".join(words)


def _followed(command: list[str], output: IO[str]) -> tuple[int, str]:
    """Run it and show how far it is; its exit code and the last line that it said."""
    environment = os.environ | {"PYTHONPATH": str(_HERE.parent)}
    last = ""
    with subprocess.Popen(
        command, env=environment, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.strip():
                last = line.strip()
                say(f"  {line.rstrip()}")
    return running.returncode, last


def _told(text: str) -> tuple[str, tuple[Figure, ...]]:
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        return "", ()
    return found["title"], tuple(Figure.model_validate(each) for each in found["figures"])


def _load(path: Path) -> Account:
    try:
        return Account.model_validate_json(path.read_bytes())
    except OSError as error:
        refuse(f"--from: {path}: {(error.strerror or str(error)).lower()}")
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        refuse(f"--from: {path}: {field}: {first['msg'].lower()}; name a file that this program wrote")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=_EPILOG)(main)
    app(prog_name="python -m benchmarks")
