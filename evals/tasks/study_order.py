"""The order of the paper's tasks, built from SWE-bench Verified.

The paper says: two tiers of difficulty, in a random order with seed 20260430. This construction reproduces its list
of 75 tasks exactly, except that the list lacks one task, `EXCLUDED`, at position 21. The paper gives no reason.
The order without that task is stored in `evals/run/settings/studies/task_order.txt`; a test builds it again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

TIERS = ("15 min - 1 hour", "1-4 hours")
SEED = 20260430
EXCLUDED = "sphinx-doc__sphinx-9229"
_TIER_PATTERN = (0, 0, 1)
"""Two tasks of the first tier, then one of the second."""


def order_tasks(instances: Iterable[Mapping[str, Any]]) -> list[str]:
    """The ids of the tasks of both tiers in the study's order, with the excluded task.

    Tasks are grouped by tier and repository, and each group is shuffled. Each position takes a task of its tier from
    the repository that was taken least often, the first in the alphabet of those. [ours, see above]
    """
    groups: dict[tuple[int, str], list[str]] = {}
    for instance in sorted(instances, key=lambda each: str(each["instance_id"])):
        if instance.get("difficulty") in TIERS:
            group = (TIERS.index(instance["difficulty"]), str(instance["repo"]))
            groups.setdefault(group, []).append(str(instance["instance_id"]))
    generator = random.Random(SEED)
    for group in sorted(groups):
        generator.shuffle(groups[group])
    order: list[str] = []
    taken: Counter[str] = Counter()
    while remaining := [group for group in groups if groups[group]]:
        tier = _TIER_PATTERN[len(order) % len(_TIER_PATTERN)]
        of_tier = [group for group in remaining if group[0] == tier] or remaining
        group = min(of_tier, key=lambda each: (taken[each[1]], each[1]))
        order.append(groups[group].pop(0))
        taken[group[1]] += 1
    return order
