"""Roles in stages: what a pipeline may say, how its stages run, and what a crash between them costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.backend import SessionFailed, SessionRequest
from fanfold.agents.backend_registry import Backends
from fanfold.agents.entries import Entry, ToolCall, ToolResult, UserInput
from fanfold.agents.pipelines import Pipelines
from fanfold.agents.redaction import Redactor
from fanfold.agents.role import DEFAULT_MODEL, Role, Stage
from fanfold.agents.roles import Registry, Root, load_roles
from fanfold.agents.tools.toolbox import SessionTools
from tests.models.sessions import Killed, Recorder, World, kinds, play, request
from tests.provider import Call, RecordedRequest, Reply, answer_with

HEAD = """\
name = "staged"
description = "Works in stages"
developer_instructions = "Be brief."
"""
CRITIC = Role(
    name="critic",
    description="d",
    instructions="Find faults.",
    model="openai-chat:gpt-5-mini",
    sandbox_mode="read-only",
)
READ = {"name": "look", "tool": "read_file", "args": {"path": "{{prompt}}"}}
DRAFT = {"name": "draft", "model": True, "prompt": "Sum up: {{stages.look.text}}"}
CHECK = {"agent": "critic", "prompt": "Check {{previous}} against {{stages.look.text}}"}


def staged(world: World) -> Pipelines:
    return Pipelines(
        world.backend,
        find={"critic": CRITIC}.get,
        toolbox=SessionTools,
        redactor=Redactor(["hunter2-hunter2"]),
    )


def stage_of(said: dict[str, Any] | Stage) -> Stage:
    """A stage as its file says it."""
    if isinstance(said, Stage):
        return said
    return Stage(**{**said, **({"model": DEFAULT_MODEL} if said.get("model") is True else {})})


def asked(workspace: Path, *stages: dict[str, Any] | Stage, **given: Any) -> SessionRequest:
    return request(workspace, pipeline=tuple(map(stage_of, stages)), **{"prompt": "a.txt", **given})


def again(before: SessionRequest, entries: list[Entry], workspace: Path) -> SessionRequest:
    """The request of the next execution, with what the supervisor hands back."""
    told = [UserInput(text=before.prompt), *entries]
    return asked(workspace, *before.role.pipeline, execution=2, entries=told, read_only=before.role.read_only)


async def run(world: World, what: SessionRequest, recorder: Recorder | None = None) -> Any:
    world.recorder = recorder or Recorder()
    return await staged(world).run(what, world.recorder.record, world.recorder.show)


# -- running


def by_stage(heard: RecordedRequest) -> Reply:
    return Reply(text="faults: none") if heard.prompt.startswith("Check") else Reply(text="hello, briefly")


@pytest.mark.full
def test_stages_run_in_order_and_the_last_one_answers(tmp_path):
    (tmp_path / "a.txt").write_text("hello world\n")

    async def scene(here):
        result = await run(here, asked(tmp_path, READ, DRAFT, CHECK))
        assert result.output == "faults: none"
        first, second = here.provider.asked
        assert first.prompt == "Sum up: hello world\n"
        assert second.prompt == "Check hello, briefly against hello world\n"
        assert (first.model, second.model) == ("gpt-5", "gpt-5-mini")
        assert "Find faults." in second.messages[0].text
        assert result.usage.input_tokens == 20
        assert [entry.stage for entry in here.recorder.entries] == [1, 2, 2, 2, 3, 3, 3]

    play(by_stage, scene)


@pytest.mark.full
def test_only_a_role_with_stages_runs_in_stages(tmp_path):
    async def scene(here):
        backends = Backends({"model": lambda: here.backend}, {"model": lambda _: staged(here)})
        plain, in_stages = asked(tmp_path).role, asked(tmp_path, READ).role
        assert backends.of_role("model", plain) is here.backend
        assert isinstance(backends.of_role("model", in_stages), Pipelines)

    play([], scene)


@pytest.mark.full
@pytest.mark.parametrize("killed_at", range(1, 8))
def test_a_crash_behind_any_entry_repeats_no_stage_that_ended_and_pays_for_nothing_twice(killed_at, tmp_path):
    (tmp_path / "a.txt").write_text("hello world\n")

    async def scene(here):
        before = asked(tmp_path, READ, DRAFT, CHECK)
        first = Recorder(stop_at=killed_at)
        with pytest.raises(Killed):
            await run(here, before, first)
        (tmp_path / "a.txt").write_text("changed meanwhile\n")
        result = await run(here, again(before, first.entries, tmp_path))
        assert result.output == "faults: none"
        assert len(here.provider.asked) == 2
        assert here.provider.asked[0].prompt == "Sum up: hello world\n"
        assert result.usage.input_tokens == 20

    play(by_stage, scene)


@pytest.mark.full
def test_an_interrupted_stage_continues_after_its_own_entries(tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")

    def script(heard: RecordedRequest) -> Reply:
        if heard.prompt.startswith("Check"):
            return Reply(text="done")
        return (
            Reply(calls=(Call("read_file", {"path": "a.txt"}),))
            if heard.turns == 0
            else Reply(text="read it")
        )

    async def scene(here):
        before = asked(
            tmp_path, {"model": True, "prompt": "Read"}, {"model": True, "prompt": "Check {{previous}}"}
        )
        first = Recorder(stop_at=3)  # the prompt, the response and its result
        with pytest.raises(Killed):
            await run(here, before, first)
        result = await run(here, again(before, first.entries, tmp_path))
        assert result.output == "done"
        assert [heard.turns for heard in here.provider.asked] == [0, 1, 0]

    play(script, scene)


WRITE = {"tool": "write_file", "args": {"path": "out.txt", "content": "{{previous}}"}}


@pytest.mark.full
def test_a_tool_stage_changes_what_its_session_may_change(tmp_path):
    async def scene(here):
        result = await run(here, asked(tmp_path, {"model": True}, WRITE))
        assert (tmp_path / "out.txt").read_text() == "words"
        assert result.output["path"] == "out.txt"
        second = kinds([entry for entry in here.recorder.entries if entry.stage == 2])
        assert second == ["tool_call", "tool_result"]

    play([Reply(text="words")], scene)


@pytest.mark.full
def test_a_change_that_a_crash_swallowed_is_not_repeated_and_fails_the_session(tmp_path):
    async def scene(here):
        before = asked(tmp_path, {"model": True}, WRITE)
        first = Recorder(stop_at=4)  # behind the record of the call, before the call
        with pytest.raises(Killed):
            await run(here, before, first)
        assert isinstance(first.entries[-1], ToolCall)
        for _ in range(2):
            with pytest.raises(SessionFailed) as failed:
                await run(here, again(before, first.entries, tmp_path))
            assert failed.value.failure.code == "tool.outcome_unknown"
            assert failed.value.usage is not None
            assert failed.value.usage.input_tokens == 10
            first.entries += here.recorder.entries
        assert not (tmp_path / "out.txt").exists()
        assert len(here.provider.asked) == 1

    play([Reply(text="words")], scene)


@pytest.mark.full
def test_a_stage_cannot_write_where_its_session_may_not(tmp_path):
    async def scene(here):
        with pytest.raises(SessionFailed) as failed:
            await run(
                here, asked(tmp_path, {**WRITE, "args": {"path": "out.txt", "content": "x"}}, read_only=True)
            )
        assert "stage 1" in failed.value.failure.message
        assert not (tmp_path / "out.txt").exists()

    play([], scene)


@pytest.mark.full
def test_an_agent_stage_is_as_narrow_as_its_role_and_its_session(tmp_path):
    async def scene(here):
        await run(here, asked(tmp_path, CHECK | {"prompt": "Look"}, read_only=False))
        assert "write_file" not in here.provider.asked[0].tools
        assert "read_file" in here.provider.asked[0].tools

    play([Reply(text="ok")], scene)


@pytest.mark.full
def test_only_the_last_stage_gets_the_step_s_output_schema(tmp_path):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    async def scene(here):
        stages = ({"model": True}, {"model": True, "prompt": "Count {{previous}}"})
        result = await run(here, asked(tmp_path, *stages, output_schema=schema))
        assert result.output == {"n": 3}
        assert [("final_output" in heard.tools) for heard in here.provider.asked] == [False, True]

    play(
        lambda heard: (
            answer_with({"n": 3}, heard) if heard.prompt.startswith("Count") else Reply(text="a b c")
        ),
        scene,
    )


@pytest.mark.full
def test_a_stage_may_have_a_schema_model_tools_and_instructions_of_its_own(tmp_path):
    stage = {
        "name": "list",
        "model": "openai-chat:gpt-5-nano",
        "instructions": "Only list.",
        "tools": ["read_file"],
        "output_schema": {"type": "array", "items": {"type": "string"}},
    }

    async def scene(here):
        result = await run(
            here, asked(tmp_path, stage, {"model": True, "prompt": "First: {{stages.list[0]}}"})
        )
        assert result.output == "ok"
        first, second = here.provider.asked
        assert (first.model, second.model) == ("gpt-5-nano", "gpt-5")
        assert set(first.tools) == {"read_file", "final_output"}
        assert "Only list." in first.messages[0].text
        assert second.prompt == "First: x"

    play(
        lambda heard: (
            answer_with({"result": ["x", "y"]}) if heard.model == "gpt-5-nano" else Reply(text="ok")
        ),
        scene,
    )


@pytest.mark.full
def test_a_field_that_is_not_there_fails_with_the_stage_and_the_words(tmp_path):
    async def scene(here):
        with pytest.raises(SessionFailed) as failed:
            await run(
                here,
                asked(tmp_path, {"model": True}, {"name": "n", "model": True, "prompt": "{{previous.x}}"}),
            )
        assert failed.value.failure.code == "pipeline.unresolved"
        assert failed.value.failure.message.startswith('stage 2 (n): "previous.x" does not resolve')

    play([Reply(text="plain text")], scene)


@pytest.mark.full
def test_a_tool_s_failure_names_its_stage(tmp_path):
    async def scene(here):
        with pytest.raises(SessionFailed) as failed:
            await run(here, asked(tmp_path, READ, DRAFT))
        assert failed.value.failure.message.startswith("stage 1 (look): ")
        assert here.recorder.of(ToolResult)[0].error.code == failed.value.failure.code

    play([], scene)


@pytest.mark.full
def test_secrets_in_what_a_tool_stage_read_are_neither_recorded_nor_passed_on(tmp_path):
    (tmp_path / "a.txt").write_text("the word is hunter2-hunter2\n")

    async def scene(here):
        await run(here, asked(tmp_path, READ, DRAFT))
        assert "hunter2" not in repr(here.recorder.entries)
        assert "hunter2" not in here.provider.asked[0].prompt

    play([Reply(text="ok")], scene)


@pytest.mark.full
def test_new_input_starts_with_the_first_stage(tmp_path):
    async def scene(here):
        before = asked(tmp_path, {"model": True})
        await run(here, before)
        told = [*again(before, here.recorder.entries, tmp_path).entries, UserInput(text="More?")]
        result = await run(here, asked(tmp_path, {"model": True}, prompt="More?", entries=told))
        assert result.output == "second"
        assert here.provider.asked[1].prompt == "More?"

    play([Reply(text="first"), Reply(text="second")], scene)


# -- what a file may say


def load(folder: Path, pipeline: str, head: str = HEAD) -> Registry:
    (folder / "staged.toml").write_text(head + pipeline)
    return load_roles([Root(folder, "toml")])


def test_a_pipeline_is_read_from_its_file(tmp_path):
    roles = load(
        tmp_path,
        '[[pipeline]]\ntool = "list_files"\n\n[[pipeline]]\nagent = "critic"\nprompt = "{{previous}}"\n',
    )
    role = roles.find("staged")
    assert role is not None
    assert [stage.tool or stage.agent for stage in role.pipeline] == ["list_files", "critic"]
    assert roles.notices == ()


NAMED = 'name = "a"\nmodel = true\n'


@pytest.mark.parametrize(
    ("stages", "line", "words"),
    [
        (['model = true\ntool = "read_file"'], 6, "exactly one of"),
        (['name = "x"'], 4, "exactly one of"),
        (["model = true\nargs = {}"], 6, 'a model stage has no key "args"'),
        (["model = false"], 5, '"model" must be'),
        (['tool = "teleport"'], 5, 'there is no tool "teleport"'),
        (['tool = "read_file"'], 5, 'needs "path"'),
        (['tool = "read_file"\n[pipeline.args]\npath = "a"\nwhere = "b"'], 8, 'takes no "where"'),
        (['tool = "fetch_url"\nargs = {url = "{{prompt}}"}'], 5, "network"),
        (['tool = "read_file"\nargs = {path = "a", limit = nan}'], 6, "JSON has no such numbers"),
        (['model = true\nprompt = "{{previous}}"'], 6, '"previous" is unknown here'),
        (['model = true\nprompt = "{{inputs.x}}"'], 6, "there are prompt"),
        (['model = true\nprompt = "{{prompt"'], 6, "is not closed"),
        (["model = true", "model = true"], 7, 'needs a "prompt"'),
        ([NAMED, 'model = true\nprompt = "{{stages.c}}"'], 10, "there are prompt, previous, stages.a"),
        ([NAMED, 'name = "a"\ntool = "list_files"'], 9, "is taken by stage 1"),
        (["model = true\nmax_turns = 0"], 6, "max_turns"),
        (['model = true\ntools = "read_file"'], 6, "list of text"),
        (['model = true\noutput_schema = {type = "nonsense"}'], 6, "not a JSON Schema"),
        (['agent = "nobody"\nprompt = "x"'], 5, 'there is no role "nobody"'),
        (["model = true", 'agent = "staged"\nprompt = "x"'], 7, "stages do not nest"),
        (["model = true"] * 17, 36, "at most 16 stages"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused_with_its_line(tmp_path, stages, line, words):
    refused(tmp_path, "".join(f"[[pipeline]]\n{stage}\n" for stage in stages), line, words)


@pytest.mark.parametrize(
    ("pipeline", "words"),
    [('"fast"', "must be a list"), ("[]", "list of stages"), ("[{model = 3}]", '"model" must be')],
)
def test_a_pipeline_written_in_one_line_is_refused_there(tmp_path, pipeline, words):
    refused(tmp_path, f"pipeline = {pipeline}\n", 4, words)


def refused(folder: Path, pipeline: str, line: int, words: str) -> None:
    roles = load(folder, pipeline)
    assert roles.find("staged") is None
    (notice,) = roles.notices
    assert (notice.code, notice.line) == ("role.invalid", line), notice.message
    assert words in notice.message


@pytest.mark.parametrize(
    ("more", "stage", "words"),
    [
        ('sandbox_mode = "read-only"\n', 'tool = "delete_file"\nargs = {path = "x"}\n', "read-only"),
        ('tools = ["read_file"]\n', 'tool = "list_files"\n', "does not allow"),
        ('command = ["claude"]\n', "model = true\n", "two strategies"),
    ],
)
def test_a_stage_cannot_do_what_its_role_may_not(tmp_path, more, stage, words):
    (notice,) = load(tmp_path, f"{more}[[pipeline]]\n{stage}").notices
    assert words in notice.message
