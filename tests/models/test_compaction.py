"""Summaries that say nothing: asked for again, and never taken for the work that they should hold."""

import pytest

from fanfold.agents.backend import SessionFailed
from fanfold.agents.entries import Compaction, UserInput
from tests.models.sessions import MODELS, play, request
from tests.provider import Call, Fault, RecordedRequest, Reply

pytestmark = pytest.mark.full

READ = Reply(calls=(Call("read_file", {"path": "a.txt"}),))
MANY = 1_000_000


def is_summary(asked: RecordedRequest) -> bool:
    return "record of your own work" in asked.messages[0].text


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 3_000)
    return tmp_path


@pytest.mark.parametrize("nothing", [Reply(text=" \n"), Reply(calls=(Call("read_file", {"path": "a.txt"}),))])
def test_an_empty_summary_is_asked_for_again(workspace, nothing):
    sums: list[RecordedRequest] = []

    def script(asked: RecordedRequest):
        if is_summary(asked):
            sums.append(asked)
            return nothing if len(sums) == 1 else Reply(text="SUMMARY: x")
        if "SUMMARY" in asked.prompt:
            return Reply(text="done")
        return READ if asked.turns == 0 else Fault("too_long")

    async def scene(here):
        result = await here.run(request(workspace))
        assert (result.output, result.trace["compactions"]) == ("done", 1)
        assert len(sums[1].prompt) < len(sums[0].prompt), "made from less"
        assert result.usage.input_tokens == 40, "both were paid for"
        # Killed behind the empty one, nothing of the work is lost.
        empty = next(i for i, entry in enumerate(here.recorder.entries) if isinstance(entry, Compaction))
        told = [UserInput(text="Do the work."), *here.recorder.entries[: empty + 1]]
        again = await here.run(request(workspace, entries=told))
        assert again.output == "done"
        assert "x" * 100 in sums[-1].prompt
        assert again.usage.input_tokens == 40

    play(script, scene)


def test_a_model_that_never_sums_up_fails_with_what_was_too_long(workspace):
    def script(asked: RecordedRequest):
        if is_summary(asked):
            return Reply(text="  ")
        return READ if asked.turns == 0 else Fault("too_long")

    async def scene(here):
        with pytest.raises(SessionFailed) as failed:
            await here.run(request(workspace))
        assert "too long" in failed.value.failure.message
        assert failed.value.usage is not None
        assert failed.value.usage.input_tokens == 40

    play(script, scene)


def test_a_window_almost_full_and_no_summary_is_a_clear_failure(workspace):
    def script(asked: RecordedRequest):
        if is_summary(asked):
            return Reply(text="  ")
        return Reply(calls=READ.calls, input_tokens=MANY)

    async def scene(here):
        with pytest.raises(SessionFailed) as failed:
            await here.run(request(workspace, model=MODELS[2]))
        assert failed.value.failure.code == "session.no_summary"
        assert failed.value.failure.retryable
        assert len(here.provider.asked) == 4

    play(script, scene)
