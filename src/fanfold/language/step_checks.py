"""The type of a step's output that is known before the run, to check paths into it.

Only certain facts are used: text has no fields, a map returns a list, `outputs` without a schema names all
fields, an approval and a phase have fixed fields. Everything else can be any type, and a path into it is
checked during the run.
"""

from __future__ import annotations

from typing import cast

from fanfold.kernel.plan import Input
from fanfold.language import tree
from fanfold.language.draft import Draft
from fanfold.language.keys import (
    ANYTHING,
    TEXT,
    Anything,
    Known,
    ListOf,
    ObjectOf,
    described,
    known_from_schema,
    known_from_type,
)
from fanfold.language.tables import Notes, quoted

_COUNTS = ("length", "size", "count")
"""Names for the number of items in other languages."""


def declared_names(draft: Draft) -> dict[str, Known]:
    """Return the names of `outputs`, in order."""
    names = draft.facts.output_names
    if names is None:
        names = {item.text: cast(Known, ANYTHING) for item in draft.entries.scalars("outputs")}
        draft.facts.output_names = names
    return names


def output_of(draft: Draft) -> Known:
    """Return the known type of a step's output, for a step that refers to it."""
    known = draft.facts.known_output
    if known is None:
        draft.facts.known_output = ANYTHING  # for a cycle of steps that refer to each other
        known = single_output(draft)
        # A phase passes its `for_each` to its tasks: the phase itself is no map.
        if draft.item_name is not None and not draft.phase:
            # A failed item has `{"error": …}` in its place, whatever the type of the others.
            known = ListOf(ANYTHING if draft.facts.inline else known)
        draft.facts.known_output = known
    return known


def single_output(draft: Draft) -> Known:
    """Return the known type of the output for one item and one round."""
    entries = draft.entries
    if draft.phase:
        tasks = draft.inner.drafts if draft.inner is not None else []
        return ObjectOf({"tasks": ObjectOf({task.id: output_of(task) for task in tasks}), "summary": TEXT})
    if not entries.lacks("output_schema") or draft.syntax is None:
        schema = entries.nodes.get("output_schema")
        return known_from_schema(tree.plain(schema)) if schema is not None else ANYTHING
    if not entries.lacks("outputs"):
        return ObjectOf(declared_names(draft)) if "outputs" in entries.nodes else ANYTHING
    if draft.facts.gives is not None:
        return draft.facts.gives()
    if draft.inner is not None:
        return _group_output(draft)
    return draft.syntax.gives_by(entries) if draft.syntax.gives_by is not None else draft.syntax.gives


def _group_output(draft: Draft) -> Known:
    written = draft.entries.nodes.get("output")
    if isinstance(written, tree.Mapping):
        return ObjectOf({word.text: ANYTHING for word, _ in written.entries})
    last = draft.inner.last if draft.inner is not None else None
    if draft.entries.has("output") or last is None:
        return ANYTHING
    return output_of(last)


def why_not_into(declared: Input | None, parts: tuple[str | int, ...]) -> tuple[str, str] | None:
    """Return why a path into an input is impossible (problem, hint), or None if it is possible."""
    known = known_from_type(declared.type, declared.enum) if declared is not None else ANYTHING
    if declared is None or not parts or isinstance(known, Anything | ObjectOf):
        return None
    name = f"inputs.{declared.name}"
    if not isinstance(known, ListOf):
        return f"{name} is {described(known)} and has no parts", ""
    if not isinstance(parts[0], str):
        return None
    counts = parts[0] in _COUNTS
    return (
        f"{name} is a list",
        f"size({name}) says how many it has" if counts else f"write {name}[0] for the first item",
    )


def why_not(known: Known, parts: tuple[str | int, ...], notes: Notes) -> tuple[str, str] | None:
    """Return why a path into an output is impossible (problem, hint), or None if it is possible."""
    for part in parts:
        if isinstance(known, Anything):
            return None
        if not isinstance(known, ListOf | ObjectOf):
            hint = "give the step an `output_schema` or `outputs`"
            return f"its output is {described(known)} and has no parts", hint
        if isinstance(known, ListOf):
            if isinstance(part, str):
                hint = "size(…) says how many it has" if part in _COUNTS else "write [0] for the first item"
                return f"its output is a list and has no field {quoted(part)}", hint
            known = known.element
            continue
        if not isinstance(part, str):
            return "its output is an object, not a list", "name a field"
        if part not in known.fields and known.open:
            return None
        if part not in known.fields:
            hint = notes.did_you_mean(part, known.fields) or "it has " + ", ".join(list(known.fields)[:20])
            return f"its output has no field {quoted(part)}", hint
        known = known.fields[part]
    return None


def unnamed_field(known: Known, parts: tuple[str | int, ...]) -> tuple[str, dict[str, Known]] | None:
    """Return the first field of a path that a schema allows but does not name, and the named fields."""
    for part in parts:
        if isinstance(known, ObjectOf) and isinstance(part, str):
            if part not in known.fields:
                return (part, known.fields) if known.open and known.fields else None
            known = known.fields[part]
        elif isinstance(known, ListOf) and isinstance(part, int):
            known = known.element
        else:
            return None
    return None
