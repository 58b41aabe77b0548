"""/ping, /load, /kv_event_sources and /tokenizer_info over a real socket."""

from pathlib import Path
from typing import Any

import pytest

from headrace.engine import AsyncEngineArgs, AsyncLLMEngine
from headrace.engine.kv_events.config import KVEventsConfig
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine
from headrace.testing.tiny_model import write_tiny_model
from headrace.tokenization import load_tokenizer

pytestmark = pytest.mark.integration

DEMO = Path(__file__).parents[2] / "models" / "demo"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_ping_is_health(server: Any, engine: FakeEngine, method: str) -> None:
    response = await server.http.request(method, "/ping")
    assert (response.status_code, response.content) == (200, b"")
    engine.die("out of memory")
    assert (await server.http.request(method, "/ping")).status_code == 503


async def test_ping_asks_for_no_key(engine: FakeEngine, serve: Any) -> None:
    async with serve(engine, ServerSettings(port=0, api_key=("secret",))) as server:
        assert (await server.http.get("/ping")).status_code == 200
        assert (await server.http.get("/load")).status_code == 401


async def test_load_counts_what_is_being_worked_on(server: Any, engine: FakeEngine) -> None:
    assert (await server.http.get("/load")).json() == {"server_load": 0}
    engine.hold(after_tokens=1)
    async with server.http.stream("POST", "/v1/completions", json={"prompt": "hello", "stream": True}) as response:
        await anext(response.aiter_bytes())
        assert (await server.http.get("/load")).json() == {"server_load": 1}
    await engine.until(lambda: engine.num_live == 0)


async def test_kv_event_sources_are_told_by_rank(server: Any, engine: FakeEngine) -> None:
    assert (await server.http.get("/kv_event_sources")).json() == {}
    engine.kv_events = KVEventsConfig(endpoint="tcp://*:5557", topic="kv")
    (source,) = (await server.http.get("/kv_event_sources")).json().items()
    rank, config = source
    assert rank == "0"
    assert (config["endpoint"], config["topic"], config["enable_kv_cache_events"]) == ("tcp://*:5557", "kv", True)
    engine.kv_events = KVEventsConfig(publisher="null")
    assert (await server.http.get("/kv_event_sources")).json() == {}


async def test_kv_event_sources_are_told_with_the_port_that_the_system_chose(serve: Any, tmp_path: Path) -> None:
    arguments = AsyncEngineArgs(
        model=str(write_tiny_model(tmp_path)), device="cpu", kv_events=True, kv_events_endpoint="tcp://*:0"
    )
    async with AsyncLLMEngine.from_engine_args(arguments, in_process=True) as engine, serve(engine) as server:
        source = (await server.http.get("/kv_event_sources")).json()["0"]
    assert source["endpoint"].startswith("tcp://*:")
    assert int(source["endpoint"].rpartition(":")[2]) > 0
    assert source["replay_endpoint"] is None


async def test_a_tokenizer_without_files_tells_what_is_known_of_it(server: Any) -> None:
    info = (await server.http.get("/tokenizer_info")).json()
    assert info["tokenizer_class"] == "ByteTokenizer"
    assert "assistant" in info["chat_template"]
    assert info["headrace"]["vocab_size"] == 259


async def test_a_tokenizer_with_files_tells_what_they_hold(server: Any, engine: FakeEngine) -> None:
    tokenizer = load_tokenizer(DEMO)
    engine.tokenization.register("fake-model", tokenizer)
    info = (await server.http.get("/tokenizer_info")).json()
    assert info["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert info["eos_token"] == "<|im_end|>"
    assert "<|im_start|>" in info["chat_template"]
    assert info["headrace"]["fingerprint"] == tokenizer.fingerprint
