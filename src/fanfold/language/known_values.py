"""The types of values that are known before the run: of a path, an expression, a combined output.

Rules
* Only certain facts count; everything else is `Anything`. A skipped step returns null, which every check
  accepts. A step whose failure is shown inline may return either.
* The output of a step may depend on another step, or on a sub-workflow that was not read yet. Such a step has
  a function (`Facts.gives`) that computes its type on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from fanfold.kernel.plan import JSON, Constant, Fields, Input, Output, Ref, Template
from fanfold.kernel.state import STEP_STATUSES, TERMINAL
from fanfold.language.diagnostics import nearest
from fanfold.language.draft import Draft, DraftScope, output_of, single_output
from fanfold.language.expression_work import (
    Token,
    Usage,
    Use,
    UsedCall,
    UsedLoop,
    free_uses,
    literal_text,
    read,
    tokens,
)
from fanfold.language.keys import (
    ANYTHING,
    TEXT,
    Anything,
    Known,
    ListOf,
    Number,
    ObjectOf,
    Text,
    Truth,
    described,
    known_from_type,
    part_of,
)
from fanfold.language.tables import quoted
from fanfold.language.template import in_expression, parse_path

Look = Callable[[str, tuple[str | int, ...]], Known]
"""Returns the known type of a name and the path after it."""

_ENDED = Text(tuple(status for status in STEP_STATUSES if status in TERMINAL))
_SAME_LIST = frozenset({"distinct", "reverse", "slice", "sort", "sortBy"})
_GIVEN: dict[str, Known] = {
    **dict.fromkeys(("size", "indexOf", "lastIndexOf", "int", "double"), Number()),
    **dict.fromkeys(("contains", "startsWith", "endsWith", "matches", "has", "bool"), Truth()),
    **dict.fromkeys(("join", "trim", "replace", "substring", "charAt", "format", "string"), TEXT),
    **dict.fromkeys(("lowerAscii", "upperAscii", "strings.quote"), TEXT),
    **dict.fromkeys(("lines", "split"), ListOf(TEXT)),
    "lists.range": ListOf(Number()),
}
_LOOPS: dict[str, Known] = {
    **dict.fromkeys(("all", "exists", "exists_one", "existsOne"), Truth()),
    "map": ListOf(ANYTHING),
}


class Viewpoint(Struct, frozen=True):
    """The view of a text in a recipe: its step, and the steps around it."""

    inputs: Mapping[str, Input]
    draft: Draft | None
    scope: DraftScope

    def look(self, name: str, parts: tuple[str | int, ...]) -> Known:
        """Return the known type of `name.parts…`, in a template or an expression."""
        if name == "inputs":
            word = str(parts[0]) if parts else ""
            spelled = (one for name, one in self.inputs.items() if in_expression(name) == word)
            declared = self.inputs.get(word) or next(spelled, None)
            return part_of(known_from_type(declared.type, declared.enum), parts[1:]) if declared else ANYTHING
        if name == "steps":
            word = str(parts[0]) if parts else ""
            target = self.scope.find(word) or self.scope.find_in_expression(word)
            if target is None or len(parts) < 2 or parts[1] == "error":
                return ANYTHING
            if parts[1] == "status":
                return _ENDED
            if target.facts.inline:
                return ANYTHING  # its output, or its failure
            return part_of(output_of(target), parts[2:] if parts[1] == "output" else parts[1:])
        if name == "output" and self.draft is not None:
            return part_of(single_output(self.draft), parts)
        # The item of the nearest map with that item name.
        around = self.draft.outward() if self.draft is not None else ()
        draft = next((scope_map for scope_map in around if scope_map.item_name == name), None)
        if draft is None or draft.facts.for_each is None:
            return ANYTHING
        viewpoint = Viewpoint(self.inputs, draft.scope.owner, draft.scope)
        return part_of(element(known_of_expression(draft.facts.for_each, viewpoint.look)), parts)


def known_of_expression(text: str, look: Look) -> Known:
    """Return the type of an expression that is one path with calls; determined from its tokens alone."""
    return _known(read(text), look) if _is_chain(text) else ANYTHING


def known_of_output(output: Output | None, viewpoint: Viewpoint) -> Known:
    """Return the type of an `output` of a recipe or a group."""
    if isinstance(output, Fields):
        return ObjectOf({name: known_of_output(value, viewpoint) for name, value in output.fields.items()})
    if isinstance(output, Template):
        return TEXT
    if isinstance(output, Constant):
        return _constant(output.value)
    if not isinstance(output, Ref):
        return ANYTHING
    path = parse_path(output.path)
    return viewpoint.look(path.root, path.parts)


def element(known: Known) -> Known:
    """Return the type of a list's elements."""
    return known.element if isinstance(known, ListOf) else ANYTHING


def with_variables(usages: Sequence[Usage], look: Look) -> Look:
    """Return `look` with the types of loop variables; a name that is bound twice is unknown."""
    bound: dict[str, Known] = {}

    def bind(found: Sequence[Usage]) -> None:
        for usage in found:
            if isinstance(usage, UsedLoop):
                bind(usage.over)
                again = usage.variable in bound
                bound[usage.variable] = ANYTHING if again else element(_known(usage.over, resolve))
                bind(usage.body)
            elif isinstance(usage, UsedCall):
                bind(usage.of)
                bind(usage.given)

    def resolve(name: str, parts: tuple[str | int, ...]) -> Known:
        return part_of(bound[name], parts) if name in bound else look(name, parts)

    bind(usages)
    return resolve


def _known(usages: Sequence[Usage], look: Look) -> Known:
    if len(usages) != 1:
        return ANYTHING
    only = usages[0]
    if isinstance(only, Use):
        return look(only.name, only.parts)
    if isinstance(only, UsedLoop):
        return _known(only.over, look) if only.macro == "filter" else _LOOPS[only.macro]
    if isinstance(only, UsedCall):
        return _known(only.of, look) if only.name in _SAME_LIST else _GIVEN.get(only.name, ANYTHING)
    return ANYTHING


def _is_chain(text: str) -> bool:
    """Return whether it is one name with selections and calls, without operators outside of brackets."""
    depth = 0
    words = tokens(text)
    for word in words:
        if word.kind == "mark" and word.text in "([{":
            depth += 1
        elif word.kind == "mark" and word.text in ")]}":
            depth -= 1
        elif depth == 0 and word.text != "." and (word.kind not in ("name", "quoted") or word.text == "in"):
            return False
    return bool(words) and words[0].kind == "name"


def _constant(value: JSON) -> Known:
    match value:
        case bool():
            return Truth()
        case str():
            return Text((value,))
        case int() | float():
            return Number()
        case list():
            return ListOf(ANYTHING)
        case dict():
            return ObjectOf({str(name): _constant(one) for name, one in value.items()})
    return ANYTHING


# -----------------------------------------------------------------------------------------------------------
# Impossible comparisons: an object with text, text with a number, a word that is not a choice.
#
# Such an expression has a value (false), so nothing fails in the run. `steps.ok.output == "stop"` compares an
# object with text and is always false. So the deployment that it should stop continues.
#
# Rules
# * Only certain cases are refused: both sides are a literal, or a path into a value with a known type.
# * null can be compared with everything, because a skipped step returns it.
# * A loop variable has a known type if the loop runs over a path and its name is bound once.

_CONSTANTS = {"true": Truth(), "false": Truth()}
_AROUND = frozenset("(,?:&|![{")
"""Tokens that can be before an operand that is compared as a whole."""
_AFTER = frozenset("),?:&|]}")


class Mistake(Struct, frozen=True):
    """The problem with one comparison, and its position."""

    message: str
    hint: str
    start: int
    end: int
    meant: str = ""
    """The replacement, if it is certain."""


class _Operand(Struct, frozen=True):
    known: Known
    start: int
    end: int
    literal: str | None = None
    """Its text, if it is a literal."""
    path: str = ""


def impossible_comparisons(text: str, look: Look) -> Iterator[Mistake]:
    """Yield every comparison in an expression whose result does not depend on any value."""
    words, usages = tokens(text), read(text)
    resolve = with_variables(usages, look)
    yield from _missing_fields(usages, resolve)
    operands = _Operands(words, text, resolve)
    for at, sign, after in _signs(words):
        left = operands.ending(at)
        for right in operands.listed(after) if sign == "in" else [operands.starting(after)]:
            if left is not None and right is not None and (mistake := _judge(left, right, sign)) is not None:
                yield mistake


def _judge(left: _Operand, right: _Operand, sign: str) -> Mistake | None:
    if isinstance(left.known, Anything) or isinstance(right.known, Anything):
        return None
    if type(left.known) is not type(right.known):
        return _of_two_kinds(left, right, sign)
    for word, choice in ((left, right), (right, left)):
        choices = choice.known.choices if isinstance(choice.known, Text) else ()
        if word.literal is not None and choice.literal is None and choices and word.literal not in choices:
            meant = nearest(word.literal, choices)
            hint = f"did you mean {quoted(meant)}?" if meant else "it is one of " + ", ".join(choices)
            return Mistake(f"{choice.path} is never {quoted(word.literal)}", hint, word.start, word.end)
    return None


def _of_two_kinds(left: _Operand, right: _Operand, sign: str) -> Mistake:
    what = "be equal" if sign in ("==", "!=", "in") else "be compared"
    message = f"{described(left.known)} and {described(right.known)} can never {what}"
    for side in (left, right):
        if isinstance(side.known, ObjectOf) and side.path:
            field = "decision" if "decision" in side.known.fields else next(iter(side.known.fields), "")
            hint = f"{side.path} is an object" + (f"; write {side.path}.{field}" if field else "")
            meant = f"{side.path}.{field}" if field == "decision" else ""
            return Mistake(message, hint, side.start, side.end, meant)
    kinds = {type(operand.known): operand for operand in (left, right)}
    text = kinds.get(Text)
    written = (text.literal or "").lower() if text is not None else ""
    if text and ((Number in kinds and written.isdecimal()) or (Truth in kinds and written in _CONSTANTS)):
        return Mistake(message, f"write {written} without quotes", text.start, text.end, written)
    hint = f"int({text.path}) converts text to a number" if Number in kinds and text and text.path else ""
    return Mistake(message, hint, left.start, right.end)


def _missing_fields(usages: Sequence[Usage], look: Look) -> Iterator[Mistake]:
    """Yield fields that an item or a loop variable cannot have; paths of steps are checked elsewhere."""
    for use in free_uses(usages, every=True):
        known: Known = ANYTHING if use.name in ("inputs", "steps") else look(use.name, ())
        for i, part in enumerate(use.parts, 1):
            if isinstance(known, ObjectOf) and isinstance(part, str) and part not in known.fields:
                if not known.open:
                    meant = nearest(part, known.fields)
                    hint = f"did you mean {quoted(meant)}?" if meant else "it has " + ", ".join(known.fields)
                    yield Mistake(f"{use.name} has no field {quoted(part)}", hint, *use.spans[i])
                break
            known = part_of(known, (part,))


def _signs(words: Sequence[Token]) -> Iterator[tuple[int, str, int]]:
    """Yield each comparison: the index of its operator, the operator, the index of the next token."""
    for i, word in enumerate(words):
        following = words[i + 1] if i + 1 < len(words) else None
        joined = following is not None and following.text == "=" and following.start == word.end
        if word.kind == "name" and word.text == "in":
            yield i, "in", i + 1
        elif word.kind == "mark" and word.text in "=!<>" and joined:
            yield i, word.text + "=", i + 2
        elif word.kind == "mark" and word.text in "<>":
            yield i, word.text, i + 1


class _Operands:
    """The literals and paths of an expression; each is compared as a whole."""

    def __init__(self, words: Sequence[Token], text: str, look: Look) -> None:
        self._words = words
        self._text = text
        self._look = look
        begins = [at for at in range(len(words)) if at == 0 or words[at - 1].text in _AROUND]
        self._ends = {after: operand for operand, after in filter(None, map(self._read, begins))}

    def starting(self, first: int) -> _Operand | None:
        """Return the operand that starts with this token."""
        operand, after = self._read(first) or (None, first)
        ended = after == len(self._words) or self._words[after].text in _AFTER
        return operand if ended else None

    def ending(self, sign: int) -> _Operand | None:
        """Return the operand that ends before this token."""
        return self._ends.get(sign)

    def listed(self, first: int) -> list[_Operand | None]:
        """Return the literals of a list; empty if it is not a list of literals."""
        if first >= len(self._words) or self._words[first].text != "[":
            return []
        found: list[_Operand | None] = []
        at = first + 1
        while at < len(self._words) and self._words[at].text != "]":
            if (read_one := self._read(at)) is None:
                return []
            found.append(read_one[0])
            at = read_one[1]
            if at < len(self._words) and self._words[at].text == ",":
                at += 1
        return found

    def _read(self, first: int) -> tuple[_Operand, int] | None:
        """Return a literal or a path that starts here, and the index after it."""
        if first >= len(self._words):
            return None
        word = self._words[first]
        if word.kind == "string" and word.text[0] in "\"'" and word.text[:3] not in ('"""', "'''"):
            literal = literal_text(word.text)
            known: Known = ANYTHING if literal is None else Text((literal,))
            return _Operand(known, word.start, word.end, literal), first + 1
        if word.kind == "number":
            return _Operand(Number(), word.start, word.end), first + 1
        if word.text in ("true", "false", "null"):
            return _Operand(_CONSTANTS.get(word.text, ANYTHING), word.start, word.end), first + 1
        return self._path(first) if word.kind == "name" else None

    def _path(self, first: int) -> tuple[_Operand, int]:
        parts: list[str | int] = []
        at = first + 1
        while at + 1 < len(self._words):
            mark, word = self._words[at], self._words[at + 1]
            closed = at + 2 < len(self._words) and self._words[at + 2].text == "]"
            if mark.text == "." and word.kind in ("name", "quoted"):
                parts.append(word.text.strip("`"))
                at += 2
            elif mark.text == "[" and closed and word.kind == "number" and word.text.isdecimal():
                parts.append(int(word.text))
                at += 3
            elif mark.text == "[" and closed and word.kind == "string":
                parts.append(literal_text(word.text) or "")
                at += 3
            else:
                break
        end = self._words[at - 1].end
        start = self._words[first].start
        known = self._look(self._words[first].text, tuple(parts))
        return _Operand(known, start, end, path=self._text[start:end]), at
