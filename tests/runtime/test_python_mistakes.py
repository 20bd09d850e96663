"""What programs get wrong: they are told what it was, at once, and nothing that runs or is stored suffers."""

import asyncio
import copy
import functools
import pickle
import traceback
from collections.abc import Callable
from dataclasses import make_dataclass
from typing import Any

import pydantic
import pytest
from msgspec import structs

import fanfold
from fanfold.api.result import OutputUnfit
from fanfold.language.diagnostics import FileRefused
from fanfold.process_identity import this_process
from fanfold.store.sqlite import SqliteStore

ASKS = fanfold.Recipe(
    name="asks",
    inputs=[{"name": "x"}],
    steps=[
        {"id": "think", "agent": "explorer", "prompt": "x"},
        {"id": "ok", "approve": "Go?", "depends_on": ["think"]},
    ],
)
pytestmark = pytest.mark.usefixtures("project")
QUICK = fanfold.Options(script="default: OK from {{step}}")


@pytest.fixture
def ff():
    with fanfold.open_sync(".") as opened:
        yield opened


@pytest.fixture
def run(ff):
    started = ff.start(ASKS, options=QUICK)
    assert started.result().status == "waiting"
    return started


def refusal(call: Callable[..., Any], *args: Any, **named: Any) -> fanfold.FanfoldError:
    with pytest.raises(fanfold.FanfoldError) as refused:
        call(*args, **named)
    return refused.value


@pytest.mark.parametrize(
    "named",
    [{"comment": 5}, {"choice": 5}, {"edited": object()}, {"comment": "\udcff"}, {"edited": {1: 2}}],
    ids=lambda named: str(named)[:20],
)
def test_an_answer_that_no_log_can_hold_is_refused_and_harms_no_run(ff, run, named):
    assert refusal(run.approve, "ok", **named).code in ("usage.bad_value", "request.not_json")
    assert refusal(ff.approve, run.id, "ok", **named).code in ("usage.bad_value", "request.not_json")
    run.approve("ok", comment="well")
    assert run.result().ok


def test_a_request_that_its_reader_would_not_understand_is_never_stored():
    from fanfold.engine.requests import AnswerRequest, to_row

    answer: Any = AnswerRequest
    for wrong in (answer("ok", "approve", "me", comment=5), answer("ok", "approve", 5)):
        assert refusal(to_row, "r", "r", wrong, 0).code == "request.not_json"


@pytest.mark.parametrize(
    ("wrong", "call"),
    [
        ("recipe", lambda ff, run: ff.start({"name": "r", "steps": []})),
        ("recipe", lambda ff, run: ff.run(None)),
        ("options", lambda ff, run: ff.run(ASKS, options={"script": "default: ok"})),
        ("inputs", lambda ff, run: ff.run(ASKS, options=QUICK, inputs=["x"])),
        ("inputs", lambda ff, run: ff.run(ASKS, options=QUICK, inputs={1: 2})),
        ("output", lambda ff, run: ff.run(ASKS, options=QUICK, output="Verdict")),
        ("output", lambda ff, run: run.result(5)),
        ("run", lambda ff, run: ff.inspect(run)),
        ("run", lambda ff, run: ff.cancel(run.result())),
        ("run", lambda ff, run: ff.logs(b"x")),
        ("run", lambda ff, run: ff.resume(None)),
        ("step", lambda ff, run: ff.explain(run.id, 5)),
        ("step", lambda ff, run: run.approve(["ok"])),
        ("after", lambda ff, run: run.events(next(run.events()))),
        ("limit", lambda ff, run: ff.runs("all")),
        ("most", lambda ff, run: ff.query("ok", most=True)),
        ("words", lambda ff, run: ff.query(5)),
        ("attempt", lambda ff, run: ff.transcript(run.id, "think", attempt="1")),
        ("turn", lambda ff, run: ff.fork(run.id, "think", turn="1")),
        ("prompts", lambda ff, run: ff.fork(run.id, "think", prompts={"think": 5})),
        ("names", lambda ff, run: ff.wait_agent(["scout"])),
        ("timeout_s", lambda ff, run: ff.wait_agent(timeout_s="1")),
        ("recipe", lambda ff, run: ff.retry(run.id, recipe="asks.yaml")),
        ("task", lambda ff, run: ff.plan(5)),
    ],
)
def test_an_argument_of_a_wrong_type_is_named_in_the_error(ff, run, wrong, call):
    error = refusal(call, ff, run)
    assert (error.code, error.details) == ("usage.bad_value", {"option": wrong})
    assert error.message.startswith(f"{wrong} cannot be ")


def test_a_handle_in_place_of_an_id_gets_an_error_with_the_id(ff, run):
    assert refusal(ff.inspect, run).hint == f'name it by its id: "{run.id}"'


@pytest.mark.parametrize("wrong", [{"timeout_ms": -1}, {"write_set": "src"}, {"merge": "maybe"}, {"name": 5}])
def test_an_invalid_task_is_refused_before_an_agent_starts(ff, wrong):
    error = refusal(ff.spawn_agent, "worker", "x", options=QUICK, **wrong)
    assert error.code == "usage.bad_value"
    assert next(iter(wrong)) in error.message
    assert ff.list_agents() == []


def test_an_id_that_is_empty_means_no_run(ff, run):
    assert refusal(ff.cancel, "").code == "run.not_found"
    assert run.status == "waiting"


def test_a_fork_says_nothing_where_there_is_no_turn_to_say_it_at(ff, run):
    assert refusal(ff.fork, run.id, "think", say="And?").code == "usage.conflict"
    for turn in (0, -1, 2):
        assert refusal(ff.fork, run.id, "think", turn=turn).code == "session.no_turn"
    for attempt in (0, -1, 2):
        assert refusal(ff.transcript, run.id, "think", attempt=attempt).code == "step.no_attempt"


def test_an_input_is_not_given_twice(ff):
    assert refusal(ff.run, ASKS, options=QUICK, inputs={"x": 1}, x=2).code == "usage.conflict"
    assert ff.run(ASKS, options=QUICK, inputs={"x": 1}).status == "waiting"


def test_a_run_that_this_process_drives_is_not_taken_from_it(ff, run):
    assert "this very process" in refusal(ff.resume, run.id).hint


def test_a_process_of_another_container_with_the_same_number_is_not_this_one(ff, run, project):
    run.pause()
    other = structs.replace(this_process(), started="1", namespace="2")
    elsewhere = SqliteStore(project / ".fanfold")
    try:
        elsewhere.acquire(run.id, other)
        assert "fanfold watch" in refusal(ff.resume, run.id).hint
    finally:
        elsewhere.close()


@pytest.mark.parametrize("answer", [object(), {1, 2}, float("nan")], ids=["object", "set", "nan"])
def test_an_answer_in_data_is_data(ff, answer):
    asking = fanfold.Recipe(name="q", steps=[{"id": "when", "ask": "When?"}])
    run = ff.start(asking)
    assert run.result().status == "waiting"
    assert refusal(run.answer, "when", answer).code == "usage.bad_value"
    assert refusal(ff.answer, run.id, "when", answer).code == "usage.bad_value"
    run.answer("when", {"day": 3})
    assert run.result().ok


def test_a_project_that_is_not_there_is_not_made(project):
    (project / "file").write_text("")
    for wrong in ("no/such/folder", "file", None, 3, "a\0b"):
        assert refusal(fanfold.run_sync, ASKS, options=QUICK, project=wrong).code == "usage.bad_project"
        assert refusal(fanfold.open_sync, wrong).code == "usage.bad_project"
    assert sorted(path.name for path in project.iterdir()) == ["file"]


def test_an_invalid_function_is_not_registered():
    def two(x: int) -> int:
        return x

    assert refusal(fanfold.function, 5).code == "function.not_callable"
    assert refusal(fanfold.function("five"), 5).code == "function.not_callable"
    unnamed = refusal(fanfold.function, functools.partial(two, 2))
    assert (unnamed.code, unnamed.hint) == ("function.bad_name", 'give it one: fanfold.function("name")(…)')


class Point(pydantic.BaseModel):
    x: int


Unreadable = make_dataclass("Unreadable", [("a", "NotDefinedAnywhere")])


def test_the_type_of_an_output_is_looked_at_before_the_run(ff):
    class Plain:
        pass

    for wrong in (Plain, Unreadable, Unreadable(1), len, Point(x=1)):
        assert refusal(ff.run, ASKS, options=QUICK, output=wrong).code == "usage.bad_value"
    assert ff.runs() == []


def test_models_fit_inside_of_other_types(ff):
    schema = {"type": "array"}
    points = fanfold.Recipe(
        name="p", steps=[{"id": "a", "agent": "explorer", "prompt": "x", "output_schema": schema}]
    )
    scripted = fanfold.Options(script="default: {output: [{x: 1}, {x: 2}]}")
    assert ff.run(points, output=list[Point], options=scripted).expect() == [Point(x=1), Point(x=2)]
    assert refusal(ff.run, points, output=dict[str, Point], options=scripted).code == "output.unfit"


def test_the_sources_of_an_output_are_shown_and_missing_ones_are_reported(ff):
    class Strict(pydantic.BaseModel):
        x: int

        @pydantic.field_validator("x")
        @classmethod
        def refuse(cls, value: int) -> int:
            raise RuntimeError(f"not {value}")

    @fanfold.function
    def point() -> dict[str, int]:
        return {"x": 1}

    @fanfold.function
    def nothing() -> None:
        return None

    def calling(handler: str) -> fanfold.Recipe:
        return fanfold.Recipe(name="calls", steps=[{"id": "call", "handler": handler}])

    allowed = fanfold.Options(permission="auto")
    assert "Point(x=1)" in ff.run(calling("point"), output=Point, options=allowed)._repr_html_()
    unfit = refusal(ff.run, calling("point"), output=Strict, options=allowed)
    assert (unfit.code, unfit.message.endswith("is no Strict: not 1")) == ("output.unfit", True)
    empty = ff.run(calling("nothing"), output=Point, options=allowed)
    assert refusal(empty.expect).message == f"run {empty.run_id} completed, and its output is null"


def test_a_group_of_exceptions_says_what_happened(ff):
    @fanfold.function
    async def together() -> None:
        async def fail() -> None:
            raise ValueError("no such word")

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    recipe = fanfold.Recipe(name="calls", steps=[{"id": "call", "handler": "together"}])
    error = ff.run(recipe, options=fanfold.Options(permission="auto")).error
    assert error is not None
    assert error.message.endswith("(1 sub-exception): ValueError: no such word")


def test_errors_are_copied_sent_to_other_processes_and_annotated_as_they_are():
    refused = refusal(fanfold.run_sync, fanfold.Recipe(name="r", steps=[{"id": "a", "agent": "nobody"}]))
    assert isinstance(refused, FileRefused)
    for error in (refused, fanfold.WorldError("some.code", "words", hint="do that", details={"a": 1})):
        error.add_note("while testing")
        assert "".join(traceback.format_exception(error)).endswith("while testing\n")
        for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert type(again) is type(error)
            assert (again.code, str(again), again.hint) == (error.code, str(error), error.hint)
            assert (again.details, again.__notes__) == (error.details, error.__notes__)


def test_a_class_is_taken_as_a_schema_and_the_type_of_the_output_promises_one(ff):
    scripted = fanfold.Options(script="default: {output: {x: 1}}")
    step = {"id": "a", "agent": "explorer", "prompt": "x"}
    told = fanfold.Recipe(name="p", steps=[{**step, "output_schema": Point}])
    assert told.value["steps"][0]["output_schema"]["properties"] == {"x": {"title": "X", "type": "integer"}}
    assert ff.run(told, output=Point, options=scripted).expect() == Point(x=1)
    derived = ff.run(fanfold.Recipe(name="p", steps=[step]), output=Point, options=scripted)
    assert derived.expect() == Point(x=1)
    assert derived.plan.steps[0].output_schema["required"] == ["x"]


def test_the_result_of_a_run_is_kept_when_its_output_does_not_fit(ff):
    scripted = fanfold.Options(script="default: {output: [1, 2]}")
    step = {"id": "a", "agent": "explorer", "prompt": "x", "output_schema": {"type": "array"}}
    unfit = refusal(ff.run, fanfold.Recipe(name="p", steps=[step]), output=Point, options=scripted)
    assert isinstance(unfit, OutputUnfit)
    assert (unfit.result.status, unfit.result.output) == ("completed", [1, 2])
