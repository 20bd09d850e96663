"""CEL expressions: checked when a recipe is compiled, evaluated before a step starts.

Rules
* An expression sees only `inputs`, `steps` and the names of its place (`item`, `index` …). A `-` in a name is
  written `_`, because CEL would read it as a minus.
* `inputs` and `steps` are always followed by a literal name, so that edges, unknown names and unused inputs
  are known before the run.
* Everything is limited. The library limits text, nesting (32) and iterations (10,000). This module limits
  work and result size, because the library limits neither memory nor time and blocks the interpreter
  meanwhile.
* Values are JSON on both sides. Comparisons work across number types (`1 == 1.0`); arithmetic does not.
* The library is imported for the first expression, and its environments are cached, because declaring names
  costs more than compiling an expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from msgspec import Struct

from fanfold.kernel.plan import JSON
from fanfold.language.diagnostics import nearest
from fanfold.language.expression_work import (
    FUNCTIONS,
    OTHER_NAMES,
    TooMuchWork,
    Usage,
    Use,
    WorkBound,
    declared_functions,
    free_uses,
    reach,
    read,
    tokens,
)
from fanfold.language.template import ExpressionError, in_expression

if TYPE_CHECKING:
    from cel_expr_python import cel

# -----------------------------------------------------------------------------------------------------------
# A missing `feedback`: in the first round of a loop, and after a round that only failed.
#
# A template renders it as empty text. In CEL, a field of null or of text is an error. So an expression that
# fails there is evaluated again with a replacement for `feedback` whose fields are null.


def stand_ins(usages: Sequence[Usage], *, asks: bool) -> Iterator[JSON]:
    """Yield the replacements to try, in order; none if no field of `feedback` is used.

    `asks`: the expression checks whether a field exists, and the result is no.
    """
    if not (uses := [use for use in free_uses(usages) if use.name == "feedback" and use.parts]):
        return
    if asks:
        yield {}
    fields: dict[str, JSON] = {}
    for use in uses:
        inner = fields
        for word, after in zip(use.parts, (*use.parts[1:], None), strict=True):
            if not isinstance(word, str):
                break
            if not isinstance(after, str):
                inner.setdefault(word, None)
                break
            deeper = inner.get(word)
            if not isinstance(deeper, dict):
                inner[word] = deeper = {}
            inner = deeper
    yield fields


# -----------------------------------------------------------------------------------------------------------
# Messages of the CEL library, rewritten for the author of an expression.

MAX_MESSAGE_CHARS = 300

_NEVER = {
    "_==_": "be equal", "_!=_": "be equal", "@in": "hold one another",
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_"), "be compared"),
}  # fmt: skip
"""The operation that is impossible with two values of different kinds, by the library's name of the operator.
"""
_CEL_WORDS = {
    "int": "a number", "uint": "a number", "double": "a number", "string": "text", "bool": "true or false",
    "null": "null", "bytes": "bytes",
}  # fmt: skip


def compile_message(message: str) -> str:
    """Return why an expression cannot be compiled."""
    message = message.removeprefix("Syntax error: ")
    unexpected = re.match(
        r"(?:mismatched|extraneous) input '(.*?)' expecting|no viable alternative at input '(.*)'", message
    )
    if unexpected:
        word = unexpected[1] or unexpected[2]
        return "the expression ends too early" if word == "<EOF>" else f"{word!r} is not possible here"
    if message.startswith("token recognition error at: "):
        return f"{message.removeprefix('token recognition error at: ')} cannot be read"
    overload = re.match(r"found no matching overload for '(.*?)' applied to '\((.*)\)'", message)
    if overload and (never := _NEVER.get(overload[1])):
        kinds = [_CEL_WORDS.get(kind) or kind for kind in overload[2].split(", ")]
        return f"{' and '.join(kinds)} can never {never}"
    if overload:
        return f"{overload[1].strip('_') or overload[1]} cannot be applied to ({overload[2]})"
    return message


def run_time_message(message: str) -> str:
    """Return `NOT_FOUND: Key not found in map : "x" [NOT_FOUND]` without the library's status words."""
    message = re.sub(r"^[A-Z_]+: | \[[A-Z_]+\]$", "", message)[:MAX_MESSAGE_CHARS]
    if missing := re.match(r'Key not found in map : (".*)', message):
        return f"there is no field {missing[1]}"
    if overload := re.match(r"No matching overloads found : (\S+?)(\(.*)", message):
        return f"{overload[1].strip('_') or overload[1]} cannot be applied to {overload[2]}"
    if message.endswith("<iter_range>"):
        return "only lists and objects can be looped over"
    if message == "Applying SELECT to non-message type":
        return "the value has no fields, such as null or text"
    if message == "Iteration budget exceeded":
        return "the expression loops more than 10,000 times"
    return message


# -----------------------------------------------------------------------------------------------------------
# The result of an expression as plain JSON: limited, in a fixed order, and valid JSON.

MAX_RESULT_VALUES = 100_000
MAX_VALUE_DEPTH = 200
KINDS = {
    "INT": "a whole number", "UINT": "a whole number", "DOUBLE": "a number", "STRING": "text",
    "BYTES": "bytes", "NULL": "null", "BOOL": "true or false", "TIMESTAMP": "a time",
    "DURATION": "a duration", "string": "text", "integer": "a whole number", "number": "a number",
    "boolean": "true or false", "array": "a list", "object": "an object",
}  # fmt: skip
"""The library's names of types, as text for messages."""


class ResultReader:
    """Converts a CEL value to JSON, with a limit, because shared values are repeated in JSON."""

    def __init__(self) -> None:
        self._values = 0

    def plain(self, value: Any, depth: int = 0) -> JSON:
        self._values += 1
        if self._values > MAX_RESULT_VALUES or depth > 2 * MAX_VALUE_DEPTH:
            raise TooMuchWork(f"the result has more than {MAX_RESULT_VALUES:,} values")
        if (held := value.value()) is None or isinstance(held, bool | int | str):
            return held
        kind = value.type().name()
        if isinstance(held, float):
            if isfinite(held):
                return held
        elif kind.startswith("LIST"):
            return [self.plain(item, depth + 1) for item in held]
        elif kind.startswith("MAP") and all(isinstance(key, str) for key in held):
            # CEL has no order of keys, and its order differs between processes.
            return {key: self.plain(held[key], depth + 1) for key in sorted(held)}
        raise TypeError(f"the result holds {KINDS.get(kind, kind)}, which JSON cannot represent")


MAX_EXPRESSION_CHARS = 4_096
MAX_WORK = 5_000_000
"""Maximum number of values that one evaluation visits; at worst half a second and 100 MB."""

_LIBRARY_ERRORS = (RuntimeError, TypeError, UnicodeError, OverflowError)
"""Errors of the library for values it cannot represent; too deep values are a RuntimeError as well."""
_STEP_FIELDS = frozenset({"output", "status", "error"})
_TYPE_NAMES = frozenset("bool bytes double dyn int list map null_type string type uint".split())
_OTHER_SIGNS = {
    "=": "==", "is": "==", "and": "&&", "or": "||", "not": "!", "AND": "&&", "OR": "||", "NOT": "!",
}  # fmt: skip
"""Operators of other languages, and their form in CEL."""
_OTHER_FORMS = {
    "if": "write CONDITION ? VALUE : OTHER",
    "$": "write the expression alone, without $ and braces",
    "|": "there are no filters: functions are called, as in size(inputs.files)",
}
"""Syntax of other languages that has another form in CEL, by the first token that cannot be read."""
_UNREADABLE = ("Syntax error", "token recognition")
_ERROR = r"ERROR: <input>:(-?\d+):(-?\d+): (.*)"


Wanted: TypeAlias = Literal["bool", "list", "moment", "any"]
"""The required result of an expression. A moment is a time or a duration, or text or a number for one."""
_FIT = {
    "bool": ("BOOL", "boolean"),
    "list": ("LIST", "array"),
    "moment": ("TIMESTAMP", "DURATION", "STRING", "INT", "UINT", "DOUBLE", "string", "integer", "number"),
}
_FROM_TEXT = {
    "bool": 'compare it with something, such as != ""',
    "list": 'lines(…) makes a list of text, and so does .split(",")',
}
_IN_WORDS = {"bool": "true or false", "list": "a list", "moment": "a time"}


class Reference(Struct, frozen=True):
    """`steps.<key>…` or `inputs.<key>…` in an expression.

    `key` is the word as written (with `_` for `-`), `start` and `end` its position, `parts` the path after
    it.
    """

    name: str
    key: str
    start: int
    end: int
    parts: tuple[str | int, ...] = ()


class _Program(Struct, frozen=True):
    compiled: cel.Expression
    usages: tuple[Usage, ...]


def check_expression(
    text: str, *, inputs: Mapping[str, str | None], steps: Iterable[str], names: Iterable[str], wants: Wanted
) -> tuple[Reference, ...]:
    """Refuse expressions that fail for any values; return the references of the expression.

    `inputs` has the type of each declared input, or None. Unknown inputs and steps are returned like known
    ones, because the caller knows the nearest names.
    """
    known = ("inputs", "steps", *sorted({in_expression(name) for name in names} - {"inputs", "steps"}))
    try:
        program = _compile(text, known)
    except ExpressionError as error:
        raise _dashed_name(text, error, (*inputs, *steps)) or error from None
    uses = free_uses(program.usages)
    references = tuple(_reference(use) for use in uses if use.name in ("inputs", "steps"))
    _check_type(text, program, {in_expression(name): kind for name, kind in inputs.items()}, wants)
    return references


def reads_values(text: str, names: Iterable[str]) -> bool:
    """Return whether a text is an expression that reads values."""
    known = ("inputs", "steps", *sorted({in_expression(name) for name in names} - {"inputs", "steps"}))
    try:
        return any(use.name in known for use in free_uses(_compile(text, known).usages))
    except ExpressionError:
        return False


def evaluate(text: str, values: Mapping[str, JSON]) -> JSON:
    """Return the value of an expression as plain JSON; raises ExpressionError.

    `values` has `inputs` and `steps` as objects by their recipe names (`-` allowed), and the other names of
    the place. A step is `{"output", "status", "error"}`.

    >>> evaluate("steps.a_b.output.size() > 2", {"steps": {"a-b": {"output": "abc"}}})
    True
    """
    offered = {"inputs": {}, "steps": {}, **{in_expression(name): value for name, value in values.items()}}
    if (feedback := offered.get("feedback", 0)) is not None and not isinstance(feedback, str):
        return _evaluate(text, offered)
    try:
        return _evaluate(text, offered)
    except ExpressionError as error:
        program = _compile(text, tuple(sorted(offered)))
        for stand_in in stand_ins(program.usages, asks="has(" in text):
            with suppress(ExpressionError):
                return _evaluate(text, {**offered, "feedback": stand_in})
        raise error from None


def _evaluate(text: str, offered: Mapping[str, JSON]) -> JSON:
    program = _compile(text, tuple(sorted(offered)))
    uses = tuple(free_uses(program.usages))
    # Only the values that the expression uses, because passing values costs by their size.
    data: dict[str, JSON] = {"inputs": {}, "steps": {}}
    for use in uses:
        if use.name not in ("inputs", "steps"):
            data[use.name] = offered.get(use.name)
            continue
        reference = _reference(use)
        for value in _named(reference.key, offered[use.name]):
            if use.name == "steps" and isinstance(value, dict):
                data["steps"].setdefault(reference.key, {}).update(_step(value, reference.parts))
            else:
                data[use.name][reference.key] = value
    if len(program.usages) == 1 and len(uses) == 1 and uses[0].name in offered and _is_path(text):
        for value in reach([data[uses[0].name]], uses[0].parts):
            return value  # unchanged: CEL would lose the order of an object's fields

    def worked_out(place: tuple[int, int]) -> JSON:
        with suppress(ExpressionError):
            return _evaluate(text[slice(*place)], offered)
        return None

    try:
        _check_depth(data)
        WorkBound(data, MAX_WORK, worked_out).check(program.usages)
        result = program.compiled.eval(data=data)
        if result.type().name() == "ERROR":
            _fail(text, run_time_message(str(result.plain_value())))
        return ResultReader().plain(result)
    except TooMuchWork as error:
        _fail(text, str(error))
    except _LIBRARY_ERRORS as error:
        _fail(text, run_time_message(str(error)))


def _fail(text: str, message: str) -> NoReturn:
    raise ExpressionError(message, 0, len(text))


def _is_path(text: str) -> bool:
    """Return whether a text is only a name and selections: no operator, no call, no list."""
    found = tokens(text)
    selects = all(t.kind in ("name", "quoted", "string", "number") or t.text in ".[]" for t in found)
    return selects and found[0].kind == "name"


def _reference(use: Use) -> Reference:
    if not use.parts or not isinstance(use.parts[0], str):
        kind = "input" if use.name == "inputs" else "step"
        raise ExpressionError(f'name the {kind}: "{use.name}.<{kind}>"', *use.spans[0])
    return Reference(use.name, use.parts[0], *use.spans[1], use.parts[1:])


def _named(word: str, held: Mapping[str, JSON]) -> list[JSON]:
    """Return the value whose name is written `word` in CEL; searched, because there may be many names."""
    if word in held:
        return [held[word]]
    return [held[name] for name in held if "-" in name and in_expression(name) == word] if "_" in word else []


def _step(step: Mapping[str, JSON], parts: tuple[str | int, ...]) -> Mapping[str, JSON]:
    """Return the part of a step that a path uses; `steps.x.title` means `steps.x.output.title`."""
    if not parts:
        return step
    field, output = str(parts[0]), step.get("output")
    if field in step:
        return {field: step[field]}
    if field not in _STEP_FIELDS and (output is None or (isinstance(output, dict) and field in output)):
        return {field: output[field] if output else None}
    return {}


def _check_depth(data: JSON) -> None:
    """Refuse deep values, because the library recurses and would crash the process."""
    level = [data]
    for _ in range(MAX_VALUE_DEPTH):
        level = [
            part
            for value in level
            if isinstance(value, dict | list)
            for part in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise TooMuchWork(f"the values nest more than {MAX_VALUE_DEPTH} levels deep")


@lru_cache(maxsize=512)
def _compile(text: str, names: tuple[str, ...]) -> _Program:
    if len(text) > MAX_EXPRESSION_CHARS:
        _fail(text, f"an expression has at most {MAX_EXPRESSION_CHARS:,} characters")
    if not text.strip():
        _fail(text, "the expression is empty")
    try:
        try:
            compiled = _environment(names, False).compile(text)
        except RuntimeError:  # functions are loaded only if needed, because that is slow
            compiled = _environment(names, True).compile(text)
        return _Program(compiled, read(text))
    except (RuntimeError, TypeError) as error:  # TypeError: text that is not Unicode
        raise _translated(text, str(error), names) from None


@lru_cache(maxsize=64)
def _environment(names: tuple[str, ...], functions: bool) -> cel.Env:
    from cel_expr_python import cel

    variables = dict.fromkeys(names, cel.Type.DYN)
    if not functions:
        return cel.NewEnv(variables=variables)
    from cel_expr_python.ext import ext_math, ext_strings

    return cel.NewEnv(
        variables=variables,
        # Version 2 of the string functions: the third adds a `reverse` that conflicts with ours for lists.
        extensions=[ext_strings.ExtStrings(2), ext_math.ExtMath()],
        functions=declared_functions(),
    )


def _check_type(text: str, program: _Program, inputs: Mapping[str, str | None], wants: Wanted) -> None:
    """Refuse a type that is certainly wrong; types that depend on values are checked at run time."""
    kind = program.compiled.return_type().name()
    if len(program.usages) == 1 and kind == "DYN" and _is_path(text):
        use = program.usages[0]
        if isinstance(use, Use) and use.name == "inputs" and len(use.parts) == 1:
            kind = inputs.get(str(use.parts[0])) or kind
    if kind == "DYN" or wants == "any" or kind.startswith(_FIT[wants]):
        return
    shown = KINDS.get(kind) or ("a list" if kind.startswith("LIST") else "an object")
    message = f"this gives {shown}, where {_IN_WORDS[wants]} is needed"
    hint = _FROM_TEXT.get(wants, "") if shown == "text" else ""
    raise ExpressionError(message, 0, len(text), hint=hint)


def _translated(text: str, error: str, names: tuple[str, ...]) -> ExpressionError:
    """Return the library's first error with our message and position."""
    if "recursion" in error:
        return ExpressionError("the expression nests too deeply; at most 32 levels are allowed", 0, len(text))
    if (found := re.search(_ERROR, error)) is None:
        return ExpressionError("the expression contains invalid Unicode", 0, len(text))
    line, column, message = int(found[1]), int(found[2]), found[3].removesuffix(" [INVALID_ARGUMENT]")
    starts = [0, *(m.end() for m in re.finditer(r"\n", text))]
    at = min(starts[min(max(line, 1), len(starts)) - 1] + max(column, 1) - 1, len(text))
    if message.startswith("undeclared reference"):
        return _unknown_name(text, at, names)
    words = tokens(text)
    word = next((t for t in words if t.start <= at < t.end), None)
    before = next((t for t in reversed(words) if t.end <= at), None)
    if before is not None and before.text.lower() == "not":  # a name in CEL; the text after it is invalid
        return _not(before.start, before.end, before.text)
    end = word.end if word is not None else at + 1
    if text[end : end + 1] == "=":
        end += 1  # an operator of two characters
    meant = _OTHER_SIGNS.get(word.text) if word is not None else None
    if meant is not None and not message.startswith("found no matching overload"):
        return ExpressionError(f'write "{meant}" instead of "{text[at:end]}"', at, end, meant)
    hint = _OTHER_FORMS.get(text[at:end], "") if message.startswith(_UNREADABLE) else ""
    return ExpressionError(compile_message(message), at, end, hint=hint)


def _not(start: int, end: int, word: str) -> ExpressionError:
    return ExpressionError(f'write "!" instead of "{word}"', start, end, "!")


def _unknown_name(text: str, at: int, names: tuple[str, ...]) -> ExpressionError:
    for use in free_uses(read(text)):
        if use.name not in names and use.name not in _TYPE_NAMES:
            meant = nearest(use.name, names)
            hint = f'did you mean "{meant}"?' if meant else f"known are {', '.join(names)}"
            error = ExpressionError(f'"{use.name}" is unknown here', *use.spans[0], hint=hint)
            error.parts = use.parts
            return error
    called = [t for t in tokens(text) if t.kind == "name" and t.end <= at + 1]
    start, end = (called[-1].start, called[-1].end) if called else (at, at + 1)
    function_name = text[start:end]
    if function_name.lower() == "not":
        return _not(start, end, function_name)
    known = sorted({function.name for function in FUNCTIONS})
    meant = OTHER_NAMES.get(function_name) or nearest(function_name, known)
    suggestion = f'did you mean "{meant}"? ' if meant else ""
    hint = f"{suggestion}there are {', '.join(known)}"
    return ExpressionError(f'there is no function "{function_name}"', start, end, hint=hint)


def _dashed_name(text: str, error: ExpressionError, names: Iterable[str]) -> ExpressionError | None:
    """Return the better error if `-` in a known name was read as a minus: `steps.a-b.output`."""
    for name in names:
        at = text.find(f".{name}", 0, error.position + len(name)) + 1 if "-" in name else 0
        if at and at <= error.position <= at + len(name):
            message = f'CEL reads "-" as a minus; write "{in_expression(name)}" here'
            return ExpressionError(message, at, at + len(name))
    return None
