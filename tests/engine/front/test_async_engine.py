"""What users of AsyncLLMEngine rely on, in front of a core that echoes its prompt."""

import asyncio
import contextlib
import gc
import itertools
import warnings
from collections.abc import Callable

import pytest

from headrace.engine import (
    AsyncLLMEngine,
    FrontEndSettings,
    PoolingParams,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)
from headrace.engine.client.host import ThreadHost
from headrace.engine.config import AsyncEngineArgs
from headrace.engine.model_config import SamplingDefaults
from headrace.errors import (
    ContextLengthError,
    EngineDeadError,
    EngineError,
    EngineGenerateError,
    InvalidRequestError,
    OverloadedError,
    SettingsError,
    UnsupportedError,
)
from headrace.testing.fake_core import FakeCore, fake_engine_config
from headrace.tokenization import ByteTokenizer, TokenizationService
from headrace.tokenization.incremental import BytesDecoder

DELTA = RequestOutputKind.DELTA


async def collect(engine: AsyncLLMEngine, prompt: str, request_id: str, **params: object) -> list[RequestOutput]:
    params = {"max_tokens": 10, **params}
    return [output async for output in engine.generate(prompt, SamplingParams(**params), request_id)]


async def settled(engine: AsyncLLMEngine) -> None:
    """Until the core has handled everything that was sent to it before."""
    await engine.check_integrity()


def assert_nothing_left(engine: AsyncLLMEngine) -> None:
    statistics = engine.statistics()
    assert (statistics.num_unfinished, statistics.num_running, statistics.num_waiting) == (0, 0, 0)
    assert statistics.num_free_blocks == statistics.num_blocks


@pytest.mark.parametrize("kind", list(RequestOutputKind))
async def test_every_output_kind_tells_the_same_answer(engine: AsyncLLMEngine, kind: RequestOutputKind) -> None:
    outputs = await collect(engine, "abc", "r", output_kind=kind)
    joined = outputs if kind is DELTA else outputs[-1:]
    assert "".join(output.outputs[0].text for output in joined) == "abcabcabca"
    assert list(itertools.chain.from_iterable(output.outputs[0].token_ids for output in joined)) == list(b"abcabcabca")
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert outputs[0].prompt_token_ids == list(b"abc")


async def test_an_output_comes_with_each_step_when_the_consumer_keeps_up(
    engine: AsyncLLMEngine, core: FakeCore
) -> None:
    core.allow_steps(0)
    stream = await engine.add_request("r", "abc", SamplingParams(max_tokens=3))
    texts = []
    for _ in range(3):
        core.allow_steps(1)
        await settled(engine)
        texts.append((await anext(stream)).outputs[0].text)
    assert texts == ["a", "ab", "abc"]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_four_hundred_requests_each_get_their_own_answer(
    core: FakeCore, tokenization: TokenizationService
) -> None:
    engine = AsyncLLMEngine(
        fake_engine_config(), host=ThreadHost(build_core=lambda _config: core), tokenization=tokenization
    )
    prompts = [f"request {number} " for number in range(400)]
    async with engine:
        answers = await asyncio.gather(*(collect(engine, prompt, prompt, max_tokens=20) for prompt in prompts))
        assert_nothing_left(engine)
    assert [outputs[-1].outputs[0].text for outputs in answers] == [(prompt * 2)[:20] for prompt in prompts]


async def test_a_stop_string_ends_the_request_in_the_core_too(engine: AsyncLLMEngine, core: FakeCore) -> None:
    outputs = await collect(engine, "abcd", "r", max_tokens=4000, stop="cd")
    assert outputs[-1].outputs[0].text == "ab"
    assert outputs[-1].outputs[0].stop_reason == "cd"
    await settled(engine)
    assert core.aborted == ["r#0"]
    assert_nothing_left(engine)


async def test_a_consumer_that_leaves_ends_the_request(engine: AsyncLLMEngine) -> None:
    async with contextlib.aclosing(engine.generate("abc", SamplingParams(max_tokens=4000), "r")) as outputs:
        async for _ in outputs:
            break
    await settled(engine)
    assert_nothing_left(engine)


async def test_a_deadline_around_the_stream_ends_the_request(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await collect(engine, "abc", "r")
    await settled(engine)
    assert_nothing_left(engine)


async def test_a_request_id_can_be_used_again_at_once_after_leaving(engine: AsyncLLMEngine) -> None:
    stream = await engine.add_request("r", "abc", SamplingParams(max_tokens=4000))
    await anext(stream)
    stream.close()
    outputs = await collect(engine, "xyz", "r")
    assert outputs[-1].outputs[0].text == "xyzxyzxyzx"


async def test_an_aborted_request_ends_with_what_it_had(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(2)
    stream = await engine.add_request("r", "abc", SamplingParams(max_tokens=100))
    await anext(stream)
    await engine.abort("r")
    assert_nothing_left(engine)  # already when abort returns
    outputs = [output async for output in stream]
    assert (outputs[-1].finished, outputs[-1].outputs[0].finish_reason) == (True, "abort")
    assert outputs[-1].metrics.finished_time is not None


async def test_abort_takes_several_ids_and_ignores_unknown_and_ended_ones(engine: AsyncLLMEngine) -> None:
    await collect(engine, "abc", "ended")
    streams = [await engine.add_request(name, "abc", SamplingParams(max_tokens=4000)) for name in ("a", "b")]
    await engine.abort(["a", "unknown", "ended", "b"])
    await engine.abort(["a", "b"])
    assert_nothing_left(engine)
    assert [[output async for output in stream][-1].outputs[0].finish_reason for stream in streams] == ["abort"] * 2


async def test_a_request_that_is_aborted_while_it_is_tokenized_never_reaches_the_core(
    engine: AsyncLLMEngine, core: FakeCore
) -> None:
    adding = asyncio.ensure_future(engine.add_request("r", "abc" * 9, SamplingParams()))
    while await engine.get_num_unfinished_requests() == 0:
        await asyncio.sleep(0)
    await engine.abort("r")
    stream = await adding
    assert [output.outputs[0].finish_reason async for output in stream] == ["abort"]
    await settled(engine)
    assert core.added == []


async def test_a_second_live_request_of_the_same_id_is_refused(engine: AsyncLLMEngine) -> None:
    stream = await engine.add_request("r", "abc", SamplingParams(max_tokens=4000))
    with pytest.raises(InvalidRequestError, match="in use") as caught:
        await engine.add_request("r", "abc", SamplingParams())
    assert caught.value.param == "request_id"
    assert not (await anext(stream)).finished  # the first goes on
    stream.close()


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ("", SamplingParams(), InvalidRequestError),
        ("x" * 5000, SamplingParams(), ContextLengthError),
        ([999], SamplingParams(), InvalidRequestError),
        ("\ud800", SamplingParams(), InvalidRequestError),
        ("x", SamplingParams(flat_logprobs=True), UnsupportedError),
    ],
)
async def test_a_refused_request_leaves_nothing_behind(
    engine: AsyncLLMEngine, prompt: object, params: SamplingParams, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await engine.add_request("r", prompt, params)
    assert_nothing_left(engine)
    assert (await collect(engine, "abc", "r"))[-1].finished


async def test_a_request_that_the_core_refuses_fails_alone(tokenization: TokenizationService) -> None:
    core = FakeCore(num_blocks=2)
    engine = AsyncLLMEngine(
        fake_engine_config(), host=ThreadHost(build_core=lambda _config: core), tokenization=tokenization
    )
    async with engine:
        with pytest.raises(EngineGenerateError, match=r"'r' failed in the engine: .*does not fit 2 blocks"):
            await collect(engine, "x" * 100, "r")
        assert (await collect(engine, "abc", "s"))[-1].finished
        assert_nothing_left(engine)


async def test_more_requests_than_allowed_are_overload(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(0)
    streams = [await engine.add_request(str(number), "abc", SamplingParams()) for number in range(300)]
    with pytest.raises(OverloadedError, match="300"):
        await engine.add_request("one more", "abc", SamplingParams())
    for stream in streams:
        stream.close()


async def test_a_consumer_that_never_reads_holds_up_nobody(engine: AsyncLLMEngine) -> None:
    stream = await engine.add_request("sleeper", "abc", SamplingParams(max_tokens=2000, output_kind=DELTA))
    assert (await collect(engine, "xyz", "r", max_tokens=2500))[-1].finished
    outputs = [output async for output in stream]
    assert [(len(output.outputs[0].token_ids), output.finished) for output in outputs] == [(2000, True)]


async def test_a_cancelled_iteration_loses_nothing(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(0)
    stream = await engine.add_request("r", "abc", SamplingParams(max_tokens=3, output_kind=DELTA))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await anext(stream)
    core.allow_steps(None)
    await settled(engine)
    assert "".join([output.outputs[0].text async for output in stream]) == "abc"


async def test_a_second_consumer_of_a_stream_is_refused_and_the_first_gets_all(
    engine: AsyncLLMEngine, core: FakeCore
) -> None:
    core.allow_steps(0)
    stream = await engine.add_request("r", "abc", SamplingParams(max_tokens=3))
    first = asyncio.ensure_future(anext(stream))
    await settled(engine)
    with pytest.raises(EngineError, match="one consumer"):
        await anext(stream)
    core.allow_steps(None)
    outputs = [await first, *[output async for output in stream]]
    assert outputs[-1].finished


async def test_a_second_consumer_may_follow_one_that_was_cancelled(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(0)
    stream = await engine.add_request("r", "abc", SamplingParams(max_tokens=3))
    first = asyncio.ensure_future(anext(stream))
    await settled(engine)
    first.cancel()
    second = asyncio.ensure_future(anext(stream))  # before the first has noticed
    await asyncio.wait([first])
    core.allow_steps(None)
    assert (await second).request_id == "r"
    stream.close()


async def test_params_of_the_other_kind_are_refused(engine: AsyncLLMEngine) -> None:
    with pytest.raises(InvalidRequestError, match="generate takes SamplingParams"):
        await anext(engine.generate("abc", PoolingParams(), "r"))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="encode takes PoolingParams"):
        await anext(engine.encode("abc", SamplingParams(), "r"))  # type: ignore[arg-type]
    assert_nothing_left(engine)


async def test_statistics_tell_what_runs(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(0)
    stream = await engine.add_request("r", "x" * 40, SamplingParams())
    await settled(engine)
    statistics = engine.statistics()
    assert (statistics.num_unfinished, statistics.num_running) == (1, 1)
    assert statistics.kv_cache_usage == pytest.approx(3 / 4096)
    stream.close()


async def test_the_prefix_cache_is_reset_only_when_nothing_runs(engine: AsyncLLMEngine, core: FakeCore) -> None:
    assert await engine.reset_prefix_cache() is True
    core.allow_steps(0)
    stream = await engine.add_request("r", "abc", SamplingParams())
    assert await engine.reset_prefix_cache() is False
    stream.close()


async def test_the_model_and_its_tokenizer_are_told(engine: AsyncLLMEngine, tokenization: TokenizationService) -> None:
    assert (await engine.get_model_config()).max_model_len == 4096
    assert await engine.get_tokenizer() is tokenization.tokenizer("fake")
    assert engine.tokenization is tokenization


def test_sampling_defaults_are_the_models(core: FakeCore) -> None:
    config = fake_engine_config(sampling_defaults=SamplingDefaults(temperature=0.7, top_k=20))
    engine = AsyncLLMEngine(config, host=ThreadHost(build_core=lambda _config: core))
    defaults = engine.default_sampling_params()
    assert (defaults.temperature, defaults.top_k, defaults.top_p, defaults.max_tokens) == (0.7, 20, 1.0, None)


async def test_the_first_requests_start_the_engine_once(core: FakeCore, tokenization: TokenizationService) -> None:
    num_built = 0

    def build(_config: object) -> FakeCore:
        nonlocal num_built
        num_built += 1
        return core

    engine = AsyncLLMEngine(fake_engine_config(), host=ThreadHost(build_core=build), tokenization=tokenization)
    assert not engine.is_running
    await engine.check_health()
    await asyncio.gather(*(collect(engine, "abc", str(number)) for number in range(5)))
    assert (num_built, engine.is_running) == (1, True)
    await engine.shutdown_background_loop()
    assert (engine.is_running, engine.is_stopped, engine.errored) == (False, True, False)


async def test_shutdown_aborts_what_is_open_and_refuses_what_comes(engine: AsyncLLMEngine) -> None:
    stream = await engine.add_request("r", "abc", SamplingParams(max_tokens=4000))
    await engine.shutdown_background_loop()
    assert [output async for output in stream][-1].outputs[0].finish_reason == "abort"
    for refused in (engine.add_request("s", "abc", SamplingParams()), engine.check_health()):
        with pytest.raises(EngineDeadError, match="shut down"):
            await refused
    await engine.shutdown_background_loop()


async def test_shutdown_lets_requests_finish_when_it_is_given_time(engine: AsyncLLMEngine) -> None:
    stream = await engine.add_request("r", "abc", SamplingParams(max_tokens=3000))
    await engine.shutdown_background_loop(drain_timeout_s=20.0)
    assert [output async for output in stream][-1].outputs[0].finish_reason == "length"


async def test_a_failing_step_ends_every_request_with_the_real_cause(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(0)
    streams = [await engine.add_request(str(number), "abc", SamplingParams()) for number in range(3)]
    core.fail(RuntimeError("the matrix is not square"))
    core.allow_steps(None)
    with contextlib.suppress(EngineDeadError):  # it only wakes the core
        await settled(engine)
    errors = []
    for stream in streams:
        with pytest.raises(EngineDeadError) as caught:
            await anext(stream)
        errors.append(caught.value)
        with pytest.raises(StopAsyncIteration):  # told once
            await anext(stream)
    assert len({id(error) for error in errors}) == 3
    assert "RuntimeError: the matrix is not square" in str(engine.dead_error)
    assert "in step" in str(engine.dead_error.__cause__)
    assert (engine.errored, engine.is_running, engine.is_stopped) == (True, False, True)
    with pytest.raises(EngineDeadError, match="not square"):
        await engine.check_health()
    with pytest.raises(EngineDeadError, match="not square"):
        await collect(engine, "abc", "new")


async def test_a_core_that_cannot_be_built_says_why(tokenization: TokenizationService) -> None:
    def build(_config: object) -> FakeCore:
        raise SettingsError("kv_cache_memory_bytes is 1, too little for a block", param="kv_cache_memory_bytes")

    engine = AsyncLLMEngine(fake_engine_config(), host=ThreadHost(build_core=build), tokenization=tokenization)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="too little for a block"):
            await engine.start_background_loop()
    await engine.shutdown_background_loop()


async def test_a_tokenizer_that_cannot_be_loaded_stops_the_start(core: FakeCore) -> None:
    engine = AsyncLLMEngine(fake_engine_config(), host=ThreadHost(build_core=lambda _config: core))
    with pytest.raises(EngineDeadError, match=r"did not start: .*fake"):
        async with engine:
            pass


def test_one_engine_after_the_other_on_new_loops() -> None:
    async def main() -> str:
        async with TokenizationService() as tokenization:
            tokenization.register("fake", ByteTokenizer())
            host = ThreadHost(build_core=FakeCore)
            async with AsyncLLMEngine(fake_engine_config(), host=host, tokenization=tokenization) as engine:
                return (await collect(engine, "abc", "r"))[-1].outputs[0].text

    assert [asyncio.run(main()), asyncio.run(main())] == ["abcabcabca"] * 2


def test_an_engine_used_from_another_loop_says_so(core: FakeCore) -> None:
    async def start() -> AsyncLLMEngine:
        tokenization = TokenizationService()
        tokenization.register("fake", ByteTokenizer())
        host = ThreadHost(build_core=lambda _config: core)
        engine = AsyncLLMEngine(fake_engine_config(), host=host, tokenization=tokenization)
        await engine.start_background_loop()
        return engine

    with asyncio.Runner() as first:
        engine = first.run(start())
        with asyncio.Runner() as second:
            for call in (engine.start_background_loop, lambda: engine.abort("r"), engine.shutdown_background_loop):
                with pytest.raises(EngineError, match="another event loop"):
                    second.run(call())
        assert engine.is_running
        first.run(engine.shutdown_background_loop())
        first.run(engine.tokenization.aclose())


def test_an_engine_whose_loop_was_closed_can_still_be_shut_down() -> None:
    core = FakeCore()
    host = ThreadHost(build_core=lambda _config: core)

    async def start() -> AsyncLLMEngine:
        async with TokenizationService() as tokenization:
            tokenization.register("fake", ByteTokenizer())
            engine = AsyncLLMEngine(fake_engine_config(), host=host, tokenization=tokenization)
            await engine.start_background_loop()
            return engine

    engine = asyncio.run(start())
    asyncio.run(engine.shutdown_background_loop())
    assert engine.is_stopped
    assert "not running" in repr(host)
    with warnings.catch_warnings():  # that the first loop left its transport open is not the engine's doing
        warnings.simplefilter("ignore", ResourceWarning)
        del engine
        gc.collect()


def test_arguments_that_name_no_model_are_refused_before_anything_starts() -> None:
    with pytest.raises(SettingsError) as caught:
        AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="/nowhere/at/all"))
    assert caught.value.param == "model"


@pytest.mark.parametrize("field", ["max_num_requests", "start_timeout_s", "hang_timeout_s", "shutdown_timeout_s"])
def test_a_front_end_setting_out_of_range_is_refused(field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        FrontEndSettings(**{field: 0})
    assert caught.value.param == field


async def test_one_bad_text_fails_one_request(engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    class BrokenDecoder(BytesDecoder):
        def push(self, token_ids: object) -> str:
            raise RuntimeError("broken")

    real: Callable[..., object] = ByteTokenizer.incremental_decoder
    monkeypatch.setattr(ByteTokenizer, "incremental_decoder", lambda self, **kwargs: BrokenDecoder([], {}))
    broken = await engine.add_request("broken", "abc", SamplingParams())
    monkeypatch.setattr(ByteTokenizer, "incremental_decoder", real)
    with pytest.raises(EngineGenerateError, match="broken"):
        await anext(broken)
    assert (await collect(engine, "abc", "r"))[-1].finished
    await settled(engine)
    assert_nothing_left(engine)
