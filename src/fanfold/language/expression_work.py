"""Limits the work of a CEL expression with the given values.

The library stops at 10,000 iterations and 32 levels, but does not limit memory. A nested `map` over `a + a`
grows tenfold per level (1 kB became 6 GB in eight levels). Comparing or joining a large value in each
iteration blocks the whole process, because the library keeps the interpreter lock. So the maximum work is
computed before the evaluation, and refused above a limit.

Rules
* Work is counted in visited values; `CHARS_PER_UNIT` characters of text count as one.
* `map` and `filter` copy their result in every round, because the library appends by joining lists. So they
  cost half the square of their length: 10,000 rounds take seconds and a gigabyte.
* A function costs the size of its operands. A function that can produce more (`replace`, `join`, `json` …)
  costs its maximum result, so that a chain of them cannot grow unnoticed.
* The end of `lists.range` is computed first if its argument is plain arithmetic over the given values
  (`size(inputs.files)`). If a loop determines it, the maximum is assumed.
* A use costs the size of its value for each evaluation. A loop repeats its whole body, but the values of its
  own variable together cost only the size of the list. That keeps the limit close for typical expressions:
  `inputs.files.map(f, "src/" + f)`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from fanfold.kernel.plan import JSON
from fanfold.language.json_text import strict

if TYPE_CHECKING:
    from cel_expr_python import cel

# -----------------------------------------------------------------------------------------------------------
# Which names a CEL expression uses, and where it loops.
#
# The CEL library parses, checks and evaluates. It does not report which `steps.<id>` an expression needs, nor
# bounds what its loops may cost. Both questions need only names, paths and loops, so that is what is read.
#
# Rules
# * Only expressions that the library has accepted are read. Precedence does not matter here: an expression
#   is a bag of names with their paths, and of loops (the macros `map`, `filter`, `all`, `exists` …), each
#   with what it runs over and what it repeats. Strings, comments and loop variables are never taken for
#   references.
# * Of a literal only its size is kept, in the units of `WorkBound`.

MAX_DEPTH = 100
"""Maximum nesting of brackets. The library allows 32 levels, so this is only a safety net."""
CHARS_PER_UNIT = 8

LOOPS = frozenset({"all", "exists", "exists_one", "existsOne", "filter", "map"})
_CONSTANTS = frozenset({"true", "false", "null"})
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_ESCAPE = r"\\(.)"
_UNUSUAL_ESCAPE = r"""(?<!\\)(?:\\\\)*\\[^ntr\\"'`]"""
_LEXICON = r"""(?P<skip>\s+|//[^\n]*)
    |(?P<raw>(?:[rR][bB]?|[bB][rR])(?:\"\"\".*?\"\"\"|'''.*?'''|"[^"\n]*"|'[^'\n]*'))
    |(?P<string>[bB]?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''
        |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<number>0[xX][0-9a-fA-F]+[uU]?|(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[uU]?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<quoted>`[^`\n]*`)
    |(?P<mark>.)"""


@cache
def _token_pattern() -> re.Pattern[str]:
    """Return the pattern, compiled for the first expression, because most recipes have none."""
    return re.compile(_LEXICON, re.VERBOSE | re.DOTALL)


class Use(Struct, frozen=True):
    """A name and the path after it; `spans` has the position of the name and of each part."""

    name: str
    parts: tuple[str | int, ...]
    spans: tuple[tuple[int, int], ...]


class UsedConstant(Struct, frozen=True):
    """A literal and its size in units."""

    units: int


class UsedCall(Struct, frozen=True):
    """A function with its receiver and its arguments."""

    name: str
    of: tuple[Usage, ...]
    given: tuple[Usage, ...]
    literal: str | int | None = None
    """The first argument if it is a literal: the separator of a `split`, the end of a range."""
    given_at: tuple[int, int] = (0, 0)
    """The position of its arguments in the text."""


class UsedLoop(Struct, frozen=True):
    """A macro: `over` is the receiver, `variable` is bound in `body`."""

    macro: str
    over: tuple[Usage, ...]
    variable: str
    body: tuple[Usage, ...]


class Selection(Struct, frozen=True):
    """A part of a computed value, such as `inputs.all[inputs.which]`; its result is unknown."""

    of: tuple[Usage, ...]


Usage: TypeAlias = Use | UsedConstant | UsedCall | UsedLoop | Selection


class Token(Struct, frozen=True):
    kind: str
    text: str
    start: int
    end: int


def tokens(text: str) -> list[Token]:
    """Return the tokens of an expression without white space and comments."""
    return [
        Token(m.lastgroup or "", m.group(), m.start(), m.end())
        for m in _token_pattern().finditer(text)
        if m.lastgroup != "skip"
    ]


def read(text: str) -> tuple[Usage, ...]:
    """Return the names and loops of an expression that the library has accepted."""
    return tuple(_UsageReader(tokens(text)).until_closed(0))


def free_uses(
    usages: Sequence[Usage], bound: frozenset[str] = frozenset(), *, every: bool = False
) -> Iterator[Use]:
    """Yield each use of a name in reading order; uses of loop variables only with `every`."""
    for usage in usages:
        if isinstance(usage, Use):
            if usage.name not in bound:
                yield usage
        elif isinstance(usage, UsedLoop):
            yield from free_uses(usage.over, bound, every=every)
            inside = bound if every else bound | {usage.variable}
            yield from free_uses(usage.body, inside, every=every)
        elif isinstance(usage, UsedCall):
            yield from free_uses((*usage.of, *usage.given), bound, every=every)
        elif isinstance(usage, Selection):
            yield from free_uses(usage.of, bound, every=every)


def literal_text(quoted: str) -> str | None:
    """Return the value of a single-quoted text; None if only the library can decode it."""
    inside = quoted[1:-1]
    if re.search(_UNUSUAL_ESCAPE, inside):
        return None
    return re.sub(_ESCAPE, lambda found: _ESCAPED.get(found[1], found[1]), inside)


class _UsageReader:
    """Recursive descent over operands; operators and commas only separate them."""

    def __init__(self, words: list[Token]) -> None:
        self._words = words
        self._at = 0

    def until_closed(self, depth: int) -> list[Usage]:
        """Return everything up to the bracket that closes this level, and consume the bracket."""
        if depth > MAX_DEPTH:
            raise RecursionError("the expression nests too deeply")
        found: list[Usage] = []
        while self._at < len(self._words):
            if self._peek() in (")", "]", "}"):
                self._at += 1
                break
            found += self._operand(depth)
        return found

    def _peek(self, ahead: int = 0) -> str:
        i = self._at + ahead
        return self._words[i].text if i < len(self._words) else ""

    def _take(self) -> Token:
        self._at += 1
        return self._words[self._at - 1]

    def _operand(self, depth: int) -> list[Usage]:
        word = self._take()
        if word.text == "." and self._kind() == "name":  # `.name` is the same name from the outermost scope
            word = self._take()
        if word.kind == "name" and word.text != "in":
            if word.text in _CONSTANTS:
                return [UsedConstant(1)]
            if self._peek() == "(":
                self._at += 1
                return self._postfix([self._call(word.text, [], depth)], depth)
            if word.text in NAMESPACES and self._peek() == "." and self._peek(2) == "(":
                name = f"{word.text}.{self._peek(1)}"
                self._at += 3
                return self._postfix([self._call(name, [], depth)], depth)
            return self._path(word, depth)
        if word.kind in ("string", "raw", "number"):
            return self._postfix([UsedConstant(1 + len(word.text) // CHARS_PER_UNIT)], depth)
        if word.text == "(":
            return self._postfix(self.until_closed(depth + 1), depth)
        if word.text in ("[", "{"):  # a separate literal, so that `[a]` is not read as `a`
            return self._postfix([UsedConstant(1), *self.until_closed(depth + 1)], depth)
        return []

    def _call(self, name: str, of: list[Usage], depth: int) -> UsedCall:
        """Return a call whose opening bracket was consumed."""
        literal = self._literal_key(0) if self._peek(1) in (")", ",") else None
        start = self._words[self._at - 1].end
        given = tuple(self.until_closed(depth + 1))
        return UsedCall(name, tuple(of), given, literal, (start, self._words[self._at - 1].start))

    def _kind(self, ahead: int = 0) -> str:
        i = self._at + ahead
        return self._words[i].kind if i < len(self._words) else ""

    def _path(self, root: Token, depth: int) -> list[Usage]:
        """Return a name and its selections, as far as they are known without an evaluation."""
        parts: list[str | int] = []
        spans = [(root.start, root.end)]
        while True:
            if self._peek() == "." and self._kind(1) in ("name", "quoted") and self._peek(2) != "(":
                self._at += 1
                word = self._take()
                parts.append(word.text.strip("`"))
            elif self._peek() == "[" and self._peek(2) == "]" and self._literal_key(1) is not None:
                key = self._literal_key(1)
                assert key is not None
                parts.append(key)
                self._at += 1
                word = self._take()
                self._at += 1
            else:
                return self._postfix([Use(root.text, tuple(parts), tuple(spans))], depth)
            spans.append((word.start, word.end))

    def _literal_key(self, ahead: int) -> str | int | None:
        kind, text = self._kind(ahead), self._peek(ahead)
        if kind == "number" and text.isdecimal() and len(text) < 10:
            return int(text)
        if kind == "string" and text[0] in "\"'" and text[:3] not in ('"""', "'''"):
            return literal_text(text)
        return None

    def _postfix(self, found: list[Usage], depth: int) -> list[Usage]:
        """Return calls, macros, and selections that depend on values."""
        while True:
            if self._peek() in ("[", "{"):
                self._at += 1
                found = [Selection((*found, *self.until_closed(depth + 1)))]
            elif self._peek() == "." and self._peek(2) == "(":
                macro = self._peek(1)
                self._at += 3
                if macro in LOOPS and self._kind() == "name" and self._peek(1) == ",":
                    variable = self._take().text
                    found = [UsedLoop(macro, tuple(found), variable, tuple(self.until_closed(depth + 1)))]
                else:
                    found = [self._call(macro, found, depth)]
            elif self._peek() == "." and self._kind(1) in ("name", "quoted"):
                self._at += 2
                found = [Selection(tuple(found))]
            else:
                return found


MAX_ITERATIONS = 10_000
"""The library's own limit for one evaluation, over all loops."""
_COPYING = frozenset({"map", "filter"})
_ARITHMETIC = frozenset({"size", "int", "math.least", "math.greatest", "math.abs"})
"""Functions that cost very little and create no values."""


class TooMuchWork(ValueError):
    """The given values could make the expression exceed its limit of work."""


def reach(values: list[JSON], parts: Sequence[str | int]) -> list[JSON]:
    """Return the value at the path in each of the values, without those that lack it."""
    for part in parts:
        values = [
            value[part]  # type: ignore[index]  # the conditions below are beyond the checker
            for value in values
            if (isinstance(value, dict) and part in value)
            or (isinstance(value, list) and isinstance(part, int) and part < len(value))
        ]
    return values


def _is_arithmetic(usages: Sequence[Usage], scope: Mapping[str, object]) -> bool:
    """Return whether there are only numbers, sizes and values that no loop binds."""
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


class _LoopVariable(Struct, frozen=True):
    """A loop variable: its possible values if known, and their total size."""

    values: list[JSON] | None
    units: int


class _InLoops(Struct, frozen=True):
    """The place of usages: the visible loop variables, the innermost one, and the number of evaluations."""

    scope: dict[str, _LoopVariable]
    inner: str
    times: int


class WorkBound:
    """Computes the maximum work of one evaluation over `values`; raises TooMuchWork above `limit`.

    `worked_out` evaluates the part of the expression between two positions.
    """

    def __init__(
        self, values: Mapping[str, JSON], limit: int, worked_out: Callable[[tuple[int, int]], JSON]
    ) -> None:
        self._values = values
        self._limit = limit
        self._worked_out = worked_out
        self._weights: dict[int, int] = {}

    def check(self, usages: Sequence[Usage]) -> int:
        """Return the maximum units of work of the expression."""
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
                # The whole loop visits each value of its own variable once.
                own, candidates = usage.name == place.inner, self._candidates(usage, place.scope)
                if candidates is None:
                    total += place.scope[usage.name].units * (1 if own else place.times)
                elif own:
                    total += sum(map(self._weigh, candidates))
                else:
                    total += place.times * max(map(self._weigh, candidates), default=1)
            if total > self._limit:
                raise TooMuchWork("the expression would have to visit or copy too many values")
        return total

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

    def _range_end(self, call: UsedCall, scope: dict[str, _LoopVariable]) -> int:
        if isinstance(call.literal, int):
            return call.literal
        if not _is_arithmetic(call.given, scope):
            return MAX_RANGE
        end = self._worked_out(call.given_at)
        return min(max(end, 0), MAX_RANGE) if isinstance(end, int) else 0  # no number: evaluation fails

    def _loop(self, loop: UsedLoop, place: _InLoops) -> int:
        units = self._work(loop.over, place)
        total, longest = self._lengths(loop.over, place)
        rounds = min(max(total, 1), MAX_ITERATIONS)
        copied = 0
        if loop.macro in _COPYING:
            copied = rounds * min(longest, MAX_ITERATIONS) // 2
        variable = _LoopVariable(self._elements(loop.over, place.scope), units)
        inside = _InLoops({**place.scope, loop.variable: variable}, loop.variable, rounds)
        return units + rounds + copied + self._work(loop.body, inside)

    def _lengths(self, over: Sequence[Usage], place: _InLoops) -> tuple[int, int]:
        """Return the number of elements in a loop's list: of all runs together, and of the longest run."""
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
            most = self._work((usage,), place)  # every element has at least one unit
            return most, most
        counts = [max(len(value), 1) if isinstance(value, list | dict) else 1 for value in candidates]
        longest = max(counts, default=1)
        own = isinstance(usage, Use) and usage.name == place.inner
        return (sum(counts) if own else longest * place.times), longest

    def _part_counts(self, call: UsedCall, scope: dict[str, _LoopVariable]) -> list[int] | None:
        """Return the maximum number of elements into which a call splits each possible text, if known.

        It is counted, not estimated, because the output of a program has many characters and few lines.
        """
        if call.name == "lists.range":
            return [self._range_end(call, scope)]
        source = call.of or call.given
        if call.name not in SPREADING or not source or not isinstance(source[0], Use):
            return None
        if (candidates := self._candidates(source[0], scope)) is None:
            return None
        texts = [value for value in candidates if isinstance(value, str)]
        if call.name == "lines":
            return [len(text.splitlines()) + 1 for text in texts]
        separator = "," if call.name == "json" else call.literal
        if not isinstance(separator, str) or not separator:
            return None
        return [text.count(separator) + 1 for text in texts]

    def _elements(self, over: Sequence[Usage], scope: dict[str, _LoopVariable]) -> list[JSON] | None:
        """Return the elements of a loop's list if it is a path or a filtered path; else None."""
        only = over[0] if len(over) == 1 else None
        if isinstance(only, UsedLoop):
            return self._elements(only.over, scope) if only.macro == "filter" else None
        if (candidates := self._candidates(only, scope) if isinstance(only, Use) else None) is None:
            return None
        return [element for value in candidates if isinstance(value, list | dict) for element in value]

    def _candidates(self, use: Use, scope: dict[str, _LoopVariable]) -> list[JSON] | None:
        """Return the possible values of a use: one, or one for each value of its loop variable."""
        variable = scope.get(use.name)
        values = [self._values.get(use.name)] if variable is None else variable.values
        return None if values is None else reach(values, use.parts)

    def _weigh(self, value: JSON) -> int:
        """Return the units of a value: itself, all its content, and its text."""
        if (known := self._weights.get(id(value))) is not None:
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


# -----------------------------------------------------------------------------------------------------------
# The functions of expressions: those of CEL, of its string and math extensions, and ours.
#
# Rules
# * One table names every function. The documentation and the error for an unknown function come from it.
# * The library includes the extensions for text and numbers, but not those for lists. So `distinct`,
#   `flatten`, `reverse`, `slice`, `sort` and `lists.range` are defined here, with their meaning in CEL.
#   `lines` and `json` convert the output of a program to lists and values. `sortBy` takes the name of a
#   field, because macros cannot be added.
# * A function of ours raises `ValueError` with a message for the author, which the library passes on.
# * `WorkBound` limits the result size of functions, by the two sets at the end.

MAX_RANGE = 10_000
"""The same limit as for the rounds of a loop."""
MAX_JSON_DEPTH = 100
NAMESPACES = frozenset({"lists", "math", "strings"})
"""Names before a `.` that belong to a function: `math.greatest(1, 2)`."""


class FunctionDoc(Struct, frozen=True):
    """A function in the documentation."""

    call: str
    """Its notation, with `text`, `list` … for the receiver."""
    doc: str

    @property
    def name(self) -> str:
        head = self.call.partition("(")[0]
        return head if head.partition(".")[0] in NAMESPACES else head.rpartition(".")[2]


FUNCTIONS = (
    FunctionDoc("lines(text)", "Its lines as a list, without line ends; no empty last line."),
    FunctionDoc("json(text)", "The value of a JSON text."),
    FunctionDoc("size(value)", "Characters of a text, elements of a list, fields of an object."),
    FunctionDoc("has(object.field)", "Whether the field exists."),
    FunctionDoc("text.contains(part)", "Whether the text contains the part."),
    FunctionDoc("text.startsWith(part)", "Whether the text starts with the part."),
    FunctionDoc("text.endsWith(part)", "Whether the text ends with the part."),
    FunctionDoc("text.matches(regex)", "Whether the text matches an RE2 pattern."),
    FunctionDoc("text.split(separator)", "The parts as a list; a second argument bounds their number."),
    FunctionDoc("list.join(separator)", "The texts of a list, joined."),
    FunctionDoc("text.trim()", "The text without white space at both ends."),
    FunctionDoc("text.replace(old, new)", "The text with `old` replaced; a third argument limits how often."),
    FunctionDoc("text.substring(start, end)", "The characters from `start` to before `end` (default: all)."),
    FunctionDoc("text.indexOf(part)", "Index of the first occurrence, or -1."),
    FunctionDoc("text.lastIndexOf(part)", "Index of the last occurrence, or -1."),
    FunctionDoc("text.charAt(index)", "One character, or an empty text at the end."),
    FunctionDoc("text.lowerAscii()", "The text with A to Z in lower case."),
    FunctionDoc("text.upperAscii()", "The text with a to z in upper case."),
    FunctionDoc("text.format(list)", 'The text with values inserted: `"%s has %d".format([a, b])`.'),
    FunctionDoc("strings.quote(text)", "The text in quotation marks, special characters escaped."),
    FunctionDoc("text.reverse()", "The text or list in reverse."),
    FunctionDoc("list.all(x, test)", "Whether the test is true for every element."),
    FunctionDoc("list.exists(x, test)", "Whether it is true for at least one element."),
    FunctionDoc("list.exists_one(x, test)", "Whether it is true for exactly one element."),
    FunctionDoc("list.filter(x, test)", "The elements for which it is true."),
    FunctionDoc("list.map(x, value)", "A value for each element; `list.map(x, test, value)` for some."),
    FunctionDoc("list.distinct()", "The list without repeated elements."),
    FunctionDoc("list.flatten()", "The list with inner lists expanded; an argument gives the depth."),
    FunctionDoc("list.slice(start, end)", "The elements from `start` to before `end`."),
    FunctionDoc("list.sort()", "The list in order: numbers, texts or booleans."),
    FunctionDoc("list.sortBy(field)", "The objects in the order of the named field."),
    FunctionDoc("lists.range(count)", "The integers from 0 to before `count`."),
    FunctionDoc("math.greatest(list)", "The greatest of a list or of the arguments."),
    FunctionDoc("math.least(list)", "The least of a list or of the arguments."),
    FunctionDoc("math.abs(number)", "The absolute value."),
    FunctionDoc("math.ceil(number)", "Rounded up, as a double."),
    FunctionDoc("math.floor(number)", "Rounded down, as a double."),
    FunctionDoc("math.round(number)", "Rounded, as a double."),
    FunctionDoc("int(value)", "The value as an integer; also from text."),
    FunctionDoc("double(value)", "The value as a double."),
    FunctionDoc("string(value)", "The value as text."),
    FunctionDoc("bool(value)", "The value as a boolean; also from text."),
    FunctionDoc("type(value)", "Its type, such as `string`."),
)  # fmt: skip
"""Every function, with the most used functions of the language first."""

OTHER_NAMES = {
    "lower": "lowerAscii", "toLowerCase": "lowerAscii", "upper": "upperAscii", "toUpperCase": "upperAscii",
    "len": "size", "length": "size", "count": "size", "strip": "trim", "splitlines": "lines",
    "includes": "contains", "startswith": "startsWith", "endswith": "endsWith", "find": "indexOf",
    "range": "lists.range", "max": "math.greatest", "min": "math.least", "abs": "math.abs",
    "round": "math.round", "str": "string", "float": "double", "any": "exists", "fromJSON": "json",
    "parse": "json", "sorted": "sort", "unique": "distinct", "concat": "join", "quote": "strings.quote",
}  # fmt: skip
"""Names of functions in other languages."""

MULTIPLYING = frozenset({"replace", "format"})
"""Their result may be as long as the receiver times the arguments."""
SPREADING = frozenset({"json", "lines", "split"})
"""Their result may have a value for every character."""


def declared_functions() -> list[cel.FunctionDecl]:
    """Return our functions in the form that the library requires."""
    from cel_expr_python import cel

    text, whole, any_list = cel.Type.STRING, cel.Type.INT, cel.Type.List(cel.Type.DYN)

    def member(name: str, result: cel.Type, parameters: list[cel.Type], do: Any) -> cel.Overload:
        return cel.Overload(f"fanfold_{name}_{len(parameters)}_{result.name()}", result, parameters, True, do)

    def plain(name: str, result: cel.Type, parameter: cel.Type, do: Any) -> list[cel.Overload]:
        return [cel.Overload(f"fanfold_{name}", result, [parameter], False, do)]

    overloads = {
        "lines": plain("lines", cel.Type.List(text), text, lambda value: value.splitlines()),
        "json": plain("json", cel.Type.DYN, text, _json),
        "lists.range": plain("range", cel.Type.List(whole), whole, _range),
        "reverse": [
            member("reverse", any_list, [any_list], lambda values: values[::-1]),
            member("reverse", text, [text], lambda value: value[::-1]),
        ],
        "distinct": [member("distinct", any_list, [any_list], _distinct)],
        "flatten": [
            member("flatten", any_list, given, _flatten) for given in ([any_list], [any_list, whole])
        ],
        "slice": [member("slice", any_list, [any_list, whole, whole], _slice)],
        "sort": [
            member("sort", any_list, [any_list], lambda values: _in_order([(item, item) for item in values]))
        ],
        "sortBy": [member("sortBy", any_list, [any_list, text], _sort_by)],
    }
    return [cel.FunctionDecl(name, found) for name, found in overloads.items()]


def _json(text: str) -> Any:
    depth = deepest = 0
    for mark in text:  # counts too much inside strings, never too little
        depth += (mark in "[{") - (mark in "]}")
        deepest = max(deepest, depth)
    if deepest > MAX_JSON_DEPTH:
        raise ValueError(f"the text nests more than {MAX_JSON_DEPTH} levels deep")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_whole_number)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"the text is not JSON ({error.msg} at {place})") from None
    return strict(value, "the text")


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"the text is not JSON ({word} is not a number)")


def _whole_number(digits: str) -> int:
    """Return as many digits as are needed to detect a too large integer, which `strict` then refuses."""
    return int(digits[:25])


def _range(count: int) -> list[int]:
    if not 0 <= count <= MAX_RANGE:
        raise ValueError(f"lists.range takes 0 to {MAX_RANGE:,}")
    return list(range(count))


def _distinct(values: list[Any]) -> list[Any]:
    seen: set[str] = set()
    kept = []
    for value in values:
        key = json.dumps(_comparable(value), sort_keys=True)
        if key not in seen:
            seen.add(key)
            kept.append(value)
    return kept


def _comparable(value: Any) -> Any:
    """Return a value in which numbers that are equal in CEL are the same: 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _comparable(item) for key, item in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _flatten(values: list[Any], depth: int = 1) -> list[Any]:
    if depth < 1:
        raise ValueError("flatten needs a depth of at least 1")
    for _ in range(min(depth, MAX_JSON_DEPTH)):
        if not any(isinstance(value, list) for value in values):
            break
        values = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return values


def _slice(values: list[Any], start: int, end: int) -> list[Any]:
    if not 0 <= start <= end <= len(values):
        raise ValueError(f"slice({start}, {end}) is outside a list of {len(values)}")
    return values[start:end]


def _sort_by(values: list[Any], field: str) -> list[Any]:
    keyed = []
    for value in values:
        if not isinstance(value, dict) or field not in value:
            raise ValueError(f"sortBy({json.dumps(field)}) needs objects that all have the field")
        keyed.append((value[field], value))
    return _in_order(keyed)


def _in_order(keyed: list[tuple[Any, Any]]) -> list[Any]:
    kinds = {
        "text" if isinstance(key, str) else "truth" if isinstance(key, bool)
        else "number" if isinstance(key, int | float) else "other"
        for key, _ in keyed
    }  # fmt: skip
    if len(kinds) > 1 or "other" in kinds:
        raise ValueError("only numbers, or only texts, or only booleans can be sorted")
    return [value for _, value in sorted(keyed, key=lambda pair: pair[0])]
