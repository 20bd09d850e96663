"""Which run and which step a person means: ids, prefixes of ids, `last`; paths in a run or in its tree."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.lifecycle import PENDING
from fanfold.kernel.nodes import LEAF, Node, Run
from fanfold.kernel.state import find_node
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Project
from fanfold.runtime.records.subagents import child_name, is_agent
from fanfold.runtime.views.sessions.transcripts import Speaker, find_speakers, speaker_of

MIN_PREFIX = 5
"""Shorter words are not taken for the beginning of a session's id."""


class Addressed(NamedTuple):
    """A run that somebody named, in a reader's copy of its tree."""

    tree: RunTree
    run: Run

    @property
    def root_id(self) -> str:
        return self.tree.root.id

    def turns(self, name: str) -> list[Node]:
        """The turns of a subagent, in order; empty where there is none of that name."""
        if not self.run.plan.open:
            return []
        return [node for node in self.run.scope.children if is_agent(node) and child_name(node.path) == name]

    def tree_path(self, path: str) -> str:
        """The path, seen from the root, of the instance a person means."""
        node = self.step(path)
        return node.run.tree_path(node.path)

    def step(self, path: str) -> Node:
        """The instance a person means: by its path in the run, or by that in the tree, as views show it."""
        run = self.run
        node = find_node(self.tree.state, run.tree_path(path))
        if node is None and run.path and path.startswith(f"{run.path}/"):
            node = find_node(self.tree.state, path)
        if node is not None:
            return node
        if run.status == PENDING:
            raise NotFoundError("step.not_found", f"run {run.id} has not begun, so it has no step {path} yet")
        from fanfold.text.spelling import nearest

        near = nearest(path, tuple(run.nodes))
        hint = f'did you mean "{near}"?' if near else f"fanfold inspect {run.id} --steps lists them"
        raise NotFoundError("step.not_found", f"run {run.id} has no step {path}", hint=hint)


def find_run(project: Project, name: str, at: int | None = None) -> Addressed:
    """A run by id, unique prefix or `last`, as its log is now, or as it was after an event of its tree."""
    head = project.resolve(name)
    tree = project.view(head.root_run_id, at)
    run = tree.state.runs.get(head.run_id)
    if run is None:
        raise NotFoundError("run.not_found", f"run {head.run_id} has not begun")
    return Addressed(tree, run)


def find_speaker(found: Addressed, name: str, attempt: int | None) -> Speaker:
    """The session that somebody means by a step, a subagent or an id."""
    node = _find_step(found, name)
    if node is None:
        return _find_session(found, name, attempt)
    if not is_agent(node) or node.kind != LEAF:
        raise _not_an_agent(found, node)
    wanted = max(1, node.attempt) if attempt is None else attempt
    if not 1 <= wanted <= max(1, node.attempt):
        message = f"{node.path} has had {node.attempt} attempt{'' if node.attempt == 1 else 's'}"
        raise NotFoundError("step.no_attempt", message, hint="leave --attempt out for the latest")
    return speaker_of(found.tree, node, wanted)


def only_speaker(found: Addressed) -> str:
    """The path of the agent step of a run that has one alone; of several, the hint names the last."""
    paths = [
        run.tree_path(node.path)
        for run in found.tree.state.runs.values()
        for node in run.nodes.values()
        if is_agent(node) and node.kind == LEAF and node.attempt
    ]
    if len(paths) == 1:
        return paths[0]
    run = found.root_id
    if not paths:
        hint = f"fanfold inspect {run} shows its steps"
        raise NotFoundError("step.no_session", f"no agent has worked in run {run}", hint=hint)
    message = f"{len(paths)} agents worked in run {run}: say whose transcript"
    hint = f"the last one's: fanfold transcript {run} {shlex.quote(paths[-1])}"
    raise AuthorError("step.several_sessions", message, hint=hint)


def _find_step(found: Addressed, name: str) -> Node | None:
    """A step by its path; by the name of a subagent, its latest turn that began."""
    turns = found.turns(name)
    if turns:
        return ([node for node in turns if node.attempt] or turns)[-1]
    try:
        return found.step(name)
    except NotFoundError:
        if len(name) < MIN_PREFIX or not name.startswith("s"):
            raise
        return None


def _find_session(found: Addressed, name: str, attempt: int | None) -> Speaker:
    if attempt is not None:
        raise AuthorError("usage.conflict", "a session is one attempt", hint="leave --attempt out")
    speakers = list(find_speakers(found.tree, name))
    if len(speakers) > 1:
        ids = ", ".join(one.session_id for one in speakers[:5])
        raise AuthorError("session.ambiguous", f"several sessions begin with {name}: {ids}")
    if not speakers:
        found.step(name)  # says what is near
    return speakers[0]


def _not_an_agent(found: Addressed, node: Node) -> AuthorError:
    inside = [
        other.run.tree_path(other.path)
        for run in found.tree.state.runs.values()
        for other in run.nodes.values()
        if is_agent(other) and other.kind == LEAF and _is_inside(other, node)
    ]
    path = node.run.tree_path(node.path)
    if not inside:
        hint = f"fanfold explain {found.root_id} {shlex.quote(path)} tells what it did"
        message = f"no agent worked on {path}: its type is {node.step.type}"
        return AuthorError("step.no_session", message, hint=hint)
    few = ", ".join(inside[:5]) + (f" and {len(inside) - 5} more" if len(inside) > 5 else "")
    return AuthorError(
        "step.several_sessions", f"{path} holds several sessions", hint=f"name one of them: {few}"
    )


def _is_inside(node: Node, outer: Node) -> bool:
    """Whether a step is below another one, in its own run or in a run that one called."""
    above: Node | None = node
    while above is not None:
        if above is outer:
            return True
        above = above.parent or above.run.call
    return False
