"""Traces and metrics, received by a collector that is a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from fanfold.steps.ids import read_traceparent, session_id, span_id, trace_id
from tests.e2e.world import MODELS, Provider
from tests.levels import needs_bubblewrap
from tests.provider import Call, Reply
from tests.server.conftest import serving
from tests.work import PATIENCE_S

RECIPE = """\
name: team
steps:
  - {id: look, agent: explorer, prompt: "Look at the canary"}
  - {id: count, shell: 'echo "$TRACEPARENT"'}
"""
CALLER = f"00-{'a' * 32}-{'b' * 16}-01"


class Collector:
    def __init__(self, url: str, file: Path, received: IO[str]) -> None:
        self.received = received
        """A line for each request."""
        self.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "TRACEPARENT": ""}
        self._file = file

    def lines(self, kind: str) -> list[dict[str, Any]]:
        text = self._file.read_text() if self._file.exists() else ""
        return [one for one in map(json.loads, text.splitlines()) if kind in one]

    def span(self, name: str) -> dict[str, Any]:
        (found,) = [one for one in self.lines("span") if one["span"] == name]
        return found

    def metric(self, name: str, **attributes: str) -> dict[str, Any]:
        found = [one for one in self.lines("metric") if one["metric"] == name]
        found = [one for one in found if attributes.items() <= one["attributes"].items()]
        assert found, (name, self.lines("metric"))
        return found[-1]


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    file = tmp_path / "received.jsonl"
    command = [sys.executable, "-m", "tests.otlp_collector", str(file)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Collector(process.stdout.readline().strip(), file, process.stdout)
        process.kill()
        process.wait(PATIENCE_S)


def reply(request: Any) -> Reply:
    """First a call of a tool, then an answer."""
    if any(message.role == "tool" for message in request.messages):
        return Reply(text="three owls", input_tokens=40, output_tokens=7)
    return Reply(calls=(Call("list_files", {}),), input_tokens=30, output_tokens=5)


@pytest.mark.full
@needs_bubblewrap
def test_a_run_is_a_trace_of_steps_sessions_requests_and_calls(project, shell, collector):
    (project / "team.yaml").write_text(RECIPE)
    with Provider(reply) as provider:
        given = {**provider.environment, **collector.environment, "FANFOLD_MODEL": MODELS["chat"]}
        done = shell("run", "team.yaml", "--yes", "--json", **given)
        sent = {one.traceparent for one in provider.asked}
    assert done.status == 0, done.err
    run = done.json()["run_id"]
    top, look, count = (collector.span(name) for name in ("run team", "step look", "step count"))
    session = collector.span("invoke_agent explorer")
    first, second = sorted(
        (one for one in collector.lines("span") if one["span"].startswith("chat ")),
        key=lambda one: one["end"],
    )
    tool = collector.span("execute_tool list_files")

    everything = collector.lines("span")
    assert {one["trace"] for one in everything} == {trace_id(run)}
    assert {one["resource"]["service.name"] for one in everything} == {"fanfold"}
    assert (top["parent"], top["id"]) == ("", span_id("run", run))
    assert look["parent"] == count["parent"] == top["id"]
    assert session["parent"] == look["id"] == span_id("step", session_id(run, "look", 1))
    assert first["parent"] == second["parent"] == tool["parent"] == session["id"]
    assert all(one["start"] <= one["end"] for one in everything)
    assert top["start"] <= look["start"] <= first["end"] <= second["end"] <= look["end"] <= top["end"]

    model = MODELS["chat"].rpartition(":")[2]
    assert top["attributes"] | {"fanfold.cost.usd": 0} == {
        "fanfold.run.id": run,
        "fanfold.recipe": "team",
        "fanfold.run.status": "completed",
        "fanfold.run.agents": 1,
        "gen_ai.usage.input_tokens": 70,
        "gen_ai.usage.output_tokens": 12,
        "fanfold.cost.usd": 0,
    }
    assert count["attributes"] == {
        "fanfold.run.id": run,
        "fanfold.step.path": "count",
        "fanfold.step.type": "command",
        "fanfold.step.status": "completed",
        "fanfold.step.attempt": 1,
    }
    assert session["attributes"]["gen_ai.operation.name"] == "invoke_agent"
    assert session["attributes"]["gen_ai.agent.name"] == "explorer"
    assert session["attributes"]["gen_ai.conversation.id"] == session_id(run, "look", 1)
    assert first["span"] == f"chat {model}"
    assert first["kind"] == 3  # a client
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 5,
    }
    assert wanted.items() <= first["attributes"].items()
    assert tool["attributes"]["gen_ai.tool.name"] == "list_files"
    assert tool["attributes"]["gen_ai.tool.call.id"]
    assert "canary" not in json.dumps(everything)

    assert done.json()["steps"]["count"]["output"].strip() == f"00-{trace_id(run)}-{count['id']}-01"
    assert sent == {f"00-{trace_id(run)}-{look['id']}-01"}

    tokens = collector.metric("gen_ai.client.token.usage", **{"gen_ai.token.type": "input"})
    assert (tokens["value"], tokens["count"], tokens["unit"]) == (70, 2, "{token}")
    assert collector.metric("gen_ai.client.operation.duration")["count"] == 2
    assert collector.metric("fanfold.step.duration", **{"fanfold.step.type": "command"})["count"] == 1
    assert collector.metric("fanfold.run.duration")["attributes"]["fanfold.run.status"] == "completed"
    assert collector.metric("fanfold.steps.running")["value"] == 0


@pytest.mark.full
def test_prompts_are_exported_only_on_request_and_without_secrets(project, shell, collector):
    (project / "one.yaml").write_text(
        "name: one\nsteps: [{id: a, agent: explorer, prompt: 'Say sk-ant-0canary0'}]\n"
    )
    with Provider(lambda _: Reply(text="it is canary-value-of-a-secret")) as provider:
        given = {
            **provider.environment,
            **collector.environment,
            "FANFOLD_MODEL": MODELS["chat"],
            "MY_SECRET_TOKEN": "canary-value-of-a-secret",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
        }
        assert shell("run", "one.yaml", **given).status == 0
    (request,) = [one for one in collector.lines("span") if one["span"].startswith("chat ")]
    assert "it is " in request["attributes"]["gen_ai.output.messages"]
    assert "Say " in request["attributes"]["gen_ai.input.messages"]
    assert "canary-value" not in json.dumps(request)


@pytest.mark.full
def test_a_run_belongs_to_the_trace_of_its_caller_also_after_a_resume(project, shell, collector):
    (project / "asks.yaml").write_text(
        "name: asks\nsteps:\n  - {id: ok, approve: Good?}\n  - {id: end, set: {x: 1}, depends_on: [ok]}\n"
    )
    run = shell("run", "asks.yaml", "--json", **{**collector.environment, "TRACEPARENT": CALLER}).json()[
        "run_id"
    ]
    other = {**collector.environment, "TRACEPARENT": f"00-{'c' * 32}-{'d' * 16}-01"}
    shell("approve", run, "ok", **other)
    assert shell("resume", run, **other).status == 0
    given = read_traceparent(CALLER)
    assert given is not None
    top, step = collector.span("run asks"), collector.span("step end")
    assert (top["trace"], top["parent"]) == (given.trace, given.span)
    assert (step["trace"], step["parent"]) == (given.trace, top["id"])


@pytest.mark.full
def test_the_http_api_takes_the_trace_of_its_caller(project, collector, tmp_path, monkeypatch):
    (project / ".fanfold/workflows").mkdir(parents=True)
    (project / ".fanfold/workflows/sets.yaml").write_text("name: sets\nsteps: [{id: a, set: {x: 1}}]\n")
    for name, value in collector.environment.items():
        monkeypatch.setenv(name, value)
    with serving(project, tmp_path / "home") as serve:
        server = serve()
        reply = server.client.post("/api/runs", json={"recipe": "sets"}, headers={"traceparent": CALLER})
        assert reply.status_code == 201, reply.text
        run = reply.json()["run_id"]
        with server.client.stream("GET", f"/api/runs/{run}/stream") as stream:
            assert any("event: end" in line for line in stream.iter_lines())
        server.stop()
    while not collector.lines("span"):  # the process of the run sends when it ends
        assert collector.received.readline()
    assert collector.span("run sets")["trace"] == "a" * 32


@pytest.mark.full
def test_a_failed_step_is_an_error_with_its_code(project, shell, collector):
    (project / "one.yaml").write_text("name: one\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project / "bad.yaml").write_text("default: {fail: {class: agent, message: broken}}\n")
    assert shell("run", "one.yaml", "--script", "bad.yaml", **collector.environment).status == 1
    step = collector.span("step a")
    assert (step["status"], step["attributes"]["fanfold.step.status"]) == (2, "failed")
    assert step["attributes"]["error.type"]
    assert collector.span("run one")["status"] == 2


def test_nothing_is_imported_or_observed_unless_the_environment_asks(project, fanfold, monkeypatch):
    from fanfold.api import ownership

    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    (project / "one.yaml").write_text("name: one\nsteps: [{id: a, set: {x: 1}}]\n")
    seen: list[object] = []

    def observed(*given: Any) -> Any:
        seen.append(observers_of(*given))
        return seen[-1]

    observers_of = ownership.observers_of
    monkeypatch.setattr(ownership, "observers_of", observed)
    assert fanfold("run", "one.yaml").status == 0
    assert seen == [[]]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert fanfold("run", "one.yaml").status == 0
    assert seen == [[], []]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "set it to http/protobuf"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json", "set it to http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317", "http://127.0.0.1:4318"),
    ],
)
def test_an_export_that_cannot_work_is_reported_by_doctor_and_not_tried(
    project, fanfold, monkeypatch, name, value, hint
):
    (project / "one.yaml").write_text("name: one\nsteps: [{id: a, set: {x: 1}}]\n")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    [found] = [one for one in fanfold("doctor", "--json").json()["checks"] if one["name"] == "otel"]
    assert found["level"] == "warning"
    assert name in found["message"]
    assert hint in found["hint"]
    assert fanfold("run", "one.yaml", "--quiet").err == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-x",
        f"00-{'0' * 32}-{'b' * 16}-01",
        f"ff-{'a' * 32}-{'b' * 16}-01",
        f"00-{'A' * 32}-{'b' * 16}-01",
    ],
)
def test_an_invalid_trace_context_is_ignored(text):
    assert read_traceparent(text) is None
