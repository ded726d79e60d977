"""A plain directory and plain processes of this host: no isolation, for commands that are trusted."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from sandbox import trees
from sandbox.bases import ROOMS
from sandbox.changes import Mount
from sandbox.layers import Stack
from sandbox.local import PipeChannel, descendants, environment, kill_until_none, residents, stopped
from sandbox.machine import SandboxSpec, SandboxUnavailable, Snapshot
from sandbox.shell import LEAVE, Hand, Shell


class ProcessEnclosure:
    """Keeps files apart by directories only; the workspace lies where the directory does."""

    def __init__(self, tree: trees.Tree) -> None:
        self._tree = tree
        self._channels: list[PipeChannel] = []
        self.watch = None  # what runs here is trusted
        workspace, self._home, self._tmp = (tree.files / room for room in ROOMS)
        self.workspace = str(workspace)
        self.file_roots: tuple[str, ...] = (str(self._home), str(self._tmp))
        self.mounts = tuple(Mount(room, str(tree.files / room)) for room in ROOMS)

    def layers(self) -> Stack:
        return self._tree.layers()

    def open_shell(self) -> PipeChannel:
        env = environment(f"{sys.base_prefix}/bin:{os.defpath}", str(self._home))
        env["TMPDIR"] = str(self._tmp)
        channel = PipeChannel(["bash", "--norc", "--noprofile"], env=env, cwd=Path(self.workspace))
        self._channels = [*(old for old in self._channels if old.process.poll() is None), channel]
        return channel

    def kill_all(self, hand: Hand, leaving: Shell | None) -> None:
        if leaving is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(leaving.pid, LEAVE)
        kill_until_none(self._processes)

    def at_rest(self) -> bool:
        return False

    def freeze(self, store: Path, labels: Mapping[str, str], *, at_rest: bool) -> Callable[[str], Snapshot]:
        finish = self._tree.freeze(store, at_rest=at_rest, stopped=lambda: stopped(self._processes))
        return trees.described("process", self.workspace, finish)

    def close(self) -> None:
        kill_until_none(self._processes)
        for channel in self._channels:
            channel.end()
        self._tree.close()

    def _processes(self) -> list[psutil.Process]:
        """All but the shells."""
        shells = {channel.process.pid for channel in self._channels}
        found = {process for pid in shells for process in descendants(pid)}
        return [p for p in found.union(residents(self._tmp)) if p.pid not in shells]


def start(spec: SandboxSpec) -> ProcessEnclosure:
    return _enclosed(trees.started(spec, layered=False, enclosed=False))


def thaw(snapshot: Snapshot, store: Path, spec: SandboxSpec) -> ProcessEnclosure:
    return _enclosed(trees.thawed(snapshot, store, spec, enclosed=False))


def _enclosed(tree: trees.Tree) -> ProcessEnclosure:
    if tree.base.whole:
        tree.close()
        raise SandboxUnavailable("plain processes start from a repository, not from a whole system's files")
    return ProcessEnclosure(tree)
