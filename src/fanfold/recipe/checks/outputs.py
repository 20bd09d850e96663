"""What is known about a step's output before anything runs, so that a path into it can be checked.

Only what is certain is used: text has no fields, a map gives a list, `outputs` without a schema names
every field there is, an approval and a phase have the fields the language says. Everything else may be
anything, and a path into it is judged when the run gets there.
"""

from __future__ import annotations

from typing import cast

from fanfold.kernel.plan import Input
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.language.known_outputs import (
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
from fanfold.text.notes import Notes, quoted
from fanfold.text.trees import tree

_COUNTS = ("length", "size", "count")
"""What other languages call the number of items."""


def declared_names(draft: Draft) -> dict[str, Known]:
    """The names of `outputs`, in order."""
    names = draft.facts.output_names
    if names is None:
        names = {item.text: cast(Known, ANYTHING) for item in draft.entries.scalars("outputs")}
        draft.facts.output_names = names
    return names


def output_of(draft: Draft) -> Known:
    """What is known about the output of a step, seen from a step that refers to it."""
    known = draft.facts.known_output
    if known is None:
        draft.facts.known_output = ANYTHING  # for a ring of steps that refer to each other
        known = single_output(draft)
        # A phase hands its `for_each` on to its tasks: the phase itself is no map.
        if draft.item_name is not None and not draft.phase:
            # In the place of an item that failed stands `{"error": …}`, whatever the others give.
            known = ListOf(ANYTHING if draft.facts.inline else known)
        draft.facts.known_output = known
    return known


def single_output(draft: Draft) -> Known:
    """The same for one item and one round of it."""
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
    """Why a path cannot lead into an input of its type (what is wrong, what to do), or None when it may."""
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
    """Why a path cannot lead into an output (what is wrong, what to do), or None when it may."""
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
    """The first field of a path that a schema does not name though it lets it be there; and what it names."""
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
