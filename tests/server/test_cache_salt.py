"""`cache_salt`: clients that do not want to share a prefix cache, over a real socket."""

from pathlib import Path
from typing import Any

import pytest

from headrace.engine import AsyncEngineArgs, AsyncLLMEngine
from headrace.testing.fake_engine import FakeEngine
from headrace.testing.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration

PROMPT = "Where does the water go when the river is low and the stones are dry? " * 3
MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/completions", {"prompt": "hi", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 1}),
        ("/v1/embeddings", {"input": "hi"}),
        ("/inference/v1/generate", {"token_ids": [1, 2], "sampling_params": {"max_tokens": 1}}),
    ],
)
async def test_the_engine_is_told_of_it(server: Any, engine: FakeEngine, route: str, body: dict[str, Any]) -> None:
    assert (await server.http.post(route, json={**body, "cache_salt": "of mine"})).status_code == 200
    assert engine.latest_cache_salt == "of mine"
    assert (await server.http.post(route, json=body)).status_code == 200
    assert engine.latest_cache_salt is None


async def test_a_rendered_request_keeps_it(server: Any) -> None:
    body = {"messages": MESSAGES, "cache_salt": "of mine"}
    rendered = (await server.http.post("/v1/chat/completions/render", json=body)).json()
    assert rendered["cache_salt"] == "of mine"


@pytest.mark.parametrize("salt", ["", "x" * 1025, 7])
async def test_what_is_none_is_refused_by_name(server: Any, salt: object) -> None:
    for route, body in (("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", {"messages": MESSAGES})):
        response = await server.http.post(route, json={**body, "cache_salt": salt})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "cache_salt")


async def test_prompts_with_different_salts_share_nothing(serve: Any, tmp_path: Path) -> None:
    arguments = AsyncEngineArgs(model=str(write_tiny_model(tmp_path)), cpu_threads=1, device="cpu")
    async with AsyncLLMEngine.from_engine_args(arguments, in_process=True) as engine, serve(engine) as server:

        async def cached(route: str, body: dict[str, Any], salt: str | None) -> int:
            asked = {**body, "max_tokens": 1, "cache_salt": salt}
            usage = (await server.http.post(route, json=asked)).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        for route, body in (("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": MESSAGES})):
            assert await cached(route, body, None) == 0
            shared = await cached(route, body, None)
            assert shared > 0
            assert await cached(route, body, "a") == 0
            assert await cached(route, body, "a") == shared
            assert await cached(route, body, "b") == 0
            assert await cached(route, body, None) == shared
