"""Compiles the text of a recipe to the plan that the kernel schedules, or reports all its problems.

    compiled = compile_recipe(data, "research.yaml", around)
    compiled.plan        # None when there are errors
    compiled.report      # all problems of the file and of its sub-workflows, with positions

Compiling executes nothing and reads no files except sub-workflows.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace

from fanfold.errors import FanfoldError
from fanfold.kernel.plan import (
    MAX_NESTING_DEPTH,
    USUAL_MAX_ITEMS,
    USUAL_RETRY,
    Action,
    Budget,
    GroupAction,
    Limits,
    Plan,
    Posture,
    Repeat,
    Step,
    WorkflowAction,
)
from fanfold.language import yaml_text
from fanfold.language.checks import ONCE, Defaults, Unit, check_common, check_tag, read_retry, settle_posture
from fanfold.language.diagnostics import Report, Source
from fanfold.language.draft import (
    CompileContext,
    Draft,
    DraftScope,
    FoundRecipe,
    declared_names,
    find_role,
    output_of,
    why_not,
)
from fanfold.language.inputs import literal_problem, read_inputs
from fanfold.language.keys import ANYTHING, BUDGET, DEFAULTS, LIMITS, RECIPE, Known, ListOf
from fanfold.language.leaf_steps import STEPS, LeafGrammar, WrittenStep, key_path, survey_steps
from fanfold.language.library import is_path, said_by_file
from fanfold.language.references import References, TextPlace, connect, read_output, warn_of_braces
from fanfold.language.tables import Entries, Notes, quoted, read_entries, read_inner
from fanfold.language.tree import Scalar, plain
from fanfold.language.yaml_text import MAX_BYTES

# -----------------------------------------------------------------------------------------------------------
# Assembly of the plan from checked drafts. Nothing is checked here: every problem was reported before.


def assemble_plan(unit: Unit) -> Plan:
    """Return the plan of one file; `Closure` adds its sub-workflows."""
    entries = unit.entries
    return Plan(
        name=unit.name,
        version=unit.version,
        description=entries.text("description") or "",
        inputs=tuple(unit.inputs.values()),
        steps=assemble_steps(unit.scope, unit),
        output=unit.output,
        limits=unit.limits,
        phased=unit.phased,
        metadata=plain(entries.nodes["metadata"]) if "metadata" in entries.nodes else {},
        source=unit.source.text if len(unit.source.text) <= MAX_BYTES else "",
        source_hash=unit.source_hash,
    )


def assemble_steps(scope: DraftScope, unit: Unit) -> tuple[Step, ...]:
    """Return the steps of one scope, in the order of declaration."""
    return tuple(_assemble_step(draft, unit) for draft in scope.drafts)


def _assemble_step(draft: Draft, unit: Unit) -> Step:
    if draft.phase:
        from fanfold.language.phases import lower_phase  # most recipes have none

        assert draft.inner is not None
        return lower_phase(draft, assemble_steps(draft.inner, unit), unit)
    facts = draft.facts
    entries = draft.entries
    action = _action(draft, unit)
    attempting = draft.syntax is not None and draft.syntax.attempts
    defaults = unit.defaults
    timeout_ms = entries.milliseconds("timeout")
    return Step(
        id=draft.id,
        action=action,
        description=entries.text("description") or "",
        depends_on=facts.depends_on,
        when=facts.when,
        for_each=facts.for_each,
        item_name=draft.item_name or "item",
        key=key_path(entries) if entries.has("key") else "",
        max_items=entries.integer("max_items") or USUAL_MAX_ITEMS,
        max_concurrency=entries.integer("max_concurrency"),
        repeat=_repeat(draft),
        posture=_posture(draft, action),
        read_set=facts.read_set,
        write_set=facts.write_set,
        templated_sets=facts.templated_sets,
        workspace_mode=facts.workspace_mode,
        merge=entries.text("merge") or "auto",  # type: ignore[arg-type]  # the table allows these words only
        on_conflict=entries.text("on_conflict") or "fail",  # type: ignore[arg-type]  # checked words
        require_changes=entries.flag("require_changes"),
        output_schema=facts.output_schema,
        outputs=tuple(declared_names(draft)),
        inputs=facts.inputs,
        timeout_ms=defaults.timeout_ms if timeout_ms is None and attempting else timeout_ms,
        # Groups, workflows and approvals have no attempts of their own.
        retry=facts.retry or defaults.retry or USUAL_RETRY if attempting else ONCE,
        on_failure=entries.text("on_failure") or defaults.on_failure,  # type: ignore[arg-type]  # checked words
        read_by=_read_by(draft) if facts.inline else (),
        cache=entries.flag("cache"),
        runs_on=entries.text("runs_on") or (defaults.runs_on if attempting else ""),
    )


def _read_by(draft: Draft) -> tuple[str, ...]:
    """Return the readers of the step's output: by a reference, by an agent's summary, by its phase."""
    owner = draft.scope.owner
    readers = [
        other.id
        for other in draft.scope.drafts
        if other.id in draft.readers
        or (
            other.type == "agent"
            and draft.id in other.facts.depends_on
            and other.entries.text("context") != "none"
        )
    ]
    return (*readers, "") if "" in draft.readers or (owner is not None and owner.phase) else tuple(readers)


def _repeat(draft: Draft) -> Repeat | None:
    if draft.repeat is None:
        return None
    exhausted = draft.repeat.text("on_exhausted") or draft.entries.text("on_exhausted") or "fail"
    return Repeat(
        until=draft.facts.until,
        max_iterations=draft.repeat.integer("max_iterations") or 2,
        on_exhausted=exhausted,  # type: ignore[arg-type]  # checked words
    )


def _posture(draft: Draft, action: Action) -> Posture:
    if isinstance(action, GroupAction):
        return "writer" if any(step.posture == "writer" for step in action.steps) else "read_only"
    if isinstance(action, WorkflowAction):
        return "writer" if draft.facts.child_writes else "read_only"
    return draft.facts.posture


def _action(draft: Draft, unit: Unit) -> Action:
    if draft.inner is not None:
        return GroupAction(steps=assemble_steps(draft.inner, unit), output=draft.facts.output)
    assert draft.type is not None
    grammar = STEPS.grammar(draft.type)
    if isinstance(grammar, LeafGrammar):
        return grammar.action(draft)
    return WorkflowAction(workflow=draft.facts.workflow)


# -----------------------------------------------------------------------------------------------------------
# Compilation of one file: read it, check everything in it, and find its calls.
#
# Each pass needs the results of the one before for the whole file: survey (the steps), check (their content
# and names), connect (edges and cycles). Assembly comes last, when the sub-workflows are known, and only
# without errors.

DEFAULT_MAX_STEPS = 1_000


def read_unit(
    data: bytes,
    file: str,
    around: CompileContext,
    report: Report,
    *,
    form: yaml_text.TextFormat = yaml_text.RECIPE,
    narrowed: bool = False,
) -> Unit | None:
    """Read and check one file; None if the file is not a map of keys. `narrowed`: its caller is read-only."""
    tree, source, problems = yaml_text.parse_yaml(data, file, form)
    report.extend(problems)
    notes = Notes(report, source)
    entries = read_entries(tree, RECIPE, notes, around.ceilings.highs) if tree is not None else None
    if entries is None:
        return None
    inputs, input_nodes, complete = read_inputs(entries, notes)
    references = References(notes, inputs, complete)
    unit = Unit(
        source=source,
        notes=notes,
        around=around,
        entries=entries,
        references=references,
        inputs=inputs,
        input_nodes=input_nodes,
        source_hash=_sha256(data),
        narrowed=narrowed,
        file_name=said_by_file(file)[0] or "",
    )
    if not unit.name and entries.lacks("name"):
        hint = "its file name is not a valid name: use lower-case letters, digits, - and _"
        notes.error("recipe.missing_key", 'a recipe needs "name"', entries.head(), hint)
    unit.limits = _read_limits(unit)
    unit.defaults = _read_defaults(unit)
    _survey(unit)
    _check(unit)
    return unit


def _sha256(data: bytes) -> str:
    """Return the hash from the interpreter's own module if possible, because loading OpenSSL is slow."""
    for module in ("_sha2", "_sha256"):
        try:
            return str(importlib.import_module(module).sha256(data).hexdigest())
        except ImportError:
            continue
    return str(importlib.import_module("hashlib").sha256(data).hexdigest())


def _read_limits(unit: Unit) -> Limits:
    entries = read_inner(unit.entries, "limits", LIMITS, unit.notes, unit.around.ceilings.highs)
    if entries is not None and entries.has("max_concurrency") and unit.entries.has("max_concurrency"):
        message = '"max_concurrency" is in `limits` too'
        at = unit.entries.keys["max_concurrency"]
        unit.notes.error("recipe.conflicting_keys", message, at, "keep one of them")
    short = unit.entries.integer("max_concurrency")
    if entries is None:
        return Limits(max_concurrency=short)
    return Limits(
        max_concurrency=entries.integer("max_concurrency") or short,
        max_agents=entries.integer("max_agents"),
        max_steps=entries.integer("max_steps"),
        timeout_ms=entries.milliseconds("timeout"),
        outage_ms=entries.milliseconds("outage"),
        budget=_read_budget(entries, unit.notes),
    )


def _read_budget(limits: Entries, notes: Notes) -> Budget:
    entries = read_inner(limits, "budget", BUDGET, notes)
    usd = entries.nodes.get("usd") if entries is not None else None
    amount = usd.value if isinstance(usd, Scalar) else None
    # Any positive amount is a budget, even one below the smallest unit.
    micro_usd = max(1, round(amount * 1_000_000)) if isinstance(amount, (int, float)) else None
    return Budget(tokens=entries.integer("tokens") if entries is not None else None, micro_usd=micro_usd)


def _read_defaults(unit: Unit) -> Defaults:
    defaults = Defaults(on_failure=unit.entries.text("on_failure") or "skip")  # type: ignore[arg-type]  # checked words
    if (entries := read_inner(unit.entries, "defaults", DEFAULTS, unit.notes)) is None:
        return defaults
    agent = entries.nodes.get("agent")
    if isinstance(agent, Scalar):
        role = find_role(agent.text, agent, unit.around, unit.notes)
        defaults.agent = agent.text if role.known else None
    warn_of_braces(entries.nodes.get("model"), '"model"', "choose one for the run with --model", unit.notes)
    defaults.model = entries.text("model")
    defaults.timeout_ms = entries.milliseconds("timeout")
    defaults.workspace_mode = entries.text("workspace_mode")  # type: ignore[assignment]  # checked words
    if "retry" in entries.nodes:
        defaults.retry = read_retry(entries.nodes["retry"], unit.notes)
    check_tag(entries, unit.notes)
    defaults.runs_on = entries.text("runs_on") or ""
    return defaults


def _survey(unit: Unit) -> None:
    entries = unit.entries
    notes = unit.notes
    if entries.has("steps") and entries.has("phases"):
        later = max(entries.keys["steps"], entries.keys["phases"], key=lambda word: word.start)
        notes.error("recipe.conflicting_keys", "a recipe has steps or phases, not both", later)
    elif entries.lacks("steps") and entries.lacks("phases"):
        notes.error("recipe.missing_key", 'a recipe needs "steps" or "phases"', entries.head())
    for key in ("steps", "phases"):
        if key in entries.nodes and not entries.items(key):
            notes.error("recipe.bad_value", f"{quoted(key)} must not be empty", entries.nodes[key])
    if entries.has("phases") and not entries.has("steps"):
        unit.phased = True
        from fanfold.language.phases import survey_phases  # most recipes have none

        survey_phases(entries.items("phases"), unit)
    else:
        highs = unit.around.ceilings.highs
        survey_steps(entries.items("steps"), unit.scope, notes, "", highs, narrowed=unit.narrowed)
    # Refuse more steps than the allowed number of instances, which cannot be right in any run.
    most = unit.limits.max_steps or DEFAULT_MAX_STEPS
    elsewhere = unit.references.elsewhere
    for count, draft in enumerate(unit.drafts(), 1):
        draft.facts.inline = (draft.entries.text("on_failure") or unit.defaults.on_failure) == "inline"
        # Warn if a part of a run has more slots than the run.
        slots = unit.limits.max_concurrency or unit.around.ceilings.slots
        if (wanted := draft.entries.integer("max_concurrency")) is not None and wanted > slots:
            message = f'"max_concurrency" of "{draft.id}" is {wanted}, but the run has {slots}'
            hint = "raise it at the top of the recipe, or with --max-concurrency"
            unit.notes.warning("recipe.unused_key", message, draft.entries.keys["max_concurrency"], hint)
        if draft.scope.outer is not None and draft.id:
            elsewhere.setdefault(draft.id, draft)
        if count == most + 1:
            at = draft.at
            hint = "raise limits.max_steps" if most < 100_000 else ""
            message = f"this is step {count:,}, and at most {most:,} are allowed"
            unit.notes.error("recipe.limit", message, at, hint)


def _check(unit: Unit) -> None:
    for draft in unit.drafts():
        if unit.notes.report.full:
            return  # no more errors are kept, and a hostile file should not cost more
        if draft.phase:
            from fanfold.language.phases import check_phase

            check_phase(draft, unit)
        else:
            place = TextPlace(draft, draft.scope, draft.names())
            check_common(draft, unit, place)
            if draft.type is not None:
                STEPS.grammar(draft.type).check(WrittenStep(draft, unit, place))
            settle_posture(draft, unit)
    if (output := unit.entries.nodes.get("output")) is not None:
        unit.output = read_output(output, unit.references, TextPlace(None, unit.scope, unit.scope.names))
    connect(unit.scope, unit.notes)
    for draft in unit.drafts():
        if draft.inner is not None:
            connect(draft.inner, unit.notes)


def warn_unused(unit: Unit) -> None:
    """Warn about unused inputs and about read-only agents with an unused output.

    Other steps are not reported, because a step that writes, runs or calls something may exist for its
    effect.
    """
    for name, node in unit.input_nodes.items():
        if name not in unit.references.used_inputs:
            unit.notes.warning("recipe.unused_input", f"input {quoted(name)} is never used", node)
    _warn_unused_steps(unit.scope, unit, answered=unit.output is None)
    for draft in unit.drafts():
        if draft.inner is not None and not draft.phase:
            _warn_unused_steps(draft.inner, unit, answered=draft.facts.output is None)


def _warn_unused_steps(scope: DraftScope, unit: Unit, *, answered: bool) -> None:
    for draft in scope.drafts:
        answers = draft.syntax is not None and draft.syntax.answers and draft.facts.posture == "read_only"
        if draft.used or (answered and draft is scope.last) or not answers:
            continue
        at = draft.at
        message = f"nothing uses the output of step {quoted(draft.id)}"
        hint = "refer to it from a later step or the output, or remove it"
        unit.notes.warning("recipe.unused_step", message, at, hint)


# -----------------------------------------------------------------------------------------------------------
# The closure of a recipe: every sub-workflow it can reach, each compiled once.
#
# Rules
# * A reference is resolved from the file that contains it. A file is compiled once, however often it is
#   called. Its problems are reported once, under its own name.
# * A call is checked against the declared inputs of its target.
# * The target of a read-only step only reads: it becomes a second plan, narrowed as a whole, besides the plan
#   for other steps.
# * Cycles are refused and shown completely. A chain deeper than `MAX_NESTING_DEPTH` is refused too. It is
#   reported at the call in the root recipe, because no single file of the chain is wrong.

MAX_SUB_WORKFLOWS = 256


class Frame(Struct):
    """A file on the way from the root to the current file, and its current call."""

    identity: str
    unit: Unit
    call: Draft | None = None


class Closure(Struct):
    """Everything reachable from one root."""

    around: CompileContext
    report: Report
    root_file: str
    units: dict[str, Unit | None] = field(default_factory=dict)
    """By identity of the file; None for a file that could not be read."""
    plans: dict[str, Plan] = field(default_factory=dict)
    way: list[Frame] = field(default_factory=list)
    looked_up: dict[tuple[str, str], FoundRecipe | FanfoldError] = field(default_factory=dict)
    """Results of the library, by the calling folder and the reference."""
    too_deep: set[int] = field(default_factory=set)
    readers: dict[str, tuple[Unit | None, str]] = field(default_factory=dict)
    """The same files, narrowed for read-only steps, and why that is impossible; by identity."""

    def enter(
        self,
        data: bytes,
        file: str,
        identity: str,
        *,
        form: yaml_text.TextFormat = yaml_text.RECIPE,
        narrowed: bool = False,
    ) -> Unit | None:
        """Compile a file and everything below it; `form` has the limits for its text."""
        errors_before = self.report.errors
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
        if self.report.errors == errors_before:
            warn_unused(unit)
            unit.plan = assemble_plan(unit)
            unit.writes = any(step.posture == "writer" for step in unit.plan.steps)
        unit.claims = _first_claim(unit)
        return unit

    def called(self, root: Plan) -> dict[str, Plan]:
        """Return the plans that a run of `root` can reach, without the unused variant of a file."""
        waiting, found = [root], set[str]()
        while waiting:
            new = set(_calls(waiting.pop().steps)) - found
            found |= new
            waiting += [self.plans[key] for key in new]
        return {key: plan for key, plan in self.plans.items() if key in found}

    def _follow(self, call: Draft, unit: Unit) -> None:
        node = cast(Scalar, call.entries.nodes["workflow"])
        if (found := self._find(node, unit)) is None:
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
            if found.shadowed:
                others = ", ".join(found.shadowed)
                message = f"{quoted(node.text)} is {found.file}, which shadows {others}"
                unit.notes.warning("recipe.shadowed", message, node)
            self.enter(found.data, found.file, identity)
        if (child := self.units[identity]) is None:
            return
        unit.height = max(unit.height, child.height + 1)
        if len(self.way) + child.height > MAX_NESTING_DEPTH:
            self._report_depth()
        called = child
        call.facts.gives = lambda: _output_of(called)
        call.facts.child_claims = child.claims
        call.facts.workflow = self._key(node.text, found, child)
        # Check a step's inputs against its sub-workflow, and that a read-only step calls no writer.
        _check_given(call, child, unit)
        _check_taken(call, child, unit)
        if _only_reads(call) and child.claims:
            at = call.entries.nodes.get("posture") or call.entries.nodes["workflow"]
            message = f"the step is read-only, but {quoted(child.claims)} of its sub-workflow has a write_set"
            unit.notes.error("recipe.conflicting_keys", message, at)
        if _only_reads(call) and child.plan is not None and not child.claims:
            child = self._narrowed(call, found, identity, unit) or child
            call.facts.workflow += " (read-only)"
        call.facts.child_writes = child.writes
        if child.plan is not None:
            self.plans[call.facts.workflow] = child.plan

    def _narrowed(self, call: Draft, found: FoundRecipe, identity: str, unit: Unit) -> Unit | None:
        """Return the target of a read-only step, compiled as read-only, without repeating its problems."""
        if identity not in self.readers:
            report, self.report = self.report, Report("recipe")
            child = self.enter(found.data, found.file, identity, narrowed=True)
            first = self.report.first_error
            why = f"{first.file}:{first.range.start.line}: {first.message}" if first is not None else ""
            self.readers[identity] = child, why
            self.report = report
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
        lookup = (os.path.dirname(unit.source.file), text)
        if lookup not in self.looked_up:
            try:
                self.looked_up[lookup] = self.around.library.find(text, relative_to=unit.source.file)
            except FanfoldError as error:
                self.looked_up[lookup] = error
        found = self.looked_up[lookup]
        if isinstance(found, FanfoldError):
            unit.notes.error("recipe.unknown_workflow", found.message, node, found.hint)
            return None
        return found

    def _key(self, text: str, found: FoundRecipe, child: Unit) -> str:
        if not is_path(text):
            return f"{text.partition('@')[0]}@{child.version}"
        folder = os.path.dirname(os.path.abspath(self.root_file))
        return os.path.relpath(os.path.abspath(found.file), folder).replace(os.sep, "/")

    def _report_ring(self, identity: str) -> None:
        first = next(i for i, frame in enumerate(self.way) if frame.identity == identity)
        ring = [frame.unit.name or frame.unit.source.file for frame in self.way[first:]]
        frame = self.way[first]
        assert frame.call is not None
        chain = " → ".join(quoted(name) for name in [*ring, ring[0]])
        node = frame.call.entries.nodes["workflow"]
        frame.unit.notes.error(
            "recipe.workflow_cycle", f"workflows call each other in a cycle: {chain}", node
        )

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


def _only_reads(call: Draft) -> bool:
    return call.narrowed or call.entries.text("posture") == "read_only"


def _check_given(call: Draft, child: Unit, unit: Unit) -> None:
    entries = call.entries
    if entries.has("inputs") and "inputs" not in entries.nodes:
        return
    given = call.facts.inputs
    complete = child.references.inputs_known
    for word, node in entries.pairs("inputs"):
        if (declared := child.inputs.get(word.text)) is None:
            if complete:
                hint = unit.notes.did_you_mean(word.text, child.inputs)
                hint = hint or "it takes " + (", ".join(list(child.inputs)[:20]) or "none")
                message = f"workflow {quoted(child.name)} has no input {quoted(word.text)}"
                unit.notes.error("recipe.unknown_input", message, word, hint)
            continue
        if (problem := literal_problem(declared, given[word.text])) is not None:
            unit.notes.error(problem[0], problem[1], node)
    missing = [
        declared.name
        for declared in child.inputs.values()
        if declared.required and declared.name not in given
    ]
    if missing:
        at = entries.keys.get("inputs") or entries.nodes["workflow"]
        listed = ", ".join(quoted(name) for name in missing)
        unit.notes.error("recipe.missing_input", f"workflow {quoted(child.name)} also needs {listed}", at)


def _output_of(unit: Unit) -> Known:
    """Return the known type of a whole recipe's output, for a step that calls it."""
    from fanfold.language.known_values import Viewpoint, known_of_output

    last = unit.scope.last
    if unit.entries.has("output"):
        return known_of_output(unit.output, Viewpoint(unit.inputs, None, unit.scope))
    return output_of(last) if last is not None else ANYTHING


def _check_taken(call: Draft, child: Unit, unit: Unit) -> None:
    """Check that the used parts of a sub-workflow's output can exist."""
    known = _output_of(child)
    names = call.entries.scalars("outputs")
    for item in names:
        if (problem := why_not(known, (item.text,), unit.notes)) is not None:
            message = f"workflow {quoted(child.name)}: {problem[0]}"
            unit.notes.error("recipe.bad_value", message, item, problem[1])
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


class CompileResult(Struct):
    """The result of compiling a recipe."""

    plan: Plan | None
    """None exactly if the report has errors."""
    report: Report
    sources: dict[str, Source]
    """The text of every file that was read, for showing diagnostics."""


def compile_recipe(
    data: bytes, file: str, around: CompileContext, *, form: yaml_text.TextFormat = yaml_text.RECIPE
) -> CompileResult:
    """Compile a recipe and all its sub-workflows.

    `form` is another format for text that was generated from a recipe in code, which has no file limits.
    """
    report = Report("recipe")
    closure = Closure(around, report, file)
    root = closure.enter(data, file, os.path.realpath(file), form=form)
    plan: Plan | None = None
    if report.ok and root is not None and root.plan is not None:
        plan = replace(root.plan, workflows=closure.called(root.plan)) if closure.plans else root.plan
    sources = {file: Source(data.decode("utf-8", "replace"), file)}
    sources |= {unit.source.file: unit.source for unit in closure.units.values() if unit is not None}
    return CompileResult(plan, report, sources)
