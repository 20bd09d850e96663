"""The same session in each of the three wire formats, through the real SDKs."""

import json

import pytest

from fanfold.agents.entries import TextDelta
from tests.models.sessions import MODELS, play, request
from tests.provider import Call, RecordedRequest, Reply, answer_with

pytestmark = pytest.mark.full

FORMATS = dict(zip(MODELS, ("chat", "responses", "messages"), strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_a_text_answer_arrives_whole_and_is_shown_on_the_way(model):
    async def scene(here):
        result = await here.run(request(model=model))
        assert result.output == "the answer is here"
        assert result.usage.input_tokens == 10
        assert result.usage.output_tokens == 5
        assert result.trace["turns"] == 1
        (asked,) = here.provider.asked
        assert asked.format == FORMATS[model]
        assert asked.prompt == "Do the work."
        assert "You work." in asked.messages[0].text
        shown = [news.delta for news in here.recorder.shown if isinstance(news, TextDelta)]
        assert len(shown) > 1
        assert "".join(shown) == "the answer is here"
        (entry,) = here.recorder.entries
        assert entry.output == "the answer is here"

    play([Reply(text="the answer is here")], scene)


@pytest.mark.parametrize("model", MODELS)
def test_tools_read_and_edit_files_and_the_model_sees_what_came_of_it(model, tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    script = [
        Reply(text="Looking.", calls=(Call("read_file", {"path": "a.txt"}), Call("list_files", {}))),
        Reply(calls=(Call("edit_file", {"path": "a.txt", "old": "two", "new": "three"}),)),
        Reply(text="done"),
    ]

    async def scene(here):
        result = await here.run(request(tmp_path, model=model))
        assert result.output == "done"
        assert (tmp_path / "a.txt").read_text() == "one\nthree\n"
        second, third = here.provider.asked[1:]
        read = json.loads(second.results["call_1_1"])
        assert read["text"] == "one\ntwo\n"
        assert json.loads(second.results["call_1_2"]) == {"files": ["a.txt"]}
        assert json.loads(third.results["call_2_1"])["replaced"] == 1
        assert result.trace["tool_calls"] == 3

    play(script, scene)


SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "pages": {"type": "integer", "minimum": 1}},
    "required": ["title", "pages"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("model", MODELS)
def test_a_typed_answer_is_corrected_with_the_validators_words(model):
    def script(asked: RecordedRequest):
        return answer_with(
            {"title": "x", "pages": "many"} if asked.turns == 0 else {"title": "x", "pages": 3}, asked
        )

    async def scene(here):
        result = await here.run(request(model=model, output_schema=SCHEMA))
        assert result.output == {"title": "x", "pages": 3}
        complaint = here.provider.asked[1].results["call_1_1"].replace("\\", "")
        assert '"many" is not of type "integer"' in complaint
        assert here.provider.asked[0].tools[-1] == "final_output"

    play(script, scene)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("schema", [{"type": "array", "items": {"type": "integer"}}, {"enum": ["yes", "no"]}])
def test_an_answer_that_is_no_object_is_wrapped_for_the_wire_and_unwrapped_again(model, schema):
    value = [1, 2] if "items" in schema else "yes"

    async def scene(here):
        result = await here.run(request(model=model, output_schema=schema))
        assert result.output == value

    play(lambda asked: answer_with({"result": value}, asked), scene)


def test_declared_names_are_a_schema_too():
    script = [answer_with({"title": "x"}), answer_with({"title": "x", "body": "y"})]

    async def scene(here):
        result = await here.run(request(outputs=("title", "body")))
        assert result.output == {"title": "x", "body": "y"}
        assert "is a required property" in here.provider.asked[1].results["call_1_1"]

    play(script, scene)


def test_an_answer_that_never_fits_fails_as_invalid_output_after_three_corrections():
    from fanfold.agents.backend import SessionFailed

    async def scene(here):
        with pytest.raises(SessionFailed) as failed:
            await here.run(request(output_schema=SCHEMA))
        assert failed.value.failure.kind == "invalid_output"
        assert "pages" in failed.value.failure.message
        assert failed.value.usage is not None
        assert failed.value.usage.input_tokens == 40
        assert len(here.provider.asked) == 4

    play(lambda asked: answer_with({"title": "x"}, asked), scene)


def test_fences_around_an_answer_are_not_stripped_but_sent_back():
    script = [
        Reply(text='```json\n{"title": "x", "pages": 1}\n```'),
        Reply(text='{"title": "x", "pages": 1}'),
    ]

    async def scene(here):
        result = await here.run(request(output_schema=SCHEMA))
        assert result.output == {"title": "x", "pages": 1}
        assert "one JSON value" in here.provider.asked[1].messages[-1].text

    play(script, scene)


def test_calls_beside_the_answer_are_carried_out_before_it_counts(tmp_path):
    both = Reply(
        calls=(
            Call("write_file", {"path": "a.txt", "content": "x"}),
            Call("final_output", {"title": "x", "pages": 1}),
        )
    )

    async def scene(here):
        result = await here.run(request(tmp_path, output_schema=SCHEMA))
        assert result.output == {"title": "x", "pages": 1}
        assert (tmp_path / "a.txt").read_text() == "x"
        assert here.recorder.entries[-1].output == {"title": "x", "pages": 1}

    play([both], scene)


def test_an_answer_beside_a_failed_call_is_not_accepted(tmp_path):
    both = Reply(
        calls=(Call("read_file", {"path": "nowhere"}), Call("final_output", {"title": "x", "pages": 1})),
    )

    async def scene(here):
        result = await here.run(request(tmp_path, output_schema=SCHEMA))
        assert result.output == {"title": "y", "pages": 2}
        assert "Not accepted" in here.provider.asked[1].results["call_1_2"]

    play([both, answer_with({"title": "y", "pages": 2})], scene)
