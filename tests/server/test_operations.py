"""/health, /version, /metrics, /v1/models, /tokenize and /detokenize."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace import __version__
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration


async def samples(server: Any) -> dict[tuple[str, str], float]:
    """Values by name and finished reason; every sample carries the model's name."""
    response = await server.http.get("/metrics")
    found = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            assert sample.labels["model_name"] == "fake-model"
            found[sample.name, sample.labels.get("finished_reason", "")] = sample.value
    return found


async def test_a_living_engine_is_healthy(server: Any) -> None:
    response = await server.http.get("/health")
    assert (response.status_code, response.content) == (200, b"")


async def test_a_dead_engine_is_not_healthy_and_refuses_requests(server: Any, engine: FakeEngine) -> None:
    engine.die("out of memory")
    for response in (
        await server.http.get("/health"),
        await server.http.post("/v1/completions", json={"prompt": "x"}),
        await server.http.post("/v1/completions", json={"prompt": "x", "stream": True}),
    ):
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_dead"
        assert "out of memory" in response.json()["error"]["message"]


async def test_the_version_is_told(server: Any) -> None:
    assert (await server.http.get("/version")).json() == {"version": __version__}


async def test_the_model_is_listed_with_its_limits(server: Any) -> None:
    listed = (await server.http.get("/v1/models")).json()
    (card,) = listed["data"]
    assert listed["object"] == "list"
    assert card.pop("created") > 1_700_000_000
    assert card == {
        "id": "fake-model",
        "object": "model",
        "owned_by": "headrace",
        "root": str(Path.cwd() / "fake-model-directory"),
        "max_model_len": 4096,
        "parent": None,
    }


async def test_one_model_can_be_asked_for(server: Any) -> None:
    assert (await server.http.get("/v1/models/fake-model")).json()["id"] == "fake-model"
    missing = await server.http.get("/v1/models/some/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_text_is_tokenized_as_the_engine_does_it(server: Any) -> None:
    body = {"prompt": "hé<|im_end|>", "return_token_strs": True, "model": "fake-model"}
    assert (await server.http.post("/tokenize", json=body)).json() == {
        "count": 4,
        "max_model_len": 4096,
        "tokens": [104, 195, 169, 258],
        "token_strs": ["<0x68>", "<0xC3>", "<0xA9>", "<|im_end|>"],
    }


async def test_a_chat_is_tokenized_through_its_template(server: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    answer = (await server.http.post("/tokenize", json={"messages": messages})).json()
    bare = (await server.http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False})).json()
    assert answer["token_strs"] is None
    assert answer["tokens"] == [257, *b"user\nhi", 258, *b"\n", 257, *b"assistant\n"]
    assert bare["tokens"] == [257, *b"user\nhi", 258, *b"\n"]


async def test_the_count_of_a_chat_is_the_usage_of_its_answer(server: Any) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Grüße 🌊"}]
    count = (await server.http.post("/tokenize", json={"messages": messages})).json()["count"]
    answer = (await server.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})).json()
    assert answer["usage"]["prompt_tokens"] == count


async def test_tokenizing_has_no_length_limit(server: Any) -> None:
    assert (await server.http.post("/tokenize", json={"prompt": "x" * 10_000})).json()["count"] == 10_000


async def test_detokenizing_gives_the_text_back_special_tokens_and_all(server: Any) -> None:
    tokens = (await server.http.post("/tokenize", json={"prompt": "hé<|im_end|>"})).json()["tokens"]
    assert (await server.http.post("/detokenize", json={"tokens": tokens})).json() == {"prompt": "hé<|im_end|>"}
    assert (await server.http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("route", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, 400, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True},
            400,
            "add_special_tokens",
        ),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ 1 }}"},
            400,
            "chat_template",
        ),
        (
            "/tokenize",
            {
                "messages": [{"role": "user", "content": "x"}],
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            400,
            "continue_final_message",
        ),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [1, 259]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [2**40]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
async def test_a_bad_request_names_the_field(
    server: Any, route: str, body: dict[str, object], status: int, param: str
) -> None:
    response = await server.http.post(route, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


async def test_metrics_count_what_was_served(server: Any, engine: FakeEngine) -> None:
    await server.http.post("/v1/completions", json={"prompt": ["hello", "you"], "max_tokens": 4})
    await server.http.post("/v1/completions", json={"prompt": "hello", "stream": True})
    await server.http.post("/v1/completions", json={"prompt": "refused", "temperature": -1})
    found = await samples(server)
    assert found["vllm:prompt_tokens_total", ""] == 13
    assert found["vllm:generation_tokens_total", ""] == 4 + 3 + 5
    assert found["vllm:request_success_total", "length"] == 1
    assert found["vllm:request_success_total", "stop"] == 2
    assert found["vllm:time_to_first_token_seconds_count", ""] == 3
    assert found["vllm:e2e_request_latency_seconds_count", ""] == 3
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert found[name, ""] == 0
    for name in ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total"):
        assert found[name, ""] == 0


async def test_two_engines_in_one_process_count_apart(engine: FakeEngine, serve: Any) -> None:
    async with FakeEngine() as second, serve(engine) as one, serve(second) as other:
        await one.http.post("/v1/completions", json={"prompt": "x"})
        assert (await samples(one))["vllm:prompt_tokens_total", ""] == 1
        assert (await samples(other))["vllm:prompt_tokens_total", ""] == 0
