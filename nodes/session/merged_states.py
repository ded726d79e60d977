"""What the next act begins in if several tasks of a step left states of the sandbox: their merge."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff.ledger import effects
from langgraph_takeover.handoff.ledger.effects import NO_TASK, EffectKey, Move
from langgraph_takeover.nodes.session.graph_tasks import join_states, split_state
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.state_store import BASE_STATE, SnapshotNotFoundError
from langgraph_takeover.sandbox.interface import FileAccessError, Sandbox, Snapshot
from langgraph_takeover.sandbox.snapshots.merging import Branch, BranchConflict, MergePolicy, merge_snapshots

Parents = Mapping[str, tuple[str, ...]]
"""Each state with the states that it was made of; of a merge, the base first."""
_SHOWN = 5


class MergeConflictError(TakeoverError, ValueError):
    """Parallel branches changed the same files in ways that contradict each other. Their states remain."""

    def __init__(self, thread: str, conflicts: Sequence[BranchConflict]) -> None:
        shown = "; ".join(map(str, conflicts[:_SHOWN]))
        more = f"; and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
        super().__init__(
            f"thread {thread!r}: parallel branches cannot be merged: {shown}{more} (pass merge='markers', 'ours', 'theirs' or a "
            "function, or set sandbox_state to one of the states by update_state)"
        )
        self.thread = thread
        self.conflicts = tuple(conflicts)


class _MergeGroup(NamedTuple):
    """States to merge, and the last state that all of them were made of."""

    base: str
    states: tuple[str, ...]


def resolve_state(session: Session, state: str, policy: MergePolicy) -> str:
    """Return the state that a channel means: one state as it is, of several their merge, which is made once.

    Raises MergeConflictError, and SnapshotNotFoundError for states that have no snapshot or no common ancestor.
    """
    states = split_state(state)
    if len(states) == 1:
        return state
    with session.take_turn():
        moves = effects.list_moves(session.ledger, session.thread)
        # Moves also have states without a snapshot.
        parents: dict[str, tuple[str, ...]] = {each.state_after: (each.state_before,) for each in moves}
        parents |= effects.list_parents(session.ledger, session.thread)
        names = _list_names(moves, states := _drop_ancestors(states, parents))
        while len(states) > 1:
            group = _find_group(session.thread, states, parents)
            merged = _merge(session, group, names, policy)
            parents[merged] = (group.base, *group.states)
            names[merged] = " and ".join(names[each] for each in group.states)
            states = tuple(dict.fromkeys(merged if each in group.states else each for each in states))
            states = _drop_ancestors(states, parents)
    return states[0]


def list_conflicts(session: Session, state: str, merged: Collection[str] = ()) -> tuple[BranchConflict, ...]:
    """Return the conflicts that the policy resolved when a state, or one on the way to it, was merged of some states.

    Nothing of a state that was not merged.
    """
    parents = effects.list_parents(session.ledger, session.thread)
    way = [
        each for each in _list_above(state, parents) if not {*parents.get(each, ())[1:]}.isdisjoint(merged)
    ]
    found: list[BranchConflict] = []
    for each in dict.fromkeys([*reversed(way), state]):
        recorded = effects.find(session.ledger, _make_key(session, each))
        if recorded is not None and recorded.result is not None:
            found += map(BranchConflict.model_validate, json.loads(recorded.result))
    return tuple(found)


def list_merge_bases(session: Session, states: Sequence[str]) -> list[str]:
    """List the earlier states that a merge of some states needs. Raises SnapshotNotFoundError."""
    if len(states) < 2:
        return []
    parents, bases = effects.list_parents(session.ledger, session.thread), list[str]()
    while len(states := _drop_ancestors(states, parents)) > 1:
        group = _find_group(session.thread, states, parents)
        bases.append(group.base)
        merged = "+".join(group.states)
        parents[merged] = (group.base, *group.states)
        states = tuple(dict.fromkeys(merged if each in group.states else each for each in states))
    return bases


def _make_key(session: Session, merged: str) -> EffectKey:
    return EffectKey(session.thread, NO_TASK, f"merge:{merged}")


def _list_chain(state: str, parents: Parents) -> list[str]:
    """List a state and those that it was made of, back to the first; of a merge, only its base."""
    chain = [state]
    while (above := parents.get(chain[-1])) and above[0] not in chain:
        chain.append(above[0])
    return chain


def _list_above(state: str, parents: Parents) -> list[str]:
    """List all states that a state was made of, the nearest first."""
    above, seen = [state], {state}
    for each in above:
        new = [parent for parent in parents.get(each, ()) if parent not in seen]
        seen.update(new)
        above += new
    return above[1:]


def _drop_ancestors(states: Sequence[str], parents: Parents) -> tuple[str, ...]:
    """Return the states from which no other one was made."""
    above = {parent for state in states for parent in _list_above(state, parents)}
    return tuple(each for each in dict.fromkeys(states) if each not in above)


def _find_group(thread: str, states: Sequence[str], parents: Parents) -> _MergeGroup:
    """Return the states with the nearest common ancestor, which are merged first."""
    chains = {each: _list_chain(each, parents) for each in states}
    found: dict[str, list[str]] = {}
    depths: dict[str, int] = {}
    for state, chain in chains.items():
        for depth, ancestor in enumerate(reversed(chain)):
            found.setdefault(ancestor, []).append(state)
            depths[ancestor] = depth
    shared = [ancestor for ancestor, each in found.items() if len(each) > 1]
    if not shared:
        raise SnapshotNotFoundError(
            f"thread {thread!r}: sandbox states {', '.join(states)[:200]} have no common ancestor, so they cannot be merged "
            "(set sandbox_state to one of them by update_state)"
        )
    base = max(shared, key=lambda each: depths[each])
    return _MergeGroup(base, tuple(found[base]))


def _merge(session: Session, group: _MergeGroup, names: Mapping[str, str], policy: MergePolicy) -> str:
    merged = _name_merge(session.thread, group.states, policy)
    if session.find_snapshot(merged) is not None:
        return merged
    base = _load_branch(session, "before", group.base)
    branches = [_load_branch(session, names[each], each) for each in group.states]
    conflicts: list[BranchConflict] = []

    def make(part: Path) -> Snapshot | None:
        found = merge_snapshots(
            base,
            branches,
            part,
            policy=policy,
            read_base=lambda path: _read_file(session.enter_state(group.base), path),
            read_base_mode=lambda path: _read_mode(session.enter_state(group.base), path),
        )
        conflicts.extend(found.conflicts)
        return found.snapshot

    if session.create_state(merged, join_states([group.base, *group.states]), make) is None:
        raise MergeConflictError(session.thread, [each for each in conflicts if not each.left])
    if conflicts:
        fields = {"path", "branches", "reason", "left"}
        result = json.dumps([each.model_dump(mode="json", include=fields) for each in conflicts])
        session.record_call(_make_key(session, merged), group.base, merged, result)
    return merged


def _name_merge(thread: str, states: Sequence[str], policy: MergePolicy) -> str:
    """Return the id of a merge, equal whenever it is made."""
    rule = policy if isinstance(policy, str) else getattr(policy, "__qualname__", "function")
    text = json.dumps([thread, *states, "" if rule == "raise" else rule])
    return f"m{hashlib.sha256(text.encode()).hexdigest()[:15]}"


def _load_branch(session: Session, name: str, state: str) -> Branch:
    snapshot = session.save_snapshot(state) if state == BASE_STATE else session.find_snapshot(state)
    if snapshot is None:
        raise SnapshotNotFoundError(
            f"thread {session.thread!r}: no snapshot of sandbox state {state}, so parallel branches cannot be merged "
            "(pass snapshot_every='step')"
        )
    return Branch(name, snapshot, session.snapshot_directory(snapshot))


def _list_names(moves: Iterable[Move], states: Sequence[str]) -> dict[str, str]:
    """Return a name for each state: that of the outermost node by which they differ, with a number if several have the same."""
    # Of a state that a node and a graph around it left, the outer one.
    ordered = sorted(moves, key=lambda each: len(each.names), reverse=True)
    nodes = {each.state_after: each.names for each in ordered if each.state_after in states}
    levels = zip(*nodes.values(), strict=False)
    depth = next((number for number, level in enumerate(levels) if len({*level}) > 1), -1)
    names: dict[str, str] = {}
    for state in states:
        name = nodes[state][depth] if state in nodes else f"state {state[:8]}"
        number = sum(each == name or each.startswith(f"{name} ") for each in names.values())
        names[state] = f"{name} {number + 1}" if number else name
    return names


def _read_file(sandbox: Sandbox, path: str) -> bytes | None:
    try:
        return sandbox.read_file(path)
    except FileAccessError:
        return None


def _read_mode(sandbox: Sandbox, path: str) -> int | None:
    found = sandbox.inspect(f"stat -c %a -- {shlex.quote(path)}").output.strip()
    return int(found, 8) if found.isdigit() else None
