"""One OpenTelemetry span for each request, under vLLM's attribute names. The only file that imports opentelemetry.

Spans are exported by a thread of the library's own; what cannot be exported in time is dropped there, not waited for.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.engine.front.step_stats import FinishedRequest
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

_NANOSECONDS = 1_000_000_000


class RequestTracer:
    """Records requests when they have ended. `close` may block for a moment: call it in a thread."""

    def __init__(self, processor: "SpanProcessor", *, model_name: str) -> None:
        """`processor` gets the spans, and is shut down with the tracer."""
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._model_name = model_name
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "headrace"}), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("headrace.engine")
        self._propagator = TraceContextTextMapPropagator()

    def __repr__(self) -> str:
        return f"<RequestTracer {self._model_name}>"

    def record(
        self,
        finished: FinishedRequest,
        params: SamplingParams | PoolingParams,
        *,
        arrival_time: float,
        headers: Mapping[str, str] | None,
    ) -> None:
        """One span, from `arrival_time` (seconds since the epoch) on, a child of what `headers` name as traceparent."""
        from opentelemetry.trace import SpanKind

        lower = {name.lower(): value for name, value in (headers or {}).items()}
        span = self._tracer.start_span(
            "llm_request",
            context=self._propagator.extract(lower),
            kind=SpanKind.SERVER,
            start_time=round(arrival_time * _NANOSECONDS),
            attributes=_attributes(finished, params, model_name=self._model_name),
        )
        if finished.reason == "error":
            from opentelemetry.trace import Status, StatusCode

            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=round((arrival_time + finished.e2e_s) * _NANOSECONDS))

    def close(self) -> None:
        """Export what is left, as far as the exporter's own deadline allows. Idempotent."""
        self._provider.shutdown()


def otlp_tracer(endpoint: str, *, model_name: str) -> RequestTracer:
    """Sends spans to `endpoint` by OTLP over HTTP. Raises SettingsError when the extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        message = f"otlp_traces_endpoint is {endpoint!r}, but {error.name} is not installed; install headrace[otel]"
        raise SettingsError(message, param="otlp_traces_endpoint") from error
    return RequestTracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)), model_name=model_name)


def _attributes(
    finished: FinishedRequest, params: SamplingParams | PoolingParams, *, model_name: str
) -> dict[str, str | int | float]:
    sampling = params if isinstance(params, SamplingParams) else None
    named: dict[str, str | int | float | None] = {
        "gen_ai.response.model": model_name,
        "gen_ai.request.id": finished.request_id,
        "gen_ai.request.temperature": sampling.temperature if sampling is not None else None,
        "gen_ai.request.top_p": sampling.top_p if sampling is not None else None,
        "gen_ai.request.max_tokens": finished.max_tokens,
        "gen_ai.request.n": sampling.n if sampling is not None else None,
        "gen_ai.response.finish_reason": finished.reason,
        "gen_ai.usage.prompt_tokens": finished.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": finished.num_generation_tokens,
        "gen_ai.usage.cached_tokens": finished.num_cached_tokens,
        "gen_ai.latency.e2e": finished.e2e_s,
        "gen_ai.latency.time_to_first_token": finished.time_to_first_token_s,
        "gen_ai.latency.time_in_queue": finished.queue_s,
        "gen_ai.latency.time_in_model_prefill": finished.prefill_s,
        "gen_ai.latency.time_in_model_decode": finished.decode_s,
        "gen_ai.latency.time_in_model_inference": finished.inference_s,
    }
    return {name: value for name, value in named.items() if value is not None}
