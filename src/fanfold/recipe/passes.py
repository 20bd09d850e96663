"""Compile one file: read it, check everything in it, and say what it calls.

The passes follow one another because each needs what the one before found out for the whole file:
survey (which steps are there), check (what each says, which names it uses), connect (edges and rings).
Assembly comes last, after the sub-workflows are known, and only when nothing is wrong.
"""

from __future__ import annotations

import importlib

from fanfold.kernel.plan import Budget, Limits
from fanfold.recipe.checks.edges import connect
from fanfold.recipe.checks.fields import check_common, read_retry
from fanfold.recipe.checks.look_alikes import warn_of_braces
from fanfold.recipe.checks.postures import settle_posture
from fanfold.recipe.checks.references import References, TextPlace
from fanfold.recipe.checks.unit import Defaults, Unit
from fanfold.recipe.drafts.draft import Draft, DraftScope
from fanfold.recipe.drafts.roles import find_role
from fanfold.recipe.inputs import read_inputs
from fanfold.recipe.language.keys import BUDGET, DEFAULTS, LIMITS, RECIPE
from fanfold.recipe.surroundings import Surroundings
from fanfold.recipe.survey import survey_steps
from fanfold.recipe.types.grammar import Written
from fanfold.recipe.types.table import STEPS
from fanfold.text.notes import Notes, quoted
from fanfold.text.report import Report
from fanfold.text.tables.entries import Entries, read_entries
from fanfold.text.trees import yaml
from fanfold.text.trees.tree import Scalar

DEFAULT_MAX_STEPS = 1_000


def read_unit(
    data: bytes,
    file: str,
    around: Surroundings,
    report: Report,
    *,
    form: yaml.TextFormat = yaml.RECIPE,
    narrowed: bool = False,
) -> Unit | None:
    """Read and check one file; None when it is not even a map of keys. `narrowed`: whoever calls it reads."""
    tree, source, problems = yaml.parse_yaml(data, file, form)
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
    )
    unit.limits = _read_limits(unit)
    unit.defaults = _read_defaults(unit)
    _survey(unit)
    _check(unit)
    return unit


def _sha256(data: bytes) -> str:
    """The interpreter's own, where it has one: loading OpenSSL takes longer than checking a recipe."""
    for module in ("_sha2", "_sha256"):
        try:
            return str(importlib.import_module(module).sha256(data).hexdigest())
        except ImportError:
            continue
    return str(importlib.import_module("hashlib").sha256(data).hexdigest())


def _read_limits(unit: Unit) -> Limits:
    node = unit.entries.nodes.get("limits")
    entries = read_entries(node, LIMITS, unit.notes, unit.around.ceilings.highs) if node is not None else None
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
        budget=_read_budget(entries, unit.notes),
    )


def _read_budget(limits: Entries, notes: Notes) -> Budget:
    node = limits.nodes.get("budget")
    entries = read_entries(node, BUDGET, notes) if node is not None else None
    usd = entries.nodes.get("usd") if entries is not None else None
    amount = usd.value if isinstance(usd, Scalar) else None
    # Any positive amount is a budget, also one below the smallest unit.
    micro_usd = max(1, round(amount * 1_000_000)) if isinstance(amount, (int, float)) else None
    return Budget(tokens=entries.integer("tokens") if entries is not None else None, micro_usd=micro_usd)


def _read_defaults(unit: Unit) -> Defaults:
    defaults = Defaults(on_failure=unit.entries.text("on_failure") or "skip")  # type: ignore[arg-type]  # checked words
    node = unit.entries.nodes.get("defaults")
    entries = read_entries(node, DEFAULTS, unit.notes) if node is not None else None
    if entries is None:
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
        from fanfold.recipe.phases import survey_phases  # most recipes have none

        survey_phases(entries.items("phases"), unit)
    else:
        highs = unit.around.ceilings.highs
        survey_steps(entries.items("steps"), unit.scope, notes, "", highs, narrowed=unit.narrowed)
    _count_steps(unit)


def _count_steps(unit: Unit) -> None:
    """More steps than instances are allowed cannot be right, whatever the run would do."""
    most = unit.limits.max_steps or DEFAULT_MAX_STEPS
    elsewhere = unit.references.elsewhere
    for count, draft in enumerate(unit.drafts(), 1):
        draft.facts.inline = (draft.entries.text("on_failure") or unit.defaults.on_failure) == "inline"
        if draft.scope.outer is not None and draft.id:
            elsewhere.setdefault(draft.id, draft)
        if count == most + 1:
            at = draft.entries.nodes.get("id") or draft.entries.head()
            hint = "raise limits.max_steps" if most < 100_000 else ""
            unit.notes.error(
                "recipe.limit", f"this is step {count:,}, and at most {most:,} are allowed", at, hint
            )


def _check(unit: Unit) -> None:
    for draft in unit.drafts():
        if unit.notes.report.full:
            return  # nothing more would be kept, and a hostile file should not cost more either
        if draft.phase:
            from fanfold.recipe.phases import check_phase

            check_phase(draft, unit)
        else:
            place = TextPlace(draft, draft.scope, draft.names())
            check_common(draft, unit, place)
            if draft.type is not None:
                STEPS.grammars[draft.type]().check(Written(draft, unit, place))
            settle_posture(draft, unit)
    output = unit.entries.nodes.get("output")
    if output is not None:
        from fanfold.recipe.checks.values import read_output

        unit.output = read_output(output, unit.references, TextPlace(None, unit.scope, unit.scope.names))
    connect(unit.scope, unit.notes)
    for draft in unit.drafts():
        if draft.inner is not None:
            connect(draft.inner, unit.notes)


def warn_unused(unit: Unit) -> None:
    """Inputs that nothing reads, and readers whose answer goes nowhere.

    Only read-only agents are reported: what writes, runs or calls something may be there for its effect.
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
        if draft.used or (answered and draft is scope.last) or not _only_answers(draft):
            continue
        at = draft.entries.nodes.get("id") or draft.entries.head()
        message = f"nothing uses the output of step {quoted(draft.id)}"
        hint = "refer to it from a later step or the output, or remove it"
        unit.notes.warning("recipe.unused_step", message, at, hint)


def _only_answers(draft: Draft) -> bool:
    return draft.syntax is not None and draft.syntax.answers and draft.facts.posture == "read_only"
