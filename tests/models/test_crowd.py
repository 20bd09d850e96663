"""Hundreds of sessions at once in one process."""

import asyncio
import resource

from fanfold.testing.provider import Asked, Call, Fault, Reply, answer_with
from tests.models.sessions import MODELS, Recorder, request, world

SESSIONS = 200
SCHEMA = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}


def test_two_hundred_sessions_at_once_all_complete(tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")
    limited = set()

    def script(asked: Asked):
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
