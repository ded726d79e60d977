"""The machine that is measured on: what it is, and what other hosts took of it meanwhile."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

import psutil
from pydantic import BaseModel


class Host(BaseModel, frozen=True, extra="forbid"):
    cores: int
    processor: str
    memory_gb: float
    kernel: str
    python: str

    def __str__(self) -> str:
        return f"{self.cores} cores of {self.processor}, {self.memory_gb:g} GB, Linux {self.kernel}, {self.python}"


class Spent(NamedTuple):
    """Of all processors, between two moments."""

    busy_s: float
    stolen: float
    """The share of the time that another host took: virtual machines only."""


class Meter:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._began = psutil.cpu_times()

    def read(self) -> Spent:
        now = psutil.cpu_times()
        spent = [after - before for after, before in zip(now, self._began, strict=True)]
        share = dict(zip(now._fields, spent, strict=True))
        # A guest's time is in its user's already.
        whole = sum(seconds for name, seconds in share.items() if not name.startswith("guest"))
        busy = whole - sum(share.get(name, 0.0) for name in ("idle", "iowait", "steal"))
        return Spent(busy, share.get("steal", 0.0) / whole if whole else 0.0)


def this_host() -> Host:
    return Host(
        cores=len(os.sched_getaffinity(0)),
        processor=_processor(),
        memory_gb=round(psutil.virtual_memory().total / 1e9, 1),
        kernel=platform.release(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
