"""No request is tokenized in the event loop's thread."""

from typing import Any

import httpx
import pytest

from headrace.testing.fake_engine import FakeEngine
from headrace.testing.tokenizers import FakeTokenizer, GatedTokenizer

pytestmark = pytest.mark.integration

REQUESTS: list[tuple[str, dict[str, object]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "one"}]}),
    ("/v1/completions", {"prompt": ["two", "three"]}),
    ("/tokenize", {"prompt": "four", "return_token_strs": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": "five"}]}),
]


async def test_every_route_encodes_off_the_loop(serve: Any) -> None:
    tokenizer = FakeTokenizer()  # fails where a loop runs
    async with FakeEngine(tokenizer=tokenizer) as engine, serve(engine) as server:
        for path, body in REQUESTS:
            assert (await server.http.post(path, json=body)).status_code == 200
    encoded = " ".join(text for texts in tokenizer.calls for text in texts)
    assert all(word in encoded for word in ("one", "two", "three", "four", "five"))


async def test_a_tokenizer_that_hangs_does_not_hold_up_others(serve: Any) -> None:
    tokenizer = GatedTokenizer()
    async with FakeEngine(tokenizer=tokenizer) as engine, serve(engine) as server:
        with pytest.raises(httpx.ReadTimeout):
            await server.http.post("/v1/completions", json={"prompt": "wait for the gate"}, timeout=0.3)
        assert (await server.http.get("/health")).status_code == 200
        assert engine.num_live == 0
        tokenizer.gate.set()
