"""One glob: what a pattern may say, and its translation to an automaton, and whether two share a path.

The language (paths are posix and relative; every segment of a path is non-empty)
    *            any run of characters within a segment, dotfiles too       ?   one character
    [a-z] [!a-z] one character (`^` negates too; `]` in first place is literal); never '/'
    **           as a whole segment: zero or more segments (`src/**` matches `src` itself)
    {a,b}        either; may hold '/', wildcards and braces. Anything else stands for itself.

Theory
    A pattern becomes an automaton (see `automata`) in one pass, alternatives side by side and never
    multiplied out, so it has O(length) states. It reads the path *with '/' appended*: then each segment
    ends in '/', and `**` is simply (segment '/')* which swallows the '/' written after it.

Rules
    * Every pattern that is accepted matches some path, and every state lies on a way to acceptance.
    * Only non-empty segments are matched: a segment of nothing but stars reads one character more.
    * A pattern is refused when one of its brace expansions would be; `.` and `..` only where spelled out.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

from fanfold.kernel.sets.automata import (
    ANY,
    SLASH,
    Automaton,
    CharSet,
    common,
    complement,
    find_common,
    union,
)

MAX_LENGTH = 1_024
MAX_ALTERNATIVES = 1_000
MAX_BRACE_DEPTH = 16

_SPECIAL = frozenset("*?[{\\\0")
_ESCAPED = frozenset("*?[{,}")


class GlobError(ValueError):
    """A pattern that is not a glob; `position` is the 0-based offset of the offending character."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message


class _GlobPlace(IntEnum):
    """What has been written of the current segment; decides what may follow."""

    START = 0  # nothing yet, and nothing before it that a path must have
    LEAD = 1  # `**`, and nothing before it that a path must have
    SLASH = 2  # nothing yet, after '/'
    DEEP = 3  # `**` after '/'
    STARS = 4  # only stars: may have matched nothing
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
        self.jumps: dict[int, list[int]] = {}
        self.ends: _Ends = {_GlobPlace.START: (self.new_state(), 0)}

    def compile(self) -> Automaton:
        self.read_sequence(0)
        self.at = len(self.pattern)
        if _GlobPlace.LEAD in self.ends:  # `**` alone still needs a path to match: it is `**/*`
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
        """One open state that stands for all of `states`."""
        if len(states) == 1 and states[0] == len(self.up) - 1 and self.up[-1] is None:
            return states[0]
        return self.new_state(*states)

    def states_at(self, *places: _GlobPlace) -> list[int]:
        return [self.ends[place][0] for place in places if place in self.ends]

    def read_one(self, become: dict[_GlobPlace, _GlobPlace], label: CharSet | None) -> None:
        """Move every end over one character of `label` (None: a star); places by the table, else TEXT."""
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
        """(segment '/')* from and to one state."""
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
        """A '/', or the end of the pattern, which reads the '/' appended to the path."""
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
    """The set written at `opened`, and the offset of its ']'."""
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
            raise GlobError(at, f"the range {low}-{high} is empty: its ends are the wrong way round")
        ranges.append((ord(low), ord(high)))
        at += 3 if ranged else 1
    written = union(ranges)
    label = common(complement(written) if negated else written, ANY)
    if not label:
        raise GlobError(opened, "the class matches no character")
    return label, at


def _compile(pattern: str, stars_match_nothing: bool = True) -> Automaton:
    if not pattern:
        raise GlobError(0, "the pattern is empty")
    if len(pattern) > MAX_LENGTH:
        raise GlobError(MAX_LENGTH, f"the pattern is longer than {MAX_LENGTH:,} characters")
    if "\\" in pattern:
        raise GlobError(pattern.index("\\"), "a backslash: separate by '/', escape by a class such as '[*]'")
    if "\0" in pattern:
        raise GlobError(pattern.index("\0"), "a NUL character can be in no path")
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

    def fuller(self) -> Automaton:
        """Of this language, the part where each star matches something: it has nicer examples."""
        return _compile(self.text, stars_match_nothing=False)


@lru_cache(maxsize=8_192)
def read_glob(pattern: str) -> Glob:
    """Check and read a pattern; raises GlobError."""
    return Glob(pattern)


def check_glob(pattern: str) -> None:
    """Raise GlobError, with the position, when `pattern` is not a glob."""
    read_glob(pattern)


def escape(text: str) -> str:
    """The pattern that matches this text and nothing else, wherever in a pattern it is put but a class.

    >>> escape("[id]/{a,b}*.py")
    '[[]id]/[{]a[,]b[}][*].py'
    """
    return "".join(f"[{char}]" if char in _ESCAPED else char for char in text)


def is_in_class(pattern: str, position: int) -> bool:
    """Whether the character at `position` stands inside `[…]`, where it could not be escaped."""
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
    """Whether some path is matched by both patterns.

    Decided by the cheapest means: by the literal heads when both are literal, or literal then `/**`; by
    letting one automaton read the other's head when only one is; else by walking both automata.
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
    # Every state lies on a way to acceptance: being alive after the head is enough.
    return other.automaton.run("".join(segment + "/" for segment in one.head)) != 0
