"""One glob: what a pattern may say, and the automaton that decides it.

The language (paths are posix and relative; every segment of a path is non-empty)
    *            any run of characters within a segment, dotfiles too       ?   one character
    [a-z] [!a-z] one character (`^` negates too; `]` in first place is literal); never '/'
    **           as a whole segment: zero or more segments (`src/**` matches `src` itself)
    {a,b}        either; may hold '/', wildcards and braces. Anything else stands for itself.

Theory
    A pattern becomes a non-deterministic automaton in one pass, alternatives side by side and never
    multiplied out, so it has O(length) states. It reads the path *with '/' appended*: then each segment
    ends in '/', and `**` is simply (segment '/')* which swallows the '/' written after it.
    States are numbered so that an edge leads one state up, stays, or (only `**`) leads one state down;
    braces add edges that read nothing, always upwards. A set of states is therefore one integer, and
    reading a character is three shifts and masks of it, whatever the number of states.
    Edges carry sets of characters as ranges over all of Unicode without NUL, so a negated class is exact.

Rules
    * Every pattern that is accepted matches some path, and every state lies on a way to acceptance.
    * Only non-empty segments are matched: a segment of nothing but stars reads one character more.
    * A pattern is refused when one of its brace expansions would be; `.` and `..` only where spelled out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

MAX_LENGTH = 1_024
MAX_ALTERNATIVES = 1_000
MAX_BRACE_DEPTH = 16

CharSet: TypeAlias = tuple[tuple[int, int], ...]
"""Disjoint inclusive ranges of code points, ascending."""
Moves: TypeAlias = tuple[int, int, int]
"""The states that read a given label to the next state, to themselves, to the state before."""

ANY: CharSet = ((1, 0x2E), (0x30, 0x10FFFF))
SLASH: CharSet = ((0x2F, 0x2F),)
_SPECIAL = frozenset("*?[{\\\0")
_MAX_CACHED_MOVES = 512


class GlobError(ValueError):
    """A pattern that is not a glob; `position` is the 0-based offset of the offending character."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message


def common(a: CharSet, b: CharSet) -> CharSet:
    """The characters in both sets."""
    if a is b:
        return a
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


def _union(ranges: Iterable[tuple[int, int]]) -> CharSet:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(ranges: CharSet) -> CharSet:
    edges = [0, *(bound for low, high in ranges for bound in (low - 1, high + 1)), 0x10FFFF]
    return tuple((low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low <= high)


class Automaton:
    """States 0..size-1, start 0. Sets of states are integers; they are kept closed under `jumps`."""

    __slots__ = ("_down", "_jumpers", "_labels", "_moves", "_reads", "accept", "closure", "edges", "jumps", "size")

    def __init__(self, up: list[CharSet | None], loop: list[bool], down: list[bool],
                 jumps: list[list[int]], accept: int) -> None:  # fmt: skip
        self.size, self.accept, self.jumps = len(up), accept, jumps
        self.closure = [1 << state for state in range(self.size)]
        self.edges: list[list[tuple[int, CharSet]]] = []
        labels: dict[CharSet, tuple[int, int]] = {}
        for state, label in enumerate(up):
            self.edges.append([])
            if label is not None:
                self.edges[state].append((state + 1, label))
                ups, loops = labels.get(label, (0, 0))
                labels[label] = ups | 1 << state, loops
            if loop[state]:
                self.edges[state].append((state, ANY))
                ups, loops = labels.get(ANY, (0, 0))
                labels[ANY] = ups, loops | 1 << state
            if down[state]:
                self.edges[state].append((state - 1, SLASH))
        for state in reversed(range(self.size)):  # jumps lead upwards, so one pass is enough
            for target in jumps[state]:
                self.closure[state] |= self.closure[target]
        self._labels = [(label, ups, loops) for label, (ups, loops) in labels.items()]
        self._down = sum(1 << state for state in range(self.size) if down[state])
        self._jumpers = sum(1 << state for state in range(self.size) if jumps[state])
        self._moves: dict[CharSet, Moves] = {}
        self._reads: dict[str, Moves] = {}

    def moves(self, label: CharSet) -> Moves:
        """Which states can read some character of `label`."""
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
        """The states reached from `states` by one character."""
        up, loop, down = moves
        states = (states & up) << 1 | states & loop | (states & down) >> 1
        pending = states & self._jumpers
        while pending:
            reached = self.closure[(pending & -pending).bit_length() - 1]
            states |= reached
            pending &= ~reached
        return states

    def run(self, text: str) -> int:
        """The states reached from the start by reading `text`; 0 when no path begins like that."""
        states = self.closure[0]
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

    def accepts(self, path: str) -> bool:
        """Whether the whole path is matched."""
        return bool(self.run(path + "/") >> self.accept & 1)

    def sources(self, state: int) -> list[int]:
        """States from which `state` is reached by jumps, itself included."""
        return [at for at in range(state + 1) if self.closure[at] >> state & 1]


class _Place(IntEnum):
    """What has been written of the current segment; decides what may follow."""

    START = 0  # nothing yet, and nothing before it that a path must have
    LEAD = 1  # `**`, and nothing before it that a path must have
    SLASH = 2  # nothing yet, after '/'
    DEEP = 3  # `**` after '/'
    STARS = 4  # only stars: may have matched nothing
    DOT = 5
    DOTS = 6
    TEXT = 7


_AFTER_DOT = {_Place.START: _Place.DOT, _Place.SLASH: _Place.DOT, _Place.DOT: _Place.DOTS}
_AFTER_STAR = dict.fromkeys((_Place.START, _Place.SLASH, _Place.STARS), _Place.STARS)
_Ends: TypeAlias = dict[_Place, tuple[int, int]]
"""Where the expansions read so far have arrived: place -> (state, offset to report an error at)."""


class _Compiler:
    """Reads the pattern once, left to right, and emits states as it goes.

    A state is open while it is the newest and has no edge up; only an open state is given edges, so
    what is added for one alternative can never leak into another.
    """

    def __init__(self, pattern: str, stars_match_nothing: bool) -> None:
        self.pattern = pattern
        self.stars_match_nothing = stars_match_nothing
        self.at = 0
        self.up: list[CharSet | None] = []
        self.loop: list[bool] = []
        self.down: list[bool] = []
        self.jumps: list[list[int]] = []
        self.ends: _Ends = {_Place.START: (self.new_state(), 0)}

    def compile(self) -> Automaton:
        self.read_sequence(0)
        self.at = len(self.pattern)
        if _Place.LEAD in self.ends:  # `**` alone still needs a path to match: it is `**/*`
            state = self.open_state([self.ends.pop(_Place.LEAD)[0]])
            self.loop[state] = True
            self.ends[_Place.STARS] = (self.open_state([state, *self.states_at(_Place.STARS)]), 0)
        self.read_slash()
        ((accept, _),) = self.ends.values()
        return Automaton(self.up, self.loop, self.down, self.jumps, accept)

    def new_state(self, *origins: int) -> int:
        self.up.append(None)
        self.loop.append(False)
        self.down.append(False)
        self.jumps.append([])
        for origin in origins:
            self.jumps[origin].append(len(self.up) - 1)
        return len(self.up) - 1

    def open_state(self, states: list[int]) -> int:
        """One open state that stands for all of `states`."""
        if len(states) == 1 and states[0] == len(self.up) - 1 and self.up[-1] is None:
            return states[0]
        return self.new_state(*states)

    def states_at(self, *places: _Place) -> list[int]:
        return [self.ends[place][0] for place in places if place in self.ends]

    def regroup(self, become: dict[_Place, _Place], emit: Callable[[int], int]) -> None:
        """Move every end on: places by the table (else TEXT), states through `emit`."""
        groups: dict[_Place, tuple[list[int], int]] = {}
        for place, (state, offset) in self.ends.items():
            states, _ = groups.setdefault(become.get(place, _Place.TEXT), ([], offset))
            states.append(state)
            if place in (_Place.LEAD, _Place.DEEP):
                raise GlobError(offset, "'**' must be a whole segment: put '/' around it, or use '*'")
        self.ends = {}
        for place, (states, offset) in groups.items():
            start = self.at if place is _Place.DOT else offset
            self.ends[place] = (emit(self.open_state(states)), start)

    def advance(self, state: int, label: CharSet) -> int:
        self.up[state] = label
        return self.new_state()

    def read_sequence(self, depth: int) -> int:
        """Read up to the end of the pattern or alternative; how many expansions that part has."""
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
                self.regroup({}, lambda state, label=label: self.advance(state, label))  # type: ignore[misc]
                self.at = end
            else:
                code = ord(char)
                label = ANY if char == "?" else ((code, code),)
                become = _AFTER_DOT if char == "." else {}
                self.regroup(become, lambda state, label=label: self.advance(state, label))  # type: ignore[misc]
            self.at += 1
        return expansions

    def read_braces(self, depth: int) -> int:
        opened, before = self.at, self.ends
        if depth > MAX_BRACE_DEPTH:
            raise GlobError(opened, f"braces are nested more than {MAX_BRACE_DEPTH} deep")
        arrived: dict[_Place, tuple[list[int], int]] = {}
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
            self.regroup(_AFTER_STAR if self.stars_match_nothing else {}, self.emit_star)
            return
        for place, (state, offset) in list(self.ends.items()):
            if place not in (_Place.START, _Place.SLASH):
                at = offset if place in (_Place.LEAD, _Place.DEEP) else self.at
                raise GlobError(at, "'**' must be a whole segment: put '/' around it, or use '*'")
            del self.ends[place]
            if not (state + 1 < len(self.up) and self.down[state + 1]):  # `**/**` is `**`
                state = self.open_state([state])
                self.loop[self.advance(state, ANY)] = True
                self.down[state + 1] = True
            self.ends[_Place.LEAD if place is _Place.START else _Place.DEEP] = (state, self.at)
        self.at += 1

    def emit_star(self, state: int) -> int:
        if not self.stars_match_nothing:
            state = self.advance(state, ANY)
        self.loop[state] = True
        return state

    def read_slash(self) -> None:
        """A '/', or the end of the pattern, which reads the '/' appended to the path."""
        for place, (_, offset) in self.ends.items():
            if place is _Place.START and self.at == 0:
                raise GlobError(0, "the path is absolute: write it relative to the workspace")
            if place in (_Place.START, _Place.SLASH):
                at = offset if self.at == len(self.pattern) else self.at
                raise GlobError(at, "a segment is empty (write 'folder/**' for all that is in a folder)")
            if place in (_Place.DOT, _Place.DOTS):
                dots = "." if place is _Place.DOT else ".."
                raise GlobError(offset, f"'{dots}' is not allowed: paths are relative to the workspace, as they are")
        written = self.states_at(_Place.TEXT)
        written += [self.advance(self.open_state([state]), ANY) for state in self.states_at(_Place.STARS)]
        after = [self.advance(self.open_state(written), SLASH)] if written else []
        after += self.states_at(_Place.DEEP)
        lead = self.ends.get(_Place.LEAD)
        self.ends = {_Place.SLASH: (self.open_state(after) if len(after) > 1 else after[0], self.at)} if after else {}
        if lead is not None:
            self.ends[_Place.START] = (lead[0], self.at)


def _read_class(pattern: str, opened: int) -> tuple[CharSet, int]:
    """The set written at `opened`, and the offset of its ']'."""
    at = opened + 1
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    first, ranges = at, []
    while pattern[at : at + 1] != "]" or at == first:
        low, high = pattern[at : at + 1], pattern[at : at + 1]
        if pattern[at + 1 : at + 2] == "-" and pattern[at + 2 : at + 3] not in ("", "]"):
            high = pattern[at + 2]
        if low in ("", "/") or high == "/":
            raise GlobError(opened, "'[' is never closed in its segment (a literal one is written '[[]')")
        if low > high:
            raise GlobError(at, f"the range {low}-{high} is empty: its ends are the wrong way round")
        ranges.append((ord(low), ord(high)))
        at += 1 if low is high else 3
    written = _union(ranges)
    label = common(_complement(written) if negated else written, ANY)
    if not label:
        raise GlobError(opened, "the class matches no character")
    return label, at


def _compile(pattern: str, stars_match_nothing: bool = True) -> Automaton:
    if not pattern:
        raise GlobError(0, "the pattern is empty")
    if len(pattern) > MAX_LENGTH:
        raise GlobError(MAX_LENGTH, f"the pattern is longer than {MAX_LENGTH:,} characters")
    for char, name in (("\\", "a backslash: separate with '/', escape by a class such as '[*]'"), ("\0", "NUL")):
        if char in pattern:
            raise GlobError(pattern.index(char), f"the pattern contains {name}")
    return _Compiler(pattern, stars_match_nothing).compile()


class Glob:
    """A checked pattern with its literal leading segments.

    `exact` patterns match the head alone; `subtree` ones the head and all below it; others need the
    automaton, and match only paths at or below their head.
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
            self._automaton = _compile(text)  # refuses whatever is not a glob
            wild = next(at for at, char in enumerate(text) if char in _SPECIAL)
            self.head = tuple(text[:wild].split("/")[:-1])
            self.subtree = text in ("**", "**/*")
            plain = self.subtree
        self.exact = plain and not self.subtree

    @property
    def automaton(self) -> Automaton:
        """Compiled when first needed: most patterns are decided by their heads."""
        if self._automaton is None:
            self._automaton = _compile(self.text)
        return self._automaton

    def eager(self) -> Automaton:
        """The automaton of a smaller language: stars match at least one character (nicer examples)."""
        return _compile(self.text, stars_match_nothing=False)


@lru_cache(maxsize=16_384)
def read_glob(pattern: str) -> Glob:
    """Check and read a pattern; raises GlobError."""
    return Glob(pattern)


def check_glob(pattern: str) -> None:
    """Raise GlobError, with the position, when `pattern` is not a glob."""
    read_glob(pattern)
