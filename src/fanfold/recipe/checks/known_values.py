"""What is known of a value before anything runs: of a path, of an expression, of an output put together.

Rules
* Only what is certain counts; everything else is anything. A skipped step gives null, which every check lets
  through, and a step whose failure is shown inline may give either.
* What a step gives may depend on what another gives, and on a sub-workflow that was not read yet: such a step
  keeps a question here (`Facts.gives`) that is answered when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from fanfold.kernel.lifecycle import STEP_STATUSES, TERMINAL
from fanfold.kernel.plan import JSON, Constant, Fields, Input, Output, Ref, Template
from fanfold.recipe.checks.outputs import output_of, single_output
from fanfold.recipe.drafts.draft import Draft, DraftScope
from fanfold.recipe.expressions.usage import Usage, Use, UsedCall, UsedLoop, read, tokens
from fanfold.recipe.language.known_outputs import (
    ANYTHING,
    TEXT,
    Known,
    ListOf,
    Number,
    ObjectOf,
    Text,
    Truth,
    known_from_type,
    part_of,
)
from fanfold.text.template import parse_path

Look = Callable[[str, tuple[str | int, ...]], Known]
"""What is known of a name and the path after it."""

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
    """What a text of a recipe sees: whose it is, and the steps around it."""

    inputs: Mapping[str, Input]
    draft: Draft | None
    scope: DraftScope

    def look(self, name: str, parts: tuple[str | int, ...]) -> Known:
        """What is known of `name.parts…`, in a template or an expression."""
        if name == "inputs":
            return self._input(parts)
        if name == "steps":
            return self._step(parts)
        if name == "output" and self.draft is not None:
            return part_of(single_output(self.draft), parts)
        return part_of(self._item(name), parts)

    def _input(self, parts: tuple[str | int, ...]) -> Known:
        word = str(parts[0]) if parts else ""
        declared = self.inputs.get(word) or next(
            (one for name, one in self.inputs.items() if name.replace("-", "_") == word), None
        )
        return part_of(known_from_type(declared.type, declared.enum), parts[1:]) if declared else ANYTHING

    def _step(self, parts: tuple[str | int, ...]) -> Known:
        word = str(parts[0]) if parts else ""
        target = self.scope.find(word) or self.scope.find_in_expression(word)
        if target is None or len(parts) < 2 or parts[1] == "error":
            return ANYTHING
        if parts[1] == "status":
            return _ENDED
        if target.facts.inline:
            return ANYTHING  # its output, or what it says of its failure
        return part_of(output_of(target), parts[2:] if parts[1] == "output" else parts[1:])

    def _item(self, name: str) -> Known:
        """The item of the nearest map that calls it so."""
        draft = self.draft
        while draft is not None and draft.item_name != name:
            draft = draft.scope.owner
        if draft is None or draft.facts.for_each is None:
            return ANYTHING
        around = Viewpoint(self.inputs, draft.scope.owner, draft.scope)
        return element(known_of_expression(draft.facts.for_each, around.look))


def known_of_expression(text: str, look: Look) -> Known:
    """What an expression gives, where it is one path with calls behind it; read from its words alone."""
    if not _is_chain(text):
        return ANYTHING
    usages = read(text)
    return _known(usages, look)


def known_of_output(output: Output | None, viewpoint: Viewpoint) -> Known:
    """What an `output` of a recipe or a group gives."""
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
    """What one of a list is."""
    return known.element if isinstance(known, ListOf) else ANYTHING


def with_variables(usages: Sequence[Usage], look: Look) -> Look:
    """`look`, and what is known of the variables of loops. A name that is bound twice may be either."""
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
    """One name and what is selected from it or called on it; no operator outside of brackets."""
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
