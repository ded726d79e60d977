"""A plain directory and plain processes of this host: no isolation, for commands that are trusted."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import psutil

from sandbox.local import (
    PipeChannel,
    Rooms,
    descendants,
    environment,
    freeze_rooms,
    inhabitants,
    kill_until_none,
    stopped,
)
from sandbox.machine import SandboxSpec, Snapshot
from sandbox.shell import Hand, Shell


class ProcessEnclosure:
    """Keeps files apart by directories only; the workspace lies where the directory does."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._channels: list[PipeChannel] = []
        self.workspace = str(rooms.workspace)
        self.file_roots: tuple[str, ...] = (str(rooms.home), str(rooms.tmp))

    def open_shell(self) -> PipeChannel:
        env = environment(f"{sys.base_prefix}/bin:{os.defpath}", str(self._rooms.home))
        env["TMPDIR"] = str(self._rooms.tmp)
        channel = PipeChannel(["bash", "--norc", "--noprofile"], env=env, cwd=self._rooms.workspace)
        self._channels = [*(old for old in self._channels if old.process.poll() is None), channel]
        return channel

    disk = None

    def kill_all(self, hand: Hand, *spared: Shell) -> None:
        kill_until_none(self._processes)

    def freeze(self, store: Path, shell_state: str, labels: Mapping[str, str]) -> Future[Snapshot]:
        with stopped(self._processes()):
            taken = freeze_rooms(
                self._rooms, store, backend="process", workspace=self.workspace, shell_state=shell_state
            )
        done: Future[Snapshot] = Future()
        done.set_result(taken)
        return done

    def close(self) -> None:
        kill_until_none(self._processes)
        for channel in self._channels:
            channel.end()
        self._rooms.remove()

    def _processes(self) -> list[psutil.Process]:
        """All but the shells."""
        shells = {channel.process.pid for channel in self._channels}
        found = {process for pid in shells for process in descendants(pid)}
        return [p for p in found.union(inhabitants(self._rooms.tmp)) if p.pid not in shells]


def start(spec: SandboxSpec) -> ProcessEnclosure:
    rooms = Rooms(spec.owner)
    assert spec.directory is not None
    with rooms.removed_on_failure():
        rooms.fill_from_directory(spec.directory)
        return ProcessEnclosure(rooms)


def thaw(snapshot: Snapshot, store: Path, spec: SandboxSpec) -> ProcessEnclosure:
    rooms = Rooms(spec.owner)
    with rooms.removed_on_failure():
        rooms.fill_from_archive(store / snapshot.location, snapshot.digest)
        return ProcessEnclosure(rooms)
