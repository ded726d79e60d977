"""Command lines that tests run in their own process, which avoids a second and more of imports for each."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def call_main(
    main: Callable[[], None],
    *arguments: str | Path,
    directory: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command in `directory` with `environment` instead of that of this process, and return its output."""
    argv = ["command", *map(str, arguments)]
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")) as out,
            redirect_stderr(io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")) as err,
        ):
            patch.chdir(directory)
            patch.setattr(sys, "argv", argv)
            wanted = os.environ.copy() if environment is None else environment
            for name in {*os.environ, *wanted}:
                if name.startswith("OPENAI_") or name not in wanted:
                    patch.delenv(name, raising=False)
                elif os.environ.get(name) != wanted[name]:
                    patch.setenv(name, wanted[name])
            with pytest.raises(SystemExit) as ended:
                main()
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)
    assert isinstance(ended.value.code, int)
    out.seek(0)
    err.seek(0)
    return subprocess.CompletedProcess(argv, ended.value.code, out.read(), err.read())


def list_complaints(stderr: str) -> list[str]:
    """Return the lines of an example's standard error, without the notice that its checkpoints are in memory."""
    return [line for line in stderr.splitlines() if "checkpoints are in memory" not in line]
