"""The back end `process`: a directory and plain processes of this host. No isolation; for trusted commands."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import psutil

from langgraph_takeover.sandbox.backends import file_trees
from langgraph_takeover.sandbox.backends.processes import (
    PipeChannel,
    build_environment,
    find_descendants,
    find_run_processes,
    kill_until_none,
    pause_processes,
)
from langgraph_takeover.sandbox.changes.change_report import Mount
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.changes.saved_files import SavedFiles
from langgraph_takeover.sandbox.interface import SandboxSpec, SandboxUnavailableError, Snapshot
from langgraph_takeover.sandbox.isolation import namespaces
from langgraph_takeover.sandbox.isolation.freezer import EarlierProcesses
from langgraph_takeover.sandbox.shell import EXIT_SIGNAL, RuntimeShell, Shell
from langgraph_takeover.sandbox.snapshots.bases import WRITABLE_DIRECTORIES


class ProcessBackend:
    """Separates files by directories only; the workspace is the directory itself."""

    keeps_processes = True

    def __init__(self, tree: file_trees.FileTree) -> None:
        self._tree = tree
        self._channels: list[PipeChannel] = []
        self.watch = None  # everything here is trusted
        workspace, self._home, self._tmp = (tree.root / name for name in WRITABLE_DIRECTORIES)
        self.workspace = str(workspace)
        self.file_roots: tuple[str, ...] = (str(self._home), str(self._tmp))
        self.mounts = tuple(Mount(name, str(tree.root / name)) for name in WRITABLE_DIRECTORIES)

    def list_unsaved_files(self, agent_shell: Shell, runtime_shell: RuntimeShell) -> tuple[str, ...]:
        return ()

    def layers(self) -> LayerStack:
        return self._tree.layers()

    def saved_layers(self) -> LayerStack:
        return self._tree.saved_layers()

    def open_shell(self) -> PipeChannel:
        env = build_environment(f"{sys.base_prefix}/bin:{os.defpath}", str(self._home))
        env["TMPDIR"] = str(self._tmp)
        channel = PipeChannel(["bash", "--norc", "--noprofile"], env=env, cwd=Path(self.workspace))
        self._channels = [*(old for old in self._channels if old.process.poll() is None), channel]
        return channel

    def listen(self, agent_shell: Shell, port: int) -> socket.socket:
        return namespaces.listen(port)

    def list_processes(self, agent_shell: Shell, runtime_shell: RuntimeShell) -> Collection[int]:
        return [process.pid for process in self._list_processes()]

    def pause(
        self, agent_shell: Shell, runtime_shell: RuntimeShell, earlier: EarlierProcesses
    ) -> contextlib.AbstractContextManager[None]:
        return pause_processes(lambda: earlier.filter(self._list_processes()))

    def signal_shell(self, agent_shell: Shell, runtime_shell: RuntimeShell) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(agent_shell.pid, EXIT_SIGNAL)

    def kill_all(
        self, agent_shell: Shell | None, runtime_shell: RuntimeShell, spared: EarlierProcesses
    ) -> None:
        kill_until_none(self._list_processes, spared)

    def is_idle(self) -> bool:
        return False

    def begin_snapshot(
        self, store: Path, labels: Mapping[str, str], *, is_idle: bool, saved: SavedFiles
    ) -> Callable[[str], Snapshot]:
        finish = self._tree.begin_snapshot(
            store, is_idle=is_idle, pause=lambda: pause_processes(self._list_processes), saved=saved
        )
        return file_trees.make_snapshot_builder("process", self.workspace, finish)

    def close(self) -> None:
        kill_until_none(self._list_processes)
        for channel in self._channels:
            channel.end()
        self._tree.close()

    def _list_processes(self) -> list[psutil.Process]:
        """Return all processes except the shells."""
        shells = {channel.process.pid for channel in self._channels}
        found = {process for pid in shells for process in find_descendants(pid)}
        return [p for p in found.union(find_run_processes(self._tmp)) if p.pid not in shells]


def start(spec: SandboxSpec) -> ProcessBackend:
    _refuse_programs(spec)
    return _create_backend(file_trees.start_tree(spec, is_layered=False, is_isolated=False))


def restore(snapshot: Snapshot, store: Path, spec: SandboxSpec) -> ProcessBackend:
    _refuse_programs(spec)
    return _create_backend(file_trees.restore_tree(snapshot, store, spec, is_isolated=False))


def _create_backend(tree: file_trees.FileTree) -> ProcessBackend:
    if tree.base.is_system:
        tree.close()
        raise SandboxUnavailableError(
            "plain processes start from a repository, not from a complete system's files"
        )
    return ProcessBackend(tree)


def _refuse_programs(spec: SandboxSpec) -> None:
    if spec.programs:
        raise SandboxUnavailableError(
            f"plain processes have no mounts, so {spec.programs[0].inside} cannot be mounted (use --sandbox host or docker)"
        )
