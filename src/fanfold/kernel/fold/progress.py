"""How the end of one step moves the others: dependents, parents, iterations, whole scopes.

Rules
* A step is admitted when all its dependencies have ended and none of them failed in a way that
  reaches it; otherwise it is skipped for the failure.
* A composite ends when all its children have ended. Its failure is that of its first failed child.
* Nothing here decides who gets a slot (that is `admission`), and everything that others must know
  goes onto the agenda, to come back as an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush

from fanfold.kernel.budget import Ledger
from fanfold.kernel.commands import Evaluate, Skip, Start
from fanfold.kernel.events import Failure
from fanfold.kernel.fold.admission import enqueue, release, withdraw
from fanfold.kernel.fold.outcomes import can_be_repeated, conclude, wind_up
from fanfold.kernel.fold.sweep import end_run, sweep
from fanfold.kernel.fold.tolerance import is_unsuccessful
from fanfold.kernel.lifecycle import (
    ASKED,
    BACK_OFF,
    CANCELLED,
    COMPLETED,
    ENDED,
    FAILED,
    HELD,
    INTERRUPTED,
    PENDING,
    READY,
    RUNNING,
    SKIPPED,
    TERMINAL,
    WAITING,
)
from fanfold.kernel.nodes import (
    CALL,
    LEAF,
    LOOP,
    MAP,
    SCOPE,
    Composite,
    Loop,
    Map,
    Node,
    Order,
    Quota,
    Run,
    Scope,
    State,
    WorkflowCall,
)
from fanfold.kernel.plan import (
    MAX_NESTING_DEPTH,
    GroupAction,
    Step,
    WorkflowAction,
)

# Creating instances

DECLARED, ITEM, BODY = 0, 1, 2


def create(state: State, step: Step, parent: Composite, path: str, order: Order, level: int) -> Node:
    """An instance of a step: as declared, as one item of its map, or as one iteration of its loop."""
    run = parent.run
    node: Node
    if level == DECLARED and step.for_each is not None:
        node = Map(step, run, parent, path, order)
    elif level <= ITEM and step.repeat is not None:
        node = Loop(step, run, parent, path, order)
    else:
        state.instances += 1
        action = type(step.action)
        if action is GroupAction:
            node = Scope(step, run, parent, path, order)
        elif action is WorkflowAction:
            node = WorkflowCall(step, run, parent, path, order)
        else:
            node = Node(step, run, parent, path, order)
    run.nodes[path] = node
    parent.children.append(node)
    if level == DECLARED and step.max_concurrency is not None and isinstance(node, Composite):
        limit_scope(state, node, step.max_concurrency, None, None)
    return node


def enter_scope(state: State, scope: Scope, steps: Sequence[Step]) -> None:
    """Create the instances of a scope's steps, wire their edges, admit those without any."""
    scope.entered = True
    scope.status = RUNNING
    prefix = f"{scope.path}/" if scope.path else ""
    order = scope.order
    by_id: dict[str, Node] = {}
    for index, step in enumerate(steps):
        by_id[step.id] = create(state, step, scope, prefix + step.id, (*order, index), DECLARED)
    scope.open = len(scope.children)
    for node in scope.children:
        edges = node.step.depends_on + node.step.after
        node.unmet = len(edges)
        for name in edges:
            _link(node, by_id[name])
    for node in scope.children:
        if node.unmet == 0:
            admit(state, node)
    if scope.open == 0:
        wind_up(state, scope)


def _link(node: Node, dependency: Node) -> None:
    if dependency.dependents:
        dependency.dependents.append(node)
    else:
        dependency.dependents = [node]


def add_step(state: State, scope: Scope, step: Step) -> Node:
    """Append an instance to a scope that is under way; it is admitted once its queueing was recorded."""
    node = create(state, step, scope, step.id, (*scope.order, len(scope.children)), DECLARED)
    scope.open += 1
    if step.parent:
        parent = scope.run.nodes[step.parent]
        parent.spawned = [*parent.spawned, node]
    for name in step.depends_on + step.after:
        dependency = scope.run.nodes[name]
        if dependency.status not in TERMINAL:
            node.unmet += 1
            _link(node, dependency)
        elif node.blocked_by is None and name in step.depends_on and _reaches(dependency):
            node.blocked_by = dependency
    return node


def open_run(state: State, run: Run, parent: Composite | None) -> None:
    """Give a run its top scope and, where its recipe says so, limits of its own."""
    order = () if parent is None else parent.order
    top = Step(id=run.plan.name, action=GroupAction(steps=run.plan.steps))
    scope = Scope(top, run, parent, "", order)
    run.scope = scope
    state.runs[run.id] = run
    if parent is not None:
        parent.children.append(scope)
        parent.open = 1
        limits = run.plan.limits
        budget = limits.budget
        ledger = Ledger(budget.tokens, budget.micro_usd)
        limit_scope(
            state, scope, limits.max_concurrency, limits.max_agents, ledger if ledger.limited else None
        )
        if limits.timeout_ms is not None:
            heappush(state.run_deadlines, (state.clock + limits.timeout_ms, run.id))


def limit_scope(
    state: State, scope: Composite, slots: int | None, agents: int | None, ledger: Ledger | None
) -> None:
    """Put a cap on everything inside a scope; without limits nothing is added and nothing costs."""
    if slots is None and agents is None and ledger is None:
        return
    quota = Quota(slots, agents if agents is None else max(agents, state.raised_agents), ledger)
    scope.inner_quotas = (*scope.inner_quotas, quota)
    state.quotas.append(quota)
    if ledger is not None:
        state.budgeted = True


def _exceeds_max_steps(state: State, node: Composite, count: int) -> bool:
    if state.instances + state.promised + count <= state.max_steps:
        return False
    state.oversize.append((node.order, node))
    return True


def _promise(state: State, node: Composite, count: int) -> bool:
    """Keep `count` instances for a composite that enters later; False when they do not fit."""
    if _exceeds_max_steps(state, node, count):
        return False
    node.promised = count
    state.promised += count
    return True


def redeem(state: State, node: Composite) -> None:
    """The composite creates what it was promised, or never will."""
    state.promised -= node.promised
    node.promised = 0


# Admission of a single step


def admit(state: State, node: Node) -> None:
    """All dependencies have ended: skip, evaluate what must be known, or open the step."""
    if node.blocked_by is not None:
        node.closing = True
        state.agenda.append(Skip(node.run.id, node.path, "failure", node.blocked_by.path))
        return
    step = node.step
    if node.kind == MAP:
        state.agenda.append(Evaluate(node.run.id, node.path, "for_each"))
    elif (step.when is not None and not _is_iteration(node)) or (step.templated_sets and node.kind == LEAF):
        state.agenda.append(Evaluate(node.run.id, node.path, "admission"))
    else:
        open_step(state, node)


def _is_iteration(node: Node) -> bool:
    return node.parent is not None and node.parent.kind == LOOP


def open_step(state: State, node: Node) -> None:
    """The step may go: into the queue, onto the agenda, or into its first iteration."""
    kind = node.kind
    if kind == LEAF:
        traits = node.step.action.traits
        if traits.workspace == "none":
            node.read_set = node.write_set = ()
        if traits.waits is not None:
            _begin(state, node)
        else:
            enqueue(state, node)
    elif isinstance(node, Loop):
        node.status = RUNNING
        node.entered = True
        next_iteration(state, node)
    elif isinstance(node, WorkflowCall):
        action = node.step.action
        assert isinstance(action, WorkflowAction)
        if node.run.depth >= MAX_NESTING_DEPTH:
            message = f"child runs nest at most {MAX_NESTING_DEPTH} deep"
            conclude(state, node, FAILED, Failure("agent", "run.depth", message, retryable=False))
        elif _promise(state, node, len(state.plan.workflows[action.workflow].steps)):
            _begin(state, node)
    elif isinstance(node, Scope):
        action = node.step.action
        assert isinstance(action, GroupAction)
        if _promise(state, node, len(action.steps)):
            _begin(state, node)


def _begin(state: State, node: Node) -> None:
    node.status = READY
    node.attempt = node.execution = 1
    state.agenda.append(Start(node.run.id, node.path, node.step.type, 1, 1))


def expand_map(state: State, node: Map, count: int) -> None:
    """One child per item, in item order."""
    node.count = count
    node.status = PENDING
    if _exceeds_max_steps(state, node, count):
        return
    node.status = RUNNING
    node.entered = True
    node.open = count
    for index in range(count):
        create(state, node.step, node, f"{node.path}[{index}]", (*node.order, index), ITEM)
    for child in node.children:
        admit(state, child)
    if count == 0:
        wind_up(state, node)


def next_iteration(state: State, loop: Loop) -> None:
    if _exceeds_max_steps(state, loop, 1):
        return
    loop.iteration += 1
    loop.open = 1
    path = f"{loop.path}#{loop.iteration}"
    admit(state, create(state, loop.step, loop, path, (*loop.order, loop.iteration), BODY))


def start_fold(state: State, loop: Loop) -> None:
    """The loop converged: its last child folds the result."""
    fold, repeat = loop.step.fold, loop.step.repeat
    assert fold is not None and repeat is not None
    loop.converged = True
    if _exceeds_max_steps(state, loop, 1):
        return
    loop.open = 1
    order = (*loop.order, repeat.max_iterations + 1)
    admit(state, create(state, fold, loop, f"{loop.path}/{fold.id}", order, DECLARED))


def resume_oversize(state: State) -> None:
    """`max_steps` was raised: let the composites that did not fit try again."""
    held, state.oversize = sorted(state.oversize, key=lambda entry: entry[0]), []
    for _, node in held:
        if node.status in TERMINAL or node.closing:
            continue
        if isinstance(node, Map) and node.count is not None:
            expand_map(state, node, node.count)
        elif isinstance(node, Loop) and node.entered:
            (start_fold if node.converged else next_iteration)(state, node)
        else:
            open_step(state, node)


# Ends


def finish(state: State, node: Node, status: str, reason: str = "") -> None:
    """A step reached a terminal status: count it, then tell its dependents and its parent."""
    if node.holding:
        if node.status == WAITING:
            _leave_waiting(state, node)
        release(state, node)
    elif isinstance(node, Composite):
        redeem(state, node)
    else:
        withdraw(state, node)
        if node.status == WAITING:
            _leave_waiting(state, node)
    node.status = status
    node.reason = reason
    node.ended_at = state.now
    run = node.run
    unsuccessful = is_unsuccessful(node)
    if status == COMPLETED:
        run.completed += 1
    elif unsuccessful:
        run.unsuccessful += 1
    parent = node.parent
    in_scope = parent is not None and parent.kind == SCOPE
    policy = node.step.on_failure
    if unsuccessful and policy == "stop" and in_scope and status != SKIPPED and not run.ending:
        assert parent is not None
        if not parent.stopping:  # else it ends with its group, whose own policy counts
            run.stopped_by = node
            end_run(state, run, "stop")
    if node.step.traits.ends is not None and status == COMPLETED and node.kind == LEAF and not run.ending:
        run.stopped_by = node
        end_run(state, run, ENDED)
    reaches = _reaches(node)
    _end_spawned(state, node)
    _tell_dependents(state, node, reaches)
    if parent is not None:
        _child_ended(state, parent, node, reaches if in_scope else unsuccessful)


def _end_spawned(state: State, node: Node) -> None:
    for spawned in node.spawned:
        sweep(state, spawned, CANCELLED)


def _tell_dependents(state: State, node: Node, reaches: bool) -> None:
    for dependent in node.dependents:
        dependent.unmet -= 1
        if reaches and dependent.blocked_by is None and node.step.id not in dependent.step.after:
            dependent.blocked_by = node
        if dependent.unmet == 0 and dependent.status == PENDING and not dependent.closing:
            admit(state, dependent)


def _reaches(node: Node) -> bool:
    """Whether the end of a step skips those that depend on it."""
    inline = node.step.on_failure == "inline" and node.status != SKIPPED
    return is_unsuccessful(node) and not inline


def _leave_waiting(state: State, node: Node) -> None:
    waits = node.step.traits.waits
    if waits == "timer":
        state.delays -= 1
    elif waits is not None:
        state.approvals -= 1
    elif node.reason == BACK_OFF:
        state.backoffs -= 1
    elif node.reason == ASKED:
        state.approvals -= 1
        state.asked -= 1
    elif node.reason == INTERRUPTED:
        state.interrupted -= 1
    elif node.reason == HELD:
        del state.held[node.run.id, node.path]


def _child_ended(state: State, parent: Composite, child: Node, failed: bool) -> None:
    parent.open -= 1
    if isinstance(parent, Loop) and _turns(parent, child, failed):
        state.agenda.append(Evaluate(parent.run.id, parent.path, "until"))
        return
    if failed and not (parent.kind == MAP and parent.step.on_failure == "inline"):
        first = parent.failed_child
        if first is None or child.order < first.order:
            parent.failed_child = child
    if parent.open == 0 and parent.kind != CALL:
        wind_up(state, parent)


def _turns(loop: Loop, child: Node, failed: bool) -> bool:
    """Whether the loop asks its gate now: not after a failure that ends it, nor after its fold."""
    if loop.stopping or child.step is loop.step.fold:
        return False
    return not failed or can_be_repeated(loop, child)
