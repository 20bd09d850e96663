"""Survey: reads every step of a scope, its name and its type.

Rules
* The key that defines the step's work (`prompt`, `run`, `steps` …; see the table of types) decides its type.
  Two such keys, or another `type`, are a conflict.
* A key that has no meaning for the type is a conflict at that key and not silently ignored. An author who
  writes `retry` on a group expects an effect.
* A step with an unknown type keeps everything else, so that its other problems are found too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from fanfold.language.draft import Draft, DraftScope
from fanfold.language.keys import REPEAT, StepSyntax
from fanfold.language.leaf_steps import STEPS
from fanfold.language.tables import (
    Entries,
    Key,
    Notes,
    listed,
    quoted,
    read_entries,
    read_inner,
    with_article,
)
from fanfold.language.template import TemplateError, in_expression, parse_path
from fanfold.language.tree import Node, Scalar

Highs: TypeAlias = Mapping[str, int]
RESERVED_NAMES = frozenset({"inputs", "steps", "index", "iteration", "feedback", "digest", "output"})
"""Names that already have a meaning and cannot name an item."""

EXPRESSION_WORDS = frozenset(
    "true false null in bool bytes double dyn int list map null_type string type uint".split()
)
"""Names that expressions cannot declare. Other reserved words of CEL, such as `package`, still work in
templates, and an expression that uses one reports it."""


def survey_steps(
    nodes: Iterable[Node], scope: DraftScope, notes: Notes, prefix: str, highs: Highs, *, narrowed: bool
) -> None:
    """Read the steps of one scope, and of the groups inside it; `highs` are the maximum limits."""
    for node in nodes:
        entries = read_entries(node, STEPS.shape, notes, highs)
        if entries is not None:
            draft = new_draft(entries, scope, notes, prefix)
            draft.narrowed = narrowed
            entries = draft.entries
            draft.syntax = _type_of(draft, notes)
            survey_map(draft, notes)
            _check_slots(draft, notes)
            draft.repeat = read_inner(entries, "repeat", REPEAT, notes)
            _check_exhausted(draft, notes)
            for item in entries.scalars("depends_on"):
                draft.written.setdefault(item.text, item)
            if "steps" in entries.nodes:
                survey_body(draft, entries.items("steps"), notes, highs)


def new_draft(entries: Entries, scope: DraftScope, notes: Notes, prefix: str) -> Draft:
    """Name a step and add it to its scope; duplicate names are reported at the later one."""
    node = entries.nodes.get("id")
    step_id = node.text if isinstance(node, Scalar) else ""
    draft = Draft(step_id, entries, scope, prefix + step_id)
    scope.drafts.append(draft)
    if isinstance(node, Scalar):
        spelled = in_expression(step_id)
        other = scope.by_expression_name.get(spelled)
        if other is None:
            scope.by_id[step_id] = draft
            scope.by_expression_name[spelled] = draft
        elif other.id == step_id:
            notes.error("recipe.duplicate_id", f"there is already a step {quoted(step_id)} here", node)
        else:
            message = f"{quoted(step_id)} and {quoted(other.id)} are the same name in expressions"
            notes.error("recipe.duplicate_id", message, node, "expressions write _ for -; choose another id")
            scope.by_id[step_id] = draft
    return draft


def survey_map(draft: Draft, notes: Notes) -> None:
    """Read `for_each`, `as` and `max_items` of a step or a phase."""
    entries = draft.entries
    if not entries.lacks("for_each"):
        draft.item_name = _item_name(entries, notes)
        # Check that `key` is a path that starts with the item.
        item_name = draft.item_name
        node = entries.nodes.get("key")
        if isinstance(node, Scalar) and key_path(entries).partition(".")[0].partition("[")[0] != item_name:
            hint = f"write {item_name}, or a field of it such as {item_name}.name"
            notes.error("recipe.bad_value", f"{quoted(node.text)} is no path in the item", node, hint)
        return
    for name in ("as", "key", "max_items"):
        if entries.has(name):
            message = f"{quoted(name)} belongs to {quoted('for_each')}, which is not here"
            notes.error("recipe.conflicting_keys", message, entries.keys[name])


def _check_slots(draft: Draft, notes: Notes) -> None:
    """Refuse `max_concurrency` on a single step, which runs one attempt at a time."""
    entries = draft.entries
    many = any(not entries.lacks(name) for name in ("for_each", "repeat", "steps", "workflow"))
    if entries.has("max_concurrency") and not many:
        message = '"max_concurrency" belongs to a map, a group or a loop'
        hint = "for the whole recipe, write it at the top"
        notes.error("recipe.conflicting_keys", message, entries.keys["max_concurrency"], hint)


def key_path(entries: Entries) -> str:
    """Return the path in `key`, with or without braces; empty if it is not a path."""
    text = (entries.text("key") or "").strip()
    text = text[2:-2].strip() if text.startswith("{{") and text.endswith("}}") else text
    try:
        return parse_path(text).text if text else ""
    except TemplateError:
        return ""


def _item_name(entries: Entries, notes: Notes) -> str:
    name = entries.text("as")
    if name is None:
        return "item"
    if name in RESERVED_NAMES or name in EXPRESSION_WORDS or "-" in name:
        message = f"an item cannot be called {quoted(name)}"
        hint = "use letters, digits and _" if "-" in name else "the word has a meaning already"
        notes.error("recipe.bad_value", message, entries.nodes["as"], hint)
    return name


def _check_exhausted(draft: Draft, notes: Notes) -> None:
    """Check that `on_exhausted` is inside `repeat` or next to it, only once."""
    entries = draft.entries
    if not entries.has("on_exhausted"):
        return
    message = ""
    if draft.repeat is None:
        message = f"{quoted('on_exhausted')} belongs to {quoted('repeat')}, which is not here"
    elif draft.repeat.has("on_exhausted"):
        message = f"{quoted('on_exhausted')} is given twice, inside {quoted('repeat')} and beside it"
    if message:
        notes.error("recipe.conflicting_keys", message, entries.keys["on_exhausted"])


def survey_body(
    draft: Draft, nodes: list[Node], notes: Notes, highs: Highs, extra: frozenset[str] = frozenset()
) -> None:
    """Read the steps inside a group or phase."""
    draft.inner = DraftScope(draft, draft.scope, draft.names() | extra, draft.items())
    narrowed = draft.narrowed or draft.entries.text("posture") == "read_only"
    key = "tasks" if draft.phase else "steps"
    if not nodes and key in draft.entries.nodes:
        notes.error("recipe.bad_value", f"{quoted(key)} must not be empty", draft.entries.nodes[key])
    survey_steps(nodes, draft.inner, notes, draft.path + "/", highs, narrowed=narrowed)


def _type_of(draft: Draft, notes: Notes) -> StepSyntax | None:
    entries = draft.entries
    deciding = [name for name in entries.keys if name in STEPS.deciding]
    if "gate" in deciding:  # then the prompt is the question for a person
        deciding = [name for name in deciding if name != "prompt"]
    type_name = entries.text("type")
    if type_name is not None:
        foreign = _refuse_foreign_keys(entries, {type_name}, notes)
        _need_deciding_key(draft, STEPS.syntaxes[type_name], notes, quiet=foreign)
        return STEPS.syntaxes[type_name]
    if not deciding and entries.mapping.get("to_be_written") is not None:
        return None  # already refused
    if not deciding:
        hinted = next((STEPS.hinting[name] for name in entries.keys if name in STEPS.hinting), None)
        if hinted is not None:
            _refuse_foreign_keys(entries, {hinted}, notes)
            return STEPS.syntaxes[hinted]
        if entries.lacks("type") and not any(name in entries.meant for name in STEPS.deciding):
            message = (
                f"step {quoted(draft.id)} does not say what it does" if draft.id else "the step does nothing"
            )
            hint = f"give it one of {listed(list(STEPS.deciding), 'or')}"
            notes.error("recipe.missing_key", message, entries.head(), hint)
        return None
    first, *others = deciding
    for name in others:
        if STEPS.deciding[name] == STEPS.deciding[first]:
            one, other = (quoted(entries.keys[key].text) for key in (first, name))
            message = f"a step has {one} or {other}, not both"
            notes.error("recipe.conflicting_keys", message, entries.keys[name], "keep one of them")
            continue
        message = f"{_makes(entries, name)}, {quoted(entries.keys[first].text)} "
        message += f"{with_article(STEPS.deciding[first])} step"
        notes.error("recipe.conflicting_keys", message, entries.keys[name], "make two steps of it")
    # Keys of either type are accepted, or one mistake would be reported many times.
    _refuse_foreign_keys(entries, {STEPS.deciding[name] for name in deciding}, notes)
    return STEPS.syntaxes[STEPS.deciding[first]]


def _makes(entries: Entries, name: str) -> str:
    return f"{quoted(entries.keys[name].text)} makes it {with_article(STEPS.deciding[name])} step"


def _refuse_foreign_keys(entries: Entries, types: set[str], notes: Notes) -> bool:
    """Report keys that none of the types has; return whether one of them decides a type."""
    decided_otherwise = False
    for name, word in entries.keys.items():
        key = entries.shape.keys[name]
        if not key.only or not types.isdisjoint(key.only):
            continue
        the_type = with_article(min(types))
        if name in STEPS.deciding:
            decided_otherwise = True
            message = f"{_makes(entries, name)}, but it is {the_type} step"
        else:
            message = f"{quoted(word.text)} means nothing on {the_type} step"
        notes.error("recipe.conflicting_keys", message, word, _where_instead(name, key, types))
    return decided_otherwise


def _where_instead(name: str, key: Key, types: set[str]) -> str:
    if name == "retry":
        return f"only {listed(key.only)} steps have attempts to retry"
    return next((hint for kind in sorted(types) if (hint := STEPS.syntaxes[kind].instead.get(name))), "")


def _need_deciding_key(draft: Draft, syntax: StepSyntax, notes: Notes, *, quiet: bool) -> None:
    """Report a written type without its deciding key, unless a weaker key is enough."""
    if syntax.hinted_by or quiet:
        return
    if all(draft.entries.lacks(name) for name in syntax.decided_by):
        needed = listed([quoted(name) for name in syntax.decided_by], "or")
        notes.error(
            "recipe.missing_key", f"{with_article(syntax.name)} step needs {needed}", draft.entries.head()
        )
