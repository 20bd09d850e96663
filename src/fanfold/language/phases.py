"""Phases: compiled to groups of steps.

A phase becomes a loop group. Its tasks are steps. A review becomes the step `review`, with one instance per
reviewer. The gate becomes the step `verify`, and the loop's `until` requires both verdicts. The summary is
the step `fold`, which runs once after the last iteration. The kernel knows nothing about reviews or gates,
and every rule for steps also applies to phases.

Rules
* Phases run in the order of the file, unless they have `depends_on`.
* `for_each` on a phase maps each of its tasks, so a task cannot have its own `for_each` then.
* `understand` and `review` phases only read; their steps are narrowed, and a `write_set` is refused.
* A phase with neither gate nor review runs once. So does one with `on_fail: stop` in its gate. A review with
  a rejected result makes the round false, like a gate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from fanfold.kernel.plan import JSON, USUAL_MAX_ITEMS, USUAL_RETRY, GroupAction, Repeat, RetryPolicy, Step
from fanfold.language.checks import ONCE, Defaults, Unit, check_conditions, check_edges, read_arguments
from fanfold.language.draft import Draft, NamedRole, PhaseParts, find_role
from fanfold.language.keys import COMMAND, CONVERGE, PHASE, REVIEW, VERIFY_KEYS
from fanfold.language.leaf_steps import (
    STEPS,
    AgentBody,
    ApprovalBody,
    Body,
    CommandBody,
    new_draft,
    survey_body,
    survey_map,
)
from fanfold.language.references import TextPlace
from fanfold.language.tables import Entries, Key, Shape, quoted, read_entries, read_inner, shape
from fanfold.language.template import literal
from fanfold.language.tree import Node, Scalar

# -----------------------------------------------------------------------------------------------------------
# A gate: the last step of a phase, and the expression that decides from its output whether the phase passed.
#
# Rules
# * A gate that cannot be evaluated fails and never passes. Its step has `on_failure: skip`, so that the
#   loop's `until` finds no verdict, which counts as false.
# * A gate only reads: only the tasks of a phase change files.

VERIFY = "verify"
"""The id of a gate's step."""

K = TypeVar("K")


class JudgedPhase(Struct, frozen=True):
    """The phase that a gate or a reviewer judges."""

    id: str
    goal: str
    steps: tuple[str, ...]
    """Its steps so far."""
    defaults: Defaults

    def question(self, instruction: str) -> str:
        """Return a prompt with the goal, which is text, never a template.

        The judged results are added after it, with a size limit, when the step starts.
        """
        return f"{instruction}\n\nGoal: {literal(self.goal)}" if self.goal else instruction

    def results(self) -> str:
        """Return the outputs of the steps, for a person."""
        parts = [self.question("")] if self.goal else []
        parts += [f"Result of {step}:\n{{{{steps.{step}.output}}}}" for step in self.steps]
        return "\n\n".join(parts)

    def step(self, step_id: str, body: Body, **more: Any) -> Step:
        """Return a read-only step of the phase that runs after all others."""
        return Step(
            id=step_id,
            action=body.action(),
            depends_on=self.steps,
            posture="read_only",
            timeout_ms=self.defaults.timeout_ms,
            retry=self.defaults.retry or USUAL_RETRY,
            **more,
        )


class Gate(ABC, Generic[K]):
    """One kind of gate; `K` is the type of its settings from `verify`."""

    name: str
    keys: tuple[Key, ...] = ()
    """The keys of `verify` that it has."""
    until: str
    """True if the phase passed; the gate's step is `steps.verify`."""

    @abstractmethod
    def check(self, verify: Entries, draft: Draft, unit: Unit) -> K:
        """Check the keys of `verify`, and return the settings."""

    @abstractmethod
    def step(self, kept: K, phase: JudgedPhase) -> Step:
        """Return the step that judges a phase."""


def read_role(entries: Entries, unit: Unit) -> NamedRole:
    """Return the role of the judge: the named one, or else a critic."""
    node = entries.nodes.get("agent")
    if isinstance(node, Scalar):
        return find_role(node.text, node, unit.around, unit.notes)
    return find_role("critic", None, unit.around, unit.notes)


# -----------------------------------------------------------------------------------------------------------
# A gate that asks a person.


class ApprovalGate(Gate[None]):
    name = "approval"
    until = 'steps.verify.output.decision == "approve"'

    def check(self, verify: Entries, draft: Draft, unit: Unit) -> None:
        """Do nothing: this gate has no settings."""
        del verify, draft, unit

    def step(self, kept: None, phase: JudgedPhase) -> Step:
        del kept
        question = ApprovalBody(
            approve=f'Accept the result of phase "{phase.id}"?',
            show=phase.results(),
            choices=("approve", "reject"),
        )
        return Step(
            id=VERIFY, action=question.action(), depends_on=phase.steps, retry=RetryPolicy(attempts=1)
        )


# -----------------------------------------------------------------------------------------------------------
# Gates that run a program and pass if it ends with status 0.


class GateCommand(Struct, frozen=True):
    """The command of a gate, and the project's file that defines it if the recipe does not."""

    run: tuple[str, ...] = ()
    file: str = ""


class CommandGate(Gate[GateCommand]):
    """`tests` and `lint` can use the project's command; a plain `command` needs its own."""

    keys = (
        Key("run", "arguments", "Command of the gate; default of `tests` and `lint`: the project's own."),
    )
    until = "steps.verify.output.exit_code == 0"

    def __init__(self, name: Literal["command", "tests", "lint"]) -> None:
        self.name = name

    def check(self, verify: Entries, draft: Draft, unit: Unit) -> GateCommand:
        if self.name == "command" and verify.lacks("run"):
            message = f"a {quoted('command')} gate needs {quoted('run')}"
            unit.notes.error("recipe.missing_key", message, verify.nodes["gate"])
        if "run" not in verify.nodes:
            return GateCommand() if self.name == "command" else self._own(verify, unit)
        assert draft.inner is not None
        names = draft.inner.names - draft.items()
        return GateCommand(read_arguments(verify, unit.references, TextPlace(draft, draft.inner, names)))

    def _own(self, verify: Entries, unit: Unit) -> GateCommand:
        if (own := unit.around.own_command(self.name)) is not None:
            return GateCommand(tuple(literal(argument) for argument in own.run), own.file)
        message = f"this project does not define how to run its {self.name}"
        hint = f"write {quoted('run')} beside {quoted('gate')}, or use another gate"
        unit.notes.error("recipe.missing_key", message, verify.nodes["gate"], hint)
        return GateCommand()

    def step(self, kept: GateCommand, phase: JudgedPhase) -> Step:
        # Like every command without a write-set: in a snapshot that is discarded.
        return phase.step(
            VERIFY,
            CommandBody(run=kept.run),
            description=f"the project's own {self.name}, by {kept.file}" if kept.file else "",
            outputs=COMMAND.output_names,
            workspace_mode="isolated",
        )


# -----------------------------------------------------------------------------------------------------------
# The answers of critics and reviewers: typed, and with evidence that can be checked.
#
# Evidence is a position and a quote. It is checked after the answer (see `steps.phases`): a
# wrong quote counts against the agent that wrote it. `found` is set then, whatever the agent wrote.

RESULT = "result"
"""The file name in a quote of the judged result, instead of a file of the project."""
MAX_QUOTES = 20
MAX_QUOTE_CHARS = 1_000
MAX_VERDICTS = 200

EVIDENCE_SCHEMA: dict[str, JSON] = {
    "type": "array",
    "maxItems": MAX_QUOTES,
    "items": {
        "type": "object",
        "required": ["file", "line", "quote"],
        "additionalProperties": False,
        "properties": {
            "file": {
                "type": "string",
                "description": f"Path in the project, or `{RESULT}` for what is judged",
            },
            "line": {"type": "integer", "minimum": 1},
            "quote": {"type": "string", "maxLength": MAX_QUOTE_CHARS, "description": "Word for word"},
            "found": {"type": "boolean", "description": "Left out: it is looked up"},
        },
    },
}
VERDICT_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {"pass": {"type": "boolean"}, "feedback": {"type": "string"}, "evidence": EVIDENCE_SCHEMA},
    "required": ["pass", "feedback", "evidence"],
    "additionalProperties": False,
}
REVIEW_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "verdicts": {
            "type": "array",
            "maxItems": MAX_VERDICTS,
            "items": {
                "type": "object",
                "properties": {
                    "claim": {"type": "string", "description": "The claim's name, as it is given"},
                    "holds": {"type": "boolean"},
                    "reason": {"type": "string"},
                    "evidence": EVIDENCE_SCHEMA,
                },
                "required": ["claim", "holds", "reason", "evidence"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["verdicts"],
    "additionalProperties": False,
}

QUOTING = """\
Evidence is a file of the project with a line and the words that stand there, or `result` with words of what
you judge. Each piece is looked up: if one is not there, your verdict does not count."""
CRITIC = f"""\
Judge whether the result below reaches the goal. Answer with `pass`, in `feedback` what has to change, and in
`evidence` what shows it; check it against the files before you let it pass. Nothing passes without evidence.
{QUOTING}"""
REVIEWER = f"""\
Try to refute each of the claims below: look for what is wrong, missing or unproven, and check it against the
files. Give a verdict for every claim by its name: whether it holds after an honest attempt to refute it, why,
and the evidence. A refutation without evidence does not count.
{QUOTING}"""

# -----------------------------------------------------------------------------------------------------------
# A gate that asks an agent for a verdict, with evidence that is checked before it counts.


class CriticGate(Gate[NamedRole]):
    name = "critic"
    keys = (Key("agent", "text", "Role of a `critic` gate.", default="critic"),)
    until = "steps.verify.output.pass"

    def check(self, verify: Entries, draft: Draft, unit: Unit) -> NamedRole:
        del draft
        return read_role(verify, unit)

    def step(self, kept: NamedRole, phase: JudgedPhase) -> Step:
        body = AgentBody(
            agent=kept.name,
            agent_version=kept.version,
            prompt=phase.question(CRITIC),
            model=phase.defaults.model,
            purpose="critic",
        )
        return phase.step(VERIFY, body, output_schema=VERDICT_SCHEMA)


# -----------------------------------------------------------------------------------------------------------
# The kinds of gates, and the resulting keys of `verify`.


class GateTable:
    """Gates by name, in the order of the reference page."""

    def __init__(self, *gates: Gate[Any]) -> None:
        self.gates = {gate.name: gate for gate in gates}
        self.shape = self._shape()
        """All keys of `verify`."""

    def add(self, gate: Gate[Any]) -> None:
        """Add another kind of gate."""
        self.gates[gate.name] = gate
        self.shape = self._shape()

    def _shape(self) -> Shape:
        own: dict[str, Key] = {}
        for gate in self.gates.values():
            for key in gate.keys:
                others = own[key.name].only if key.name in own else ()
                own[key.name] = replace(key, only=(*others, gate.name))
        gate_key, *rest = VERIFY_KEYS
        return shape(
            "verify",
            "The gate of a phase. A gate that cannot be evaluated fails.",
            replace(gate_key, words=tuple(self.gates)),
            *own.values(),
            *rest,
        )


GATES = GateTable(
    CommandGate("command"), CommandGate("tests"), CommandGate("lint"), CriticGate(), ApprovalGate()
)

MAX_PHASES = 16
MAX_TASKS_PER_PHASE = 32
MAX_TASKS = 200
RESERVED_IDS = frozenset({"review", "verify", "fold"})
REVIEW_HOLDS = "review.holds"
"""Sees the count of the round's votes as `review`."""
LOOP_NAMES = frozenset({"iteration", "feedback", "digest"})


# ---------------------------------------------------------------------------------------------------
# Reading


def survey_phases(nodes: list[Node], unit: Unit) -> None:
    """Read the phases and their tasks into drafts."""
    notes = unit.notes
    tasks = 0
    for node in nodes:
        if (entries := read_entries(node, PHASE, notes, unit.around.ceilings.highs)) is None:
            continue
        draft = new_draft(entries, unit.scope, notes, "")
        draft.phase = True
        draft.syntax = STEPS.syntaxes["group"]
        draft.narrowed = unit.narrowed or entries.text("kind") in {"understand", "review"}
        draft.facts.phase = PhaseParts(
            review=read_inner(entries, "review", REVIEW, notes),
            verify=read_inner(entries, "verify", GATES.shape, notes),
            converge=read_inner(entries, "converge", CONVERGE, notes),
        )
        for item in entries.scalars("depends_on"):
            draft.written.setdefault(item.text, item)
        survey_map(draft, notes)
        survey_body(draft, entries.items("tasks"), notes, unit.around.ceilings.highs, LOOP_NAMES)
        # The settings of a phase apply to its tasks.
        assert draft.inner is not None
        inside = draft.inner.drafts
        for task in inside:
            if task.id in RESERVED_IDS and "id" in task.entries.nodes:
                message = f"{quoted(task.id)} is the id of a built-in step of phases"
                notes.error("recipe.bad_id", message, task.at, "choose another id")
            if draft.item_name is None:
                continue
            if task.entries.has("for_each"):
                message = (
                    f"phase {quoted(draft.id)} has a {quoted('for_each')}, which runs each task once per item"
                )
                notes.error("recipe.conflicting_keys", message, task.entries.keys["for_each"])
            task.item_name = draft.item_name
        if len(inside) > MAX_TASKS_PER_PHASE:
            message = f"a phase has at most {MAX_TASKS_PER_PHASE} tasks"
            notes.error("recipe.limit", message, inside[MAX_TASKS_PER_PHASE].at)
        elif 0 <= MAX_TASKS - tasks < len(inside):
            message = f"a recipe has at most {MAX_TASKS} tasks"
            notes.error("recipe.limit", message, inside[MAX_TASKS - tasks].at)
        tasks += len(inside)
    if len(unit.scope.drafts) > MAX_PHASES:
        extra = unit.scope.drafts[MAX_PHASES]
        notes.error("recipe.limit", f"a recipe has at most {MAX_PHASES} phases", extra.at)


# ---------------------------------------------------------------------------------------------------
# Checking


def check_phase(draft: Draft, unit: Unit) -> None:
    """Check the phase's own keys; its tasks are checked as steps."""
    check_edges(draft, unit.notes, unit.references)
    check_conditions(draft, unit.references)
    parts = draft.facts.phase
    if parts.review is not None:
        parts.reviewer = read_role(parts.review, unit)
    if parts.verify is not None:
        _check_gate(draft, parts, parts.verify, unit)
    _check_rounds(draft, parts, unit)
    # Refuse a task whose id hides a name in the phase's list, which is evaluated for each task.
    assert draft.inner is not None
    if draft.item_name is None:
        return
    for name in draft.implied:
        task = draft.inner.by_id.get(name)
        if (node := task.entries.nodes.get("id") if task is not None else None) is not None:
            message = f"the phase refers to a step {quoted(name)} outside, so no task can have that id"
            unit.notes.error("recipe.bad_id", message, node, "choose another id")


def _check_rounds(draft: Draft, parts: PhaseParts, unit: Unit) -> None:
    """Refuse `converge` if nothing could make the phase run again."""
    word = draft.entries.keys.get("converge")
    if word is None or (_judges(parts) and not _stops(parts)):
        return
    if _judges(parts):
        message = f"phase {quoted(draft.id)} runs once: its gate has `on_fail: stop`"
        hint = "leave out `converge`, or write `on_fail: iterate`"
    else:
        message = f"phase {quoted(draft.id)} runs once: it has neither `verify` nor `review`"
        hint = "it has no reason to repeat; add one of them, or leave out `converge`"
    unit.notes.warning("recipe.unused_key", message, word, hint)


def _judges(parts: PhaseParts) -> bool:
    return parts.verify is not None or parts.review is not None


def _stops(parts: PhaseParts) -> bool:
    return parts.verify is not None and parts.verify.text("on_fail") == "stop"


def _check_gate(draft: Draft, parts: PhaseParts, verify: Entries, unit: Unit) -> None:
    written = verify.text("gate") or ""
    parts.gate = dict(GATES.shape.keys["gate"].meant).get(written, written)
    if not parts.gate:
        return
    parts.judge = GATES.gates[parts.gate].check(verify, draft, unit)
    for name, word in verify.keys.items():
        if (only := verify.shape.keys[name].only) and parts.gate not in only:
            message = f"{quoted(name)} is not allowed on {quoted(parts.gate)} gates"
            unit.notes.error("recipe.conflicting_keys", message, word)


# ---------------------------------------------------------------------------------------------------
# Lowering


def lower_phase(draft: Draft, tasks: tuple[Step, ...], unit: Unit) -> Step:
    """Return the group that a phase becomes."""
    parts = draft.facts.phase
    facts = draft.facts
    entries = draft.entries
    phase = JudgedPhase(draft.id, entries.text("goal") or "", (), unit.defaults)
    steps = list(tasks)
    if facts.for_each is not None:
        most = entries.integer("max_items") or USUAL_MAX_ITEMS
        item = {"for_each": facts.for_each, "item_name": draft.item_name or "item", "max_items": most}
        steps = [replace(task, **item) for task in tasks]
    reviewed = parts.review is not None and parts.reviewer is not None
    if parts.review is not None and parts.reviewer is not None:
        judged = replace(phase, steps=tuple(step.id for step in steps))
        steps.append(_review(parts.reviewer, parts.review.integer("reviewers") or 1, judged))
    if (gate := GATES.gates.get(parts.gate)) is not None:
        steps.append(gate.step(parts.judge, replace(phase, steps=tuple(step.id for step in steps))))
    stops = _stops(parts)
    iterations = (parts.converge.integer("max_iterations") if parts.converge is not None else None) or 2
    # The condition for the end of a phase: the review passed as a whole, and the gate passed.
    held = [REVIEW_HOLDS] if reviewed else []
    passed = [gate.until] if gate is not None else []
    prompt = f'Summarize what phase "{phase.id}" found and did, for those who work on the next one.'
    body = AgentBody(agent="summarizer", prompt=phase.question(prompt), purpose="fold")
    return Step(
        id=draft.id,
        action=GroupAction(
            steps=tuple(steps),
            max_concurrency=entries.integer("max_concurrency"),
            max_agents=entries.integer("max_agents"),
            phase=True,
            phase_kind=entries.text("kind") or "custom",
            goal=phase.goal,
        ),
        depends_on=facts.depends_on,
        when=facts.when,
        repeat=Repeat(
            until=" && ".join((*held, *passed)) or "true",
            max_iterations=iterations if (parts.verify is not None or reviewed) and not stops else 1,
        ),
        fold=Step(id="fold", action=body.action()),
        posture="writer" if any(task.posture == "writer" for task in tasks) else "read_only",
        retry=ONCE,
        on_failure="stop" if stops else unit.defaults.on_failure,
    )


def _review(reviewer: NamedRole, reviewers: int, phase: JudgedPhase) -> Step:
    body = AgentBody(
        agent=reviewer.name,
        agent_version=reviewer.version,
        prompt=phase.question(REVIEWER),
        model=phase.defaults.model,
        purpose="review",
    )
    return phase.step("review", body, for_each=str(list(range(reviewers))), output_schema=REVIEW_SCHEMA)
