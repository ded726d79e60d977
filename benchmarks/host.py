"""The benchmark host: its description and its processor time."""

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
    """CPU steal as a share of all time; 0 on a physical machine."""


class Meter:
    """Measures processor time since its construction."""

    def __init__(self) -> None:
        self._start = psutil.cpu_times()

    def read(self) -> ProcessorTime:
        pairs = zip(psutil.cpu_times(), self._start, strict=True)
        spent = dict(zip(self._start._fields, (now - before for now, before in pairs), strict=True))
        # User time includes guest time.
        total = sum(seconds for name, seconds in spent.items() if not name.startswith("guest"))
        stolen = spent.get("steal", 0.0)
        return ProcessorTime(
            total - spent["idle"] - spent.get("iowait", 0.0) - stolen, stolen / total if total else 0
        )


def describe_host() -> str:
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    memory_gb = round(psutil.virtual_memory().total / 1e9, 1)
    return (
        f"{len(os.sched_getaffinity(0))} cores of {next(models, platform.machine())}, {memory_gb:g} GB, "
        f"Linux {platform.release()}, {platform.python_implementation()} {platform.python_version()}"
    )
