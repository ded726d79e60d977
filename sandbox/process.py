"""A plain directory and plain processes of this host: no isolation, for commands that are trusted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sandbox.local import PipeChannel, Rooms, descendants, environment, freeze_rooms, kill, stopped
from sandbox.machine import SandboxSpec, Snapshot
from sandbox.shell import Shell


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

    def kill_all(self, *spared: Shell) -> None:
        for channel in self._channels:
            kill(descendants(channel.process.pid))

    def freeze(self, store: Path, shell_state: str) -> Snapshot:
        everything = [process for channel in self._channels for process in descendants(channel.process.pid)]
        with stopped(everything):
            return freeze_rooms(
                self._rooms, store, backend="process", workspace=self.workspace, shell_state=shell_state
            )

    def close(self) -> None:
        for channel in self._channels:
            kill(descendants(channel.process.pid))
            channel.end()
        self._rooms.remove()


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
