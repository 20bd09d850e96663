"""Sets of paths: whether a set contains a path, and whether two sets have a common path.

The scheduler uses the second question to keep writers apart, so the answer is exact: two steps conflict
if some path matches both sets. This is language intersection, not a comparison of prefixes.

This module has two parts. The first implements automata, and explains why the answer is exact and fast. The
second defines patterns and compares two of them. `claims` finds the overlapping set among thousands.
Results depend only on the patterns and are cached in caches of bounded size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

# -----------------------------------------------------------------------------------------------------------
# Automata over characters: they match globs, and find a path that two globs have in common.
#
# Theory
#     States are numbered so that an edge leads one state up, to the same state, or one state down. In
#     addition, jumps read no character and lead upwards. So a set of states is one integer, and reading a
#     character takes three shifts and masks, for any number of states.
#     Edges carry sets of characters as ranges over all of Unicode without NUL, so a negated class is exact.
#
#     Two automata accept a common text if and only if the pair of their accepting states is reachable from
#     the pair of their start states, along edges whose character sets intersect. `find_common` walks those
#     pairs in bulk: for each state of one automaton it keeps the set of partner states as one integer.
#     There are |A| x |B| pairs, and each enters once. The lowest state with new partners goes first, so new
#     partners accumulate before they are passed on. Patterns of the greatest length take milliseconds, and
#     there is no backtracking. Each batch of new partners stores its origin; the origins spell an example.

CharSet: TypeAlias = tuple[tuple[int, int], ...]
"""Disjoint inclusive ranges of code points, ascending."""
Moves: TypeAlias = tuple[int, int, int]
"""For one label, the states whose edge leads to the next state, to themselves, to the state before."""

ANY: CharSet = ((1, 0x2E), (0x30, 0x10FFFF))
SLASH: CharSet = ((0x2F, 0x2F),)
_MAX_CACHED_MOVES = 512
_PLEASANT = "abcdefghijklmnopqrstuvwxyz0123456789_"


def common(a: CharSet, b: CharSet) -> CharSet:
    """Return the characters in both sets."""
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low <= high:
            found.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def union(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """Return the set of all characters in the ranges, which may have any order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: CharSet) -> CharSet:
    """Return the characters, including '/' and NUL, that are not in the set."""
    edges = [0, *(bound for low, high in ranges for bound in (low - 1, high + 1)), 0x10FFFF]
    return tuple((low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low <= high)


class Automaton:
    """An automaton with states 0..size-1 and start 0. Sets of states are integers, closed under jumps.

    `up[s]` is the label of the edge to s+1. If `loop[s]`, s reads any character but '/' and stays. If
    `down[s]`, s reads '/' and returns to s-1. `jumps[s]` lists the states reached without reading.
    """

    __slots__ = (
        "_down", "_jumpers", "_labels", "_moves", "_reads",
        "accept", "closure", "down", "jumps", "loop", "up",
    )  # fmt: skip

    def __init__(self, up: Sequence[CharSet | None], loop: Sequence[bool], down: Sequence[bool],
                 jumps: dict[int, list[int]], accept: int) -> None:  # fmt: skip
        self.up, self.loop, self.down, self.jumps, self.accept = up, loop, down, jumps, accept
        labels: dict[CharSet, int] = {}
        for state, label in enumerate(up):
            if label is not None:
                labels[label] = labels.get(label, 0) | 1 << state
        loops = sum(1 << state for state, yes in enumerate(loop) if yes)
        self._labels = [(label, states, 0) for label, states in labels.items()] + [(ANY, 0, loops)]
        self._down = sum(1 << state for state, yes in enumerate(down) if yes)
        self._jumpers = sum(1 << state for state in jumps)
        self.closure: dict[int, int] = {}
        for state in sorted(jumps, reverse=True):  # jumps lead upwards, so one pass is enough
            reached = 1 << state
            for target in jumps[state]:
                reached |= self.closure.get(target, 1 << target)
            self.closure[state] = reached
        self._moves: dict[CharSet, Moves] = {}
        self._reads: dict[str, Moves] = {}

    @property
    def start(self) -> int:
        """The set of states before the first character."""
        return self.closure.get(0, 1)

    def edges(self, state: int) -> list[tuple[int, CharSet]]:
        """Return target and label of each edge of a state."""
        label = self.up[state]
        edges = [] if label is None else [(state + 1, label)]
        if self.loop[state]:
            edges.append((state, ANY))
        if self.down[state]:
            edges.append((state - 1, SLASH))
        return edges

    def moves(self, label: CharSet) -> Moves:
        """Return the states that can read some character of `label`."""
        known = self._moves.get(label)
        if known is None:
            ups = loops = 0
            for mine, up, loop in self._labels:
                if common(mine, label):
                    ups |= up
                    loops |= loop
            known = (ups, loops, self._down if common(SLASH, label) else 0)
            if len(self._moves) >= _MAX_CACHED_MOVES:
                self._moves.clear()
            self._moves[label] = known
        return known

    def step(self, states: int, moves: Moves) -> int:
        """Return the states reached from `states` by one character."""
        up, loop, down = moves
        states = (states & up) << 1 | states & loop | (states & down) >> 1
        pending = states & self._jumpers
        while pending:
            reached = self.closure[(pending & -pending).bit_length() - 1]
            states |= reached
            pending &= ~reached
        return states

    def run(self, text: str) -> int:
        """Return the states reached from the start by reading `text`; 0 if no accepted text starts so."""
        states = self.start
        for char in text:
            moves = self._reads.get(char)
            if moves is None:
                if len(self._reads) >= _MAX_CACHED_MOVES:
                    self._reads.clear()
                moves = self._reads[char] = self.moves(((ord(char), ord(char)),))
            states = self.step(states, moves)
            if not states:
                break
        return states

    def accepts(self, text: str) -> bool:
        """Whether the whole text is accepted."""
        return bool(self.run(text) >> self.accept & 1)


class Meeting:
    """The pairs of states that two automata can reach together, and the origin of each pair."""

    def __init__(self, a: Automaton, b: Automaton) -> None:
        self.a, self.b = a, b
        self.seen = [0] * len(a.up)
        self.news = [0] * len(a.up)
        self.pending = 0
        self.origins: list[list[tuple[int, int, int, CharSet | None]]] = [[] for _ in a.up]
        self.mark(0, b.start, -1, 0, None)
        self.found = self.explore()

    def mark(self, state: int, partners: int, source: int, given: int, label: CharSet | None) -> None:
        fresh = partners & ~self.seen[state]
        if fresh:
            self.seen[state] |= fresh
            self.news[state] |= fresh
            self.pending |= 1 << state
            self.origins[state].append((fresh, source, given, label))

    def explore(self) -> bool:
        a, b = self.a, self.b
        while self.pending:
            state = (self.pending & -self.pending).bit_length() - 1
            self.pending &= self.pending - 1
            given, self.news[state] = self.news[state], 0
            for target in a.jumps.get(state, ()):
                self.mark(target, given, state, given, None)
            for target, label in a.edges(state):
                self.mark(target, b.step(given, b.moves(label)), state, given, label)
            if self.seen[a.accept] >> b.accept & 1:
                return True
        return False

    def spell(self) -> str:
        """Return a text that both automata accept."""
        state, partner = self.a.accept, self.b.accept
        text: list[str] = []
        while True:
            _, source, given, label = next(news for news in self.origins[state] if news[0] >> partner & 1)
            if source < 0:
                return "".join(reversed(text))
            if label is not None:
                partner, char = self.step_back(partner, given, label)
                text.append(char)
            state = source

    def step_back(self, partner: int, given: int, label: CharSet) -> tuple[int, str]:
        """Return a state in `given` and a character of `label` that lead to the partner state."""
        jumpers = [at for at, reached in self.b.closure.items() if at != partner and reached >> partner & 1]
        for reached in (partner, *jumpers):
            for source in (reached - 1, reached, reached + 1):
                if source >= 0 and given >> source & 1:
                    for target, mine in self.b.edges(source):
                        shared = common(label, mine)
                        if target == reached and shared:
                            return source, _pleasant(shared)
        raise AssertionError("a pair was reached from nowhere")


def _pleasant(chars: CharSet) -> str:
    for char in _PLEASANT:
        if any(low <= ord(char) <= high for low, high in chars):
            return char
    return chr(chars[0][0])


def find_common(a: Automaton, b: Automaton) -> Meeting | None:
    """Return how both automata accept a common text, or None if there is none."""
    meeting = Meeting(a, b) if len(a.up) <= len(b.up) else Meeting(b, a)
    return meeting if meeting.found else None


# -----------------------------------------------------------------------------------------------------------
# Globs: their syntax, their translation to an automaton, and whether two of them have a common path.
#
# The language (paths are posix and relative; every segment of a path is non-empty)
#     *            any run of characters within a segment, dotfiles too       ?   one character
#     [a-z] [!a-z] one character (`^` negates too; `]` in first place is literal); never '/'
#     **           as a whole segment: zero or more segments (`src/**` matches `src` itself)
#     {a,b}        either; may contain '/', wildcards and braces. Any other character is literal.
#
# Theory
#     A pattern becomes an automaton in one pass. Alternatives are placed side by side and never multiplied
#     out, so it has O(length) states. It reads the path *with '/' appended*: then each segment ends in '/',
#     and `**` is (segment '/')*, which includes the '/' written after it.
#
# Rules
#     * Every valid pattern matches some path, and every state can reach acceptance.
#     * Only non-empty segments match: a segment that has only stars reads one more character.
#     * A pattern is invalid if one of its brace expansions is.
#     * `.` and `..` are invalid segments only where they are spelled out.

MAX_LENGTH = 1_024
MAX_ALTERNATIVES = 1_000
MAX_BRACE_DEPTH = 16

_SPECIAL = frozenset("*?[{\\\0")
_ESCAPED = frozenset("*?[{,}")


class GlobError(ValueError):
    """An invalid glob; `position` is the 0-based offset of the invalid character."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message


class _GlobPlace(IntEnum):
    """The content of the current segment so far; it decides which characters may follow."""

    START = 0  # empty, and no required segment before it
    LEAD = 1  # `**`, and no required segment before it
    SLASH = 2  # empty, after '/'
    DEEP = 3  # `**` after '/'
    STARS = 4  # only stars: they may match no character
    DOT = 5
    DOTS = 6
    TEXT = 7


_AFTER_DOT = {
    _GlobPlace.START: _GlobPlace.DOT,
    _GlobPlace.SLASH: _GlobPlace.DOT,
    _GlobPlace.DOT: _GlobPlace.DOTS,
}
_AFTER_STAR = {
    _GlobPlace.START: _GlobPlace.STARS,
    _GlobPlace.SLASH: _GlobPlace.STARS,
    _GlobPlace.STARS: _GlobPlace.STARS,
}
_Ends: TypeAlias = dict[_GlobPlace, tuple[int, int]]
"""The ends of all expansions read so far: place -> (state, offset for error messages)."""


class _Compiler:
    """Compiles a pattern to an automaton in one pass, left to right.

    A state is open while it is the newest and has no edge up. Only an open state gets edges, so the edges
    of one alternative never affect another.
    """

    def __init__(self, pattern: str, stars_match_nothing: bool) -> None:
        self.pattern = pattern
        self.stars_match_nothing = stars_match_nothing
        self.at = 0
        self.up: list[CharSet | None] = []
        self.loop: list[bool] = []
        self.down: list[bool] = []
        self.jumps: dict[int, list[int]] = {}
        self.ends: _Ends = {_GlobPlace.START: (self.new_state(), 0)}

    def compile(self) -> Automaton:
        self.read_sequence(0)
        self.at = len(self.pattern)
        if _GlobPlace.LEAD in self.ends:  # `**` alone must match a non-empty path: it is `**/*`
            state = self.open_state([self.ends.pop(_GlobPlace.LEAD)[0]])
            self.loop[state] = True
            self.ends[_GlobPlace.STARS] = (self.open_state([state, *self.states_at(_GlobPlace.STARS)]), 0)
        self.read_slash()
        ((accept, _),) = self.ends.values()
        return Automaton(self.up, self.loop, self.down, self.jumps, accept)

    def new_state(self, *origins: int) -> int:
        self.up.append(None)
        self.loop.append(False)
        self.down.append(False)
        for origin in origins:
            self.jumps.setdefault(origin, []).append(len(self.up) - 1)
        return len(self.up) - 1

    def open_state(self, states: list[int]) -> int:
        """Return one open state that all `states` lead to without reading."""
        if len(states) == 1 and states[0] == len(self.up) - 1 and self.up[-1] is None:
            return states[0]
        return self.new_state(*states)

    def states_at(self, *places: _GlobPlace) -> list[int]:
        return [self.ends[place][0] for place in places if place in self.ends]

    def read_one(self, become: dict[_GlobPlace, _GlobPlace], label: CharSet | None) -> None:
        """Move every end over one character of `label` (None: a star). `become` maps places (else TEXT)."""
        groups: dict[_GlobPlace, tuple[list[int], int]] = {}
        for place, (state, offset) in self.ends.items():
            states, _ = groups.setdefault(become.get(place, _GlobPlace.TEXT), ([], offset))
            states.append(state)
            if place in (_GlobPlace.LEAD, _GlobPlace.DEEP):
                raise GlobError(offset, "'**' must be a whole segment: put '/' around it, or use '*'")
        self.ends = {}
        for place, (states, offset) in groups.items():
            state = self.open_state(states)
            state = self.emit_star(state) if label is None else self.advance(state, label)
            self.ends[place] = (state, self.at if place is _GlobPlace.DOT else offset)

    def advance(self, state: int, label: CharSet) -> int:
        self.up[state] = label
        return self.new_state()

    def read_sequence(self, depth: int) -> int:
        """Read to the end of the pattern or alternative; return the number of expansions of that part."""
        expansions = 1
        while self.at < len(self.pattern):
            char = self.pattern[self.at]
            if depth and char in ",}":
                break
            if char == "{":
                opened = self.at
                expansions *= self.read_braces(depth + 1)
                if expansions > MAX_ALTERNATIVES:
                    raise GlobError(opened, f"braces expand to more than {MAX_ALTERNATIVES:,} alternatives")
                continue
            if char == "/":
                self.read_slash()
            elif char == "*":
                self.read_stars()
            elif char == "[":
                label, end = _read_class(self.pattern, self.at)
                self.read_one({}, label)
                self.at = end
            else:
                code = ord(char)
                label = ANY if char == "?" else ((code, code),)
                self.read_one(_AFTER_DOT if char == "." else {}, label)
            self.at += 1
        return expansions

    def read_braces(self, depth: int) -> int:
        opened, before = self.at, self.ends
        if depth > MAX_BRACE_DEPTH:
            raise GlobError(opened, f"braces are nested more than {MAX_BRACE_DEPTH} deep")
        arrived: dict[_GlobPlace, tuple[list[int], int]] = {}
        expansions = 0
        while self.pattern[self.at : self.at + 1] != "}" or self.at == opened:
            self.at += 1
            self.ends = {place: (self.new_state(state), offset) for place, (state, offset) in before.items()}
            expansions += self.read_sequence(depth)
            if self.at >= len(self.pattern):
                raise GlobError(opened, "'{' is never closed (a literal one is written '[{]')")
            for place, (state, offset) in self.ends.items():
                arrived.setdefault(place, ([], offset))[0].append(state)
        self.ends = {place: (self.open_state(states), offset) for place, (states, offset) in arrived.items()}
        self.at += 1
        return expansions

    def read_stars(self) -> None:
        if self.pattern[self.at : self.at + 2] != "**":
            self.read_one(_AFTER_STAR if self.stars_match_nothing else {}, None)
            return
        for place, (state, offset) in list(self.ends.items()):
            if place not in (_GlobPlace.START, _GlobPlace.SLASH):
                at = offset if place in (_GlobPlace.LEAD, _GlobPlace.DEEP) else self.at
                raise GlobError(at, "'**' must be a whole segment: put '/' around it, or use '*'")
            del self.ends[place]
            deep = state if self.is_deep(state) else self.emit_deep(state)  # `**/**` is `**`
            self.ends[_GlobPlace.LEAD if place is _GlobPlace.START else _GlobPlace.DEEP] = (deep, self.at)
        self.at += 1

    def is_deep(self, state: int) -> bool:
        return state + 1 < len(self.up) and self.down[state + 1]

    def emit_deep(self, state: int) -> int:
        """Emit (segment '/')*, which starts and ends at one state; return that state."""
        state = self.open_state([state])
        inside = self.advance(state, ANY)
        self.loop[inside] = self.down[inside] = True
        return state

    def emit_star(self, state: int) -> int:
        if not self.stars_match_nothing:
            state = self.advance(state, ANY)
        self.loop[state] = True
        return state

    def read_slash(self) -> None:
        """Read a '/', or the end of the pattern, which matches the '/' appended to the path."""
        for place, (_, offset) in self.ends.items():
            at_end = self.at == len(self.pattern)
            if place is _GlobPlace.START and offset == 0 and not at_end:
                raise GlobError(self.at, "the path is absolute: write it relative to the workspace")
            if place in (_GlobPlace.START, _GlobPlace.SLASH):
                at = offset if at_end else self.at
                raise GlobError(at, "a segment is empty (write 'folder/**' for all that is in a folder)")
            if place in (_GlobPlace.DOT, _GlobPlace.DOTS):
                dots = "." if place is _GlobPlace.DOT else ".."
                raise GlobError(offset, f"'{dots}' is not allowed: paths start at the workspace")
        written = self.states_at(_GlobPlace.TEXT)
        written += [self.advance(self.open_state([state]), ANY) for state in self.states_at(_GlobPlace.STARS)]
        after = [self.advance(self.open_state(written), SLASH)] if written else []
        after += self.states_at(_GlobPlace.DEEP)
        lead = self.states_at(_GlobPlace.LEAD)
        self.ends = {}
        for place, states in ((_GlobPlace.SLASH, after), (_GlobPlace.START, lead)):
            if states:
                self.ends[place] = (states[0] if len(states) == 1 else self.open_state(states), self.at)


def _read_class(pattern: str, opened: int) -> tuple[CharSet, int]:
    """Return the character class at `opened`, and the offset of its ']'."""
    at = opened + 1
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    first, ranges = at, []
    while pattern[at : at + 1] != "]" or at == first:
        low = high = pattern[at : at + 1]
        ranged = pattern[at + 1 : at + 2] == "-" and pattern[at + 2 : at + 3] not in ("", "]")
        if ranged:
            high = pattern[at + 2]
        if low in ("", "/") or high == "/":
            raise GlobError(opened, "'[' is never closed in its segment (a literal one is written '[[]')")
        if low > high:
            raise GlobError(at, f"the range {low}-{high} is empty: its ends are in the wrong order")
        ranges.append((ord(low), ord(high)))
        at += 3 if ranged else 1
    written = union(ranges)
    label = common(complement(written) if negated else written, ANY)
    if not label:
        raise GlobError(opened, "the character class is empty")
    return label, at


def _compile(pattern: str, stars_match_nothing: bool = True) -> Automaton:
    if not pattern:
        raise GlobError(0, "the pattern is empty")
    if len(pattern) > MAX_LENGTH:
        raise GlobError(MAX_LENGTH, f"the pattern is longer than {MAX_LENGTH:,} characters")
    if "\\" in pattern:
        raise GlobError(pattern.index("\\"), "a backslash: separate by '/', escape by a class such as '[*]'")
    if "\0" in pattern:
        raise GlobError(pattern.index("\0"), "a path cannot contain a NUL character")
    return _Compiler(pattern, stars_match_nothing).compile()


class Glob:
    """A valid pattern with its literal leading segments, the head.

    `exact` patterns match the head alone. `subtree` patterns match the head and all paths below it. Other
    patterns need the automaton, and match only paths at or below their head.
    """

    __slots__ = ("_automaton", "exact", "head", "subtree", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._automaton: Automaton | None = None
        self.subtree = text.endswith("/**")
        stem = text[:-3] if self.subtree else text
        self.head = tuple(stem.split("/"))
        plain = len(text) <= MAX_LENGTH and _SPECIAL.isdisjoint(stem)
        if not plain or "" in self.head or "." in self.head or ".." in self.head:
            self._automaton = _compile(text)  # raises GlobError for an invalid pattern
            wild = next(at for at, char in enumerate(text) if char in _SPECIAL)
            self.head = tuple(text[:wild].split("/")[:-1])
            self.subtree = text in ("**", "**/*")
            plain = self.subtree
        self.exact = plain and not self.subtree

    @property
    def automaton(self) -> Automaton:
        """The automaton of the pattern, compiled on first use. For most patterns the heads are enough."""
        if self._automaton is None:
            self._automaton = _compile(self.text)
        return self._automaton

    def fuller(self) -> Automaton:
        """Return an automaton in which each star matches at least one character, for clearer examples."""
        return _compile(self.text, stars_match_nothing=False)


@lru_cache(maxsize=8_192)
def read_glob(pattern: str) -> Glob:
    """Return the glob of a pattern. Raises GlobError if it is invalid."""
    return Glob(pattern)


def check_glob(pattern: str) -> None:
    """Raise GlobError, with the position, if `pattern` is invalid."""
    read_glob(pattern)


def escape(text: str) -> str:
    """Return the pattern that matches only this text. It is valid in any part of a pattern except a class.

    >>> escape("[id]/{a,b}*.py")
    '[[]id]/[{]a[,]b[}][*].py'
    """
    return "".join(f"[{char}]" if char in _ESCAPED else char for char in text)


def is_in_class(pattern: str, position: int) -> bool:
    """Whether the character at `position` is inside `[…]`, where it cannot be escaped."""
    at = 0
    while at < position:
        if pattern[at] == "[":
            _, end = _read_class(pattern, at)
            if position <= end:
                return True
            at = end
        at += 1
    return False


def overlap(a: str, b: str) -> bool:
    """Whether some path matches both patterns.

    Uses the cheapest method. If both patterns are literal, or literal with `/**`, it compares their heads.
    If only one is, the automaton of the other pattern reads its head. Otherwise it walks both automata.
    """
    return _overlap(a, b) if a <= b else _overlap(b, a)


@lru_cache(maxsize=65_536)
def _overlap(a: str, b: str) -> bool:
    one, other = read_glob(a), read_glob(b)
    depth = min(len(one.head), len(other.head))
    if one.head[:depth] != other.head[:depth]:
        return False
    if not (one.exact or one.subtree):
        one, other = other, one
    if not (one.exact or one.subtree):
        return a == b or find_common(one.automaton, other.automaton) is not None
    if other.exact or other.subtree:
        return (one.subtree or len(other.head) <= len(one.head)) and (
            other.subtree or len(one.head) <= len(other.head)
        )
    if one.exact:
        return other.automaton.accepts(one.text + "/")
    # Every state can reach acceptance, so any state left after the head is enough.
    return other.automaton.run("".join(segment + "/" for segment in one.head)) != 0


def matches(patterns: Sequence[str], path: str) -> bool:
    """Whether one of the patterns matches the whole path. False if the path is not relative posix.

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
    """Whether some path is in both sets. Raises GlobError if any pattern is invalid.

    >>> overlaps(("src/*.py",), ("src/a.*",)), overlaps(("src/*.py",), ("src/sub/*.py",))
    (True, False)
    """
    for pattern in (*a, *b):
        read_glob(pattern)
    return any(overlap(one, other) for one in a for other in b)


def witness(a: str, b: str) -> str | None:
    """Return a short path that both patterns match, or None if there is none.

    >>> witness("src/**", "**/*.py")
    'src/a.py'
    """
    if not overlap(a, b):
        return None
    one, other = read_glob(a), read_glob(b)
    meeting = find_common(one.fuller(), other.fuller()) or find_common(one.automaton, other.automaton)
    assert meeting is not None, "patterns that overlap have a common path"
    return meeting.spell().removesuffix("/")
