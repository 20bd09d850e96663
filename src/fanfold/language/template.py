"""Templates: text with `{{ path }}` placeholders, and the paths that fill them.

Rules
* A placeholder contains only a path: no filters, no logic, no calls. A template is data that can be checked
  by reading it. Computation belongs in a CEL expression or a step.
* There is one pass. A value that contains `{{` is inserted as text and never rendered again, so an agent's
  output cannot access other values.
* Text is inserted unchanged, anything else as compact JSON. A missing `feedback` is inserted as empty text. A
  path through null is null. Every other unresolved path is an error, because a prompt with a silent gap costs
  more than a failed step.
* `\\{{` is a literal `{{`.
* Positions count characters of the parsed text; the compiler maps them to the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from fanfold.language.json_text import JSON

MAX_HOLES = 10_000
MAX_PROBLEMS = 20
"""Limit per text: more problems would not help, and a hostile text must not cost more."""
MAX_PATH_CHARS = 1_000
MAX_PATH_PARTS = 32
MAX_RENDERED_CHARS = 16 * 1024 * 1024

STEP_FIELDS = frozenset({"output", "status", "error"})
"""Fields of every finished step; other names after `steps.<id>` are its declared `outputs`."""
_WITHOUT_PARTS = frozenset({"index", "iteration", "digest"})
_STATE_ROOTS = frozenset({"inputs", "steps", "index", "iteration"})

COMPUTE = "compute it in a `set` step and write {{steps.<id>.output.<name>}}"

_ROOT = r"[A-Za-z_][\w-]*"
_PART = re.compile(r"\.([\w-]+)|\[([0-9]{1,9})\]")


class TemplateError(ValueError):
    """The text is not a path or a template; `position` to `end` is the invalid part."""

    def __init__(self, message: str, position: int, end: int | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.position = position
        self.end = position + 1 if end is None else max(end, position + 1)


class UnresolvedPath(ValueError):
    """A path has no value here, or its value cannot be inserted into text."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Path(msgspec.Struct, frozen=True):
    """`steps.gather.output.items[0]`: a root and the parts after it.

    `root` is `inputs`, `steps`, `item` (or the name in `as`), `index`, `iteration`, `feedback`, `digest` or
    `output`. The compiler decides which of them exist at a place.
    """

    root: str
    parts: tuple[str | int, ...]
    text: str


class Hole(msgspec.Struct, frozen=True):
    """A placeholder in a template; `start` and `end` are the offsets of the path's text."""

    path: Path
    start: int
    end: int


Parts: TypeAlias = tuple[str | Hole, ...]


def parse_path(text: str) -> Path:
    """Parse one path; raises TemplateError.

    >>> parse_path("steps.gather.output[0].title").parts
    ('gather', 'output', 0, 'title')
    """
    if len(text) > MAX_PATH_CHARS:
        raise TemplateError(f"a path has at most {MAX_PATH_CHARS:,} characters", 0, len(text))
    if (root := re.match(_ROOT, text)) is None:
        raise _misread(text, 0)
    parts: list[str | int] = []
    at = root.end()
    while at < len(text):
        if (part := _PART.match(text, at)) is None:
            raise _misread(text, at)
        parts.append(part[1] if part[2] is None else int(part[2]))
        at = part.end()
    path = Path(root[0], tuple(parts), text)
    _check_shape(path, root.end())
    return path


def _check_shape(path: Path, root_end: int) -> None:
    """Check the form of a path for its root, independent of the recipe's declarations."""
    root, parts, end = path.root, path.parts, len(path.text)
    if len(parts) > MAX_PATH_PARTS:
        raise TemplateError(f"a path has at most {MAX_PATH_PARTS} parts", 0, end)
    if root in _WITHOUT_PARTS and parts:
        raise TemplateError(f'"{root}" has no fields', root_end, end)
    if root == "inputs" and (not parts or isinstance(parts[0], int)):
        raise TemplateError('name the input: "inputs.<name>"', 0, end)
    if root == "steps":
        if not parts or isinstance(parts[0], int):
            raise TemplateError('name the step: "steps.<id>.output"', 0, end)
        if len(parts) == 1 or isinstance(parts[1], int):
            raise TemplateError(f'name the value of the step: "steps.{parts[0]}.output"', 0, end)


def _misread(text: str, at: int) -> TemplateError:
    """Return the error for a path that is invalid at `at`."""
    rest = text[at:].lstrip()
    at = len(text) - len(rest)
    char = rest[:1]
    if not text.strip():
        message = "the template is empty; write a path such as {{inputs.topic}}"
    elif char == "|":
        message = "templates have no filters; only a path is allowed here"
    elif char == "(" or "(" in rest.split(".")[0]:
        message = "templates cannot call functions; only a path is allowed here"
    elif char == "[":
        message = "only a number is allowed in brackets; write .name for a field"
    elif char == ".":
        message = 'a name must follow "."'
    elif char == "":
        message = "the path ends too early"
    elif char in "\"'":
        message = "text needs no template; only a path is allowed here"
    elif char in "+-*/%<>=!&?:~^":
        message = "templates have no logic; compute it in a step or in a condition"
    else:
        message = f'"{char}" is not allowed in a path; write a path such as inputs.topic or steps.<id>.output'
    computes = char in ("|", "(", *"+-*/%<>=!&?:~^") or "(" in rest.split(".")[0]
    return TemplateError(message, at, at + 1, COMPUTE if computes else "")


def parse_template(text: str, problems: list[TemplateError] | None = None) -> Parts:
    """Split a template into text and placeholders; raises TemplateError.

    With a list for `problems`, nothing is raised: invalid placeholders are left out and added to the list.

    >>> parse_template("On {{inputs.topic}}.")[2]
    '.'
    """
    if "{{" not in text:
        return (text,) if text else ()
    parts: list[str | Hole] = []
    literal: list[str] = []
    at = holes = 0
    while (found := text.find("{{", at)) >= 0:
        if found > at and text[found - 1] == "\\":
            literal += (text[at : found - 1], "{{")
            at = found + 2
            continue
        literal.append(text[at:found])
        holes += 1
        try:
            hole, at = _hole(text, found, holes)
        except TemplateError as error:
            if problems is None:
                raise
            problems.append(error)
            if holes > MAX_HOLES or len(problems) == MAX_PROBLEMS:
                break
            # Where to continue after an invalid placeholder: after its end, or at the next start.
            close = text.find("}}", found + 2)
            again = text.find("{{", found + 2, close if close >= 0 else len(text))
            at = again if again >= 0 else len(text) if close < 0 else close + 2
            continue
        if before := "".join(literal):
            parts.append(before)
        parts.append(hole)
        literal = []
    literal.append(text[at:])
    if after := "".join(literal):
        parts.append(after)
    return tuple(parts)


def in_expression(name: str) -> str:
    """Return a name or a path in the notation of expressions, which read `-` as a minus.

    >>> in_expression("steps.a-b.output")
    'steps.a_b.output'
    """
    return name.replace("-", "_")


def literal(text: str) -> str:
    """Return a template that renders to exactly this text.

    >>> render(parse_template(literal("what is {{inputs.x}}?")), {})
    'what is {{inputs.x}}?'
    """
    return text.replace("{{", "\\{{")


def _hole(text: str, opened: int, number: int) -> tuple[Hole, int]:
    """Return the placeholder whose `{{` is at `opened`, and where the text after it starts."""
    if number > MAX_HOLES:
        raise TemplateError(f"a template has at most {MAX_HOLES:,} holes", opened, opened + 2)
    close = text.find("}}", opened + 2)
    again = text.find("{{", opened + 2, close if close >= 0 else len(text))
    if close < 0 or again >= 0:
        raise TemplateError('this "{{" is not closed; write "\\{{" for two braces', opened, opened + 2)
    inner = text[opened + 2 : close]
    start = opened + 2 + len(inner) - len(inner.lstrip())
    if not (word := inner.strip()):
        raise TemplateError("the template is empty; write a path such as {{inputs.topic}}", opened, close + 2)
    try:
        path = parse_path(word)
    except TemplateError as error:
        raise TemplateError(error.message, start + error.position, start + error.end, error.hint) from None
    return Hole(path, start, start + len(word)), close + 2


def sole_path(text: str) -> Path | None:
    """Return the path of a text that is exactly one `{{path}}`; such a value keeps its type."""
    if not (text.startswith("{{") and text.endswith("}}")):
        return None
    try:
        parts = parse_template(text)
    except TemplateError:
        return None
    return parts[0].path if len(parts) == 1 and isinstance(parts[0], Hole) else None


def is_state_path(text: str, item_name: str = "item") -> bool:
    """Return whether a plain string in `inputs` is a reference: `steps.a.output`, `inputs.x`, `item` …"""
    root = re.match(_ROOT, text)
    if root is None or not (root[0] in _STATE_ROOTS or root[0] == item_name):
        return False
    try:
        parse_path(text)
    except TemplateError:
        return False
    return True


def resolve(path: Path, lookup: Mapping[str, JSON]) -> JSON:
    """Return the value at a path; raise UnresolvedPath if there is none.

    A step's declared outputs are found without `output`: `steps.x.title` is `steps.x.output.title`.
    """
    if path.root not in lookup:
        raise UnresolvedPath(f'"{path.text}": there is no "{path.root}" here')
    value = lookup[path.root]
    for depth, part in enumerate(path.parts):
        if value is None or (depth == 0 and path.root == "feedback" and isinstance(value, str)):
            return None  # a round that only failed has text without fields
        if depth == 1 and path.root == "steps" and part not in STEP_FIELDS and isinstance(value, dict):
            if part not in value:
                value = _enter(value, "output", path)
            if value is None:
                return None
        value = _enter(value, part, path)
    return value


def _enter(value: JSON, part: str | int, path: Path) -> JSON:
    if isinstance(value, Mapping):
        if isinstance(part, str) and part in value:
            return value[part]
        reason = "is an object, not a list" if isinstance(part, int) else "has no such field"
    elif isinstance(value, list | tuple):
        if isinstance(part, int):
            if part < len(value):
                return value[part]
            reason = f"has only {len(value)} items"
        else:
            reason = "is a list; write [0] for its first item"
    else:
        kind = "text" if isinstance(value, str) else "a number or a truth value"
        reason = f"is {kind} and has no parts"
    shown = f"[{part}]" if isinstance(part, int) else f'"{part}"'
    raise UnresolvedPath(f'"{path.text}" does not resolve: what {shown} is looked up in {reason}')


def render(parts: Iterable[str | Hole], lookup: Mapping[str, JSON]) -> str:
    """Return the text of a parsed template; raises UnresolvedPath.

    >>> render(parse_template("{{inputs.n}} of {{inputs.what}}"), {"inputs": {"n": [3], "what": "{{x}}"}})
    '[3] of {{x}}'
    """
    pieces: list[str] = []
    size = 0
    for part in parts:
        piece = part if isinstance(part, str) else _text(resolve(part.path, lookup), part.path)
        size += len(piece)
        if size > MAX_RENDERED_CHARS:
            raise UnresolvedPath(f"the rendered text exceeds {MAX_RENDERED_CHARS:,} characters")
        pieces.append(piece)
    return "".join(pieces)


def render_known(parts: Iterable[str | Hole], lookup: Mapping[str, JSON]) -> str:
    """Return the text of a parsed template, in which unresolved placeholders stay.

    >>> render_known(parse_template("{{inputs.n}} of {{steps.a.output}}"), {"inputs": {"n": 3}})
    '3 of {{steps.a.output}}'
    """
    pieces: list[str] = []
    for part in parts:
        try:
            pieces.append(render([part], lookup))
        except UnresolvedPath:
            pieces.append(part if isinstance(part, str) else f"{{{{{part.path.text}}}}}")
    return "".join(pieces)


def _text(value: JSON, path: Path) -> str:
    if isinstance(value, str):
        return value
    if value is None and path.root == "feedback":
        return ""  # there is no feedback yet
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UnresolvedPath(f'"{path.text}" is not a JSON value: {error}') from None


# -----------------------------------------------------------------------------------------------------------
# The error for an expression that cannot be parsed, checked or evaluated.


class ExpressionError(ValueError):
    """The expression cannot be used; `position` to `end` is the invalid part."""

    parts: tuple[str | int, ...] = ()
    """The path after an unknown name."""

    def __init__(self, message: str, position: int, end: int, meant: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.meant = meant
        """The probable replacement for the invalid part."""
        self.position = position
        self.end = max(end, position + 1)
