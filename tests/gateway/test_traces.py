"""Traces from the client's header through the gateway to the engine's, and the access log."""

import asyncio
import json
import logging
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headrace.errors import SettingsError
from headrace.gateway.settings import GatewaySettings
from headrace.gateway.telemetry import access_log
from headrace.gateway.telemetry.traces import RequestTracer, tracer_of
from headrace.gateway.telemetry.trail import UNOBSERVED, Observation
from headrace.log import _JsonFormatter
from headrace.testing.fake_upstream import FakeUpstream, answers, dies_at_once, hangs, streams
from tests.gateway.support import chat_body, chat_request, exchange, raw_client, running_gateway, settled

pytestmark = pytest.mark.integration

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\ntracestate: vendor=1\r\n"
UNSAMPLED = f"traceparent: 00-{TRACE}-00f067aa0ba902b7-00\r\n"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> RequestTracer:
    return RequestTracer(SimpleSpanProcessor(spans))


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def span_id(span: ReadableSpan) -> str:
    return f"{span.get_span_context().span_id:016x}"


async def test_the_clients_trace_goes_through_the_gateway_to_the_engine(
    spans: InMemorySpanExporter, tracer: RequestTracer
) -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream, tracer=tracer) as gateway:
        answer = await exchange(gateway, chat_request(extra=PARENT))

    found = by_name(spans)
    root, sent = found["POST /v1/chat/completions"], found["upstream"]
    assert list(found) == ["tokenize", "admit", "choose", "upstream", "POST /v1/chat/completions"]
    assert {f"{span.get_span_context().trace_id:032x}" for span in found.values()} == {TRACE}
    assert f"{root.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert {span.parent.span_id for name, span in found.items() if span is not root} == {root.context.span_id}
    assert upstream.received[0].header("traceparent") == f"00-{TRACE}-{span_id(sent)}-01"
    assert upstream.received[0].header("tracestate") == "vendor=1"
    assert (root.kind, sent.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert root.attributes["http.response.status_code"] == 200
    assert root.attributes["headrace.request_id"] == answer.header("x-request-id")
    assert sent.attributes["gen_ai.usage.output_tokens"] == 2
    assert sent.attributes["server.address"] == upstream.url
    assert found["choose"].attributes["headrace.policy"] == "prefix"


async def test_steps_follow_each_other_within_their_request(spans: InMemorySpanExporter, tracer: RequestTracer) -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream, tracer=tracer) as gateway:
        await exchange(gateway, chat_request())

    *steps, root = spans.get_finished_spans()
    assert root.parent is None
    times = [at for span in steps for at in (span.start_time, span.end_time)]
    assert times == sorted(times)
    assert root.start_time <= times[0]
    assert times[-1] <= root.end_time


async def test_each_attempt_is_a_span_and_what_failed_says_so(
    spans: InMemorySpanExporter, tracer: RequestTracer
) -> None:
    async with (
        FakeUpstream(behaviour=dies_at_once) as one,
        FakeUpstream(behaviour=dies_at_once) as two,
        running_gateway(one, two, tracer=tracer, max_attempts=2) as gateway,
    ):
        answer = await exchange(gateway, chat_request(extra=PARENT))

    sent = [span for span in spans.get_finished_spans() if span.name == "upstream"]
    root = by_name(spans)["POST /v1/chat/completions"]
    assert {span.attributes["server.address"] for span in sent} == {one.url, two.url}
    assert [span.status.status_code for span in (*sent, root)] == [StatusCode.ERROR] * 3
    assert root.attributes["http.response.status_code"] == answer.status >= 500


async def test_a_client_that_does_not_want_a_trace_gets_none_and_the_engine_is_told(
    spans: InMemorySpanExporter, tracer: RequestTracer
) -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream, tracer=tracer) as gateway:
        await exchange(gateway, chat_request(extra=UNSAMPLED))

    parent = upstream.received[0].header("traceparent") or ""
    assert spans.get_finished_spans() == ()
    assert parent.startswith(f"00-{TRACE}-")
    assert parent.endswith("-00")


async def test_a_share_of_none_traces_only_whom_the_client_sampled(spans: InMemorySpanExporter) -> None:
    tracer = RequestTracer(SimpleSpanProcessor(spans), share=0.0)
    async with FakeUpstream() as upstream, running_gateway(upstream, tracer=tracer) as gateway:
        await exchange(gateway, chat_request())
        assert spans.get_finished_spans() == ()
        await exchange(gateway, chat_request(extra=PARENT))
    assert "upstream" in by_name(spans)


async def test_a_client_that_leaves_ends_its_spans(spans: InMemorySpanExporter, tracer: RequestTracer) -> None:
    async with FakeUpstream(behaviour=hangs) as upstream, running_gateway(upstream, tracer=tracer) as gateway:
        async with raw_client(gateway) as client:
            await client.send(chat_request())
            async with asyncio.timeout(20):
                while not upstream.received:
                    await asyncio.sleep(0.01)
        await settled(gateway)

    assert by_name(spans)["POST /v1/chat/completions"].attributes["headrace.client_left"] is True
    assert "upstream" in by_name(spans)


async def test_health_checks_make_no_spans(spans: InMemorySpanExporter, tracer: RequestTracer) -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream, tracer=tracer) as gateway:
        await exchange(gateway, b"GET /health HTTP/1.1\r\nHost: g\r\n\r\n")

    assert spans.get_finished_spans() == ()


async def test_a_path_that_there_is_not_names_no_span(spans: InMemorySpanExporter, tracer: RequestTracer) -> None:
    path = "/scan-" + "x" * 1000
    async with FakeUpstream() as upstream, running_gateway(upstream, tracer=tracer) as gateway:
        await exchange(gateway, f"GET {path} HTTP/1.1\r\nHost: g\r\n\r\n".encode())

    (span,) = spans.get_finished_spans()
    assert (span.name, span.attributes["url.path"]) == ("GET", path[:256])


async def test_without_traces_the_clients_header_goes_on_as_it_came() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        await exchange(gateway, chat_request(extra=PARENT))

    assert upstream.received[0].header("traceparent") == f"00-{TRACE}-00f067aa0ba902b7-01"


def test_nothing_is_remembered_where_nobody_writes_it_down() -> None:
    assert Observation().begin(None, request_id=b"x") is UNOBSERVED  # type: ignore[arg-type] # not looked at


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    settings = GatewaySettings(endpoint=("http://127.0.0.1:1",), otlp_traces_endpoint="http://127.0.0.1:4318/v1/traces")
    with pytest.raises(SettingsError, match=r"headrace\[otel\]"):
        tracer_of(settings)


# -- the access log


class Lines(logging.Handler):
    """What was logged, as the JSON that machines get."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(_JsonFormatter().format(record)))


@pytest.fixture
def logged() -> Iterator[Lines]:
    logger, lines = logging.getLogger(access_log.__name__), Lines()
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(lines)
    logger.setLevel(level)


async def test_a_request_becomes_one_line_without_its_prompt(logged: Lines) -> None:
    body = chat_body(messages=[{"role": "user", "content": "my secret plan"}])
    extra = "x-request-id: r-1\r\nauthorization: Bearer sk-hidden\r\n"
    async with FakeUpstream() as upstream, running_gateway(upstream, access_log=True) as gateway:
        await exchange(gateway, chat_request(body, extra=extra))
        await settled(gateway)

    (line,) = logged.lines
    assert line["message"] == "POST /v1/chat/completions"
    assert (line["request_id"], line["status"], line["model"]) == ("r-1", 200, "demo")
    assert (line["prompt_tokens"], line["completion_tokens"], line["endpoint"]) == (3, 2, upstream.url)
    assert line["duration_ms"] >= line["overhead_ms"] > 0
    assert "secret" not in json.dumps(line)
    assert "sk-hidden" not in json.dumps(line)


async def test_what_is_refused_or_fails_is_logged_with_its_status(logged: Lines) -> None:
    async with FakeUpstream(behaviour=answers(500)) as upstream, running_gateway(upstream, access_log=True) as gateway:
        await exchange(gateway, chat_request(chat_body(model="nobody")))
        await exchange(gateway, chat_request())
        await exchange(gateway, b"GET /v1/models HTTP/1.1\r\nHost: g\r\n\r\n")
        await settled(gateway)

    assert [line["status"] for line in logged.lines] == [404, 500]
    assert "endpoint" not in logged.lines[0]


async def test_a_client_that_leaves_is_logged_without_a_status(logged: Lines) -> None:
    gate = asyncio.Semaphore(1)
    async with (
        FakeUpstream(behaviour=streams(["a", "b"], gate=gate)) as upstream,
        running_gateway(upstream, access_log=True) as gateway,
    ):
        async with raw_client(gateway) as client:
            await client.send(chat_request(chat_body(stream=True)))
            await client.read_head()
        await settled(gateway)

    (line,) = logged.lines
    assert (line["status"], line["stream"]) == (None, True)


async def test_a_path_and_its_query_cannot_forge_or_tell_anything(logged: Lines) -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream, access_log=True) as gateway:
        await exchange(gateway, b"GET /x\xff\xfe?api_key=sk-1 HTTP/1.1\r\nHost: g\r\n\r\n")
        await settled(gateway)

    assert "sk-1" not in json.dumps(logged.lines)
    assert all(str(line["message"]).isascii() for line in logged.lines)
