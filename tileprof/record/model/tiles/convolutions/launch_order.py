"""Puts the launches of a grouped convolution in the order of its groups.

cuDNN runs groups on several streams at once, each with copies, kernel and copies of its own. A recording has their
launches in the order in which they began, which is another one each time; within a group it is always the same.
"""

from __future__ import annotations

from collections import Counter
from math import gcd
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def by_group(launches: Sequence[tuple[Any, ...]], groups: int) -> list[tuple[Any, ...]]:
    """Return launches, each a name, a shape, a grid and a time, as group after group launches them.

    What comes once, twice or more often in each group comes in all a multiple of the number of rounds; of several alike
    in a group it is not known what comes between them, so they are put behind one another.
    """
    launch_counts = Counter((one[0], one[2]) for one in launches)
    rounds = gcd(*launch_counts.values(), groups)
    if groups == 1 or rounds == 1:
        return list(launches)
    length = len(launches) // rounds
    kinds = [(one[0], one[2]) for one in launches]
    if kinds == kinds[:length] * rounds:
        return list(launches)
    waiting: dict[Any, list[tuple[Any, ...]]] = {}
    for one in launches:
        waiting.setdefault((one[0], one[2]), []).append(one)
    order = [kind for kind in waiting for _ in range(launch_counts[kind] // rounds)]
    return [waiting[kind].pop(0) for _ in range(rounds) for kind in order]
