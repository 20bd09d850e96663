"""What is told across runs: home, questions, search, agents, this installation."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from fanfold.kernel.plan import JSON
from fanfold.runtime.operations.history.query import FoundOutputs, query
from fanfold.runtime.operations.overview.home import Home, all_questions, show_home
from fanfold.runtime.operations.overview.sessions import AgentsDocument, session_transcript, show_agents
from fanfold.runtime.operations.overview.spellings import (
    RunWords,
    SpelledAction,
    Spellings,
    StartWords,
    spell,
    spell_start,
)
from fanfold.runtime.views.approvals import PendingQuestions
from fanfold.runtime.views.installation import Examination
from fanfold.runtime.views.sessions.transcripts import Transcript
from fanfold.server.desk import Desk
from fanfold.server.endpoints.parameters import PRINTABLE, RecipeName, RunName, StepPath, Word
from fanfold.server.endpoints.runs import Answer, Comment, RunOptions, Seen
from fanfold.server.routes import NoParameters, Routes
from fanfold.store.search.index import Filters

ROUTES = Routes()


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


@ROUTES.look("/api/home", "What needs you, what runs, what was spent")
def home(desk: Desk) -> Home:
    return show_home(desk.history)


@ROUTES.look("/api/approvals", "Questions that wait for an answer")
def list_questions(desk: Desk) -> PendingQuestions:
    return all_questions(desk.history)


@ROUTES.look("/api/search", "Outputs with some words, best match first")
def search(desk: Desk, asked: SearchAsked) -> FoundOutputs:
    given = structs.asdict(asked)
    words, run, most = (given.pop(name) for name in ("q", "run", "k"))
    return query(desk.history, words.split(), Filters(**given), run=run, most=most)


@ROUTES.look("/api/agents", "Roles, and agents at work")
def list_agents(desk: Desk) -> AgentsDocument:
    return show_agents(desk.fresh(), desk.history)


@ROUTES.look("/api/agents/{session}", "The conversation of a session")
def read_session(desk: Desk, asked: SessionAsked) -> Transcript:
    return session_transcript(desk.history, asked.session)


@ROUTES.get("/api/system", "What this installation is made of")
def examine(desk: Desk) -> Examination:
    return desk.examine()


@ROUTES.change("POST", "/api/copy", "How to do something from elsewhere", role="viewer")
def copy_as(body: CopyBody) -> Spellings:
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
