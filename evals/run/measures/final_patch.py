"""What a successor submits besides its change: scratch files, changed tests, build files, and the patch's size."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from langgraph_takeover.handoff.text.patch_sections import PatchSection, split_patch
from langgraph_takeover.handoff.trace.file_kinds import is_generated, is_scratch, is_test

BUILD_FILES = frozenset({"pyproject.toml", "setup.cfg", "setup.py", "tox.ini"})
"""Files in the root that OpenHands' preparation of patches for SWE-bench removes, with the scripts there, and `setup.cfg`."""

_MAX_NAMES = 20


class FinalPatch(NamedTuple):
    """A patch against the base commit, by file."""

    patch_files: int
    patch_lines: int
    """Number of added and removed lines."""
    scratch_files: tuple[str, ...]
    """New files in the root, in a new top-level directory, or in a cache or build directory; at most 20."""
    test_files: tuple[str, ...]
    """New or changed tests, without scratch files; at most 20."""


def measure_patch(patch: str, base_directories: Collection[str]) -> FinalPatch:
    """Measure a patch. Text without a readable heading does not count."""
    sections = split_patch(patch)
    scratch = tuple(section.path for section in sections if _is_scratch(section, base_directories))
    return FinalPatch(
        patch_files=len(sections),
        patch_lines=sum(1 for section in sections for _ in section.list_changed_lines()),
        scratch_files=scratch[:_MAX_NAMES],
        test_files=tuple(
            section.path for section in sections if is_test(section.path) and section.path not in scratch
        )[:_MAX_NAMES],
    )


def clean_patch(patch: str, base_directories: Collection[str]) -> str:
    """The patch without scratch files and build files; unchanged if it has none of them."""
    sections = split_patch(patch)
    kept = [
        section
        for section in sections
        if section.path not in BUILD_FILES and not _is_scratch(section, base_directories)
    ]
    return "".join(section.text for section in kept) if len(kept) < len(sections) else patch


def _is_scratch(section: PatchSection, base_directories: Collection[str]) -> bool:
    return section.is_new and (
        is_generated(section.path)
        or is_scratch(section.path, is_in_base=False, base_directories=base_directories)
    )
