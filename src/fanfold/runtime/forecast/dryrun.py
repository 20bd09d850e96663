"""Dry run: what a run would do, foretold by the scheduler itself. Starts nothing, writes nothing.

The kernel is driven with steps that take one tick each (`host`), with the values that are known beforehand
and assumptions for the others (`foresight`). A wave is what starts in one tick.

`DryRun` has exactly the keys that scripts read from `run --dry-run --json`; the nodes beside it give a
surface what it needs to present the same facts to a person.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fanfold.kernel.events import Settings
from fanfold.kernel.lifecycle import FAILED
from fanfold.kernel.nodes import Composite, Map, Node, WorkflowCall
from fanfold.kernel.plan import JSON, Plan
from fanfold.runtime.forecast.agent_bounds import AgentBounds
from fanfold.runtime.forecast.conflicts import MAX_OVERLAPS, Conflicts, find_conflicts
from fanfold.runtime.forecast.foresight import Foresight
from fanfold.runtime.forecast.host import MAX_INSTANCES, ForecastHost
from fanfold.runtime.forecast.order import Order
from fanfold.runtime.views.recipes.forecasts import Agents, Cost, DryRun, ForeseenConflict

MAX_FAILURES = 20


def dry_run(
    plan: Plan,
    inputs: Mapping[str, JSON],
    settings: Settings,
    *,
    warnings: Sequence[str] = (),
    allowed: bool = True,
) -> tuple[DryRun, dict[str, Node]]:
    """Foretell a run of `plan` under these settings; also the instance behind every path that starts."""
    world = Foresight(inputs)
    host = ForecastHost(plan, settings, world)
    host.drive()
    begun = {begun.node for begun in host.begun}
    shown = {node: path for node, path in _paths(host.state.root.scope, "", world) if node in begun}
    steps = list(shown)
    order = Order(host.state.root.scope, steps)
    conflicts = find_conflicts(steps, order)
    names = list(shown.values())
    bounds = AgentBounds(host.state.plan, world.assumed).of(host.state.root.scope)
    waves = _waves(host, shown)
    failures = list(_failures(host))
    limits = list(_limits(host, settings, bounds.low, not (world.assumed.conditions or world.assumed.lists)))
    notes = list(_notes(host, settings, bounds.high, conflicts))
    result = DryRun(
        waves=waves,
        conflicts=[ForeseenConflict(names[pair.a], names[pair.b], pair.on) for pair in conflicts.listed],
        conflicts_total=conflicts.total,
        critical_path=[names[number] for number in order.critical_path(lambda _: 1)],
        agents=Agents(bounds.low, bounds.high),
        cost=Cost(_usd_max(settings, bounds.high)),
        would_run=allowed and not failures and not any(blocking for _, blocking in limits),
        warnings=[*warnings, *failures, *(text for text, _ in limits), *notes, *world.assumed.told()],
    )
    return result, {path: node for node, path in shown.items()}


def _paths(node: Composite, path: str, world: Foresight) -> Iterator[tuple[Node, str]]:
    """Every instance in plan order with its tree path; the item that stands for an unknown list is `[*]`."""
    for child in node.children:
        if isinstance(node, Map) and node in world.assumed.lists:
            at = f"{path}[*]"
        else:
            whole = child.run.tree_path(child.path)
            at = path + whole[len(node.run.tree_path(node.path)) :]
        yield child, at.removeprefix("/")
        if isinstance(child, Composite):
            yield from _paths(child, at, world)


def _waves(host: ForecastHost, shown: Mapping[Node, str]) -> list[list[str]]:
    waves: dict[int, list[str]] = {}
    for begun in host.begun:
        waves.setdefault(begun.at, []).append(shown[begun.node])
    return list(waves.values())


def _usd_max(settings: Settings, agents: int) -> float | None:
    if agents == 0:
        return 0.0
    micro = settings.budget_micro_usd
    return None if micro is None else micro / 1_000_000


def _failures(host: ForecastHost) -> Iterator[str]:
    """What would fail for certain, each where it begins."""
    found = 0
    for run in host.state.runs.values():
        for node in run.nodes.values():
            if node.status != FAILED or node.error is None or _inherits(node):
                continue
            found += 1
            if found > MAX_FAILURES:
                yield "more steps would fail"
                return
            why = node.error.message.removeprefix(f"{node.path}: ")
            yield f'"{run.tree_path(node.path)}" would fail: {why}'


def _inherits(node: Node) -> bool:
    """Whether a step fails only because something inside it does."""
    if isinstance(node, WorkflowCall):
        return node.child is not None
    return isinstance(node, Composite) and node.failed_child is not None


def _limits(host: ForecastHost, settings: Settings, low: int, sure: bool) -> Iterator[tuple[str, bool]]:
    """Where limits would hold the run; True marks one that it cannot get past."""
    for held in host.held:
        waves = len({begun.at for begun in host.begun[: held.begun]})
        when = f"it would pause after wave {waves}" if waves else "it would pause before its first step"
        for limit in held.limits:
            if limit == "budget":
                yield f"{when} for its budget, if each agent spends what is estimated for it", False
            elif limit == "max_steps":
                yield f"has more step instances than max_steps allows ({settings.max_steps:,}): {when}", sure
            elif not held.by_tree:
                yield f"a phase or child run needs more agents than its own max_agents: {when}", sure
            elif low > settings.max_agents:
                yield f"needs at least {low:,} agents, but max_agents is {settings.max_agents}: {when}", True
            else:
                yield f"may need more agents than max_agents ({settings.max_agents}): {when}", False


def _notes(host: ForecastHost, settings: Settings, high: int, conflicts: Conflicts) -> Iterator[str]:
    if high > settings.max_agents and not any("max_agents" in held.limits for held in host.held):
        yield f"may need up to {high:,} agents; it would pause at max_agents ({settings.max_agents})"
    if not host.complete:
        yield f"only the first {MAX_INSTANCES:,} step instances were looked into"
    if not conflicts.complete:
        yield f"conflicts are counted among the first {MAX_OVERLAPS:,} overlapping patterns only"
