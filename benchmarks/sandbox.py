"""How fast machines freeze, thaw, answer and tell what changed, beside their limits and their peers.

Every figure is a median over the rounds of one run, and what is compared takes turns within each round. A
freeze lasts until the machine answers a `true` again, a thaw until the thawed machine answers its first.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

# In this directory a file has the name of the package that is measured.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks import peers, rounds, testbed
from benchmarks.figures import format_count, print_figures, print_progress, run_command
from benchmarks.measures import build_figures
from benchmarks.rounds import Samples
from langgraph_takeover.sandbox.interface import BackendName, SandboxUnavailableError

_CHANGED_FILES = 3_000
"""Files changed before a freeze; in a small repository half of its files."""
_SIZE_RATIO = 10
_BASE_IMAGE = "takeover/base:latest"
_BACKENDS: tuple[BackendName, ...] = ("host", "docker", "process")
_EPILOG = """Examples:

python benchmarks/sandbox.py

python benchmarks/sandbox.py --only host --rounds 20

python benchmarks/sandbox.py --json --no-peers >figures.json

python benchmarks/sandbox.py --peer-python ~/swe-rex/bin/python
"""


def run_rounds(
    only: tuple[BackendName, ...], number: int, *, files: int, base: str, with_peers: bool, python: str | None
) -> tuple[Samples, str]:
    """Run the rounds; the samples and a description of the repository."""
    samples, many = Samples(), min(_CHANGED_FILES, files // 2)
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        made = testbed.make_testbed(place / "testbed", files)
        small = testbed.make_testbed(place / "small", files // _SIZE_RATIO)
        repository = f"a repository of {made.files:,} files, {made.megabytes:.0f} MB with its history"
        print_progress(repository)
        stages: dict[str, Callable[[int], None]] = {}
        for backend in (name for name in only if name != "docker"):
            stages[backend] = partial(
                rounds.measure_local, samples, backend, made.directory, place / backend, many
            )
        if stages:
            sizes = {"small": small.directory, "large": made.directory}
            grown: BackendName = "host" if "host" in only else "process"
            stages[f"{grown}_sizes"] = partial(rounds.measure_sizes, samples, grown, sizes, place / "sizes")
        image = None
        if "docker" in only:
            with _record_reason(samples, "docker"):
                image = stack.enter_context(testbed.build_image(base, {"testbed": made.directory}))
                stages["docker"] = partial(
                    rounds.measure_docker, samples, image, place / "docker", many, with_peers
                )
        if with_peers:
            with _record_reason(samples, "swerex"):
                peer = stack.enter_context(peers.open_swerex(python, base if image else None))
                samples.reasons |= peer.reasons
                stages["swerex"] = lambda _: samples.add_all(peer.run_round())
        for index in range(number):
            print_progress(f"round {index + 1} of {number}")
            for name, stage in stages.items():
                if name not in samples.reasons:
                    with _record_reason(samples, name):
                        stage(index)
    return samples, repository


@contextlib.contextmanager
def _record_reason(samples: Samples, name: str) -> Iterator[None]:
    """Keep the reason why something cannot be measured here."""
    try:
        yield
    except SandboxUnavailableError as error:
        samples.reasons[name] = str(error)


def main(
    number: Annotated[int, typer.Option("--rounds", min=1, help="Rounds to take medians over.")] = 5,
    only: Annotated[list[str] | None, typer.Option(help="host, docker or process; repeatable.")] = None,
    files: Annotated[int, typer.Option(min=100, help="Files of the repository.")] = testbed.FILES,
    with_peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Measure the daemon's own ways and SWE-ReX, too.")
    ] = True,
    image: Annotated[
        str, typer.Option(help="The image that the docker machine's base is made from.")
    ] = _BASE_IMAGE,
    peer_python: Annotated[
        str | None,
        typer.Option(help="A Python that has swe-rex. Default: this one.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, no table.")] = False,
) -> None:
    """How fast machines freeze, thaw, answer and tell what changed, beside their limits and their peers."""
    unknown = set(only or ()) - set(_BACKENDS)
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: neither host, docker nor process")
    chosen = tuple(name for name in _BACKENDS if not only or name in only)
    samples, repository = run_rounds(
        chosen, number, files=files, base=image, with_peers=with_peers, python=peer_python
    )
    found = build_figures(samples, min(_CHANGED_FILES, files // 2), (files // _SIZE_RATIO, files))
    print_figures(f"medians of {format_count(number, 'round')} on {repository}", found, as_json=as_json)


if __name__ == "__main__":
    run_command(main, _EPILOG)
