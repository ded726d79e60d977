"""The wheel of this checkout, for tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def list_tracked_files() -> list[str]:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True)
    return listed.stdout.decode().rstrip("\0").split("\0")


def build_wheel(directory: Path) -> Path:
    """Build the wheel from a copy of the tracked files, without any other files."""
    source, out = directory / "source", directory / "wheel"
    for name in list_tracked_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            (source / name).symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            (source / name).write_bytes((ROOT / name).read_bytes())
    options = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", out]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, source], check=True)
    (wheel,) = out.iterdir()
    return wheel
