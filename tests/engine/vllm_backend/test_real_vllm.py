"""The same over an installed vLLM; not in the default suite, and skipped where it is not installed."""

import asyncio

import pytest
from tests.integration.service import DEMO_MODEL

from headrace.engine import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]


async def test_an_installed_vllm_answers_through_our_front_end() -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    args = AsyncEngineArgs(
        model=str(DEMO_MODEL), backend="vllm", dtype="float32", max_model_len=256, enforce_eager=True, max_num_seqs=8
    )
    async with AsyncLLMEngine.from_engine_args(args) as engine:
        params = SamplingParams(temperature=0, max_tokens=16, logprobs=1)

        async def answer(request_id: str) -> str:
            return (
                [output async for output in engine.generate("Once upon a time", params, request_id)][-1].outputs[0].text
            )

        alone = await answer("alone")
        assert alone.strip()
        assert await asyncio.gather(*(answer(str(number)) for number in range(4))) == [alone] * 4
        stream = await engine.add_request("long", "Once", SamplingParams(max_tokens=200, ignore_eos=True))
        await anext(stream)
        await engine.abort("long")
        assert [output async for output in stream][-1].outputs[0].finish_reason == "abort"
        assert engine.statistics().generation_tokens >= 80
        assert await engine.get_num_unfinished_requests() == 0
