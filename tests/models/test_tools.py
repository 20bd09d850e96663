"""Tools that do what nobody foresaw: news for the model, never the end of its session."""

import asyncio
import logging
import sys

import pytest

from fanfold.agents.backend import ToolFailed
from fanfold.agents.entries import ToolResult
from fanfold.agents.pipelines import Pipelines
from fanfold.agents.redaction import Redactor
from fanfold.agents.role import Stage
from fanfold.agents.tools.toolbox import SessionTools
from fanfold.errors import BugError, FanfoldError, WorldError
from tests.models.sessions import play, request
from tests.provider import Call, Reply

pytestmark = pytest.mark.full

READ = Call("read_file", {"path": "a.txt"})


def breaking(error: BaseException):
    """Makes the tools of sessions in which everything breaks."""

    class Breaking(SessionTools):
        async def call(self, name, args):
            raise error

    return Breaking


def test_the_crash_of_a_tool_is_logged_and_sent_to_the_model(caplog):
    async def scene(here):
        with caplog.at_level(logging.ERROR):
            result = await here.run(request())
        assert result.output == "then not"
        (told,) = here.recorder.of(ToolResult)
        assert told.error.code == "tool.crashed"
        assert "ZeroDivisionError: by nought" in told.error.message
        assert "read_file crashed" in caplog.text
        assert "ZeroDivisionError" in next(iter(here.provider.asked[1].results.values()))

    play(
        [Reply(calls=(READ,)), Reply(text="then not")],
        scene,
        toolbox=breaking(ZeroDivisionError("by nought")),
    )


def test_one_of_several_calls_crashes_and_the_others_have_their_results(tmp_path):
    (tmp_path / "a.txt").write_text("here")

    class Half(SessionTools):
        async def call(self, name, args):
            if name == "list_files":
                raise RecursionError
            return await super().call(name, args)

    async def scene(here):
        await here.run(request(tmp_path))
        told = {entry.tool: entry for entry in here.recorder.of(ToolResult)}
        assert told["list_files"].error.code == "tool.crashed"
        assert told["read_file"].result["text"] == "here"

    play([Reply(calls=(READ, Call("list_files", {}))), Reply(text="ok")], scene, toolbox=Half)


@pytest.mark.parametrize(
    "error",
    [BugError("bug", "we contradict ourselves"), WorldError("store.lost", "gone")],
)
def test_exceptions_raised_on_purpose_are_not_swallowed(error):
    async def scene(here):
        with pytest.raises(type(error)):
            await here.run(request())
        assert not here.recorder.of(ToolResult)

    play([Reply(calls=(READ,))], scene, toolbox=breaking(error))


def test_a_cancellation_without_a_request_is_a_failed_call():
    async def scene(here):
        await here.run(request())
        (told,) = here.recorder.of(ToolResult)
        assert told.error.code == "tool.broken_off"

    play([Reply(calls=(READ,)), Reply(text="ok")], scene, toolbox=breaking(asyncio.CancelledError()))


def test_the_call_of_a_stage_that_crashes_is_the_stage_s_failure():
    async def scene(here):
        tools = breaking(ZeroDivisionError("by nought"))
        staged = Pipelines(here.backend, find=lambda name: None, toolbox=tools, redactor=Redactor([]))
        asked = request(pipeline=(Stage(tool="read_file", args={"path": "a.txt"}),))
        with pytest.raises(FanfoldError) as failed:
            await staged.run(asked, here.recorder.record, here.recorder.show)
        assert failed.value.code == "tool.crashed"
        assert not isinstance(failed.value, ToolFailed)

    play([], scene)


def test_a_tool_call_takes_at_most_twelve_frames_from_the_session_to_the_file_tool(tmp_path):
    (tmp_path / "a.txt").write_text("here")
    frames: list[str] = []

    def watch(frame, event, _):
        if event == "call" and frame.f_code.co_qualname == "FileTools.read_file":
            while frame is not None and frame.f_code.co_qualname != "ModelBackend.run":
                frames.append(frame.f_code.co_qualname)
                frame = frame.f_back

    async def scene(here):
        sys.setprofile(watch)
        try:
            await here.run(request(tmp_path))
        finally:
            sys.setprofile(None)
        assert frames[-1] == "ModelSession.run"
        assert len(frames) <= 12, frames

    play([Reply(calls=(READ,)), Reply(text="ok")], scene)
