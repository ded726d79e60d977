"""Host resources that tests of several packages share: Docker with a base image, and PostgreSQL."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib.util
import itertools
import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from . import postgres
from .chat_server import ChatServer
from .environment import standardize_environment
from .random_examples import CHECKS_OFF, SEED, draw, examples

BASE_IMAGE = "takeover/base:latest"
SHARED_DIRECTORY = Path(__file__).parents[2] / "shared"
_BUILDER = Path(__file__).parents[1] / "examples" / "offline_images.py"
_SLOW_TIMEOUT_S = 600
_MIXED_PARTS = 20
_LEAST_DRAWN = 3
_LONG_MODULES = (
    "tests/evals/cluster/test_cluster.py",
    "tests/handoff/agents/test_contract.py",
    "tests/sandbox/test_random_repositories.py",
    "tests/evals/test_docker.py",
    "tests/test_examples.py",
    "tests/evals/test_interruptions.py",
    "tests/evals/studio/test_graphs.py",
    "tests/graph/continuation/test_live.py",
    "tests/test_docs.py",
    "tests/graph/own_graphs/test_deepagents.py",
)
"""The slow tests of each take minutes."""


def pytest_configure(config: pytest.Config) -> None:
    standardize_environment()
    gc.disable()  # collected tests live until the end
    common = settings(database=None, deadline=None, suppress_health_check=CHECKS_OFF)
    settings.register_profile("fixed", common, derandomize=True, max_examples=examples(100))
    settings.register_profile("random", common, print_blob=True)
    settings.load_profile("random" if SEED else "fixed")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    items[:] = _mix_packages(items)
    _mark_further_cases(items)
    items[:] = _draw_cases(items)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_TIMEOUT_S))
    yield  # which leaves the chosen tests
    items[:] = _begin_with_long_modules(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))


def pytest_collection_finish(session: pytest.Session) -> None:
    # A worker holds ten thousand tests and their modules; each full garbage collection would search them all.
    gc.freeze()
    gc.enable()


def _mark_further_cases(items: list[pytest.Item]) -> None:
    """Leave to the slow tests all but N cases, evenly spaced, of each test with the mark `cases(N)`."""
    groups = defaultdict(list)
    for item in items:
        if item.get_closest_marker("cases"):
            groups[item.nodeid.partition("[")[0]].append(item)
    for group in groups.values():
        marker = group[0].get_closest_marker("cases")
        number = marker.args[0] if marker else 0
        first_tier = {place * len(group) // number for place in range(number)}
        for place, item in enumerate(group):
            if place not in first_tier:
                item.add_marker("slow")


def _draw_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """Leave, of each test's slow cases, those that the seed draws; without a seed, all."""
    groups = defaultdict(list)
    for item in items:
        if SEED is not None and item.get_closest_marker("slow"):
            groups[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for name, group in groups.items():
        left_out |= {*group} - {*draw(group, _count_drawn(group), name)}
    return [item for item in items if item not in left_out]


def _count_drawn(group: list[pytest.Item]) -> int:
    """Return how many slow cases of a test a seed draws: N by `sampled(N)`; else half, or as many as `cases(N)` says.

    A test without `sampled` draws at least three, so that pairs such as two databases always run.
    """
    if marker := group[0].get_closest_marker("sampled"):
        return min(int(marker.args[0]), len(group))
    number = -(-len(group) // 2)
    if marker := group[0].get_closest_marker("cases"):
        number = min(number, int(marker.args[0]))
    return min(max(number, _LEAST_DRAWN), len(group))


def _mix_packages(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in an order in which each part has its share of every package's modules, in their own order.

    Package after package, the tests that wait for Docker and sandboxes would run together, and the processors would idle.
    Modules stay whole, because their fixtures are made anew after every other module.
    """
    packages = defaultdict(list)
    for item in items:
        module = item.nodeid.partition("::")[0]
        packages["/".join(module.split("/")[1:-1][:1])].append((module, item))
    parts = defaultdict(list)
    for tests in packages.values():
        places: dict[str, int] = {}
        for position, (module, item) in enumerate(tests):
            place = places.setdefault(module, position * _MIXED_PARTS // len(tests))
            parts[place].append(item)
    return [item for number in range(_MIXED_PARTS) for item in parts[number]]


def _begin_with_long_modules(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the tests in an order in which each worker's share begins with its share of the longest modules.

    Begun late, they would still run when the other workers have nothing left to do.
    """
    long: dict[str, list[pytest.Item]] = {path: [] for path in _LONG_MODULES}
    others = []
    for item in items:
        long.get(item.nodeid.partition("::")[0], others).append(item)
    remaining, size, ordered = iter(others), -(-len(items) // workers), []
    for number in range(workers):
        share = [item for path in _LONG_MODULES[number::workers] for item in long[path]]
        ordered += [*share, *itertools.islice(remaining, max(size - len(share), 0))]
    return [*ordered, *remaining]


def skip_missing(reason: str) -> None:
    """Skip with a reason, or fail in continuous integration, which must have everything."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def skip_missing_agent(name: str, reason: str) -> None:
    """Skip a test that needs an external agent; only the proprietary one may be missing in continuous integration."""
    if name == "claude-code":
        pytest.skip(f"Claude Code is proprietary, so this project cannot install it: {reason}")
    skip_missing(reason)


@contextlib.contextmanager
def mount(*arguments: str | Path) -> Iterator[None]:
    """Mount a file system at the last argument, if this user may; unmount it at the end."""
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        skip_missing(f"cannot mount file systems (requires root): {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(arguments[-1])], check=True)


@contextlib.contextmanager
def mount_small_disk(directory: Path, size: str) -> Iterator[Path]:
    """A directory on its own disk of that size."""
    directory.mkdir()
    with mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory):
        yield directory


def fill_disk(disk: Path) -> Path:
    """Fill a disk completely; return the file that fills it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass
    return filler


@pytest.fixture(scope="session", autouse=True)
def _sandbox_home() -> Iterator[None]:
    """Separate the host directories of sandboxes from the user's own, and remove them at the end."""
    from langgraph_takeover.sandbox.ownership import ROOT_VARIABLE
    from langgraph_takeover.sandbox.untrusted_trees import remove_tree

    directory = Path(tempfile.mkdtemp(prefix="takeover-tests-", dir="/var/tmp"))
    directory.chmod(0o711)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ROOT_VARIABLE, str(directory))
        yield
    remove_tree(directory)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory of real data next to the checkout, if it exists."""
    if not SHARED_DIRECTORY.is_dir():
        pytest.skip("requires real data in ../shared, which is not part of the repository")
    return SHARED_DIRECTORY


@pytest.fixture(scope="session")
def base_image() -> str:
    """An image with bash, git and Python on the local daemon; one process builds it if it is missing."""
    from docker.errors import ImageNotFound

    from langgraph_takeover.sandbox.docker_client import client
    from langgraph_takeover.sandbox.interface import SandboxUnavailableError

    with Path(tempfile.gettempdir(), "takeover-tests-base-image.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            client().images.get(BASE_IMAGE)
        except SandboxUnavailableError as error:
            skip_missing(str(error))
        except ImageNotFound:
            if not _BUILDER.is_file():
                skip_missing(
                    f"image {BASE_IMAGE} not found, and {_BUILDER.name}, which builds it, is missing"
                )
            _build_base_image()
    return BASE_IMAGE


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL server of this test process."""
    if reason := postgres.unavailability_reason():
        skip_missing(reason)
    with postgres.run_server() as url:
        yield url


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[str]:
    """The URL of an empty schema on that server."""
    with postgres.create_database(postgres_url) as url:
        yield url


@pytest.fixture
def chat_server() -> Iterator[ChatServer]:
    server = ChatServer()
    yield server
    server.close()


def _build_base_image() -> None:
    spec = importlib.util.spec_from_file_location("offline_images", _BUILDER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build_base()
