"""Kits for the contract: every backend, started from one small git repository."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.backends import overlay
from langgraph_takeover.sandbox.interface import Sandbox
from langgraph_takeover.testing.sandboxes import (
    Kit,
    clean_sandbox,
    fresh_sandbox,
    make_repository,
    session_sandbox,
    store,
)

from ..conftest import skip_missing

__all__ = ["clean_sandbox", "fresh_sandbox", "session_sandbox", "store"]


_SLOW_ON_DOCKER = (
    "langgraph_takeover.testing.sandboxes.commands",
    "langgraph_takeover.testing.sandboxes.files",
)
"""Parts of the contract for which containers behave like `host`: the same shell, the same files."""
_LONG = {
    "docker": (
        "test_a_background_process_asks_during_a_snapshot",
        "test_a_disk_that_is_filled_with_files",
        "test_a_disk_that_is_filled_with_files_without_a_name",
        "test_a_hostile_record_cannot_do_more_than_run_a_command_inside",
        "test_a_killed_runs_stale_resources_are_removed",
        "test_a_long_chain_of_snapshots",
        "test_a_lost_or_changed_snapshot",
        "test_a_path_that_changes_its_type_while_it_is_read",
        "test_a_program_that_writes_over_its_command_line",
        "test_a_restore_starts_processes_only_if_the_caller_says_so",
        "test_a_restored_sandbox_can_be_snapshotted",
        "test_a_restored_sandbox_can_listen",
        "test_a_server_that_does_not_start_again_is_a_result",
        "test_a_shell_that_the_agent_broke_does_not_stop_a_snapshot",
        "test_a_socket_in_the_sandbox",
        "test_a_timeout_names_what_it_cannot_spare",
        "test_a_timeout_spares_a_new_worker_of_an_earlier_server",
        "test_a_zombie_does_not_run",
        "test_an_agent_that_deletes_the_way_to_a_program",
        "test_an_agents_own_marks_hide_nothing",
        "test_an_unwritable_store",
        "test_changes_are_relative_to_the_restore",
        "test_directories_nested_beyond_the_path_limit",
        "test_many_names_of_one_file_are_read_once",
        "test_no_file_of_this_host_enters_a_snapshot",
        "test_processors_are_limited",
        "test_secrets_of_a_process_are_not_recorded",
        "test_sixteen_successors_at_once",
        "test_snapshots_do_not_raise_the_limit_on_the_disk",
        "test_snapshots_in_one_directory_stay_apart",
        "test_two_restores_do_not_see_each_other",
        "test_two_sandboxes_do_not_share_a_limit",
    ),
    "host": (
        "test_a_disk_that_is_filled_between_commands",
        "test_a_disk_that_the_runtimes_git_fills",
        "test_a_fork_bomb",
        "test_a_timeout_beside_a_server_kills_everything_that_the_command_started",
        "test_a_timeout_spares_what_earlier_commands_started",
        "test_an_agent_that_deletes_everything",
        "test_no_file_of_this_host_enters_a_report",
    ),
}
"""Long tests that the first tier runs on the other back end only."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        backend = item.name.partition("[")[2].partition("-")[0].removesuffix("]")
        is_alike = backend == "docker" and item.function.__module__ in _SLOW_ON_DOCKER
        if is_alike or item.originalname in _LONG.get(backend, ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository") / "testbed"
    make_repository(root)
    return root


@pytest.fixture(scope="session")
def testbed_image(request: pytest.FixtureRequest) -> Callable[[], contextlib.AbstractContextManager[str]]:
    """The base image with the repository in /testbed, built on demand and removed at the end."""

    @contextlib.contextmanager
    def build_image() -> Iterator[str]:
        base = request.getfixturevalue("base_image")
        repository = request.getfixturevalue("repository")
        from langgraph_takeover.sandbox.docker_client import client

        tag = f"takeover/contract-{secrets.token_hex(4)}"
        container = client().containers.create(base, ["true"])
        try:
            packed = subprocess.run(
                ["tar", "--owner=0", "--group=0", "-c", "-C", str(repository.parent), "testbed"],
                capture_output=True,
                check=True,
            )
            container.put_archive("/", packed.stdout)
            container.commit(tag)
        finally:
            container.remove(force=True)
        yield tag
        client().images.remove(tag, force=True)

    return build_image


_DISABLE_LOCK = threading.Lock()


def disable_overlays(open_sandbox: Callable[..., Sandbox]) -> Callable[..., Sandbox]:
    """Wrap a function that starts or restores a sandbox, so that it finds no overlayfs."""

    def open_without_overlays(*arguments: Any) -> Sandbox:
        with _DISABLE_LOCK, pytest.MonkeyPatch.context() as patch:
            patch.setattr(overlay, "unavailable_reason", lambda: "disabled by a test")
            return open_sandbox(*arguments)

    return open_without_overlays


@contextlib.contextmanager
def open_kit(name: str, repository: Path, testbed_image: Any) -> Iterator[Kit]:
    """The parameters `backend` or `backend-variant`."""
    backend, _, variant = name.partition("-")
    with contextlib.ExitStack() as stack:
        base: dict[str, Any] = {"backend": backend}
        if backend == "docker" or variant == "image":
            base["image"] = stack.enter_context(testbed_image())
        else:
            base["directory"] = repository
        if variant == "commit":
            base["snapshots"] = "commit"
        if backend == "host":
            from langgraph_takeover.sandbox.backends.host import unavailable_reason

            if reason := unavailable_reason():
                skip_missing(reason)
        open_functions = {"start": sandbox.start, "restore": sandbox.restore}
        if variant == "copied":
            open_functions = {name: disable_overlays(each) for name, each in open_functions.items()}
        kit = Kit(
            base, **open_functions, is_isolated=backend != "process", has_exact_times=backend != "docker"
        )
        stack.callback(kit.remove_stale_resources, kit.owner)
        stack.enter_context(kit.close_started())
        yield kit


# `host` runs the code of `process` too.
@pytest.fixture(scope="session", params=[pytest.param("process", marks=pytest.mark.slow), "host", "docker"])
def kit(request: pytest.FixtureRequest, repository: Path, testbed_image: Any) -> Iterator[Kit]:
    with open_kit(request.param, repository, testbed_image) as found:
        yield found
