"""What is told across runs: home, questions, search, agents, this installation."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from fanfold.kernel.plan import JSON
from fanfold.runtime.operations.history.query import FoundOutputs, query
from fanfold.runtime.operations.overview.home import show_home
from fanfold.runtime.operations.overview.questions import all_questions
from fanfold.runtime.operations.overview.sessions import AgentsDocument, session_transcript, show_agents
from fanfold.runtime.operations.overview.spellings import (
    RunWords,
    SpelledAction,
    Spellings,
    StartWords,
    spell,
    spell_start,
)
from fanfold.runtime.views.home import Home
from fanfold.runtime.views.installation import Examination
from fanfold.runtime.views.pending_questions import PendingQuestions
from fanfold.runtime.views.sessions.transcripts import Transcript
from fanfold.server.desk import Desk
from fanfold.server.endpoints.parameters import PRINTABLE, NoParameters, RecipeName, RunName, StepPath, Word
from fanfold.server.endpoints.runs import Answer, Comment, RunOptions, Seen
from fanfold.server.routes import Route, change, get, look
from fanfold.store.search.index import Filters


class SearchAsked(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    q: Annotated[str, Meta(max_length=1_000, pattern=PRINTABLE)]
    run: RunName | None = None
    k: Annotated[int, Meta(ge=1, le=100)] = 20
    recipe: RecipeName | None = None
    phase: Word | None = None
    step: StepPath | None = None
    role: Word | None = None
    status: Literal["completed", "failed", "skipped", "cancelled", "timed_out"] | None = None
    since: Annotated[int, Meta(ge=0, le=2**53, description="Milliseconds since 1970.")] | None = None


class SessionAsked(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    session: RunName


class CopyBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An action, with what a form holds for it."""

    action: SpelledAction
    run: RunName | None = None
    step: StepPath | None = None
    recipe: RecipeName | None = None
    inputs: dict[str, JSON] = {}
    options: RunOptions = RunOptions()
    script: dict[str, JSON] | None = None
    choice: Comment | None = None
    comment: Comment | None = None
    text: Answer | None = None
    seen: Seen | None = None
    yes: bool = False


def home(desk: Desk, asked: NoParameters) -> Home:
    del asked
    return show_home(desk.history)


def list_questions(desk: Desk, asked: NoParameters) -> PendingQuestions:
    del asked
    return all_questions(desk.history)


def search(desk: Desk, asked: SearchAsked) -> FoundOutputs:
    filters = Filters(
        recipe=asked.recipe,
        phase=asked.phase,
        step=asked.step,
        role=asked.role,
        status=asked.status,
        since=asked.since,
    )
    return query(desk.history, asked.q.split(), filters, run=asked.run, most=asked.k)


def list_agents(desk: Desk, asked: NoParameters) -> AgentsDocument:
    del asked
    return show_agents(desk.fresh(), desk.history)


def read_session(desk: Desk, asked: SessionAsked) -> Transcript:
    return session_transcript(desk.history, asked.session)


def examine(desk: Desk, asked: NoParameters) -> Examination:
    del asked
    return desk.examine()


def copy_as(desk: Desk, asked: NoParameters, body: CopyBody) -> Spellings:
    del desk, asked
    if body.action == "run":
        usual = structs.asdict(RunOptions())
        options = {name: one for name, one in structs.asdict(body.options).items() if one != usual[name]}
        return spell_start(
            StartWords(
                recipe=body.recipe or "RECIPE",
                inputs=body.inputs,
                options=options,
                script=body.script,
                yes=body.yes,
            )
        )
    return spell(
        body.action,
        RunWords(
            run=body.run or "RUN",
            step=body.step,
            choice=body.choice,
            comment=body.comment,
            text=body.text,
            seen=body.seen,
            yes=body.yes,
        ),
    )


ROUTES: list[Route] = [
    look("/api/home", "What needs you, what runs, what was spent", NoParameters, Home, home),
    look(
        "/api/approvals", "Questions that wait for an answer", NoParameters, PendingQuestions, list_questions
    ),
    look("/api/search", "Outputs with some words, best match first", SearchAsked, FoundOutputs, search),
    look("/api/agents", "Roles, and agents at work", NoParameters, AgentsDocument, list_agents),
    look("/api/agents/{session}", "The conversation of a session", SessionAsked, Transcript, read_session),
    get("/api/system", "What this installation is made of", NoParameters, Examination, examine),
    change(
        "POST",
        "/api/copy",
        "How to do something from elsewhere",
        (NoParameters, CopyBody, Spellings),
        copy_as,
        role="viewer",
    ),
]
