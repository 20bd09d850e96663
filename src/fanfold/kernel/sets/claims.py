"""Which live claim overlaps this set of paths, and was made last?

A claim is a sequence number and a set of patterns. `ClaimIndex` answers in constant time where sets are
literal folders and files, or identical, and never compares a set with all others unless patterns force it.

How
    * A trie on the literal leading segments of patterns (their head). A pattern lives at the node of its
      head: as `exact` (the head alone), `subtree` (`head/**`) or `loose` (anything else).
    * What can overlap a pattern lies on the way down to its head, or below it. On the way: `subtree`
      claims overlap for certain, `loose` ones may, `exact` ones cannot. Below: all overlap `head/**`,
      none overlaps the head alone, and any other pattern has to look.
    * Every node keeps the numbers of all claims further down, in order, so that "the latest below here"
      needs no enumeration. A set is interned with the buckets it goes to: to claim is to add one number to
      each. Identical sets share everything.
    * Where patterns have to look, they go from the latest number down, for the first that overlaps is
      the answer; if that does not end soon, they go by distinct patterns instead, skipping every branch
      that holds nothing later than what was found or that cannot overlap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from functools import lru_cache

from fanfold.kernel.sets.globs import MAX_LENGTH, Glob, overlap, read_glob

_RUN = 256
_MAX_DEPTH = 8  # a longer head is compared, not walked: a claim costs one bucket per level
_PATIENCE = 16
_MAX_IDLE = 1_024
_NEVER = 1 << 62


class _Seqs(list[int]):
    """Numbers in order, cut into runs so that removing one moves few others. Made for adding at the end.

    The list itself is the last run. Equal numbers stay in one run. An older run begins at or after its
    entry in `_firsts` and before that of the next run; no run is empty, unless it is the only one.
    """

    __slots__ = ("_firsts", "_older")

    def __init__(self) -> None:
        self._older: list[list[int]] | None = None
        self._firsts: list[int] | None = None

    def put(self, seq: int) -> None:
        if not self or seq >= self[-1]:
            if len(self) >= _RUN and seq != self[-1]:
                self._older, self._firsts = self._older or [], self._firsts or []
                self._older.append(self[:])
                self._firsts.append(self[0])
                self.clear()
            self.append(seq)
        elif self._older and self._firsts and seq < self[0]:
            at = max(bisect_right(self._firsts, seq) - 1, 0)
            self._firsts[at] = min(self._firsts[at], seq)
            insort(self._older[at], seq)
        else:
            insort(self, seq)

    def take(self, seq: int) -> None:
        """Take out one occurrence; it is there."""
        if self._older and self._firsts and seq < self[0]:
            at = bisect_right(self._firsts, seq) - 1
            run = self._older[at]
            del run[bisect_left(run, seq)]
            if not run:
                del self._older[at], self._firsts[at]
        else:
            del self[bisect_left(self, seq)]
            if self._older and self._firsts and not self:
                self.extend(self._older.pop())
                self._firsts.pop()

    def latest(self, below: int) -> int:
        """The greatest number less than `below`, or -1."""
        if not self:
            return -1
        newest = self[-1]
        if newest < below:
            return newest
        run: list[int] = self
        if self._older and self._firsts and below <= self[0]:
            first = max(bisect_left(self._firsts, below) - 1, 0)
            run = self._older[first]
            if run[0] >= below and first:
                return self._older[first - 1][-1]
        at = bisect_left(run, below)
        return run[at - 1] if at else -1


class _Node:
    """One literal segment: the claims of patterns that end here, and all that are further down."""

    __slots__ = ("below", "children", "exact", "loose", "patterns", "subtree")

    def __init__(self) -> None:
        self.children: dict[str, _Node] | None = None
        self.below: _Seqs | None = None
        self.exact: _Seqs | None = None
        self.subtree: _Seqs | None = None
        self.loose: _Seqs | None = None
        self.patterns: dict[str, _Seqs] | None = None
        """The loose claims again, by pattern."""

    def latest(self, below: int) -> int:
        """The latest claim here or further down."""
        best = -1 if self.subtree is None else self.subtree.latest(below)
        if self.below is not None:
            best = max(best, self.below.latest(below))
        if self.exact is not None:
            best = max(best, self.exact.latest(below))
        if self.loose is not None:
            best = max(best, self.loose.latest(below))
        return best


class _Set:
    """A distinct set of patterns, the buckets its claims are in, and how many claims it has."""

    __slots__ = ("buckets", "globs", "live", "patterns")

    def __init__(self, patterns: tuple[str, ...], globs: tuple[Glob, ...], buckets: list[_Seqs]) -> None:
        self.patterns, self.globs, self.buckets = patterns, globs, buckets
        self.live = 0


class ClaimIndex:
    """Live claims by number; finds the latest that overlaps a set.

    >>> index = ClaimIndex()
    >>> index.add(1, ("src/**",))
    >>> index.add(2, ("docs/**",))
    >>> index.latest(("src/*.py",)), index.latest(("**/*",)), index.latest(("**/*",), below=2)
    (1, 2, 1)
    """

    def __init__(self) -> None:
        self._root = _Node()
        self._sets: dict[tuple[str, ...], tuple[_Set]] = {}
        self._claims: dict[int, tuple[_Set, ...]] = {}
        self._count = 0
        self._idle = 0

    def __len__(self) -> int:
        return self._count

    def add(self, seq: int, patterns: tuple[str, ...]) -> None:
        """Claim the set; one number may hold several different sets."""
        entry = self._sets.get(patterns) or self._intern(patterns)
        known = entry[0]
        if seq in self._claims:
            if known in self._claims[seq]:
                raise ValueError(f"claim {seq} holds {patterns} already")
            self._claims[seq] += entry
        elif seq < 0:
            raise ValueError(f"claim {seq} is negative")
        else:
            self._claims[seq] = entry
        if not known.live:
            self._idle -= 1
        known.live += 1
        self._count += 1
        for bucket in known.buckets:
            bucket.put(seq)

    def remove(self, seq: int, patterns: tuple[str, ...]) -> None:
        """Give the set back; raises KeyError when it is not claimed."""
        known = self._sets[patterns][0]
        held = self._claims[seq]
        if known not in held:
            raise KeyError(seq)
        if len(held) == 1:
            del self._claims[seq]
        else:
            self._claims[seq] = tuple(other for other in held if other is not known)
        known.live -= 1
        if not known.live:
            self._idle += 1
        self._count -= 1
        for bucket in known.buckets:
            bucket.take(seq)

    def latest(self, patterns: tuple[str, ...], below: int | None = None) -> int | None:
        """The greatest number (less than `below`) whose set overlaps `patterns`, or None."""
        entry = self._sets.get(patterns)
        globs = _read_set(patterns) if entry is None else entry[0].globs
        if not self._count:
            return None
        best = -1
        for glob in globs:
            best = self._latest(glob, _NEVER if below is None else below, best)
        return None if best < 0 else best

    def _latest(self, glob: Glob, below: int, best: int) -> int:
        node, depth = self._root, len(glob.head)
        for name in glob.head if depth <= _MAX_DEPTH else glob.head[:_MAX_DEPTH]:
            if node.subtree is not None:
                best = max(best, node.subtree.latest(below))
            if node.loose is not None:
                best = self._latest_loose(node, glob, below, best)
            child = node.children.get(name) if node.children else None
            if child is None:
                return best
            node = child
        if depth > _MAX_DEPTH or not (glob.subtree or glob.exact):
            return self._latest_further(node, glob, below, best)
        if glob.subtree:
            return max(best, node.latest(below))
        for certain in (node.exact, node.subtree):
            if certain is not None:
                best = max(best, certain.latest(below))
        return best if node.loose is None else self._latest_loose(node, glob, below, best)

    def _latest_loose(self, node: _Node, glob: Glob, below: int, best: int) -> int:
        """Better `best` by the loose patterns at one node."""
        best, settled = self._go_down(node.loose, glob, below, best)
        if not settled and node.patterns:
            for pattern, seqs in node.patterns.items():
                seq = seqs.latest(below)
                if seq > best and overlap(glob.text, pattern):
                    best = seq
        return best

    def _latest_further(self, top: _Node, glob: Glob, below: int, best: int) -> int:
        """Better `best` by everything at or below the head of a loose pattern."""
        pending = [(top, "/".join(glob.head[:_MAX_DEPTH]))]
        while pending:
            node, path = pending.pop()
            if node.subtree is not None:
                best = max(best, node.subtree.latest(below))
            if node.exact is not None and overlap(glob.text, path):
                best = max(best, node.exact.latest(below))
            if node.loose is not None:
                best = self._latest_loose(node, glob, below, best)
            best, settled = self._go_down(node.below, glob, below, best)
            if not settled and node.children:
                prefix = path and path + "/"
                for name, child in node.children.items():
                    if child.latest(below) > best and _may_reach(glob, prefix + name):
                        pending.append((child, prefix + name))
        return best

    def _go_down(self, seqs: _Seqs | None, glob: Glob, below: int, best: int) -> tuple[int, bool]:
        """Better `best` by the latest few claims of a bucket; whether that settled the question."""
        if seqs is None:
            return best, True
        text, seq = glob.text, below
        for _ in range(_PATIENCE):
            seq = seqs.latest(seq)
            if seq <= best:
                return best, True
            for held in self._claims[seq]:
                for other in held.globs:
                    if overlap(text, other.text):
                        return seq, True
        return best, False

    def _intern(self, patterns: tuple[str, ...]) -> tuple[_Set]:
        globs = _read_set(patterns)
        if self._idle > _MAX_IDLE + 4 * self._count:
            self._forget_idle()
        buckets = self._place(globs[0]) if globs else []
        for glob in globs[1:]:
            buckets += [new for new in self._place(glob) if not any(new is old for old in buckets)]
        self._idle += 1
        entry = self._sets[patterns] = (_Set(patterns, globs, buckets),)
        return entry

    def _place(self, glob: Glob) -> list[_Seqs]:
        """Make the way down to the head of a pattern; the buckets on it and at its end."""
        node, buckets = self._root, []
        for name in glob.head[:_MAX_DEPTH]:
            if node.children is None or node.below is None:
                node.children, node.below = {}, _Seqs()
            buckets.append(node.below)
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = _Node()
            node = child
        if len(glob.head) > _MAX_DEPTH or not (glob.exact or glob.subtree):
            if node.loose is None or node.patterns is None:
                node.loose, node.patterns = _Seqs(), {}
            buckets += (node.loose, node.patterns.setdefault(glob.text, _Seqs()))
        elif glob.subtree:
            node.subtree = _Seqs() if node.subtree is None else node.subtree
            buckets.append(node.subtree)
        else:
            node.exact = _Seqs() if node.exact is None else node.exact
            buckets.append(node.exact)
        return buckets

    def _forget_idle(self) -> None:
        """Build the trie anew from what is claimed: memory follows the live claims."""
        claims, self._claims = self._claims, {}
        self._root, self._sets, self._count, self._idle = _Node(), {}, 0, 0
        for seq in sorted(claims):
            for held in claims[seq]:
                self.add(seq, held.patterns)


def _may_reach(glob: Glob, path: str) -> bool:
    """Whether the pattern matches anything at or below a path; yes when that is too long to ask."""
    return len(path) + 3 > MAX_LENGTH or overlap(glob.text, path + "/**")


def _read_set(patterns: tuple[str, ...]) -> tuple[Glob, ...]:
    if len(patterns) == 1 and "{" not in patterns[0]:
        return (read_glob(patterns[0]),)
    return _spread_set(patterns)


@lru_cache(maxsize=4_096)
def _spread_set(patterns: tuple[str, ...]) -> tuple[Glob, ...]:
    """The patterns without repetition, plain braces multiplied out: `{a,b}/**` has two useful heads."""
    return tuple(read_glob(text) for text in dict.fromkeys(one for each in patterns for one in _spread(each)))


def _spread(pattern: str) -> list[str]:
    """What the first group of braces expands to, when its alternatives are plain text."""
    read_glob(pattern)
    before, opened, rest = pattern.partition("{")
    inside, _, after = rest.partition("}")
    names = inside.split(",")
    if not opened or "[" in pattern or len(names) > 32 or "" in names or not set("*?{").isdisjoint(inside):
        return [pattern]
    return [before + name + after for name in names]
