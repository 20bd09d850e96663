"""Hundreds of sessions at once in one process."""

import asyncio
import resource
import time
from collections import Counter

import pytest

from fanfold.agents.backend import SessionFailed
from fanfold.agents.models.requests import Patience
from fanfold.agents.models.session import ModelBackend
from tests.models.sessions import MODELS, Recorder, access, request, world
from tests.provider import Call, Fault, RecordedRequest, Reply, answer_with
from tests.sampling import examples

pytestmark = pytest.mark.full

SESSIONS = 200
SCHEMA = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}


def test_two_hundred_sessions_at_once_all_complete(tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")
    limited = set()

    def script(asked: RecordedRequest):
        who = asked.prompt.removeprefix("I am ")
        if who.endswith("7") and who not in limited:  # one in ten is told to slow down, once
            limited.add(who)
            return Fault("rate_limit", retry_after_s=0.05)
        if asked.turns < 2:
            return Reply(calls=(Call("read_file", {"path": "a.txt"}),))
        return answer_with({"who": who}, asked)

    async def main():
        async with world(script) as here:

            async def one(i):
                asked = request(
                    tmp_path,
                    session_id=f"s{i}",
                    model=MODELS[i % 3],
                    prompt=f"I am {i}",
                    output_schema=SCHEMA,
                )
                recorder = Recorder()
                return await here.backend.run(asked, recorder.record, recorder.show)

            await one(SESSIONS)  # imports and connections are not what is measured
            before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            results = await asyncio.gather(*(one(i) for i in range(SESSIONS)))
            grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
            assert [result.output for result in results] == [{"who": str(i)} for i in range(SESSIONS)]
            assert all(result.usage.input_tokens == 30 for result in results)
            assert len(here.provider.asked) == 3 * (SESSIONS + 1) + len(limited)
            # The provider and both ends of every connection live in this process too.
            assert grown_kb / SESSIONS < 1_000

    asyncio.run(main())


def test_no_session_is_cancelled_by_a_server_that_closes_every_connection(tmp_path):
    """While other work makes the loop late for its timers: 2,000 sessions in `make providers`."""
    sessions = examples(2_000)

    async def main():
        closing = await asyncio.start_server(lambda _, writer: writer.transport.abort(), "127.0.0.1", 0)
        given = access(f"http://127.0.0.1:{closing.sockets[0].getsockname()[1]}")
        backend = ModelBackend(given, patience=Patience(tries=2, backoff_s=0.001))
        stop = asyncio.Event()

        async def one(i):
            recorder = Recorder()
            try:
                asked = request(tmp_path, session_id=f"s{i}", model=MODELS[i % 3])
                await backend.run(asked, recorder.record, recorder.show)
            except SessionFailed as failed:
                return failed.failure.kind
            return "answered"

        async def load():
            while not stop.is_set():
                until = time.monotonic() + 0.01
                while time.monotonic() < until:
                    pass
                await asyncio.sleep(0)

        loading = asyncio.create_task(load())
        ends: Counter[str] = Counter()
        for start in range(0, sessions, 250):
            ends.update(await asyncio.gather(*(one(i) for i in range(start, start + 250))))
        stop.set()
        await loading
        await backend.aclose()
        closing.close()
        assert sum(ends.values()) == sessions
        assert ends.keys() <= {"transport", "timeout"}, ends

    asyncio.run(main())
