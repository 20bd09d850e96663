"""The functions of expressions: those of CEL, of its string and math extensions, and ours.

Rules
* One table names every function. The documentation and the error for an unknown function are generated from
  it.
* The library includes the extensions for text and numbers, but not those for lists. So `distinct`, `flatten`,
  `reverse`, `slice`, `sort` and `lists.range` are defined here, with their meaning in CEL. `lines` and `json`
  convert the output of a program to lists and values. `sortBy` takes the name of a field, because macros
  cannot be added.
* A function of ours raises `ValueError` with a message for the author, which the library passes on.
* The result size of functions is limited in `expression_work`, by the two sets at the end of this module.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fanfold.language.json_text import strict

if TYPE_CHECKING:
    from cel_expr_python import cel

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
    FunctionDoc("json(text)", "The value that a JSON text stands for."),
    FunctionDoc("size(value)", "Characters of a text, elements of a list, fields of an object."),
    FunctionDoc("has(object.field)", "Whether the field is there."),
    FunctionDoc("text.contains(part)", "Whether the part occurs in the text."),
    FunctionDoc("text.startsWith(part)", "Whether the text begins so."),
    FunctionDoc("text.endsWith(part)", "Whether the text ends so."),
    FunctionDoc("text.matches(regex)", "Whether an RE2 pattern is found in the text."),
    FunctionDoc("text.split(separator)", "The parts as a list; a second argument bounds their number."),
    FunctionDoc("list.join(separator)", "Texts of a list as one."),
    FunctionDoc("text.trim()", "Without white space at both ends."),
    FunctionDoc("text.replace(old, new)", "With each occurrence replaced; a third argument limits how many."),
    FunctionDoc("text.substring(start, end)", "From a place to before another; without `end` to the end."),
    FunctionDoc("text.indexOf(part)", "Where the part first stands, -1 where it does not."),
    FunctionDoc("text.lastIndexOf(part)", "Where the part last stands, -1 where it does not."),
    FunctionDoc("text.charAt(index)", "One character, or an empty text at the end."),
    FunctionDoc("text.lowerAscii()", "With A to Z in lower case."),
    FunctionDoc("text.upperAscii()", "With a to z in upper case."),
    FunctionDoc("text.format(list)", 'Values put in: `"%s has %d".format([a, b])`.'),
    FunctionDoc("strings.quote(text)", "In quotation marks, special characters escaped."),
    FunctionDoc("text.reverse()", "Backwards; a list too."),
    FunctionDoc("list.all(x, test)", "Whether the test holds for every element."),
    FunctionDoc("list.exists(x, test)", "Whether it holds for one at least."),
    FunctionDoc("list.exists_one(x, test)", "Whether it holds for exactly one."),
    FunctionDoc("list.filter(x, test)", "The elements for which it holds."),
    FunctionDoc("list.map(x, value)", "A value for each element; `list.map(x, test, value)` for some."),
    FunctionDoc("list.distinct()", "Without repeated elements, the first of each kept."),
    FunctionDoc("list.flatten()", "Lists in a list put in its place; an argument says how many levels deep."),
    FunctionDoc("list.slice(start, end)", "The elements from a place to before another."),
    FunctionDoc("list.sort()", "In order: numbers, or texts, or truth values."),
    FunctionDoc("list.sortBy(field)", "Objects in the order of one field, given by its name."),
    FunctionDoc("lists.range(count)", "The whole numbers from 0 to before `count`."),
    FunctionDoc("math.greatest(list)", "The greatest of a list, or of several arguments."),
    FunctionDoc("math.least(list)", "The least of a list, or of several arguments."),
    FunctionDoc("math.abs(number)", "Without its sign."),
    FunctionDoc("math.ceil(number)", "The next whole number, as a number with a point."),
    FunctionDoc("math.floor(number)", "The whole number before, as a number with a point."),
    FunctionDoc("math.round(number)", "The nearest whole number, as a number with a point."),
    FunctionDoc("int(value)", "As a whole number; from text too."),
    FunctionDoc("double(value)", "As a number with a point."),
    FunctionDoc("string(value)", "As text."),
    FunctionDoc("bool(value)", "As true or false; from text too."),
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

    return [
        cel.FunctionDecl(
            "lines", [cel.Overload("fanfold_lines", cel.Type.List(text), [text], False, _lines)]
        ),
        cel.FunctionDecl("json", [cel.Overload("fanfold_json", cel.Type.DYN, [text], False, _json)]),
        cel.FunctionDecl(
            "lists.range", [cel.Overload("fanfold_range", cel.Type.List(whole), [whole], False, _range)]
        ),
        cel.FunctionDecl(
            "reverse",
            [
                member("reverse", any_list, [any_list], lambda values: values[::-1]),
                member("reverse", text, [text], lambda value: value[::-1]),
            ],
        ),
        cel.FunctionDecl("distinct", [member("distinct", any_list, [any_list], _distinct)]),
        cel.FunctionDecl(
            "flatten",
            [
                member("flatten", any_list, [any_list], _flatten),
                member("flatten", any_list, [any_list, whole], _flatten),
            ],
        ),
        cel.FunctionDecl("slice", [member("slice", any_list, [any_list, whole, whole], _slice)]),
        cel.FunctionDecl("sort", [member("sort", any_list, [any_list], _sort)]),
        cel.FunctionDecl("sortBy", [member("sortBy", any_list, [any_list, text], _sort_by)]),
    ]


def _lines(text: str) -> list[str]:
    return text.splitlines()


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
    raise ValueError(f"the text is not JSON ({word} is no number)")


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
        raise ValueError("flatten goes one level deep at least")
    for _ in range(min(depth, MAX_JSON_DEPTH)):
        if not any(isinstance(value, list) for value in values):
            break
        values = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return values


def _slice(values: list[Any], start: int, end: int) -> list[Any]:
    if not 0 <= start <= end <= len(values):
        raise ValueError(f"slice({start}, {end}) is outside a list of {len(values)}")
    return values[start:end]


def _sort(values: list[Any]) -> list[Any]:
    return [value for _, value in _in_order([(value, value) for value in values])]


def _sort_by(values: list[Any], field: str) -> list[Any]:
    keyed = []
    for value in values:
        if not isinstance(value, dict) or field not in value:
            raise ValueError(f"sortBy({json.dumps(field)}) needs objects that all have the field")
        keyed.append((value[field], value))
    return [value for _, value in _in_order(keyed)]


def _in_order(keyed: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    kinds = {
        "text" if isinstance(key, str) else "truth" if isinstance(key, bool)
        else "number" if isinstance(key, int | float) else "other"
        for key, _ in keyed
    }  # fmt: skip
    if len(kinds) > 1 or "other" in kinds:
        raise ValueError("only numbers, or only texts, or only truth values can be sorted")
    return sorted(keyed, key=lambda pair: pair[0])
