"""Inputs of a recipe: their declaration, and the binding of given values.

Rules
* An input with neither `required` nor `default` is null if it is not given.
* `-i name=value` is JSON if the input has a type other than string, and text otherwise.
* Binding reports every problem at once, with the codes of the compiler, because the same messages are used on
  the command line, over HTTP and for models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON, Constant, Input, Plan, Value
from fanfold.language import tree
from fanfold.language.diagnostics import nearest
from fanfold.language.json_text import strict
from fanfold.language.keys import INPUT
from fanfold.language.tables import (
    IDENTIFIER,
    MAX_SHOWN_CHARS,
    Entries,
    Notes,
    Replacement,
    json_type,
    quoted,
    read_entries,
)
from fanfold.language.template import in_expression
from fanfold.language.terminal import shorten
from fanfold.language.tree import Node, Scalar, plain

_PLAIN = r"[A-Za-z0-9][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*"
"""A value that needs no quotes."""


def read_inputs(entries: Entries, notes: Notes) -> tuple[dict[str, Input], dict[str, Scalar], bool]:
    """Return the declared inputs by name, their positions, and whether all of them could be read."""
    declared: dict[str, Input] = {}
    named: dict[str, Scalar] = {}
    words: dict[str, str] = {}
    complete = not entries.has("inputs") or "inputs" in entries.nodes
    by_name = not isinstance(entries.nodes.get("inputs"), tree.Sequence)
    for node in entries.items("inputs"):
        if not by_name and _is_named_by_its_key(node, notes):
            complete = False
            continue
        item = read_entries(node, INPUT, notes, meant=_meant(node, by_name=by_name))
        name = item.nodes.get("name") if item is not None else None
        if item is None or not isinstance(name, Scalar):
            complete = False
            continue
        word = in_expression(name.text)
        if word in words:
            message = f"there is already an input {quoted(words[word])}"
            same = words[word] == name.text
            hint = "" if same else "expressions write _ for -, so both have one name there"
            notes.error("recipe.duplicate_id", message, name, hint)
            continue
        words[word] = name.text
        declared[name.text] = _read_input(name.text, item, notes)
        named[name.text] = name
    return declared, named, complete


def _meant(node: Node, *, by_name: bool) -> Replacement | None:
    """Return the probable meaning of `topic: str`, `topic: batteries` or `- topic` for an input."""
    if isinstance(node, tree.Sequence):
        if node.items and all(isinstance(item, Scalar) and _type_word(item.text) for item in node.items):
            return Replacement("{type: array}")
        return Replacement("{default: […]} for a value, or {enum: […]} for one of several")
    if not isinstance(node, Scalar) or node.value is None:
        return None
    if not by_name:
        named = Replacement(f"{{name: {node.text}}}", certain=True)
        return named if IDENTIFIER.fullmatch(node.text) else None
    if kind := _type_word(node.text):
        return Replacement(f"{{type: {kind}}}", certain=True)
    value = node.text if re.fullmatch(_PLAIN, node.text) else json.dumps(node.text, ensure_ascii=False)
    return Replacement(f"{{default: {shorten(value, MAX_SHOWN_CHARS)}}}")


def _is_named_by_its_key(node: Node, notes: Notes) -> bool:
    """Return whether an item is `- topic: …`, and report it; its only key resembles none of ours."""
    if not isinstance(node, tree.Mapping) or len(node.entries) != 1:
        return False
    (word, value), *_ = node.entries
    if word.text in INPUT.keys or notes.nearest(word.text, INPUT.keys) or not IDENTIFIER.fullmatch(word.text):
        return False
    kind = _type_word(value.text) if isinstance(value, Scalar) else ""
    hint = f"write {{name: {word.text}, {f'type: {kind}' if kind else '…'}}}"
    notes.error("recipe.unknown_key", f"an input has no key {quoted(word.text)}", word, hint)
    return True


def _type_word(text: str) -> str:
    """Return the type for a word; empty if there is none."""
    key = INPUT.keys["type"]
    return text if text in key.words else dict(key.meant).get(text.lower(), "")


def _read_input(name: str, entries: Entries, notes: Notes) -> Input:
    kind = entries.text("type")
    if entries.flag("required") and entries.has("default"):
        message = f"input {quoted(name)} is required and has a default"
        notes.error("recipe.conflicting_keys", message, entries.keys["default"], "keep one of them")
    enum: tuple[JSON, ...] | None = None
    if "enum" in entries.nodes:
        enum = tuple(plain(node) for node in entries.items("enum"))
        if not enum:
            notes.error("recipe.bad_value", f"{quoted('enum')} must not be empty", entries.nodes["enum"])
        for node, value in zip(entries.items("enum"), enum, strict=True):
            if not _has_type(value, kind):
                notes.error("recipe.bad_type", f"{_shown(value)} is not {_named(kind)}", node)
    default = entries.nodes.get("default")
    declared = Input(
        name=name,
        required=entries.flag("required"),
        default=plain(default) if default is not None else None,
        has_default=default is not None,
        type=kind,  # type: ignore[arg-type]  # the table allows these words only
        enum=enum,
        description=entries.text("description") or "",
    )
    problem = problem_with(declared, declared.default) if declared.default is not None else None
    if default is not None and problem is not None:
        notes.error(*problem, default)
    return declared


def problem_with(declared: Input, value: JSON) -> tuple[str, str] | None:
    """Return code and message of the problem with a value for an input, or None."""
    name = quoted(declared.name)
    try:
        strict(value, f"input {name}")
    except ValueError as error:
        return "recipe.bad_value", str(error)
    if not _has_type(value, declared.type):
        return "recipe.bad_type", f"input {name} must be {_named(declared.type)}, not {_shown(value)}"
    if declared.enum is not None and not any(_same(value, allowed) for allowed in declared.enum):
        allowed = ", ".join(_shown(one) for one in declared.enum[:20])
        return "recipe.bad_value", f"input {name} cannot be {_shown(value)}; use one of {allowed}"
    return None


def problems_with(
    declared: Sequence[Input], given: Mapping[str, JSON]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield every problem of the given inputs: name, code, message, hint."""
    by_name = {param.name: param for param in declared}
    for name in given:
        if name not in by_name:
            meant = nearest(name, by_name)
            hint = f"did you mean {quoted(meant)}?" if meant else _what_it_takes(declared)
            yield name, "recipe.unknown_input", f"there is no input {quoted(name)}", hint
    for param in declared:
        if (value := given.get(param.name)) is None and param.required:
            hint = param.description or _what_it_takes(declared)
            yield param.name, "recipe.missing_input", f"input {quoted(param.name)} is required", hint
        elif value is not None and (problem := problem_with(param, value)) is not None:
            yield param.name, *problem, param.description


def bind_known(plan: Plan, given: Mapping[str, JSON]) -> tuple[dict[str, JSON], list[str]]:
    """Return the inputs with a value, and a sentence for each missing required one.

    For forecasts: missing inputs are left out, so that nothing can rely on them. Invalid values are refused.
    """
    needed = [param.name for param in plan.inputs if param.required and given.get(param.name) is None]
    optional = tuple(
        replace(param, required=False) if param.name in needed else param for param in plan.inputs
    )
    bound = bind_inputs(replace(plan, inputs=optional), given)
    missing = [f'input "{name}" is required and was not given' for name in needed]
    return {name: value for name, value in bound.items() if name not in needed}, missing


def bind_inputs(plan: Plan, given: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return every declared input with its value; raises AuthorError that lists all problems.

    >>> bind_inputs(Plan(name="p", steps=(), inputs=(Input("depth", default="deep", has_default=True),)), {})
    {'depth': 'deep'}
    """
    if problems := list(problems_with(plan.inputs, given)):
        listed = [
            {"input": name, "code": code, "message": text, "hint": hint}
            for name, code, text, hint in problems
        ]
        message = "; ".join(text for _, _, text, _ in problems)
        missing = {name for name, code, _, _ in problems if code == "recipe.missing_input"}
        examples = {param.name: _example(param) for param in plan.inputs if param.name in missing}
        details = {"problems": listed, "examples": examples}
        raise AuthorError(problems[0][1], message, hint=problems[0][3], details=details)
    # A copy, independent of the caller's values.
    return {param.name: strict(given.get(param.name, param.default)) for param in plan.inputs}


def parse_input_text(declared: Input, text: str) -> JSON:
    """Return the value of `-i name=text`; raises AuthorError if the text is not JSON of the type."""
    if declared.type in {None, "string"}:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        message = f"input {quoted(declared.name)} must be {_named(declared.type)}, written as JSON"
        hint = f"for example {_EXAMPLES[cast(str, declared.type)]}"
        raise AuthorError("recipe.bad_type", message, hint=hint, details={"input": declared.name}) from None
    if (problem := problem_with(declared, value)) is not None and value is not None:
        raise AuthorError(*problem, details={"input": declared.name})
    return value


def literal_problem(declared: Input, value: Value) -> tuple[str, str] | None:
    """Return the problem with a step's value for a sub-workflow, as far as it is known now."""
    if isinstance(value, Constant) and value.value is not None:
        return problem_with(declared, value.value)
    return None


_EXAMPLES = {
    "integer": "3",
    "number": "0.5",
    "boolean": "true",
    "array": '["a", "b"]',
    "object": '{"key": "value"}',
}


def _example(declared: Input) -> str:
    """Return a possible value of an input, in the notation of `-i`."""
    if declared.enum:
        first = declared.enum[0]
        return first if isinstance(first, str) else json.dumps(first)
    return _EXAMPLES.get(declared.type or "", "…")


def _has_type(value: JSON, kind: str | None) -> bool:
    found = json_type(value)
    return kind is None or found == kind or (kind == "number" and found == "integer")


def _same(value: JSON, allowed: JSON) -> bool:
    """Return whether values are equal as JSON: true is not 1."""
    return isinstance(value, bool) == isinstance(allowed, bool) and bool(value == allowed)


def _named(kind: str | None) -> str:
    articles = {"integer": "an integer", "array": "an array", "object": "an object", "string": "text"}
    return articles.get(kind or "", f"a {kind}")


def _shown(value: JSON) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return shorten(text, 60)


def _what_it_takes(declared: Sequence[Input]) -> str:
    if not declared:
        return "the recipe takes no inputs"
    return "the recipe takes " + ", ".join(param.name for param in declared[:20])
