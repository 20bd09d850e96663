"""What a subagent is to do, and the step that comes of it: checked before anything is asked of a run."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from msgspec import Struct, ValidationError, convert, structs

from fanfold.agents.role import Role
from fanfold.errors import AuthorError
from fanfold.kernel.plan import EVERYTHING, JSON, Step
from fanfold.kernel.sets.globs import GlobError, check_glob
from fanfold.recipe.types.agent import AgentBody
from fanfold.runtime.hosting.children import TASK_CHARS, turns_of
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.text.excerpts import shorten
from fanfold.text.json_schema import schema_problem
from fanfold.text.json_value import strict
from fanfold.text.tables.forms import ID, ID_ALLOWED
from fanfold.text.template import literal

SPAWN_TIMEOUT_MS = 120_000
Merge: TypeAlias = Literal["auto", "propose", "discard"]


class Task(Struct, frozen=True, kw_only=True):
    """What a subagent is to do, and where."""

    role: str
    task: str
    name: str = ""
    """Left out: named after its role."""
    timeout_ms: int = SPAWN_TIMEOUT_MS
    write_set: tuple[str, ...] = ()
    merge: Merge | None = None
    on_conflict: Literal["fail", "resolve"] = "fail"
    shared: bool = False
    """A writer works in the project itself, not in a snapshot."""
    output_schema: JSON = None
    parent: str = ""
    """The subagent that asks, when one does: this one ends with it."""


def make_step(task: Task, role: Role, parent: RunTree | None = None) -> Step:
    """The step of a task; `parent` is the tree in which another subagent asks for it."""
    _check_types(task)
    above = turns_of(parent, task.parent)[-1] if parent is not None else None
    read_only = role.read_only or (above is not None and above.step.posture == "read_only")
    require_words(task.task, "there is no task")
    if task.name:
        require_name(task.name)
    _check_writing(task, read_only)
    _check_schema(task.output_schema)
    try:
        strict(structs.asdict(task), "the task")
    except ValueError as error:
        raise AuthorError("usage.bad_value", str(error)) from None
    name, _, version = task.role.partition("@")
    body = AgentBody(agent=name, agent_version=version or None, prompt=literal(task.task))
    return Step(
        id=task.name or _step_name(name),
        action=body.action(),
        description=shorten(task.task, TASK_CHARS),
        parent=above.path if above is not None else "",
        posture="read_only" if read_only else "writer",
        write_set=() if read_only else task.write_set or EVERYTHING,
        workspace_mode="shared" if read_only or (task.shared and not role.isolated) else "isolated",
        merge=task.merge or "auto",
        on_conflict=task.on_conflict,
        output_schema=task.output_schema,
        timeout_ms=task.timeout_ms,
    )


def _check_types(task: Task) -> None:
    """Programs may say anything; what is no task is told before anybody works on it."""
    try:
        convert(structs.asdict(task), Task)
    except ValidationError as error:
        raise AuthorError("usage.bad_value", f"this is no task: {error}") from None
    if task.timeout_ms < 1:
        raise AuthorError("usage.bad_value", f"timeout_ms must be more than 0, not {task.timeout_ms}")


def _step_name(role: str) -> str:
    """A role's name as a step may be called: `review.security` is `review-security`."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", role).lstrip("-_") or "agent"


def _check_writing(task: Task, read_only: bool) -> None:
    if read_only and (task.write_set or task.merge or task.shared):
        what = "write_set" if task.write_set else "merge" if task.merge else "shared"
        message = f"{what} is for roles that write; {task.role} only reads"
        raise AuthorError("usage.conflict", message, hint="fanfold agents tells which roles write")
    apart = task.merge or ("on_conflict" if task.on_conflict != "fail" else "")
    if (task.shared or read_only) and apart:
        message = "merge and on_conflict are for snapshots; one that shares the project has none"
        raise AuthorError("usage.conflict", message, hint="leave one of them out")
    for pattern in task.write_set:
        try:
            check_glob(pattern)
        except GlobError as error:
            message = f"write_set {pattern} is not a pattern of paths: {error.message}"
            raise AuthorError(
                "usage.bad_value", message, hint='for example "src/**" or "docs/*.md"'
            ) from None


def require_words(text: str, otherwise: str) -> None:
    """Nobody is asked to do nothing."""
    if not text.strip():
        raise AuthorError("usage.bad_value", otherwise, hint="say in a few sentences what is to be done")


def require_name(name: str) -> None:
    """A subagent is a step, and called as steps are: turns, paths and folders are named after it."""
    if not ID.fullmatch(name):
        message = f"{shorten(name, 80)!r} cannot be the name of a subagent"
        raise AuthorError("usage.bad_value", message, hint=ID_ALLOWED)


def _check_schema(schema: JSON) -> None:
    problem = None if schema is None else schema_problem(schema)
    if problem is not None:
        raise AuthorError("usage.bad_value", f"output_schema is not a JSON Schema: {problem.message}")
