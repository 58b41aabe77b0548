"""Groups of `headrace bench tokenization` with many callers at once: small prompts, and streams of tokens to text."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from tokenizers.decoders import DecodeStream

from headrace.aio.tasks import TaskOwner
from headrace.cli.benchmarks.baselines import VllmMicroBatching
from headrace.cli.benchmarks.corpus import mixed_text
from headrace.cli.benchmarks.encoding import Encoders
from headrace.cli.benchmarks.rounds import Group
from headrace.tokenization.microbatch.tokenizer import AsyncMicrobatchTokenizer

_NUM_CALLERS = 256
_NUM_STREAMS = 256

Encode = Callable[[str], Awaitable[Any]]


def caller_groups(encoders: Encoders, *, is_quick: bool) -> Iterator[Group]:
    for num_tokens in (8, 64, 512):
        yield small_prompts(encoders, num_tokens=num_tokens, num_each=2 if is_quick else 2048 // (num_tokens + 56))
    yield small_prompts(encoders, num_tokens=8, num_each=50 if is_quick else 500, num_callers=1)
    yield stream_group(encoders, num_tokens=50 if is_quick else 400)


def small_prompts(encoders: Encoders, *, num_tokens: int, num_each: int, num_callers: int = _NUM_CALLERS) -> Group:
    """Every caller encodes its prompts one after another. All ways call the same tokenizer of ours."""

    def encode_one(text: str) -> Any:
        return encoders.fastest.encode_batch([text], add_special_tokens=True)[0]

    async def in_executor(prompts: list[list[str]]) -> Any:
        loop = asyncio.get_running_loop()
        return await _by_callers(prompts, lambda text: loop.run_in_executor(None, encode_one, text))

    async def vllm_way(prompts: list[list[str]]) -> Any:
        def encode_batch(texts: Any) -> list[Any]:
            return list(encoders.fastest.encode_batch(texts, add_special_tokens=True))

        async with VllmMicroBatching(encode_batch) as batching:
            return await _by_callers(prompts, batching.encode)

    async def ours(prompts: list[list[str]]) -> Any:
        async with AsyncMicrobatchTokenizer(encoders.fastest) as batching:

            async def encode(text: str) -> Any:
                return (await batching(text)).input_ids

            return await _by_callers(prompts, encode)

    async def service(prompts: list[list[str]]) -> Any:
        return await _by_callers(prompts, encoders.service_encode)

    return Group(
        title=f"prompts of {num_tokens} tokens, {num_callers} caller{'s' if num_callers > 1 else ''}",
        unit="us",
        make_input=lambda number: [
            [
                encoders.text_of_tokens(("small", num_tokens, num_callers, number, caller, prompt), num_tokens)
                for prompt in range(num_each)
            ]
            for caller in range(num_callers)
        ],
        ways={
            "executor call per prompt": in_executor,
            "vLLM's micro-batching": vllm_way,
            "AsyncMicrobatchTokenizer": ours,
            "headrace service": service,
        },
        num_operations=num_callers * num_each,
        is_timed_inside=True,
    )


async def _by_callers(prompts: list[list[str]], encode: Encode) -> tuple[float, list[list[Any]]]:
    """Seconds, and the ids by caller and prompt."""

    async def call(own: list[str]) -> list[Any]:
        return [await encode(prompt) for prompt in own]

    await encode("warm-up")  # threads start outside of the measurement
    begun_s = time.perf_counter()
    async with TaskOwner("callers") as owner:
        tasks = [owner.spawn(call(own), name="caller") for own in prompts]
        results = [await task for task in tasks]
    return time.perf_counter() - begun_s, results


def stream_group(encoders: Encoders, *, num_tokens: int) -> Group:
    """All streams get one token a step, as an engine gives them."""

    def make_input(number: int) -> list[list[int]]:
        texts = [mixed_text(("stream", number, stream), num_tokens * 6) for stream in range(_NUM_STREAMS)]
        ids = encoders.tokenizer.encode_batch(texts, add_special_tokens=False)
        return [whole_characters(one[:num_tokens].tolist()) for one in ids]

    def whole_characters(ids: list[int]) -> list[int]:
        while encoders.tokenizer.decode(ids, skip_special_tokens=False).endswith("\ufffd"):
            ids.pop()
        return ids

    async def library(streams: list[list[int]]) -> Any:
        decoders = [DecodeStream(skip_special_tokens=False) for _ in streams]
        texts: list[list[str]] = [[] for _ in streams]
        begun_s = time.perf_counter()
        for step in range(num_tokens):
            for ids, decoder, text in zip(streams, decoders, texts, strict=True):
                if step < len(ids) and (piece := decoder.step(encoders.library, ids[step])):
                    text.append(piece)
        return time.perf_counter() - begun_s, ["".join(text) for text in texts]

    async def ours(streams: list[list[int]]) -> Any:
        decoders = [encoders.tokenizer.incremental_decoder(skip_special_tokens=False) for _ in streams]
        texts: list[list[str]] = [[] for _ in streams]
        begun_s = time.perf_counter()
        for step in range(num_tokens):
            for ids, decoder, text in zip(streams, decoders, texts, strict=True):
                if step < len(ids):
                    text.append(decoder.push(ids[step : step + 1]))
        return time.perf_counter() - begun_s, ["".join(text) for text in texts]

    return Group(
        title=f"text of {_NUM_STREAMS} streams, for each token",
        unit="us",
        make_input=make_input,
        ways={"tokenizers DecodeStream": library, "headrace incremental": ours},
        num_operations=_NUM_STREAMS * num_tokens,
        is_timed_inside=True,
    )
