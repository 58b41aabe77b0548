"""The client's place in a trace reaches the engine, on every route that works it."""

from typing import Any

import pytest

from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "vendor=1"}
BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/inference/v1/generate": {"token_ids": [1, 2], "sampling_params": {"max_tokens": 1}},
    "/v1/embeddings": {"input": "Hi"},
}


@pytest.mark.parametrize("route", BODIES)
async def test_the_engine_gets_the_clients_trace(route: str, server: Any, engine: FakeEngine) -> None:
    response = await server.http.post(route, json=BODIES[route], headers={**TRACE, "x-other": "1"})

    assert response.status_code == 200, response.text
    assert engine.latest_trace_headers == TRACE


@pytest.mark.parametrize("headers", [{}, {"tracestate": "vendor=1"}])
async def test_without_a_traceparent_there_is_no_trace(headers: Any, server: Any, engine: FakeEngine) -> None:
    await server.http.post("/v1/completions", json=BODIES["/v1/completions"], headers=headers)

    assert engine.latest_trace_headers is None
