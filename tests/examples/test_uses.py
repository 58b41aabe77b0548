"""The uses that the README promises, as the programs in examples/ show them, over the demo model."""

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
DEMO_MODEL = str(ROOT / "models" / "demo")


def output_of(example: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / example), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_one_request_is_printed_as_it_grows() -> None:
    lines = output_of("one_request.py", DEMO_MODEL, "Once upon a time").splitlines()
    texts = [line for line in lines if line]
    assert len(texts) > 1, "late outputs are joined, but not all of them"
    assert all(len(later) >= len(earlier) for earlier, later in itertools.pairwise(texts))


def test_deltas_join_to_the_same_text_both_ways() -> None:
    by_output_kind, by_stream_generate = output_of("stream_deltas.py", DEMO_MODEL, "Once upon a time").splitlines()
    assert len(by_output_kind.split()) > 5
    assert by_output_kind == by_stream_generate


def test_four_hundred_requests_at_once_get_the_answers_that_four_get() -> None:
    together = output_of("many_requests.py", DEMO_MODEL, "400").splitlines()
    assert len(together) == 400
    assert together[:4] == output_of("many_requests.py", DEMO_MODEL, "4").splitlines()
    assert len(set(together)) == 400


def test_after_a_deadline_every_block_is_free() -> None:
    told, blocks = output_of("deadline.py", DEMO_MODEL, "0.15").splitlines()
    assert told.startswith("out of time after ")
    free, of, total = blocks.split()[:3]
    assert (free, of) == (total, "of")


@contextlib.asynccontextmanager
async def fastapi_server() -> AsyncIterator[str]:
    """examples/fastapi_app.py served over a real socket, in this process; its URL."""
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        from fastapi_app import create_app  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(ROOT / "examples"))
    server = uvicorn.Server(uvicorn.Config(create_app(DEMO_MODEL), port=0, log_level="warning", lifespan="on"))
    serving = asyncio.ensure_future(server.serve())
    try:
        async with asyncio.timeout(40):
            while not server.started:
                assert not serving.done(), "the server ended before it had started"
                await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


async def events_of(response: httpx.Response) -> AsyncIterator[Any]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


async def test_the_fastapi_app_streams_cancels_refuses_and_notices_who_leaves() -> None:
    async with fastapi_server() as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        body = {"prompt": "Once upon a time", "max_tokens": 8}
        async with client.stream("POST", "/generate", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            *texts, last, done = [event async for event in events_of(response)]
        assert done == "[DONE]"
        assert last["finish_reason"] == "length"
        assert "".join(event["text"] for event in [*texts, last]).strip()

        refused = await client.post("/generate", json={"prompt": ""})
        assert (refused.status_code, "empty" in refused.json()["detail"]) == (400, True)

        endless = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 1.0, "request_id": "mine"}
        async with client.stream("POST", "/generate", json=endless) as response:
            assert response.headers["x-request-id"] == "mine"
            events = events_of(response)
            await anext(events)
            assert (await client.delete("/cancel/mine")).status_code == 204
            reasons = [event["finish_reason"] async for event in events if event != "[DONE]"]
        assert reasons[-1] == "abort"
        assert (await client.get("/health")).json() == {"unfinished": 0}

        async with client.stream("POST", "/generate", json={**endless, "request_id": "left"}) as response:
            await anext(events_of(response))
        async with asyncio.timeout(10):  # a client that leaves ends its request
            while (await client.get("/health")).json()["unfinished"]:
                await asyncio.sleep(0.01)
