"""What is kept of a program that says very much: bounded. How long that takes is for `bench/bounds.py`."""

import asyncio
import socket
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.agents.backend import SOCKET
from fanfold.agents.command.acp import AgentMessages
from fanfold.agents.command.events import DenialEvent, TextEvent, ToolCallEvent, ToolResultEvent, TurnEnd
from fanfold.agents.command.profile import Profile
from fanfold.agents.command.profile_files import find_profile
from fanfold.agents.command.provider_gate import ProviderGate
from fanfold.agents.command.recorder import (
    MAX_CALLS,
    MAX_ENTRIES,
    MAX_KEPT_BYTES,
    NOT_KEPT,
    TranscriptRecorder,
)
from fanfold.agents.command.transcript_events import MAX_TEXT_CHARS, CallEnd, judge
from fanfold.agents.entries import Response, ToolResult
from tests.work import patience

PROFILE = Profile(program="p", title="P")


def heard(facts, record=None):
    kept: list[Any] = []

    async def keep(entry):
        (record or kept.append)(entry)

    hearing = TranscriptRecorder(keep, lambda news: None, str)

    async def hear():
        for fact in facts:
            await hearing.hear(fact)
        await hearing.close()

    asyncio.run(hear())
    return hearing, kept


def judge_many_denials():
    def facts():
        for number in range(40_000):
            yield ToolCallEvent(f"c{number}", f"tool{number}")
            yield DenialEvent(f"c{number}", f"tool{number}")
        yield TurnEnd(text="done")

    hearing, _ = heard(facts())
    return judge(PROFILE, hearing.ending)


def hear_many_pieces():
    """One message that comes in very many pieces."""
    return heard(TextEvent("four", "m", "", True) for _ in range(400_000))


@pytest.mark.full
def test_very_many_denials_are_judged_in_few_words():
    with patience():
        failure = judge_many_denials()
    assert failure is not None
    assert failure.code == "agent.denied"
    assert len(failure.message) < 1_000


def test_a_tool_that_was_denied_and_worked_later_is_forgiven_and_one_that_worked_before_is_not():
    def story(*words):
        facts = []
        for number, word in enumerate(words):
            facts += [ToolCallEvent(str(number), "Write"), ToolResultEvent(str(number), "", word != "works")]
            facts += [DenialEvent(str(number), "Write")] if word == "denied" else []
        hearing, _ = heard([*facts, TurnEnd()])
        return judge(PROFILE, hearing.ending) is None

    assert story("denied", "works")
    assert not story("works", "denied")
    assert not story("denied", "works", "denied")
    assert not story("denied", "fails")


def test_calls_without_end_take_no_memory_and_little_of_the_log():
    size = [0]

    def count(entry):
        size[0] += len(entry.text) + sum(len(str(call.args)) for call in entry.tool_calls)
        assert len(entry.tool_calls) <= MAX_CALLS

    facts = (
        ToolCallEvent(f"{number}{'x' * 30_000}", "t" * 30_000, {"a": "y" * 60_000}) for number in range(2_000)
    )
    tracemalloc.start()
    try:
        heard(facts, count)
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
    assert 0 < size[0] <= MAX_KEPT_BYTES


@pytest.mark.full
def test_one_message_in_very_many_pieces_is_put_together_once():
    with patience():
        hearing, [said] = hear_many_pieces()
    assert isinstance(said, Response)
    assert said.text == hearing.text == "four" * (MAX_TEXT_CHARS // 4)


def test_pieces_that_are_no_deltas_stand_on_lines_of_their_own():
    _, [said] = heard([TextEvent("one", "m"), TextEvent("two", "m"), TextEvent("!", "m", "", True)])
    assert said.text == "one\ntwo!"


def test_a_call_that_is_reported_twice_is_recorded_once():
    facts = [
        ToolCallEvent("a", "Write", {"path": "x"}),
        ToolResultEvent("a", "ok"),
        ToolResultEvent("a", "ok"),
        ToolCallEvent("a", "Write"),
    ]
    _, kept = heard(facts)
    assert [type(entry) for entry in kept] == [Response, ToolResult]


def test_omitted_parts_are_reported_once():
    def facts():
        for number in range(MAX_ENTRIES):
            yield ToolResultEvent(str(number), "ok")
        yield TextEvent("The end.")

    _, kept = heard(facts())
    marks = [index for index, entry in enumerate(kept) if getattr(entry, "text", "") == NOT_KEPT]
    assert marks == [MAX_ENTRIES], "once, where the rest would have been"
    assert kept[-1].text == "The end."
    assert len(kept) == MAX_ENTRIES + 2


class Saying:
    """A program that says something, one piece after the other, and is gone."""

    def __init__(self, pieces):
        self.stdin = self.stdout = self
        self._pieces = iter(pieces)

    async def read(self, _):
        return next(self._pieces, b"")

    async def drain(self):
        """There is room."""


def saying(pieces) -> Any:
    """As much of an `AgentProgram` as messages need."""
    return Saying(pieces)


def told(update):
    return msgspec.json.encode({"method": "session/update", "params": {"update": update}}) + b"\n"


def test_a_message_of_the_protocol_is_recorded_before_the_next_is_read():
    kinds = {"sessionUpdate": "agent_message_chunk"}
    lines = [told({**kinds, "content": {"text": f"{number} "}}) for number in range(30_000)]
    data = b"".join([*lines, b'{"id": 1, "result": {}}\n'])
    kept = []

    async def slow(fact):
        await asyncio.sleep(0)  # others get a turn, as they do while something is written
        kept.append(fact.text)

    async def listen():
        messages = AgentMessages(saying([data]), slow, lambda: None)
        messages.is_listening = True
        assert await messages.receive() == {"id": 1, "result": {}}

    asyncio.run(listen())
    assert "".join(kept).split() == [str(number) for number in range(30_000)]


def test_a_call_over_the_protocol_has_the_agents_own_name_of_its_tool():
    meta = {"claudeCode": {"toolName": "Write"}}
    call = {"sessionUpdate": "tool_call", "toolCallId": "c1", "kind": "edit", "rawInput": {"a": 1}}
    kept = []

    async def keep(fact):
        kept.append(fact)

    async def listen():
        messages = AgentMessages(saying([told({**call, "_meta": meta})]), keep, lambda: None)
        messages.is_listening = True
        assert await messages.receive() is None

    asyncio.run(listen())
    assert kept == [ToolCallEvent("c1", "Write", {"a": 1})]


def test_calls_that_never_end_are_not_all_remembered():
    kinds = {"sessionUpdate": "tool_call", "kind": "edit"}
    pieces = (
        told({**kinds, "toolCallId": str(number), "rawInput": {"a": "y" * 20_000}}) for number in range(3_000)
    )

    async def nothing(fact):
        """It is heard."""

    async def listen():
        messages = AgentMessages(saying(pieces), nothing, lambda: None)
        messages.is_listening = True
        assert await messages.receive() is None

    tracemalloc.start()
    try:
        asyncio.run(listen())
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("why", "status", "named"),
    [
        ("API Error: Connection error.", None, True),
        ("Overloaded", 503, False),
        ("Not logged in", None, False),
    ],
)
def test_the_host_that_failed_is_named_although_another_one_was_reached(
    tmp_path: Path, why: str, status: int | None, named: bool
) -> None:
    profile = find_profile("claude", tmp_path)
    assert profile is not None
    ending = CallEnd()
    ending.finished = TurnEnd(failed=True, why=why, status=status)
    ending.unreached, ending.has_reached = ("api.example.com:443",), True
    failure = judge(profile, ending)
    assert failure is not None
    assert ("cannot reach api.example.com:443" in failure.message) == named


@pytest.mark.parametrize("why", ["Proxy response (403) to CONNECT", "Connection error."])
def test_a_refusal_by_the_gate_is_not_blamed_on_the_login(tmp_path: Path, why: str) -> None:
    profile = find_profile("claude", tmp_path)
    assert profile is not None
    ending = CallEnd()
    ending.finished = TurnEnd(failed=True, why=why)
    ending.stderr = "HTTP Error 403: Forbidden"
    ending.refused = ("llm.example.com:443",)
    failure = judge(profile, ending)
    assert failure is not None
    assert (failure.code, "llm.example.com:443" in failure.message) == ("agent.unreachable", True)


@pytest.mark.full
def test_the_gate_knows_whether_the_last_connection_failed(tmp_path: Path) -> None:
    (tmp_path / SOCKET).parent.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        failing = closed.getsockname()[1]

    async def connect(port: int) -> None:
        reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET)
        writer.write(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
        writer.write_eof()
        await reader.read()
        writer.close()
        await asyncio.sleep(0.05)  # the gate closes its side

    async def main() -> None:
        other = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        reached = other.sockets[0].getsockname()[1]
        hosts = [f"127.0.0.1:{port}" for port in (reached, failing)]
        async with other, ProviderGate(tmp_path, hosts) as gate:
            await connect(reached)
            await connect(failing)
            assert (gate.has_reached, gate.is_failing, gate.unreached) == (True, True, hosts[1:])
            await connect(reached)
            assert not gate.is_failing

    asyncio.run(main())


@pytest.mark.full
def test_a_gate_that_closes_during_a_connection_reports_no_error(tmp_path: Path) -> None:
    (tmp_path / SOCKET).parent.mkdir(parents=True, exist_ok=True)
    reported: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what["message"]))

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                await reader.read()
            writer.close()

        async with await asyncio.start_server(hold, "127.0.0.1", 0) as other:
            port = other.sockets[0].getsockname()[1]
            async with ProviderGate(tmp_path, [f"127.0.0.1:{port}"]):
                reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET)
                writer.write(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            writer.close()

    asyncio.run(main())
    assert reported == []
