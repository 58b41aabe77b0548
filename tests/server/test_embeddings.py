"""/v1/embeddings: the forms of an input and of a vector."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from headrace.engine.async_engine import AsyncLLMEngine
from headrace.engine.config import AsyncEngineArgs
from headrace.testing.fake_engine import FAKE_DIMENSIONS, FakeEngine
from headrace.testing.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration


def vector(text: str, *, dimensions: int = FAKE_DIMENSIONS) -> list[float]:
    """What the fake engine makes of a text."""
    values = np.array([*text.encode(), *[0] * dimensions][:dimensions], dtype=np.float64)
    return (values / np.linalg.norm(values)).tolist()


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("hello", ["hello"]),
        (["hello", "you", "there"], ["hello", "you", "there"]),
        (list(b"hello"), ["hello"]),
        ([list(b"hello"), list(b"you")], ["hello", "you"]),
    ],
)
async def test_every_form_of_an_input_is_embedded_in_order(server: Any, given: object, texts: list[str]) -> None:
    answer = (await server.http.post("/v1/embeddings", json={"input": given})).json()
    assert (answer["object"], answer["model"]) == ("list", "fake-model")
    assert [item["index"] for item in answer["data"]] == list(range(len(texts)))
    assert [item["embedding"] for item in answer["data"]] == [pytest.approx(vector(text)) for text in texts]
    num_tokens = sum(map(len, texts))
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"]) == (num_tokens, num_tokens)


async def test_as_many_inputs_as_openai_takes_are_embedded(server: Any) -> None:
    """LangChain sends 1,000 at once unless told otherwise."""
    answer = (await server.http.post("/v1/embeddings", json={"input": ["a"] * 2048, "dimensions": 1})).json()
    assert [item["index"] for item in answer["data"]] == list(range(2048))


async def test_base64_holds_the_numbers_as_float32(server: Any) -> None:
    body = {"input": "hello", "encoding_format": "base64"}
    (item,) = (await server.http.post("/v1/embeddings", json=body)).json()["data"]
    decoded = np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4")
    assert decoded == pytest.approx(vector("hello"))


async def test_the_official_client_reads_vectors(server: Any) -> None:
    answer = await server.openai.embeddings.create(model="fake-model", input=["a", "bc"], dimensions=3)
    assert [item.embedding for item in answer.data] == [
        pytest.approx(vector("a", dimensions=3)),
        pytest.approx(vector("bc", dimensions=3)),
    ]
    assert answer.usage.total_tokens == 3


async def test_a_vector_need_not_be_normalized(server: Any) -> None:
    body = {"input": "a", "normalize": False, "dimensions": 2}
    (item,) = (await server.http.post("/v1/embeddings", json=body)).json()["data"]
    assert item["embedding"] == [97.0, 0.0]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [1 << 20]}, "input[0]"),
        ({"input": [[1], [1, 1 << 20]]}, "input[1][1]"),
        ({"input": ["a", "x" * 5000]}, "input[1]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", 1]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
    ],
)
async def test_a_bad_request_is_refused_with_the_field_named(server: Any, body: dict[str, object], param: str) -> None:
    response = await server.http.post("/v1/embeddings", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_an_input_longer_than_the_context_is_refused_before_any_is_computed(
    server: Any, engine: FakeEngine
) -> None:
    response = await server.http.post("/v1/embeddings", json={"input": ["fine", "x" * 5000]})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert engine.statistics().num_started == 0


async def test_an_input_may_fill_the_context(server: Any) -> None:
    assert (await server.http.post("/v1/embeddings", json={"input": "x" * 4096})).status_code == 200


async def test_an_unknown_model_is_not_found(server: Any) -> None:
    response = await server.http.post("/v1/embeddings", json={"input": "a", "model": "other"})
    assert response.status_code == 404


async def test_a_client_that_leaves_aborts_its_request(server: Any, engine: FakeEngine) -> None:
    engine.hold()
    with pytest.raises(httpx.ReadTimeout):
        await server.http.post("/v1/embeddings", json={"input": ["a", "b"]}, timeout=0.2)
    await engine.until(lambda: engine.num_live == 0)
    assert engine.statistics().num_aborted == 2


async def test_a_real_engine_embeds(tmp_path: Path, serve: Callable[..., Any]) -> None:
    args = AsyncEngineArgs(model=str(write_tiny_model(tmp_path / "tiny")), device="cpu", cpu_threads=1)
    async with AsyncLLMEngine.from_engine_args(args, in_process=True) as engine, serve(engine) as server:
        answer = await server.openai.embeddings.create(model="tiny", input=["The wheel turns.", "Water flows."])
        one, other = (np.array(item.embedding) for item in answer.data)
        assert one.shape == other.shape == (64,)
        assert np.linalg.norm(one) == pytest.approx(1.0, abs=1e-5)
        assert not np.allclose(one, other)
        again = await server.openai.embeddings.create(model="tiny", input="The wheel turns.", dimensions=16)
        cut = one[:16] / np.linalg.norm(one[:16])
        assert again.data[0].embedding == pytest.approx(cut.tolist(), abs=1e-5)
        response = await server.http.post("/v1/embeddings", json={"input": "a", "dimensions": 65})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "dimensions")
