"""The word that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable

MAX_WORD_CHARS = 64
MAX_KNOWN_WORDS = 2_000


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be, or None.

    >>> nearest("gahter", ["angles", "gather"])
    'gather'
    """
    wanted = word.lower()
    words = known if isinstance(known, (list, tuple, set, frozenset, dict)) else list(known)
    if not wanted or len(wanted) > MAX_WORD_CHARS or len(words) > MAX_KNOWN_WORDS:
        return None
    limit = max(1, len(wanted) // 3)
    letters = set(wanted)
    best: tuple[int, str] | None = None
    for candidate in words:
        other = candidate.lower()
        # Cheap lower bounds first: a hostile file asks this for every one of its words.
        if abs(len(other) - len(wanted)) > limit or len(letters ^ set(other)) > 2 * limit:
            continue
        found = (_edits(wanted, other), candidate)
        if found[0] <= limit and (best is None or found < best):
            best = found
    return None if best is None else best[1]


def _edits(a: str, b: str) -> int:
    """Letters inserted, removed, replaced or swapped with a neighbour to make `b` of `a`."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row = row, [i]
        for j, y in enumerate(b, 1):
            cost = min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before = previous
    return row[-1]
