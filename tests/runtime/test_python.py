"""Fanfold from Python: the names the package offers, with and without a running event loop."""

import asyncio
import subprocess
import sys

import pytest

import fanfold
from tests.work import PATIENCE_S

RECIPE = """\
name: greet
inputs: [{name: who, default: world}]
steps:
  - {id: think, agent: explorer, prompt: "Think of {{inputs.who}}"}
  - {id: say, agent: explorer, prompt: "Say {{steps.think.output}}"}
"""
OPTIONS = fanfold.Options(script="default: OK from {{step}}")


@pytest.fixture
def project(project):
    (project / "greet.yaml").write_text(RECIPE)
    return project


def test_a_recipe_runs_from_synchronous_code(project):
    result = fanfold.run_sync("greet.yaml", options=OPTIONS, who="you")
    assert (result.status, result.ok, result.output) == ("completed", True, "OK from say")
    assert result.steps["think"].output == "OK from think"
    assert result.usage.agents == 2


def test_it_also_runs_inside_a_loop_that_is_running_already(project):
    async def cell():
        return fanfold.run_sync("greet.yaml", options=OPTIONS)

    assert asyncio.run(cell()).ok


def test_a_run_that_needs_a_person_comes_back_waiting(project):
    recipe = fanfold.Recipe(name="r", steps=[{"id": "ok", "approve": "Go?"}])
    assert fanfold.run_sync(recipe).status == "waiting"


def test_a_project_is_opened_and_its_runs_followed(project):
    async def work():
        async with fanfold.open(project) as ff:
            run = await ff.start("greet.yaml", options=OPTIONS, inputs={"who": "me"})
            words = [event.data.get("status") or event.data.get("kind") async for event in run.events()]
            return words, await run.result()

    words, result = asyncio.run(work())
    assert (words[0], words[-1]) == ("created", "completed")
    assert result.output == "OK from say"


def test_inputs_and_recipes_are_checked_as_on_the_command_line(project):
    with pytest.raises(fanfold.AuthorError) as unknown:
        fanfold.run_sync("greet.yaml", options=OPTIONS, whom="x")
    assert unknown.value.code == "recipe.unknown_input"
    with pytest.raises(fanfold.AuthorError) as refused:
        fanfold.run_sync(fanfold.Recipe(name="r", steps=[{"id": "a", "agent": "nobody", "prompt": "x"}]))
    assert refused.value.code == "recipe.unknown_role"
    assert refused.value.__context__ is None  # a traceback tells this error and no other
    with pytest.raises(fanfold.NotFoundError):
        fanfold.run_sync("nowhere", options=OPTIONS)


@pytest.mark.full
def test_writing_steps_need_permission(project):
    recipe = fanfold.Recipe(name="r", steps=[{"id": "a", "run": ["echo", "hi"]}])
    with pytest.raises(fanfold.WorldError) as denied:
        fanfold.run_sync(recipe)
    assert denied.value.code == "permission_denied"
    assert denied.value.hint.endswith('from Python, with Options(permission="auto")')
    assert fanfold.run_sync(recipe, options=fanfold.Options(permission="auto")).output == "hi"


def test_a_notebook_shows_status_graph_and_steps_and_no_markup_of_agents(project):
    script = "default: <script>alert(1)</script>"
    shown = fanfold.run_sync("greet.yaml", options=fanfold.Options(script=script))._repr_html_()
    assert "completed" in shown
    assert "<svg" in shown
    assert "think" in shown
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_code_without_a_loop_can_do_whatever_code_with_one_can():
    def public(kind):
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(fanfold.Client) - {"plan_of"} <= public(fanfold.SyncClient)
    driving = {
        "follow",
        "is_over",
        "wait",
        "interrupt",
        "abort",
        "leave_when_waiting",
        "leave",
        "post",
        "check",
        "check_loop",
        "result_now",
        "log_unread_failure",
        "let_go",
        "is_stranded",
        "release_if_at_rest",
        "when_at_rest",
    }
    assert public(fanfold.RunHandle) - driving <= public(fanfold.SyncRun)


def test_a_project_is_used_without_a_loop_and_inside_of_one(project):
    def work():
        with fanfold.open_sync(project) as ff:
            run = ff.start("greet.yaml", options=OPTIONS, who="me")
            words = [event.data.get("status") or event.data.get("kind") for event in run.events()]
            assert (words[0], words[-1], run.result().output) == ("created", "completed", "OK from say")
            assert ff.inspect(run.id).steps["think"].output == ff.inspect_step(run.id, "think").output
            assert ff.explain(run.id).status == ff.explain(run.id, "say").status == "completed"
            assert [entry.kind for entry in ff.follow_transcript(run.id, "say")] == ["input", "response"]
            assert ff.logs(run.id)[0].type == "workflow_event"
            with pytest.raises(fanfold.NotFoundError):
                ff.transcript(run.id, "nobody")
            return ff.fork(run.id, "say").result()

    async def cell():
        return work()

    assert work().ok
    assert asyncio.run(cell()).usage.agents == 1


@pytest.mark.full
def test_names_are_loaded_when_they_are_used():
    code = (
        "import sys, fanfold\n"
        "assert not {'msgspec', 'asyncio', 'fanfold.engine'} & set(sys.modules)\n"
        "assert set(fanfold.__all__) <= set(dir(fanfold))\n"
        "for name in fanfold.__all__: getattr(fanfold, name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


ASKS = """\
name: asks
steps:
  - {id: think, agent: explorer, prompt: x}
  - {id: ok, approve: Go?, depends_on: [think]}
  - {id: say, agent: explorer, prompt: y, depends_on: [ok]}
"""


def test_results_and_events_return_at_an_approval_and_continue_after_the_answer(project):
    (project / "asks.yaml").write_text(ASKS)

    async def work():
        async with fanfold.open(project) as ff:
            run = await ff.start("asks.yaml", options=OPTIONS)
            seen = [event async for event in run.events()]
            waiting = await run.result()
            assert (waiting.status, waiting.steps["think"].output) == ("waiting", "OK from think")
            await run.approve("ok")
            rest = [event async for event in run.events(seen[-1].tree_seq)]
            assert [event.tree_seq for event in seen + rest] == list(range(1, rest[-1].tree_seq + 1))
            return await run.result()

    assert asyncio.run(asyncio.wait_for(work(), PATIENCE_S)).output == "OK from say"
    with fanfold.open_sync(project) as ff:
        run = ff.start("asks.yaml", options=OPTIONS)
        assert run.result().status == "waiting"
        run.approve("ok")
        assert run.result().ok


@pytest.mark.full
def test_a_caller_that_stops_waiting_stops_no_other_call(project):
    (project / "slow.yaml").write_text("default: {output: done, delay_ms: 300}\n")
    slow = fanfold.Options(script=(project / "slow.yaml").read_text())

    async def work():
        async with fanfold.open(project) as ff:
            run = await ff.start("greet.yaml", options=slow)
            for waiting in (run.result, run.wait):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(waiting(), 0.01)
            async for _ in run.events():
                break
            assert (await run.result()).ok
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(ff.run("greet.yaml", options=slow), 0.05)
        async with fanfold.open(project) as ff:
            return (await ff.resume("last")).tree.root.id

    async def again(run_id):
        async with fanfold.open(project) as ff:
            return ff.inspect(run_id).status

    run_id = asyncio.run(work())
    assert asyncio.run(again(run_id)) in ("running", "paused", "completed")


def test_errors_show_the_place_and_what_to_do_as_the_command_line_does(project):
    import traceback

    (project / "greet.yaml").write_text(RECIPE.replace("explorer", "explorr", 1))
    with pytest.raises(fanfold.FileRefused) as refused:
        fanfold.run_sync("greet.yaml", options=OPTIONS)
    shown = "".join(traceback.format_exception(refused.value))
    assert "greet.yaml:4" in shown
    assert "^^^^^^^" in shown
    assert 'did you mean "explorer"' in shown
    assert (refused.value.line, refused.value.file) == (4, "greet.yaml")
    with pytest.raises(fanfold.NotFoundError) as missing:
        fanfold.run_sync("nowhere", options=OPTIONS)
    assert f"hint: {missing.value.hint}" in "".join(traceback.format_exception(missing.value))


@pytest.mark.parametrize("beyond", [{"max_concurrency": 17}, {"max_agents": 2_001}])
def test_options_beyond_what_may_be_asked_for_are_refused_as_on_the_command_line(tmp_path, beyond):
    (tmp_path / "one.yaml").write_text("name: one\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    options = fanfold.Options(script="default: ok", **beyond)
    with fanfold.open_sync(tmp_path) as ff, pytest.raises(fanfold.AuthorError) as refused:
        ff.run("one.yaml", options=options)
    assert refused.value.code == "usage.out_of_range"
    assert next(iter(beyond)) in refused.value.message


def test_mistakes_in_inputs_and_scripts_are_reported_with_their_place(tmp_path):
    (tmp_path / "one.yaml").write_text(
        "name: one\ninputs: {topic: {required: true}}\nsteps: [{id: a, agent: explorer, prompt: x}]\n"
    )
    with fanfold.open_sync(tmp_path) as ff:
        with pytest.raises(fanfold.FanfoldError) as missing:
            ff.run("one.yaml", options=OPTIONS)
        assert missing.value.hint == "the recipe takes topic"
        with pytest.raises(fanfold.FanfoldError) as unread:
            ff.run("one.yaml", topic="x", options=fanfold.Options(script="]["))
        assert str(unread.value).startswith("script:1:1: ")


@pytest.mark.parametrize(
    "wrong",
    [
        {"permission": "atuo"}, {"permission": None}, {"max_agents": "4"}, {"max_concurrency": True},
        {"max_concurrency": 0}, {"budget_micro_usd": 0}, {"budget_tokens": -1}, {"timeout_ms": 1.5},
        {"model": 4}, {"model": ""}, {"backend": " "}, {"script": b"default: ok"},
    ],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused_at_once(wrong):
    with pytest.raises(fanfold.AuthorError) as refused:
        fanfold.Options(**wrong)
    assert (refused.value.code, refused.value.details) == ("usage.bad_value", {"option": next(iter(wrong))})
    with pytest.raises(TypeError):
        fanfold.Options(no_such_option=1)  # type: ignore[call-arg]  # what is tried


def test_every_option_is_documented():
    import ast
    import inspect

    (shape,) = ast.parse(inspect.getsource(fanfold.Options)).body
    assert isinstance(shape, ast.ClassDef)
    fields = [at for at, one in enumerate(shape.body) if isinstance(one, ast.AnnAssign)]
    assert len(fields) >= 11
    for at in fields:
        told = shape.body[at + 1]
        assert isinstance(told, ast.Expr), ast.unparse(shape.body[at])


def test_texts_shown_in_a_line_are_short(project):
    with fanfold.open_sync(project) as ff:
        run = ff.start("greet.yaml", options=fanfold.Options(script=f"default: {'long ' * 500}"))
        result = run.result()
        shown = [ff, run, result, result.steps["think"], ff.inspect(run.id), ff.transcript(run.id, "say")]
        for one in shown:
            assert len(repr(one)) < 160, repr(one)
        assert repr(run) == f"<run {run.id} of greet, completed>"
    assert repr(fanfold.Options(max_agents=3)) == "Options(max_agents=3)"


def test_functions_of_the_running_program_are_found(project):
    def define(word):
        @fanfold.function
        def only_here(who: str) -> str:
            return f"{word} {who}"

    define("hello")
    recipe = fanfold.Recipe(name="f", steps=[{"id": "f", "handler": "only_here", "inputs": {"who": "you"}}])
    allowed = fanfold.Options(permission="auto")
    assert fanfold.run_sync(recipe, options=allowed).output == "hello you"

    define("goodbye")  # a cell of a notebook that is run again
    assert fanfold.run_sync(recipe, options=allowed).output == "goodbye you"
