"""Rediscovery: steps that repeat the predecessor's work, and observations that it had already."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from langgraph_takeover.evals.run.measures.shown_text import (
    Location,
    ShownLine,
    join_ranges,
    list_command_parts,
    list_shown_lines,
)
from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.points.detectors import compute_state
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.shell.command_effects import is_search
from langgraph_takeover.handoff.trace.conversation import list_steps
from langgraph_takeover.handoff.trace.events import (
    Differences,
    Event,
    FileRead,
    apply_changes,
    compute_tree_digest,
)
from langgraph_takeover.nodes.model.actions import RECALL_TOOL

RediscoveryKind = Literal["read", "search", "command", "verification"]
REDISCOVERY_KINDS: tuple[RediscoveryKind, ...] = ("read", "search", "command")
"""The kinds that are debt; verification is not."""


class PredecessorKnowledge(NamedTuple):
    """The predecessor's knowledge at its handoff point."""

    reads: frozenset[FileRead]
    commands: frozenset[tuple[str, str]]
    """Each command with the tree on which it ran."""
    searches: frozenset[str]
    verification_command: str | None
    """Its latest validation command."""


def collect_knowledge(predecessor: Sequence[Event], state: DetectorState) -> PredecessorKnowledge:
    """The predecessor's knowledge for `classify_events`, the same for all its takeovers.

    `state` is the detectors' state after the predecessor's last event.
    """
    commands = frozenset(
        (step.command, step.tree) for step in _list_executed_actions(predecessor) if step.command
    )
    latest = state.latest_validation
    return PredecessorKnowledge(
        reads=frozenset(read for event in predecessor for read in event.reads),
        commands=commands,
        searches=frozenset(command for command, _ in commands if is_search(command)),
        verification_command=_normalize(latest.command) if latest else None,
    )


def _collect_record(record: HandoffRecord) -> PredecessorKnowledge:
    task = record.task
    return collect_knowledge(record.trace, compute_state(record.trace, task.base_directories, task.workspace))


def classify_events(
    predecessor: HandoffRecord | PredecessorKnowledge, successor: Sequence[Event]
) -> tuple[RediscoveryKind | None, ...]:
    """For each of the successor's events, which of the predecessor's findings it repeats. None for new work.

    An action and its observation are two events of one kind. A step is a `read` if the predecessor had seen every file that
    it showed, with the same content; a `search` if the predecessor made the same search; a `command` if the
    predecessor ran the same command on the same tree. The first re-run of the predecessor's latest
    validation command is `verification`, which is not debt.
    """
    had = _collect_record(predecessor) if isinstance(predecessor, HandoffRecord) else predecessor
    to_verify = had.verification_command
    found: list[RediscoveryKind | None] = [None] * len(successor)
    for step in _list_executed_actions(successor):
        kind: RediscoveryKind | None = None
        if to_verify is not None and step.command == to_verify:
            kind, to_verify = "verification", None
        elif step.reads and step.reads <= had.reads:
            kind = "read"
        elif step.command in had.searches:
            kind = "search"
        elif (step.command, step.tree) in had.commands:
            kind = "command"
        found[step.event_index] = found[step.event_index + 1] = kind
    return tuple(found)


class _ExecutedAction(NamedTuple):
    """A completed action: its command if it has one, the tree on which it ran, and the files that it showed."""

    event_index: int
    """Index of the action in the sequence. Its observation follows."""
    command: str
    tree: str
    reads: frozenset[FileRead]


def _list_executed_actions(events: Sequence[Event]) -> Iterable[_ExecutedAction]:
    for index, (action, observation) in enumerate(pairwise(events)):
        if action.kind == "action" and observation.kind == "observation" and not observation.refused:
            command = _normalize(action.arguments["command"]) if action.tool == "shell" else ""
            yield _ExecutedAction(index, command, action.tree, frozenset(observation.reads))


def _normalize(command: str) -> str:
    return " ".join(command.split())


_DISTINCTIVE_CHARS = 24
"""A line of this length that occurs once in the known text of its file needs no neighbours to be recognized."""
_WRITTEN_CHARS = 8
_CONTAINED_CHARS = 10
"""A line of this length counts as written if an action that changed the file contains it."""
_SHINGLE_CHARS = 12
_LONG_LINE_CHARS = 200
_MAX_GAP = 4
"""Neighbours have at most this distance in the file: blank lines are left out."""
_MIN_SHIFT_SHARE = 0.25
"""An edit moves lines by a number that at least this share of the best supported one's lines agree on."""
_MIN_SIMILARITY = 0.6
"""Of a line before and after a substitution."""
_MAX_POSITIONS = 200
_MAX_COMPARED_LINES = 5_000
_MAX_COMPARISONS = 500
"""Limits that keep the time of a search linear in the text."""


class _KnownLine(NamedTuple):
    number: int | None
    version: int
    """Version of the file when the line was shown; -1 separates two observations."""


class KnownFile:
    """The text of one file that the predecessor was shown or wrote."""

    def __init__(self) -> None:
        self.lines: list[_KnownLine] = []
        """In the order shown; consecutive lines of one observation are neighbours."""
        self.positions: dict[str, list[int]] = defaultdict(list)
        self.written: set[str] = set()
        self.written_texts: list[str] = []
        self._comparisons = 0

    def reset_comparisons(self) -> None:
        """Start another successor, so that its figures do not depend on those measured before."""
        self._comparisons = 0

    def add_shown(self, line: ShownLine, version: int) -> None:
        positions = self.positions[line.text.rstrip()]
        if len(positions) < _MAX_POSITIONS:
            positions.append(len(self.lines))
        self.lines.append(_KnownLine(line.number, version))

    def end_observation(self) -> None:
        """Separate the lines of two observations."""
        self.lines.append(_KnownLine(None, -1))

    def add_written(self, text: str) -> None:
        self.written_texts.append(text)
        self.written.update(stripped for line in text.split("\n") if (stripped := line.strip()))

    def match_line(
        self, shown: Sequence[ShownLine], index: int, version: int, shifts: frozenset[int]
    ) -> tuple[int, int | None]:
        """Known characters of the line `shown[index]`, and its number in the file if known.

        `version` is the present version of the file, `shifts` what `find_shifts` returns for it.
        """
        line = shown[index]
        stripped = line.text.strip()
        exact, near = self._find_positions(line, version, shifts)
        if exact is not None or self._has_context(near, shown, index):
            earlier = next((self.lines[p].number for p in near if self.lines[p].number), None)
            return line.size, exact or line.number or earlier
        if stripped in self.written and (
            len(stripped) >= _WRITTEN_CHARS or self._has_written_neighbour(shown, index)
        ):
            return line.size, line.number
        if len(stripped) >= _CONTAINED_CHARS and any(stripped in text for text in self.written_texts):
            return line.size, line.number
        if len(stripped) > _LONG_LINE_CHARS:
            return round(line.size * self._measure_shingles(stripped)), line.number
        return (line.size, line.number) if self._is_substitution(stripped) else (0, None)

    def _find_positions(
        self, line: ShownLine, version: int, shifts: frozenset[int]
    ) -> tuple[int | None, tuple[int, ...]]:
        """The line's number if it was shown with it, or else the positions at which it may have been shown."""
        near = []
        for position in self.positions.get(line.text.rstrip(), ()):
            known = self.lines[position]
            if known.number is None or line.number is None:
                near.append(position)
            elif known.number == line.number:
                return line.number, ()
            elif known.version != version and line.number - known.number in shifts:
                near.append(position)
        return None, tuple(near)

    def find_shifts(self, lines: Iterable[ShownLine], version: int) -> frozenset[int]:
        """By how many lines the shown part of an edited file has moved: the differences that most lines agree on."""
        counts: Counter[int] = Counter()
        for line in lines:
            for position in self.positions.get(line.text.rstrip(), ()):
                known = self.lines[position]
                if known.number is not None and line.number is not None and known.version != version:
                    counts[line.number - known.number] += 1
        most = max(counts.values(), default=0)
        return frozenset(shift for shift, count in counts.items() if count >= max(most * _MIN_SHIFT_SHARE, 1))

    def _has_context(self, near: Sequence[int], shown: Sequence[ShownLine], index: int) -> bool:
        """Whether a line is recognized: it is distinctive, or its neighbour was its neighbour before, too."""
        if not near:
            return False
        is_distinctive = len(shown[index].text.strip()) >= _DISTINCTIVE_CHARS
        if is_distinctive and len({self.lines[position].number for position in near}) == 1:
            return True
        for step in (-1, 1):
            neighbour = _find_neighbour(shown, index, step)
            known = self.positions.get(neighbour.text.rstrip(), ()) if neighbour else ()
            if any(position + step in known for position in near):
                return True
        return False

    def _has_written_neighbour(self, shown: Sequence[ShownLine], index: int) -> bool:
        neighbours = (_find_neighbour(shown, index, step) for step in (-1, 1))
        texts = [neighbour.text.strip() for neighbour in neighbours if neighbour]
        return any(len(text) >= _WRITTEN_CHARS and text in self.written for text in texts)

    def _is_substitution(self, text: str) -> bool:
        """Whether a line is a known one in which the predecessor replaced some characters."""
        is_too_much = len(self.positions) > _MAX_COMPARED_LINES or self._comparisons >= _MAX_COMPARISONS
        if not self.written_texts or len(text) < _WRITTEN_CHARS or is_too_much:
            return False
        self._comparisons += 1
        candidates = get_close_matches(text, self._comparable_lines, n=3, cutoff=_MIN_SIMILARITY)
        return any(self._was_replaced(candidate, text) for candidate in candidates)

    @cached_property
    def _comparable_lines(self) -> tuple[str, ...]:
        return tuple(line for known in self.positions if len(line := known.strip()) <= _LONG_LINE_CHARS)

    def _was_replaced(self, before: str, after: str) -> bool:
        inserted = [
            after[start:end]
            for kind, _, _, start, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
            if kind in ("insert", "replace")
        ]
        return bool(inserted) and all(
            any(each.strip() in text for text in self.written_texts) for each in inserted
        )

    def _measure_shingles(self, text: str) -> float:
        """Share of the shingles of a text that occur in the known text."""
        shingles = _list_shingles(text)
        return sum(each in self._shingles for each in shingles) / len(shingles)

    @cached_property
    def _shingles(self) -> frozenset[str]:
        return frozenset(_list_shingles("\n".join([*self.positions, *self.written_texts])))


def _find_neighbour(shown: Sequence[ShownLine], index: int, step: int) -> ShownLine | None:
    """The line of the same file before or after a line, if it is near it in the file."""
    other = index + step
    if not 0 <= other < len(shown) or shown[other].paths != shown[index].paths:
        return None
    here, there = shown[index].number, shown[other].number
    return None if here and there and abs(there - here) > _MAX_GAP else shown[other]


def _list_shingles(text: str) -> list[str]:
    return [text[start : start + _SHINGLE_CHARS] for start in range(max(len(text) - _SHINGLE_CHARS + 1, 1))]


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
