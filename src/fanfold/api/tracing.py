"""Traces and metrics over OTLP, by the GenAI conventions of OpenTelemetry. Off unless `OTEL_*` is set.

Rules
* Everything is derived from the log, after the commit. A run without telemetry imports and calls nothing.
* Spans: run → step (one per attempt) → agent session → model request and tool call. Their ids are derived
  from the ids of run and session, so processes that resume a run continue its trace.
* A span is exported when it ends. Telemetry is best effort: a killed process loses what it had not sent.
* The trace of the caller (`TRACEPARENT`, or the header `traceparent` of the HTTP API) is fixed with the run.
  Programs, functions and model requests get the span of their step.
* Prompts, responses, tool arguments and results are exported only if the user asks for them
  (`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true`). They come from the log, without secrets.
* Only the environment decides. A file of the project has no influence.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fanfold.agents import entries
from fanfold.kernel import events
from fanfold.kernel.state import COMPLETED, Node, Run
from fanfold.sessions.log import read_recorded
from fanfold.steps.ids import read_traceparent, session_id, span_id, trace_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from fanfold.api.project import Project
    from fanfold.engine.run_tree import RunTree

SWITCHES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
PROTOCOL = "http/protobuf"
PROTOCOLS = tuple(f"OTEL_EXPORTER_OTLP_{part}PROTOCOL" for part in ("", "TRACES_", "METRICS_"))
EXPORT_S = 3.0
"""How long a process waits for a collector at its end, unless the environment sets another time."""
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
MAX_CONTENT_CHARS = 16_000
MS = 1_000_000
"""Nanoseconds in a millisecond."""
_ENDED = frozenset(("completed", "failed", "timed_out", "cancelled", "finished"))
_TOKENS = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)
_SECONDS = (0.01, 0.04, 0.16, 0.64, 2.56, 10.24, 40.96, 163.84, 655.36, 2_621.44, 10_485.76)

Attributes = dict[str, str | bool | int | float]


def is_on(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the user's environment asks for telemetry."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return any(environment.get(name) for name in SWITCHES)


def why_unusable(environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """Why telemetry that is asked for cannot be sent, and what helps; None if it can, or if it is off.

    >>> why_unusable({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"})[0]
    'OTEL_EXPORTER_OTLP_ENDPOINT is no address of HTTP'
    """
    if not is_on(environment):
        return None
    for name in SWITCHES:
        if environment.get(name, "http://").partition("://")[0].lower() not in ("http", "https"):
            return f"{name} is no address of HTTP", "for example http://127.0.0.1:4318"
    for name in PROTOCOLS:
        if environment.get(name) not in (None, "", PROTOCOL):
            return f"{name} is {environment[name]}, which Fanfold does not speak", f"set it to {PROTOCOL}"
    try:
        import_module("opentelemetry.exporter.otlp.proto.http")
        import_module("opentelemetry.sdk.trace")
    except ImportError as error:
        return f"OTEL_* is set, but {error.name} is not installed", "pip install 'fanfold[otel]'"
    return None


class Exporters(NamedTuple):
    """The exporters of one process. None: the environment disables that signal."""

    resource: Any
    scope: Any
    spans: BatchSpanProcessor | None
    instruments: dict[str, Any]


@cache
def exporters() -> Exporters | None:
    """The exporters of this process, made once; None if the library is not installed."""
    if why_unusable():
        return None
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    own_version = version("fanfold")
    wait_s = None if os.environ.get("OTEL_EXPORTER_OTLP_TIMEOUT") else EXPORT_S
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # one line for a collector that is away
    named = os.environ.get("OTEL_SERVICE_NAME") or "fanfold"
    resource = Resource.create({"service.name": named, "service.version": own_version})
    spans = None
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "none":
        spans = BatchSpanProcessor(OTLPSpanExporter(timeout=wait_s))
        atexit.register(spans.shutdown)
    instruments: dict[str, Any] = {}
    if os.environ.get("OTEL_METRICS_EXPORTER", "otlp") != "none":
        provider = MeterProvider(
            [PeriodicExportingMetricReader(OTLPMetricExporter(timeout=wait_s))], resource
        )
        instruments = _instruments(provider.get_meter("fanfold", own_version))
    return Exporters(resource, InstrumentationScope("fanfold", own_version), spans, instruments)


def _instruments(meter: Any) -> dict[str, Any]:
    def histogram(name: str, unit: str, description: str, bounds: Sequence[float]) -> Any:
        return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=bounds)

    return {
        "tokens": histogram("gen_ai.client.token.usage", "{token}", "Tokens of model requests", _TOKENS),
        "request": histogram("gen_ai.client.operation.duration", "s", "Model requests", _SECONDS),
        "run": histogram("fanfold.run.duration", "s", "Runs, from start to end", _SECONDS),
        "step": histogram("fanfold.step.duration", "s", "Attempts of steps", _SECONDS),
        "queue": histogram("fanfold.step.queue.duration", "s", "Steps, from ready to started", _SECONDS),
        "cost": meter.create_counter("fanfold.cost", "{USD}", "What model requests cost"),
        "live": meter.create_up_down_counter("fanfold.steps.running", "{step}", "Steps that run now"),
        "queued": meter.create_up_down_counter("fanfold.steps.queued", "{step}", "Steps that wait to start"),
    }


class RunTracer:
    """Exports spans and metrics of one run that this process drives."""

    def __init__(self, project: Project, tree: RunTree, exporters: Exporters) -> None:
        self._store = project.store
        self._tree = tree
        self._out = exporters
        given = read_traceparent(tree.frozen().traceparent)
        self._trace = int(given.trace if given else trace_id(tree.root.id), 16)
        self._above = int(given.span, 16) if given else 0
        self._sampled = given is None or given.sampled
        self._content = os.environ.get(CONTENT, "").lower() == "true"
        self._queued: dict[tuple[str, str], int] = {}
        self._live: set[tuple[str, str]] = set()

    def committed(self, written: list[events.Envelope]) -> None:
        for envelope in written:
            data = envelope.data
            if isinstance(data, events.StepEvent | events.SubagentEvent):
                if not data.late:
                    self._step(envelope, data)
            elif isinstance(data, events.Payment):
                if data.usage.micro_usd:
                    provider, _, model = data.model.rpartition(":")
                    facts = {"gen_ai.provider.name": provider or "unknown", "gen_ai.request.model": model}
                    self._add("cost", data.usage.micro_usd / 1_000_000, facts)
            elif isinstance(data, events.RunFinished):
                run = self._tree.state.runs[envelope.run_id]
                started = self._tree.memory.run_started.get(run.id, envelope.at)
                usage, agents = self._tree.spent(run)
                attributes: Attributes = {
                    "fanfold.run.id": run.id,
                    "fanfold.recipe": run.plan.name,
                    "fanfold.run.status": data.status,
                    "fanfold.run.agents": agents,
                    **_usage(usage),
                }
                error = None if data.error is None else (data.error.code, data.error.message)
                good = data.status == COMPLETED
                above = self._above if run.call is None else self._step_span(run.call)
                own = int(span_id("run", run.id), 16)
                failed = None if good else error or (data.status, "")
                self._span(f"run {run.plan.name}", own, above, (started, envelope.at), attributes, failed)
                measured = self._recipe(run) | {"fanfold.run.status": data.status}
                self._record("run", (envelope.at - started) / 1_000, measured)

    def close(self) -> None:
        """Gauges no longer count this run here. What is not sent yet is sent by the exporters' threads."""
        for key in self._live:
            self._add("live", -1, self._recipe(self._tree.state.runs[key[0]]))
        for run, _ in self._queued:
            self._add("queued", -1, self._recipe(self._tree.state.runs[run]))

    # Runs and steps

    def _step_span(self, node: Node, attempt: int = 0) -> int:
        return int(span_id("step", session_id(node.run.id, node.path, attempt or node.attempt)), 16)

    def _step(self, envelope: events.Envelope, data: events.StepEvent | events.SubagentEvent) -> None:
        run = self._tree.state.runs.get(envelope.run_id)
        node = None if run is None else run.nodes.get(data.step)
        if run is None or node is None:
            return
        key, status = (run.id, data.step), "completed" if data.status == "finished" else data.status
        recipe = self._recipe(run)
        if status == "queued":
            self._queued[key] = envelope.at
            self._add("queued", 1, recipe)
        elif status == "started":
            self._left_queue(key, envelope.at, recipe)
            if key not in self._live:
                self._live.add(key)
                self._add("live", 1, recipe)
        else:
            if status in _ENDED or status == "interrupted":
                self._left_queue(key, None, recipe)
                if key in self._live:
                    self._live.discard(key)
                    self._add("live", -1, recipe)
            if status in _ENDED:
                self._ended(node, envelope, data, status)

    def _left_queue(self, key: tuple[str, str], at: int | None, recipe: Attributes) -> None:
        since = self._queued.pop(key, None)
        if since is None:
            return
        self._add("queued", -1, recipe)
        if at is not None:
            self._record("queue", (at - since) / 1_000, recipe)

    def _ended(
        self,
        node: Node,
        envelope: events.Envelope,
        data: events.StepEvent | events.SubagentEvent,
        status: str,
    ) -> None:
        attempt = data.attempt or node.attempt or 1
        started = node.started_at or envelope.at
        role = node.step.traits.role
        attributes: Attributes = {
            "fanfold.run.id": node.run.id,
            "fanfold.step.path": node.run.tree_path(node.path),
            "fanfold.step.type": node.step.type,
            "fanfold.step.status": status,
            "fanfold.step.attempt": attempt,
        }
        if isinstance(data, events.StepEvent) and data.cached:
            attributes["fanfold.step.cached"] = True
        failed = None if status == COMPLETED else (status, "")
        if status != COMPLETED and data.error is not None:
            failed = (data.error.code, data.error.message)
        own = self._step_span(node, attempt)
        above = int(span_id("run", node.run.id), 16)
        if node.parent is not None and node.parent.path:
            above = self._step_span(node.parent, node.parent.attempt)
        span = (started, envelope.at)
        self._span(f"step {node.run.tree_path(node.path)}", own, above, span, attributes, failed)
        measured = self._recipe(node.run)
        measured |= {"fanfold.step.type": node.step.type, "fanfold.step.status": status}
        self._record("step", (envelope.at - started) / 1_000, measured)
        if role is not None:
            session = session_id(node.run.id, node.path, attempt)
            self._session(session, role, own, span, data.usage, failed)

    # Sessions of agents

    def _session(
        self,
        session: str,
        role: str,
        above: int,
        span: tuple[int, int],
        usage: events.Usage | None,
        failed: tuple[str, str] | None,
    ) -> None:
        recorded = [(one.at, entry) for one, entry in read_recorded(self._store, session)]
        if not recorded:
            return  # it never started, or its output was reused
        own = int(span_id("session", session), 16)
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": role,
            "gen_ai.conversation.id": session,
            **({} if usage is None else _usage(usage)),
        }
        program = next((one for _, one in recorded if isinstance(one, entries.AgentBegin)), None)
        if program is not None:
            attributes["fanfold.agent.program"] = program.program
            attributes |= {"fanfold.agent.version": program.version} if program.version else {}
        self._span(f"invoke_agent {role}", own, above, span, attributes, failed)
        for number, (name, client, times, facts, error) in enumerate(self._activities(recorded)):
            self._span(name, int(span_id(session, str(number)), 16), own, times, facts, error, client=client)

    def _activities(
        self, recorded: Sequence[tuple[int, entries.Entry]]
    ) -> Iterator[tuple[str, bool, tuple[int, int], Attributes, tuple[str, str] | None]]:
        """The model requests and tool calls of a session, in order: name, kind, times, attributes, error."""
        before = recorded[0][0]
        calls: dict[str, tuple[int, object]] = {}
        asked: str = ""
        for at, entry in recorded:
            if isinstance(entry, entries.UserInput):
                asked = entry.text
            elif isinstance(entry, entries.Response | entries.Compaction | entries.FailedRequest):
                if entry.model:
                    yield self._request(entry, (before, at), asked)
                if isinstance(entry, entries.Response):
                    calls |= {one.id: (at, one.args) for one in entry.tool_calls}
            elif isinstance(entry, entries.ToolCall):
                calls[entry.id] = (at, entry.args)
            elif isinstance(entry, entries.ToolResult):
                yield self._tool(entry, *calls.get(entry.id, (before, None)), at)
            before = at

    def _request(
        self,
        entry: entries.Response | entries.Compaction | entries.FailedRequest,
        times: tuple[int, int],
        asked: str,
    ) -> tuple[str, bool, tuple[int, int], Attributes, tuple[str, str] | None]:
        provider, _, model = entry.model.rpartition(":")
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider or "unknown",
            "gen_ai.request.model": model,
            **({} if entry.usage is None else _usage(entry.usage)),
        }
        error = (
            (entry.code or entry.kind, entry.message) if isinstance(entry, entries.FailedRequest) else None
        )
        if self._content and not isinstance(entry, entries.FailedRequest):
            attributes["gen_ai.input.messages"] = _messages("user", asked)
            attributes["gen_ai.output.messages"] = _messages("assistant", entry.text)
        measured = {name: attributes[name] for name in _MEASURED}
        measured |= {} if error is None else {"error.type": error[0]}
        self._record("request", (times[1] - times[0]) / 1_000, measured)
        if entry.usage is not None:
            self._record("tokens", entry.usage.input_tokens, measured | {"gen_ai.token.type": "input"})
            self._record("tokens", entry.usage.output_tokens, measured | {"gen_ai.token.type": "output"})
        return f"chat {model}", True, times, attributes, error

    def _tool(
        self, entry: entries.ToolResult, started: int, args: object, at: int
    ) -> tuple[str, bool, tuple[int, int], Attributes, tuple[str, str] | None]:
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": entry.tool,
            "gen_ai.tool.call.id": entry.id,
        }
        if self._content:
            attributes["gen_ai.tool.call.arguments"] = _json(args)
            attributes["gen_ai.tool.call.result"] = _json(entry.result)
        error = None if entry.error is None else (entry.error.code, entry.error.message)
        return f"execute_tool {entry.tool}", False, (started, at), attributes, error

    # Sending

    def _span(
        self,
        name: str,
        own: int,
        above: int,
        times: tuple[int, int],
        attributes: Attributes,
        failed: tuple[str, str] | None,
        *,
        client: bool = False,
    ) -> None:
        if self._out.spans is None:
            return
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        flags = TraceFlags(TraceFlags.SAMPLED if self._sampled else TraceFlags.DEFAULT)
        status = Status(StatusCode.UNSET)
        if failed is not None:
            attributes = attributes | {"error.type": failed[0]}
            status = Status(StatusCode.ERROR, failed[1][:400] or failed[0])
        self._out.spans.on_end(
            ReadableSpan(
                name,
                SpanContext(self._trace, own, False, flags),
                SpanContext(self._trace, above, True, flags) if above else None,
                self._out.resource,
                attributes,
                kind=SpanKind.CLIENT if client else SpanKind.INTERNAL,
                status=status,
                start_time=times[0] * MS,
                end_time=max(times) * MS,
                instrumentation_scope=self._out.scope,
            )
        )

    def _record(self, name: str, value: float, attributes: Mapping[str, object]) -> None:
        if self._out.instruments:
            self._out.instruments[name].record(max(0, value), dict(attributes))

    def _add(self, name: str, value: float, attributes: Mapping[str, object]) -> None:
        if self._out.instruments:
            self._out.instruments[name].add(value, dict(attributes))

    def _recipe(self, run: Run) -> Attributes:
        return {"fanfold.recipe": run.plan.name}


_MEASURED = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")


def _usage(usage: events.Usage) -> Attributes:
    found: Attributes = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if usage.cached_tokens:
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if usage.micro_usd is not None:
        found["fanfold.cost.usd"] = usage.micro_usd / 1_000_000
    return found


def _messages(role: str, text: str) -> str:
    return _json([{"role": role, "parts": [{"type": "text", "content": text[:MAX_CONTENT_CHARS]}]}])


def _json(value: object) -> str:
    return "" if value is msgspec.UNSET else msgspec.json.encode(value).decode()[:MAX_CONTENT_CHARS]
