"""Whatever the path and the settings, the ids are the reference's."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.tokenization import TokenIds, TokenizationService, TokenizationSettings, Tokenizer, load_tokenizer
from headrace.tokenization.fuzz import fuzz_texts

_NAMES = ["gpt2", "qwen2.5", "llama2"]

_SETTINGS: dict[str, dict[str, Any]] = {
    "everything on": {},
    "reference encoder": {"encoder": "reference"},
    "reference whole": {"encoder": "reference", "uses_cuts": False},
    "no cuts": {"uses_cuts": False},
    "no cache": {"cache_max_bytes": 0},
    "no resuming": {"resume_max_text": 0},
    "no whole texts": {"cache_max_text": 0},
    "never in place": {"in_place_max_chars": 0},
    "no budget": {"loop_budget_s": 0.0},
    "tiny cache": {"cache_max_bytes": 60_000, "cache_max_entries": 4},
    "all bulk": {"bulk_threshold": 1, "in_place_max_chars": 0},
}


def _growing_texts(rng: random.Random, added_tokens: tuple[str, ...]) -> list[str]:
    """Chats and documents that grow, branch and are asked again, over shared beginnings."""
    pieces = list(fuzz_texts(60, seed=rng.randrange(1000), special_tokens=added_tokens))
    plain = "A line of a document that is like all others, with words.\n"
    heads = [plain * 50, "".join(pieces[:20]) + plain * 40, "<|im_start|>system\n" + plain * 60 + "<|im_end|>\n"]
    texts: list[str] = []
    for _ in range(8):
        text = rng.choice(heads)
        for _ in range(rng.randint(1, 5)):
            text += rng.choice(("\n", "", " ", "<|im_end|>\n", "</s>")) + rng.choice((plain, *pieces)) * rng.randint(
                1, 4
            )
            texts.append(text)
        texts.append(text[: rng.randint(1, len(text))] + rng.choice(pieces))
        texts.append(rng.choice(texts))
    return texts


def _added_tokens(tokenizer: Tokenizer) -> tuple[str, ...]:
    added: tuple[str, ...] = tokenizer.added_tokens  # type: ignore[attr-defined]
    return added


async def _assert_same_ids(service: TokenizationService, tokenizer: Tokenizer, texts: list[str]) -> set[str]:
    sources: set[str] = set()
    for text in texts:
        for adds in (True, False):
            encoded = await service.encode("".join(text), model="m", add_special_tokens=adds)
            [expected] = tokenizer.encode_batch([text], add_special_tokens=adds)
            assert encoded.token_ids.tolist() == expected.tolist(), (encoded.source, encoded.num_resumed_chars)
            sources.add("resumed" if encoded.num_resumed_chars else encoded.source)
    return sources


@pytest.mark.parametrize("name", _NAMES)
async def test_all_paths_are_taken_and_give_the_ids_of_the_reference(
    name: str, real_tokenizer: Callable[[str], Tokenizer]
) -> None:
    pytest.importorskip("fastokens")
    tokenizer = real_tokenizer(name)
    rng = random.Random(9)
    async with TokenizationService(TokenizationSettings(in_place_max_chars=3000)) as service:
        service.register("m", tokenizer)
        await service.wait_admitted("m")
        texts = [text for _ in range(3) for text in _growing_texts(rng, _added_tokens(tokenizer))]
        sources = await _assert_same_ids(service, tokenizer, texts)
        assert {"cache", "in_place", "short", "resumed"} <= sources


@pytest.mark.parametrize("which", _SETTINGS)
async def test_every_layer_can_be_switched_off_and_the_ids_stay(
    which: str, real_tokenizer: Callable[[str], Tokenizer]
) -> None:
    tokenizer = real_tokenizer("llama2")
    async with TokenizationService(TokenizationSettings(**_SETTINGS[which])) as service:
        service.register("m", tokenizer)
        await service.wait_admitted("m")
        texts = _growing_texts(random.Random(which), _added_tokens(tokenizer))
        await _assert_same_ids(service, tokenizer, texts)


_PROCESSES: dict[str, Any] = {
    "num_processes": 1,
    "in_place_max_chars": 0,
    "saturation_bytes": 1,
    "local_fallback_budget_s": 0.0,
    "cache_max_bytes": 0,
}
_NUM_BATCHES = 1000
_BATCH = 94  # and eight texts that a fuzzed batch begins with


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("file", [*(f"{name}_tokenizer.json" for name in _NAMES), "o200k_base.tiktoken"])
async def test_a_hundred_thousand_texts_take_every_path_of_each_tokenizer(
    file: str, data_file: Callable[[str], Path]
) -> None:
    """Every setting gets all of the texts, a batch at a time, and so do the tokenizer processes."""
    path = data_file(file)
    tokenizer = load_tokenizer(path)
    rng = random.Random(file)
    num_texts, sources = 0, set()
    async with contextlib.AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(TokenizationService(TokenizationSettings(**settings, verify_share=0)))
            for settings in (*_SETTINGS.values(), _PROCESSES)
        ]
        for service in services:
            await service.load("m", path)
            await service.wait_admitted("m")
        for batch in range(_NUM_BATCHES):
            texts = list(fuzz_texts(_BATCH, seed=rng.randrange(1 << 40), special_tokens=_added_tokens(tokenizer)))
            num_texts += len(texts)
            for adds in (True, False):
                expected = tokenizer.encode_batch(texts, add_special_tokens=adds)
                for service in services:
                    sources |= await _assert_ids(service, texts, expected, adds=adds)
            if batch % 50 == 0:
                growing = _growing_texts(rng, _added_tokens(tokenizer))
                for service in services:
                    sources |= await _assert_same_ids(service, tokenizer, growing)
    assert num_texts >= 100_000
    assert {"cache", "in_place", "short", "bulk", "resumed"} <= sources
    assert "process" in sources or path.suffix == ".tiktoken"


async def _assert_ids(
    service: TokenizationService, texts: list[str], expected: list[TokenIds], *, adds: bool
) -> set[str]:
    """Ask for all at once, which fills the queues of those lanes that are used."""
    asked = [service.encode("".join(text), model="m", add_special_tokens=adds) for text in texts]
    results = await asyncio.gather(*asked)
    for text, encoded, ids in zip(texts, results, expected, strict=True):
        assert np.array_equal(encoded.token_ids, ids), (text, encoded.source, encoded.num_resumed_chars)
    return {"resumed" if encoded.num_resumed_chars else encoded.source for encoded in results}
