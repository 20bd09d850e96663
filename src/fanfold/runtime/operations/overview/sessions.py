"""Agents at work now, over all runs, and the conversation of any session by its id."""

from __future__ import annotations

from msgspec import Struct, structs

from fanfold.agents.entries import Entry, Response, ToolCall, ToolResult, paid_in
from fanfold.errors import NotFoundError
from fanfold.kernel.lifecycle import RUNNING, WAITING
from fanfold.runtime.operations.agents.roles import RoleList, list_roles
from fanfold.runtime.operations.history.transcripts import transcript
from fanfold.runtime.operations.project import Project
from fanfold.runtime.records.subagents import is_agent, session_of
from fanfold.runtime.views.sessions.transcripts import Transcript
from fanfold.runtime.views.times import when
from fanfold.sessions.log import read_recorded
from fanfold.text.excerpts import shorten_line

MAX_RUNS = 100


MAX_WORDS = 120


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
    """Every agent that is at work, as the logs say; in a run that nobody drives, none is."""
    found = []
    for head in project.heads(RUNNING, WAITING, limit=MAX_RUNS):
        if not project.has_owner(head.run_id):
            continue
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


class Activity(Struct, frozen=True):
    """`path` is a tree path of the whole run. An agent whose `words` are empty is not at work any more."""

    run_id: str
    path: str
    tool: str
    words: str
    tokens: int


class _Heard(Struct):
    seq: int
    activity: Activity


class Activities:
    """What agents do right now: the last thing each recorded, and what it has spent so far.

    For one thread that looks again and again: of each session only what is new is read.
    """

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}

    def look(self, project: Project) -> list[Activity]:
        """Every agent at work."""
        live = live_sessions(project)
        self._heard = {one.session_id: self._read(project, one) for one in live}
        return [heard.activity for heard in self._heard.values()]

    def _read(self, project: Project, session: LiveSession) -> _Heard:
        nothing = Activity(session.run_id, session.step, "", shorten_line(session.task, MAX_WORDS), 0)
        heard = self._heard.get(session.session_id) or _Heard(0, nothing)
        for envelope, entry in read_recorded(project.store, session.session_id, heard.seq):
            heard = _Heard(envelope.seq, _after(heard.activity, entry))
        return heard


def _after(before: Activity, entry: Entry) -> Activity:
    """What an agent does, once it has recorded an entry."""
    paid = paid_in(entry)
    tokens = before.tokens + (0 if paid is None else paid.tokens)
    match entry:
        case ToolCall() | ToolResult():
            return structs.replace(before, tool=entry.tool, words=f"→ {entry.tool}", tokens=tokens)
        case Response() if entry.tool_calls:
            tool = entry.tool_calls[-1].tool
            return structs.replace(before, tool=tool, words=f"→ {tool}", tokens=tokens)
        case Response() if entry.text:
            return structs.replace(before, tool="", words=shorten_line(entry.text, MAX_WORDS), tokens=tokens)
    return structs.replace(before, tokens=tokens)
