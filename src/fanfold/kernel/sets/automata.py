"""Automata over characters: the machinery that decides globs, and whether two of them can agree on a path.

Theory
    States are numbered so that an edge leads one state up, stays, or leads one state down; besides, jumps
    read nothing and lead upwards. A set of states is therefore one integer, and reading a character is
    three shifts and masks of it, whatever the number of states.
    Edges carry sets of characters as ranges over all of Unicode without NUL, so a negated class is exact.

    Two automata agree on a text exactly when the pair of their accepting states is reachable from the
    pair of their starts, both moving along edges whose character sets meet. `find_common` walks those
    pairs, but in bulk: for each state of one side it keeps the set of partner states as one integer.
    There are |A| x |B| pairs, each enters once, and the lowest state with news goes first, so news
    gathers before it is passed on: patterns of the greatest length take milliseconds, and there is
    nothing to backtrack. Each batch of news remembers where it came from, which spells an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

CharSet: TypeAlias = tuple[tuple[int, int], ...]
"""Disjoint inclusive ranges of code points, ascending."""
Moves: TypeAlias = tuple[int, int, int]
"""The states that read a given label to the next state, to themselves, to the state before."""

ANY: CharSet = ((1, 0x2E), (0x30, 0x10FFFF))
SLASH: CharSet = ((0x2F, 0x2F),)
_MAX_CACHED_MOVES = 512
_PLEASANT = "abcdefghijklmnopqrstuvwxyz0123456789_"


def common(a: CharSet, b: CharSet) -> CharSet:
    """The characters in both sets."""
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
    """The set made of ranges in any order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: CharSet) -> CharSet:
    """The characters, '/' and NUL included, that are not in the set."""
    edges = [0, *(bound for low, high in ranges for bound in (low - 1, high + 1)), 0x10FFFF]
    return tuple((low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low <= high)


class Automaton:
    """States 0..size-1, start 0. Sets of states are integers, kept closed under jumps.

    `up[s]` labels the edge to s+1; where `loop[s]`, s reads any character but '/' and stays; where
    `down[s]`, s reads '/' and goes back to s-1; `jumps[s]` lists the states that s is as good as.
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
        """The set of states before anything is read."""
        return self.closure.get(0, 1)

    def edges(self, state: int) -> list[tuple[int, CharSet]]:
        """Target and label of each edge of a state."""
        label = self.up[state]
        edges = [] if label is None else [(state + 1, label)]
        if self.loop[state]:
            edges.append((state, ANY))
        if self.down[state]:
            edges.append((state - 1, SLASH))
        return edges

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
        """The states reached from the start by reading `text`; 0 when nothing accepted begins so."""
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
    """The pairs of states two automata can reach together, and how."""

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
        """A text that leads both from their starts to acceptance."""
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
        """One of the states `given` from which the partner was reached by a character of `label`."""
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
    """How both can accept one text, or None when they cannot."""
    meeting = Meeting(a, b) if len(a.up) <= len(b.up) else Meeting(b, a)
    return meeting if meeting.found else None
