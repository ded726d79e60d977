"""Speed of sandboxes: snapshot, restore, commands and listing changes, compared with limits and peers.

Every figure is a median over the rounds of one run; compared operations alternate within each round. A snapshot ends
when the sandbox answers `true` again, a restore when the restored sandbox answers its first `true`.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks import peers, sandbox_rounds, testbed
from benchmarks.figures import format_count, print_figures, print_progress, run_command
from benchmarks.sandbox_figures import build_figures
from benchmarks.sandbox_rounds import Samples
from langgraph_takeover.sandbox.interface import BackendName, SandboxUnavailableError

_CHANGED_FILES = 3_000
"""Files changed before a large snapshot; at most half of the repository's files."""
_SIZE_RATIO = 10
_BASE_IMAGE = "takeover/base:latest"
_BACKENDS: tuple[BackendName, ...] = ("host", "docker", "process")
_EPILOG = """Examples:

python benchmarks/sandboxes.py

python benchmarks/sandboxes.py --only host --rounds 20

python benchmarks/sandboxes.py --json --no-peers >figures.json

python benchmarks/sandboxes.py --peer-python ~/swe-rex/bin/python
"""


def run_rounds(
    only: tuple[BackendName, ...], number: int, *, files: int, base: str, with_peers: bool, python: str | None
) -> tuple[Samples, str]:
    """Run the rounds; return the samples and a description of the repository."""
    samples, many = Samples(), min(_CHANGED_FILES, files // 2)
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        large = testbed.make_testbed(work / "testbed", files)
        small = testbed.make_testbed(work / "small", files // _SIZE_RATIO)
        repository = f"a repository of {large.files:,} files, {large.megabytes:.0f} MB with its history"
        print_progress(repository)
        stages: dict[str, Callable[[int], None]] = {}
        for backend in (name for name in only if name != "docker"):
            stages[backend] = partial(
                sandbox_rounds.measure_local, samples, backend, large.directory, work / backend, many
            )
        if stages:
            sizes = {"small": small.directory, "large": large.directory}
            backend = "host" if "host" in only else "process"
            stages[f"{backend}_sizes"] = partial(
                sandbox_rounds.measure_sizes, samples, backend, sizes, work / "sizes"
            )
        image = None
        if "docker" in only:
            with _record_reason(samples, "docker"):
                image = stack.enter_context(testbed.build_image(base, {"testbed": large.directory}))
                stages["docker"] = partial(
                    sandbox_rounds.measure_docker, samples, image, work / "docker", many, with_peers
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
    """Record why a stage cannot be measured on this host."""
    try:
        yield
    except SandboxUnavailableError as error:
        samples.reasons[name] = str(error)


def main(
    number: Annotated[
        int, typer.Option("--rounds", min=1, help="Number of rounds; figures are medians.")
    ] = 5,
    only: Annotated[
        list[str] | None, typer.Option(help="Back end: host, docker or process. Repeatable.")
    ] = None,
    files: Annotated[int, typer.Option(min=100, help="Number of files in the repository.")] = testbed.FILES,
    with_peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Measure the daemon's own commands and SWE-ReX, too.")
    ] = True,
    image: Annotated[str, typer.Option(help="Base image of the docker sandbox.")] = _BASE_IMAGE,
    peer_python: Annotated[
        str | None,
        typer.Option(help="Python interpreter with swe-rex. Default: this one.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure the speed of sandboxes, compared with limits and peers."""
    unknown = set(only or ()) - set(_BACKENDS)
    if unknown:
        raise typer.BadParameter(
            f"unknown back end {', '.join(sorted(unknown))} (choose from: {', '.join(_BACKENDS)})"
        )
    backends = tuple(name for name in _BACKENDS if not only or name in only)
    samples, repository = run_rounds(
        backends, number, files=files, base=image, with_peers=with_peers, python=peer_python
    )
    figures = build_figures(samples, min(_CHANGED_FILES, files // 2), (files // _SIZE_RATIO, files))
    print_figures(f"medians of {format_count(number, 'round')} on {repository}", figures, as_json=as_json)


if __name__ == "__main__":
    run_command(main, _EPILOG)
