"""Events from outside a run: results, time, answers, requests, and invalid reports.

The seed chooses one event at a time, usually the next one in time. Faults reorder and repeat results, deliver
results of abandoned executions, move the clock, and let users pause and cancel at any moment.
"""

from __future__ import annotations

from msgspec.structs import replace

from fanfold.kernel.decide import is_waiting, next_timer
from fanfold.kernel.events import (
    UNBOUNDED,
    CancelRequested,
    CloseRequested,
    EndRequested,
    Event,
    Evidence,
    Failure,
    LimitsRaised,
    PauseRequested,
    Payment,
    PhaseFolded,
    RequestRefused,
    ResumeRequested,
    RunResumed,
    StepAdded,
    StepEvent,
    SubagentEvent,
    TimerFired,
    Usage,
    WaitClosed,
    WaitOpened,
)
from fanfold.kernel.plan import Step
from fanfold.kernel.state import (
    ASKED,
    BUDGET,
    INTERRUPTED,
    LEAF,
    PAUSED,
    PENDING,
    READY,
    REJECT,
    RUN_TERMINAL,
    RUNNING,
    TERMINAL,
    TIMED_OUT,
    UNSUCCESSFUL,
    WAITING,
    Node,
    State,
    judge,
)
from fanfold.kernel.transitions import comes_after, mark_late, why_not_added
from fanfold.kernel.waits import next_attempt
from fanfold.language.leaf_steps import AgentBody, ApprovalBody, read_body
from fanfold.testing.checks import NOWHERE, InvariantError
from fanfold.testing.world import Owner, SimulatedExecution, provider_of

# -----------------------------------------------------------------------------------------------------------
# Requests of users to an open run: add steps, send input to a child, close or resume it, end the run.
#
# Users act at any moment and see only the log. The steps that they add are fixed when the world is created,
# so after a crash that cut the log they continue where the log ends.

MAX_TURNS = 6
"""The maximum number of turns added to the children of one run."""


def ask(owner: Owner) -> bool:
    """Perhaps let a user request something of the run; return whether a request was recorded."""
    rng = owner.world.rng
    if rng.random() < (0.1 if owner.state.root.status == PAUSED else 0.02):
        return not owner.world.watch.asked_to_end and _end(owner)
    wishes = (_add, _add, _add, _send, _send, _close, _resume, _add_twice)
    return rng.choice(wishes)(owner)


def go_on(owner: Owner) -> bool:
    """When no event is due: let users resume steps, add the remaining ones, then end the run."""
    if _resume(owner) or (not owner.world.watch.asked_to_end and (_add(owner) or _end(owner))):
        return True
    state = owner.state
    if owner.world.watch.asked_to_end and not (state.approvals or state.delays or state.interrupted):
        raise InvariantError(19, "the run was asked to end, has nothing left to do, and does not end")
    return False


def _add(owner: Owner) -> bool:
    """Add the next step, requested by a user or by a running agent."""
    world = owner.world
    step = next((step for step in world.additions if step.id not in owner.state.root.nodes), None)
    if step is None:
        return False
    agents = _agents(owner.state).values()
    running = [turn for turns in agents for turn in turns if turn.status == RUNNING and not turn.stopping]
    if running and world.rng.random() >= 0.5:
        world.reached["asked for by an agent"] += 1
        step = replace(step, parent=world.rng.choice(running).path)
    return _record_added(owner, step, "added")


def _add_twice(owner: Owner) -> bool:
    """Let a user request something of an existing step."""
    first = owner.world.additions[:1]
    return any(why_not_added(owner.state.root, step) for step in first) and _refuse(owner)


def _refuse(owner: Owner) -> bool:
    failure = Failure("agent", "sim.refused", "that cannot be done")
    owner.record(owner.state.root.id, RequestRefused(0, failure))
    return True


def _record_added(owner: Owner, step: Step, what: str) -> bool:
    root = owner.state.root
    if why_not_added(root, step):
        return False
    owner.world.reached[what] += 1
    owner.record(root.id, StepAdded(step=step, frozen=f"facts of {step.id}"))
    return True


def _children(state: State) -> dict[str, list[Node]]:
    """Return the turns of all added steps, by name."""
    found: dict[str, list[Node]] = {}
    for node in state.root.scope.children:
        found.setdefault(node.path.partition("#")[0], []).append(node)
    return found


def _agents(state: State) -> dict[str, list[Node]]:
    return {
        name: turns
        for name, turns in _children(state).items()
        if turns[0].kind == LEAF and turns[0].step.traits.role is not None
    }


def _send(owner: Owner) -> bool:
    """Add the next turn of a child."""
    world = owner.world
    children = _agents(owner.state)
    if not children or sum(len(turns) - 1 for turns in children.values()) >= MAX_TURNS:
        return False
    name = world.rng.choice(list(children))
    last = children[name][-1]
    body = replace(read_body(AgentBody, last.step), prompt="and now?", continue_from=last.path)
    turn = f"{name}#{len(children[name]) + 1}"
    step = replace(
        last.step,
        id=turn,
        action=body.action(),
        after=comes_after(children[name]),
        depends_on=(),
        inputs={},
        when=None,
        parent="",
    )
    if why_not_added(owner.state.root, step):
        world.reached["refused behind a closed one"] += last.closed
        return _refuse(owner)
    if last.status == RUNNING:
        world.reached["input to a running child"] += 1
    world.reached["input after a failure"] += last.status in UNSUCCESSFUL
    return _record_added(owner, step, "next turn")


def _close(owner: Owner) -> bool:
    world, root = owner.world, owner.state.root
    if not (children := _children(owner.state)):
        return False
    # Rare children are closed first, because few schedules contain one.
    rare = [
        name
        for name, (*_, last) in children.items()
        if last.reason == INTERRUPTED or (last.status == TIMED_OUT and not last.closed)
    ]
    turns = children[world.rng.choice(rare or list(children))]
    if live := [turn for turn in turns if turn.status not in TERMINAL]:
        first = live[0]
        word = "interrupted child closed" if first.lost and first.status == WAITING else "closed while queued"
        world.reached["closed while running" if first.status == RUNNING else word] += 1
        owner.record(root.id, CloseRequested(first.path))
    elif not turns[-1].closed:
        world.reached["closed when over"] += 1
        last = turns[-1]
        shape = SubagentEvent if last.step.traits.role is not None else StepEvent
        owner.record(root.id, shape(last.path, "closed", last.attempt, last.execution))
    else:
        return False
    return True


def _resume(owner: Owner) -> bool:
    found = [
        node
        for run in owner.state.runs.values()
        for node in run.nodes.values()
        if node.status == WAITING and node.reason == INTERRUPTED
    ]
    if not found:
        return False
    node = owner.world.rng.choice(found)
    owner.world.reached["interrupted child resumed"] += 1
    owner.record(node.run.id, ResumeRequested(node.path))
    return True


def _end(owner: Owner) -> bool:
    owner.world.reached["asked to end"] += 1
    owner.record(owner.state.root.id, EndRequested())
    return True


ENDS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "cancelled": (("cancelled", "completed", "failed", "interrupted"), (80, 8, 6, 6)),
    "timed_out": (("timed_out", "completed", "failed", "interrupted"), (76, 10, 6, 8)),
    "pause": (("interrupted", "completed", "failed", "cancelled"), (70, 22, 6, 2)),
}
"""The end of an execution after a requested stop, by the reason of the stop."""
PLENTY = UNBOUNDED


def next_report(owner: Owner) -> bool:
    """Let one event happen; return False if the run waits only for users or a decision."""
    world, state = owner.world, owner.state
    if state.root.status == PAUSED:
        return _while_paused(owner)
    if state.plan.open and world.rng.random() < 0.3 and ask(owner):
        return True
    if not world.faults.calm and _meddle(owner):
        return True
    if state.held and world.rng.random() < 0.2:
        return _free(owner)
    execution: SimulatedExecution | None = None
    if reporting := [execution for execution in owner.running if execution.due is not None]:
        reorders = world.faults.hits("reordering")
        execution = world.rng.choice(reporting) if reorders else min(reporting, key=lambda one: one.due or 0)
    timer = next_timer(state)
    if timer is not None and (execution is None or execution.due is None or timer <= execution.due):
        world.now = max(world.now, timer)
        owner.record(state.root.id, TimerFired())
        return True
    if execution is not None:
        assert execution.due is not None
        world.now = max(world.now, execution.due)
        _report(owner, execution)
        return True
    if state.held:
        return _free(owner)
    if not is_waiting(state):
        raise InvariantError(19, "nothing executes, no timer is set, and the run does not wait for people")
    return state.plan.open and go_on(owner)


def _free(owner: Owner) -> bool:
    """Let another run release the files that a step waits for."""
    run, path = owner.world.rng.choice(list(owner.state.held))
    owner.record(run, StepEvent(path, "freed"))
    return True


# Results


def _report(owner: Owner, execution: SimulatedExecution) -> None:
    """End an execution; its report is late if the run no longer waits for it."""
    world = owner.world
    _perhaps_wait(owner, execution)
    owner.running.remove(execution)
    owner.reported.append(execution)
    data = _answer_of_person(owner, execution) if execution.type == "approval" else _result(owner, execution)
    deliver(owner, execution.run, data)
    if data.status != "interrupted" and world.faults.hits("duplicate"):
        owner.work_off_agenda()
        deliver(owner, execution.run, data)


def _perhaps_wait(owner: Owner, execution: SimulatedExecution) -> None:
    """Start or end an outage of the provider of an agent, which interrupts the execution."""
    world, state = owner.world, owner.state
    node = state.runs[execution.run].nodes[execution.step]
    if not (subject := provider_of(node)) or execution.stop:
        return
    wait = state.waits.get(subject)
    reason = next((fault for fault in ("outage", "limit", "daily_cap") if world.faults.hits(fault)), "")
    if reason and (wait is None or wait.probe is node):
        count = 1 if wait is None else wait.count + 1
        until = world.now + world.rng.choice((0, 1, 40, 4_000))
        probes = reason != "daily_cap"
        if reason == "outage":
            if (tried := next_attempt(state, subject, world.now)) is None:
                owner.record(state.root.id, PauseRequested("provider"))
                owner.work_off_agenda()
                execution.stop = "pause"
                return
            until = tried
        opened = WaitOpened(subject=subject, reason=reason, until=until, count=count, probes=probes)
        owner.record(state.root.id, opened)
        owner.work_off_agenda()
        execution.stop = "pause"
    elif wait is not None and wait.probe is node and world.rng.random() < 0.3:
        owner.record(state.root.id, WaitClosed(subject))
        owner.work_off_agenda()


def deliver(owner: Owner, run: str, data: StepEvent | SubagentEvent) -> None:
    """Record a report, as a result or as a late result."""
    node = owner.state.runs[run].nodes[data.step]
    if data.status == "agreed" and node.reason != ASKED:
        return  # the question is withdrawn
    marked = mark_late(owner.state, Event(run, owner.world.now, data)).data
    assert isinstance(marked, StepEvent | SubagentEvent)
    if marked.late:
        owner.world.reached["late"] += 1
    owner.record(run, marked)
    if node.reason == ASKED and data.status == ASKED:
        owner.ask(run, data.step)


def _answer_of_person(owner: Owner, execution: SimulatedExecution) -> StepEvent:
    world = owner.world
    node = owner.state.runs[execution.run].nodes[execution.step]
    if node.step.type == "deliver":
        world = owner.world
        refused = world.faults.hits("rejection") or (not world.faults.calm and world.rng.random() < 0.3)
        if node.reason != ASKED or not refused:
            world.reached["agreed"] += 1
            return StepEvent(node.path, "agreed", node.attempt, node.execution)
        world.reached["not agreed"] += 1
        rejected = Failure("permission", "deliver.rejected", retryable=False, step=node.path)
        return StepEvent(node.path, "failed", node.attempt, node.execution, error=rejected)
    action = read_body(ApprovalBody, node.step)
    if action.choices:
        world.reached["approval by choice"] += 1
    refused = not action.choices and world.faults.hits("rejection")
    decision = REJECT if refused else world.rng.choice(action.choices or ("approve",))
    output = world.values.put({"decision": decision}, NOWHERE)
    error = judge(node, decision, "a person")
    return StepEvent(execution.step, "completed" if error is None else "failed", 1, 1, output, error=error)


def _result(owner: Owner, execution: SimulatedExecution) -> StepEvent | SubagentEvent:
    word = _outcome(owner, execution)
    node = owner.state.runs[execution.run].nodes[execution.step]
    if word == "interrupted":
        spent = node.step.traits.role is not None and owner.world.faults.hits("budget used up")
        reason = BUDGET if spent else ""
        return StepEvent(execution.step, word, execution.attempt, execution.execution, reason=reason)
    if word == "completed" and node.step.type == "deliver" and not node.agreed:
        return StepEvent(execution.step, ASKED, execution.attempt, execution.execution)
    shape: type[StepEvent | SubagentEvent] = StepEvent
    usage = None
    if node.step.traits.role is not None:
        shape = SubagentEvent
        usage = node.counted + _usage(owner)
    output, error, status = None, None, word
    if word == "completed":
        output = owner.world.values.result(node, execution.attempt, execution.seen)
        status = "finished" if shape is SubagentEvent else word
    elif word == "failed":
        kind, rng = owner.world.rng.choice(owner.world.faults.kinds), owner.world.rng
        owner.world.reached[f"failure {kind}"] += 1
        retryable, place = rng.random() < 0.9, (execution.step, execution.attempt)
        error = Failure(kind, f"sim.{kind}", "", "", retryable, *place)
    number = (execution.attempt, execution.execution)
    return shape(execution.step, status, *number, output, error=error, usage=usage)


def _outcome(owner: Owner, execution: SimulatedExecution) -> str:
    faults, rng = owner.world.faults, owner.world.rng
    if execution.stop:
        if faults.calm:
            return ENDS[execution.stop][0][0]
        words, weights = ENDS[execution.stop]
        return rng.choices(words, weights)[0]
    if faults.hits("failure"):
        return "failed"
    if faults.hits("interruption"):
        return "interrupted"
    return rng.choice(("timed_out", "cancelled")) if faults.hits("unasked end") else "completed"


def _usage(owner: Owner) -> Usage:
    world = owner.world
    factor = 5 if world.faults.hits("overspending") else 1
    price = None if world.rng.random() < 0.1 else world.rng.randint(0, 20) * factor
    return Usage(world.rng.randint(1, 40) * factor, world.rng.randint(0, 20), price)


# Unexpected events


def _meddle(owner: Owner) -> bool:
    """Perhaps deliver an unexpected event; return whether one was delivered."""
    world, state = owner.world, owner.state
    faults, rng = world.faults, world.rng
    if world.orphans and faults.hits("late result"):
        _report_orphan(owner)
        return True
    if faults.hits("pause") or (is_waiting(state) and faults.hits("pause while waiting")):
        owner.record(state.root.id, PauseRequested())
        return True
    if faults.hits("cancel"):
        owner.record(state.root.id, CancelRequested())
        return True
    if len(state.runs) > 1 and faults.hits("cancel child"):
        return _cancel_child(owner)
    if faults.hits("payment") and _pay(owner):
        return True
    if faults.hits("chatter"):
        # Record evidence, which must not influence the kernel.
        agents = [execution for execution in owner.running if execution.type == "agent"]
        if agents and owner.world.rng.random() < 0.7:
            chosen = owner.world.rng.choice(agents)
            where = {"step": chosen.step, "attempt": chosen.attempt}
            owner.record(chosen.run, Evidence("workspace_event", where))
        elif owner.world.rng.random() < 0.5:
            owner.record(owner.state.root.id, PhaseFolded(""))
        else:
            owner.record(owner.state.root.id, Evidence("session_event", {"text": "…"}))
        return True
    if faults.hits("clock forward"):
        world.now += rng.choice((50, 1_000, 100_000))
    if faults.hits("clock backward"):
        world.now -= rng.choice((50, 1_000, 100_000))
    return False


def _pay(owner: Owner) -> bool:
    """Let a running session pay for a request; return False if none is running."""
    paying = []
    for execution in owner.running:
        node = owner.state.runs[execution.run].nodes[execution.step]
        current = (node.attempt, node.execution) == (execution.attempt, execution.execution)
        if node.step.traits.role is not None and node.status == RUNNING and not node.lost and current:
            paying.append(execution)
    if not paying:
        return False
    chosen = owner.world.rng.choice(paying)
    owner.record(chosen.run, Payment(chosen.step, chosen.attempt, _usage(owner)))
    return True


def _report_orphan(owner: Owner) -> None:
    world = owner.world
    report_late(owner, world.orphans.pop(world.rng.randrange(len(world.orphans))))


def report_late(owner: Owner, orphan: SimulatedExecution) -> None:
    """Deliver the result of an abandoned execution, which must not be applied."""
    late = owner.state.late
    deliver(owner, orphan.run, _result(owner, orphan))
    if owner.state.late == late:
        raise InvariantError(10, f"the result of a lost execution of {orphan.step} was applied")


def _cancel_child(owner: Owner) -> bool:
    children = [
        run.id for run in list(owner.state.runs.values())[1:] if run.status not in (*RUN_TERMINAL, PENDING)
    ]
    if not children:
        return False
    owner.record(owner.world.rng.choice(children), CancelRequested())
    owner.world.reached["live child cancelled"] += 1
    return True


# Pauses


def _while_paused(owner: Owner) -> bool:
    world, state = owner.world, owner.state
    faults = world.faults
    if not faults.calm:
        if world.orphans and faults.hits("late result"):
            _report_orphan(owner)
            return True
        if faults.hits("cancel while paused"):
            owner.record(state.root.id, CancelRequested())
            return True
        if len(state.runs) > 1 and faults.hits("cancel child"):
            return _cancel_child(owner) or resume(owner, state.pausing)
    if state.plan.open and world.rng.random() < 0.4 and ask(owner):
        world.reached["asked while paused"] += 1
        return True
    people = [execution for execution in owner.running if execution.due is not None]
    if people and world.rng.random() < 0.7:
        world.reached["answer while paused"] += 1
        _report(owner, people[0])
        return True
    return resume(owner, state.pausing)


def resume(owner: Owner, reason: str) -> bool:
    """Resume the run, with higher limits if limits paused it; return False if nothing would change."""
    world, state = owner.world, owner.state
    if not reason:
        raise InvariantError(19, "the run is paused without a reason")
    raised = None
    if world.faults.hits("raised for nothing"):
        tokens, agents = world.rng.choice((500, 100_000)), world.rng.randint(1, 600)
        raised = LimitsRaised(budget_tokens=tokens, max_agents=agents)
    elif reason == "budget":
        world.reached["paused for a limit"] += 1
        if not world.faults.hits("nothing raised"):
            raised = _raised(state)
            if raised is None and any(node.status == READY for _, node, _ in state.starved):
                _check_held(owner)
                return False
    world.now += world.rng.choice((1, 10_000))
    owner.epoch = world.store.take_lease()
    owner.record(state.root.id, RunResumed(owner.epoch, raised, keep_waits=world.faults.hits("kept waits")))
    world.reached["resumed after a pause"] += 1
    return True


def _check_held(owner: Owner) -> None:
    """Check that a scope's own limit, which cannot be raised, holds a run with raised tree limits."""
    for run in owner.state.runs.values():
        for node in run.nodes.values():
            used_up = (
                quota.ledger is not None
                or (quota.max_agents is not None and quota.agents >= quota.max_agents)
                for quota in node.quotas
            )
            if node.status == READY and any(used_up):
                owner.world.reached["held by a limit of a scope"] += 1
                return
    raise InvariantError(19, "the run is paused for a limit, but raising every limit changes nothing")


def _raised(state: State) -> LimitsRaised | None:
    """Return an event that raises every limit of the tree; None if all are raised."""
    ledger = state.ledger
    tokens = None if ledger.max_tokens is None else PLENTY
    micro_usd = None if ledger.max_micro_usd is None else PLENTY
    if (state.max_agents, state.max_steps, ledger.max_tokens, ledger.max_micro_usd) == (
        PLENTY, PLENTY, tokens, micro_usd,
    ) and not (ledger.unpriced and micro_usd is not None):  # fmt: skip
        return None
    return LimitsRaised(PLENTY, PLENTY, tokens, micro_usd)
