"""The whole way: supervisor, SQLite, real SDK, real kill -9, another process."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from fanfold.agents.models.messages import UNKNOWN
from tests.provider import Call, RecordedRequest, Reply, ScriptedProvider
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]


def script(asked: RecordedRequest) -> Reply:
    match asked.turns:
        case 0:
            return Reply(calls=(Call("run_command", {"argv": ["first"]}),))
        case 1:
            return Reply(calls=(Call("run_command", {"argv": ["second"]}), Call("list_files", {})))
        case _:
            return Reply(text="finished")


def test_a_process_killed_in_the_middle_of_a_call_is_taken_up_by_another(tmp_path):
    async def victim(url: str, execution: int, fate: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.models.victim", str(tmp_path), url, str(execution), fate),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode is not None
        return process.returncode, out.decode()

    async def main():
        async with ScriptedProvider(script) as provider:
            status, _ = await victim(provider.url, 1, "die")
            assert status == -signal.SIGKILL
            assert len(provider.asked) == 2
            status, out = await victim(provider.url, 2, "live")
            assert status == 0
            assert json.loads(out) == ["finished", 30]
            assert len(provider.asked) == 3, "no response was paid for twice"
            assert provider.asked[2].results["call_2_1"] == UNKNOWN
            assert (tmp_path / "ran").read_text() == "first\nsecond\n", "nothing was done twice"

    asyncio.run(main())
