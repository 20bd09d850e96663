"""The plan: a compiled and checked recipe, in the form that the kernel schedules.

A plan is data: frozen structs that survive JSON unchanged. The first event of a run contains the plan, and
every later decision is a function of that event and the events after it.

Rules
* A plan is a tree of scopes. The top level, the body of a group and each entry of `workflows` are scopes.
  `workflows` is the frozen closure of sub-workflows, keyed by the reference that steps use.
* `depends_on` holds every edge, written or implied by a reference, in declaration order of the targets.
  It names ids of the same scope only.
* Templates, expressions and paths stay text here. The kernel never parses them: the host evaluates
  them and returns the result as an event.
* An open plan does not contain its steps: events add them to its top level while the run is running.
* The kernel itself implements groups and calls of workflows. Any other step is a leaf. The kernel schedules
  it by its traits, which are data in the plan; its step type does the work.
* Everything is resolved: `defaults`, aliases (`subagent`, `task`), phases and derived postures are gone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct, field

Posture: TypeAlias = Literal["read_only", "writer"]
WorkspaceMode: TypeAlias = Literal["shared", "isolated"]
OnFailure: TypeAlias = Literal["skip", "inline", "stop"]
JSON: TypeAlias = Any
"""Any JSON value. The serializer supports no recursive aliases, so this is `Any` with a name."""

EVERYTHING = ("**/*",)
MAX_NESTING_DEPTH = 5
USUAL_MAX_ITEMS = 1_000
"""The default. Share this object: a field that *is* its default object is not written."""
MAX_ITEMS = 10_000


class Ref(Struct, frozen=True, gc=False, tag="ref", tag_field="kind"):
    """A reference to a state path (`steps.prepare.extracted_data`); the value keeps its type."""

    path: str


class Template(Struct, frozen=True, gc=False, tag="template", tag_field="kind"):
    """Text with `{{path}}` placeholders; renders to text."""

    text: str


class Constant(Struct, frozen=True, gc=False, tag="literal", tag_field="kind"):
    """A literal JSON value."""

    value: JSON = None


Value: TypeAlias = Ref | Template | Constant


class Fields(Struct, frozen=True, gc=False, tag="fields", tag_field="kind"):
    """An object built from named values: the compiled form of an `output` map."""

    fields: dict[str, Value]


Output: TypeAlias = Ref | Template | Constant | Fields


class RetryPolicy(Struct, frozen=True, omit_defaults=True, gc=False):
    """When to retry. `attempts` includes the first attempt; `on` lists the failure classes to retry."""

    attempts: int = 2
    backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    on: tuple[str, ...] = ("transport", "rate_limit")


USUAL_RETRY = RetryPolicy()


class Repeat(Struct, frozen=True, omit_defaults=True, gc=False):
    """Repeat a step until the CEL expression `until` is true, `max_iterations` times at most."""

    until: str
    max_iterations: int = 2
    on_exhausted: Literal["fail", "continue"] = "fail"
    """Whether the step fails or continues if the last iteration was false, too."""


class Traits(Struct, frozen=True, omit_defaults=True, gc=False):
    """The properties of a leaf step that the host and the scheduler use. They never read its body."""

    slot: bool = True
    """Whether a running attempt needs one of the run's slots."""
    role: str | None = None
    """Not None: the step counts as an agent, and its spending is estimated and recorded under this name."""
    workspace: Literal["own", "scratch", "project", "claims", "none"] = "own"
    """Where the step works.

    `own`: as its mode and sets define. `scratch`: the same, but a reader may write into its snapshot, which
    is discarded. `project`: in the project tree, as code of this process. `claims`: nowhere, but no other
    step may change the files in its sets meanwhile.
    """
    waits: Literal["person", "timer"] | None = None
    """Not None: the host answers its start with `waiting`, and a person or a timer ends the step."""
    default: str | None = None
    """The answer that applies after `timeout_ms` if no person answered; if None, the step times out."""
    rejectable: bool = False
    """Whether the answer `reject` fails the step (see `state.judge`)."""
    continues: str | None = None
    """The agent step of the same scope whose conversation continues here; also in `depends_on` or `after`."""
    ends: Literal["completed", "failed"] | None = None
    """Not None: when the step completes, its run ends at once in this status."""


PLAIN = Traits()
"""The default traits. Share this object: a field that *is* its default object is not written."""


class LeafAction(Struct, frozen=True, omit_defaults=True, gc=False, tag="leaf", tag_field="kind"):
    """The work of a leaf step. Its body belongs to its step type (see `steps.step_type`)."""

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
    """Whether this is a compiled phase: its output is `{tasks, summary}`, its fold feeds later digests."""
    phase_kind: str = ""
    goal: str = ""


Action: TypeAlias = LeafAction | WorkflowAction | GroupAction


class Step(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One step of the plan. Its instances exist only in a run."""

    id: str
    action: Action
    description: str = ""
    depends_on: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    """Steps of the same scope that must end first, in any status."""
    parent: str = ""
    """In an open run: the step whose agent requested this one. This step ends with its parent."""
    when: str | None = None
    for_each: str | None = None
    item_name: str = "item"
    key: str = ""
    """The path of the label that views show for an item; empty: the value of the item."""
    max_items: int = USUAL_MAX_ITEMS
    max_concurrency: int | None = None
    """Of a map, group, loop or call: the most attempts that run inside it at once, over all its items."""
    repeat: Repeat | None = None
    fold: Step | None = None
    """Runs once after the last iteration, addressed `<id>/fold`; its end is the end of the step."""
    posture: Posture = "read_only"
    read_set: tuple[str, ...] = EVERYTHING
    write_set: tuple[str, ...] = ()
    templated_sets: bool = False
    """Whether a set contains `{{…}}`; the host resolves the sets before the instance is admitted."""
    workspace_mode: WorkspaceMode = "shared"
    merge: Literal["auto", "propose", "discard"] = "auto"
    on_conflict: Literal["fail", "resolve"] = "fail"
    require_changes: bool = False
    """Whether an isolated writer fails if none of its changes was merged or proposed."""
    output_schema: JSON = None
    outputs: tuple[str, ...] = ()
    inputs: dict[str, Value] = {}
    timeout_ms: int | None = None
    retry: RetryPolicy = USUAL_RETRY
    on_failure: OnFailure = "skip"
    read_by: tuple[str, ...] = ()
    """Of an `inline` step: the steps of its scope that refer to it.

    "" is the output, or the gate, of the enclosing scope. A failure that one of these reads is tolerated (see
    `progress.is_tolerated`).
    """
    cache: bool = False
    runs_on: str = ""
    """The tag of the workers that execute the step in a cluster; empty: `default`."""

    @property
    def type(self) -> str:
        """The step type, as written in recipes."""
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
    """Limits on spending; None: no limit. Money is in whole micro-dollars: sums of floats are inexact."""

    tokens: int | None = None
    micro_usd: int | None = None


class Limits(Struct, frozen=True, omit_defaults=True, gc=False):
    """Limits from the recipe. None: the configuration (root run) or the parent (child run) decides."""

    max_concurrency: int | None = None
    max_agents: int | None = None
    max_steps: int | None = None
    timeout_ms: int | None = None
    budget: Budget = Budget()
    outage_ms: int | None = None


class Plan(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """A compiled recipe."""

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
    """Whether events add its steps and an end request finishes it.

    An open plan has no steps, no time limit, and no limit on agents and steps: each child has limits of its
    own.
    """
    metadata: dict[str, JSON] = field(default_factory=dict)
    source: str = ""
    """The text of the recipe."""
    source_hash: str = ""
    source_file: str = ""
    """Path of the recipe, relative to the project if inside it; empty for a plan built in code."""
    workflows: dict[str, Plan] = field(default_factory=dict)
    """Frozen closure of all reachable sub-workflows; filled in the root plan only."""


# -----------------------------------------------------------------------------------------------------------
# Cycles and topological order of a dependency graph.
#
# Results are deterministic: they follow the declaration order, never a hash. Walks are iterative, so a chain
# of any length works.

Edges = Mapping[str, Sequence[str]]
"""`{name: names it depends on}`, in declaration order."""


def find_rings(edges: Edges) -> list[list[str]]:
    """Return every cycle once. Each starts at its first declared member and follows the dependencies.

    Each strongly connected component gives one cycle: the shortest path from its first declared member back
    to itself.

    >>> find_rings({"a": ["c"], "b": ["a"], "c": ["b"], "d": ["d"]})
    [['a', 'c', 'b'], ['d']]
    """
    rings = []
    rank = {name: index for index, name in enumerate(edges)}
    for tangle in _tangles(edges):
        first = min(tangle, key=rank.__getitem__)
        if len(tangle) > 1 or first in edges[first]:
            rings.append(_way_back(edges, first, frozenset(tangle)))
    return sorted(rings, key=lambda ring: rank[ring[0]])


def _tangles(edges: Edges) -> list[list[str]]:
    """Return the strongly connected components (Tarjan), without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: dict[str, bool] = {}
    found: list[list[str]] = []
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack[root] = True
        while work:
            name, targets = work[-1]
            for target in targets:
                if target not in edges:
                    continue
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack[target] = True
                    work.append((target, iter(edges[target])))
                    break
                if on_stack[target]:
                    low[name] = min(low[name], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    tangle: list[str] = []
                    while not tangle or tangle[-1] != name:
                        tangle.append(stack.pop())
                        on_stack[tangle[-1]] = False
                    found.append(tangle)
    return found


def _way_back(edges: Edges, start: str, inside: frozenset[str]) -> list[str]:
    """Return the shortest cycle through `start` that stays inside its component."""
    came_from: dict[str, str] = {}
    queue = [start]
    for name in queue:
        for target in edges[name]:
            if target == start:
                ring = [name]
                while ring[-1] != start:
                    ring.append(came_from[ring[-1]])
                return ring[::-1]
            if target in inside and target not in came_from:
                came_from[target] = name
                queue.append(target)
    return [start]


def in_order(edges: Edges) -> list[str]:
    """Return the names in topological order, ties in declaration order, without members of cycles.

    >>> in_order({"c": ["a"], "a": [], "b": []})
    ['a', 'c', 'b']
    """
    rank = {name: index for index, name in enumerate(edges)}
    names = list(edges)
    missing = {name: sum(1 for target in targets if target in edges) for name, targets in edges.items()}
    dependents: dict[str, list[str]] = {name: [] for name in names}
    for name, targets in edges.items():
        for target in targets:
            if target in dependents:
                dependents[target].append(name)
    ready = [rank[name] for name in names if missing[name] == 0]
    order: list[str] = []
    while ready:
        name = names[heappop(ready)]
        order.append(name)
        for dependent in dependents[name]:
            missing[dependent] -= 1
            if missing[dependent] == 0:
                heappush(ready, rank[dependent])
    return order


# -----------------------------------------------------------------------------------------------------------
# Branch names that git accepts and that have no other meaning.

_OID = r"(?a)[0-9a-f]{40}"
_NAME = r"(?a)[A-Za-z0-9._/+@=-]{1,200}"


def check_branch_name(branch: str) -> str:
    """Return why a text cannot be a branch name; empty if it can.

    >>> check_branch_name("fix/owls"), check_branch_name("a..b")
    ('', "'a..b' cannot be the name of a branch")
    """
    parts = branch.split("/")
    bad = not re.fullmatch(_NAME, branch) or ".." in branch or "@{" in branch or branch.endswith((".", "/"))
    bad = bad or any(not part or part.startswith((".", "-")) or part.endswith(".lock") for part in parts)
    if bad or branch in ("HEAD", "@") or re.fullmatch(_OID, branch):
        return f"{branch!r:.120} cannot be the name of a branch"
    return ""
