"""Keys stay in the process: nothing recorded, returned, shown or raised holds one."""

import pytest

from fanfold.agents.backend import SessionFailed
from fanfold.agents.entries import UserInput
from fanfold.agents.providers import Access
from fanfold.agents.redaction import MARK, Redactor
from tests.models.sessions import MODELS, Recorder, play, request
from tests.provider import Call, Fault, RecordedRequest, Reply

pytestmark = pytest.mark.full

CANARY = "canary-4f1c9a7be2d05836"
OTHER = "sk-ant-api03-canarycanarycanary0123456789"


@pytest.fixture(params=MODELS)
def model(request):
    return request.param


def seen(recorder: Recorder, *more: object) -> str:
    return repr((recorder.entries, recorder.shown, *more))


def test_a_key_that_an_agent_comes_by_is_not_recorded_shown_or_returned(model, tmp_path):
    (tmp_path / "leak.txt").write_text(f"first {CANARY} then {OTHER}\n")

    def script(asked: RecordedRequest):
        if asked.turns == 0:
            return Reply(text=f"using {CANARY}", calls=(Call("read_file", {"path": "leak.txt"}),))
        if asked.turns == 1:
            return Reply(calls=(Call("write_file", {"path": "out.txt", "content": OTHER}),))
        return Reply(text=f"The keys are {CANARY} and {OTHER}.")

    async def scene(here):
        result = await here.run(request(tmp_path, model=model))
        everything = seen(here.recorder, result)
        assert CANARY not in everything
        assert OTHER not in everything
        assert result.output == f"The keys are {MARK} and {MARK}."
        told = here.provider.asked[1].results["call_1_1"]
        assert CANARY not in told, "our own keys are not even told to a model"
        assert OTHER in told, "a model that works on a file sees it as it is"
        assert (tmp_path / "out.txt").read_text() == OTHER
        assert {asked.key for asked in here.provider.asked} == {"test-key"}

    play(script, scene, redactor=Redactor([CANARY, "test-key"]))


def test_the_text_of_an_error_holds_no_key(model):
    async def scene(here):
        with pytest.raises(SessionFailed) as failed:
            await here.run(request(model=model))
        assert CANARY not in seen(here.recorder, failed.value, failed.value.failure)

    play([], scene, key=CANARY)


def test_a_tools_error_holds_no_key(tmp_path):
    script = [Reply(calls=(Call("read_file", {"path": f"{CANARY}.txt"}),)), Reply(text="ok")]

    async def scene(here):
        await here.run(request(tmp_path))
        assert CANARY not in seen(here.recorder)

    play(script, scene, redactor=Redactor([CANARY]))


def test_a_summary_holds_no_key(tmp_path):
    def script(asked: RecordedRequest):
        if "record of your own work" in asked.messages[0].text:
            return Reply(text=f"I know {CANARY}")
        if "I know" in asked.prompt:
            return Reply(text="done")
        return Reply(calls=(Call("list_files", {}),)) if asked.turns == 0 else Fault("too_long")

    async def scene(here):
        await here.run(request(tmp_path))
        assert CANARY not in seen(here.recorder)

    play(script, scene, redactor=Redactor([CANARY]))


def test_access_does_not_print_its_keys():
    assert CANARY not in repr(Access(keys={"openai": CANARY, "anthropic": CANARY}))


def test_a_prompt_made_from_a_file_contains_no_provider_keys():
    async def scene(here):
        await here.run(request(prompt=f"Use {CANARY}.", instructions=f"Know {CANARY}."))
        entries = [UserInput(text=f"Use {CANARY}.")]
        await here.run(request(entries=entries))
        assert CANARY not in repr([asked.body for asked in here.provider.asked])

    play([Reply(text="ok"), Reply(text="ok")], scene, redactor=Redactor([CANARY]))
