"""The client's place in a trace, which the engine's spans continue. Knows nothing of spans."""

from collections.abc import Mapping

from starlette.types import Scope

_FIELDS = (b"traceparent", b"tracestate")


def trace_headers(scope: Scope) -> Mapping[str, str] | None:
    """The request's `traceparent`, and `tracestate` with it; None without the former. Whether it is well-formed is for
    the tracer to judge."""
    found = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _FIELDS}
    return found if "traceparent" in found else None
