"""How fast machines freeze, thaw, answer and tell what changed, beside their limits and their peers.

Every figure is a median over the rounds of one run, and what is compared takes turns within each round. A
freeze lasts until the machine answers a `true` again, a thaw until the thawed machine answers its first.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

# In this directory a file has the name of the package that is measured.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from rich.console import Console

from benchmarks import peers, rounds, testbed
from benchmarks.report import MEASURES, figure, table, wanting
from benchmarks.rounds import Samples
from sandbox.machine import BackendName, SandboxUnavailable

_WIDTH = 120
_BASE = "takeover/base:latest"
_BACKENDS: tuple[BackendName, ...] = ("host", "docker", "process")
_EPILOG = """Examples:

python benchmarks/sandbox.py

python benchmarks/sandbox.py --only host --rounds 20

python benchmarks/sandbox.py --json --no-peers >figures.json

python benchmarks/sandbox.py --peer-python ~/swe-rex/bin/python
"""


def run(
    only: tuple[BackendName, ...], number: int, *, base: str, with_peers: bool, python: str | None
) -> Any:
    """Run the rounds; the samples and the repository that they were taken on."""
    samples = Samples()
    say = Console(stderr=True).print
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        made = testbed.make(place / "testbed")
        say(f"repository of {made.files:,} files, {made.megabytes:.0f} MB with its history", style="dim")
        stages: dict[str, Callable[[int], None]] = {}
        for backend in (name for name in only if name != "docker"):
            stages[backend] = _local_stage(samples, backend, made.directory, place)
        found = None
        if "docker" in only:
            with _reason(samples, "docker"):
                found = stack.enter_context(testbed.image(base, {"testbed": made.directory}))
                stages["docker"] = _docker_stage(samples, found, place, with_peers=with_peers)
        if with_peers:
            with _reason(samples, "swerex"):
                peer = stack.enter_context(peers.swerex(python, base if found else None))
                samples.reasons |= peer.reasons
                stages["swerex"] = _peer_stage(samples, peer)
        for index in range(number):
            say(f"round {index + 1} of {number}", style="dim")
            for name, stage in stages.items():
                if name not in samples.reasons:
                    with _reason(samples, name):
                        stage(index)
    peaks = [value for name in _BACKENDS for value in samples.values.get(f"{name}_output_peak", [])]
    if peaks:
        samples.add("output_peak", max(peaks))
    return samples, made


def _local_stage(
    samples: Samples, backend: BackendName, directory: Path, place: Path
) -> Callable[[int], None]:
    return lambda number: rounds.local_round(samples, backend, directory, place / backend, number)


def _docker_stage(samples: Samples, image: str, place: Path, *, with_peers: bool) -> Callable[[int], None]:
    return lambda number: rounds.docker_round(samples, image, place / "docker", number, peers=with_peers)


def _peer_stage(samples: Samples, peer: peers.Swerex) -> Callable[[int], None]:
    def stage(number: int) -> None:
        for name, value in peer.round().items():
            samples.add(name, value)

    return stage


@contextlib.contextmanager
def _reason(samples: Samples, name: str) -> Any:
    """What the machine cannot do is no figure, but is told."""
    try:
        yield
    except SandboxUnavailable as error:
        samples.reasons[name] = str(error)


def main(
    number: Annotated[int, typer.Option("--rounds", min=1, help="Rounds to take medians over.")] = 5,
    only: Annotated[
        list[str] | None, typer.Option(help="host, docker or process; may be given more than once.")
    ] = None,
    with_peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Measure the daemon's own ways and SWE-ReX, too.")
    ] = True,
    image: Annotated[
        str, typer.Option(help="The image that the docker machine's base is made from.")
    ] = _BASE,
    peer_python: Annotated[
        str | None,
        typer.Option(help="A Python that has swe-rex. [default: this one]", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, no table.")] = False,
) -> None:
    """How fast machines freeze, thaw, answer and tell what changed, beside their limits and their peers."""
    unknown = set(only or ()) - set(_BACKENDS)
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: neither host, docker nor process")
    chosen = tuple(name for name in _BACKENDS if not only or name in only)
    samples, made = run(chosen, number, base=image, with_peers=with_peers, python=peer_python)
    if not as_json:
        Console(width=None if sys.stdout.isatty() else _WIDTH).print(table(samples))
        return
    figures = {measure.key: figure(measure, samples) for measure in MEASURES}
    told = {key: None if value is None else round(value, 4) for key, value in figures.items()}
    reasons = {m.key: wanting(m, samples) for m in MEASURES if told[m.key] is None}
    about = {"rounds": number, "files": made.files, "megabytes": round(made.megabytes, 1)}
    print(json.dumps(told | about | {"kernel": platform.release(), "unmeasured": reasons}, indent=2))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=_EPILOG)(main)
    app()
