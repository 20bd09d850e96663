"""A session that was killed goes on behind what it recorded, and pays for nothing twice."""

import pytest

from fanfold.agents.backend import SessionRequest
from fanfold.agents.entries import Entry, ToolCall, ToolResult, UserInput
from fanfold.agents.models.messages import INTERRUPTED, UNKNOWN
from tests.models.sessions import MODELS, Killed, Recorder, play, request
from tests.provider import Call, RecordedRequest, Reply, answer_with

pytestmark = pytest.mark.full

WRITE = Call("write_file", {"path": "b.txt", "content": "written\n"})


def by_turn(asked: RecordedRequest) -> Reply:
    """The same conversation whoever asks and however often: what was asked for shows in the counts."""
    match asked.turns:
        case 0:
            return Reply(
                text="Looking.", calls=(Call("read_file", {"path": "a.txt"}), Call("list_files", {}))
            )
        case 1:
            return Reply(calls=(WRITE, Call("read_file", {"path": "b.txt"})))
        case _:
            return Reply(text="all done")


def again(asked: SessionRequest, entries: list[Entry]) -> SessionRequest:
    """The request of the next execution, with what the supervisor hands back."""
    given = [UserInput(text=asked.prompt), *entries] if entries else []
    return request(asked.workspace, model=asked.role.model, execution=asked.execution + 1, entries=given)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("killed_at", range(1, 8))
def test_a_session_killed_after_any_entry_continues_and_pays_no_response_twice(model, killed_at, tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")

    async def scene(here):
        first = Recorder(stop_at=killed_at)
        asked = request(tmp_path, model=model)
        with pytest.raises(Killed):
            await here.run(asked, first)
        second = Recorder()
        result = await here.run(again(asked, first.entries), second)
        assert result.output == "all done"
        assert len(here.provider.asked) == 3
        assert result.usage.input_tokens == 30
        assert result.trace["continued"] is True
        ends = [*first.of(ToolResult), *second.of(ToolResult)]
        assert {entry.id for entry in ends} == {"call_1_1", "call_1_2", "call_2_1", "call_2_2"}

    play(by_turn, scene)


def test_the_model_is_informed_that_the_outcome_of_a_change_is_unknown(tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")

    async def scene(here):
        first = Recorder()

        async def die_with_the_call(entry, *, may_wait=False):
            await first.record(entry)
            if isinstance(entry, ToolCall):
                raise Killed

        asked = request(tmp_path)
        with pytest.raises(Killed):
            await here.backend.run(asked, die_with_the_call, first.show)
        assert isinstance(first.entries[-1], ToolCall)
        assert not (tmp_path / "b.txt").exists()
        second = Recorder()
        await here.run(again(asked, first.entries), second)
        assert not (tmp_path / "b.txt").exists(), "a call that may have happened is not repeated"
        unknown = [entry for entry in second.of(ToolResult) if entry.outcome == "unknown"]
        assert [entry.tool for entry in unknown] == ["write_file"]
        assert here.provider.asked[-1].results["call_2_1"] == UNKNOWN

    play(by_turn, scene)


def test_a_change_is_recorded_before_it_happens(tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")

    async def scene(here):
        there = []

        async def record(entry, *, may_wait=False):
            if isinstance(entry, ToolCall):
                there.append((tmp_path / "b.txt").exists())

        await here.backend.run(request(tmp_path), record, lambda entry: None)
        assert there == [False]
        assert (tmp_path / "b.txt").exists()

    play(by_turn, scene)


def test_a_session_with_a_complete_log_sends_no_request():
    async def scene(here):
        first = Recorder()
        asked = request()
        await here.run(asked, first)
        result = await here.run(again(asked, first.entries))
        assert result.output == "all done"
        assert len(here.provider.asked) == 1

    play([Reply(text="all done")], scene)


def test_a_child_that_is_spoken_to_again_remembers_its_earlier_turn():
    async def scene(here):
        first = Recorder()
        asked = request()
        await here.run(asked, first)
        entries = [*again(asked, first.entries).entries, UserInput(text="And now?")]
        result = await here.run(request(prompt="And now?", entries=entries))
        assert result.output == "second"
        assert result.usage.input_tokens == 10, "an earlier turn is not paid for again"
        said = [(heard.role, heard.text) for heard in here.provider.asked[1].messages[1:]]
        assert said == [("user", "Do the work."), ("assistant", "first"), ("user", "And now?")]

    play([Reply(text="first"), Reply(text="second")], scene)


def test_open_calls_are_answered_as_interrupted_at_the_next_message(tmp_path):
    async def scene(here):
        first = Recorder(stop_at=1)
        asked = request(tmp_path)
        with pytest.raises(Killed):
            await here.run(asked, first)
        entries = [*again(asked, first.entries).entries, UserInput(text="Never mind.")]
        await here.run(request(tmp_path, prompt="Never mind.", entries=entries))
        assert here.provider.asked[1].results["call_1_1"] == INTERRUPTED

    play([Reply(calls=(WRITE,)), Reply(text="fine")], scene)


def test_an_interrupted_correction_survives_and_still_counts():
    schema = {"type": "integer"}

    async def scene(here):
        first = Recorder(stop_at=4)  # two responses, two complaints
        asked = request(output_schema=schema)
        with pytest.raises(Killed):
            await here.run(asked, first)
        entries = again(asked, first.entries).entries
        result = await here.run(request(output_schema=schema, entries=entries))
        assert result.output == 7
        assert len(here.provider.asked) == 3
        assert "is not of type" in here.provider.asked[2].results["call_1_1"]

    play(lambda a: answer_with({"result": 7 if a.turns == 2 else "seven"}, a), scene)


def test_arguments_that_held_a_secret_are_not_carried_out_from_the_log(tmp_path):
    secret = "sk-proj-abcdefghijklmnop123456"
    write = Call("write_file", {"path": ".env", "content": f"KEY={secret}\n"})

    def script(asked: RecordedRequest):
        return Reply(calls=(write,)) if asked.turns == 0 else Reply(text="ok")

    async def scene(here):
        first = Recorder(stop_at=1)
        asked = request(tmp_path)
        with pytest.raises(Killed):
            await here.run(asked, first)
        assert secret not in str(first.entries)
        await here.run(again(asked, first.entries))
        assert not (tmp_path / ".env").exists(), "a mark must never be written in place of a secret"
        assert "was not made" in here.provider.asked[1].results["call_1_1"]
        await here.run(request(tmp_path))
        assert secret in (tmp_path / ".env").read_text(), "alive, the call is carried out as it was given"

    play(script, scene)
