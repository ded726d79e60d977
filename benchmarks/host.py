"""The benchmark host: its description and processor time, and the Python processes of this checkout."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[1]


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
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(errors="replace"))
    memory_gb = round(psutil.virtual_memory().total / 1e9, 1)
    return (
        f"{len(os.sched_getaffinity(0))} cores of {model[1] if model else platform.machine()}, {memory_gb:g} GB, "
        f"Linux {platform.release()}, {platform.python_implementation()} {platform.python_version()}"
    )


def start_python(
    *words: object, environment: Mapping[str, str] = {}, **options: Any
) -> subprocess.Popen[str]:
    """Start this interpreter with the modules of the checkout."""
    env = os.environ | {"PYTHONPATH": str(ROOT)} | dict(environment)
    command: list[str] = [sys.executable, *map(str, words)]
    return subprocess.Popen(command, env=env, text=True, errors="replace", **options)


def run_python(*words: object, **options: Any) -> str:
    """The output of a Python process of this checkout. Raises RuntimeError if it fails."""
    with start_python(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as running:
        output, errors = running.communicate()
    if running.returncode != 0:
        raise RuntimeError(f"exit code {running.returncode} of {words[:3]}: {errors.strip()[-300:]}")
    return output
