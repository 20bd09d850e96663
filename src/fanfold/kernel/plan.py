"""The plan: a recipe compiled and checked, as the kernel schedules it.

A plan is data: frozen structs that survive JSON unchanged, because the plan is frozen into the first
event of its run and every later decision is a function of that event and those after it.

Rules
* A plan is a tree of scopes. The top level is a scope; so is the body of a group; so is each entry of
  `workflows` (the frozen closure of sub-workflows, keyed by the reference that steps use).
* `depends_on` holds every edge, written or implied by a reference, in declaration order of the targets.
  It names ids of the same scope only.
* Templates, expressions and paths stay text here. The kernel never looks inside: the host evaluates
  them and hands the result back as an event.
* The steps of an open plan are not in it: they are added to its top level one by one while the run goes on.
* Groups and calls of workflows are the kernel's own. Any other step is a leaf: it is scheduled by its traits,
  which are data in the plan, and what it does is the business of its step type.
* Everything is resolved: `defaults`, aliases (`subagent`, `task`), phases and derived postures are gone.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct, field

Posture: TypeAlias = Literal["read_only", "writer"]
WorkspaceMode: TypeAlias = Literal["shared", "isolated"]
OnFailure: TypeAlias = Literal["skip", "inline", "stop"]
JSON: TypeAlias = Any
"""Any JSON value. The serializer knows no recursive aliases, so the name carries the meaning."""

EVERYTHING = ("**/*",)
MAX_NESTING_DEPTH = 5
USUAL_MAX_ITEMS = 1_000
MAX_ITEMS = 10_000
"""Everybody uses this one: what *is* the default is not written."""


class Ref(Struct, frozen=True, gc=False, tag="ref", tag_field="kind"):
    """A state path (`steps.prepare.extracted_data`); the value keeps its type."""

    path: str


class Template(Struct, frozen=True, gc=False, tag="template", tag_field="kind"):
    """Text with `{{path}}` holes; renders to text."""

    text: str


class Constant(Struct, frozen=True, gc=False, tag="literal", tag_field="kind"):
    """A JSON value as it stands."""

    value: JSON = None


Value: TypeAlias = Ref | Template | Constant


class Fields(Struct, frozen=True, gc=False, tag="fields", tag_field="kind"):
    """An object built from named values; what `output` written as a map becomes."""

    fields: dict[str, Value]


Output: TypeAlias = Ref | Template | Constant | Fields


class RetryPolicy(Struct, frozen=True, omit_defaults=True, gc=False):
    """`attempts` counts all tries; `on` lists the error classes that are tried again."""

    attempts: int = 2
    backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    on: tuple[str, ...] = ("transport", "rate_limit")


USUAL_RETRY = RetryPolicy()


class Repeat(Struct, frozen=True, omit_defaults=True, gc=False):
    """Run again while the CEL expression `until` is false, `max_iterations` times at most."""

    until: str
    max_iterations: int = 2
    on_exhausted: Literal["fail", "continue"] = "fail"
    """What becomes of a step whose last iteration was false, too."""


class Traits(Struct, frozen=True, omit_defaults=True, gc=False):
    """What hosts and scheduler have to know of a step's work, which they never look into."""

    slot: bool = True
    """A running attempt takes one of the run's slots."""
    role: str | None = None
    """Not None: it counts as an agent, and what it spends is estimated and remembered under this name."""
    workspace: Literal["own", "scratch", "project", "claims", "none"] = "own"
    """Where it works. `own`: where the step's mode and sets say. `scratch`: the same, but a reader may write
    into its snapshot, which is thrown away. `project`: in the project itself, as code of this process.
    `claims`: nowhere, but nobody else may change what its sets name meanwhile."""
    waits: Literal["person", "timer"] | None = None
    """Not None: its start is answered by `waiting`, and somebody or the time ends it."""
    default: str | None = None
    """What counts as the person's answer when `timeout_ms` is over; without one the step times out."""
    rejectable: bool = False
    """The answer `reject` fails it (see `replies`)."""
    continues: str | None = None
    """The agent step of the same scope whose conversation goes on here; also in `depends_on` or `after`."""
    ends: Literal["completed", "failed"] | None = None
    """Not None: when it completes, its run ends there and then, in this status."""


PLAIN = Traits()
"""The traits of most work. Everybody uses this one: what *is* the default is not written."""


class LeafAction(Struct, frozen=True, omit_defaults=True, gc=False, tag="leaf", tag_field="kind"):
    """Work of some type. Its body belongs to that type (see `recipe.types`) and is opaque here."""

    type: str
    body: dict[str, JSON] = {}
    traits: Traits = PLAIN


STRUCTURE = Traits(slot=False, workspace="none")


class WorkflowAction(Struct, frozen=True, omit_defaults=True, gc=False, tag="workflow", tag_field="kind"):
    """A child run."""

    type: ClassVar[str] = "workflow"
    traits: ClassVar[Traits] = STRUCTURE
    workflow: str
    """Key into the root plan's `workflows`."""


class GroupAction(Struct, frozen=True, omit_defaults=True, gc=False, tag="group", tag_field="kind"):
    """A scope of steps."""

    type: ClassVar[str] = "group"
    traits: ClassVar[Traits] = STRUCTURE
    steps: tuple[Step, ...]
    output: Output | None = None
    """None: the output of the last declared step."""
    max_concurrency: int | None = None
    max_agents: int | None = None
    phase: bool = False
    """True for a lowered phase: its output is `{tasks, summary}`, its fold feeds later digests."""
    phase_kind: str = ""
    goal: str = ""


Action: TypeAlias = LeafAction | WorkflowAction | GroupAction


class Step(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One node of the plan. Instances of it exist only in a run."""

    id: str
    action: Action
    description: str = ""
    depends_on: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    """Steps of the same scope that must have ended first, however they ended."""
    parent: str = ""
    """In an open run: the step whose agent asked for this one, which ends with it."""
    when: str | None = None
    for_each: str | None = None
    item_name: str = "item"
    key: str = ""
    """The path in an item that readers call it by; empty: its value."""
    max_items: int = USUAL_MAX_ITEMS
    max_concurrency: int | None = None
    """Of a map, group, loop or call: how many attempts inside it run at once, over all its items."""
    repeat: Repeat | None = None
    fold: Step | None = None
    """Runs once after the last iteration, addressed `<id>/fold`; its end is the end of the step."""
    posture: Posture = "read_only"
    read_set: tuple[str, ...] = EVERYTHING
    write_set: tuple[str, ...] = ()
    templated_sets: bool = False
    """True when a set holds `{{…}}`; the host resolves them when the instance is created."""
    workspace_mode: WorkspaceMode = "shared"
    merge: Literal["auto", "propose", "discard"] = "auto"
    on_conflict: Literal["fail", "resolve"] = "fail"
    output_schema: JSON = None
    outputs: tuple[str, ...] = ()
    inputs: dict[str, Value] = {}
    timeout_ms: int | None = None
    retry: RetryPolicy = USUAL_RETRY
    on_failure: OnFailure = "skip"
    read_by: tuple[str, ...] = ()
    """Of an `inline` step: the steps of its scope that refer to it; "" is the output, or the gate, of what is
    around it. Whose failure is read by somebody is tolerated (see `tolerance`)."""
    cache: bool = False

    @property
    def type(self) -> str:
        """The step's type word as recipes write it."""
        return self.action.type

    @property
    def traits(self) -> Traits:
        return self.action.traits


class Input(Struct, frozen=True, omit_defaults=True, gc=False):
    name: str
    required: bool = False
    default: JSON = None
    has_default: bool = False
    type: Literal["string", "integer", "number", "boolean", "array", "object"] | None = None
    enum: tuple[JSON, ...] | None = None
    description: str = ""


class Budget(Struct, frozen=True, omit_defaults=True, gc=False):
    """None means no limit. Money is whole micro-dollars: floats do not add up."""

    tokens: int | None = None
    micro_usd: int | None = None


class Limits(Struct, frozen=True, omit_defaults=True, gc=False):
    """None: not said in the recipe; configuration (root) or the parent (child run) decides."""

    max_concurrency: int | None = None
    max_agents: int | None = None
    max_steps: int | None = None
    timeout_ms: int | None = None
    budget: Budget = Budget()


class Plan(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    name: str
    version: int = 1
    description: str = ""
    inputs: tuple[Input, ...] = ()
    steps: tuple[Step, ...]
    output: Output | None = None
    """None: the output of the last declared step."""
    limits: Limits = Limits()
    phased: bool = False
    open: bool = False
    """Its steps are added by events, and it ends when somebody says so. Has no steps of its own, no time
    limit, and no bound on agents and steps: each child has limits of its own."""
    metadata: dict[str, JSON] = field(default_factory=dict)
    source_hash: str = ""
    source_file: str = ""
    """Where its text was, relative to the project if it was inside; empty for one that was built in code."""
    workflows: dict[str, Plan] = field(default_factory=dict)
    """Frozen closure of every sub-workflow reachable from here; filled on the root plan only."""
