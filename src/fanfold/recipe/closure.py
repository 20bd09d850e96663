"""The closure of a recipe: every sub-workflow it can reach, each compiled once.

Rules
* A reference is resolved from the file that holds it. The same file is compiled once, however often and
  from wherever it is called; its problems are reported once, under its own name.
* A call is checked against the inputs its target declares.
* What a read-only step calls only reads: its target becomes a second plan, narrowed as a whole, beside the
  one that other steps call.
* Rings are refused, with the whole ring; so is a chain deeper than `MAX_NESTING_DEPTH`. The latter is
  reported at the call in the root recipe, because no file of the chain is wrong by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import cast

from msgspec import Struct, field

from fanfold.errors import FanfoldError
from fanfold.kernel.plan import MAX_NESTING_DEPTH, GroupAction, Plan, Step, WorkflowAction
from fanfold.recipe.assembly import assemble_plan
from fanfold.recipe.checks.outputs import output_of, why_not
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.inputs import literal_problem
from fanfold.recipe.language.known_outputs import ANYTHING, Known, ListOf
from fanfold.recipe.library import is_path
from fanfold.recipe.passes import read_unit, warn_unused
from fanfold.recipe.surroundings import FoundRecipe, Surroundings
from fanfold.text.notes import quoted
from fanfold.text.report import Report
from fanfold.text.trees.tree import Scalar
from fanfold.text.trees.yaml import RECIPE, TextFormat

MAX_SUB_WORKFLOWS = 256


class Frame(Struct):
    """A file on the way from the root to where we are, and the call it is at."""

    identity: str
    unit: Unit
    call: Draft | None = None


class Closure(Struct):
    """Everything reachable from one root."""

    around: Surroundings
    report: Report
    root_file: str
    units: dict[str, Unit | None] = field(default_factory=dict)
    """By identity of the file; None for a file that could not be read at all."""
    plans: dict[str, Plan] = field(default_factory=dict)
    way: list[Frame] = field(default_factory=list)
    looked_up: dict[tuple[str, str], FoundRecipe | FanfoldError] = field(default_factory=dict)
    """Answers of the library, by the folder asked from and the reference."""
    too_deep: set[int] = field(default_factory=set)
    readers: dict[str, tuple[Unit | None, str]] = field(default_factory=dict)
    """The same files, narrowed for read-only steps, and why one cannot be; by identity."""

    def enter(self, data: bytes, file: str, identity: str, *, form: TextFormat = RECIPE) -> Unit | None:
        """Compile a file and everything below it; `form` says which limits on text hold for it."""
        unit = self.units[identity] = self._enter(data, file, identity, form)
        return unit

    def _enter(
        self, data: bytes, file: str, identity: str, form: TextFormat, *, narrowed: bool = False
    ) -> Unit | None:
        errors_before = _errors(self.report)
        unit = read_unit(data, file, self.around, self.report, form=form, narrowed=narrowed)
        if not narrowed:
            self.units[identity] = unit
        if unit is None:
            return None
        frame = Frame(identity, unit)
        self.way.append(frame)
        for call in unit.calls:
            if self.report.full:
                break
            frame.call = call
            self._follow(call, unit)
        self.way.pop()
        for draft in unit.drafts():
            draft.facts.known_output = None  # more is known now than when the file was read
        unit.references.refuse_impossible()
        clean = _errors(self.report) == errors_before
        if clean:
            warn_unused(unit)
            unit.plan = assemble_plan(unit)
            unit.writes = any(step.posture == "writer" for step in unit.plan.steps)
        unit.claims = _first_claim(unit)
        return unit

    def called(self, root: Plan) -> dict[str, Plan]:
        """The plans that a run of `root` can reach: of a file that is only called to read, no other one."""
        waiting, found = [root], set[str]()
        while waiting:
            new = set(_calls(waiting.pop().steps)) - found
            found |= new
            waiting += [self.plans[key] for key in new]
        return {key: plan for key, plan in self.plans.items() if key in found}

    # -- one call ------------------------------------------------------------------------------------

    def _follow(self, call: Draft, unit: Unit) -> None:
        node = cast(Scalar, call.entries.nodes["workflow"])
        found = self._find(node, unit)
        if found is None:
            return
        identity = os.path.realpath(found.file)
        if any(frame.identity == identity for frame in self.way):
            self._report_ring(identity)
            return
        if identity not in self.units:
            if len(self.way) > MAX_NESTING_DEPTH:
                self._report_depth()
                return
            if len(self.units) > MAX_SUB_WORKFLOWS:
                message = f"a recipe reaches at most {MAX_SUB_WORKFLOWS} others"
                unit.notes.error("recipe.limit", message, node)
                return
            self._warn_shadowed(found, node, unit)
            self.enter(found.data, found.file, identity)
        child = self.units[identity]
        if child is None:
            return
        unit.height = max(unit.height, child.height + 1)
        if len(self.way) + child.height > MAX_NESTING_DEPTH:
            self._report_depth()
        called = child
        call.facts.gives = lambda: _output_of(called)
        call.facts.child_claims = child.claims
        call.facts.workflow = self._key(node.text, found, child)
        _check_call(call, child, unit)
        if _only_reads(call) and child.plan is not None and not child.claims:
            child = self._narrowed(call, found, identity, unit) or child
            call.facts.workflow += " (read-only)"
        call.facts.child_writes = child.writes
        if child.plan is not None:
            self.plans[call.facts.workflow] = child.plan

    def _narrowed(self, call: Draft, found: FoundRecipe, identity: str, unit: Unit) -> Unit | None:
        """The target of a read-only step, compiled as what only reads; its own problems are told already."""
        if identity not in self.readers:
            told, self.report = self.report, Report("recipe")
            child = self._enter(found.data, found.file, identity, RECIPE, narrowed=True)
            errors = (one for one in self.report.diagnostics if one.severity == "error")
            why = next((f"{one.file}:{one.range.start.line}: {one.message}" for one in errors), "")
            self.readers[identity] = child, why
            self.report = told
        child, why = self.readers[identity]
        if why:
            at = call.entries.nodes.get("posture") or call.entries.nodes["workflow"]
            message = f"the step is read-only, and its sub-workflow cannot be: {why}"
            unit.notes.error("recipe.conflicting_keys", message, at)
        return child

    def _find(self, node: Scalar, unit: Unit) -> FoundRecipe | None:
        text = node.text
        if os.path.isabs(text) or (is_path(text) and not text.endswith((".yaml", ".yml"))):
            message = f"{quoted(text)} is not a recipe"
            hint = "write name, name@version or ./file.yaml"
            unit.notes.error("recipe.unknown_workflow", message, node, hint)
            return None
        asked = (os.path.dirname(unit.source.file), text)
        if asked not in self.looked_up:
            try:
                self.looked_up[asked] = self.around.library.find(text, relative_to=unit.source.file)
            except FanfoldError as error:
                self.looked_up[asked] = error
        found = self.looked_up[asked]
        if isinstance(found, FanfoldError):
            unit.notes.error("recipe.unknown_workflow", found.message, node, found.hint)
            return None
        return found

    def _key(self, text: str, found: FoundRecipe, child: Unit) -> str:
        if not is_path(text):
            return f"{text.partition('@')[0]}@{child.version}"
        folder = os.path.dirname(os.path.abspath(self.root_file))
        return os.path.relpath(os.path.abspath(found.file), folder).replace(os.sep, "/")

    def _warn_shadowed(self, found: FoundRecipe, node: Scalar, unit: Unit) -> None:
        if found.shadowed:
            others = ", ".join(found.shadowed)
            message = f"{quoted(node.text)} is {found.file}, which shadows {others}"
            unit.notes.warning("recipe.shadowed", message, node)

    # -- problems ------------------------------------------------------------------------------------

    def _report_ring(self, identity: str) -> None:
        first = next(i for i, frame in enumerate(self.way) if frame.identity == identity)
        ring = [frame.unit.name or frame.unit.source.file for frame in self.way[first:]]
        frame = self.way[first]
        assert frame.call is not None
        chain = " → ".join(quoted(name) for name in [*ring, ring[0]])
        node = frame.call.entries.nodes["workflow"]
        frame.unit.notes.error("recipe.workflow_cycle", f"workflows call each other in a ring: {chain}", node)

    def _report_depth(self) -> None:
        root = self.way[0]
        assert root.call is not None
        if id(root.call) in self.too_deep:
            return
        self.too_deep.add(id(root.call))
        chain = " → ".join(quoted(frame.unit.name) for frame in self.way)
        message = f"workflows are nested more than {MAX_NESTING_DEPTH} deep: {chain} → …"
        root.unit.notes.error("recipe.depth", message, root.call.entries.nodes["workflow"])


def _calls(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        if isinstance(step.action, WorkflowAction):
            yield step.action.workflow
        elif isinstance(step.action, GroupAction):
            yield from _calls(step.action.steps)


def _errors(report: Report) -> int:
    return sum(1 for one in report.diagnostics if one.severity == "error") + report.dropped


def _check_call(call: Draft, child: Unit, unit: Unit) -> None:
    """What a step gives must be what its sub-workflow takes, and it may not be read-only if that writes."""
    _check_given(call, child, unit)
    _check_taken(call, child, unit)
    if _only_reads(call) and child.claims:
        at = call.entries.nodes.get("posture") or call.entries.nodes["workflow"]
        message = f"the step is read-only, but {quoted(child.claims)} of its sub-workflow has a write_set"
        unit.notes.error("recipe.conflicting_keys", message, at)


def _only_reads(call: Draft) -> bool:
    return call.narrowed or call.entries.text("posture") == "read_only"


def _check_given(call: Draft, child: Unit, unit: Unit) -> None:
    entries = call.entries
    if entries.has("inputs") and "inputs" not in entries.nodes:
        return
    given = call.facts.inputs
    complete = child.references.inputs_known
    for word, node in entries.pairs("inputs"):
        declared = child.inputs.get(word.text)
        if declared is None:
            if complete:
                hint = unit.notes.did_you_mean(word.text, child.inputs)
                hint = hint or "it takes " + (", ".join(list(child.inputs)[:20]) or "none")
                message = f"workflow {quoted(child.name)} has no input {quoted(word.text)}"
                unit.notes.error("recipe.unknown_input", message, word, hint)
            continue
        problem = literal_problem(declared, given[word.text])
        if problem is not None:
            unit.notes.error(problem[0], problem[1], node)
    missing = [one.name for one in child.inputs.values() if one.required and one.name not in given]
    if missing:
        at = entries.keys.get("inputs") or entries.nodes["workflow"]
        listed = ", ".join(quoted(name) for name in missing)
        unit.notes.error("recipe.missing_input", f"workflow {quoted(child.name)} also needs {listed}", at)


def _output_of(unit: Unit) -> Known:
    """What is known about the output of a whole recipe, seen from a step that calls it."""
    from fanfold.recipe.checks.known_values import Viewpoint, known_of_output

    last = unit.scope.last
    if unit.entries.has("output"):
        return known_of_output(unit.output, Viewpoint(unit.inputs, None, unit.scope))
    return output_of(last) if last is not None else ANYTHING


def _check_taken(call: Draft, child: Unit, unit: Unit) -> None:
    """What others take from a sub-workflow's output must be able to be there."""
    known = _output_of(child)
    names = call.entries.scalars("outputs")
    for item in names:
        problem = why_not(known, (item.text,), unit.notes)
        if problem is not None:
            unit.notes.error(
                "recipe.bad_value", f"workflow {quoted(child.name)}: {problem[0]}", item, problem[1]
            )
    for path in unit.references.into_calls:
        if path.call is not call or names:
            continue
        in_map = call.item_name is not None
        problem = why_not(ListOf(known) if in_map else known, path.parts, unit.notes)
        if problem is not None and not call.facts.inline:
            message = f"steps.{call.id} is workflow {quoted(child.name)}: {problem[0]}"
            unit.notes.error(path.code, message, path.at, problem[1])


def _first_claim(unit: Unit) -> str:
    for draft in unit.drafts():
        if draft.facts.posture == "writer" and draft.entries.scalars("write_set"):
            return draft.path
        if draft.facts.child_claims:
            return f"{draft.path}/{draft.facts.child_claims}"
    return ""
