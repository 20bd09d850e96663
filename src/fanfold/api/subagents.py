"""Subagents: one agent with one bounded task each. They are steps of an open run; a project has one, `hand`.

Rules
* The permissions of a subagent are fixed when it is spawned, by the rules for runs of recipes, and recorded
  with it. Later input does not extend them. A subagent that another one spawns never has more permissions
  than its parent.
* Every request goes to the owner of the run, so many processes can send requests at once. If the run has no
  owner, a background process is started. It exits when there is nothing to do.
* Waiting never ends a subagent. A closed subagent stays closed. A detached one accepts no input, because its
  last actions are unknown. Any other finished subagent accepts input, which is its next turn.
* Reading needs no owner: the log records the outcome of a subagent.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from itertools import compress, count, takewhile
from pathlib import Path
from typing import Literal, TypeAlias, cast

from msgspec import Struct, ValidationError, convert, structs

from fanfold.agents.permissions import Posture, narrower
from fanfold.agents.role import Role
from fanfold.api.agents import find_role
from fanfold.api.display import FailureDocument, StepUsage, failure_document, step_usage
from fanfold.api.fork import AtTurn
from fanfold.api.history import find_run, find_session_ref, until
from fanfold.api.permission import Prompter, consent_of, is_settled, permit
from fanfold.api.project import Project
from fanfold.api.run_handle import request_from_owner
from fanfold.api.run_options import Options
from fanfold.api.start import create_open, freeze
from fanfold.api.transcripts import take_up
from fanfold.engine import requests
from fanfold.engine.run_tree import RunTree
from fanfold.errors import AuthorError
from fanfold.kernel.events import NOTHING_SPENT
from fanfold.kernel.paths import GlobError, check_glob
from fanfold.kernel.plan import EVERYTHING, JSON, Plan, Step
from fanfold.kernel.state import (
    CANCELLED,
    COMPLETED,
    FAILED,
    RUN_TERMINAL,
    RUNNING,
    SKIPPED,
    TERMINAL,
    TIMED_OUT,
    WAITING,
    Node,
)
from fanfold.language.json_text import schema_problem, strict
from fanfold.language.leaf_steps import AgentBody, read_body
from fanfold.language.tables import ID, ID_ALLOWED
from fanfold.language.template import literal
from fanfold.language.terminal import shorten
from fanfold.steps.records import (
    DETACHED,
    ChangedPath,
    ConflictPath,
    ViolatedPath,
    child_name,
    depth_of,
    home_of,
    is_agent,
    is_lead,
    session_of,
)
from fanfold.steps.run_config import HAND, to_json
from fanfold.store.protocol import LeaseHeld
from fanfold.workspace.seal import is_foreign

# -----------------------------------------------------------------------------------------------------------
# The task of a subagent and its step, checked before a request is sent to a run

SPAWN_TIMEOUT_MS = 120_000
Merge: TypeAlias = Literal["auto", "propose", "discard"]


class Task(Struct, frozen=True, kw_only=True):
    """The task of a subagent, and its workspace options."""

    role: str
    task: str
    name: str = ""
    """If empty, it is named after its role."""
    timeout_ms: int = SPAWN_TIMEOUT_MS
    write_set: tuple[str, ...] = ()
    merge: Merge | None = None
    on_conflict: Literal["fail", "resolve"] = "fail"
    shared: bool = False
    """Whether a writer works in the project itself, not in a snapshot."""
    output_schema: JSON = None
    parent: str = ""
    """The subagent that spawns this one, if any. This one ends with it."""


def make_step(task: Task, role: Role, parent: RunTree | None = None) -> Step:
    """Return the step of a task. `parent` is the tree of the subagent that spawns it."""
    try:  # before any work starts: programs may pass any value
        convert(structs.asdict(task), Task)
    except ValidationError as error:
        raise AuthorError("usage.bad_value", f"the task is not valid: {error}") from None
    if task.timeout_ms < 1:
        raise AuthorError("usage.bad_value", f"timeout_ms must be more than 0, not {task.timeout_ms}")
    above = requests.turns_of(parent, task.parent)[-1] if parent is not None else None
    read_only = role.read_only or (above is not None and above.step.posture == "read_only")
    require_text(task.task, "there is no task")
    if task.name and not ID.fullmatch(task.name):  # turns, paths and folders use the name
        message = f"{shorten(task.name, 80)!r} cannot be the name of a subagent"
        raise AuthorError("usage.bad_value", message, hint=ID_ALLOWED)
    _check_writing(task, read_only)
    problem = None if task.output_schema is None else schema_problem(task.output_schema)
    if problem is not None:
        raise AuthorError("usage.bad_value", f"output_schema is not a JSON Schema: {problem.message}")
    try:
        strict(structs.asdict(task), "the task")
    except ValueError as error:
        raise AuthorError("usage.bad_value", str(error)) from None
    name, _, version = task.role.partition("@")
    body = AgentBody(agent=name, agent_version=version or None, prompt=literal(task.task))
    return Step(
        id=task.name or (re.sub(r"[^A-Za-z0-9_-]", "-", name).lstrip("-_") or "agent"),
        action=body.action(),
        description=shorten(task.task, requests.TASK_CHARS),
        parent=above.path if above is not None else "",
        posture="read_only" if read_only else "writer",
        write_set=() if read_only else task.write_set or EVERYTHING,
        workspace_mode="shared" if read_only or (task.shared and not role.isolated) else "isolated",
        merge=task.merge or "auto",
        on_conflict=task.on_conflict,
        output_schema=task.output_schema,
        timeout_ms=task.timeout_ms,
    )


def _check_writing(task: Task, read_only: bool) -> None:
    if read_only and (task.write_set or task.merge or task.shared):
        what = "write_set" if task.write_set else "merge" if task.merge else "shared"
        message = f"{what} is for roles that write; {task.role} only reads"
        raise AuthorError("usage.conflict", message, hint="fanfold agents lists which roles write")
    apart = task.merge or ("on_conflict" if task.on_conflict != "fail" else "")
    if (task.shared or read_only) and apart:
        message = "merge and on_conflict are for snapshots; a shared subagent has none"
        raise AuthorError("usage.conflict", message, hint="leave one of them out")
    for pattern in task.write_set:
        try:
            check_glob(pattern)
        except GlobError as error:
            message = f"write_set {pattern} is not a pattern of paths: {error.message}"
            raise AuthorError(
                "usage.bad_value", message, hint='for example "src/**" or "docs/*.md"'
            ) from None


def require_text(text: str, otherwise: str) -> None:
    """Refuse an empty task or message."""
    if not text.strip():
        raise AuthorError("usage.bad_value", otherwise, hint="describe the task in a few sentences")


# -----------------------------------------------------------------------------------------------------------
# The children of an open run, as every surface shows them
#
# Rules
# * The facts come from the log alone. The owner only determines whether a child is still being worked on. A
#   child that is unfinished in the log of a run without an owner is `detached`: not lost, not finished.
#   `detached` is computed on reading and never recorded.
# * A child consists of all its turns. Its status and summary are those of the last turn; its usage is that of
#   all turns.

QUEUED, CLOSED = "queued", "closed"
OVER = frozenset({COMPLETED, FAILED, TIMED_OUT, CANCELLED, SKIPPED, CLOSED})
LIVE = frozenset({QUEUED, RUNNING})
MAX_ENDED = 10


class Subagent(Struct, frozen=True, kw_only=True):
    """One child of an open run."""

    id: str
    run_id: str
    """The open run that contains it as a step."""
    role: str
    task: str
    status: str
    summary: str
    error: FailureDocument | None
    usage: StepUsage | None
    depth: int
    turns: int
    session_id: str
    permission: str
    merge: str
    workspace: str | None
    """The folder it works in, or the kept folder of a failed subagent."""
    changes: list[ChangedPath] | None
    """The changes of its last turn; None if it shares the project, where they are unknown."""
    proposal: str | None
    violations: Sequence[ViolatedPath]
    """At most 20."""
    conflicts: Sequence[ConflictPath]
    """At most 20."""

    @property
    def left_something(self) -> bool:
        """Whether it has kept files or a proposal that a person can continue, close or apply."""
        kept = self.status != COMPLETED and self.workspace is not None and self.changes is not None
        return self.status != CLOSED and (kept or self.proposal is not None)


def find_ended_turns(tree: RunTree, project: Path) -> list[Subagent]:
    """List the children as of the end of each finished turn: a child with several turns has several rows."""
    found: list[Subagent] = []
    for name, turns in _turns_by_child(tree).items():
        over = list(takewhile(lambda turn: turn.status in TERMINAL, turns))
        found += (
            _subagent(tree, project, name, over[:count], owned=True) for count in range(1, len(over) + 1)
        )
    return found


def _turns_by_child(tree: RunTree) -> dict[str, list[Node]]:
    children: dict[str, list[Node]] = {}
    for node in tree.root.scope.children:
        if is_agent(node) and not is_lead(node):
            children.setdefault(child_name(node.path), []).append(node)
    return children


def by_status(children: Iterable[Subagent]) -> dict[str, list[Subagent]]:
    """Group children by status, each group in the given order."""
    buckets: dict[str, list[Subagent]] = {}
    for child in children:
        buckets.setdefault(child.status, []).append(child)
    return buckets


def _subagent(tree: RunTree, project: Path, name: str, turns: Sequence[Node], owned: bool) -> Subagent:
    last = _latest(turns)
    spent = [usage for turn in turns if (usage := tree.usage_of(turn)) is not None]
    address = (last.run.id, last.path)
    error = last.error if last.status in TERMINAL else None
    summary = tree.values.summary(last) if last.status == COMPLETED else ""
    isolated = last.step.workspace_mode == "isolated"
    workspace: str | None = str(project)
    if isolated:
        folder = project / ".fanfold" / "subagents" / home_of(last, max(1, last.attempt)) / "workspace"
        # That of a closed or completed child is deleted, or about to be.
        kept = not last.closed and last.status != COMPLETED and folder.is_dir()
        workspace = str(folder) if kept else None
    rows = tree.memory.changes_of(*address) if isolated or last.step.posture == "read_only" else None
    return Subagent(
        id=name,
        run_id=tree.root.id,
        role=last.step.traits.role or "",
        task=turns[0].step.description,
        status=_status(last, owned),
        summary=summary if error is None else error.message or error.code,
        error=failure_document(error, last),
        usage=step_usage(sum(spent, NOTHING_SPENT)) if spent else None,
        depth=depth_of(last),
        turns=sum(turn.attempt > 0 for turn in turns),
        session_id=session_of(last),
        permission=tree.frozen(turns[0]).permission,
        merge=last.step.merge,
        workspace=workspace,
        changes=None if rows is None else [ChangedPath(row.path, row.kind) for row in rows],
        proposal=requests.waiting_proposal(tree, last),
        violations=tree.memory.violations.get(address, ()),
        conflicts=tree.memory.conflicts.get(address, ()),
    )


def _latest(turns: Sequence[Node]) -> Node:
    """Return the current turn of a child. Input that is queued after it does not count."""
    return next((turn for turn in turns if turn.status not in TERMINAL), turns[-1])


def _status(node: Node, owned: bool) -> str:
    if node.closed:
        return CLOSED
    if node.status in TERMINAL:
        return node.status
    if not owned or requests.is_interrupted(node):
        return DETACHED
    return RUNNING if node.status in (RUNNING, WAITING) else QUEUED


WAIT_S = 30.0


def foresee(project: Project, task: Task, *, run: str = "") -> Step:
    """Return the step that spawning this task would add; raises if the task is refused."""
    role = find_role(project.roles, task.role)
    run = run or current_run(project)
    step = make_step(task, role, _parent(project, task.parent, run))
    if task.name and project.store.head(run) is not None:
        requests.check_addable(project.view(run), step)
    return step


async def spawn(
    project: Project,
    task: Task,
    options: Options,
    *,
    yes: bool = False,
    prompter: Prompter | None = None,
    key: str = "",
    run: str = "",
) -> Subagent:
    """Start or queue a subagent. A second call with the same `key` starts nothing.

    Here and below, `run` is an open run; by default, the open run of the project.
    """
    run = run or current_run(project)
    parent = _parent(project, task.parent, run)
    step = foresee(project, task, run=run)
    plan = Plan(name=step.id, steps=(step,))
    if parent is not None:
        above = cast("Posture", parent.frozen(requests.turns_of(parent, task.parent)[0]).permission)
        permission = narrower(cast("Posture", options.permission), above)
        options = structs.replace(options, permission=permission)
    if not is_settled(options.permission, yes=yes):
        permit(consent_of(project, plan, project.roles.find, options), options.permission, prompter=prompter)
    if yes and options.permission == "ask":
        options = structs.replace(options, permission="auto")
    frozen, _ = freeze(project, plan, options)

    # Create the run if it does not exist. If several processes try, one creates it and the others wait.
    def look() -> bool | None:
        if project.store.head(run) is not None:
            return True
        return None if project.has_owner(run) else False

    while project.store.head(run) is None:
        try:
            create_open(project, run)
        except LeaseHeld:
            await until(project, run, look, WAIT_S)
    key = key or secrets.token_hex(8)
    wanted = step if task.name else structs.replace(step, id="")
    tree = await _ask(project, run, requests.AddRequest(step=wanted, frozen=to_json(frozen), key=key))
    return _child(project, tree, child_name(tree.memory.keys[key]))


async def wait(
    project: Project, names: Sequence[str] = (), timeout_s: float = WAIT_S, *, run: str = ""
) -> dict[str, list[Subagent]]:
    """Wait until the subagents finished or the time is over; return them by status.

    Without names: all running subagents or, if none is running, those that finished last. A `timeout_s` of 0
    does not wait. Waiting ends no subagent.
    """
    run = run or current_run(project)
    if project.store.head(run) is None:
        if names:
            raise requests.no_subagent(names[0])
        return {}
    tree = project.view(run)
    for name in names:
        requests.turns_of(tree, name)  # an unknown name is refused before waiting

    def live(names: Iterable[str]) -> list[str]:
        owned = project.has_owner(run)
        return [name for name in names if _status(_latest(tree.turns(name)), owned) in LIVE]

    wanted = list(names)
    if not wanted:
        children = _turns_by_child(tree)
        over = [any(turn.status in TERMINAL and not turn.closed for turn in one) for one in children.values()]
        wanted = live(children) or list(compress(children, over))[-MAX_ENDED:]

    def look() -> bool | None:
        catch_up(project, tree)
        return None if live(wanted) else True

    await until(project, run, look, timeout_s)
    return by_status(_child(project, tree, name) for name in wanted)


def check_input(
    project: Project, name: str, text: str | None, *, resume: bool = False, run: str = ""
) -> Subagent:
    """Return the subagent that would receive this input; raises if the input is refused."""
    if text is not None:
        require_text(text, "the text is empty")
    run, tree = _find_run(project, name, run)
    child = _child(project, tree, name)
    if child.status == DETACHED and not resume:
        raise requests.detached(name)
    if child.status != DETACHED and text is not None:
        requests.check_spoken_to(tree, name)
    return child


async def send_input(
    project: Project, name: str, text: str | None, *, resume: bool = False, key: str = "", run: str = ""
) -> Subagent:
    """Send a message to a subagent: its next turn, queued after the running one.

    With `resume`, a subagent that lost its process is resumed first, after its last recorded entry, and the
    text may be omitted.
    """
    child = check_input(project, name, text, resume=resume, run=run)
    run, _ = _find_run(project, name, run)
    if resume and (child.status == DETACHED or text is None):
        if child.status != DETACHED:
            message = f"{name} is {child.status}; only a detached subagent is resumed"
            raise requests.SubagentRefused("subagent.not_detached", message, hint="send it a text")
        child = _child(project, await _ask(project, run, requests.ResumeRequest(name)), name)
    if text is None:
        return child
    key = key or secrets.token_hex(8)
    tree = await _ask(project, run, requests.InputRequest(child=name, text=text, key=key))
    return _child(project, tree, name)


async def fork_subagent(project: Project, name: str, at: AtTurn, *, yes: bool = False) -> Subagent:
    """Start a new subagent that continues the conversation of another one after a turn.

    It has the permissions of the other one, and needs the same approval.
    """
    run, _ = _find_run(project, child_name(name))
    found = find_run(project, run)
    ref = find_session_ref(found, name, None)
    taken = take_up(found.tree, ref, at.turn, at.say)
    names = (f"{child_name(ref.node.path)}-{number}" for number in count(2))
    new_name = next(name for name in names if not found.tree.turns(name))
    body = read_body(AgentBody, ref.node.step)
    step = structs.replace(
        ref.node.step,
        id=new_name,
        action=structs.replace(body, prompt=literal(taken.say), continue_from=None).action(),
        description=shorten(taken.say, requests.TASK_CHARS),
        after=(),
    )
    plan, frozen = Plan(name=new_name, steps=(step,)), ref.frozen
    options = Options(backend=frozen.backend, script=frozen.script)
    if not is_settled(frozen.permission, yes=yes):
        permit(consent_of(project, plan, frozen.roles.get, options), frozen.permission)
    frozen = structs.replace(frozen, taken_up={new_name: taken})
    added = requests.AddRequest(step=step, frozen=to_json(frozen), key=secrets.token_hex(8))
    return _child(project, await _ask(project, run, added), new_name)


async def close(project: Project, name: str, *, run: str = "") -> Subagent:
    """Cancel a queued or running subagent and wait until nothing of it is running; close any other."""
    run, _ = _find_run(project, name, run)
    tree = await _ask(project, run, requests.CloseRequest(name))

    def look() -> Subagent | None:
        catch_up(project, tree)
        child = _child(project, tree, name)
        return None if child.status in LIVE else child

    found = await until(project, run, look, WAIT_S)
    return found or _child(project, tree, name)


def list_subagents(project: Project, *, run: str = "") -> list[Subagent]:
    """List all subagents of the open run, oldest first, regardless of the process that drives them."""
    run = run or current_run(project)
    if project.store.head(run) is None:
        return []
    tree, owned = project.view(run), project.has_owner(run)
    children = _turns_by_child(tree).items()
    return [_subagent(tree, project.folder, name, turns, owned) for name, turns in children]


def catch_up(project: Project, tree: RunTree) -> None:
    tree.read_from(project.store)  # a shared tree may refer to the store of a project that was closed
    tree.catch_up(list(project.store.tree(tree.root.id, tree.tree_seq)))


def _child(project: Project, tree: RunTree, name: str) -> Subagent:
    """Return one child; raises `subagent.not_found` for an unknown name."""
    turns = [node for node in tree.turns(name) if is_agent(node)]
    if not turns:
        raise requests.no_subagent(name, {child_name(node.path) for node in tree.root.scope.children})
    return _subagent(tree, project.folder, name, turns, project.has_owner(tree.root.id))


# The open run


def current_run(project: Project) -> str:
    """Return the id of the project's open run: the first unfinished one, or the next free id.

    Adopted runs do not count: another user permitted their children.
    """
    number, run = 1, HAND
    while (head := project.store.head(run)) is not None and (
        head.status in RUN_TERMINAL or is_foreign(project.folder, run)
    ):
        number += 1
        run = f"{HAND}-{number}"
    return run


def _find_run(project: Project, name: str, run: str = "") -> tuple[str, RunTree]:
    run = run or current_run(project)
    if project.store.head(run) is None:
        raise requests.no_subagent(name)
    tree = project.view(run)
    requests.turns_of(tree, name)
    return run, tree


def find(project: Project, name: str, *, run: str = "") -> Subagent:
    """Return one subagent as it is now; raises `subagent.not_found`."""
    if not project.has_runs:
        raise requests.no_subagent(name)
    run, tree = _find_run(project, name, run)
    return _child(project, tree, name)


async def _ask(project: Project, run: str, request: requests.ChildRequest) -> RunTree:
    """Have the owner act on a request and return the tree; raises if the request was refused."""
    number, _ = await request_from_owner(project, project.resolve(run), request)
    tree = project.view(run)
    refused = tree.memory.refusals.get(number)
    if refused is not None:
        raise requests.SubagentRefused(refused.code, refused.message, hint=refused.hint)
    if tree.root.status in RUN_TERMINAL:
        raise requests.SubagentRefused("subagent.refused", f"run {run} was ended meanwhile", hint="ask again")
    return tree


def _parent(project: Project, name: str, run: str) -> RunTree | None:
    """Return the tree of the agent that spawns a subagent; refused if the nesting is too deep."""
    tree = _find_run(project, name, run)[1] if name else None
    most = project.config.integer("sessions.max_depth")
    depth = 1 if tree is None else depth_of(requests.turns_of(tree, name)[-1]) + 1
    if depth > most:
        raise requests.SubagentRefused(
            "subagent.limit_exceeded",
            f"subagents may nest {most} deep; this would be level {depth}",
            hint="do the work in this session, or raise FANFOLD_MAX_DEPTH",
            details={"depth": depth, "max_depth": most},
        )
    return tree
