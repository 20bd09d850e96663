"""Providers that misbehave, row by row, in two wire formats: outcome, record and requests after `kill -9`.

Each row drives the same two steps. `work` calls a tool and answers; `after` follows. The process is killed
when the second request of `work` has arrived, before any response. The resumed run meets the behaviour of the
row. If it survives it, its process is killed once more while `after` waits for its response.

A sample runs here, all rows in `make providers`.
"""

from __future__ import annotations

import gzip
import json
import signal
from typing import Any
from zlib import crc32

import pytest
from msgspec import Struct

from tests.e2e.world import MODELS, Project, Provider
from tests.provider import Answer, Call, Fault, Raw, RecordedRequest, Reply
from tests.sampling import EXAMPLES, SEED

pytestmark = pytest.mark.full

RECIPE = """\
name: row
limits: {outage: 0}
steps:
  - {id: work, agent: explorer, prompt: WORK, retry: {attempts: 1}}
  - {id: after, agent: explorer, prompt: AFTER, depends_on: [work]}
"""
WIRES = ("chat", "messages")
SAMPLE = 8
"""One row in so many runs where not all do."""
COMPLETED, FAILED, PAUSED = ("completed", 0), ("failed", 1), ("paused", 3)
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}
NO_WAIT = {"retry-after-ms": "0"}
HTML = b"<html><head><title>Sign in</title></head></html>"
BIG = "x" * 3_000_000
KEY_IN_TEXT = (
    b'{"error": {"message": "Incorrect API key provided: sk-proj-abcdef1234567890WXYZ.", "code": "x"}}'
)


class Row(Struct, frozen=True, kw_only=True):
    """One behaviour and what must follow from it."""

    answers: tuple[Answer, ...]
    """What the server sends to the requests behind the first turn."""
    always: bool = False
    """The last answer is repeated for ever; otherwise the server behaves afterwards."""
    end: tuple[str, int] = COMPLETED
    """Status of the run and of the command."""
    failed: tuple[str, ...] = ()
    """Codes of the requests that the transcript records as failed."""
    code: str = ""
    """Of the error with which the run ends."""
    says: str = ""
    """In the message of the last failed request, or of the error."""
    requests: int = 1
    """How many requests are made for `work` after the kill."""
    paid: tuple[int, int] | dict[str, tuple[int, int] | None] | None = (0, 0)
    """Tokens beyond those of a provider that behaves, by wire format where they differ; None: the server
    counts none, and more than the length of the request is estimated."""
    output: str | None = None
    """What `work` puts out, where it is not the usual text."""


def once(*answers: Answer, code: str, **more: Any) -> Row:
    """A failure that passes: the request is recorded as failed and made again."""
    return Row(answers=answers, failed=(code,) * len(answers), requests=1 + len(answers), **more)


def out(answer: Answer, code: str, requests: int = 5, **more: Any) -> Row:
    """A failure that stays and is not the step's: the run pauses and continues when the server behaves."""
    codes = (code,) * requests
    return Row(answers=(answer,), always=True, end=PAUSED, failed=codes, code=code, requests=requests, **more)


def refused(answer: Answer, code: str, **more: Any) -> Row:
    """A failure of this request alone: the step fails."""
    return Row(answers=(answer,), always=True, end=FAILED, failed=(code,), code=code, **more)


PARTIAL = {"chat": None, "messages": (10, 2)}
"""What is counted of a response that broke off: Anthropic reports its input at the start, and its output is
at least the length of what arrived."""
ROWS: dict[str, Row] = {
    # Errors with a status
    "500 once": once(Fault("server_error"), code="model.unavailable", says="The server had an error"),
    "500 always": out(Fault("server_error", retry_after_s=0), "model.unavailable", says="tried 5 times"),
    "500 with a body of 3 MB": once(Raw(BIG.encode(), 500, NO_WAIT), code="model.unavailable"),
    "502 as a page, once": once(
        Raw(HTML, 502, {"content-type": "text/html"}), code="model.unavailable", says="status 502, Sign in"
    ),
    "503 with retry-after": once(Fault("overloaded", retry_after_s=0.2), code="model.unavailable"),
    "529 twice": once(*(Fault("overloaded_529", retry_after_s=0),) * 2, code="model.unavailable"),
    "429 with a reset": once(
        Raw(b'{"error": {"message": "Slow down"}}', 429, JSON | {"retry-after": "1"}),
        code="model.rate_limit",
        says="Slow down",
    ),
    "429 with a reset that no calendar has": once(
        Raw(b'{"error": {"message": "Slow down"}}', 429, JSON | {"retry-after": "99999999999999"}),
        code="model.rate_limit",
    ),
    "429 with a reset in the past": once(
        Raw(b'{"error": {"message": "Slow down"}}', 429, JSON | {"retry-after": "-5"}),
        code="model.rate_limit",
    ),
    "408 once": once(
        Raw(b'{"error": {"message": "too slow"}}', 408, JSON | NO_WAIT), code="model.unavailable"
    ),
    "409 once": once(
        Raw(b'{"error": {"message": "conflict"}}', 409, JSON | NO_WAIT), code="model.unavailable"
    ),
    "401": out(Fault("bad_key"), "model.key_refused", 1, says="Incorrect API key"),
    "401 with the key in its text": out(
        Raw(KEY_IN_TEXT, 401, JSON), "model.key_refused", 1, says="[redacted]"
    ),
    "402": out(Fault("unpaid"), "model.quota", 1, says="credit balance"),
    "429 out of quota": out(Fault("quota"), "model.quota", 1, says="exceeded your current quota"),
    "403": out(Fault("forbidden"), "model.key_refused", 1, says="may not use"),
    "404 for the model": refused(Fault("unknown_model"), "model.unknown", says="does not exist"),
    "404 in plain text": refused(
        Raw(b"404 page not found", 404, {"content-type": "text/plain"}),
        "model.unknown",
        says="page not found",
    ),
    "400": refused(Fault("rejected"), "model.rejected", says="Unsupported parameter"),
    "418": refused(Raw(b"I am a teapot", 418, {}), "model.rejected", says="status 418: I am a teapot"),
    "400 of a content filter": refused(Fault("content_filter"), "model.content_filter", says="Flagged"),
    # Responses that are no stream of events
    "a web page": out(
        Raw(HTML, 200, {"content-type": "text/html"}),
        "model.not_an_api",
        1,
        says="HTML page (status 200, Sign in)",
    ),
    "a web page called JSON": out(Raw(HTML), "model.not_an_api", 1, says="HTML page"),
    "a redirect": out(
        Raw(b"", 307, {"location": "http://127.0.0.1:9/login"}), "model.not_an_api", 1, says="redirects to"
    ),
    "one JSON document": out(
        Raw(b'{"choices": []}', 200, {"content-type": "text/plain"}),
        "model.not_an_api",
        1,
        says="one JSON document",
    ),
    "an error with status 200": once(
        Raw(b'{"error": {"message": "backend exploded"}}'), code="model.unavailable", says="backend exploded"
    ),
    "a compressed response": out(
        Raw(gzip.compress(b"data: {}"), 200, EVENTS | {"content-encoding": "gzip"}),
        "model.not_an_api",
        1,
        says="which was not requested",
    ),
    "half a JSON document": once(Raw(b'{"choices": ['), code="model.garbled", says='{"choices": ['),
    "an empty body": once(Raw(b""), code="model.broken_off", says="sent an empty response"),
    "no content": once(Raw(b"", 204, {}), code="model.broken_off", says="sent an empty response"),
    # Streams that break
    "closed before the status": once(Fault("hang_up"), code="model.broken_off", says="closed the connection"),
    "closed after the status": once(Fault("reset", after=0), code="model.broken_off"),
    "closed between events": once(Fault("reset"), code="model.broken_off", paid=PARTIAL),
    "closed within an event": once(Fault("cut"), code="model.broken_off", paid=PARTIAL),
    "a truncated stream": once(
        Fault("truncated", after=4),
        code="model.broken_off",
        says="ended in the middle",
        paid={"chat": None, "messages": (10, 1)},
    ),
    "an event nested too deeply": once(
        Raw(
            b"event: message_start\ndata: " + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n\n",
            200,
            EVENTS,
        ),
        code="model.garbled",
    ),
    "an event that is no JSON": once(Fault("malformed", after=0), code="model.garbled"),
    "an event with a value of a wrong type": once(
        Raw(
            b'event: message_start\ndata: {"type": "message_start", "message": 7, "choices": 7}\n\n',
            200,
            EVENTS,
        ),
        code="model.garbled",
        says="an invalid value",
    ),
    "an error in the stream": once(
        Raw(
            b'event: error\ndata: {"type": "error", "error":'
            b' {"type": "overloaded_error", "message": "Busy"}}\n\n',
            200,
            EVENTS,
        ),
        code="model.unavailable",
        says="Busy",
    ),
    "silence": out(Fault("silent"), "model.timeout", 1, says="sent nothing for 2 s"),
    "silence in the middle": once(
        Fault("stall"), code="model.timeout", says="sent nothing for 2 s", paid=PARTIAL
    ),
    "a slow drip": Row(answers=(Reply(text="slow but sure", pause_s=0.4),), output="slow but sure"),
    # Streams that are whole and odd
    "an empty answer": Row(answers=(Reply(),), requests=2, paid=(10, 5)),
    "only empty answers": Row(
        answers=(Reply(),),
        always=True,
        end=FAILED,
        code="output.invalid",
        says="the answer is empty",
        requests=4,
        paid=(40, 20),
    ),
    "half a surrogate pair": Row(answers=(Reply(text="half \ud83d of it"),), output="half \ufffd of it"),
    "no usage": Row(answers=(Reply(text="WORK done", counted=False),), paid=None),
    "a refusal": refused(
        Reply(text="I cannot help.", finish="content_filter"),
        "model.content_filter",
        says="I cannot help.",
        paid=(10, 5),
    ),
    "the limit of tokens": Row(answers=(Reply(text="half a", finish="length"),), requests=2, paid=(10, 5)),
    "tool arguments that are no JSON": Row(
        answers=(Reply(calls=(Call("read_file", '{"path": '),)),), requests=2, paid=(10, 5)
    ),
    "an unknown tool": Row(answers=(Reply(calls=(Call("launch", {}),)),), requests=2, paid=(10, 5)),
    "two calls with one id": Row(
        answers=(Reply(calls=(Call("list_files", {}, "c"), Call("list_files", {"glob": "*.x"}, "c"))),),
        requests=2,
        paid=(10, 5),
    ),
    "an answer of 3 MB": Row(answers=(Reply(text=BIG),), output=BIG),
    "a prompt that is too long, once": Row(
        answers=(Fault("too_long"),), failed=("model.context_overflow",), requests=3, paid=(10, 5)
    ),
}


def chosen() -> list[Any]:
    pairs = [(name, wire) for name in ROWS for wire in WIRES]
    if EXAMPLES != "all":
        pairs = [pair for pair in pairs if crc32(f"{SEED} {pair}".encode()) % SAMPLE == 0]
    return [pytest.param(name, wire, id=f"{name}-{wire}") for name, wire in pairs]


class Server:
    """The script of one row."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.sent = 0
        self.stage = "killed at work"

    def answer(self, asked: RecordedRequest) -> Answer:
        step = "AFTER" if "AFTER" in asked.prompt else "WORK"
        if step == "AFTER":
            return Fault("silent") if self.stage == "misbehaves" else Reply(text="AFTER done")
        if asked.turns == 0 and self.stage == "killed at work":
            return Reply(calls=(Call("list_files", {}),))
        if self.stage == "killed at work":
            return Fault("silent")
        if self.stage == "misbehaves" and (self.row.always or self.sent < len(self.row.answers)):
            self.sent += 1
            return self.row.answers[min(self.sent, len(self.row.answers)) - 1]
        return Reply(text="WORK done")


def test_the_table_has_at_least_25_behaviours_in_both_formats() -> None:
    assert len(ROWS) >= 25
    assert set(WIRES) < set(MODELS)


@pytest.mark.parametrize(("name", "wire"), chosen())
def test_a_provider_that_misbehaves(project: Project, name: str, wire: str) -> None:
    row = ROWS[name]
    server = Server(row)
    project.file("row.yaml").write_text(RECIPE)
    with Provider(server.answer) as provider:
        project.environment |= provider.environment | {"FANFOLD_SILENCE_S": "2"}
        kill_at(project, provider, "WORK", "run", "row.yaml", "--model", MODELS[wire])
        first = len(provider.asked)
        assert [asked.turns for asked in provider.asked] == [0, 1]

        server.stage = "misbehaves"
        survives = row.end is COMPLETED
        if survives:
            kill_at(project, provider, "AFTER", "resume", "last")
        else:
            ended = project("resume", "last", "--json")
            assert (ended.json["status"], ended.status) == row.end, ended.err
            error = ended.json["error"] or ended.json["steps"]["work"]["error"]
            assert error["code"] == row.code
            assert row.says in error["message"]
            assert "sk-proj" not in ended.out + ended.err
            check_record(project, row, wire, ended.json["usage"], turns=1)
        made = [asked for asked in provider.asked[first:] if "AFTER" not in asked.prompt]
        assert len(made) == row.requests
        if "too long" not in name:  # its conversation begins anew, behind a summary
            assert all(asked.turns >= 1 for asked in made), "a recorded turn was requested again"

        server.stage = "behaves"
        before = len(provider.asked)
        done = project("resume", "last", "--json")
        made = provider.asked[before:]
        if row.end is FAILED:
            assert (done.status, made) == (1, [])
        else:
            assert (done.status, done.json["output"]) == (0, "AFTER done"), done.err
            assert [asked.turns for asked in made] == ([0] if survives else [1, 0])
            assert provider.paid_twice() == []
            if survives:
                check_record(project, row, wire, done.json["usage"], turns=3)
                usual = "WORK done" if row.output is None else row.output
                assert done.json["steps"]["work"]["output"] == usual
        assert project("verify", "--all").status == 0


def kill_at(project: Project, provider: Provider, prompt: str, *command: str) -> None:
    """Run a command; kill it when a request waits that the server leaves without a response."""
    seen = len(provider.asked)
    process = project.start(*command)
    turn = 1 if prompt == "WORK" else 0
    provider.until(lambda one: one.number > seen and prompt in one.prompt and one.turns == turn)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def check_record(project: Project, row: Row, wire: str, usage: dict[str, Any], turns: int) -> None:
    """Transcript and log have every failed request, and what was spent is counted."""
    entries = project("transcript", "last", "work", "--json").json["entries"]
    failed = [entry for entry in entries if entry["kind"] == "failed_request"]
    assert [entry["error"]["code"] for entry in failed] == list(row.failed)
    logged = [
        event["data"]
        for event in map(json.loads, project("logs", "last", "--json").out.splitlines())
        if event["type"] == "session_event"
    ]
    assert [one["code"] for one in logged if one["kind"] == "failed_request"] == list(row.failed)
    if failed:
        assert row.says in failed[-1]["error"]["message"]
        assert "work request failed: " in project("logs", "last").out
    more = row.paid[wire] if isinstance(row.paid, dict) else row.paid
    if more is None:
        assert 100 < usage["input_tokens"] < 5_000
    else:
        assert (usage["input_tokens"], usage["output_tokens"]) == (10 * turns + more[0], 5 * turns + more[1])
