"""Through the whole engine, on a tiny random model: what is asked of the tokens is in the outputs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.async_engine import AsyncLLMEngine
from headrace.engine.client.core_client import CoreClient
from headrace.engine.config import AsyncEngineArgs
from headrace.engine.outputs import RequestOutput, RequestOutputKind
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.structured_outputs import StructuredOutputsParams
from headrace.engine.wire.messages import AddRequest
from headrace.errors import InvalidRequestError

PROMPT = "Where does the water go when the wheel has turned?"
KINDS = list(RequestOutputKind)


@pytest.fixture
async def engine(tiny_model_dir: Path) -> AsyncIterator[AsyncLLMEngine]:
    """In this process; nothing may be left in it."""
    args = AsyncEngineArgs(model=str(tiny_model_dir), cpu_threads=1, device="cpu", disable_log_requests=True)
    async with AsyncLLMEngine.from_engine_args(args, in_process=True) as engine:
        yield engine
        assert await engine.get_num_unfinished_requests() == 0
        await engine.check_integrity()


async def collect(engine: AsyncLLMEngine, request_id: str = "r", **params: Any) -> list[RequestOutput]:
    wanted = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **params})
    return [output async for output in engine.generate(PROMPT, wanted, request_id)]


def completion(outputs: list[RequestOutput], index: int) -> tuple[list[int], str, Any]:
    """Everything that the outputs tell of one completion, put together."""
    pieces = [one for output in outputs for one in output.outputs if one.index == index]
    token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
    positions = [position for piece in pieces for position in piece.logprobs or []]
    return token_ids, "".join(piece.text for piece in pieces), positions


async def test_n_completions_are_those_of_n_requests_with_the_following_seeds(engine: AsyncLLMEngine) -> None:
    deltas = await collect(engine, n=3, seed=21, logprobs=1, output_kind=RequestOutputKind.DELTA)
    assert [output.finished for output in deltas] == [False] * (len(deltas) - 1) + [True]
    for index in range(3):
        single = (await collect(engine, seed=21 + index, logprobs=1))[-1].outputs[0]
        token_ids, text, positions = completion(deltas, index)
        assert (token_ids, text) == (single.token_ids, single.text)
        assert [dict(position) for position in positions] == single.logprobs


@pytest.mark.parametrize("kind", KINDS)
async def test_every_output_kind_tells_all_log_probabilities(engine: AsyncLLMEngine, kind: RequestOutputKind) -> None:
    outputs = await collect(engine, temperature=0.0, logprobs=2, prompt_logprobs=1, output_kind=kind)
    last = outputs[-1]
    if kind is RequestOutputKind.DELTA:
        token_ids, _, positions = completion(outputs, 0)
        told = [output.prompt_logprobs for output in outputs]
        assert all(later is None for later in told[1:])
        prompt = told[0]
    else:
        token_ids, positions, prompt = last.outputs[0].token_ids, last.outputs[0].logprobs, last.prompt_logprobs
    assert positions is not None
    assert [next(iter(position)) for position in positions] == token_ids
    assert all(position[token_id].rank == 1 for position, token_id in zip(positions, token_ids, strict=True))
    total = sum(position[token_id].logprob for position, token_id in zip(positions, token_ids, strict=True))
    assert last.outputs[0].cumulative_logprob == pytest.approx(total)
    assert prompt is not None
    assert prompt[0] is None
    assert [next(iter(position)) for position in prompt[1:] if position] == last.prompt_token_ids[1:]


async def test_no_log_probabilities_come_unasked(engine: AsyncLLMEngine) -> None:
    last = (await collect(engine))[-1]
    assert (last.prompt_logprobs, last.outputs[0].logprobs, last.outputs[0].cumulative_logprob) == (None, None, None)


async def test_tokens_are_decoded_unless_no_text_is_wanted(engine: AsyncLLMEngine) -> None:
    tokenizer = await engine.get_tokenizer()
    for detokenize in (True, False):
        last = (await collect(engine, logprobs=1, detokenize=detokenize))[-1].outputs[0]
        for position in last.logprobs or []:
            for token_id, one in position.items():
                text = tokenizer.decode([token_id], skip_special_tokens=False) if detokenize else None
                assert one.decoded_token == text


async def test_a_bad_word_does_not_come_up(engine: AsyncLLMEngine) -> None:
    free = (await collect(engine, temperature=0.0, max_tokens=20))[-1].outputs[0]
    tokenizer = await engine.get_tokenizer()
    word = next(
        text
        for token_id in free.token_ids
        if (text := tokenizer.decode([token_id], skip_special_tokens=True)).strip().isalpha()
    )
    held = (await collect(engine, temperature=0.0, max_tokens=20, bad_words=[word.strip()]))[-1].outputs[0]
    assert word in free.text
    assert held.token_ids != free.token_ids
    banned = tokenizer.encode_batch([word.strip(), " " + word.strip()], add_special_tokens=False)
    single = {int(ids[0]) for ids in banned if len(ids) == 1}
    assert not single & set(held.token_ids)


async def test_leaving_a_request_of_several_completions_ends_them_all(engine: AsyncLLMEngine) -> None:
    stream = engine.generate(PROMPT, SamplingParams(n=4, max_tokens=400, ignore_eos=True), "r")
    await anext(stream)
    assert await engine.get_num_unfinished_requests() == 1
    await stream.aclose()
    assert await engine.get_num_unfinished_requests() == 0
    await engine.abort("r")  # returns when the core has dealt with what came before it
    while engine.statistics().num_running:
        await collect(engine, "next", max_tokens=1)


async def test_aborting_a_request_of_several_completions_ends_them_all(engine: AsyncLLMEngine) -> None:
    stream = await engine.add_request("r", PROMPT, SamplingParams(n=3, max_tokens=400, ignore_eos=True))
    await anext(stream)
    await engine.abort("r")
    outputs = [output async for output in stream]
    assert outputs[-1].finished
    assert [one.finish_reason for one in outputs[-1].outputs] == ["abort"] * 3


async def test_an_abort_between_two_completions_being_sent_ends_both(
    engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.start_background_loop()
    real = CoreClient.add

    async def add_then_abort(client: CoreClient, request: AddRequest) -> None:
        await engine.abort("r")
        await real(client, request)

    monkeypatch.setattr(CoreClient, "add", add_then_abort)
    stream = await engine.add_request("r", PROMPT, SamplingParams(n=3, max_tokens=400, ignore_eos=True))
    monkeypatch.undo()
    assert [output.finished async for output in stream] == [True]
    await collect(engine, "next", max_tokens=1)
    assert engine.statistics().num_running == 0


async def test_guided_and_free_requests_share_a_batch(engine: AsyncLLMEngine) -> None:
    digits = StructuredOutputsParams(regex="[0-9]{5}")
    results = await asyncio.gather(
        *(
            collect(engine, str(index), seed=index, structured_outputs=digits if index % 2 else None)
            for index in range(8)
        )
    )
    for index, outputs in enumerate(results):
        answer = outputs[-1].outputs[0]
        if index % 2:
            assert answer.text.isdigit()
            assert (len(answer.text), answer.finish_reason) == (5, "stop")
        else:
            alone = (await collect(engine, seed=index))[-1].outputs[0]
            assert answer.token_ids == alone.token_ids


async def test_a_grammar_that_is_refused_is_the_callers_error(engine: AsyncLLMEngine) -> None:
    with pytest.raises(InvalidRequestError, match=r"structured_outputs\.regex"):
        await collect(engine, structured_outputs=StructuredOutputsParams(regex="(a"))
    assert (await collect(engine))[-1].finished


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "logprob_token_ids"])
async def test_a_token_that_the_model_does_not_have_is_named(engine: AsyncLLMEngine, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="99999") as caught:
        await collect(engine, **{name: {99999: 1.0} if name == "logit_bias" else [99999]})
    assert caught.value.param == name
