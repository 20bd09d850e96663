"""Sets of paths: does a set hold this path, and do two sets share any path at all?

The scheduler keeps writers apart by the second question, so it is answered exactly: two steps conflict
when some path is matched by both, which is language intersection, not a comparison of prefixes.

`globs` says what a pattern is and decides one pair, `automata` holds the theory of why that is exact and
fast, `claims` finds the overlapping set among thousands. Answers are remembered in caches of bounded size;
they depend on nothing but the patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fanfold.kernel.sets.automata import find_common
from fanfold.kernel.sets.globs import Glob, overlap, read_glob


def matches(patterns: Sequence[str], path: str) -> bool:
    """Whether one of the patterns matches the whole path; never for a path that is not relative posix.

    >>> matches(["src/**", "*.md"], "src/fanfold/cli.py")
    True
    """
    globs = [read_glob(pattern) for pattern in patterns]
    if not path or path[0] == "/" or path[-1] == "/" or "//" in path or "\0" in path:
        return False
    return any(_matches(glob, path) for glob in globs)


def _matches(glob: Glob, path: str) -> bool:
    if glob.exact:
        return path == glob.text
    if glob.subtree:
        head = "/".join(glob.head)
        return not head or path == head or path.startswith(head + "/")
    return glob.automaton.accepts(path + "/")


@lru_cache(maxsize=16_384)
def overlaps(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Whether some path is in both sets; raises GlobError if any pattern is not a glob.

    >>> overlaps(("src/*.py",), ("src/a.*",)), overlaps(("src/*.py",), ("src/sub/*.py",))
    (True, False)
    """
    for pattern in (*a, *b):
        read_glob(pattern)
    return any(overlap(one, other) for one in a for other in b)


def witness(a: str, b: str) -> str | None:
    """A short path that both patterns match, None when there is none.

    >>> witness("src/**", "**/*.py")
    'src/a.py'
    """
    if not overlap(a, b):
        return None
    one, other = read_glob(a), read_glob(b)
    meeting = find_common(one.fuller(), other.fuller()) or find_common(one.automaton, other.automaton)
    assert meeting is not None, "patterns that overlap have a common path"
    return meeting.spell().removesuffix("/")
