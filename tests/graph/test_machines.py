"""Kept machines: which directories stay, and which are given back."""

from __future__ import annotations

from .conftest import DONE, EDIT, Bench, scripted


def test_what_is_half_made_stays_unless_nobody_else_works_here(bench: Bench) -> None:
    bench.run(scripted(EDIT, DONE))
    kept = set(bench.home.machines.iterdir())
    half_made, vanished = bench.home.machines / ".freezing-1", bench.home.machines / ".freezing-2"
    half_made.mkdir()
    # What somebody removes between the look at the directory and the look at its age.
    vanished.symlink_to("nowhere")
    (bench.home.machines / "host-0-1").mkdir()
    assert bench.home.remove_unused_machines() == 1
    assert set(bench.home.machines.iterdir()) == {*kept, half_made, vanished}
    assert bench.home.remove_unused_machines(alone=True) == 2
    assert set(bench.home.machines.iterdir()) == kept
