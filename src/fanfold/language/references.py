"""References: every name in a template, path or expression, looked up before anything runs.

Rules
* `inputs.x` must be declared. `steps.x` must be in this scope or an outer one; it adds an edge to the step in
  the scope of `x`. `item`, `index`, `iteration`, `feedback` and `digest` exist only inside a map, a loop or a
  phase that provides them.
* `steps.x.name` stands for `steps.x.output.name` if `x` declares the output. The short form is expanded here,
  so that later code does not have to know it.
* Positions are those of the wrong word inside the text, not of the whole text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from fanfold.kernel.plan import Constant, Fields, Input, Output, Ref, Template, Value, find_rings
from fanfold.language import tree
from fanfold.language.diagnostics import Fix, Span, edits
from fanfold.language.draft import (
    Draft,
    DraftScope,
    TextSpan,
    declared_names,
    output_of,
    unnamed_field,
    why_not,
    why_not_into,
)
from fanfold.language.keys import Known, ObjectOf
from fanfold.language.tables import IDENTIFIER, Notes, quoted
from fanfold.language.template import (
    ExpressionError,
    Hole,
    Path,
    TemplateError,
    in_expression,
    is_state_path,
    parse_path,
    parse_template,
    sole_path,
)
from fanfold.language.tree import Node, Scalar, plain

if TYPE_CHECKING:
    from fanfold.language.expressions import Reference, Wanted

# -----------------------------------------------------------------------------------------------------------
# Text that looks like a path, an expression or logic of another language, and would stay text.
#
# Rules
# * A text that is completely a path or an expression, or nearly a path, is an error with a fix, because it is
#   never meant as literal text. `{literal: …}` is the notation for such a text among values.
# * Syntax of other languages inside a text, and words of a command line, are warnings.

CODE = "recipe.not_evaluated"
_TAG = r"\{[%#]-?\s*\w*"
_DOLLAR = r"\$(?=\{\{)"
_ROOTS = r"(?<![\w.])(?:steps|inputs|item|feedback)\s*[.\[]"
_OPERATOR = r"[-+*/%?]|[=!<>]=|[<>]|&&|\|\||\w\("
_PATH = r"(?a)([A-Za-z_][\w-]*)((?:\.[\w-]+|\[\d+\])*)"
_SUFFIXES = frozenset("json yaml yml csv txt md py js ts toml xml html log sh go rs java c h lock".split())
_PIECE = re.compile(
    r"""\s*(?:"(?P<double>[^"\\]*)"|'(?P<single>[^'\\]*)'|(?P<path>[A-Za-z_][\w.\[\]-]*))\s*(?:\+|$)"""
)
MIN_NAME_CHARS = 4
"""A shorter name resembles too many words."""
_VARIABLE = r"(?a)\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?"
_QUOTED = r"(?s)'[^']*'|\{\{.*?\}\}"
_SHELLS = frozenset(
    "sh bash dash zsh ksh fish ash busybox awk gawk perl ruby node python python3 env".split()
)
MAX_CHARS = 500
MAX_WORD_CHARS = 40
"""Longer texts are prose."""


def check_text(node: Scalar, names: Iterable[str], notes: Notes, *, strict: bool = True) -> None:
    """Refuse a text that is completely a path or an expression; warn about other syntax in the text.

    Without `strict` it is a warning, because a word of a command may look like anything.
    """
    text = node.text
    tag = re.search(_TAG, text) if "{" in text else None
    if tag is not None and ("%}" if tag[0][1] == "%" else "#}") in text[tag.end() :]:
        hint = "give the step a `when`, or compute the text in a `set` step"
        message = f"templates have no logic: {quoted(tag[0])} stays in the text as it is"
        notes.warning(CODE, message, node.span(*tag.span()), hint)
    if "$" in text and (found := re.search(_DOLLAR, text)) is not None:
        message = 'the "$" stays in the text: a template is written {{…}}'
        notes.warning(CODE, message, node.span(*found.span()), 'leave the "$" out')
    if "{{" not in text and len(text) <= MAX_CHARS and _mentions(text, names):
        _refuse_expression(node, names, notes, strict)


def _mentions(text: str, names: Iterable[str]) -> bool:
    if re.search(_ROOTS, text) is not None:
        return True
    return re.search(_OPERATOR, text) is not None and any(
        re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) for name in names
    )


def _refuse_expression(node: Scalar, names: Iterable[str], notes: Notes, strict: bool) -> None:
    text = node.text.strip()
    report = notes.error if strict else notes.warning
    code = "recipe.bad_value" if strict else CODE
    if is_state_path(text):
        fix = notes.fix(node.start, node.end, f'"{{{{{text}}}}}"') if strict else None
        report(code, f"this is text: {quoted(text)}", node, f"for the value, write {{{{{text}}}}}", fix)
        return
    from fanfold.language.expressions import reads_values  # slow to load, and rarely needed

    if not reads_values(text, names):
        return
    if (as_template := _as_template(text)) is not None:
        fix = notes.fix(node.start, node.end, json.dumps(as_template, ensure_ascii=False)) if strict else None
        hint = f"write {quoted(as_template)}"
    else:
        fix, value = None, "{value: " + quoted(text) + "}"
        hint = f"compute it in a step: set: {value}, and write {{{{steps.<id>.output.value}}}}"
    report(code, f"this is text, nothing is computed here: {quoted(text)}", node, hint, fix)


def _as_template(text: str) -> str | None:
    """Return a sum of texts and paths as a template: `item + ".py"` is `{{item}}.py`."""
    parts, at = [], 0
    while at < len(text):
        if (piece := _PIECE.match(text, at)) is None:
            return None
        literal = piece["double"] if piece["double"] is not None else piece["single"]
        parts.append(literal if literal is not None else f"{{{{{piece['path'].strip()}}}}}")
        at = piece.end()
    return "".join(parts)


def warn_of_braces(node: Node | None, what: str, hint: str, notes: Notes) -> None:
    """Warn of a template where none is filled in."""
    if isinstance(node, Scalar) and "{{" in node.text:
        at = node.text.index("{{")
        message = f"{what} is not a template: {quoted(node.text)} is used literally"
        notes.warning(CODE, message, node.span(at, len(node.text)), hint)


def warn_of_variables(words: list[Scalar], notes: Notes, *, whole: bool) -> None:
    """Warn of `$NAME` in words that no shell reads; `whole`: in one text, which is split into words."""
    program = words[0].text.rpartition("/")[2] if words else ""
    for node in words:
        if not whole and (program in _SHELLS or not re.fullmatch(_VARIABLE, node.text)):
            continue
        text = re.sub(_QUOTED, lambda hidden: " " * len(hidden[0]), node.text)
        if (found := re.search(_VARIABLE, text)) is not None:
            message = f"no shell reads this: {quoted(found[0])} is passed literally"
            hint = "write `shell:` for a script (`env_vars` passes your variables), or the value as {{…}}"
            notes.warning("recipe.shell_syntax", message, node.span(*found.span()), hint)
            return


# -----------------------------------------------------------------------------------------------------------

_AFTER_STEPS = r"(?a)steps\.([A-Za-z0-9_]*-[A-Za-z0-9_-]*)"
NEVER_PLAIN = frozenset({"feedback", "digest", "output"})
"""Names that are paths inside `{{…}}` only: as plain strings they are too common to mean one."""
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
    """The place of a text: its step, the visible steps, and the other names that exist there."""

    draft: Draft | None
    """None for the output of the recipe."""
    scope: DraftScope
    names: frozenset[str]
    placing: bool = False
    """Whether the named values are inserted completely for an agent, which then needs no summary of them."""


class _Wrong(Struct, frozen=True):
    """The problem with the rest of `steps.x…`, and a hint."""

    message: str
    hint: str
    lacks_output: bool = False
    """Whether only `.output` before it is missing."""


class IntoCall(Struct, frozen=True):
    """A path into the output of a sub-workflow, which is known only after that was read."""

    call: Draft
    parts: tuple[str | int, ...]
    at: Span
    code: str


class References:
    """Looks up names for one file, and records their use."""

    def __init__(self, notes: Notes, inputs: Mapping[str, Input], inputs_known: bool) -> None:
        self.notes = notes
        self.inputs = inputs
        self.inputs_known = inputs_known
        """False if the declarations could not be read: then no input is reported as unknown."""
        self.input_words = {in_expression(name): name for name in inputs}
        """Inputs by their name in expressions."""
        self.used_inputs: set[str] = set()
        self.elsewhere: dict[str, Draft] = {}
        """Steps inside groups, by id, for a hint where they are not visible."""
        self.into_calls: list[IntoCall] = []
        self.compared: list[tuple[str, Scalar, TextPlace]] = []
        """Expressions whose comparisons are checked after the sub-workflows were read."""

    def template(
        self, node: Scalar, place: TextPlace, *, only_roots: frozenset[str] | None = None, strict: bool = True
    ) -> str:
        """Check a template and expand short forms; with `strict`, a path without braces is an error."""
        text = node.text
        near = strict and "{{" not in text and "." in text and self.refuse_near_path(node, place)
        if not near:
            check_text(node, place.names, self.notes, strict=strict)
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
                break  # no more errors are kept
            if isinstance(part, Hole):
                if only_roots is None or part.path.root in only_roots:
                    inserts += self.path(part.path, node, part.start, place)
                else:
                    root = node.span(part.start, part.start + len(part.path.root))
                    hint = "use " + ", ".join(sorted(only_roots))
                    message = f"{quoted(part.path.root)} cannot be used in a glob"
                    self.notes.error("recipe.bad_template", message, root, hint)
        return _with_output(text, inserts)

    def refuse_near_path(self, node: Scalar, place: TextPlace) -> bool:
        """Refuse a value that is nearly a path: `itm` in a map, `step.ls.output`, `ls.output`."""
        if (written := re.fullmatch(_PATH, node.text)) is None or node.style:
            return False
        root, rest = written[1], written[2]
        first, _, after = rest[1:].partition(".")
        meant = ""
        if rest and first in self.inputs and self.notes.nearest(root, ("inputs",)):
            meant = f"inputs{rest}"
        elif rest and place.scope.find(first) and self.notes.nearest(root, ("steps",)):
            meant = f"steps{rest}"
        elif first in STEP_FACTS and place.scope.find(root):
            meant = f"steps.{node.text}"
        elif len(root) <= MAX_WORD_CHARS and not (rest and not after and first in _SUFFIXES):
            names = sorted(place.names - NEVER_PLAIN)
            known = [name for name in names if len(name) >= MIN_NAME_CHARS and root != f"{name}s"]
            near = next((name for name in known if edits(root, name) == 1), None)
            meant = f"{near}{rest}" if near else ""
        if not meant or meant == node.text:
            return False
        message = f"{quoted(node.text)} looks like a path, but no such name exists"
        hint = f"write {meant}, or {{literal: {node.text}}} for the text"
        fix = self.notes.fix(node.start, node.end, meant)
        self.notes.error("recipe.bad_value", message, node, hint, fix)
        return True

    def path(self, path: Path, node: Scalar, start: int, place: TextPlace) -> list[int]:
        """Check a path at character `start` of a text; return where `.output` must be inserted."""
        if path.root == "inputs":
            name = str(path.parts[0])
            at = start + len("inputs.")
            self._use_input(name, TextSpan(node, at, at + len(name)))
            if (wrong := why_not_into(self.inputs.get(name), path.parts[1:])) is not None:
                where = node.span(at + len(name), start + len(path.text))
                self.notes.error("recipe.bad_template", wrong[0], where, wrong[1])
            return []
        if path.root == "steps":
            step_id, parts = str(path.parts[0]), path.parts[1:]
            at = start + len("steps.")
            after, end = at + len(step_id), start + len(path.text)
            name_at = TextSpan(node, at, after)
            if (target := place.scope.find(step_id)) is None:
                self._unknown_step(step_id, name_at, place)
                return []
            self._connect(place, target, name_at, parts)
            wrong_at = TextSpan(node, after + 1, end)
            if self._refuse_parts("recipe.bad_template", target, parts, wrong_at, after):
                return []
            whole = TextSpan(node, at, end)
            self._warn_of_unnamed(target, parts, whole)
            self._note_into_call(target, parts, whole, "recipe.bad_template")
            return [after] if _is_short(parts) else []
        if path.root not in place.names:
            root = node.span(start, start + len(path.root))
            message = f"{quoted(path.root)} is unknown here"
            step = place.scope.find(path.root)
            meant = _with_its_root(path.root, path.parts, is_input=path.root in self.inputs, step=step)
            hint = f"write {meant}" if meant else self._unknown_name_hint(path.root, place)
            fix = self.notes.fix(*root, meant) if meant else None
            self.notes.error("recipe.bad_template", message, root, hint, fix=fix)
        return []

    def _unknown_name_hint(self, name: str, place: TextPlace) -> str:
        renamed = place.draft.item_name if place.draft is not None else None
        if name == "item" and renamed is not None:
            return f"the item is named {quoted(renamed)} here"
        return _WHERE.get(name) or self.notes.did_you_mean(name, ("inputs", "steps", *sorted(place.names)))

    def _use_input(self, name: str, at: TextSpan) -> None:
        self.used_inputs.add(name)
        if name not in self.inputs and self.inputs_known:
            hint = self.notes.did_you_mean(name, self.inputs) or "declare it under `inputs` at the top"
            if at.node.text == f"inputs.{name}":
                hint += f"; {{literal: {at.node.text}}} is the text"
            self.notes.error("recipe.unknown_input", f"there is no input {quoted(name)}", at.span(), hint)

    def expression(self, node: Scalar, place: TextPlace, wants: Wanted) -> str:
        """Check a CEL expression and expand short forms."""
        # An expression without its `{{…}}`; blanks in their place keep every position.
        inside = node.text.strip()
        if not (inside.startswith("{{") and inside.endswith("}}") and len(inside) > 4):
            text = node.text
        else:
            opening, closing = node.text.index("{{"), node.text.rindex("}}")
            text = f"{node.text[:opening]}  {node.text[opening + 2 : closing]}  {node.text[closing + 2 :]}"
        if isinstance(node.value, bool):
            return text
        # Imported here because many recipes have no expressions, and this module is the slowest to load.
        from fanfold.language.expressions import check_expression

        try:
            # The steps whose `-` an expression would read as a minus; for its error message.
            words = re.findall(_AFTER_STEPS, text) if "-" in text else []
            references = check_expression(
                text,
                inputs={name: declared.type for name, declared in self.inputs.items()},
                steps=[name for name in words if place.scope.find(name) is not None],
                names=place.names,
                wants=wants,
            )
        except ExpressionError as error:
            where = node.span(error.position, error.end)
            name = text[error.position : error.end]
            step = place.scope.find_in_expression(name)
            rooted = _with_its_root(name, error.parts, is_input=name in self.input_words, step=step)
            meant = rooted or error.meant
            fix = self.notes.fix(*where, meant) if meant else None
            hint = f"write {meant}" if rooted else error.hint
            self.notes.error("recipe.bad_expression", error.message, where, hint, fix=fix)
            return text.strip()
        if references or place.names:
            self.compared.append((text, node, place))
        inserts: list[int] = []
        for reference in references:
            at = TextSpan(node, reference.start, reference.end)
            if reference.name == "inputs" and reference.key:
                name = self.input_words.get(reference.key, reference.key)
                self._use_input(name, at)
                if (wrong := why_not_into(self.inputs.get(name), reference.parts)) is not None:
                    self.notes.error("recipe.bad_expression", wrong[0], at.span(), wrong[1])
            elif reference.name == "steps" and reference.key:
                inserts += self._step_in_expression(reference, at, place)
        return _with_output(text, inserts).strip()

    def refuse_impossible(self) -> None:
        """Refuse comparisons that can never be true, now that all outputs are known."""
        if not self.compared:
            return
        from fanfold.language.known_values import Viewpoint, impossible_comparisons

        for text, node, place in self.compared:
            viewpoint = Viewpoint(self.inputs, place.draft, place.scope)
            for mistake in impossible_comparisons(text, viewpoint.look):
                where = node.span(mistake.start, mistake.end)
                fix = self.notes.fix(*where, mistake.meant) if mistake.meant else None
                self.notes.error("recipe.bad_expression", mistake.message, where, mistake.hint, fix=fix)

    def _step_in_expression(self, reference: Reference, at: TextSpan, place: TextPlace) -> list[int]:
        if (target := place.scope.find_in_expression(reference.key)) is None:
            self._unknown_step(reference.key, at, place)
            return []
        self._connect(place, target, at, reference.parts)
        # The selection of a step ends after `steps.x`, or after the bracket of `steps["x"]`.
        rest = at.node.text[reference.end :].lstrip()
        after = len(at.node.text) - len(rest) + 1 if rest.startswith("]") else reference.end
        if self._refuse_parts("recipe.bad_expression", target, reference.parts, at, after):
            return []
        if "has(" not in at.node.text:  # an expression with `has()` expects that the field may be missing
            self._warn_of_unnamed(target, reference.parts, at)
        self._note_into_call(target, reference.parts, at, "recipe.bad_expression")
        return [after] if _is_short(reference.parts) else []

    def _refuse_parts(
        self, code: str, target: Draft, parts: tuple[str | int, ...], at: TextSpan, after: int
    ) -> bool:
        """Refuse a path into a step that cannot exist; `after` is where the name of the step ends."""
        if (wrong := self._judge_parts(target, parts)) is not None:
            fix = self.notes.fix(*at.node.span(after, after), ".output") if wrong.lacks_output else None
            self.notes.error(code, f"steps.{target.id}: {wrong.message}", at.span(), wrong.hint, fix=fix)
        return wrong is not None

    def _warn_of_unnamed(self, target: Draft, parts: tuple[str | int, ...], at: TextSpan) -> None:
        """Warn about a field that a schema does not name, if it is similar to one that the schema names."""
        inside = parts[1:] if parts[:1] == ("output",) else ()
        if (unnamed := unnamed_field(output_of(target), inside)) is None:
            return
        name, named = unnamed
        if hint := self.notes.did_you_mean(name, named):
            message = f"steps.{target.id}: its `output_schema` names no field {quoted(name)}"
            self.notes.warning("recipe.unnamed_field", message, at.span(), hint)

    def _note_into_call(self, target: Draft, parts: tuple[str | int, ...], at: TextSpan, code: str) -> None:
        if target.type == "workflow" and parts and parts[0] not in ("status", "error"):
            inside = parts[1:] if parts[0] == "output" else parts
            self.into_calls.append(IntoCall(target, inside, at.span(), code))

    def _unknown_step(self, step_id: str, at: TextSpan, place: TextPlace) -> None:
        if (hidden := self.elsewhere.get(step_id)) is not None and hidden.scope.owner is not None:
            hint = hint_to_owner(hidden, hidden.scope.owner)
        else:
            # This step and the groups around it cannot wait for themselves.
            own = [] if place.draft is None else list(place.draft.outward())
            visible = [
                name
                for scope in place.scope.outward()
                for name, step in scope.by_id.items()
                if step not in own
            ]
            hint = self.notes.did_you_mean(step_id, visible)
        who = f"step {quoted(place.draft.id)}" if place.draft is not None else "the output"
        message = f"{who} refers to {quoted(step_id)}, which does not exist"
        self.notes.error("recipe.unknown_step", message, at.span(), hint)

    def _connect(self, place: TextPlace, target: Draft, at: TextSpan, parts: tuple[str | int, ...]) -> None:
        """Record the use of a step, and the step that therefore depends on it."""
        target.used = True
        dependent = place.draft.climb(target.scope) if place.draft is not None else None
        target.readers[dependent.id if dependent is not None else ""] = None
        if dependent is None or place.draft is None:
            return  # outputs of the recipe or of a group, and `until`, read their own steps
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
            return None  # the step's declaration could not be read, which is already reported
        names = declared_names(target)
        if first in names:
            return self._judge_inside(known, parts)
        message = f"{quoted(str(first))} is not declared in its `outputs`"
        if isinstance(known, ObjectOf) and first in known.fields:
            return _Wrong(message, f"write steps.{target.id}.output.{first}", lacks_output=True)
        hint = self.notes.did_you_mean(str(first), (*STEP_FACTS, *names))
        return _Wrong(message, hint or "write .output for the whole")

    def _judge_inside(self, known: Known, parts: tuple[str | int, ...]) -> _Wrong | None:
        return None if (problem := why_not(known, parts, self.notes)) is None else _Wrong(*problem)


def hint_to_owner(hidden: Draft, owner: Draft) -> str:
    """Return what to write instead of the name of a step inside a group."""
    if owner.phase:
        return f"it is inside phase {quoted(owner.id)}: write steps.{owner.id}.output.tasks.{hidden.id}"
    return f"it is inside group {quoted(owner.id)}; only the group can be referred to from here"


def _with_its_root(name: str, parts: tuple[str | int, ...], *, is_input: bool, step: Draft | None) -> str:
    """Return the full path for the bare name of an input or a step; empty for any other word."""
    if is_input:
        return f"inputs.{name}"
    if name in _WHERE or step is None:
        return ""
    return f"steps.{name}" if parts and parts[0] in STEP_FACTS else f"steps.{name}.output"


def _is_short(parts: tuple[str | int, ...]) -> bool:
    return bool(parts) and parts[0] not in STEP_FACTS


def _with_output(text: str, inserts: list[int], start: int = 0) -> str:
    """Return a text that is at `start` in its node, with `.output` at these positions of the node."""
    for at in sorted(inserts, reverse=True):
        text = text[: at - start] + ".output" + text[at - start :]
    return text


# -----------------------------------------------------------------------------------------------------------
# Edges: the dependencies of each step, written or implied, and the check for cycles.
#
# Rules
# * A reference is an edge. A reference without a written edge is reported with a fix, because a reader of
#   `depends_on` should see the whole graph. It is not reported if other edges lead there through other steps.
# * A cycle is reported once, at its first declared step, with the names of all its steps.
# * Everything here is linear in steps and edges, because a generated recipe can have ten thousand of them.

MAX_RING_SHOWN = 20


def connect(scope: DraftScope, notes: Notes) -> None:
    """Set the edges of one scope in each draft's `facts.depends_on`."""
    forward = False
    for draft in scope.drafts:
        # The dependencies of a step, in the order of declaration.
        by_id = draft.scope.by_id
        names = dict.fromkeys([*draft.written, *draft.implied])
        found = {by_id[name].order: by_id[name] for name in names if name in by_id}
        if draft.phase and not draft.entries.has("depends_on") and draft.order > 0:
            previous = draft.scope.drafts[draft.order - 1]
            if previous.id in by_id:
                found[previous.order] = previous
        targets = [found[order] for order in sorted(found)]
        draft.facts.depends_on = tuple(target.id for target in targets)
        forward = forward or any(target.order >= draft.order for target in targets)
    for draft in scope.drafts:
        _warn_implied(draft, notes)
    if forward:  # edges that all lead to earlier steps cannot form a cycle
        graph = {draft.id: draft.facts.depends_on for draft in scope.by_id.values()}
        for ring in find_rings(graph):
            first = scope.by_id[ring[0]]
            shown = [quoted(step_id) for step_id in ring[:MAX_RING_SHOWN]]
            if len(ring) > MAX_RING_SHOWN:
                shown.append(f"… ({len(ring)} steps)")
            chain = " → ".join([*shown, quoted(first.id)])
            alone = f"step {quoted(first.id)} depends on itself: {chain}"
            message = alone if len(ring) == 1 else f"steps depend on each other in a cycle: {chain}"
            notes.error("recipe.cycle", message, first.at, "remove one of these edges")


def _warn_implied(draft: Draft, notes: Notes) -> None:
    by_id = draft.scope.by_id
    missing = [name for name in draft.implied if name not in draft.written and name != draft.id]
    if draft.phase and not draft.entries.has("depends_on"):
        # Consecutive phases wait for all earlier ones anyway.
        missing = [name for name in missing if name in by_id and by_id[name].order > draft.order]
    if draft.entries.has("depends_on") and "depends_on" not in draft.entries.nodes:
        return  # the list could not be read, so its content is unknown
    if missing and len(draft.written) + len(missing) > 1:
        reached = _reached(draft, min((by_id[name].order for name in missing if name in by_id), default=0))
        missing = [name for name in missing if name not in reached]
    for i, name in enumerate(missing):
        at, who = draft.implied[name]
        by = "" if who is draft else f", by its step {quoted(who.id)},"
        what = f"{'step ' if who is draft else ''}{quoted(draft.id)}{by}"
        message = f"{what} refers to {quoted(name)} without depending on it; the edge is implied"
        # One fix for all missing edges of a step, because two would each write their own `depends_on`.
        fix = _write_edges(draft, missing, notes) if i == 0 else None
        notes.warning("recipe.implied_edge", message, at.span(), f"add {quoted(name)} to its depends_on", fix)


def _reached(draft: Draft, first: int) -> set[str]:
    """Return the steps that other steps connect to this one, from the declaration position `first`.

    Earlier steps are not followed, because edges lead back. At worst this causes one more warning.
    """
    by_id = draft.scope.by_id
    found: set[str] = set()
    stack = [name for name in (*draft.written, *draft.implied) if name in by_id and name != draft.id]
    seen = set(stack)
    while stack:
        step = by_id[stack.pop()]
        for name in (*step.written, *step.implied) if step.order > first else ():
            if name in by_id:
                found.add(name)
                if name not in seen:
                    seen.add(name)
                    stack.append(name)
    return found


def _write_edges(draft: Draft, names: list[str], notes: Notes) -> Fix | None:
    """Return the fix that adds names to `depends_on`, in the author's style."""
    text = notes.source.text
    node = draft.entries.nodes.get("depends_on")
    if isinstance(node, tree.Sequence):
        if not node.items:
            return notes.fix(node.start + 1, node.start + 1, ", ".join(names))
        last = node.items[-1]
        if text[node.start : node.start + 1] == "[":
            return notes.fix(last.end, last.end, "".join(f", {name}" for name in names))
        dash = text.rfind("-", 0, last.start)
        indent = " " * (dash - (text.rfind("\n", 0, dash) + 1))
        return notes.fix(last.end, last.end, "".join(f"\n{indent}- {name}" for name in names))
    if isinstance(node, Scalar):
        return notes.fix(node.start, node.end, f"[{', '.join([node.text, *names])}]")
    identifier = draft.entries.nodes.get("id")
    word = draft.entries.keys.get("id")
    if not isinstance(identifier, Scalar) or word is None:
        return None
    listed = f"depends_on: [{', '.join(names)}]"
    mapping = draft.entries.mapping
    if text[mapping.start : mapping.start + 1] == "{":
        return notes.fix(identifier.end, identifier.end, f", {listed}")
    indent = " " * (word.start - (text.rfind("\n", 0, word.start) + 1))
    return notes.fix(identifier.end, identifier.end, f"\n{indent}{listed}")


# -----------------------------------------------------------------------------------------------------------
# Values of `inputs` and `output` maps: a reference, a template, or a literal.
#
# A plain string that is a state path is a reference and keeps its type. So does a string that is exactly one
# `{{path}}`. Other strings with `{{…}}` are templates. Anything else is a literal. `{literal: item}` is the
# notation for a word that would be a path.


def read_value(node: Node, references: References, place: TextPlace) -> Value:
    """Return one checked value of a map."""
    if isinstance(node, tree.Mapping) and len(node.entries) == 1 and node.entries[0][0].text == "literal":
        return Constant(plain(node.entries[0][1]))
    if not isinstance(node, Scalar):
        _refuse_references_inside(node, references, place)
        return Constant(plain(node))
    if not isinstance(node.value, str):
        return Constant(plain(node))
    text = node.text
    if "{{" in text:
        return _read_template(node, references, place)
    if _is_path(text, place):
        path = parse_path(text)
        start = text.index(path.text)
        return Ref(_with_output(path.text, references.path(path, node, start, place), start))
    if not references.refuse_near_path(node, place):
        check_text(node, place.names - NEVER_PLAIN, references.notes)
    return Constant(text)


def _refuse_references_inside(node: Node, references: References, place: TextPlace) -> None:
    """Refuse paths and templates inside a list or map, which is a literal as a whole."""
    parts = node.items if isinstance(node, tree.Sequence) else [part for _, part in node.entries]  # type: ignore[union-attr]  # no scalar
    for part in parts:
        if not isinstance(part, Scalar):
            _refuse_references_inside(part, references, place)
        elif isinstance(part.value, str) and ("{{" in part.text or _is_path(part.text, place)):
            message = f"a list or map is literal: {quoted(part.text)} would stay text"
            hint = "name the value, compute the whole in a `set` step, or write {literal: …}"
            references.notes.error("recipe.bad_value", message, part, hint)


def read_items(node: tree.Sequence, references: References, place: TextPlace) -> str:
    """Return a list of values as the expression that produces it."""
    return "[" + ", ".join(_as_expression(read_value(item, references, place)) for item in node.items) + "]"


def _as_expression(value: Value) -> str:
    if isinstance(value, Constant):
        return json.dumps(value.value, ensure_ascii=False)
    if isinstance(value, Ref):
        return in_expression(value.path)
    assert isinstance(value, Template)
    parts = [
        json.dumps(part, ensure_ascii=False)
        if isinstance(part, str)
        else f"string({in_expression(part.path.text)})"
        for part in parse_template(value.text)
    ]
    return " + ".join(parts) or '""'


def read_values(node: Node | None, references: References, place: TextPlace) -> dict[str, Value]:
    """Return a checked map of names to values."""
    if not isinstance(node, tree.Mapping):
        return {}
    values: dict[str, Value] = {}
    for word, value in node.entries:
        if not IDENTIFIER.fullmatch(word.text):
            hint = "use letters, digits, _ and -, beginning with a letter or _"
            message = f"{quoted(word.text)} cannot be the name of a value"
            references.notes.error("recipe.bad_value", message, word, hint)
        values[word.text] = read_value(value, references, place)
    return values


def read_output(node: Node, references: References, place: TextPlace) -> Output:
    """Return the output of a recipe or group: a template, or a map."""
    if isinstance(node, tree.Mapping):
        return Fields(read_values(node, references, place))
    assert isinstance(node, Scalar)
    if node.text.startswith(("steps.", "inputs.")):
        return read_value(node, references, place)
    return _read_template(node, references, place)


def _read_template(node: Scalar, references: References, place: TextPlace) -> Value:
    text = references.template(node, place)
    path = sole_path(text)
    return Ref(path.text) if path is not None else Template(text)


def _is_path(text: str, place: TextPlace) -> bool:
    """Return whether a text is a path; `as` adds another name for the item."""
    if is_state_path(text):
        return True
    root = text.partition(".")[0].partition("[")[0]
    return root in place.names and root not in NEVER_PLAIN and is_state_path(text, root)
