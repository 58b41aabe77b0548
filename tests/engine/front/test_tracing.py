"""One span for each request, under vLLM's attribute names."""

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from headrace.engine import AsyncLLMEngine, SamplingParams
from headrace.engine.client.host import ThreadHost
from headrace.engine.front.assembly import assemble
from headrace.engine.front.tracing import RequestTracer, otlp_tracer
from headrace.errors import EngineGenerateError
from headrace.testing.fake_core import FakeCore, fake_engine_config
from headrace.tokenization import TokenizationService

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def traced(
    core: FakeCore, tokenization: TokenizationService, exporter: InMemorySpanExporter
) -> AsyncIterator[AsyncLLMEngine]:
    config, host = fake_engine_config(), ThreadHost(build_core=lambda _config: core)
    tracer = RequestTracer(SimpleSpanProcessor(exporter), model_name="fake")
    parts = assemble(config, hosts=[host], tokenization=tokenization, tracer=tracer)
    async with AsyncLLMEngine(config, parts=parts) as engine:
        yield engine
        core.release()


async def span_of(engine: AsyncLLMEngine, exporter: InMemorySpanExporter, **headers: str) -> ReadableSpan:
    params = SamplingParams(max_tokens=4, temperature=0.5, top_p=0.9)
    async for _ in engine.generate("abc", params, "r", trace_headers=headers or None):
        pass
    (span,) = exporter.get_finished_spans()
    return span


async def test_a_request_is_a_span_with_vllms_attributes(
    traced: AsyncLLMEngine, exporter: InMemorySpanExporter
) -> None:
    assert await traced.is_tracing_enabled()
    span = await span_of(traced, exporter)
    attributes = dict(span.attributes or {})
    assert span.name == "llm_request"
    assert attributes.pop("gen_ai.latency.e2e") > 0
    assert attributes.pop("gen_ai.latency.time_to_first_token") > 0
    assert attributes.pop("gen_ai.latency.time_in_model_decode") >= 0
    assert attributes == {
        "gen_ai.response.model": "fake",
        "gen_ai.request.id": "r",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.n": 1,
        "gen_ai.response.finish_reason": "length",
        "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.completion_tokens": 4,
        "gen_ai.usage.cached_tokens": 0,
    }
    assert span.end_time > span.start_time


async def test_the_span_is_a_child_of_the_callers(traced: AsyncLLMEngine, exporter: InMemorySpanExporter) -> None:
    span = await span_of(traced, exporter, Traceparent=f"00-{TRACE_ID}-{PARENT_ID}-01")
    assert format(span.context.trace_id, "032x") == TRACE_ID
    assert span.parent is not None
    assert format(span.parent.span_id, "016x") == PARENT_ID


async def test_a_caller_that_does_not_sample_gets_no_span(
    traced: AsyncLLMEngine, exporter: InMemorySpanExporter
) -> None:
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"}
    async for _ in traced.generate("abc", SamplingParams(max_tokens=1), "r", trace_headers=headers):
        pass
    assert exporter.get_finished_spans() == ()


async def test_a_failed_request_is_a_failed_span(
    traced: AsyncLLMEngine, core: FakeCore, exporter: InMemorySpanExporter
) -> None:
    core.num_blocks = 1
    with pytest.raises(EngineGenerateError):
        async for _ in traced.generate([65] * 4000, SamplingParams(), "r"):
            pass
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR


async def test_an_engine_without_an_endpoint_does_not_trace(engine: AsyncLLMEngine) -> None:
    assert not await engine.is_tracing_enabled()


def test_an_endpoint_makes_a_tracer_that_can_be_closed_without_a_collector() -> None:
    tracer = otlp_tracer("http://127.0.0.1:9/v1/traces", model_name="m")
    tracer.close()
    tracer.close()
