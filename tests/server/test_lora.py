"""LoRA adapters as models: named in requests, listed, loaded and unloaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.async_engine import AsyncLLMEngine
from headrace.engine.config import AsyncEngineArgs
from headrace.engine.lora_request import LoRARequest
from headrace.errors import InvalidRequestError, ModelNotFoundError, SettingsError
from headrace.server.adapters import AdapterModels
from headrace.server.app import open_serving
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine
from headrace.testing.random_lora import write_random_lora
from headrace.testing.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration

SETTINGS = ServerSettings(port=0, lora_modules=("poet=/adapters/poet",), allow_runtime_lora=True, max_lora_modules=3)


@pytest.fixture
async def lora_server(engine: FakeEngine, serve: Callable[..., Any]) -> Any:
    async with serve(engine, SETTINGS) as server:
        yield server


async def complete(server: Any, model: str | None) -> Any:
    return await server.http.post("/v1/completions", json={"prompt": "hi", "model": model})


async def test_a_requests_model_selects_the_adapter(lora_server: Any) -> None:
    answers = {name: (await complete(lora_server, name)).json() for name in (None, "fake-model", "poet")}
    assert [answer["choices"][0]["text"] for answer in answers.values()] == ["hi", "hi", "poethi"]
    assert [answer["model"] for answer in answers.values()] == ["fake-model", "fake-model", "poet"]


async def test_chat_and_embeddings_take_the_adapter_too(lora_server: Any) -> None:
    chat = {"model": "poet", "messages": [{"role": "user", "content": "hi"}]}
    response = await lora_server.http.post("/v1/chat/completions", json=chat)
    assert response.json().get("model", "poet") == "poet"
    vectors = [
        (await lora_server.http.post("/v1/embeddings", json={"input": "a", "model": model, "normalize": False})).json()
        for model in ("fake-model", "poet")
    ]
    assert [answer["data"][0]["embedding"][-1] for answer in vectors] == [0.0, 1.0]


async def test_adapters_are_listed_as_models_with_their_parent(lora_server: Any) -> None:
    base, poet = (await lora_server.http.get("/v1/models")).json()["data"]
    assert (base["id"], base["parent"]) == ("fake-model", None)
    assert (poet["id"], poet["parent"], poet["root"]) == ("poet", "fake-model", "/adapters/poet")
    assert (await lora_server.http.get("/v1/models/poet")).json() == poet
    assert (await lora_server.http.get("/v1/models/nobody")).status_code == 404


async def test_an_adapter_comes_and_goes(lora_server: Any, engine: FakeEngine) -> None:
    body = {"lora_name": "clerk", "lora_path": "/adapters/clerk"}
    response = await lora_server.http.post("/v1/load_lora_adapter", json=body)
    assert (response.status_code, response.text) == (200, "Success: LoRA adapter 'clerk' added successfully.")
    assert (await complete(lora_server, "clerk")).json()["choices"][0]["text"] == "clerkhi"
    assert [adapter.lora_path for adapter in engine.adapters.values()] == ["/adapters/poet", "/adapters/clerk"]
    response = await lora_server.http.post("/v1/unload_lora_adapter", json={"lora_name": "clerk"})
    assert (response.status_code, response.text) == (200, "Success: LoRA adapter 'clerk' removed successfully.")
    assert (await complete(lora_server, "clerk")).status_code == 404
    assert [adapter.lora_name for adapter in engine.adapters.values()] == ["poet"]


async def test_an_adapter_is_replaced_in_place(lora_server: Any, engine: FakeEngine) -> None:
    body = {"lora_name": "poet", "lora_path": "/adapters/other", "load_inplace": True}
    assert (await lora_server.http.post("/v1/load_lora_adapter", json=body)).status_code == 200
    (adapter,) = engine.adapters.values()
    assert (adapter.lora_path, adapter.lora_int_id) == ("/adapters/other", 2)


@pytest.mark.parametrize(
    ("name", "path", "param"),
    [
        ("poet", "/adapters/other", "lora_name"),
        ("fake-model", "/adapters/other", "lora_name"),
        ("new", "/missing", "lora_path"),
        ("", "/adapters/other", "lora_name"),
        ("new", "", "lora_path"),
    ],
)
async def test_an_adapter_that_cannot_be_loaded_is_refused(name: str, path: str, param: str, lora_server: Any) -> None:
    body = {"lora_name": name, "lora_path": path}
    response = await lora_server.http.post("/v1/load_lora_adapter", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert len((await lora_server.http.get("/v1/models")).json()["data"]) == 2


async def test_the_number_of_adapters_is_bounded(lora_server: Any) -> None:
    statuses = []
    for number in range(3):
        body = {"lora_name": f"adapter-{number}", "lora_path": "/adapters/any"}
        statuses.append((await lora_server.http.post("/v1/load_lora_adapter", json=body)).status_code)
    assert statuses == [200, 200, 400]


async def test_unloading_what_is_not_there_is_not_found(lora_server: Any) -> None:
    response = await lora_server.http.post("/v1/unload_lora_adapter", json={"lora_name": "nobody"})
    assert response.status_code == 404


async def test_loading_on_request_must_be_allowed(server: Any) -> None:
    body = {"lora_name": "clerk", "lora_path": "/adapters/clerk"}
    for route in ("load", "unload"):
        response = await server.http.post(f"/v1/{route}_lora_adapter", json=body)
        assert response.status_code == 400
        assert "allow_runtime_lora" in response.json()["error"]["message"]


class ReentrantEngine(FakeEngine):
    """Somebody else asks for the same name while it loads."""

    adapter_models: AdapterModels
    error: InvalidRequestError | None = None

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        with pytest.raises(InvalidRequestError, match="in use") as caught:
            await self.adapter_models.load("poet", "/elsewhere")
        self.error = caught.value
        return await super().add_lora(lora_request)


async def test_a_name_that_is_being_loaded_is_in_use() -> None:
    async with ReentrantEngine() as engine:
        engine.adapter_models = AdapterModels(engine, base_model="base", max_adapters=4)
        await engine.adapter_models.load("poet", "/adapters/poet")
        assert [adapter.lora_path for adapter in engine.adapter_models] == ["/adapters/poet"]
        assert engine.error is not None


async def test_a_bad_module_stops_the_start(engine: FakeEngine, serve: Callable[..., Any]) -> None:
    settings = ServerSettings(port=0, lora_modules=("poet=/missing",))
    with pytest.raises(SettingsError, match=r"cannot serve 'poet=/missing': no LoRA adapter"):
        async with serve(engine, settings):
            pass


@pytest.mark.parametrize("module", ["poet", "=path", "poet=", ""])
def test_a_module_must_be_a_name_and_a_path(module: str) -> None:
    with pytest.raises(SettingsError, match="NAME=PATH"):
        ServerSettings(lora_modules=(module,))


async def test_an_adapter_that_was_unloaded_meanwhile_is_not_taken_for_the_model(engine: FakeEngine) -> None:
    serving = await open_serving(engine, SETTINGS)
    serving.check_model("poet")
    await serving.adapters.unload("poet")
    with pytest.raises(ModelNotFoundError, match="'poet' does not exist"):
        serving.adapter_of("poet")
    assert serving.adapter_of("fake-model") is serving.adapter_of(None) is None


async def test_a_real_engine_serves_adapters(tmp_path: Path, serve: Callable[..., Any]) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    paths = [write_random_lora(tmp_path / name, model=model, seed=seed) for seed, name in enumerate("ab")]
    args = AsyncEngineArgs(model=str(model), device="cpu", cpu_threads=1, enable_lora=True, max_loras=1)
    settings = ServerSettings(port=0, lora_modules=(f"a={paths[0]}",), allow_runtime_lora=True)
    async with AsyncLLMEngine.from_engine_args(args, in_process=True) as engine, serve(engine, settings) as server:
        await server.http.post("/v1/load_lora_adapter", json={"lora_name": "b", "lora_path": str(paths[1])})
        texts = {}
        for name in ("tiny", "a", "b"):
            answer = await server.openai.completions.create(
                model=name, prompt="The wheel", temperature=0.0, max_tokens=12
            )
            texts[name] = answer.choices[0].text
        assert len(set(texts.values())) == 3
        bad = await server.http.post("/v1/load_lora_adapter", json={"lora_name": "c", "lora_path": str(tmp_path)})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "lora_path")
        await server.http.post("/v1/unload_lora_adapter", json={"lora_name": "a"})
        assert await engine.list_loras() == {2}
