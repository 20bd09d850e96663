"""References: every name in a template, path or expression, looked up before anything runs.

Rules
* `inputs.x` must be declared. `steps.x` must be in this scope or an outer one; it puts an edge on the
  step that lives where `x` lives. `item`, `index`, `iteration`, `feedback` and `digest` exist only where
  a map, a loop or a phase gives them.
* `steps.x.name` stands for `steps.x.output.name` when `x` declares the output; it is written out here,
  so that nobody after the compiler has to know the short form.
* Positions are those of the offending word inside the text, not of the text as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from fanfold.kernel.plan import Input
from fanfold.recipe.checks.look_alikes import warn_of_text
from fanfold.recipe.checks.outputs import declared_names, output_of, unnamed_field, why_not, why_not_into
from fanfold.recipe.drafts.draft import Draft, DraftScope, Words
from fanfold.recipe.language.known_outputs import Known, ObjectOf
from fanfold.text.diagnostics import Span
from fanfold.text.notes import Notes, quoted
from fanfold.text.patterns import regex
from fanfold.text.template import Hole, Path, TemplateError, parse_template
from fanfold.text.trees.tree import Scalar

if TYPE_CHECKING:
    from fanfold.recipe.expressions.evaluate import Reference, Wanted

_AFTER_STEPS = regex(r"steps\.([A-Za-z0-9_]*-[A-Za-z0-9_-]*)", re.ASCII)
STEP_FACTS = ("output", "status", "error")
_WHERE = {
    "item": "there is no map around this step; `for_each` gives one",
    "index": "there is no map around this step; `for_each` gives one",
    "iteration": "there is no loop around this step; `repeat` gives one",
    "feedback": "there is no loop around this step; `repeat` gives one",
    "digest": "only recipes with `phases` have a digest of earlier phases",
    "output": "only `until` sees `output`",
}


class TextPlace(Struct, frozen=True):
    """Where a text stands: whose it is, which steps it sees, which other names exist there."""

    draft: Draft | None
    """None for the output of the recipe."""
    scope: DraftScope
    names: frozenset[str]
    placing: bool = False
    """What is named here is given to an agent in full, so that it needs no summary of it."""


class _Wrong(Struct, frozen=True):
    """What is wrong with the rest of `steps.x…`, and what to do about it."""

    message: str
    hint: str
    lacks_output: bool = False
    """Whether `.output` before it is all that is missing."""


class IntoCall(Struct, frozen=True):
    """A path into the output of a sub-workflow, which is known only when that was read."""

    call: Draft
    parts: tuple[str | int, ...]
    at: Span
    code: str


class References:
    """Looks names up for one file, and remembers what was used."""

    def __init__(self, notes: Notes, inputs: Mapping[str, Input], inputs_known: bool) -> None:
        self.notes = notes
        self.inputs = inputs
        self.inputs_known = inputs_known
        """False when the declarations could not be read: then no input is called unknown."""
        self.input_words = {name.replace("-", "_"): name for name in inputs}
        """Inputs by the name that expressions use."""
        self.used_inputs: set[str] = set()
        self.elsewhere: dict[str, Draft] = {}
        """Steps inside groups, by id, for the hint to those who cannot see them."""
        self.into_calls: list[IntoCall] = []
        self.compared: list[tuple[str, Scalar, TextPlace]] = []
        """Expressions whose comparisons are judged when the sub-workflows were read."""

    # -- templates -----------------------------------------------------------------------------------

    def template(self, node: Scalar, place: TextPlace, *, only_roots: frozenset[str] | None = None) -> str:
        """Check a template and write short forms out."""
        text = node.text
        warn_of_text(node, place.names, self.notes)
        if "{{" not in text:
            return text
        problems: list[TemplateError] = []
        parts = parse_template(text, problems)
        for error in problems:
            span = node.span(error.position, error.end)
            self.notes.error("recipe.bad_template", error.message, span, error.hint)
        inserts: list[int] = []
        for part in parts:
            if self.notes.report.full:
                break  # nothing more would be kept
            if isinstance(part, Hole):
                if only_roots is None or part.path.root in only_roots:
                    inserts += self.path(part.path, node, part.start, place)
                else:
                    root = node.span(part.start, part.start + len(part.path.root))
                    hint = "use " + ", ".join(sorted(only_roots))
                    message = f"{quoted(part.path.root)} cannot be used in a glob"
                    self.notes.error("recipe.bad_template", message, root, hint)
        return _with_output(text, inserts)

    def path(self, path: Path, node: Scalar, start: int, place: TextPlace) -> list[int]:
        """Check one path that begins at character `start` of a text; where `.output` is to be inserted."""
        if path.root == "inputs":
            name = str(path.parts[0])
            at = start + len("inputs.")
            self._use_input(name, Words(node, at, at + len(name)))
            if (wrong := why_not_into(self.inputs.get(name), path.parts[1:])) is not None:
                where = node.span(at + len(name), start + len(path.text))
                self.notes.error("recipe.bad_template", wrong[0], where, wrong[1])
            return []
        if path.root == "steps":
            return self._step_path(path, node, start, place)
        if path.root not in place.names:
            root = node.span(start, start + len(path.root))
            message = f"{quoted(path.root)} means nothing here"
            step = place.scope.find(path.root)
            meant = _with_its_root(path.root, path.parts, is_input=path.root in self.inputs, step=step)
            hint = f"write {meant}" if meant else self._unknown_name_hint(path.root, place)
            fix = self.notes.fix(*root, meant) if meant else None
            self.notes.error("recipe.bad_template", message, root, hint, fix=fix)
        return []

    def _unknown_name_hint(self, name: str, place: TextPlace) -> str:
        renamed = place.draft.item_name if place.draft is not None else None
        if name == "item" and renamed is not None:
            return f"here the item is called {quoted(renamed)}"
        return _WHERE.get(name) or self.notes.did_you_mean(name, ("inputs", "steps", *sorted(place.names)))

    def _use_input(self, name: str, at: Words) -> None:
        self.used_inputs.add(name)
        if name not in self.inputs and self.inputs_known:
            hint = self.notes.did_you_mean(name, self.inputs) or "declare it under `inputs` at the top"
            self.notes.error("recipe.unknown_input", f"there is no input {quoted(name)}", at.span(), hint)

    def _step_path(self, path: Path, node: Scalar, start: int, place: TextPlace) -> list[int]:
        step_id, rest = str(path.parts[0]), path.parts[1:]
        at = start + len("steps.")
        after = at + len(step_id)
        target = place.scope.find(step_id)
        if target is None:
            self._unknown_step(step_id, Words(node, at, after), place)
            return []
        self._connect(place, target, Words(node, at, after), rest)
        problem = self._judge_parts(target, rest)
        if problem is not None:
            where = node.span(after + 1, start + len(path.text))
            self._refuse_parts("recipe.bad_template", target, problem, where, node.span(after, after))
            return []
        whole = Words(node, at, start + len(path.text))
        self._warn_of_unnamed(target, rest, whole)
        self._note_into_call(target, rest, whole, "recipe.bad_template")
        return [after] if _is_short(rest) else []

    # -- expressions ---------------------------------------------------------------------------------

    def expression(self, node: Scalar, place: TextPlace, wants: Wanted) -> str:
        """Check a CEL expression and write short forms out."""
        text = _without_braces(node.text)
        if isinstance(node.value, bool):
            return text
        # Many recipes have no expressions, and theirs is the costliest module to load.
        from fanfold.recipe.expressions.evaluate import check_expression
        from fanfold.recipe.expressions.expression_error import ExpressionError

        try:
            found = check_expression(
                text,
                inputs={name: one.type for name, one in self.inputs.items()},
                steps=_dashed_steps(text, place.scope),
                names=place.names,
                wants=wants,
            )
        except ExpressionError as error:
            where = node.span(error.position, error.end)
            word = text[error.position : error.end]
            step = place.scope.find_in_expression(word)
            rooted = _with_its_root(word, error.parts, is_input=word in self.input_words, step=step)
            meant = rooted or error.meant
            fix = self.notes.fix(*where, meant) if meant else None
            hint = f"write {meant}" if rooted else error.hint
            self.notes.error("recipe.bad_expression", error.message, where, hint, fix=fix)
            return text.strip()
        if found or place.names:
            self.compared.append((text, node, place))
        inserts: list[int] = []
        for reference in found:
            at = Words(node, reference.start, reference.end)
            if reference.name == "inputs" and reference.key:
                name = self.input_words.get(reference.key, reference.key)
                self._use_input(name, at)
                if (wrong := why_not_into(self.inputs.get(name), reference.parts)) is not None:
                    self.notes.error("recipe.bad_expression", wrong[0], at.span(), wrong[1])
            elif reference.name == "steps" and reference.key:
                inserts += self._step_in_expression(reference, at, place)
        return _with_output(text, inserts).strip()

    def refuse_impossible(self) -> None:
        """Refuse comparisons that can never be meant, now that everything about outputs is known."""
        if not self.compared:
            return
        from fanfold.recipe.checks.comparisons import impossible_comparisons
        from fanfold.recipe.checks.known_values import Viewpoint

        for text, node, place in self.compared:
            viewpoint = Viewpoint(self.inputs, place.draft, place.scope)
            for mistake in impossible_comparisons(text, viewpoint.look):
                where = node.span(mistake.start, mistake.end)
                fix = self.notes.fix(*where, mistake.meant) if mistake.meant else None
                self.notes.error("recipe.bad_expression", mistake.message, where, mistake.hint, fix=fix)

    def _step_in_expression(self, reference: Reference, at: Words, place: TextPlace) -> list[int]:
        target = place.scope.find_in_expression(reference.key)
        if target is None:
            self._unknown_step(reference.key, at, place)
            return []
        self._connect(place, target, at, reference.parts)
        problem = self._judge_parts(target, reference.parts)
        after = _end_of_name(at.node.text, reference.end)
        if problem is not None:
            behind = at.node.span(after, after)
            self._refuse_parts("recipe.bad_expression", target, problem, at.span(), behind)
            return []
        if "has(" not in at.node.text:  # who asks whether it is there knows that it may not be
            self._warn_of_unnamed(target, reference.parts, at)
        self._note_into_call(target, reference.parts, at, "recipe.bad_expression")
        return [after] if _is_short(reference.parts) else []

    def _refuse_parts(self, code: str, target: Draft, wrong: _Wrong, at: Span, behind_name: Span) -> None:
        fix = self.notes.fix(*behind_name, ".output") if wrong.lacks_output else None
        self.notes.error(code, f"steps.{target.id}: {wrong.message}", at, wrong.hint, fix=fix)

    def _warn_of_unnamed(self, target: Draft, parts: tuple[str | int, ...], at: Words) -> None:
        """A field that a schema allows and does not name is misspelled if one that it names is near."""
        inside = parts[1:] if parts[:1] == ("output",) else ()
        found = unnamed_field(output_of(target), inside)
        if found is None:
            return
        name, named = found
        if hint := self.notes.did_you_mean(name, named):
            message = f"steps.{target.id}: its `output_schema` names no field {quoted(name)}"
            self.notes.warning("recipe.unnamed_field", message, at.span(), hint)

    def _note_into_call(self, target: Draft, parts: tuple[str | int, ...], at: Words, code: str) -> None:
        if target.type == "workflow" and parts and parts[0] not in ("status", "error"):
            inside = parts[1:] if parts[0] == "output" else parts
            self.into_calls.append(IntoCall(target, inside, at.span(), code))

    # -- steps ---------------------------------------------------------------------------------------

    def _unknown_step(self, step_id: str, at: Words, place: TextPlace) -> None:
        hidden = self.elsewhere.get(step_id)
        if hidden is not None and hidden.scope.owner is not None:
            hint = hint_to_owner(hidden, hidden.scope.owner)
        else:
            own = _with_what_is_around(place.draft)  # which cannot wait for themselves
            visible = [
                name
                for scope in _outward(place.scope)
                for name, step in scope.by_id.items()
                if step not in own
            ]
            hint = self.notes.did_you_mean(step_id, visible)
        who = f"step {quoted(place.draft.id)}" if place.draft is not None else "the output"
        message = f"{who} refers to {quoted(step_id)}, which does not exist"
        self.notes.error("recipe.unknown_step", message, at.span(), hint)

    def _connect(self, place: TextPlace, target: Draft, at: Words, parts: tuple[str | int, ...]) -> None:
        """Note that a step is looked at, and who therefore comes after it."""
        target.used = True
        dependent = place.draft.climb(target.scope) if place.draft is not None else None
        target.readers[dependent.id if dependent is not None else ""] = None
        if dependent is None or place.draft is None:
            return  # the output of the recipe or of a group, or `until`, looks at its own steps
        dependent.implied.setdefault(target.id, (at, place.draft))
        if place.placing and dependent is place.draft and (not parts or parts[0] not in {"status", "error"}):
            dependent.placed.add(target.id)

    def _judge_parts(self, target: Draft, parts: tuple[str | int, ...]) -> _Wrong | None:
        if not parts:
            return _Wrong("say what of the step is meant", "add .output, .status or .error")
        first = parts[0]
        known = output_of(target)
        if first == "output":
            return self._judge_inside(known, parts[1:])
        if first in STEP_FACTS:
            return None
        if not target.entries.lacks("outputs") and "outputs" not in target.entries.nodes:
            return None  # what the step declares could not be read, and that was reported
        names = declared_names(target)
        if first in names:
            return self._judge_inside(known, parts)
        message = f"{quoted(str(first))} is not declared in its `outputs`"
        if isinstance(known, ObjectOf) and first in known.fields:
            return _Wrong(message, f"write steps.{target.id}.output.{first}", lacks_output=True)
        hint = self.notes.did_you_mean(str(first), (*STEP_FACTS, *names))
        return _Wrong(message, hint or "write .output for the whole")

    def _judge_inside(self, known: Known, parts: tuple[str | int, ...]) -> _Wrong | None:
        problem = why_not(known, parts, self.notes)
        return _Wrong(*problem) if problem is not None else None


def hint_to_owner(hidden: Draft, owner: Draft) -> str:
    """What to write instead of the name of a step inside a group."""
    if owner.phase:
        return f"it is inside phase {quoted(owner.id)}: write steps.{owner.id}.output.tasks.{hidden.id}"
    return f"it is inside group {quoted(owner.id)}; only the group can be referred to from here"


def _with_its_root(name: str, parts: tuple[str | int, ...], *, is_input: bool, step: Draft | None) -> str:
    """What to write for the bare name of an input or of a step; nothing for any other word."""
    if is_input:
        return f"inputs.{name}"
    if name in _WHERE or step is None:
        return ""
    return f"steps.{name}" if parts and parts[0] in STEP_FACTS else f"steps.{name}.output"


def _outward(scope: DraftScope) -> list[DraftScope]:
    found = []
    here: DraftScope | None = scope
    while here is not None:
        found.append(here)
        here = here.outer
    return found


def _with_what_is_around(draft: Draft | None) -> list[Draft]:
    found = []
    while draft is not None:
        found.append(draft)
        draft = draft.scope.owner
    return found


def _dashed_steps(text: str, scope: DraftScope) -> list[str]:
    """Steps whose `-` an expression would take for a minus; all that its error message needs to know."""
    words = _AFTER_STEPS.findall(text) if "-" in text else []
    return [word for word in words if scope.find(word) is not None]


def _without_braces(text: str) -> str:
    """`{{expression}}` means the expression. Blanks in their place keep every position where it was."""
    inside = text.strip()
    if not (inside.startswith("{{") and inside.endswith("}}") and len(inside) > 4):
        return text
    opening, closing = text.index("{{"), text.rindex("}}")
    return f"{text[:opening]}  {text[opening + 2 : closing]}  {text[closing + 2 :]}"


def _end_of_name(text: str, end: int) -> int:
    """Where the selection of a step ends: after `steps.x`, or after the bracket of `steps["x"]`."""
    rest = text[end:].lstrip()
    return len(text) - len(rest) + 1 if rest.startswith("]") else end


def _is_short(parts: tuple[str | int, ...]) -> bool:
    return bool(parts) and parts[0] not in STEP_FACTS


def _with_output(text: str, inserts: list[int]) -> str:
    for at in sorted(inserts, reverse=True):
        text = text[:at] + ".output" + text[at:]
    return text
