"""Harbor's own models of ATIF, in a virtual environment of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from .conftest import skip_missing

REQUIREMENT = "harbor==0.24.*"
PYTHON_VARIABLE = "TAKEOVER_TEST_HARBOR_PYTHON"
"""Environment variable with the Python for Harbor, 3.12 or later."""
_NAMES = ("python3.14", "python3.13", "python3.12")
# A file is validated as Harbor's command validates it, and as Harbor reads it elsewhere: by a strict JSON parser.
_VALIDATE = """
import importlib.metadata, json, pathlib, sys
from harbor.models.trajectories import Trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator
def check(path):
    validator = TrajectoryValidator()
    validator.validate(path)
    try:
        Trajectory.model_validate_json(path.read_bytes())
    except ValueError as error:
        validator.errors.append(str(error))
    return validator.errors
paths = map(pathlib.Path, sys.stdin.read().splitlines())
errors = {str(path): found for path in paths if (found := check(path))}
print(json.dumps({"harbor": importlib.metadata.version("harbor"), "errors": errors}))
"""


class Harbor(NamedTuple):
    """An environment with Harbor."""

    python: Path

    def validate(self, files: Iterable[Path]) -> dict[str, list[str]]:
        """The errors of each invalid document, by its path."""
        names = [str(path) for path in files]
        assert names
        done = subprocess.run(
            [self.python, "-I", "-c", _VALIDATE],
            input="\n".join(names),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        reply = json.loads(done.stdout)
        assert reply["harbor"].startswith("0.24."), reply
        return dict(reply["errors"])


def create_environment(directory: Path) -> Harbor:
    """Install Harbor's package; skip the test with the reason if that fails.

    Of the package's dependencies, its models only need pydantic. They also work with Python 3.11, although the package
    requires 3.12 for other modules, so that this interpreter serves where no later one is found.
    """
    found = next(_iterate_pythons(), None)
    _run([found or sys.executable, "-m", "venv", str(directory)])
    python = directory / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "pydantic>=2.12"])
    _run([*pip, "--no-deps", *([] if found else ["--ignore-requires-python"]), REQUIREMENT])
    return Harbor(python)


def _iterate_pythons() -> Iterator[str]:
    """Yield the interpreters of 3.12 or later: a given one, those on PATH, and those that shims on PATH select from."""
    chosen = os.environ.get(PYTHON_VARIABLE)
    named = [path for name in _NAMES if (path := shutil.which(name))]
    installed = [
        str(python)
        for path in named
        for python in sorted(Path(path).parent.parent.glob(f"versions/*/bin/{Path(path).name}"))
    ]
    for path in [*([chosen] if chosen else []), *named, *installed]:
        code = "import sys; raise SystemExit(sys.version_info < (3, 12))"
        if subprocess.run([path, "-c", code], capture_output=True, check=False, timeout=60).returncode == 0:
            yield path


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        skip_missing(f"cannot install {REQUIREMENT} (Harbor's models of ATIF): {lines[-1]}")
