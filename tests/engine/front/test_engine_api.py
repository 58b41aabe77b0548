"""The rest of the API of AsyncLLMEngine: embeddings, configs, what it refuses, what operators ask of it."""

import contextlib
import dataclasses
import logging
from typing import Any

import pytest

from headrace.engine import (
    AsyncEngineArgs,
    AsyncLLMEngine,
    DecodingConfig,
    EmbeddingRequestOutput,
    LoRAConfig,
    LoRARequest,
    PoolingParams,
    RequestOutputKind,
    SamplingParams,
    stream_generate,
)
from headrace.engine.client.host import ThreadHost
from headrace.errors import EngineDeadError, EngineError, InvalidRequestError, SettingsError, UnsupportedError
from headrace.testing.fake_core import FakeCore, fake_engine_config
from headrace.tokenization import TokenizationService

ADAPTER = LoRARequest("mine", 1, "/adapters/mine")


async def embed(engine: AsyncLLMEngine, prompt: object, request_id: str = "e") -> EmbeddingRequestOutput:
    (output,) = [output async for output in engine.encode(prompt, PoolingParams(), request_id)]
    return output


def with_lora(core: FakeCore, tokenization: TokenizationService) -> AsyncLLMEngine:
    config = dataclasses.replace(fake_engine_config(), lora=LoRAConfig(max_loras=1, max_lora_rank=8, max_cpu_loras=2))
    return AsyncLLMEngine(config, host=ThreadHost(build_core=lambda _config: core), tokenization=tokenization)


async def test_a_prompt_becomes_one_vector(engine: AsyncLLMEngine) -> None:
    output = await embed(engine, "abc")
    assert output.outputs is not None
    assert (output.outputs.embedding, output.outputs.hidden_size) == ([97.0, 98.0, 99.0], 3)
    assert (output.prompt_token_ids, output.finished) == ([97, 98, 99], True)
    assert output.metrics.finished_time is not None


async def test_an_embedding_and_an_answer_run_side_by_side(engine: AsyncLLMEngine) -> None:
    stream = await engine.add_request("e", "ab", PoolingParams(dimensions=1))
    outputs = [output async for output in engine.generate("ab", SamplingParams(max_tokens=2), "g")]
    (embedding,) = [output async for output in stream]
    assert embedding.outputs is not None
    assert (embedding.outputs.embedding, outputs[-1].outputs[0].text) == ([97.0], "ab")


async def test_an_embedded_prompt_may_fill_the_context(engine: AsyncLLMEngine) -> None:
    assert len((await embed(engine, [65] * 4096)).prompt_token_ids) == 4096


async def test_an_aborted_embedding_ends_without_a_vector(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(0)
    stream = await engine.add_request("e", "abc", PoolingParams())
    await engine.abort("e")
    (output,) = [output async for output in stream]
    assert (output.finished, output.outputs) == (True, None)


async def test_leaving_an_embedding_ends_it(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(0)
    stream = await engine.add_request("e", "abc", PoolingParams())
    stream.close()
    await engine.check_integrity()
    assert core.aborted == ["e#0"]
    assert engine.statistics().num_free_blocks == engine.statistics().num_blocks


async def test_positional_arguments_are_those_of_the_older_api(engine: AsyncLLMEngine) -> None:
    params = SamplingParams(max_tokens=2)
    outputs = [output async for output in engine.generate(None, params, "r", [97, 98], None, priority=0)]
    assert outputs[-1].outputs[0].text == "ab"
    stream = await engine.add_request("s", None, params, 5.0, [97, 98], None, None, None, 0)
    assert [output async for output in stream][-1].metrics.arrival_time == 5.0


async def test_a_prompt_adapter_is_refused_by_name(engine: AsyncLLMEngine) -> None:
    with pytest.raises(UnsupportedError) as caught:
        await engine.add_request("r", "abc", SamplingParams(), prompt_adapter_request=object())
    assert caught.value.param == "prompt_adapter_request"


async def test_an_adapter_is_refused_where_they_are_off(engine: AsyncLLMEngine) -> None:
    for call in (
        engine.add_request("r", "abc", SamplingParams(), lora_request=ADAPTER),
        engine.get_tokenizer(ADAPTER),
        engine.add_lora(ADAPTER),
    ):
        with pytest.raises(InvalidRequestError, match="enable_lora") as caught:
            await call
        assert caught.value.param == "lora_request"


async def test_an_adapter_reaches_the_core_with_its_request(core: FakeCore, tokenization: TokenizationService) -> None:
    async with with_lora(core, tokenization) as engine:
        async for _ in engine.generate("abc", SamplingParams(max_tokens=1), "r", lora_request=ADAPTER):
            pass
        assert [request.lora for request in core.added] == [ADAPTER]
        assert await engine.get_tokenizer(ADAPTER) is tokenization.tokenizer("fake")
        config = await engine.get_lora_config()
        assert config is not None
        assert config.max_loras == 1


async def test_open_requests_name_their_adapters_in_the_metrics(
    core: FakeCore, tokenization: TokenizationService
) -> None:
    async with with_lora(core, tokenization) as engine:
        core.allow_steps(0)
        stream = await engine.add_request("r", "abc", SamplingParams(), lora_request=ADAPTER)
        (sample,) = [
            sample
            for family in engine.registry.collect()
            for sample in family.samples
            if sample.name == "vllm:lora_requests_info"
        ]
        assert (sample.labels["max_lora"], sample.labels["running_lora_adapters"]) == ("1", "mine")
        stream.close()


async def test_configs_are_told_and_frozen(engine: AsyncLLMEngine) -> None:
    whole = await engine.get_vllm_config()
    assert whole.model_config is await engine.get_model_config()
    assert whole.scheduler_config is await engine.get_scheduler_config()
    assert whole.parallel_config is await engine.get_parallel_config()
    assert whole.parallel_config.tensor_parallel_size == 1
    assert whole.decoding_config == await engine.get_decoding_config() == DecodingConfig()
    assert whole.lora_config is await engine.get_lora_config() is None
    assert whole.cache_config.block_size == 16
    with pytest.raises(dataclasses.FrozenInstanceError):
        whole.model_config = None


async def test_the_input_preprocessor_turns_a_prompt_into_ids(engine: AsyncLLMEngine) -> None:
    preprocessor = await engine.get_input_preprocessor()
    assert (await preprocessor.prepare("abc")).token_ids.tolist() == [97, 98, 99]


async def test_a_cache_salt_reaches_the_core(engine: AsyncLLMEngine, core: FakeCore) -> None:
    for number, prompt in enumerate(
        [{"prompt": "ab", "cache_salt": "s"}, {"prompt_token_ids": [1], "cache_salt": "t"}]
    ):
        async for _ in engine.generate(prompt, SamplingParams(max_tokens=1), str(number)):
            pass
    assert [request.cache_salt for request in core.added] == ["s", "t"]
    with pytest.raises(InvalidRequestError, match="cache_salt"):
        await engine.add_request("r", {"prompt": "ab", "cache_salt": ""}, SamplingParams())


async def test_the_engine_sleeps_and_wakes(engine: AsyncLLMEngine) -> None:
    assert not await engine.is_sleeping()
    await engine.sleep(level=2)
    assert await engine.is_sleeping()
    assert engine.statistics().sleep_level == 2
    await engine.wake_up(tags=["weights", "kv_cache"])
    assert not await engine.is_sleeping()
    with pytest.raises(InvalidRequestError, match="tags"):
        await engine.wake_up(tags="weights")


async def test_a_method_is_called_on_every_worker(engine: AsyncLLMEngine, core: FakeCore) -> None:
    assert await engine.collective_rpc("sleep", args=(1,)) == [None]
    assert core.sleep_level == 1
    assert await engine.collective_rpc(lambda worker, *, plus: worker.num_blocks + plus, kwargs={"plus": 1}) == [4097]


async def test_what_this_core_cannot_do_is_an_error_with_its_name(engine: AsyncLLMEngine) -> None:
    for call in (engine.start_profile(), engine.stop_profile(), engine.pin_lora(1), engine.list_loras()):
        with pytest.raises(EngineError, match="has no method"):
            await call


@pytest.mark.parametrize("request_id", [5, None, ["r", 5], b"r"])
async def test_an_abort_of_what_is_no_id_is_refused(engine: AsyncLLMEngine, request_id: Any) -> None:
    with pytest.raises(InvalidRequestError, match="give one id or several") as caught:
        await engine.abort(request_id)
    assert caught.value.param == "request_id"


async def test_the_prefix_cache_is_not_chosen_by_device(engine: AsyncLLMEngine) -> None:
    assert await engine.reset_prefix_cache(None) is True
    with pytest.raises(UnsupportedError, match="device"):
        await engine.reset_prefix_cache("cpu")


async def test_there_is_no_multimodal_cache_to_reset_once_the_engine_has_ended(engine: AsyncLLMEngine) -> None:
    await engine.reset_mm_cache()
    await engine.shutdown_background_loop()
    with pytest.raises(EngineDeadError):
        await engine.reset_mm_cache()


async def test_trace_headers_are_warned_of_once_where_nothing_traces(
    engine: AsyncLLMEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for name in ("a", "b"):
            headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
            async for _ in engine.generate("abc", SamplingParams(max_tokens=1), name, trace_headers=headers):
                pass
    assert [message for message in caplog.messages if "otlp_traces_endpoint" in message] == caplog.messages
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("kind", list(RequestOutputKind))
async def test_stream_generate_gives_only_new_text(engine: AsyncLLMEngine, kind: RequestOutputKind) -> None:
    params = SamplingParams(max_tokens=5, output_kind=kind)
    texts = [text async for text in stream_generate(engine, "abc", params, "r")]
    assert "".join(texts) == "abcab"
    assert all(texts)


async def test_leaving_stream_generate_ends_the_request(engine: AsyncLLMEngine) -> None:
    async with contextlib.aclosing(stream_generate(engine, "abc", SamplingParams(max_tokens=4000), "r")) as texts:
        async for _ in texts:
            break
    assert await engine.get_num_unfinished_requests() == 0


@pytest.mark.parametrize(("field", "value"), [("n", 2), ("detokenize", False)])
async def test_stream_generate_refuses_what_is_no_single_text(
    engine: AsyncLLMEngine, field: str, value: object
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        async for _ in stream_generate(engine, "abc", SamplingParams(**{field: value}), "r"):
            pass
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("given", "told"),
    [({}, True), ({"disable_log_requests": True}, False), ({"enable_log_requests": False}, False)],
)
def test_requests_are_logged_unless_told_otherwise(given: dict[str, bool], told: bool) -> None:
    assert AsyncEngineArgs(model="m", **given).logs_requests is told


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(SettingsError) as caught:
        AsyncEngineArgs(model="m", backend="other")
    assert caught.value.param == "backend"
