"""A collector for OTLP over HTTP as a process of its own: each span and each point is a line of JSON.

`python -m tests.otlp_collector FILE` prints its address, and a line whenever it appended to FILE.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None


def attributes_of(pairs: Any) -> dict[str, Any]:
    return {pair.key: value_of(pair.value) for pair in pairs}


def spans(body: bytes) -> Iterator[dict[str, Any]]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield {
                    "span": span.name,
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "kind": span.kind,
                    "status": span.status.code,
                    "start": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "attributes": attributes_of(span.attributes),
                    "resource": attributes_of(resource.resource.attributes),
                    "scope": scope.scope.name,
                }


def points(body: bytes) -> Iterator[dict[str, Any]]:
    for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                data: list[Any] = [*metric.histogram.data_points, *metric.sum.data_points]
                for point in data:
                    value = getattr(point, "sum", None)
                    if value is None:
                        value = point.as_double or point.as_int
                    yield {
                        "metric": metric.name,
                        "unit": metric.unit,
                        "value": value,
                        "count": getattr(point, "count", 0),
                        "attributes": attributes_of(point.attributes),
                    }


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        found = spans(body) if self.path == "/v1/traces" else points(body)
        with open(sys.argv[1], "a", encoding="utf-8") as out:
            out.writelines(f"{json.dumps(one)}\n" for one in found)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
        sys.stdout.write("received\n")
        sys.stdout.flush()

    def log_message(self, format: str, *arguments: object) -> None:
        del format, arguments


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
