"""The host that a benchmark runs on: its description, and how its processors spend their time."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

import psutil


class ProcessorTime(NamedTuple):
    """The time of all processors between two moments."""

    busy_s: float
    stolen_share: float
    """The share that other hosts took, on a virtual machine; else 0."""


class Meter:
    """Measures processor time from its construction on."""

    def __init__(self) -> None:
        self._began = psutil.cpu_times()

    def read(self) -> ProcessorTime:
        pairs = zip(psutil.cpu_times(), self._began, strict=True)
        spent = dict(zip(self._began._fields, (now - before for now, before in pairs), strict=True))
        # The time of a guest is part of the user time already.
        whole = sum(seconds for name, seconds in spent.items() if not name.startswith("guest"))
        stolen = spent.get("steal", 0.0)
        return ProcessorTime(
            whole - spent["idle"] - spent.get("iowait", 0.0) - stolen, stolen / whole if whole else 0
        )


def describe_host() -> str:
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    memory_gb = round(psutil.virtual_memory().total / 1e9, 1)
    return (
        f"{len(os.sched_getaffinity(0))} cores of {next(models, platform.machine())}, {memory_gb:g} GB, "
        f"Linux {platform.release()}, {platform.python_implementation()} {platform.python_version()}"
    )
