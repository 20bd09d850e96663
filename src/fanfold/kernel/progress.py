"""Progress: how the end of one step affects dependents, parents, iterations and whole scopes.

Rules
* A step is admitted when all its dependencies have ended and none of them failed in a way that
  reaches it; otherwise it is skipped for the failure.
* A composite ends when all its children have ended. Its failure is that of its first failed child.
* `admission` assigns slots, not this module. Every visible change becomes a command on the agenda, and the
  host answers it with an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappush

from fanfold.kernel.admission import enqueue, release, unchoose, withdraw
from fanfold.kernel.budget import Ledger
from fanfold.kernel.commands import Command, Conclude, Evaluate, Finish, Queue, Retry, Skip, Start, Stop
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import MAX_NESTING_DEPTH, GroupAction, Step, WorkflowAction
from fanfold.kernel.state import (
    ASKED,
    BACK_OFF,
    CALL,
    CANCELLED,
    COMPLETED,
    ENDED,
    FAILED,
    HELD,
    INTERRUPTED,
    LEAF,
    LOOP,
    MAP,
    PARTIAL,
    PENDING,
    READY,
    RUNNING,
    SCOPE,
    SKIPPED,
    TERMINAL,
    TIMED_OUT,
    UNSUCCESSFUL,
    WAITING,
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
from fanfold.kernel.waits import leave_wait

# -----------------------------------------------------------------------------------------------------------
# Tolerated failures: a run with such failures can still be `completed`.
#
# A failure is tolerated
# * if a later iteration of an enclosing loop converged, or that loop continues without having converged;
# * if its step is `inline`, and a step that completed, or the output of the enclosing run or group, read the
#   failure in place of an output.
# A composite that failed because of a tolerated failure inside it is tolerated, too. This is computed from
# the tree when a run ends, so only runs with failures pay for it.


def is_unsuccessful(node: Node) -> bool:
    """Whether a step failed, timed out, was cancelled, or was skipped for a failure."""
    return node.status in UNSUCCESSFUL or (node.status == SKIPPED and node.reason == "failure")


def untolerated(run: Run) -> Iterator[Node]:
    """Return the steps of an ended run whose failure is not tolerated."""
    return (node for node in run.nodes.values() if is_unsuccessful(node) and not is_tolerated(node))


def is_tolerated(node: Node) -> bool:
    """Whether the failure of a step is tolerated: it does not prevent its run from being `completed`."""
    current, parent = node, node.parent
    while parent is not None and parent.run is node.run:
        if isinstance(parent, Loop) and _went_on_after(parent, current):
            return True
        inline = current.step.on_failure == "inline" and current.status in UNSUCCESSFUL
        if inline and parent.kind in (SCOPE, MAP) and _is_read(current if parent.kind == SCOPE else parent):
            return True
        current, parent = parent, parent.parent
    return False


def _went_on_after(loop: Loop, body: Node) -> bool:
    if loop.status != COMPLETED or body.step is loop.step.fold:
        return False
    return loop.exhausted or body is not loop.children[loop.iteration - 1]


def _is_read(node: Node) -> bool:
    """Whether a completed step, or the output of an enclosing scope, read the failure of an inline step."""
    scope = node.parent
    if scope is None or scope.kind != SCOPE:
        return False
    prefix = f"{scope.path}/" if scope.path else ""
    return any(
        node.run.nodes[prefix + name].status == COMPLETED if name else _gave_output(node.run, scope)
        for name in node.step.read_by
    )


def _gave_output(run: Run, scope: Node) -> bool:
    around = scope.parent
    looped = around is not None and around.kind == LOOP and around.status == COMPLETED
    return scope is run.scope or scope.status == COMPLETED or looped


# -----------------------------------------------------------------------------------------------------------
# Outcomes: the status of a composite, and of a run, from the statuses of its children.
#
# Rules
# * A composite that was asked to stop ends as cancelled or timed out. Otherwise its failure is that of its
#   first failed child in plan order. Otherwise it completed.
# * A failed iteration counts as false. If its failure is of a class that a retry cannot change, or its step
#   has `on_failure: stop`, then the loop fails.
# * If a step of the plan ended the run, that step defines the status of the run.
# * Any other run is `completed` only if no step failed, timed out, was cancelled, or was skipped for a
#   failure, except for tolerated failures. It is `failed` if a `stop` fired or no step completed. Otherwise
#   it is `partial`.

REPEATED = frozenset(("agent", "tool", "timeout", "invalid_output"))
"""Failure classes that make an iteration false; any other class ends the loop."""


def wind_up(state: State, node: Composite) -> None:
    """Conclude a composite whose children have ended, or finish the run if it is the top scope."""
    run = node.run
    if node.closing or (node is run.scope and run.growing and not run.ending):
        return
    if node is run.scope:
        node.closing = True
        state.agenda.append(Finish(run.id, *_run_outcome(run)))
    elif node.stopping:
        conclude(state, node, TIMED_OUT if node.stopping == TIMED_OUT else CANCELLED, _stop_failure(node))
    elif node.failed_child is not None:
        conclude(state, node, FAILED, failure_of(node.failed_child))
    else:
        conclude(state, node, COMPLETED, None)


def can_be_repeated(loop: Loop, body: Node) -> bool:
    """Whether the loop continues with its next iteration after this one failed."""
    repeat, action = loop.step.repeat, loop.step.action
    assert repeat is not None
    if isinstance(action, GroupAction) and action.phase and repeat.max_iterations == 1:
        return False  # for its author, a phase without iterations is not a loop
    if body.status not in (FAILED, TIMED_OUT) or body.step.on_failure == "stop":
        return False
    return failure_of(body).kind in REPEATED


def conclude(state: State, node: Node, status: str, error: Failure | None, reason: str = "") -> None:
    """Put the command that ends a step on the agenda."""
    node.closing = True
    attempt, execution = (node.attempt, node.execution) if _is_under_way(node) else (0, 0)
    state.agenda.append(Conclude(node.run.id, node.path, status, attempt, execution, error, reason))


def _is_under_way(node: Node) -> bool:
    """Whether an unfinished attempt ends with the step. A step that waits for its next attempt has none."""
    asks = node.status == WAITING and node.step.traits.waits is not None
    return node.holding or node.lost or asks or isinstance(node, Composite)


def failure_of(node: Node) -> Failure:
    """Return the failure that a parent inherits from a child: the root cause, with its address."""
    while node.error is None and node.status == SKIPPED and node.blocked_by is not None:
        node = node.blocked_by
    if node.error is not None:
        return node.error
    return Failure(CANCELLED, f"step.{node.status}", f"{node.path} was {node.status}", step=node.path)


def _stop_failure(node: Node) -> Failure | None:
    if node.stopping == TIMED_OUT:
        limit = node.step.timeout_ms
        return Failure("timeout", "step.timeout", f"{node.path} took longer than {limit} ms", step=node.path)
    return None


def _run_outcome(run: Run) -> tuple[str, Failure | None]:
    first = run.scope.failed_child
    error = failure_of(first) if first is not None else None
    if run.ending == CANCELLED:
        return CANCELLED, None
    if run.ending == TIMED_OUT:
        return TIMED_OUT, Failure("timeout", "run.timeout", "the run took longer than its limit")
    ended_by = run.ended_by
    if ended_by is not None and ended_by.step.traits.ends is not None:
        return ended_by.step.traits.ends, ended_by.error
    if run.ending == "stop":
        return FAILED, failure_of(run.stopped_by) if run.stopped_by is not None else error
    if run.unsuccessful == 0 or (run.completed and next(untolerated(run), None) is None):
        return COMPLETED, None
    return (PARTIAL if run.completed else FAILED), error


def call_outcome(call: WorkflowCall, child: Run) -> tuple[str, Failure | None]:
    """Return status and failure of a `workflow` step whose child run has ended."""
    if call.stopping == TIMED_OUT:
        return TIMED_OUT, _stop_failure(call)
    if child.status in (COMPLETED, CANCELLED):
        return child.status, None
    inner = child.error.message if child.error is not None else ""
    # Without its id: dependents may read this text, and the same results must give the same prompts.
    message = f"the child run is {child.status}" + (f": {inner}" if inner else "")
    kind = "timeout" if child.status == TIMED_OUT else "agent"
    failure = Failure(kind, f"run.{child.status}", message, retryable=False, step=call.path)
    return (TIMED_OUT if child.status == TIMED_OUT else FAILED), failure


# -----------------------------------------------------------------------------------------------------------
# Early ends of a step, a scope or a whole run.
#
# Running steps are asked to stop, other steps are cancelled, and composites then end by the ordinary rule.
# So a parent is never terminal before its descendants. If a step of the plan ended the run, as its author
# intended, steps that have not started are skipped instead.


def end_run(state: State, run: Run, why: str) -> None:
    """End a run early. `why` is cancelled, timed_out, stop, or end (a step of the plan ended the run)."""
    run.ending = why
    sweep(state, run.scope, CANCELLED, skipped_in=run if why == ENDED else None)


def sweep(state: State, top: Node, reason: str, skipped_in: Run | None = None) -> None:
    """Stop running steps at or below `top` and cancel other steps; composites then end by the ordinary rule.

    In the run `skipped_in`, steps that have not started are skipped instead.
    """
    state.agenda = type(state.agenda)(
        command for command in state.agenda if not _obsolete(state, command, top)
    )
    stack: list[Node] = [top]
    leaves: list[Node] = []
    composites: list[Composite] = []
    while stack:
        node = stack.pop()
        if node.status in TERMINAL or node.closing:
            continue
        if node.run is skipped_in and _has_not_begun(node):
            _skip(state, node)
        elif isinstance(node, Composite):
            node.stopping = node.stopping or (reason if node is top else CANCELLED)
            composites.append(node)
            if isinstance(node, WorkflowCall) and node.child is not None and not node.child.ending:
                node.child.ending = CANCELLED
            stack.extend(reversed(node.children))
        else:
            leaves.append(node)
    for leaf in leaves:
        _stop_leaf(state, leaf)
    for composite in reversed(composites):
        if composite.open == 0 and not composite.closing and composite.kind != CALL:
            wind_up(state, composite)
        elif not composite.entered and composite.kind == CALL and not composite.closing:
            conclude(state, composite, CANCELLED, None)


def _has_not_begun(node: Node) -> bool:
    """Whether no part of a step has started: it waits for its turn, a person or a timer."""
    if isinstance(node, Composite):
        return node.status in (PENDING, READY) and not node.entered
    asked = node.status == WAITING and node.holding  # it has started, and waits for approval
    return node.status in (PENDING, READY, WAITING) and not node.lost and not asked


def _skip(state: State, node: Node) -> None:
    if node.holding:
        unchoose(state, node)
    node.closing = True
    state.agenda.append(Skip(node.run.id, node.path, "ended"))


def _obsolete(state: State, command: Command, top: Node) -> bool:
    if not isinstance(command, Evaluate | Queue | Start | Retry):
        return False
    node: Node | None = state.runs[command.run].nodes[command.step]
    while node is not None and node is not top:
        node = node.parent
    return node is top


def _stop_leaf(state: State, leaf: Node) -> None:
    if leaf.status == RUNNING and not leaf.lost:
        if leaf.stopping in ("", "pause"):
            command = Stop(leaf.run.id, leaf.path, leaf.attempt, leaf.execution, CANCELLED)
            state.agenda.append(command)
        leaf.stopping = CANCELLED  # also if it is stopping for its timeout: no retry follows
        return
    if leaf.status == READY and leaf.holding:
        unchoose(state, leaf)
    conclude(state, leaf, CANCELLED, None)


# Creating instances

DECLARED, ITEM, BODY = 0, 1, 2


def create(state: State, step: Step, parent: Composite, path: str, order: Order, level: int) -> Node:
    """Create an instance of a step: as declared, as one item of its map, or as one iteration of its loop."""
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
    """Create the instances of a scope's steps, link their edges, and admit those without dependencies."""
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
    """Append an instance to a running scope. It is admitted after its `queued` event."""
    node = create(state, step, scope, step.id, (*scope.order, len(scope.children)), DECLARED)
    scope.open += 1
    if step.parent:
        parent = scope.run.nodes[step.parent]
        if parent.spawned:
            parent.spawned.append(node)
        else:
            parent.spawned = [node]
    for name in step.depends_on + step.after:
        dependency = scope.run.nodes[name]
        if dependency.status not in TERMINAL:
            node.unmet += 1
            _link(node, dependency)
        elif node.blocked_by is None and name in step.depends_on and _reaches(dependency):
            node.blocked_by = dependency
    return node


def open_run(state: State, run: Run, parent: Composite | None) -> None:
    """Create the top scope of a run. A child run also gets the limits of its recipe."""
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
    """Add a quota for everything inside a scope. Without limits this adds nothing."""
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
    """Reserve `count` instances for a composite that starts later. False if they exceed `max_steps`."""
    if _exceeds_max_steps(state, node, count):
        return False
    node.promised = count
    state.promised += count
    return True


def redeem(state: State, node: Composite) -> None:
    """Release the instances reserved for a composite: it creates them now, or it ended."""
    state.promised -= node.promised
    node.promised = 0


# Admission of a single step


def admit(state: State, node: Node) -> None:
    """Skip a step whose dependencies have ended, evaluate its expressions, or open it."""
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
    """Queue an admitted step, put its `Start` on the agenda, or start its first iteration."""
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
    """Create one child per item, in item order, and admit them."""
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
    """Create and admit the next iteration of a loop, if `max_steps` allows it."""
    if _exceeds_max_steps(state, loop, 1):
        return
    loop.iteration += 1
    loop.open = 1
    path = f"{loop.path}#{loop.iteration}"
    admit(state, create(state, loop.step, loop, path, (*loop.order, loop.iteration), BODY))


def start_fold(state: State, loop: Loop) -> None:
    """Create and admit the fold of a loop that converged."""
    fold, repeat = loop.step.fold, loop.step.repeat
    assert fold is not None and repeat is not None
    loop.converged = True
    if _exceeds_max_steps(state, loop, 1):
        return
    loop.open = 1
    order = (*loop.order, repeat.max_iterations + 1)
    admit(state, create(state, fold, loop, f"{loop.path}/{fold.id}", order, DECLARED))


def resume_oversize(state: State) -> None:
    """Expand the composites that exceeded `max_steps` again, after a resume."""
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
    """Set a step's terminal status, count it, and update its dependents and its parent."""
    if node.subject:
        leave_wait(state, node)
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
        if not parent.stopping:  # else the policy of its group applies
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
    """Whether the end of a step skips its dependents."""
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
    """Whether the loop evaluates its gate now: not after a failure that ends it, nor after its fold."""
    if loop.stopping or child.step is loop.step.fold:
        return False
    return not failed or can_be_repeated(loop, child)
