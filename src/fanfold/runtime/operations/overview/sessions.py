"""Agents at work now, over all runs, and the conversation of any session by its id."""

from __future__ import annotations

from msgspec import Struct

from fanfold.errors import NotFoundError
from fanfold.kernel.lifecycle import RUNNING, WAITING
from fanfold.runtime.operations.agents.roles import list_roles
from fanfold.runtime.operations.history.transcripts import transcript
from fanfold.runtime.operations.project import Project
from fanfold.runtime.records.subagents import is_agent, session_of
from fanfold.runtime.views.recipes.roles import RoleList
from fanfold.runtime.views.sessions.transcripts import Transcript
from fanfold.runtime.views.times import when

MAX_RUNS = 100


class LiveSession(Struct, frozen=True):
    """An agent that works. `step` is a tree path of the whole run `run_id`."""

    session_id: str
    run_id: str
    recipe: str
    step: str
    role: str
    task: str
    since: str | None
    attempt: int


class AgentsDocument(Struct, frozen=True):
    """Who could do the work, and who is at it."""

    roles: RoleList
    sessions: list[LiveSession]


def show_agents(project: Project, history: Project) -> AgentsDocument:
    """The roles of a project as its files are now, and the agents in its runs."""
    return AgentsDocument(list_roles(project), live_sessions(history))


def live_sessions(project: Project) -> list[LiveSession]:
    """Every agent that is at work, as the logs say."""
    if not project.has_runs:
        return []
    heads = [head for word in (RUNNING, WAITING) for head in project.store.heads(status=word, limit=MAX_RUNS)]
    found = []
    for head in heads:
        tree = project.view(head.run_id)
        for node in tree.state.in_flight.values():
            if is_agent(node) and node.status == RUNNING:
                task = tree.memory.tasks.get((node.run.id, node.path), "")
                path = node.run.tree_path(node.path)
                role, since = node.step.traits.role or "", when(node.started_at)
                found.append(
                    LiveSession(
                        session_of(node), head.run_id, head.recipe, path, role, task, since, node.attempt
                    )
                )
    return found


def session_transcript(project: Project, session: str) -> Transcript:
    """The conversation of a session, whichever run it belongs to."""
    first = next(project.store.log(session), None) if project.has_runs else None
    if first is None or first.tree_seq:
        message = f"there is no session {session}"
        raise NotFoundError("session.not_found", message, hint="GET /api/agents lists those at work")
    return transcript(project, first.root_run_id, session)
