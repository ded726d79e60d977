"""The changes that a patch lacks: those that git cannot carry, and observed ones that it does not show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from langgraph_takeover.handoff.text.fence import format_entry
from langgraph_takeover.handoff.text.patch_sections import split_patch
from langgraph_takeover.handoff.trace.events import Event, compute_differences
from langgraph_takeover.handoff.trace.file_kinds import is_generated, is_outside_repository
from langgraph_takeover.sandbox.repository import UNRESOLVED, LeftOut, Patch

NOT_SEEN = "git ignores it, or sees no difference"
"""The reason for an observed change that a patch does not show."""
NOT_SAVED = "not in the snapshot"
"""How the reason begins for a file of a captured working tree that neither patch nor snapshot has."""
MAX_SHOWN = 20
_MAX_KEPT, _MAX_PATH_CHARS = 500, 300


def add_observed_changes(patch: Patch, events: Iterable[Event], own_patch: Patch | None = None) -> Patch:
    """Return the patch, with the net changes of the events that it does not show in `left_out`.

    `own_patch` is the patch since the first of the events, if they do not begin at the base commit. Generated files and
    files outside the repository do not count. At most 500 paths are named; `left_out_count` counts all.
    """
    patches = [patch] if own_patch is None else [patch, own_patch]
    named = {_comparable(each.path): each for one in patches for each in one.left_out}
    known = named.keys() | {path for one in patches for path in _list_paths(one.text)}
    covering = {path for path, each in named.items() if each.reason != UNRESOLVED}
    observed = [
        LeftOut(path=path, reason=NOT_SEEN)
        for path in sorted(compute_differences(events))
        if not is_generated(path)
        and not is_outside_repository(path)
        and _comparable(path) not in known
        and covering.isdisjoint(_list_parents(path))
    ]
    left_out = (*named.values(), *observed)
    unnamed = max(one.left_out_count - len(one.left_out) for one in patches)
    return patch.model_copy(
        update={"left_out": left_out[:_MAX_KEPT], "left_out_count": len(left_out) + unnamed}
    )


def add_left_out(patch: Patch, more: Sequence[LeftOut]) -> Patch:
    """Return the patch with more paths that it lacks."""
    left_out = (*patch.left_out, *more)[:_MAX_KEPT]
    return patch.model_copy(update={"left_out": left_out, "left_out_count": patch.left_out_count + len(more)})


def is_unsaved(each: LeftOut) -> bool:
    """Whether the snapshot lacks it, too."""
    return each.reason.startswith(NOT_SAVED)


def format_left_out(
    left_out: Sequence[LeftOut], count: int, label: str = "Not in the patch"
) -> tuple[str, ...]:
    """Return a line for each path, at most 20, and one with the number of the others; `label` begins each."""
    start = f"{label}: " if label else ""
    lines = [
        f"{start}{format_entry(each.path[:_MAX_PATH_CHARS])} ({format_entry(each.reason)})"
        for each in left_out[:MAX_SHOWN]
    ]
    if count > len(lines):
        lines.append(f"{start}{count - len(lines):,} more")
    return tuple(lines)


def _list_paths(patch: str) -> Iterator[str]:
    for section in split_patch(patch):
        yield section.path
        if section.old_path is not None:
            yield section.old_path


def _comparable(path: str) -> str:
    """Return the path as a patch's section has it."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _list_parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
