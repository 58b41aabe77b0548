"""A trace of each request: what the gateway did, under the client's `traceparent` and above the engine's spans.

The only file of the gateway that imports opentelemetry, and only where traces are asked for. Spans are exported by a
thread of the library's own; what cannot be exported in time is dropped there, not waited for.
"""

import time
from typing import TYPE_CHECKING

from headrace.errors import SettingsError
from headrace.gateway.choose import Chosen
from headrace.gateway.http.head_facts import Headers
from headrace.gateway.http.message import Request
from headrace.gateway.identify import Call
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.proxy import Answer
from headrace.gateway.routes import ROUTES
from headrace.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

_CONTEXT_FIELDS = frozenset({b"traceparent", b"tracestate"})
_MAX_PATH_CHARACTERS = 256


class RequestTracer:
    """Begins traces. `close` may block for a moment: call it in a thread."""

    def __init__(self, processor: "SpanProcessor", *, share: float = 1.0) -> None:
        """`processor` gets the spans, and is shut down with the tracer. `share` of the requests are traced, where the
        client's traceparent does not say whether to."""
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: "headrace-gateway"}),
            sampler=ParentBased(TraceIdRatioBased(share)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("headrace.gateway")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, request: Request, *, request_id: str) -> "RequestTrace":
        """The trail of `request`, which began when the whole of it was received."""
        from opentelemetry.trace import SpanKind

        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in request.headers
            if name in _CONTEXT_FIELDS
        }
        trace = RequestTrace(self)
        context = self._propagator.extract(carrier) if carrier else None
        trace.root = self.span(
            _name_of(request), context, kind=SpanKind.SERVER, start_ns=trace.at_ns(request.received_s)
        )
        trace.root.set_attribute("http.request.method", request.method)
        trace.root.set_attribute("url.path", request.path[:_MAX_PATH_CHARACTERS])
        trace.root.set_attribute("headrace.request_id", request_id)
        return trace

    def span(self, name: str, context: "Context | None", *, kind: object = None, start_ns: int) -> "Span":
        """A span that has begun. Without a context it begins a trace."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        span_kind = kind if isinstance(kind, SpanKind) else SpanKind.INTERNAL
        return self._tracer.start_span(name, context=context or Context(), kind=span_kind, start_time=start_ns)

    def headers_of(self, span: "Span") -> Headers:
        """The header fields that make what an endpoint does a part of `span`."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=set_span_in_context(span))
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in carrier.items()]

    def close(self) -> None:
        """Export what is left, as far as the exporter's own deadline allows. Idempotent."""
        self._provider.shutdown()

    def __repr__(self) -> str:
        return "RequestTracer()"


class RequestTrace:
    """The trail of one request as spans: the request, and under it `tokenize`, `admit`, `choose` and, for each attempt,
    `upstream`. Each step lasts from the one before to its telling."""

    root: "Span"

    def __init__(self, tracer: RequestTracer) -> None:
        self._tracer = tracer
        self._epoch_ns = time.time_ns() - time.monotonic_ns()
        self._step_ns = self.at_ns(time.monotonic())
        self._attempt: Span | None = None

    def at_ns(self, at_s: float) -> int:
        """A time of the monotonic clock in nanoseconds since the epoch."""
        return self._epoch_ns + int(at_s * 1e9)

    def identified(self, call: Call, *, key_name: str) -> None:
        self.root.set_attribute("gen_ai.request.model", call.model)
        self.root.set_attribute("headrace.key", key_name)
        self._step_ns = self._now_ns()

    def counted(self, prompt: PromptCount) -> None:
        span = self._step("tokenize")
        span.set_attribute("headrace.count", prompt.why)
        if prompt.total is not None:
            span.set_attribute("gen_ai.usage.input_tokens", prompt.total)
        span.end(self._step_ns)

    def admitted(self, *, waited_s: float) -> None:
        span = self._step("admit")
        span.set_attribute("headrace.queued_s", waited_s)
        span.end(self._step_ns)

    def chosen(self, chosen: Chosen) -> None:
        from opentelemetry.trace import SpanKind

        span = self._step("choose")
        span.set_attribute("headrace.policy", chosen.policy)
        span.set_attribute("headrace.reason", chosen.reason)
        span.end(self._step_ns)
        self._attempt = self._tracer.span("upstream", self._context(), kind=SpanKind.CLIENT, start_ns=self._step_ns)
        self._attempt.set_attribute("server.address", chosen.endpoint.name)
        if chosen.routed.num_cached_tokens is not None:
            self._attempt.set_attribute("headrace.cached_tokens_predicted", chosen.routed.num_cached_tokens)

    def forwarded(self, headers: Headers) -> Headers:
        assert self._attempt is not None, "nothing was chosen"
        others = [field for field in headers if field[0] not in _CONTEXT_FIELDS]
        return others + self._tracer.headers_of(self._attempt)

    def answered(self, answer: Answer) -> None:
        span, self._attempt = self._attempt, None
        if span is None:
            return
        for name, value in _answer_attributes(answer).items():
            span.set_attribute(name, value)
        if answer.error is not None:
            _mark_failed(span, answer.error.message)
        self._step_ns = self._now_ns()
        span.end(self._step_ns)

    def ended(self, status: int | None) -> None:
        if self._attempt is not None:  # its client has left
            self._attempt.end(self._now_ns())
        if status is None:
            self.root.set_attribute("headrace.client_left", value=True)
        else:
            self.root.set_attribute("http.response.status_code", status)
            if status >= 500:
                _mark_failed(self.root, "")
        self.root.end(self._now_ns())

    def _step(self, name: str) -> "Span":
        """A span from the step before to now."""
        begun_ns, self._step_ns = self._step_ns, self._now_ns()
        return self._tracer.span(name, self._context(), start_ns=begun_ns)

    def _context(self) -> "Context":
        from opentelemetry.trace import set_span_in_context

        return set_span_in_context(self.root)

    def _now_ns(self) -> int:
        return self.at_ns(time.monotonic())


def tracer_of(settings: GatewaySettings) -> RequestTracer | None:
    """Sends spans by OTLP over HTTP where the settings ask for it. Raises SettingsError when the extra is not there."""
    endpoint = settings.otlp_traces_endpoint
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        message = f"otlp_traces_endpoint is {endpoint!r}, but {error.name} is not installed; install headrace[otel]"
        raise SettingsError(message, param="otlp_traces_endpoint") from error
    return RequestTracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)), share=settings.traces_share)


def _name_of(request: Request) -> str:
    """Backends index spans by name, so it has a path only where the path is one of ours, not whatever a client asks."""
    return f"{request.method} {request.path}" if request.path in ROUTES else request.method


def _answer_attributes(answer: Answer) -> dict[str, int | float]:
    usage = answer.usage
    named = {
        "http.response.status_code": answer.status,
        "headrace.first_byte_s": answer.first_byte_s,
        "gen_ai.usage.input_tokens": usage.prompt_tokens if usage is not None else None,
        "gen_ai.usage.output_tokens": usage.completion_tokens if usage is not None else None,
        "gen_ai.usage.cached_tokens": usage.cached_tokens if usage is not None else None,
    }
    return {name: value for name, value in named.items() if value is not None}


def _mark_failed(span: "Span", why: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, why or None))
