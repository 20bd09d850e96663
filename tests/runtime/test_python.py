"""Fanfold from Python: the names the package offers, with and without a running event loop."""

import asyncio
import subprocess
import sys

import pytest

import fanfold

RECIPE = """\
name: greet
inputs: [{name: who, default: world}]
steps:
  - {id: think, agent: explorer, prompt: "Think of {{inputs.who}}"}
  - {id: say, agent: explorer, prompt: "Say {{steps.think.output}}"}
"""
OPTIONS = fanfold.Options(script="default: OK from {{step}}")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "greet.yaml").write_text(RECIPE)
    return tmp_path


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
    with pytest.raises(fanfold.NotFoundError):
        fanfold.run_sync("nowhere", options=OPTIONS)


def test_what_writes_needs_permission(project):
    recipe = fanfold.Recipe(name="r", steps=[{"id": "a", "run": ["echo", "hi"]}])
    with pytest.raises(fanfold.WorldError) as denied:
        fanfold.run_sync(recipe)
    assert denied.value.code == "permission_denied"
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
    driving = {"follow", "wait", "answer", "interrupt", "abort", "leave_when_waiting", "leave"}
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


def test_names_are_loaded_when_they_are_used():
    code = (
        "import sys, fanfold\n"
        "assert not {'msgspec', 'asyncio', 'fanfold.runtime'} & set(sys.modules)\n"
        "assert set(fanfold.__all__) <= set(dir(fanfold))\n"
        "for name in fanfold.__all__: getattr(fanfold, name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
