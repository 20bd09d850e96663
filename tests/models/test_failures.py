"""What goes wrong between us and a provider: survived where it passes, clear where it does not."""

import asyncio
import time

import anyio
import pytest

from fanfold.agents.backend import SessionFailed
from fanfold.agents.entries import (
    Compaction,
    FailedRequest,
    Fallback,
    QueuedRequest,
    Response,
    UserInput,
)
from fanfold.agents.models import failures, requests
from fanfold.agents.models.connections import Connections, Throttle
from fanfold.agents.models.requests import Patience
from fanfold.agents.models.session import ModelBackend
from fanfold.agents.providers import Access
from fanfold.agents.redaction import Redactor
from fanfold.kernel.events import Failure
from tests.models.sessions import MODELS, Killed, Recorder, access, play, request, world
from tests.provider import Call, Fault, Raw, RecordedRequest, Reply, answer_with
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full


async def fails(here, **given) -> Failure:
    with pytest.raises(SessionFailed) as failed:
        await here.run(request(**given))
    return failed.value.failure


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "fault",
    [
        Fault("rate_limit", retry_after_s=0.02),
        Fault("rate_limit"),
        Fault("server_error"),
        Fault("overloaded"),
        Fault("reset"),
        Fault("reset", after=0),
        Fault("malformed"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.after}",
)
def test_temporary_faults_are_survived(model, fault):
    async def scene(here):
        result = await here.run(request(model=model))
        assert result.output == "here I am"
        assert result.trace["retries"] == 1
        assert len(here.provider.asked) == 2
        assert len(here.recorder.of(Response)) == 1, "half a response is never recorded"
        (failed,) = here.recorder.of(FailedRequest)
        assert (failed.count, failed.model) == (1, model)
        assert failed.next_at > 0

    play([fault, Reply(text="here I am")], scene)


@pytest.mark.parametrize("model", MODELS)
def test_a_stall_ends_as_a_timeout_and_is_tried_again(model):
    async def scene(here):
        result = await here.run(request(model=model))
        assert result.output == "here I am"
        assert [failed.kind for failed in here.recorder.of(FailedRequest)] == ["timeout"]

    play([Fault("stall", after=5), Reply(text="here I am")], scene, stall_s=0.2)


def test_the_silence_of_a_server_is_recorded_once_before_it_is_given_up(monkeypatch):
    monkeypatch.setattr(requests, "SILENCE_S", 0.05)

    async def scene(here):
        assert (await here.run(request())).output == "here I am"
        (silent,) = here.recorder.of(QueuedRequest)
        assert silent.message == f"{MODELS[0]}: the server has sent nothing for 0.05 s"
        (failed,) = here.recorder.of(FailedRequest)
        assert silent.next_at < failed.next_at
        entries = here.recorder.entries
        assert entries.index(silent) < entries.index(failed)

    play([Fault("stall", after=5), Reply(text="here I am")], scene, stall_s=0.4)


def test_a_provider_asks_everybody_to_wait_and_everybody_does():
    waited = 0.15

    async def scene(here):
        begun = time.monotonic()
        await here.run(request())
        assert time.monotonic() - begun >= waited

    play([Fault("rate_limit", retry_after_s=waited), Reply(text="ok")], scene)


def test_a_request_that_waits_until_the_provider_takes_it_is_recorded():
    async def scene(here):
        here.backend = ModelBackend(
            access(here.provider.url), connections=Connections(access(here.provider.url), max_in_flight=1)
        )
        first, second = Recorder(), Recorder()
        async with asyncio.TaskGroup() as group:
            group.create_task(here.backend.run(request(), first.record, first.show))
            await here.provider.until_asked()
            group.create_task(here.backend.run(request(), second.record, second.show))
        await here.backend.aclose()
        assert first.of(QueuedRequest) == []
        (queued,) = second.of(QueuedRequest)
        assert queued.message == "waits for a slot of the provider, 1 requests ahead"

    play(lambda _: Reply(text="slow", pause_s=0.3), scene)


def test_a_rate_limit_is_reported_to_the_sessions_that_wait_for_its_end():
    async def main():
        now, heard = 0.0, []

        async def on_wait(message, wait_s):
            nonlocal now
            heard.append((message, wait_s))
            now += wait_s

        throttle = Throttle(8, clock=lambda: now)
        throttle.slow_down(30.0)
        async with throttle.passing(on_wait):
            assert heard == [("waits 30 s for the provider's rate limit", 30.0)]

    asyncio.run(main())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("fault", "kind", "code", "hint", "retryable"),
    [
        ("rate_limit", "rate_limit", "model.rate_limit", "concurrency", True),
        ("server_error", "transport", "model.unavailable", "try again", True),
        ("reset", "transport", "model", "try again", True),
        ("quota", "quota", "model.quota", "account", False),
        ("bad_key", "permission", "model.key_refused", "_API_KEY", False),
        ("unknown_model", "agent", "model.unknown", "name", False),
        ("content_filter", "agent", "model", "", False),
        ("rejected", "agent", "model.rejected", "", False),
        ("too_long", "agent", "model.context_overflow", "larger context", False),
    ],
)
def test_an_uncorrected_output_fails_with_class_and_hint(model, fault, kind, code, hint, retryable):
    async def scene(here):
        failure = await fails(here, model=model)
        assert failure.kind == kind
        assert failure.code.startswith(code)
        assert hint in failure.hint
        assert failure.retryable is retryable
        assert failure.message.startswith(f"{model}: ")
        assert len(here.provider.asked) == (3 if retryable else 1)

    play(lambda asked: Fault(fault), scene)


def test_a_refused_key_opens_the_circuit_for_all_agents():
    async def scene(here):
        first = await fails(here)
        second = await fails(here)
        assert first.kind == second.kind == "permission"
        assert len(here.provider.asked) == 1
        assert "test-wrong-key" not in str(first)

    play([], scene, key="test-wrong-key")


def test_without_a_key_nothing_is_asked_and_the_variable_is_named():
    async def main():
        backend = ModelBackend(Access(), model="anthropic:claude-sonnet-4-6")
        recorder = Recorder()
        with pytest.raises(SessionFailed) as failed:
            await backend.run(request(model=None), recorder.record, recorder.show)
        assert failed.value.failure.kind == "permission"
        assert "ANTHROPIC_API_KEY" in failed.value.failure.hint

    asyncio.run(main())


def test_without_a_network_the_session_fails_soon_and_says_so():
    async def main():
        access = Access(keys={"openai": "test-key"}, addresses={"openai": "http://127.0.0.1:9/v1"})
        backend = ModelBackend(access, patience=Patience(tries=2, backoff_s=0.001))
        recorder = Recorder()
        with pytest.raises(SessionFailed) as failed:
            await asyncio.wait_for(backend.run(request(), recorder.record, recorder.show), PATIENCE_S)
        assert failed.value.failure.kind == "transport"
        assert "network" in failed.value.failure.hint
        assert failed.value.failure.retryable
        await backend.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"model": "acme:clever"}, "model.unknown_provider"),
        ({"reasoning_effort": "huge"}, "model.bad_effort"),
        ({"model": None}, "model.none"),
    ],
)
def test_impossible_requests_are_refused_before_a_question(given, code):
    async def scene(here):
        if given.get("model") == "acme:clever":
            here.backend = ModelBackend(Access(keys={"openai": "test-key"}))
        failure = await fails(here, **given)
        assert failure.code == code
        assert failure.kind == "agent"
        assert failure.hint
        assert here.provider.asked == []

    play([], scene)


def test_the_next_model_is_asked_when_the_first_cannot_answer():
    def script(asked: RecordedRequest):
        return Fault("unknown_model") if asked.model == "gpt-5" else Reply(text=f"from {asked.model}")

    async def scene(here):
        result = await here.run(request(fallback_models=(MODELS[2],)))
        assert result.output == "from claude-sonnet-4-6"
        assert result.trace["model"] == MODELS[2]
        assert result.trace["passed_over"] == [MODELS[0]]
        assert [news.model for news in here.recorder.shown if isinstance(news, Fallback)] == [MODELS[0]]

    play(script, scene)


def test_a_conversation_continues_after_a_change_of_provider(tmp_path):
    def script(asked: RecordedRequest):
        if asked.model != "gpt-5":
            return Reply(text=f"read {len(asked.results)}")
        return Reply(calls=(Call("list_files", {}),)) if asked.turns == 0 else Fault("quota")

    async def scene(here):
        result = await here.run(request(tmp_path, fallback_models=(MODELS[2],)))
        assert result.output == "read 1"

    play(script, scene)


def test_max_turns_ends_a_session_that_does_not_end_itself(tmp_path):
    async def scene(here):
        failure = await fails(here, workspace=tmp_path, max_turns=3)
        assert failure.code == "session.max_turns"
        assert len(here.provider.asked) == 3

    play(lambda asked: Reply(calls=(Call("list_files", {}),)), scene)


def test_cancelling_a_session_that_waits_for_a_provider_ends_it_at_once():
    async def main():
        async with world([Fault("stall", after=0)], stall_s=10 * PATIENCE_S) as here:
            work = asyncio.create_task(here.run(request()))
            await here.provider.until_asked()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(asyncio.shield(work), PATIENCE_S)

    asyncio.run(main())


def test_a_conversation_too_long_is_summed_up_recorded_and_gone_on_with(tmp_path):
    (tmp_path / "big.txt").write_text("x" * 20_000)

    def script(asked: RecordedRequest):
        if "record of your own work" in asked.messages[0].text:
            assert len(asked.prompt) < 10_000
            return Reply(text="SUMMARY: big.txt is full of x")
        if "SUMMARY" in asked.prompt:
            return Reply(text="finished from the summary")
        return (
            Reply(calls=(Call("read_file", {"path": "big.txt"}),)) if asked.turns == 0 else Fault("too_long")
        )

    async def scene(here):
        asked = request(tmp_path)
        result = await here.run(asked)
        assert result.output == "finished from the summary"
        assert result.trace["compactions"] == 1
        assert result.usage.input_tokens == 30
        (summary,) = here.recorder.of(Compaction)
        assert summary.text.startswith("SUMMARY")
        assert "Do the work." in here.provider.asked[-1].prompt
        # Killed behind the summary, it goes on from there.
        recorded = here.recorder.entries[: here.recorder.entries.index(summary) + 1]
        entries = [UserInput(text=asked.prompt), *recorded]
        before = len(here.provider.asked)
        result = await here.run(request(tmp_path, entries=entries))
        assert result.output == "finished from the summary"
        assert len(here.provider.asked) == before + 1

    play(script, scene)


def test_a_gate_halves_what_goes_at_once_and_grows_again():
    async def main():
        now = 0.0
        throttle = Throttle(8, clock=lambda: now)
        async with throttle.passing(), throttle.passing(), throttle.passing(), throttle.passing():
            throttle.slow_down(0)
        assert throttle.allowed == 2
        for _ in range(2):
            throttle.succeeded()
        assert throttle.allowed == 3

    asyncio.run(main())


def test_a_cancelled_wait_at_a_gate_passes_its_turn_on():
    async def main():
        throttle = Throttle(1)
        order = []

        async def use(name):
            async with throttle.passing():
                order.append(name)

        async with throttle.passing():
            tasks = [asyncio.create_task(use(name)) for name in "abc"]
            await asyncio.sleep(0)
            tasks[0].cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in ended] == [asyncio.CancelledError, type(None), type(None)]
        assert order == ["b", "c"]

    asyncio.run(main())


@pytest.mark.parametrize("model", MODELS)
def test_a_response_withheld_by_a_filter_is_a_failure_and_not_an_answer(model):
    async def scene(here):
        failure = await fails(here, model=model)
        assert failure.code == "model.content_filter"
        assert failure.kind == "agent"
        assert here.recorder.of(Response) == []

    play([Reply(text="half a", finish="content_filter")], scene)


@pytest.mark.parametrize("model", MODELS)
def test_an_answer_cut_off_at_the_limit_of_tokens_is_sent_back(model):
    async def scene(here):
        result = await here.run(request(model=model))
        assert result.output == "whole"
        assert "cut off" in here.provider.asked[1].messages[-1].text

    play([Reply(text="half a", finish="length"), Reply(text="whole")], scene)


@pytest.mark.parametrize("model", MODELS)
def test_calls_that_make_no_sense_are_answered_with_what_is_wrong(model, tmp_path):
    calls = (
        Call("read_file", '{"path": '),
        Call("read_file", {"file": "a"}),
        Call("launch", {}),
        Call("read_file", {"path": "../../etc/passwd"}),
    )

    async def scene(here):
        result = await here.run(request(tmp_path, model=model))
        assert result.output == "I see"
        told = here.provider.asked[1].results
        assert "not a JSON object" in told["call_1_1"]
        assert "required property" in told["call_1_2"]
        assert "there is no tool" in told["call_1_3"]
        assert "not allowed" in told["call_1_4"]

    play([Reply(calls=calls), Reply(text="I see")], scene)


def test_calls_with_equal_ids_are_kept_apart(tmp_path):
    (tmp_path / "a").write_text("A")
    (tmp_path / "b").write_text("B")
    calls = (Call("read_file", {"path": "a"}, "call_0"), Call("read_file", {"path": "b"}, "call_0"))

    async def scene(here):
        await here.run(request(tmp_path))
        told = here.provider.asked[1].results
        assert len(told) == 2
        assert '"A"' in told["call_0"]

    play([Reply(calls=calls), Reply(text="ok")], scene)


EFFORT = {
    MODELS[0]: lambda body: body["reasoning_effort"],
    MODELS[1]: lambda body: body["reasoning"]["effort"],
    MODELS[2]: lambda body: body["output_config"]["effort"],
}


@pytest.mark.parametrize("model", MODELS)
def test_the_reasoning_effort_reaches_the_provider(model):
    async def scene(here):
        await here.run(request(model=model, reasoning_effort="high"))
        assert EFFORT[model](here.provider.asked[0].body) == "high"

    play([Reply(text="ok")], scene)


def test_a_model_that_thinks_gives_typed_answers_and_gets_its_signed_thoughts_back(tmp_path):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    def script(asked: RecordedRequest):
        if asked.turns == 0:
            return Reply(thinking="hmm", calls=(Call("list_files", {}),))
        return answer_with({"n": 1}, asked)

    async def scene(here):
        asked = {"model": MODELS[2], "reasoning_effort": "high", "output_schema": schema}
        first = Recorder(stop_at=1)
        with pytest.raises(Killed):
            await here.run(request(tmp_path, **asked), first)
        entries = [UserInput(text="Do the work."), *first.entries]
        result = await here.run(request(tmp_path, entries=entries, **asked))
        assert result.output == {"n": 1}
        (said,) = [m for m in here.provider.asked[1].body["messages"] if m["role"] == "assistant"]
        assert said["content"][0] == {"type": "thinking", "thinking": "hmm", "signature": "signed"}

    play(script, scene)


def test_loading_the_back_end_loads_no_sdk():
    import subprocess
    import sys

    code = (
        "import sys, fanfold.agents.models.session, fanfold.agents.tools.toolbox;"
        "print([name for name in ('pydantic_ai', 'openai', 'anthropic', 'httpx2', 'regex', 'jsonschema_rs')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("model", MODELS)
def test_a_cancellation_that_leaks_from_a_connection_is_a_broken_connection(model, monkeypatch):
    connect = anyio.connect_tcp
    leaked: list[object] = []

    async def leaking(*args, **named):
        if not leaked:
            leaked.append(args)
            raise asyncio.CancelledError
        return await connect(*args, **named)

    monkeypatch.setattr(anyio, "connect_tcp", leaking)

    async def scene(here):
        result = await here.run(request(model=model))
        assert (result.output, result.trace["retries"]) == ("here I am", 1)
        assert leaked

    play([Reply(text="here I am")], scene)


def test_a_cancellation_that_leaks_while_a_model_is_tried_is_a_broken_connection(monkeypatch):
    async def leaking(*_, **__):
        raise asyncio.CancelledError

    async def scene(here):
        monkeypatch.setattr(anyio, "connect_tcp", leaking)
        connections = Connections(access(here.provider.url))
        with pytest.raises(SessionFailed) as failed:
            await requests.try_model(connections, MODELS[0], Redactor([]))
        await connections.aclose()
        assert failed.value.failure.code == "model.broken_off"

    play([], scene)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (400, b"[1, 2]", "status 400: [1, 2]"),
        (422, b'{"detail": [{"msg": "model is required"}]}', 'status 422: {"detail": [{"msg": "model is req'),
        (500, b'{"error": null}', "status 500: "),
        (404, b"", "status 404: an empty response"),
    ],
)
def test_an_error_in_an_unknown_form_is_shown_as_the_server_sent_it(model, status, body, says):
    async def scene(here):
        failure = await fails(here, model=model)
        assert failure.message.startswith(f"{model}: {says}")
        assert "model_name" not in failure.message

    play(lambda _: Raw(body, status, {"content-type": "application/json", "retry-after-ms": "0"}), scene)


@pytest.mark.parametrize("model", MODELS)
def test_a_response_without_end_is_given_up_before_the_memory_is(monkeypatch, model):
    monkeypatch.setattr(failures, "MAX_RESPONSE_BYTES", 100_000)

    async def scenario(here):
        failure = await fails(here, model=model)
        assert failure.code == "model.not_an_api"
        assert "sent more than 100,000 bytes" in failure.message
        assert len(here.provider.asked) == 1

    play([Reply(text="word " * 100_000)], scenario)
