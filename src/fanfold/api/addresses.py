"""Resolve the names of runs and steps: ids, prefixes of ids, `last`; paths in a run or in its tree."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from fanfold.api.display import first_of
from fanfold.api.project import Project
from fanfold.api.transcripts import SessionRef, find_session_refs, session_ref_of
from fanfold.engine.run_tree import RunTree
from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.state import LEAF, PENDING, Node, Run
from fanfold.kernel.transitions import find_node
from fanfold.steps.records import is_agent

MIN_PREFIX = 5
"""Shorter words are not treated as a prefix of a session's id."""


class ResolvedRun(NamedTuple):
    """A run that a caller named, in a read-only copy of its tree."""

    tree: RunTree
    run: Run

    @property
    def root_id(self) -> str:
        return self.tree.root.id

    def turns(self, name: str) -> list[Node]:
        """Return the turns of a subagent, in order; empty if no subagent has that name."""
        if not self.run.plan.open or self.run is not self.tree.root:
            return []
        return [node for node in self.tree.turns(name) if is_agent(node)]

    def tree_path(self, path: str) -> str:
        """Return the path from the root of the step that a caller named."""
        node = self.step(path)
        return node.run.tree_path(node.path)

    def step(self, path: str) -> Node:
        """Return a step by its path in the run, or by its path in the tree, as documents show it."""
        run = self.run
        node = find_node(self.tree.state, run.tree_path(path))
        if node is None and run.path and path.startswith(f"{run.path}/"):
            node = find_node(self.tree.state, path)
        if node is not None:
            return node
        if run.status == PENDING:
            raise NotFoundError("step.not_found", f"run {run.id} has not begun, so it has no step {path} yet")
        from fanfold.language.diagnostics import nearest

        near = nearest(path, tuple(run.nodes))
        hint = f'did you mean "{near}"?' if near else f"fanfold inspect {run.id} --steps lists them"
        raise NotFoundError("step.not_found", f"run {run.id} has no step {path}", hint=hint)


def find_run(project: Project, name: str, at: int | None = None) -> ResolvedRun:
    """Return a run by id, unique prefix or `last`, as its log is now or as it was after event `at`."""
    head = project.resolve(name)
    tree = project.view(head.root_run_id, at)
    run = tree.state.runs.get(head.run_id)
    if run is None:
        raise NotFoundError("run.not_found", f"run {head.run_id} has not begun")
    return ResolvedRun(tree, run)


def find_session_ref(found: ResolvedRun, name: str, attempt: int | None) -> SessionRef:
    """Return the session of a step, a subagent or a session id."""
    node = _find_step(found, name)
    if node is None:
        if attempt is not None:
            raise AuthorError("usage.conflict", "a session is one attempt", hint="leave --attempt out")
        refs = list(find_session_refs(found.tree, name))
        if len(refs) > 1:
            ids = ", ".join(one.session_id for one in refs[:5])
            raise AuthorError("session.ambiguous", f"several sessions begin with {name}: {ids}")
        if not refs:
            found.step(name)  # raises an error with a suggestion
        return refs[0]
    if not is_agent(node) or node.kind != LEAF:
        raise _not_an_agent(found, node)
    wanted = max(1, node.attempt) if attempt is None else attempt
    if not 1 <= wanted <= max(1, node.attempt):
        message = f"{node.path} has had {node.attempt} attempt{'' if node.attempt == 1 else 's'}"
        raise NotFoundError("step.no_attempt", message, hint="leave --attempt out for the latest")
    return session_ref_of(found.tree, node, wanted)


def only_session_path(found: ResolvedRun) -> str:
    """Return the path of the only agent step of a run. If there are several, the hint names the last."""
    agents = (node for node in found.tree.nodes() if is_agent(node) and node.kind == LEAF)
    paths = [node.run.tree_path(node.path) for node in agents if node.attempt]
    if len(paths) == 1:
        return paths[0]
    run = found.root_id
    if not paths:
        hint = f"fanfold inspect {run} shows its steps"
        raise NotFoundError("step.no_session", f"no agent has worked in run {run}", hint=hint)
    message = f"{len(paths)} agents worked in run {run}: say whose transcript"
    hint = f"the last one's: fanfold transcript {run} {shlex.quote(paths[-1])}"
    raise AuthorError("step.several_sessions", message, hint=hint)


def _find_step(found: ResolvedRun, name: str) -> Node | None:
    """Return a step by its path, or the latest started turn of a subagent by its name."""
    turns = found.turns(name)
    if turns:
        return ([node for node in turns if node.attempt] or turns)[-1]
    try:
        return found.step(name)
    except NotFoundError:
        if len(name) < MIN_PREFIX or not name.startswith("s"):
            raise
        return None


def _not_an_agent(found: ResolvedRun, node: Node) -> AuthorError:
    agents = (other for other in found.tree.nodes() if is_agent(other) and other.kind == LEAF)
    inside = [other.run.tree_path(other.path) for other in agents if is_inside(other, node)]
    path = node.run.tree_path(node.path)
    if not inside:
        hint = f"fanfold explain {found.root_id} {shlex.quote(path)} shows what it did"
        message = f"no agent worked on {path}: its type is {node.step.type}"
        return AuthorError("step.no_session", message, hint=hint)
    hint = f"name one of them: {first_of(inside, 5)}"
    return AuthorError("step.several_sessions", f"{path} holds several sessions", hint=hint)


def is_inside(node: Node, outer: Node) -> bool:
    """Whether a step is another one or inside it, in its own run or in a run that the other one called."""
    above: Node | None = node
    while above is not None:
        if above is outer:
            return True
        above = above.parent or above.run.call
    return False
