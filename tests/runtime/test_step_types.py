"""Types that nobody has heard of, added from outside: every way there is for a step to come to its output."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import ClassVar

import pytest

from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.plan import JSON, Step, Traits
from fanfold.language.keys import StepSyntax
from fanfold.language.leaf_steps import STEPS, Body, WrittenStep
from fanfold.language.tables import Key
from fanfold.steps.order import Outcome, Question, SettledJob, Timer
from fanfold.steps.step_type import STEP_TYPES, LeafType, Preparation, StepReply, label_of, register, text_of
from tests.runtime.running import client, run
from tests.work import PATIENCE_S


class NoteBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = StepSyntax(
        name="note",
        decided_by=("note",),
        keys=(Key("note", "template", "What is noted."),),
        takes=frozenset({"output_schema"}),
    )
    text: str

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="none")


class NoteSteps(LeafType[NoteBody, SettledJob]):
    body = NoteBody

    def from_recipe(self, step: WrittenStep) -> NoteBody:
        return NoteBody(step.template("note") or "")

    def prepare(self, step: Preparation, said: NoteBody) -> SettledJob:
        return SettledJob({"noted": text_of(said.text, step.names)})


class NapBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = StepSyntax(
        name="nap", decided_by=("nap",), keys=(Key("nap", "duration", "How long.", low=1, high=60_000),)
    )
    nap_ms: int

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="none", waits="timer")


class NapSteps(LeafType[NapBody, Timer]):
    body = NapBody

    def from_recipe(self, step: WrittenStep) -> NapBody:
        return NapBody(step.entries.milliseconds("nap") or 0)

    def prepare(self, step: Preparation, said: NapBody) -> Timer:
        del step
        return Timer(int(time() * 1_000) + said.nap_ms)

    def at_timeout(self, said: NapBody) -> JSON:
        return f"{said.nap_ms} ms later"


class QuizBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = StepSyntax(
        name="quiz", decided_by=("quiz",), keys=(Key("quiz", "text", "What is asked."),)
    )
    quiz: str

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="none", waits="person")


class QuizSteps(LeafType[QuizBody, Question]):
    body = QuizBody
    waiting = "asks"

    def from_recipe(self, step: WrittenStep) -> QuizBody:
        return QuizBody(step.entries.text("quiz") or "")

    def prepare(self, step: Preparation, said: QuizBody) -> Question:
        del step
        return Question(said.quiz)

    def answer(self, step: Preparation, said: QuizBody, reply: StepReply) -> Outcome:
        del said
        if not reply.comment:
            raise AuthorError("quiz.silent", f"{step.node.path} wants to hear something")
        return Outcome({"decision": reply.decision, "by": reply.by, "comment": reply.comment, "edited": None})


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The types above, for one test."""
    for name in ("grammars", "syntaxes", "deciding", "hinting"):
        monkeypatch.setattr(STEPS, name, dict(getattr(STEPS, name)))
    before, shape = dict(STEP_TYPES), STEPS.shape
    register(NoteSteps())
    register(NapSteps())
    register(QuizSteps())
    yield
    STEP_TYPES.clear()
    STEP_TYPES.update(before)
    STEPS.shape = shape


def test_a_step_whose_output_is_known_when_it_starts_ends_at_once(tmp_path: Path) -> None:
    recipe = """
name: noted
steps:
  - {id: a, note: "one"}
  - {id: b, agent: explorer, prompt: "{{steps.a.output.noted}}"}
  - {id: c, note: "{{steps.b.output}}, {{steps.a.output.noted}}"}
"""
    result = run(tmp_path, recipe, "default: said")
    assert (result.status, result.output) == ("completed", {"noted": "said, one"})
    assert result.steps["a"].type == "note"


def test_values_known_before_the_run_are_checked_against_the_schema(tmp_path: Path) -> None:
    result = run(tmp_path, "name: n\nsteps: [{id: a, note: x, output_schema: {type: string}}]")
    assert result.status == "failed"
    assert result.steps["a"].error is not None
    assert result.steps["a"].error.kind == "invalid_output"


def test_a_step_that_waits_for_its_time_ends_by_itself(tmp_path: Path) -> None:
    """Also where nobody is there to answer, and the owner of a run that waits for people leaves it."""
    recipe = "name: n\nsteps: [{id: a, nap: 30ms}, {id: b, depends_on: [a], note: up}]"

    async def work() -> Result:
        async with client(tmp_path) as opened:
            return await asyncio.wait_for(opened.run(recipe, options=Options(permission="auto")), PATIENCE_S)

    result = asyncio.run(work())
    assert result.status == "completed"
    assert result.steps["a"].output == "30 ms later"


def test_a_type_says_itself_what_an_answer_means(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as opened:
            options = Options(permission="auto", script="default: x")
            handle = await opened.start("name: n\nsteps: [{id: a, quiz: What?}]", options=options)
            async for event in handle.events():
                if event.type == "step_event" and event.data["status"] == "waiting":
                    with pytest.raises(AuthorError, match="wants to hear"):
                        await handle.approve("a")
                    await handle.approve("a", comment="that")
            result = await asyncio.wait_for(handle.result(), PATIENCE_S)
            assert (result.status, result.steps["a"].output["comment"]) == ("completed", "that")

    asyncio.run(work())


def test_a_step_of_a_type_that_is_not_known_here_is_refused_by_name() -> None:
    step = Step(id="a", action=NoteBody("x").action())
    del STEP_TYPES["note"]
    with pytest.raises(WorldError, match="step a is of type note"):
        label_of(step)
