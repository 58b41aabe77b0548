import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from headrace.errors import (
    ContextLengthError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    TokenizationError,
)
from headrace.testing.tokenizers import FailingTokenizer, FakeTokenizer, GatedTokenizer
from headrace.tokenization import (
    ByteTokenizer,
    ChatPrompt,
    Encoded,
    Saturated,
    TokenIds,
    TokenizationService,
    TokenizationSettings,
    Tokenizer,
)
from headrace.tokenization.prompt import text_num_bytes

DEMO_MODEL = Path(__file__).parents[2] / "models" / "demo"
_CHAT = ChatPrompt([{"role": "user", "content": "hi"}])


@pytest.fixture
async def service() -> AsyncIterator[TokenizationService]:
    async with TokenizationService(TokenizationSettings(num_threads=1)) as service:
        yield service


def _ids(text: str) -> list[int]:
    [token_ids] = ByteTokenizer().encode_batch([text], add_special_tokens=False)
    return token_ids.tolist()


async def _begin(service: TokenizationService, text: str) -> asyncio.Task[Encoded]:
    """A task that has got as far as it can: its text waits in a lane or in a flight."""
    task = asyncio.create_task(service.encode(text, model="m"))
    await asyncio.sleep(0)
    return task


async def _hold(service: TokenizationService, tokenizer: GatedTokenizer) -> asyncio.Task[Encoded]:
    held = await _begin(service, "wait")
    await asyncio.to_thread(tokenizer.is_waiting.wait, 20)
    return held


async def test_text_and_chats_are_encoded_off_the_loop(service: TokenizationService) -> None:
    service.register("m", FakeTokenizer())
    encoded = await service.encode("h\u00e9llo", model="m")
    assert (encoded.token_ids.tolist(), encoded.source) == (_ids("h\u00e9llo"), "short")
    chat = await service.encode(_CHAT, model="m")
    assert chat.token_ids.tolist() == _ids("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


async def test_a_text_seen_before_comes_from_the_cache_as_the_same_array(service: TokenizationService) -> None:
    tokenizer = FakeTokenizer()
    service.register("m", tokenizer)
    first = await service.encode("text", model="m")
    second = await service.encode("text", model="m")
    assert (second.source, tokenizer.calls) == ("cache", [["text"]])
    assert second.token_ids is first.token_ids
    assert service.statistics().cache.num_hits == 1


async def test_the_cache_tells_tokenizers_and_flags_apart(service: TokenizationService) -> None:
    service.register("a", FakeTokenizer())
    other = FakeTokenizer()
    other.fingerprint = "another"
    service.register("b", other)
    sources = [
        (await service.encode("text", model=model, add_special_tokens=flag)).source
        for model, flag in (("a", True), ("a", False), ("b", True), ("a", True))
    ]
    assert sources == ["short", "short", "short", "cache"]


@pytest.mark.parametrize("name", ["cache_max_bytes", "cache_max_entries", "cache_max_text"])
async def test_with_the_cache_off_every_text_is_encoded(name: str) -> None:
    tokenizer = FakeTokenizer()
    async with TokenizationService(TokenizationSettings(**{name: 0})) as service:
        service.register("m", tokenizer)
        assert [(await service.encode("text", model="m")).source for _ in range(2)] == ["short", "short"]
        assert service.statistics().cache.num_misses == 0


async def test_texts_beyond_the_limit_are_not_cached_and_long_ones_use_the_bulk_lane() -> None:
    settings = TokenizationSettings(cache_max_text=10, bulk_threshold=20)
    async with TokenizationService(settings) as service:
        service.register("m", FakeTokenizer())
        for text, source in (("x" * 11, "short"), ("x" * 11, "short"), ("x" * 21, "bulk")):
            assert (await service.encode(text, model="m")).source == source
        assert service.statistics().cache.num_entries == 0


async def test_very_long_texts_are_encoded_whole(service: TokenizationService) -> None:
    service.register("m", FakeTokenizer())
    text = "word " * 60_000
    encoded = await service.encode(text, model="m")
    assert (len(encoded.token_ids), encoded.source) == (300_000, "bulk")


async def test_equal_texts_in_flight_are_encoded_once_and_outlive_the_first_asker(
    service: TokenizationService,
) -> None:
    tokenizer = GatedTokenizer()
    service.register("m", tokenizer)
    held = await _hold(service, tokenizer)
    first, second, third = [await _begin(service, "same") for _ in range(3)]
    first.cancel()
    tokenizer.gate.set()
    assert [(await task).source for task in (held, second, third)] == ["short", "flight", "flight"]
    assert first.cancelled()
    assert tokenizer.calls == [["wait"], ["same"]]
    assert (await service.encode("same", model="m")).source == "cache"


async def test_a_text_whose_askers_have_all_left_is_never_encoded(service: TokenizationService) -> None:
    tokenizer = GatedTokenizer()
    service.register("m", tokenizer)
    held = await _hold(service, tokenizer)
    leaving = [await _begin(service, "left") for _ in range(2)]
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)
    await asyncio.sleep(0)
    assert service.statistics().lanes[0].num_queued == 0
    assert service.statistics().num_flights == 1, "only the text that is being encoded"
    tokenizer.gate.set()
    await held
    await service.encode("next", model="m")
    assert tokenizer.calls == [["wait"], ["next"]]


async def test_a_full_queue_refuses_and_a_cancelled_caller_makes_room() -> None:
    tokenizer = GatedTokenizer()
    settings = TokenizationSettings(num_threads=1, max_queued_jobs=1, local_fallback_budget_s=0)
    async with TokenizationService(settings) as service:
        service.register("m", tokenizer)
        held = await _hold(service, tokenizer)
        waiting = await _begin(service, "a")
        with pytest.raises(OverloadedError):
            await service.encode("b", model="m")
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0)
        instead = await _begin(service, "b")
        tokenizer.gate.set()
        assert (await held).token_ids.tolist() == _ids("wait")
        assert (await instead).token_ids.tolist() == _ids("b")


@pytest.mark.parametrize("bad", ["crash", "panic"])
async def test_a_text_that_breaks_the_tokenizer_fails_only_its_askers(service: TokenizationService, bad: str) -> None:
    service.register("m", FailingTokenizer())
    results = await asyncio.gather(
        *[service.encode(text, model="m") for text in ("a", bad, bad, "b")], return_exceptions=True
    )
    assert [isinstance(result, TokenizationError) for result in results] == [False, True, True, False]
    assert results[1] is not results[2]
    assert (await service.encode("after", model="m")).token_ids.tolist() == _ids("after")


async def test_errors_are_not_cached(service: TokenizationService) -> None:
    service.register("m", FailingTokenizer())
    with pytest.raises(TokenizationError):
        await service.encode("crash", model="m")
    assert service.statistics().cache.num_entries == 0


async def test_a_lone_surrogate_is_the_clients_fault(service: TokenizationService) -> None:
    service.register("m", FakeTokenizer())
    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        await service.encode("a\ud800", model="m")


async def test_an_unknown_model_is_named_with_those_that_exist(service: TokenizationService) -> None:
    service.register("known", FakeTokenizer())
    with pytest.raises(ModelNotFoundError, match="'other' does not exist; models here: known"):
        await service.encode("x", model="other")


async def test_a_chat_for_a_tokenizer_without_template_is_refused(
    service: TokenizationService, real_tokenizer: Callable[[str], Tokenizer]
) -> None:
    service.register("m", real_tokenizer("gpt2"))
    with pytest.raises(InvalidRequestError, match="has no chat template"):
        await service.encode(_CHAT, model="m")


_TOOL = {"type": "function", "function": {"name": "f", "description": "x" * 15_000}}


@pytest.mark.parametrize(
    ("prompt", "is_here"),
    [
        (ChatPrompt([{"content": "x"}]), True),
        (ChatPrompt([{"content": "x" * 120_000}]), True),
        (ChatPrompt([{"content": "x" * 140_000}]), False),
        (ChatPrompt([{"content": "x"}] * 120), True),
        (ChatPrompt([{"content": "x"}] * 140), False),
        (ChatPrompt([{"content": "x"}], tools=[_TOOL] * 8), False),
    ],
    ids=["short", "much text", "too much text", "some messages", "many messages", "tools"],
)
async def test_a_chat_that_takes_long_is_rendered_off_the_loop_and_a_bad_one_fails_the_same_way(
    prompt: ChatPrompt, is_here: bool
) -> None:
    rendered_in: list[int] = []

    class Template:
        def render(self, messages: object, **options: object) -> str:
            rendered_in.append(threading.get_ident())
            raise InvalidRequestError("refused by the template", param="messages")

    tokenizer = FakeTokenizer()
    tokenizer.chat_template = Template()  # type: ignore[assignment]
    async with TokenizationService() as service:
        service.register("m", tokenizer)
        with pytest.raises(InvalidRequestError, match="refused by the template"):
            await service.encode(prompt, model="m")
    assert (rendered_in == [threading.get_ident()]) is is_here


@pytest.mark.parametrize("num_tokens", [10, 10_000])
async def test_decoding_gives_the_text_short_or_long(service: TokenizationService, num_tokens: int) -> None:
    service.register("m", ByteTokenizer())
    token_ids = [*b"x" * num_tokens, 258]
    assert await service.decode(token_ids, model="m", skip_special_tokens=True) == "x" * num_tokens
    assert await service.decode(token_ids, model="m") == "x" * num_tokens + "<|im_end|>"


async def test_a_loaded_tokenizer_serves_its_model(
    service: TokenizationService, data_file: Callable[[str], Path]
) -> None:
    tokenizer = await service.load("gpt2", data_file("gpt2_tokenizer.json"))
    assert service.tokenizer("gpt2") is tokenizer
    assert (await service.encode("Hello world", model="gpt2")).token_ids.tolist() == [15496, 995]


async def test_loading_what_is_not_there_registers_nothing(service: TokenizationService, tmp_path: Path) -> None:
    with pytest.raises(TokenizationError, match="No such file"):
        await service.load("m", tmp_path)
    assert service.statistics().num_models == 0


async def test_closing_fails_waiting_callers_and_leaves_no_thread() -> None:
    before = threading.enumerate()
    tokenizer = GatedTokenizer()
    service = TokenizationService(TokenizationSettings(num_threads=2, num_bulk_threads=2))
    service.register("m", tokenizer)
    held = await _hold(service, tokenizer)
    waiting = await _begin(service, "wait too")
    closing = asyncio.create_task(service.aclose())
    results = await asyncio.gather(held, waiting, return_exceptions=True)
    assert [type(result) for result in results] == [OverloadedError, OverloadedError]
    tokenizer.gate.set()
    await closing
    await service.aclose()
    new = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not [name for name in new if name.startswith("headrace-")]
    with pytest.raises(OverloadedError, match="closed"):
        await service.encode("x", model="m")


def test_a_service_follows_its_program_into_the_next_loop_but_serves_one_at_a_time() -> None:
    service = TokenizationService()
    service.register("m", FakeTokenizer())

    async def encode(text: str) -> str:
        return (await service.encode(text, model="m")).source

    assert asyncio.run(encode("a")) == "short"
    assert asyncio.run(encode("a")) == "cache"

    async def encode_in_two_loops() -> None:
        await encode("b")
        with pytest.raises(RuntimeError, match="serves another event loop"):
            await asyncio.to_thread(asyncio.run, encode("c"))
        await service.aclose()

    asyncio.run(encode_in_two_loops())


async def test_metrics_split_waiting_from_encoding_by_model_and_lane() -> None:
    registry = CollectorRegistry()
    async with TokenizationService(registry=registry) as service:
        service.register("m", FakeTokenizer())
        for _ in range(2):
            await service.encode("text", model="m")

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"headrace_tokenization_{name}", labels)

        assert value("encode_seconds_count", model="m", lane="short") == 1
        assert value("queue_wait_seconds_count", model="m", lane="short") == 1
        assert value("cache_lookups_total", model="m", result="hit") == 1
        assert value("cache_lookups_total", model="m", result="miss") == 1
        assert value("queue_depth", lane="short") == 0
        assert value("cache_bytes") == service.statistics().cache.num_bytes > 0


async def test_two_services_in_a_process_count_apart() -> None:
    async with TokenizationService(registry=CollectorRegistry()) as one, TokenizationService() as other:
        one.register("m", FakeTokenizer())
        other.register("m", FakeTokenizer())
        await one.encode("text", model="m")
        assert (one.statistics().cache.num_misses, other.statistics().cache.num_misses) == (1, 0)


@pytest.mark.parametrize("name", ["gpt2", "qwen2.5", "llama2"])
async def test_under_concurrency_and_cancellation_ids_equal_the_reference(
    name: str, real_tokenizer: Callable[[str], Tokenizer]
) -> None:
    rng = random.Random(11)
    tokenizer = real_tokenizer(name)
    alphabet = ["the ", "Zug", " \n", "\u4f60", "\U0001f642", "<|im_end|>", "0123", "e\u0301"]
    texts = ["".join(rng.choices(alphabet, k=rng.choice((1, 5, 40, 400)))) for _ in range(150)]
    expected = [ids.tolist() for ids in tokenizer.encode_batch(texts, add_special_tokens=True)]
    settings = TokenizationSettings(num_threads=2, bulk_threshold=1024, cache_max_entries=40, batch_max_bytes=512)
    async with TokenizationService(settings) as service:
        service.register("m", tokenizer)
        order = [rng.randrange(len(texts)) for _ in range(600)]

        async def encode_or_leave(index: int) -> None:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            task = asyncio.create_task(service.encode(texts[index], model="m"))
            if rng.random() < 0.25:
                for _ in range(rng.randrange(6)):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                assert task.result().token_ids.tolist() == expected[index]

        for start in range(0, len(order), 100):
            await asyncio.gather(*[encode_or_leave(index) for index in order[start : start + 100]])
        await service.encode("the last one", model="m")
        seen = service.statistics()
        assert seen.num_flights == 0
        assert [lane.num_queued for lane in seen.lanes] == [0, 0]
        assert seen.cache.num_entries <= 40


async def test_a_prompt_that_cannot_fit_is_refused_before_anything_is_encoded(service: TokenizationService) -> None:
    tokenizer = FakeTokenizer()
    service.register("m", tokenizer)
    longest = tokenizer.max_token_bytes
    with pytest.raises(ContextLengthError, match="at least 3 tokens, more than the 2 that fit"):
        await service.encode("x" * (2 * longest + 1), model="m", max_tokens=2)
    with pytest.raises(ContextLengthError):
        await service.encode("\u4e00" * longest, model="m", max_tokens=2)
    assert tokenizer.calls == []
    assert len((await service.encode("x" * 2 * longest, model="m", max_tokens=2)).token_ids) == 2 * longest


async def test_a_caller_that_would_not_wait_is_told_that_the_lane_is_saturated() -> None:
    tokenizer = GatedTokenizer()
    settings = TokenizationSettings(num_threads=1, saturation_bytes=10, local_fallback_budget_s=0)
    async with TokenizationService(settings) as service:
        service.register("m", tokenizer)
        held = await _hold(service, tokenizer)
        waiting = await _begin(service, "x" * 8)
        answer = await service.encode("y" * 8, model="m", on_saturation="bail")
        assert answer == Saturated("short", num_queued=1, num_queued_bytes=8)
        patient = await _begin(service, "y" * 8)
        tokenizer.gate.set()
        for task in (held, waiting, patient):
            assert (await task).source == "short"
        free = await service.encode("z", model="m", on_saturation="bail")
        assert isinstance(free, Encoded)


class _AnywhereTokenizer(GatedTokenizer):
    """May be called in the event loop for texts that begin with `here`."""

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        if texts[0].startswith("here"):
            return ByteTokenizer.encode_batch(self, texts, add_special_tokens=add_special_tokens)
        return super().encode_batch(texts, add_special_tokens=add_special_tokens)


async def test_when_the_threads_are_saturated_a_short_text_is_encoded_in_the_loop() -> None:
    tokenizer = _AnywhereTokenizer()
    async with TokenizationService(TokenizationSettings(num_threads=1, saturation_bytes=4)) as service:
        service.register("m", tokenizer)
        held = await _hold(service, tokenizer)
        waiting = await _begin(service, "x" * 8)
        local = await service.encode("here", model="m", on_saturation="bail")
        assert isinstance(local, Encoded)
        assert (local.source, local.token_ids.tolist()) == ("local", _ids("here"))
        assert service.statistics().local_fallback.num_encoded == 1
        tokenizer.gate.set()
        await asyncio.wait([held, waiting])


@pytest.mark.parametrize(("character", "num_bytes"), [("a", 1), ("\u00e9", 1), ("\u4e00", 2), ("\U0001f642", 4)])
def test_a_long_text_counts_as_what_it_takes_in_memory(character: str, num_bytes: int) -> None:
    assert 0 <= text_num_bytes(character * 100_000) - 100_000 * num_bytes < 100
    assert text_num_bytes(character * 100) == len(character.encode()) * 100


def test_fifty_prompts_of_a_hundred_thousand_tokens_may_wait() -> None:
    settings = TokenizationSettings()
    assert 50 * text_num_bytes("\U0001f642" + "\u4e00 text" * 60_000) < settings.max_queued_bytes


@pytest.mark.integration
async def test_when_the_threads_are_saturated_a_process_helps_and_what_it_encodes_is_kept(
    data_file: Callable[[str], Path],
) -> None:
    settings = TokenizationSettings(num_threads=1, saturation_bytes=4, num_processes=1, encoder="reference")
    async with TokenizationService(settings) as service:
        tokenizer = await service.load("m", data_file("gpt2_tokenizer.json"))
        await service._processes.wait_ready(timeout_s=30)
        gated = GatedTokenizer()
        service.register("gated", gated)
        held = asyncio.create_task(service.encode("wait", model="gated"))
        await asyncio.to_thread(gated.is_waiting.wait, 20)
        waiting = asyncio.create_task(service.encode("x" * 8, model="gated"))
        await asyncio.sleep(0)
        helped = await service.encode("Hello world", model="m")
        [expected] = tokenizer.encode_batch(["Hello world"], add_special_tokens=True)
        assert (helped.source, helped.token_ids.tolist()) == ("process", expected.tolist())
        assert (await service.encode("Hello world", model="m")).source == "cache"
        gated.gate.set()
        await asyncio.wait([held, waiting])


async def test_an_encoder_that_was_asked_for_and_cannot_serve_fails_the_load(
    tmp_path: Path, tiny_tokenizer_json: bytes
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tiny_tokenizer_json)
    async with TokenizationService(TokenizationSettings(encoder="fastokens")) as service:
        with pytest.raises(TokenizationError, match="fastokens cannot serve"):
            await service.load("m", tmp_path)


async def test_a_service_that_closes_while_it_compares_ends_soon(real_tokenizer: Callable[[str], Tokenizer]) -> None:
    service = TokenizationService()
    service.register("m", real_tokenizer("gpt2"))
    assert (await service.encode("Hello", model="m")).source == "short", "the reference serves meanwhile"
    await service.aclose()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace-")]


async def test_content_is_counted_by_class_as_cached_resumed_or_encoded(
    real_tokenizer: Callable[[str], Tokenizer],
) -> None:
    registry = CollectorRegistry()

    def value(content: str, result: str) -> float:
        labels = {"model": "m", "content": content, "result": result}
        return registry.get_sample_value("headrace_tokenization_chars_total", labels) or 0

    tokenizer = FakeTokenizer()
    async with TokenizationService(registry=registry) as service:
        service.register("m", tokenizer)
        chat = ChatPrompt([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}])
        for _ in range(2):
            await service.encode(chat, model="m")
        await service.encode("plain", model="m")
        service.register("m", real_tokenizer("gpt2"))
        await service.wait_admitted("m")
        text = "some words of a text\n" * 300
        await service.encode(text, model="m")
        await service.encode(text + "and more", model="m")
    assert value("system", "encoded") == value("system", "cached") > 0
    assert value("conversation", "encoded") == value("conversation", "cached") > 0
    assert value("other", "resumed") > 6000
    assert value("other", "encoded") < len("plain") + len(text) + 100


def test_importing_the_package_loads_no_heavy_library() -> None:
    check = (
        "import sys, headrace.tokenization as t; "
        "heavy = {'torch', 'transformers', 'jinja2', 'tokenizers', 'prometheus_client'} & set(sys.modules); "
        "assert not heavy, heavy; t.TokenizationService; "
        "assert not {'torch', 'transformers', 'ray'} & set(sys.modules); "
        "assert all(getattr(t, name) for name in t.__all__)"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=50)


async def test_short_texts_of_an_accelerated_tokenizer_are_counted_and_not_kept(
    real_tokenizer: Callable[[str], Tokenizer],
) -> None:
    pytest.importorskip("fastokens")
    registry = CollectorRegistry()
    tokenizer = real_tokenizer("gpt2")
    async with TokenizationService(registry=registry) as service:
        service.register("m", tokenizer)
        await service.wait_admitted("m")
        for _ in range(2):
            encoded = await service.encode("a few words", model="m")
            assert encoded.source == "in_place"
            assert encoded.token_ids.tolist() == _reference_ids(tokenizer, "a few words")
        flood = await asyncio.gather(*[service.encode(f"word {number} " * 150, model="m") for number in range(300)])
        await asyncio.sleep(0)
    assert {encoded.source for encoded in flood} == {"in_place"}
    for number, encoded in enumerate(flood):
        assert encoded.token_ids.tolist() == _reference_ids(tokenizer, f"word {number} " * 150)
    lookups = {"model": "m", "result": "miss"}
    assert registry.get_sample_value("headrace_tokenization_cache_lookups_total", lookups) == 302
    chars = {"model": "m", "content": "other", "result": "encoded"}
    num_chars = 2 * len("a few words") + sum(len(f"word {number} " * 150) for number in range(300))
    assert registry.get_sample_value("headrace_tokenization_chars_total", chars) == num_chars


def _reference_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_batch([text], add_special_tokens=True)[0].tolist()


async def test_the_time_that_encoding_holds_the_loop_is_noted() -> None:
    async with TokenizationService() as service:
        await service.load("demo", DEMO_MODEL)
        await service.wait_admitted("demo")
        encoded = await service.encode("Hello there.", model="demo")
        await asyncio.sleep(0)  # a round of the loop ends
        [section] = service.sections.statistics()
    assert encoded.source == "in_place"
    assert section.name == "tokenization"
    assert section.held_s >= encoded.encode_s > 0
