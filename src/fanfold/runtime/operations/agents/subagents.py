"""Subagents: one agent, one bounded task each. They are the steps of an open run; a project has one, `hand`.

Rules
* What a subagent may do is settled when it is spawned, by the rules of a recipe's run, and recorded with it.
  Whoever talks to it later does not widen it, and what a subagent spawns is never wider than itself.
* Everything is asked of the run's owner, so many processes may ask at once. When nobody drives the run, a
  process in the background does; it leaves when there is nothing to do.
* Waiting never ends anybody. A subagent that was closed stays closed, a detached one is not spoken to: nobody
  knows what it did last. Any other that is over can be given new input, which is its next turn.
* Looking needs no owner: what became of a subagent stands in the log.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import cast

from msgspec import structs

from fanfold.agents.permissions import Posture, narrower
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.kernel.plan import Plan, Step
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import read_body
from fanfold.runtime.hosting.children import (
    TASK_CHARS,
    AddRequest,
    ChildRequest,
    CloseRequest,
    InputRequest,
    ResumeRequest,
    SubagentRefused,
    check_addable,
    check_spoken_to,
    detached,
    no_subagent,
    turns_of,
)
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.addresses import find_run, find_speaker
from fanfold.runtime.operations.agents.delegation import Task, make_step, require_words
from fanfold.runtime.operations.agents.roles import find_role
from fanfold.runtime.operations.conversations import take_up
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.again.fork import AtTurn
from fanfold.runtime.operations.runs.control import ask_owner
from fanfold.runtime.operations.runs.follow import until
from fanfold.runtime.operations.runs.ownership import check_enabled
from fanfold.runtime.operations.runs.starting.creation import create_open, freeze
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.operations.runs.starting.permission import Attendant, permit
from fanfold.runtime.records.frozen import to_json
from fanfold.runtime.records.open_runs import HAND
from fanfold.runtime.records.subagents import child_name, depth_of
from fanfold.runtime.views.sessions.subagents import (
    DETACHED,
    LIVE,
    Subagent,
    by_status,
    find_subagent,
    find_subagents,
)
from fanfold.store.protocol import LeaseHeld
from fanfold.text.excerpts import shorten
from fanfold.text.template import literal

WAIT_S = 30.0


def foresee(project: Project, task: Task, *, run: str = "") -> Step:
    """The step that spawning this would add; raises whatever can be said against it beforehand."""
    check_enabled(project)
    role = find_role(project.roles, task.role)
    run = run or current_run(project)
    step = make_step(task, role, _parent(project, task.parent, run))
    if task.name and project.store.head(run) is not None:
        check_addable(project.view(run), step)
    return step


async def spawn(
    project: Project,
    task: Task,
    options: Options,
    *,
    yes: bool = False,
    attendant: Attendant | None = None,
    key: str = "",
    run: str = "",
) -> Subagent:
    """Start a subagent, or queue it. Asking again with the same `key` starts nothing again.

    Here and below, `run` is an open run that somebody made; left out, the one of the project.
    """
    run = run or current_run(project)
    parent = _parent(project, task.parent, run)
    step = foresee(project, task, run=run)
    plan = Plan(name=step.id, steps=(step,))
    if parent is not None:
        above = cast(Posture, parent.frozen(turns_of(parent, task.parent)[0]).permission)
        permission = narrower(cast(Posture, options.permission), above)
        options = structs.replace(options, permission=permission)
    scripted = options.script is not None
    permit(plan, project.roles.find, options.permission, yes=yes, attendant=attendant, scripted=scripted)
    if yes and options.permission == "ask":
        options = structs.replace(options, permission="auto")
    frozen, _ = freeze(project, plan, options)
    if project.store.head(run) is None:
        await _make(project, run)
    key = key or secrets.token_hex(8)
    wanted = step if task.name else structs.replace(step, id="")
    tree = await _ask(project, run, AddRequest(step=wanted, frozen=to_json(frozen), key=key))
    return _child(project, tree, child_name(tree.memory.keys[key]))


async def wait(
    project: Project, names: Sequence[str] = (), timeout_s: float = WAIT_S, *, run: str = ""
) -> dict[str, list[Subagent]]:
    """How these subagents (all that run, when none is named) stand once they are over or the time is, in
    buckets by status. 0 only looks. Ends nobody."""
    run = run or current_run(project)
    if project.store.head(run) is None and not names:
        return {}
    if project.store.head(run) is None:
        raise no_subagent(names[0])
    tree = project.view(run)
    wanted = list(names) or [child.id for child in _all(project, tree) if child.status in LIVE]

    def look() -> list[Subagent] | None:
        catch_up(project, tree)
        found = [_child(project, tree, name) for name in wanted]
        return None if any(child.status in LIVE for child in found) else found

    found = await until(project, run, look, timeout_s)
    return by_status(found if found is not None else [_child(project, tree, name) for name in wanted])


def foresee_input(
    project: Project, name: str, text: str | None, *, resume: bool = False, run: str = ""
) -> Subagent:
    """Whom this would be said to; raises whatever can be said against it beforehand."""
    check_enabled(project)
    if text is not None:
        require_words(text, "there is nothing to say")
    run, tree = _find_run(project, name, run)
    child = _child(project, tree, name)
    if child.status == DETACHED and not resume:
        raise detached(name)
    if child.status != DETACHED and text is not None:
        check_spoken_to(tree, name)
    return child


async def send_input(
    project: Project, name: str, text: str | None, *, resume: bool = False, key: str = "", run: str = ""
) -> Subagent:
    """Say something to a subagent: its next turn, behind the one that runs. With `resume` one that lost its
    process goes on first, and the text may be left out."""
    child = foresee_input(project, name, text, resume=resume, run=run)
    run, _ = _find_run(project, name, run)
    if resume and (child.status == DETACHED or text is None):
        child = await resume_agent(project, name, run=run)
    if text is None:
        return child
    key = key or secrets.token_hex(8)
    tree = await _ask(project, run, InputRequest(child=name, text=text, key=key))
    return _child(project, tree, name)


async def fork_subagent(project: Project, name: str, at: AtTurn, *, yes: bool = False) -> Subagent:
    """A new subagent that goes on with what another one (or one turn of it) said up to a turn.

    It may do what that one may, and is asked about as that one was.
    """
    check_enabled(project)
    run, _ = _find_run(project, child_name(name))
    found = find_run(project, run)
    speaker = find_speaker(found, name, None)
    taken = take_up(found.tree, speaker, at.turn, at.say)
    taken_names = {child_name(node.path) for node in found.run.scope.children}
    new_name = next(
        one
        for number in range(2, len(taken_names) + 3)
        if (one := f"{child_name(speaker.node.path)}-{number}") not in taken_names
    )
    said = read_body(AgentBody, speaker.node.step)
    step = structs.replace(
        speaker.node.step,
        id=new_name,
        action=structs.replace(said, prompt=literal(taken.say), continue_from=None).action(),
        description=shorten(taken.say, TASK_CHARS),
        after=(),
    )
    plan, frozen = Plan(name=new_name, steps=(step,)), speaker.frozen
    scripted = frozen.script is not None
    permit(plan, frozen.roles.get, frozen.permission, yes=yes, scripted=scripted)
    frozen = structs.replace(frozen, taken_up={new_name: taken})
    added = AddRequest(step=step, frozen=to_json(frozen), key=secrets.token_hex(8))
    return _child(project, await _ask(project, run, added), new_name)


async def resume_agent(project: Project, name: str, *, run: str = "") -> Subagent:
    """Go on with a subagent that lost its process, behind the last thing it recorded."""
    check_enabled(project)
    run, tree = _find_run(project, name, run)
    child = _child(project, tree, name)
    if child.status != DETACHED:
        message = f"{name} is {child.status}; only a detached subagent is resumed"
        raise SubagentRefused("subagent.not_detached", message, hint="say something to it")
    tree = await _ask(project, run, ResumeRequest(name))
    return _child(project, tree, name)


async def close(project: Project, name: str, *, run: str = "") -> Subagent:
    """Cancel a subagent that is queued or running, and wait until nothing of it runs; close any other."""
    run, _ = _find_run(project, name, run)
    tree = await _ask(project, run, CloseRequest(name))

    def look() -> Subagent | None:
        catch_up(project, tree)
        child = _child(project, tree, name)
        return None if child.status in LIVE else child

    found = await until(project, run, look, WAIT_S)
    return found or _child(project, tree, name)


def list_subagents(project: Project, *, run: str = "") -> list[Subagent]:
    """All subagents that people started here, oldest first, whoever runs them."""
    run = run or current_run(project)
    return [] if project.store.head(run) is None else _all(project, project.view(run))


def catch_up(project: Project, tree: RunTree) -> None:
    tree.catch_up(list(project.store.tree(tree.root.id, tree.tree_seq)))


def _all(project: Project, tree: RunTree) -> list[Subagent]:
    return find_subagents(tree, project.folder, owned=project.has_owner(tree.root.id))


def _child(project: Project, tree: RunTree, name: str) -> Subagent:
    return find_subagent(tree, project.folder, name, owned=project.has_owner(tree.root.id))


# The run


def current_run(project: Project) -> str:
    """The open run of this project: the first that has not been ended, or the next name for one."""
    number, run = 1, HAND
    while (head := project.store.head(run)) is not None and head.status in RUN_TERMINAL:
        number += 1
        run = f"{HAND}-{number}"
    return run


async def _make(project: Project, run: str) -> None:
    """Have the run; of several processes that want to make it one does, and the others wait for it."""

    def look() -> bool | None:
        if project.store.head(run) is not None:
            return True
        return None if project.has_owner(run) else False

    while project.store.head(run) is None:
        try:
            create_open(project, run)
        except LeaseHeld:
            await until(project, run, look, WAIT_S)


def _find_run(project: Project, name: str, run: str = "") -> tuple[str, RunTree]:
    run = run or current_run(project)
    if project.store.head(run) is None:
        raise no_subagent(name)
    tree = project.view(run)
    turns_of(tree, name)
    return run, tree


def find(project: Project, name: str, *, run: str = "") -> Subagent:
    """One subagent as it stands now; raises `subagent.not_found`."""
    if not project.has_runs:
        raise no_subagent(name)
    run, tree = _find_run(project, name, run)
    return _child(project, tree, name)


async def _ask(project: Project, run: str, request: ChildRequest) -> RunTree:
    """Have the owner act; the tree as it is then. Raises what was refused."""
    number, _ = await ask_owner(project, project.resolve(run), request)
    tree = project.view(run)
    refused = tree.memory.refusals.get(number)
    if refused is not None:
        raise SubagentRefused(refused.code, refused.message, hint=refused.hint)
    if tree.root.status in RUN_TERMINAL:
        raise SubagentRefused("subagent.refused", f"run {run} was ended meanwhile", hint="ask again")
    return tree


def _parent(project: Project, name: str, run: str) -> RunTree | None:
    """The tree in which an agent asks for a subagent of its own; refused where that nests too deep."""
    tree = _find_run(project, name, run)[1] if name else None
    most = project.config.integer("sessions.max_depth")
    depth = 1 if tree is None else depth_of(turns_of(tree, name)[-1]) + 1
    if depth > most:
        raise SubagentRefused(
            "subagent.limit_exceeded",
            f"subagents may nest {most} deep; this would be level {depth}",
            hint="do the work in this session, or raise FANFOLD_MAX_DEPTH",
            details={"depth": depth, "max_depth": most},
        )
    return tree
