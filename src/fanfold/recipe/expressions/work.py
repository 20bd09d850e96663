"""How much work a CEL expression may cost with the values at hand.

The library stops at 10,000 iterations and 32 levels, but does not limit memory: `map` over `a + a` inside
`map` grows tenfold a level (1 kB became 6 GB in eight), and comparing or joining a large value once per
iteration holds the whole process, since the library keeps the interpreter lock. So before anything is
evaluated the work is bounded from above, and refused past a limit.

Rules
* Work is counted in values visited; `CHARS_PER_UNIT` characters of text count as one.
* `map` and `filter` copy their result in every round (the library appends by joining lists), so they
  cost half the square of their length: 10,000 rounds take seconds and a gigabyte.
* A function costs what it is applied to and given; one that can make more of it (`replace`, `join`, `json` …)
  costs what it could make at most, so that a chain of them cannot grow unseen.
* How far `lists.range` goes is worked out first where its argument is plain arithmetic over values at hand
  (`size(inputs.files)`); where a loop decides it, it is taken to go as far as it may.
* A use costs what its value weighs, once for each time it is evaluated. A loop repeats all of its body,
  but its own variable adds up to what the loop runs over, however many rounds that takes. That keeps
  the bound close for what people write: `inputs.files.map(f, "src/" + f)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from fanfold.kernel.plan import JSON
from fanfold.recipe.expressions.functions import MAX_RANGE, MULTIPLYING, SPREADING
from fanfold.recipe.expressions.usage import (
    CHARS_PER_UNIT,
    Selection,
    Usage,
    Use,
    UsedCall,
    UsedConstant,
    UsedLoop,
)

MAX_ITERATIONS = 10_000
"""The library's own limit for one evaluation, over all loops."""
_COPYING = frozenset({"map", "filter"})
_ARITHMETIC = frozenset({"size", "int", "math.least", "math.greatest", "math.abs"})
"""Functions that cost next to nothing and make no values."""


class TooMuchWork(ValueError):
    """The values at hand could make the expression visit more than it may."""


def reach(values: list[JSON], parts: Sequence[str | int]) -> list[JSON]:
    """What the path leads to from each of the values; nothing for those where it leads nowhere."""
    for part in parts:
        values = [
            value[part]  # type: ignore[index]  # the conditions below are beyond the checker
            for value in values
            if (isinstance(value, dict) and part in value)
            or (isinstance(value, list) and isinstance(part, int) and part < len(value))
        ]
    return values


def _is_arithmetic(usages: Sequence[Usage], scope: Mapping[str, object]) -> bool:
    """Nothing but numbers, sizes and values that no loop binds."""
    return all(
        isinstance(usage, UsedConstant)
        or (isinstance(usage, Use) and usage.name not in scope)
        or (
            isinstance(usage, UsedCall)
            and usage.name in _ARITHMETIC
            and _is_arithmetic((*usage.of, *usage.given), scope)
        )
        for usage in usages
    )


class _Bound(Struct, frozen=True):
    """A loop variable: the values it can have where they are known, and what they weigh together."""

    values: list[JSON] | None
    units: int


class _InLoops(Struct, frozen=True):
    """Where usages stand: the loop variables in sight, the innermost, and how often they are evaluated."""

    scope: dict[str, _Bound]
    inner: str
    times: int


class WorkBound:
    """Bounds the work of one evaluation over `values`; raises TooMuchWork past `limit`.

    `worked_out` evaluates the part of the expression between two places.
    """

    def __init__(
        self, values: Mapping[str, JSON], limit: int, worked_out: Callable[[tuple[int, int]], JSON]
    ) -> None:
        self._values = values
        self._limit = limit
        self._worked_out = worked_out
        self._weights: dict[int, int] = {}

    def check(self, usages: Sequence[Usage]) -> int:
        """The units of work that the expression may cost at most."""
        return self._work(usages, _InLoops({}, "", 1))

    def _work(self, usages: Sequence[Usage], place: _InLoops) -> int:
        total = 0
        for usage in usages:
            if isinstance(usage, UsedConstant):
                total += usage.units * place.times
            elif isinstance(usage, UsedLoop):
                total += self._loop(usage, place)
            elif isinstance(usage, UsedCall):
                total += self._call(usage, place)
            elif isinstance(usage, Selection):
                total += self._work(usage.of, place)
            else:
                total += self._use(usage, place)
            if total > self._limit:
                raise TooMuchWork("the expression would have to visit or copy too many values")
        return total

    def _use(self, use: Use, place: _InLoops) -> int:
        candidates = self._candidates(use, place.scope)
        own = use.name == place.inner
        if candidates is None:
            return place.scope[use.name].units * (1 if own else place.times)
        if own:
            return sum(map(self._weigh, candidates))
        return place.times * max(map(self._weigh, candidates), default=1)

    def _call(self, call: UsedCall, place: _InLoops) -> int:
        of, given = self._work(call.of, place), self._work(call.given, place)
        if call.name in MULTIPLYING:
            once = self._work(call.given, _InLoops(place.scope, "", 1))
            return of + given + of * once * CHARS_PER_UNIT
        if call.name in SPREADING:
            parts = self._part_counts(call, place.scope)
            most = place.times * max(parts, default=1) if parts is not None else (of + given) * CHARS_PER_UNIT
            return of + given + most
        if call.name == "join":
            elements, _ = self._lengths(call.of, place)
            return of + given + elements * self._work(call.given, _InLoops(place.scope, "", 1))
        if call.name == "lists.range":
            return given + place.times * self._range_end(call, place.scope)
        return of + given

    def _range_end(self, call: UsedCall, scope: dict[str, _Bound]) -> int:
        if isinstance(call.literal, int):
            return call.literal
        if not _is_arithmetic(call.given, scope):
            return MAX_RANGE
        end = self._worked_out(call.given_at)
        return min(max(end, 0), MAX_RANGE) if isinstance(end, int) else 0  # no number: evaluating it fails

    def _loop(self, loop: UsedLoop, place: _InLoops) -> int:
        units = self._work(loop.over, place)
        total, longest = self._lengths(loop.over, place)
        rounds = min(max(total, 1), MAX_ITERATIONS)
        copied = 0
        if loop.macro in _COPYING:
            copied = rounds * min(longest, MAX_ITERATIONS) // 2
        variable = _Bound(self._elements(loop.over, place.scope), units)
        inside = _InLoops({**place.scope, loop.variable: variable}, loop.variable, rounds)
        return units + rounds + copied + self._work(loop.body, inside)

    def _lengths(self, over: Sequence[Usage], place: _InLoops) -> tuple[int, int]:
        """Elements of what a loop runs over: of all its runs together, and of the longest run."""
        total = longest = 0
        for usage in over:
            if isinstance(usage, UsedConstant):
                all_runs, one_run = place.times, 1
            elif isinstance(usage, UsedLoop):
                all_runs, one_run = self._lengths(usage.over, place)
            else:
                all_runs, one_run = self._element_counts(usage, place)
            total += all_runs
            longest += one_run
        return total, longest

    def _element_counts(self, usage: Use | UsedCall | Selection, place: _InLoops) -> tuple[int, int]:
        if isinstance(usage, UsedCall) and (parts := self._part_counts(usage, place.scope)) is not None:
            longest = max(parts, default=1)
            return longest * place.times, longest
        candidates = self._candidates(usage, place.scope) if isinstance(usage, Use) else None
        if candidates is None:
            most = self._work((usage,), place)  # every element weighs at least one unit
            return most, most
        counts = [max(len(value), 1) if isinstance(value, list | dict) else 1 for value in candidates]
        longest = max(counts, default=1)
        own = isinstance(usage, Use) and usage.name == place.inner
        return (sum(counts) if own else longest * place.times), longest

    def _part_counts(self, call: UsedCall, scope: dict[str, _Bound]) -> list[int] | None:
        """Into how many elements a call takes each text apart that it may get, at most, where that is known.

        Counted, not estimated: what a program printed has many characters and few lines.
        """
        if call.name == "lists.range":
            return [self._range_end(call, scope)]
        source = call.of or call.given
        if call.name not in SPREADING or not source or not isinstance(source[0], Use):
            return None
        candidates = self._candidates(source[0], scope)
        if candidates is None:
            return None
        texts = [value for value in candidates if isinstance(value, str)]
        if call.name == "lines":
            return [len(text.splitlines()) + 1 for text in texts]
        separator = "," if call.name == "json" else call.literal
        if not isinstance(separator, str) or not separator:
            return None
        return [text.count(separator) + 1 for text in texts]

    def _elements(self, over: Sequence[Usage], scope: dict[str, _Bound]) -> list[JSON] | None:
        """What a loop runs over, where it is a path or a filtered path; else None."""
        if len(over) != 1:
            return None
        only = over[0]
        if isinstance(only, UsedLoop):
            return self._elements(only.over, scope) if only.macro == "filter" else None
        if not isinstance(only, Use):
            return None
        candidates = self._candidates(only, scope)
        if candidates is None:
            return None
        return [element for value in candidates if isinstance(value, list | dict) for element in value]

    def _candidates(self, use: Use, scope: dict[str, _Bound]) -> list[JSON] | None:
        """The values a use can stand for: one, or one for each value of its loop variable."""
        if use.name in scope:
            values = scope[use.name].values
            if values is None:
                return None
        else:
            values = [self._values.get(use.name)]
        return reach(values, use.parts)

    def _weigh(self, value: JSON) -> int:
        """Units of a value: itself, all it holds, and its text."""
        known = self._weights.get(id(value))
        if known is not None:
            return known
        units = 0
        waiting = [value]
        while waiting:
            part = waiting.pop()
            units += 1
            if isinstance(part, str):
                units += len(part) // CHARS_PER_UNIT
            elif isinstance(part, dict):
                waiting.extend(part.values())
                units += sum(len(key) // CHARS_PER_UNIT + 1 for key in part if isinstance(key, str))
            elif isinstance(part, list):
                waiting.extend(part)
            if units > self._limit:
                break
        self._weights[id(value)] = units
        return units
