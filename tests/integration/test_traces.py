"""One trace over three processes' worth of parts: the client's, the gateway's and the engine's spans, as a collector of
OTLP over HTTP gets them."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from headrace.cli.fleet import Fleet
from tests.integration.service import DEMO_MODEL, START_TIMEOUT_S

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Collector:
    """Takes spans, and tells when there are enough."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        with self._changed:
            for of_resource in request.resource_spans:
                (service,) = [
                    one.value.string_value for one in of_resource.resource.attributes if one.key == "service.name"
                ]
                self.spans += [(service, span) for scope in of_resource.scope_spans for span in scope.spans]
            self._changed.notify_all()

    def wait_for(self, *names: str) -> dict[str, tuple[str, Span]]:
        with self._changed:
            assert self._changed.wait_for(lambda: set(names) <= {span.name for _, span in self.spans}, timeout=30)
            return {span.name: (service, span) for service, span in self.spans}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.close()


def test_a_trace_goes_from_the_client_through_the_gateway_into_the_engine(collector: Collector) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="needs headrace[otel]")
    traced = ["--otlp-traces-endpoint", collector.url]
    with Fleet() as fleet:
        serve = ["serve", str(DEMO_MODEL), "--host", "127.0.0.1", "--port", "0", "--cpu-threads", "1", *traced]
        (engine,) = fleet.wait_ready([fleet.start("engine", serve)], timeout_s=START_TIMEOUT_S, on_ready=lambda _: None)
        route = ["gateway", "--port", "0", "--admin-port", "none", "--endpoint", engine.url, *traced]
        (gateway,) = fleet.wait_ready(
            [fleet.start("gateway", route)], timeout_s=START_TIMEOUT_S, on_ready=lambda _: None
        )
        answer = httpx.post(
            f"{gateway.url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
            headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
            timeout=30,
        )
        found = collector.wait_for("llm_request", "upstream", "POST /v1/chat/completions")

    assert answer.status_code == 200
    (root_of, root), (sent_of, sent), (engine_of, worked) = (
        found[name] for name in ("POST /v1/chat/completions", "upstream", "llm_request")
    )
    assert (root_of, sent_of, engine_of) == ("headrace-gateway", "headrace-gateway", "headrace")
    assert {span.trace_id.hex() for span in (root, sent, worked)} == {TRACE}
    assert root.parent_span_id.hex() == "00f067aa0ba902b7"
    assert (sent.parent_span_id, worked.parent_span_id) == (root.span_id, sent.span_id)
