"""MCP servers that a role names are its tools: real servers, as programs and over HTTP, good and hostile."""

import asyncio
import contextlib
import gzip
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.backend import SessionFailed, SessionRequest, ToolFailed
from fanfold.agents.entries import Calling, ToolCall
from fanfold.agents.permissions import Action, Permissions
from fanfold.agents.tools.mcp import ServedTools
from fanfold.agents.tools.toolbox import SessionTools
from fanfold.sessions.processes import Process, end_tree, start_process
from tests.models.sessions import MODELS, Killed, Recorder, play, request
from tests.provider import Call, Reply
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
PATIENT = {"startup_timeout_sec": 60, "tool_timeout_sec": 60}


def real(**settings: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(HERE / "mcp_server.py")], **PATIENT, **settings}


def hostile(way: str, **settings: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(HERE / "mcp_hostile.py"), way], **PATIENT, **settings}


class Program:
    """A server as it is handed to the tools."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self.stdin, self.stdout = process, process.stdin, process.stdout
        self.stderr_after, self.wait = process.stderr_after, process.wait

    def check_started(self) -> None:
        assert self.process.started

    def stderr_text(self) -> str:
        return self.process.said()[1]

    async def end(self) -> None:
        await end_tree(self.process)


class Starter:
    """Starts servers as real processes, and knows which are left."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.first = asyncio.Event()

    async def __call__(
        self, asked: SessionRequest, argv: Sequence[str], environment: Mapping[str, str], /
    ) -> Program:
        process = await start_process(
            argv, cwd=asked.workspace, session_id=asked.session_id, env=environment, interactive=True
        )
        self.programs.append(Program(process))
        self.first.set()
        return self.programs[-1]

    def left(self) -> list[int]:
        alive = []
        for program in self.programs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(program.process.pid, 0)
                alive.append(program.process.pid)
        return alive


class Session:
    """The tools of one session."""

    def __init__(self, asked: SessionRequest, permissions: Permissions, ours: Mapping[str, str]) -> None:
        self.starter = Starter()
        base = SessionTools(asked, permissions=permissions)
        self.tools = ServedTools(base, asked, permissions, self.starter, environment=ours)

    @property
    def served(self) -> list[str]:
        return [spec.name for spec in self.tools.offered() if spec.name.startswith("mcp__")]

    async def call(self, tool: str, **args: Any) -> Any:
        return await self.tools.call(tool, args)

    async def refused(self, tool: str, **args: Any) -> ToolFailed:
        with pytest.raises(ToolFailed) as failed:
            await self.tools.call(tool, args)
        return failed.value


def session(
    workspace: Path,
    servers: dict[str, Any],
    scene: Callable[[Session], Awaitable[None]],
    *,
    permissions: Permissions | None = None,
    ours: Mapping[str, str] | None = None,
    **given: Any,
) -> None:
    """Play a scene with open tools; no program may be left behind it."""

    async def main() -> None:
        asked = request(workspace, mcp_servers=servers, **given)
        here = Session(asked, permissions or Permissions("auto"), ours or {})
        try:
            await here.tools.open()
            await asyncio.wait_for(scene(here), PATIENCE_S)
        finally:
            await here.tools.aclose()
            assert here.starter.left() == []
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def unavailable(workspace: Path, servers: dict[str, Any], **given: Any) -> Any:
    """The failure of a session whose servers cannot be used."""

    async def scene(here: Session) -> None:
        raise AssertionError("the session began")

    with pytest.raises(SessionFailed) as failed:
        session(workspace, servers, scene, **given)
    failure = failed.value.failure
    assert (failure.kind, failure.code) == ("tool", "mcp.unavailable")
    assert failure.hint
    return failure


# -- a real server


def test_the_tools_of_a_server_stand_beside_the_built_in_ones_and_answer(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")

    async def scene(here):
        assert here.served == [
            f"mcp__shop__{name}"
            for name in "add greet picture long_text variables note refuse wait odd_name_with_spaces".split()
        ]
        specs = {spec.name: spec for spec in here.tools.offered()}
        assert specs["mcp__shop__add"].description == "Add two numbers."
        assert specs["mcp__shop__add"].schema["properties"]["a"]["type"] == "integer"
        assert [here.tools.mutates(f"mcp__shop__{name}") for name in ("add", "note")] == [False, True]
        assert here.tools.mutates("write_file")
        assert not here.tools.mutates("read_file")
        assert await here.call("mcp__shop__add", a=1, b=2) == {"structured": {"sum": 3}}
        assert await here.call("mcp__shop__greet", name="you") == {"text": "hello you"}
        assert await here.call("mcp__shop__odd_name_with_spaces") == {"text": "odd, but fine"}
        shown = await here.call("mcp__shop__picture")
        assert shown["text"] == "the caption\n[image, image/png, about 300 bytes, not shown]"
        long = (await here.call("mcp__shop__long_text", chars=50_000))["text"]
        assert "[… 34,000 characters left out …]" in long
        assert len(long) < 16_100
        failed = await here.refused("mcp__shop__refuse")
        assert (failed.code, failed.failure.kind) == ("tool.mcp_failed", "tool")
        assert "refuse" in failed.message
        assert (await here.call("read_file", path="a.txt"))["text"] == "one\n"
        assert (await here.refused("mcp__shop__nothing")).code == "tool.unknown"

    session(tmp_path, {"shop": real()}, scene)


def test_calls_run_side_by_side_and_each_gets_its_own_answer(tmp_path):
    async def scene(here):
        sums = await asyncio.gather(*(here.call("mcp__shop__add", a=i, b=i) for i in range(50)))
        assert sums == [{"structured": {"sum": 2 * i}} for i in range(50)]

    session(tmp_path, {"shop": real()}, scene)


def test_a_call_that_changes_something_is_put_to_the_person_and_a_reading_one_is_not(tmp_path):
    asked: list[Action] = []

    async def ask(action: Action) -> bool:
        asked.append(action)
        return "yes" in action.what

    async def scene(here):
        await here.call("mcp__shop__add", a=1, b=2)
        denied = await here.refused("mcp__shop__note", text="no" * 1_000)
        assert denied.failure.kind == "permission"
        assert not (tmp_path / "notes.txt").exists()
        assert await here.call("mcp__shop__note", text="yes") == {"text": "noted"}
        assert (tmp_path / "notes.txt").read_text() == "yes\n"
        assert [(one.kind, one.session_id, one.step) for one in asked] == [("tool", "s1", "work")] * 2
        assert "no" * 1_000 in asked[0].what, "a person sees all of what they allow"
        assert asked[1].what == 'mcp shop/note {"text":"yes"}'

    session(tmp_path, {"shop": real()}, scene, permissions=Permissions("ask", ask))


def test_a_session_that_may_only_read_is_offered_reading_tools_alone(tmp_path):
    async def scene(here):
        assert "mcp__shop__add" in here.served
        assert "mcp__shop__note" not in here.served
        assert (await here.refused("mcp__shop__note", text="x")).code == "tool.unknown"

    session(tmp_path, {"shop": real()}, scene, read_only=True)


def test_a_server_knows_of_our_environment_only_what_the_role_names(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-must-not-be-seen-0123456789")
    monkeypatch.setenv("UNNAMED", "must-not-be-seen")

    async def scene(here):
        lines = (await here.call("mcp__shop__variables"))["text"].splitlines()
        seen = dict(line.partition("=")[::2] for line in lines)
        assert (seen["GIVEN"], seen["NAMED"], seen["FANFOLD_SESSION"]) == ("1", "ours", "s1")
        assert not {"OPENAI_API_KEY", "UNNAMED"} & seen.keys()

    settings = real(env={"GIVEN": 1}, env_vars=["NAMED"])
    session(tmp_path, {"shop": settings}, scene, ours={"NAMED": "ours", **os.environ})


# -- which servers and which tools


@pytest.mark.parametrize(
    ("listed", "served"),
    [
        (None, ["mcp__a-b__do", "mcp__c_d__do"]),
        (("read_file", "mcp__a-b__do"), ["mcp__a-b__do"]),
        (("mcp__c d",), ["mcp__c_d__do"]),
        (("mcp__c_d__do", "mcp__a-b__*"), ["mcp__a-b__do", "mcp__c_d__do"]),
        (("mcp__a-b__other",), []),
        (("read_file",), []),
        ((), []),
    ],
)
def test_a_list_of_tools_narrows_and_a_server_it_does_not_name_is_not_started(tmp_path, listed, served):
    async def scene(here):
        assert here.served == served
        named = {name for name in ("a-b", "c") if any(f"mcp__{name}" in one for one in listed or ())}
        assert len(here.starter.programs) == (2 if listed is None else len(named))
        kept = [one for one in here.starter.programs if not one.stdin.is_closing()]
        assert len(kept) == len(served), "a server without any use is not kept"

    session(tmp_path, {"a-b": hostile("fine"), "c d": hostile("fine")}, scene, tools=listed)


def test_a_role_chooses_among_the_tools_of_a_server_and_may_switch_it_off(tmp_path):
    servers = {
        "a": hostile("pages", enabled_tools=["do1", "do2"], disabled_tools=["do2"]),
        "b": hostile("fine", enabled=False),
    }

    async def scene(here):
        assert here.served == ["mcp__a__do1"]
        assert len(here.starter.programs) == 1

    session(tmp_path, servers, scene)


def test_tools_come_page_by_page_and_an_endless_list_ends(tmp_path):
    async def scene(here):
        assert here.served == ["mcp__a__do0", *(f"mcp__a__{name}" for name in "do do1 do2 do3".split()),
                               "mcp__b__do"]  # fmt: skip

    session(tmp_path, {"a": hostile("pages"), "b": hostile("endless")}, scene)


def test_names_fit_every_provider_and_are_never_shared(tmp_path):
    servers = {"x" * 70: hostile("pages"), "a b": hostile("fine"), "a.b": hostile("fine")}

    async def scene(here):
        assert len(here.served) == len(set(here.served)) == 7
        assert all(name.replace("-", "_").isidentifier() and len(name) <= 64 for name in here.served)
        assert here.served[5] == "mcp__a_b__do"
        for name in here.served:
            assert await here.call(name) == {"text": "fine"}

    session(tmp_path, servers, scene)


def test_descriptions_are_cut_and_schemas_that_cannot_be_checked_take_anything(tmp_path):
    async def scene(here):
        specs = {spec.name: spec for spec in here.tools.offered()}
        shapes = {name: specs[f"mcp__a__{name}"].schema for name in "elsewhere wrong huge good".split()}
        assert shapes.pop("good")["properties"] == {"a": {"type": "integer"}}
        assert all(one["properties"] == {} and one["additionalProperties"] for one in shapes.values())
        assert len(specs["mcp__a__good"].description) == 1_024

    session(tmp_path, {"a": hostile("schemas")}, scene)


def test_more_tools_than_a_model_can_be_offered_must_be_narrowed(tmp_path):
    failure = unavailable(tmp_path, {"a": hostile("many")})
    assert "200 tools" in failure.message
    assert "enabled_tools" in failure.hint

    async def scene(here):
        assert here.served == ["mcp__a__do7"]

    session(tmp_path, {"a": hostile("many")}, scene, tools=("mcp__a__do7",))


# -- servers that break


@pytest.mark.parametrize(
    ("way", "code", "words"),
    [
        ("die", "tool.mcp_gone", "it has ended: a last word"),
        ("hang_up", "tool.mcp_gone", "it has ended"),
        ("stall", "tool.mcp_timeout", "within 0.3 s"),
        ("wrong_id", "tool.mcp_timeout", "within 0.3 s"),
        ("flood", "tool.mcp_gone", "too many unrequested messages"),
        ("long_line", "tool.mcp_failed", "longer than 8 MiB"),
        ("bad_result", "tool.mcp_invalid", "no result of a tool"),
        ("error", "tool.mcp_failed", "said: not today"),
    ],
)
def test_a_broken_server_fails_its_call_and_the_session_continues(tmp_path, way, code, words):
    (tmp_path / "a.txt").write_text("one\n")
    waits = {"tool_timeout_sec": 0.3} if "timeout" in code else {}

    async def scene(here):
        for _ in range(2):
            failed = await here.refused("mcp__bad__do")
            assert (failed.code, failed.failure.kind) == (code, "tool")
            assert words in failed.message
            assert '"bad"' in failed.message
        assert await here.call("mcp__good__do") == {"text": "fine"}
        assert (await here.call("read_file", path="a.txt"))["text"] == "one\n"

    session(tmp_path, {"bad": hostile(way, **waits), "good": hostile("fine")}, scene)


def test_a_flood_without_an_end_is_dropped_as_it_comes_and_ended(tmp_path):
    async def scene(here):
        assert (await here.refused("mcp__bad__do")).code == "tool.mcp_failed"
        assert (await here.refused("mcp__bad__do")).code == "tool.mcp_gone"
        assert here.starter.left() == []

    session(tmp_path, {"bad": hostile("unending")}, scene)


def test_a_server_that_does_not_read_cannot_hold_a_call_up(tmp_path):
    async def scene(here):
        long = "x" * 17 * 1024 * 1024
        for text in ("it stalls from here on", long):  # the second fills what may wait
            assert (await here.refused("mcp__bad__do", text=text)).code == "tool.mcp_timeout"
        failed = await here.refused("mcp__bad__do", text=long)
        assert failed.code == "tool.mcp_gone"
        assert "does not read" in failed.message

    session(tmp_path, {"bad": hostile("stall", tool_timeout_sec=0.5)}, scene)


def test_messages_for_other_receivers_are_skipped(tmp_path):
    async def scene(here):
        assert await here.call("mcp__a__do") == {"text": "after all that"}

    session(tmp_path, {"a": hostile("junk")}, scene)


def test_supported_requests_of_a_server_are_answered_and_others_declined(tmp_path):
    async def scene(here):
        told = await here.call("mcp__a__do")
        assert json.loads(told["text"]) == {"s1": "error", "s2": "result"}

    session(tmp_path, {"a": hostile("asks")}, scene)


def test_a_server_that_knows_only_the_newest_protocol_is_used(tmp_path):
    async def scene(here):
        assert await here.call("mcp__a__do") == {"text": "fine"}

    session(tmp_path, {"a": hostile("newest")}, scene)


def test_a_server_without_tools_is_not_kept(tmp_path):
    async def scene(here):
        assert here.served == []
        assert here.starter.left() == []

    session(tmp_path, {"a": hostile("toolless")}, scene)


def test_a_server_that_will_not_leave_is_ended(tmp_path):
    async def scene(here):
        assert await here.call("mcp__a__do") == {"text": "here to stay"}

    session(tmp_path, {"a": hostile("stubborn")}, scene)


def test_values_that_json_cannot_say_become_null(tmp_path):
    async def scene(here):
        value = (await here.call("mcp__a__do"))["structured"]
        assert value == {"nan": None, "huge": 10**400}

    session(tmp_path, {"a": hostile("numbers")}, scene)


# -- servers that cannot be used


def test_a_program_that_is_no_server_fails_the_session_with_its_last_words(tmp_path):
    bad = hostile("not_mcp", env={"TOKEN": "a-secret-token"})
    failure = unavailable(tmp_path, {"good": hostile("fine"), "bad": bad})
    assert '"bad" cannot be used: it has ended: this is no server; token=[redacted]' in failure.message


def test_a_server_that_says_nothing_is_given_up_in_time(tmp_path):
    failure = unavailable(tmp_path, {"bad": hostile("mute", startup_timeout_sec=0.2)})
    assert "did not answer within 0.2 s" in failure.message
    assert failure.retryable


def test_a_missing_program_is_named(tmp_path):
    failure = unavailable(tmp_path, {"bad": {"command": "no-such-program-here"}})
    assert 'there is no program "no-such-program-here"' in failure.message
    assert not failure.retryable


def test_an_address_needs_the_network(tmp_path):
    failure = unavailable(tmp_path, {"far": {"url": "https://a.example/mcp"}}, network=False)
    assert "may not use" in failure.message
    assert "network = true" in failure.hint


def test_more_servers_than_a_role_may_name_are_refused(tmp_path):
    failure = unavailable(tmp_path, {f"s{i}": hostile("fine") for i in range(33)})
    assert "32 servers" in failure.message


@pytest.mark.parametrize("times", [1, 2])
def test_a_session_that_is_cancelled_while_servers_start_leaves_nothing(tmp_path, times):
    async def main() -> None:
        asked = request(tmp_path, mcp_servers={"a": hostile("mute"), "b": hostile("stubborn")})
        here = Session(asked, Permissions("auto"), {})

        async def work() -> None:
            try:
                await here.tools.open()
            finally:
                await here.tools.aclose()

        task = asyncio.create_task(work())
        await here.starter.first.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert here.starter.left() == []

    asyncio.run(main())


# -- over HTTP


@asynccontextmanager
async def serving(way: str, port: int = 0) -> AsyncIterator[int]:
    """The real server on loopback."""
    process = await start_process(
        [sys.executable, str(HERE / "mcp_server.py"), way, str(port)],
        cwd=".",
        session_id="server",
        interactive=True,
    )
    try:
        assert process.stdout is not None
        yield int(await process.stdout.readline())
    finally:
        await end_tree(process)


@pytest.mark.parametrize(("way", "path"), [("http", "mcp"), ("sse", "sse")])
def test_a_server_on_an_address_is_used_and_found_again_after_it_was_gone(tmp_path, way, path):
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), serving(way) as port:
            settings = {"type": way, "url": f"http://127.0.0.1:{port}/{path}", **PATIENT}
            asked = request(tmp_path, mcp_servers={"far": settings}, network=True)
            here = Session(asked, Permissions("auto"), {})
            await here.tools.open()
            assert "mcp__far__add" in here.served
            assert await here.call("mcp__far__add", a=1, b=2) == {"structured": {"sum": 3}}
            assert (await here.refused("mcp__far__refuse")).code == "tool.mcp_failed"
        assert (await here.refused("mcp__far__add", a=1, b=2)).code == "tool.mcp_gone"
        async with asyncio.timeout(PATIENCE_S), serving(way, port):
            assert await here.call("mcp__far__add", a=2, b=2) == {"structured": {"sum": 4}}
            await here.tools.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@pytest.mark.parametrize(("way", "path"), [("http", "mcp"), ("sse", "sse")])
def test_a_call_to_a_silent_address_ends_in_time_and_others_continue(tmp_path, way, path):
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), serving(way) as port:
            url = f"http://127.0.0.1:{port}/{path}"
            settings = {"type": way, "url": url, "startup_timeout_sec": 60, "tool_timeout_sec": 2}
            asked = request(tmp_path, mcp_servers={"far": settings}, network=True)
            here = Session(asked, Permissions("auto"), {})
            await here.tools.open()
            waiting = asyncio.create_task(here.refused("mcp__far__wait"))
            assert await here.call("mcp__far__add", a=1, b=2) == {"structured": {"sum": 3}}
            assert (await waiting).code == "tool.mcp_timeout"
            assert await here.call("mcp__far__add", a=2, b=2) == {"structured": {"sum": 4}}
            await here.tools.aclose()

    asyncio.run(main())


async def heard(reader: asyncio.StreamReader) -> str:
    """One request, head and body, as it came."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next((line for line in head.lower().splitlines() if line.startswith("content-length:")), ":0")
    return head + (await reader.readexactly(int(length.partition(":")[2]))).decode()


def answering(head: bytes, body: bytes, endless: bool = False) -> tuple[Any, list[str]]:
    """A server of HTTP that gives everybody the same answer, and what it was asked."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            asked.append(await heard(reader))
            writer.write(b"HTTP/1.1 " + head + b"\r\nConnection: close\r\n\r\n" + body)
            await writer.drain()
            while endless:
                writer.write(body)
                await writer.drain()
        writer.close()

    return serve, asked


JSON_HEAD = b"200 OK\r\nContent-Type: application/json"


@pytest.mark.parametrize(
    ("head", "body", "endless", "words"),
    [
        (b"401 Unauthorized", b"", False, "it answered 401 Unauthorized"),
        (b"307 Away\r\nLocation: https://elsewhere.example/", b"", False, "it answered 307 Away"),
        (JSON_HEAD, b"[" * 100_000, True, "longer than 16 MiB"),
        (JSON_HEAD + b"\r\nContent-Encoding: gzip", gzip.compress(b" " * 10**6), False, "compressed"),
        (JSON_HEAD, b'{"jsonrpc": "2.0", "id": 1, "result": {}}', False, "not MCP"),
        (b"200 OK\r\nContent-Type: text/html", b"<p>hello", False, "content type: text/html"),
    ],
)
def test_an_address_that_is_no_server_fails_the_session_and_learns_only_the_named_token(
    tmp_path, head, body, endless, words
):
    async def main() -> None:
        serve, asked = answering(head, body, endless)
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            settings = {"url": f"http://127.0.0.1:{port}/mcp", "bearer_token_env_var": "TOKEN", **PATIENT}
            made = request(tmp_path, mcp_servers={"far": settings}, network=True)
            here = Session(made, Permissions("auto"), {"TOKEN": "the-token-we-mean", "OTHER": "not-this-one"})
            with pytest.raises(SessionFailed) as failed:
                await here.tools.open()
            await here.tools.aclose()
        failure = failed.value.failure
        assert failure.code == "mcp.unavailable"
        assert words in failure.message
        assert "the-token-we-mean" not in failure.message
        assert "authorization: bearer the-token-we-mean" in asked[0].lower()
        assert "not-this-one" not in asked[0]

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


# -- with a model


def with_toolbox(starter: list[Starter]) -> Callable[[SessionRequest], ServedTools]:
    """Makes the tools of each session; whoever started servers for them is put into the list."""

    def toolbox(asked: SessionRequest) -> ServedTools:
        starter.append(Starter())
        return ServedTools(SessionTools(asked), asked, Permissions("auto"), starter[-1], environment={})

    return toolbox


@pytest.mark.parametrize("model", MODELS)
def test_a_model_calls_the_tools_of_a_server_in_each_wire_format(model, tmp_path):
    starters: list[Starter] = []
    script = [
        Reply(calls=(Call("mcp__shop__add", {"a": 2, "b": 3}), Call("mcp__shop__add", {"a": "x"}))),
        Reply(calls=(Call("mcp__shop__note", {"text": "five"}),)),
        Reply(text="done"),
    ]

    async def scene(here):
        result = await here.run(request(tmp_path, model=model, mcp_servers={"shop": real()}))
        assert result.output == "done"
        first, second, third = here.provider.asked
        assert "mcp__shop__add" in first.tools
        assert json.loads(second.results["call_1_1"]) == {"structured": {"sum": 5}}
        assert "is not of type" in second.results["call_1_2"].replace("\\", "")
        assert json.loads(third.results["call_2_1"]) == {"text": "noted"}
        assert (tmp_path / "notes.txt").read_text() == "five\n"
        assert [entry.tool for entry in here.recorder.of(ToolCall)] == ["mcp__shop__note"]
        assert len(starters[0].programs) == 1
        assert starters[0].left() == []

    play(script, scene, toolbox=with_toolbox(starters))


def test_a_session_whose_server_cannot_be_used_asks_no_model(tmp_path):
    starters: list[Starter] = []

    async def scene(here):
        with pytest.raises(SessionFailed, match="cannot be used"):
            await here.run(request(tmp_path, mcp_servers={"bad": hostile("not_mcp")}))
        assert here.provider.asked == []
        assert starters[0].left() == []

    play([], scene, toolbox=with_toolbox(starters))


def test_a_session_resumed_after_a_crash_restarts_servers_and_a_finished_one_does_not(tmp_path):
    starters: list[Starter] = []
    script = [Reply(calls=(Call("mcp__a__do", {}),)), Reply(text="done")]

    async def scene(here):
        servers = {"a": hostile("fine")}
        crashed = Recorder(stop_at=1)
        with pytest.raises(Killed):
            await here.run(request(tmp_path, mcp_servers=servers), crashed)
        assert starters[0].left() == []
        again, resumed = Recorder(), request(tmp_path, mcp_servers=servers, entries=tuple(crashed.entries))
        assert (await here.run(resumed, again)).output == "done"
        assert json.loads(here.provider.asked[1].results["call_1_1"]) == {"text": "fine"}
        over = request(tmp_path, mcp_servers=servers, entries=(*crashed.entries, *again.entries))
        assert (await here.run(over)).output == "done"
        assert [len(one.programs) for one in starters] == [1, 1, 0]

    play(script, scene, toolbox=with_toolbox(starters))


def test_a_session_that_is_cancelled_during_a_call_leaves_no_server(tmp_path):
    starters: list[Starter] = []

    async def scene(here):
        calling = asyncio.Event()
        recorder = Recorder()
        recorder.show = lambda news: calling.set() if isinstance(news, Calling) else None  # type: ignore[method-assign]  # how the test learns that the call began
        work = asyncio.create_task(here.run(request(tmp_path, mcp_servers={"a": hostile("stall")}), recorder))
        await calling.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert len(starters[0].programs) == 1
        assert starters[0].left() == []

    play([Reply(calls=(Call("mcp__a__do", {}),))], scene, toolbox=with_toolbox(starters))


def test_sessions_that_begin_at_once_load_the_client_once_and_whole():
    code = """
import asyncio
from fanfold.agents.tools.mcp import load_client

async def load(over_http):
    await load_client(over_http)
    from mcp import ClientSession, MCPError
    from mcp.client.streamable_http import streamable_http_client

async def main():
    await asyncio.gather(*(load(i % 2 == 1) for i in range(8)))

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_session_without_servers_does_not_load_the_client():
    code = """
import asyncio, sys
from fanfold.agents.permissions import Permissions
from fanfold.agents.tools.toolbox import SessionTools
from fanfold.agents.tools.mcp import ServedTools
from tests.models.sessions import request

asked = request(tools=("read_file",), mcp_servers={"a": {"command": "x"}})
box = ServedTools(SessionTools(asked), asked, Permissions("auto"), None)
asyncio.run(box.open())
sys.exit("mcp" in sys.modules or "mcp_types" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], cwd=HERE.parent.parent, check=True)
