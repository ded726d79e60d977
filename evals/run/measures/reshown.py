"""Rediscovery by content: the part of a successor's observations that the predecessor had already been shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from langgraph_takeover.evals.run.measures.known_text import KnownFile
from langgraph_takeover.evals.run.measures.shown_text import (
    Location,
    ShownLine,
    join_ranges,
    list_command_parts,
    list_shown_lines,
)
from langgraph_takeover.handoff.trace.conversation import list_steps
from langgraph_takeover.handoff.trace.events import Differences, Event, apply_changes, compute_tree_digest
from langgraph_takeover.nodes.model.actions import RECALL_TOOL


class ReshownFile(NamedTuple):
    """A file that a step showed again."""

    path: str
    ranges: tuple[tuple[int, int], ...]
    """Line numbers, both ends included; empty if they are unknown."""
    chars: int


class StepText(NamedTuple):
    """What the observation of one step shows, in characters; boilerplate does not count."""

    event_index: int
    """Position of the observation in the successor's events."""
    shown_chars: int
    reshown_chars: int
    """Characters that the predecessor had been shown, or had written itself."""
    reshown_lines: tuple[int, ...]
    """Indices of the re-shown lines in `split_output`."""
    files: tuple[ReshownFile, ...]

    @property
    def share(self) -> float:
        """Re-shown share of the observation, from 0 to 1."""
        return self.reshown_chars / self.shown_chars if self.shown_chars else 0.0


class TextTotals(NamedTuple):
    """Characters that a successor's observations show, summed over its steps."""

    shown_chars: int
    """All of them, verification included."""
    reshown_chars: int
    verification_chars: int
    """Those of the step that re-runs the predecessor's latest validation; they do not count as re-shown."""


def sum_text(steps: Iterable[StepText], verification_index: int | None) -> TextTotals:
    """Sum steps; `verification_index` is the position of the verification's observation, None without one."""
    shown = reshown = verification = 0
    for step in steps:
        shown += step.shown_chars
        if step.event_index == verification_index:
            verification += step.shown_chars
        else:
            reshown += step.reshown_chars
    return TextTotals(shown, reshown, verification)


class PredecessorText:
    """Everything that a predecessor was shown or wrote up to a point, to compare successors with.

    `events` are the predecessor's events up to the point, `workspace` the absolute path of its repository.
    """

    def __init__(self, events: Sequence[Event], workspace: str = "") -> None:
        self._files: dict[str, KnownFile] = defaultdict(KnownFile)
        self._outputs: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._known_files: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._workspace = workspace
        tracker = _TreeTracker({})
        for action, observation in _list_executed_steps(events):
            tracker.apply(observation)
            for path in {change.path for change in observation.changes}:
                for text in _list_written_texts(action):
                    self._files[path].add_written(text)
            self._add_observation(action, observation, tracker.versions, tracker.tree)
        self.differences: Differences = tracker.differences
        self.versions: Mapping[str, int] = dict(tracker.versions)

    def _add_observation(
        self, action: Event, observation: Event, versions: Mapping[str, int], tree: str
    ) -> None:
        shown = list_shown_lines(action, observation, self._workspace)
        touched = set()
        for line in shown:
            for path in line.paths:
                self._files[path].add_shown(line, versions.get(path, 0))
                touched.add(path)
        for path in touched:
            self._files[path].end_observation()
        texts = {line.text.rstrip() for line in shown}
        for part in _list_parts(action, observation, self._workspace):
            self._outputs[part, tree] |= texts

    def measure_steps(
        self,
        successor: Sequence[Event],
        workspace: str | None = None,
        differences: Differences | None = None,
    ) -> tuple[StepText, ...]:
        """Measure each step of a successor.

        `workspace` is the path of its repository, the predecessor's by default. `differences` are those from the base
        with which it starts, the predecessor's by default; pass `{}` for a run that starts from the base commit.
        """
        for file in self._files.values():
            file.reset_comparisons()
        tracker = _TreeTracker(self.differences if differences is None else differences)
        tracker.versions.update(self.versions)
        steps = []
        for action, observation in _list_executed_steps(successor):
            # After a change of its own, a command line runs on the new tree.
            tracker.apply(observation)
            root = self._workspace if workspace is None else workspace
            shown = list_shown_lines(action, observation, root)
            parts = _list_parts(action, observation, root)
            steps.append(self._measure_step(observation, shown, parts, tracker.versions, tracker.tree))
        positions = {event.index: position for position, event in enumerate(successor)}
        return tuple(step._replace(event_index=positions[step.event_index]) for step in steps)

    def _measure_step(
        self,
        observation: Event,
        shown: Sequence[ShownLine],
        parts: Sequence[str],
        versions: Mapping[str, int],
        tree: str,
    ) -> StepText:
        same_output = set().union(*(self._outputs.get((part, tree), ()) for part in parts))
        sizes: dict[int, int] = {}
        shifts = {
            path: self._files[path].find_shifts(lines, versions.get(path, 0))
            for path, lines in self._group_by_file(shown).items()
        }
        numbers: dict[str, list[int]] = defaultdict(list)
        chars: dict[str, int] = defaultdict(int)
        for index, line in enumerate(shown):
            for path in self._find_known_files(line.paths):
                size, number = self._files[path].match_line(shown, index, versions.get(path, 0), shifts[path])
                if size:
                    sizes[index] = size
                    chars[path] += size
                    numbers[path] += [] if number is None else [number]
                    break
            if index not in sizes and line.text.rstrip() in same_output:
                sizes[index] = line.size
        new_numbers = {line.number for index, line in enumerate(shown) if line.number and index not in sizes}
        return StepText(
            observation.index,
            sum(line.size for line in shown),
            sum(sizes.values()),
            tuple(shown[index].position for index in sizes),
            tuple(
                ReshownFile(path, join_ranges(numbers[path], new_numbers), size)
                for path, size in sorted(chars.items())
            ),
        )

    def _group_by_file(self, shown: Sequence[ShownLine]) -> dict[str, list[ShownLine]]:
        lines: dict[str, list[ShownLine]] = defaultdict(list)
        for line in shown:
            for path in self._find_known_files(line.paths):
                lines[path].append(line)
        return lines

    def _find_known_files(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """The known files of these names; a name with wildcards is that of each file that fits."""
        if paths not in self._known_files:
            self._known_files[paths] = tuple(
                known
                for path in paths
                for known in self._files
                if known == path or fnmatchcase(known, path) or fnmatchcase(path, known)
            )
        return self._known_files[paths]


class _TreeTracker:
    """The differences from the base during a run, with a digest of the tree and a version of each file."""

    def __init__(self, differences: Differences) -> None:
        self.differences = differences
        self.tree = compute_tree_digest(differences)
        self.versions: dict[str, int] = defaultdict(int)

    def apply(self, observation: Event) -> None:
        if not observation.changes:
            return
        self.differences = apply_changes(self.differences, observation.changes)
        self.tree = compute_tree_digest(self.differences)
        for change in observation.changes:
            self.versions[change.path] += 1


def _list_executed_steps(events: Sequence[Event]) -> Iterable[tuple[Event, Event]]:
    """Actions with their observations, without refused ones.

    Recalls are left out, too: they are part of the view and are counted as such.
    """
    for action, observation in list_steps(events):
        if observation is not None and not observation.refused and action.tool != RECALL_TOOL:
            yield action, observation


def _list_parts(action: Event, observation: Event, workspace: str) -> tuple[str, ...]:
    location = Location(observation.cwd or "", workspace)
    return list_command_parts(action.arguments.get("command", ""), location) if action.tool == "shell" else ()


def _list_written_texts(action: Event) -> list[str]:
    """The texts of an action that may have become content of the files that it changed."""
    names = ("content", "new") if action.tool == "editor" else ("command", "content", "new", "text")
    texts = [action.arguments[name] for name in names if name in action.arguments]
    return [*texts, *(text.replace("\\n", "\n").replace("\\t", "\t") for text in texts if "\\n" in text)]
