"""What people do to an open run: add steps, say more to a child, close it, take it up again, end the run.

They act at any moment, whatever runs, and see only what the log shows. What they want to add is fixed when
the world is made, so after a crash that cut the log they simply go on where it ends.
"""

from __future__ import annotations

from msgspec.structs import replace

from fanfold.kernel.events import (
    Added,
    CloseRequested,
    EndRequested,
    Failure,
    Refused,
    ResumeRequested,
    StepEvent,
    SubagentEvent,
)
from fanfold.kernel.fold.open_runs import comes_after, why_not_added
from fanfold.kernel.lifecycle import INTERRUPTED, PAUSED, RUNNING, TERMINAL, TIMED_OUT, UNSUCCESSFUL, WAITING
from fanfold.kernel.nodes import LEAF, Node, State
from fanfold.kernel.plan import Step
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import read_body
from fanfold.testing.checks import InvariantError
from fanfold.testing.owner import Owner

MAX_TURNS = 6
"""Turns that are added to the children of one run."""


def ask(owner: Owner) -> bool:
    """Perhaps somebody wants something of the run, whatever else goes on; True when it was recorded."""
    rng = owner.world.rng
    if rng.random() < (0.1 if owner.state.root.status == PAUSED else 0.02):
        return not owner.world.watch.told_to_end and _end(owner)
    wishes = (_add, _add, _add, _send, _send, _close, _resume, _add_twice)
    return rng.choice(wishes)(owner)


def go_on(owner: Owner) -> bool:
    """Nothing happens by itself any more: people take things up, add what is left, then end the run."""
    if _resume(owner) or (not owner.world.watch.told_to_end and (_add(owner) or _end(owner))):
        return True
    state = owner.state
    if owner.world.watch.told_to_end and not (state.approvals or state.delays or state.interrupted):
        raise InvariantError(19, "the run was told to end, has nothing left to do, and goes on")
    return False


def _add(owner: Owner) -> bool:
    for step in owner.world.additions:
        if step.id not in owner.state.root.nodes:
            return _record_added(owner, _perhaps_spawned(owner, step), "added")
    return False


def _add_twice(owner: Owner) -> bool:
    """Somebody asks for what is there already."""
    for step in owner.world.additions[:1]:
        if why_not_added(owner.state.root, step):
            return _refuse(owner)
    return False


def _refuse(owner: Owner) -> bool:
    owner.record(owner.state.root.id, Refused(0, Failure("agent", "sim.refused", "that cannot be done")))
    return True


def _perhaps_spawned(owner: Owner, step: Step) -> Step:
    """Some of it is not asked for by a person, but by an agent at work."""
    running = [
        turn
        for turns in _agents(owner.state).values()
        for turn in turns
        if turn.status == RUNNING and not turn.stopping
    ]
    if not running or owner.world.rng.random() < 0.5:
        return step
    owner.world.reached["asked for by an agent"] += 1
    return replace(step, parent=owner.world.rng.choice(running).path)


def _record_added(owner: Owner, step: Step, what: str) -> bool:
    root = owner.state.root
    if why_not_added(root, step):
        return False
    owner.world.reached[what] += 1
    owner.record(root.id, Added(step=step, frozen=f"facts of {step.id}"))
    return True


def _children(state: State) -> dict[str, list[Node]]:
    """The turns of everything that was added, by its name."""
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
    """The next turn of a child."""
    world = owner.world
    children = _agents(owner.state)
    if not children or sum(len(turns) - 1 for turns in children.values()) >= MAX_TURNS:
        return False
    name = world.rng.choice(list(children))
    last = children[name][-1]
    said = replace(read_body(AgentBody, last.step), prompt="and now?", continue_from=last.path)
    turn = f"{name}#{len(children[name]) + 1}"
    step = replace(
        last.step,
        id=turn,
        action=said.action(),
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
    children = _children(owner.state)
    if not children:
        return False
    rare = [name for name, turns in children.items() if _is_rare(turns[-1])]
    turns = children[world.rng.choice(rare or list(children))]
    live = [turn for turn in turns if turn.status not in TERMINAL]
    if live:
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


def _is_rare(last: Node) -> bool:
    """Whether a child is as few are: they are closed first, or schedules would hardly ever meet it."""
    return last.reason == INTERRUPTED or (last.status == TIMED_OUT and not last.closed)


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
    owner.world.reached["told to end"] += 1
    owner.record(owner.state.root.id, EndRequested())
    return True
