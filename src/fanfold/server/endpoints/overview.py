"""What is told across runs: home, questions, search, agents, this installation."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fanfold.runtime.operations.history.query import FoundOutputs, query
from fanfold.runtime.operations.overview.home import show_home
from fanfold.runtime.operations.overview.questions import all_questions
from fanfold.runtime.operations.overview.sessions import AgentsDocument, session_transcript, show_agents
from fanfold.runtime.operations.overview.spellings import SpelledAction, Spellings, spell
from fanfold.runtime.views.home import Home
from fanfold.runtime.views.installation import Examination
from fanfold.runtime.views.pending_questions import PendingQuestions
from fanfold.runtime.views.sessions.transcripts import Transcript
from fanfold.server.desk import Desk
from fanfold.server.endpoints.parameters import PRINTABLE, NoParameters, RecipeName, RunName, StepPath
from fanfold.server.routes import Route, get, look


class SearchAsked(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    q: Annotated[str, Meta(max_length=1_000, pattern=PRINTABLE)]
    run: RunName | None = None
    k: Annotated[int, Meta(ge=1, le=100)] = 20


class SessionAsked(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    session: RunName


class CopyAsked(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    action: SpelledAction
    run: RunName | None = None
    step: StepPath | None = None
    recipe: RecipeName | None = None


def home(desk: Desk, asked: NoParameters) -> Home:
    del asked
    return show_home(desk.history)


def list_questions(desk: Desk, asked: NoParameters) -> PendingQuestions:
    del asked
    return all_questions(desk.history)


def search(desk: Desk, asked: SearchAsked) -> FoundOutputs:
    return query(desk.history, asked.q.split(), run=asked.run, most=asked.k)


def list_agents(desk: Desk, asked: NoParameters) -> AgentsDocument:
    del asked
    return show_agents(desk.fresh(), desk.history)


def read_session(desk: Desk, asked: SessionAsked) -> Transcript:
    return session_transcript(desk.history, asked.session)


def examine(desk: Desk, asked: NoParameters) -> Examination:
    del asked
    return desk.examine()


def copy_as(desk: Desk, asked: CopyAsked) -> Spellings:
    del desk
    return spell(asked.action, run=asked.run, step=asked.step, recipe=asked.recipe)


ROUTES: list[Route] = [
    look("/api/home", "What needs you, what runs, what was spent", NoParameters, Home, home),
    look(
        "/api/approvals", "Questions that wait for an answer", NoParameters, PendingQuestions, list_questions
    ),
    look("/api/search", "Outputs with some words, best match first", SearchAsked, FoundOutputs, search),
    look("/api/agents", "Roles, and agents at work", NoParameters, AgentsDocument, list_agents),
    look("/api/agents/{session}", "The conversation of a session", SessionAsked, Transcript, read_session),
    get("/api/system", "What this installation is made of", NoParameters, Examination, examine),
    get("/api/copy", "How to do something from elsewhere", CopyAsked, Spellings, copy_as),
]
