"""Which part of a large matrix the tests try: chosen by a seed, the same for everybody until it is changed.

TEST_SEED=7 chooses others. The whole of a matrix is tried by the make target that its test names.
"""

from __future__ import annotations

import os
import random
from itertools import pairwise

SEED = os.environ.get("TEST_SEED", "0")
EXAMPLES = os.environ.get("TEST_EXAMPLES", "")


def examples(all_of_them: int) -> int:
    """How many examples of a costly property are drawn: all in `make properties` (TEST_EXAMPLES=all)."""
    return all_of_them if EXAMPLES == "all" else all_of_them // 4


def spread(count: int, last: int, *kind: object) -> list[int]:
    """Numbers from 1 to `last`, one out of each of `count` parts; other kinds get others."""
    chance = random.Random(f"{SEED} {kind}")
    count = min(count, last)
    edges = [last * number // count for number in range(count + 1)]
    return [chance.randint(low + 1, high) for low, high in pairwise(edges)]
