"""An engine whose core is vLLM: our API in front of vLLM's AsyncLLM, here a fake that answers with its prompt."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.engine.vllm_backend import fake_vllm

from headrace.engine import (
    AsyncEngineArgs,
    AsyncLLMEngine,
    FrontEndSettings,
    LoRARequest,
    PoolingParams,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from headrace.errors import (
    EngineDeadError,
    EngineError,
    EngineStalledError,
    HeadraceError,
    InvalidRequestError,
    SettingsError,
    UnsupportedError,
)
from headrace.testing.tiny_model import write_tiny_model


@pytest.fixture
def vllm_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, module in fake_vllm.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    yield
    fake_vllm.CREATED.clear()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
async def engine(vllm_installed: None, model_dir: Path) -> AsyncIterator[AsyncLLMEngine]:
    args = AsyncEngineArgs(model=str(model_dir), backend="vllm", enable_lora=True, scheduling_policy="priority")
    async with AsyncLLMEngine.from_engine_args(args, settings=FrontEndSettings(step_timeout_s=2.0)) as engine:
        yield engine
    assert fake_vllm.CREATED[0].was_shut_down


def of_vllm() -> fake_vllm.FakeAsyncLLM:
    (created,) = fake_vllm.CREATED
    return created


async def collect(engine: AsyncLLMEngine, prompt: list[int], **params: object) -> list[RequestOutput]:
    params = {"max_tokens": 5, **params}
    return [output async for output in engine.generate(prompt, SamplingParams(**params), "r")]


async def test_the_answer_comes_through_our_front_end(engine: AsyncLLMEngine) -> None:
    outputs = await collect(engine, [40, 41, 42])
    assert outputs[-1].outputs[0].token_ids == [40, 41, 42, 40, 41]
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert outputs[-1].outputs[0].text == (await engine.get_tokenizer()).decode(
        [40, 41, 42, 40, 41], skip_special_tokens=True
    )
    assert outputs[-1].num_cached_tokens == 1


async def test_vllm_is_asked_for_token_ids_alone_and_told_every_end(engine: AsyncLLMEngine) -> None:
    eos = (await engine.get_model_config()).eos_token_ids
    await collect(engine, [40, 41], seed=5, top_k=3, stop="zz", n=1)
    (request,) = of_vllm().requests.values()
    given = request.params.given
    assert given["detokenize"] is False
    assert given["ignore_eos"] is True
    assert set(eos) <= set(given["stop_token_ids"])
    assert (given["seed"], given["top_k"], given["max_tokens"], given["output_kind"]) == (5, 3, 5, "delta")
    assert "stop" not in given
    assert "top_p" not in given  # at its default


async def test_a_stop_id_is_told_and_the_models_own_end_is_not(engine: AsyncLLMEngine) -> None:
    assert (await collect(engine, [40, 41], stop_token_ids=[41]))[-1].outputs[0].stop_reason == 41
    eos = (await engine.get_model_config()).eos_token_ids[0]
    last = (await collect(engine, [40, eos]))[-1].outputs[0]
    assert (last.finish_reason, last.stop_reason) == ("stop", None)


async def test_several_answers_are_several_requests_of_vllm(engine: AsyncLLMEngine) -> None:
    outputs = await collect(engine, [40, 41], n=2, seed=1, output_kind=RequestOutputKind.FINAL_ONLY)
    assert [completion.index for completion in outputs[-1].outputs] == [0, 1]
    assert sorted(request.params.given["seed"] for request in of_vllm().requests.values()) == [1, 2]


async def test_log_probabilities_stand_own_token_first(engine: AsyncLLMEngine) -> None:
    (position,) = (await collect(engine, [40], max_tokens=1, logprobs=1))[-1].outputs[0].logprobs
    assert list(position) == [40, 5]
    assert (position[40].logprob, position[40].rank) == (-2.0, 9)


async def test_a_structure_a_priority_and_an_adapter_are_handed_on(engine: AsyncLLMEngine) -> None:
    params = SamplingParams(max_tokens=1, structured_outputs=StructuredOutputsParams(regex="a+"))
    async for _ in engine.generate([40], params, "r", lora_request=LoRARequest("mine", 4, "/adapter"), priority=3):
        pass
    (request,) = of_vllm().requests.values()
    assert request.params.given["structured_outputs"].given == {"regex": "a+"}
    assert request.lora.given == {"lora_name": "mine", "lora_int_id": 4, "lora_path": "/adapter"}
    assert request.priority == 3


async def test_a_vector_comes_as_our_output(engine: AsyncLLMEngine) -> None:
    (output,) = [output async for output in engine.encode([40, 41], PoolingParams(dimensions=2), "r")]
    assert output.outputs is not None
    assert output.outputs.embedding == [3.0, 4.0]
    with pytest.raises(UnsupportedError, match="pooling_type"):
        async for _ in engine.encode([40, 41], PoolingParams(pooling_type="cls"), "s"):
            pass


async def test_leaving_and_aborting_end_the_request_there(engine: AsyncLLMEngine) -> None:
    async with contextlib.aclosing(engine.generate([40], SamplingParams(max_tokens=500), "left")) as outputs:
        async for _ in outputs:
            break
    stream = await engine.add_request("aborted", [40], SamplingParams(max_tokens=500))
    await anext(stream)
    await engine.abort("aborted")
    assert [output async for output in stream][-1].outputs[0].finish_reason == "abort"
    async with asyncio.timeout(5):
        while len(of_vllm().left) < 2:
            await asyncio.sleep(0)
    assert await engine.get_num_unfinished_requests() == 0


async def test_what_vllm_refuses_is_an_invalid_request(engine: AsyncLLMEngine) -> None:
    with pytest.raises(InvalidRequestError, match=r"temperature 1\.5 is refused"):
        await collect(engine, [40], temperature=1.5)
    assert (await collect(engine, [40]))[-1].finished


async def test_a_dead_vllm_is_a_dead_engine_for_all(engine: AsyncLLMEngine) -> None:
    of_vllm().is_held = True
    streams = [await engine.add_request(name, [40], SamplingParams(max_tokens=500)) for name in "ab"]
    of_vllm().errored = True
    of_vllm().is_held = False
    for stream in streams:
        with pytest.raises(EngineDeadError, match="vLLM died"):
            async for _ in stream:
                pass
    with pytest.raises(EngineDeadError):
        await engine.check_health()
    assert isinstance(engine.dead_error, EngineDeadError)


async def test_a_vllm_that_gives_out_nothing_is_stalled(
    engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_vllm().is_held = True
    stream = await engine.add_request("r", [40], SamplingParams(max_tokens=5))
    await engine.check_health()
    connection = engine._life.client
    connection._last_output_s -= 5.0
    with pytest.raises(EngineStalledError, match="given out nothing"):
        await engine.check_health()
    stream.close()


async def test_operations_are_vllms_own(engine: AsyncLLMEngine) -> None:
    await engine.sleep(1)
    assert await engine.is_sleeping()
    await engine.wake_up(["weights"])
    assert await engine.add_lora(LoRARequest("mine", 4, "/adapter"))
    assert await engine.list_loras() == {3, 7}
    assert await engine.reset_prefix_cache() is True
    assert await engine.collective_rpc("name", args=(1,)) == ["name", 1]
    assert [call[0] for call in of_vllm().calls] == ["sleep", "wake_up", "add_lora"]
    assert of_vllm().calls[0] == ("sleep", 1, "keep")  # running requests go on after waking
    with pytest.raises(EngineError, match="the worker exploded"):
        await engine.collective_rpc("explode")
    with pytest.raises(UnsupportedError, match="check_integrity"):
        await engine.check_integrity()


async def test_vllms_statistics_are_the_engines(engine: AsyncLLMEngine) -> None:
    await collect(engine, [40, 41], max_tokens=3)
    statistics = engine.statistics()
    assert (statistics.num_running, statistics.num_waiting, statistics.num_steps) == (1, 2, 3)
    assert (statistics.prompt_tokens, statistics.generation_tokens, statistics.prefix_cache_queries) == (2, 3, 2)
    assert statistics.kv_cache_usage == 0.25


async def test_settings_reach_vllm(engine: AsyncLLMEngine, model_dir: Path) -> None:
    arguments = of_vllm().arguments
    assert arguments["model"] == str(model_dir)
    assert (arguments["max_num_seqs"], arguments["enable_lora"]) == (64, True)
    assert not {"block_size", "max_num_batched_tokens"} & set(arguments)  # nobody chose them
    assert "tokenizer" not in arguments  # its own choice


@pytest.mark.parametrize(
    ("setting", "value"),
    [("cpu_threads", 2), ("quantization", "int8"), ("kv_events", True), ("engine_use_ray", True), ("device", "cpu")],
)
def test_a_setting_that_vllm_cannot_follow_is_refused_by_name(model_dir: Path, setting: str, value: object) -> None:
    args = AsyncEngineArgs(model=str(model_dir), backend="vllm", **{setting: value})
    with pytest.raises(SettingsError) as caught:
        AsyncLLMEngine.from_engine_args(args)
    assert caught.value.param == setting


def test_the_core_cannot_be_in_this_process(model_dir: Path) -> None:
    with pytest.raises(SettingsError, match="in_process"):
        AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=str(model_dir), backend="vllm"), in_process=True)


async def test_without_vllm_the_start_says_what_to_install(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in fake_vllm.without_vllm():
        monkeypatch.setitem(sys.modules, name, None)
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=str(model_dir), backend="vllm"))
    with pytest.raises(EngineDeadError, match=r"install headrace\[vllm\]"):
        await engine.start_background_loop()
    await engine.shutdown_background_loop()
    assert isinstance(engine.dead_error, HeadraceError)
