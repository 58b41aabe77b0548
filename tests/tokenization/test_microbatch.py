"""Each fault of vLLM's class of this name is a test here; the numbers are those of our list of them."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRequestError, OverloadedError, TokenizationError, UnsupportedError
from headrace.testing.tokenizers import FailingTokenizer, PanicError
from headrace.tokenization import ByteTokenizer, Tokenizer
from headrace.tokenization.microbatch.keywords import Keywords
from headrace.tokenization.microbatch.tokenizer import AsyncMicrobatchTokenizer


@dataclass(eq=False)
class EchoTokenizer:
    """Gives back what it was called with. Waits at its gate for `wait`, raises for `bad` and `panic`."""

    gate: threading.Event = field(default_factory=threading.Event)
    is_waiting: threading.Event = field(default_factory=threading.Event)
    calls: list[Any] = field(default_factory=list)
    num_inside: int = 0
    max_inside: int = 0

    def __call__(self, prompt: Any, **kwargs: Any) -> dict[str, Any]:
        self.calls.append(prompt)
        self.num_inside += 1
        self.max_inside = max(self.max_inside, self.num_inside)
        if isinstance(prompt, str) and prompt.startswith("wait"):
            self.is_waiting.set()
            assert self.gate.wait(20)
        self.num_inside -= 1
        if prompt == "bad":
            raise ValueError("bad prompt")
        if prompt == "stop":
            raise StopIteration
        if prompt == "panic":
            raise PanicError("rust")
        return {"prompt": prompt} | kwargs

    def decode(self, token_ids: Any, **kwargs: Any) -> str:
        return f"{list(token_ids)} {kwargs}"


@pytest.fixture
def echo() -> EchoTokenizer:
    return EchoTokenizer()


@pytest.fixture
async def batcher(echo: EchoTokenizer) -> AsyncIterator[AsyncMicrobatchTokenizer]:
    async with AsyncMicrobatchTokenizer(echo) as batcher:
        yield batcher
        echo.gate.set()


@pytest.fixture
async def hold(echo: EchoTokenizer, batcher: AsyncMicrobatchTokenizer) -> asyncio.Task[Any]:
    """The thread stands at the gate, so that what is asked next queues."""
    held = asyncio.create_task(batcher("wait"))
    await asyncio.to_thread(echo.is_waiting.wait, 20)
    return held


def num_trips(batcher: AsyncMicrobatchTokenizer) -> int:
    return batcher.statistics().short.num_calls


async def together(*awaitables: Any) -> list[Any]:
    """Start all, in order, before any is awaited; exceptions are results."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    await asyncio.sleep(0)
    await asyncio.wait(tasks)
    return [task.exception() or task.result() for task in tasks]


async def test_1_every_request_keeps_its_own_keywords(
    hold: asyncio.Task[Any], echo: EchoTokenizer, batcher: AsyncMicrobatchTokenizer
) -> None:
    echo.gate.set()
    results = await together(*[batcher(prompt, tag=tag) for tag, prompt in enumerate("xyz")])
    assert results == [{"prompt": prompt, "tag": tag} for tag, prompt in enumerate("xyz")]


async def test_1_requests_share_a_trip_only_if_every_keyword_is_equal(
    hold: asyncio.Task[Any], echo: EchoTokenizer, batcher: AsyncMicrobatchTokenizer
) -> None:
    tags = (True, 1, True, [1], [1], "a")
    tasks = [asyncio.ensure_future(batcher("x", tag=tag)) for tag in tags]
    await asyncio.sleep(0)
    echo.gate.set()
    await asyncio.wait(tasks)
    assert num_trips(batcher) == 1 + 4  # the one held, then True, 1, [1] and "a"


@pytest.mark.parametrize("truncation", [True, False, "do_not_truncate", "longest_first", "only_first"])
async def test_2_truncation_arrives_as_it_was_given(truncation: object, batcher: AsyncMicrobatchTokenizer) -> None:
    assert (await batcher("x", truncation=truncation, max_length=3))["truncation"] is truncation


async def test_3_decode_keeps_its_keywords(batcher: AsyncMicrobatchTokenizer) -> None:
    results = await together(batcher.decode([1], skip_special_tokens=True), batcher.decode([2]))
    assert results == ["[1] {'skip_special_tokens': True}", "[2] {}"]


async def test_4_one_bad_prompt_fails_alone_with_an_error_of_its_own(
    hold: asyncio.Task[Any], echo: EchoTokenizer, batcher: AsyncMicrobatchTokenizer
) -> None:
    tasks = [asyncio.ensure_future(batcher(prompt)) for prompt in ("a", "bad", "b", "bad")]
    await asyncio.sleep(0)
    echo.gate.set()
    await asyncio.wait(tasks)
    assert (tasks[0].result(), tasks[2].result()) == ({"prompt": "a"}, {"prompt": "b"})
    errors = [tasks[1].exception(), tasks[3].exception()]
    assert [str(error) for error in errors] == ["bad prompt", "bad prompt"]
    assert errors[0] is not errors[1]
    assert num_trips(batcher) == 2


async def test_5_a_panic_fails_its_prompt_and_later_ones_are_served(batcher: AsyncMicrobatchTokenizer) -> None:
    for _ in range(2):
        with pytest.raises(TokenizationError, match="PanicError: rust") as failure:
            await batcher("panic")
        assert isinstance(failure.value.__cause__, PanicError)
    assert await batcher("after") == {"prompt": "after"}


async def test_5_an_error_that_no_future_can_raise_is_told_as_ours(batcher: AsyncMicrobatchTokenizer) -> None:
    with pytest.raises(TokenizationError, match="StopIteration"):
        await batcher("stop")


async def test_6_a_cancelled_request_is_never_made(
    hold: asyncio.Task[Any], echo: EchoTokenizer, batcher: AsyncMicrobatchTokenizer
) -> None:
    leaving = asyncio.create_task(batcher("leaving"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    echo.gate.set()
    await batcher("staying")
    assert echo.calls == ["wait", "staying"]


async def test_7_a_lone_request_waits_for_nobody(echo: EchoTokenizer) -> None:
    async with AsyncMicrobatchTokenizer(echo, batch_wait_timeout_s=3600) as batcher:
        assert await batcher("lone") == {"prompt": "lone"}


async def test_7_what_queued_while_a_call_ran_goes_in_one_trip(
    hold: asyncio.Task[Any], echo: EchoTokenizer, batcher: AsyncMicrobatchTokenizer
) -> None:
    tasks = [asyncio.ensure_future(batcher(str(number))) for number in range(10)]
    await asyncio.sleep(0)
    echo.gate.set()
    await asyncio.wait(tasks)
    assert num_trips(batcher) == 2


async def test_8_a_trip_is_bounded_in_prompts_and_in_bytes(echo: EchoTokenizer) -> None:
    async with AsyncMicrobatchTokenizer(echo, max_batch_size=4) as batcher:
        held = asyncio.create_task(batcher("wait"))
        await asyncio.to_thread(echo.is_waiting.wait, 20)
        tasks = [asyncio.ensure_future(batcher(prompt)) for prompt in [*"abcdefgh", "i" * 10_000, "j" * 10_000]]
        await asyncio.sleep(0)
        echo.gate.set()
        await asyncio.wait([held, *tasks])
        assert num_trips(batcher) == 1 + 2 + 2


async def test_8_a_long_prompt_holds_up_no_short_one() -> None:
    async with AsyncMicrobatchTokenizer(Copied()) as batcher:
        long = asyncio.create_task(batcher("wait" + 100_000 * "x"))
        assert await batcher("short") == {"prompt": "short"}
        assert await batcher.decode([1]) == "[1] {}"
        Copied.release.set()
        await long


async def test_9_the_type_of_a_result_does_not_depend_on_the_load(data_file: Callable[[str], Path]) -> None:
    fast = _transformers_tokenizer(data_file("gpt2_tokenizer.json"))
    alone = fast("some text", return_offsets_mapping=True)
    async with AsyncMicrobatchTokenizer(fast) as batcher:
        lone = await batcher("some text", return_offsets_mapping=True)
        many = await together(*[batcher("some text", return_offsets_mapping=True) for _ in range(20)])
    for result in (lone, *many):
        assert type(result) is type(alone)
        assert result == alone
        assert result.is_fast
        assert result.char_to_token(5) == alone.char_to_token(5)


async def test_9_tensors_and_overflowing_tokens_come_as_for_one(data_file: Callable[[str], Path]) -> None:
    fast = _transformers_tokenizer(data_file("gpt2_tokenizer.json"))
    text = "one two three four five"
    overflow = {"truncation": True, "max_length": 2, "return_overflowing_tokens": True}
    async with AsyncMicrobatchTokenizer(fast) as batcher:
        tensors = await together(*[batcher(text, return_tensors="np") for _ in range(5)])
        pieces = await together(*[batcher(text, **overflow) for _ in range(5)])
        pair = await batcher(text, text_pair=text)
    assert [tensor["input_ids"].shape for tensor in tensors] == [fast(text, return_tensors="np")["input_ids"].shape] * 5
    assert pieces == [fast(text, **overflow)] * 5
    assert pair == fast(text, text_pair=text)


async def test_10_closing_ends_the_threads_and_fails_whoever_waits(echo: EchoTokenizer) -> None:
    threads = threading.active_count()
    batcher = AsyncMicrobatchTokenizer(echo)
    waiting = [asyncio.ensure_future(batcher("wait"))]
    await asyncio.to_thread(echo.is_waiting.wait, 20)
    waiting.append(asyncio.ensure_future(batcher("x")))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(batcher.aclose())
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [OverloadedError, OverloadedError]
    echo.gate.set()
    await closing
    await batcher.aclose()
    with pytest.raises(OverloadedError, match="closed"):
        await batcher("late")
    default_pool = 1  # of `to_thread` above
    assert threading.active_count() <= threads + default_pool


async def test_10_what_waits_is_bounded(echo: EchoTokenizer) -> None:
    async with AsyncMicrobatchTokenizer(echo, max_queued_prompts=1) as batcher:
        tasks = [asyncio.ensure_future(batcher("wait"))]
        await asyncio.to_thread(echo.is_waiting.wait, 20)
        tasks.append(asyncio.ensure_future(batcher("x")))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="1 prompts wait"):
            await batcher("y")
        echo.gate.set()
        await asyncio.wait(tasks)
        assert await batcher("z") == {"prompt": "z"}


async def test_10_dropped_unclosed_it_ends_its_threads(echo: EchoTokenizer) -> None:
    batcher = AsyncMicrobatchTokenizer(echo)
    await batcher("x")
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "headrace-microbatch-0"]
    del batcher
    gc.collect()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


def test_11_it_is_made_anywhere_and_serves_one_loop_after_another(echo: EchoTokenizer) -> None:
    batcher = AsyncMicrobatchTokenizer(echo)

    async def use() -> Any:
        return await batcher("x")

    assert [asyncio.run(use()) for _ in range(2)] == [{"prompt": "x"}] * 2
    asyncio.run(batcher.aclose())


async def test_12_keywords_need_not_be_hashable_and_prompts_may_be_lists_and_pairs(
    batcher: AsyncMicrobatchTokenizer,
) -> None:
    array = np.zeros(2)
    assert (await batcher("x", add_special_tokens=["odd"]))["add_special_tokens"] == ["odd"]
    assert (await batcher("x", array=array))["array"] is array
    assert (await batcher(["a", "b"]))["prompt"] == ["a", "b"]
    assert (await batcher([("a", "b")]))["prompt"] == [("a", "b")]


async def test_13_calls_of_one_tokenizer_object_never_overlap(echo: EchoTokenizer) -> None:
    echo.gate.set()
    async with AsyncMicrobatchTokenizer(echo) as batcher:
        prompts = ["x", "y" * 70_000] * 50
        await together(*[batcher(prompt) for prompt in prompts])
    assert echo.max_inside == 1


async def test_13_the_callers_own_use_of_the_tokenizer_never_meets_ours(data_file: Callable[[str], Path]) -> None:
    fast = _transformers_tokenizer(data_file("gpt2_tokenizer.json"))
    text = "one two three four five " * 20
    whole = fast(text)["input_ids"]
    async with AsyncMicrobatchTokenizer(fast) as batcher:
        tasks = [asyncio.ensure_future(batcher(text)) for _ in range(200)]
        while not all(task.done() for task in tasks):
            assert len(fast(text, truncation=True, max_length=5)["input_ids"]) == 5
            await asyncio.sleep(0)
        assert all(task.result()["input_ids"] == whole for task in tasks)


async def test_one_of_our_tokenizers_gives_packed_ids() -> None:
    async with AsyncMicrobatchTokenizer(ByteTokenizer()) as batcher:
        encoded = await batcher("ab", add_special_tokens=False)
        assert encoded.input_ids.tolist() == encoded["input_ids"].tolist() == [97, 98]
        assert await batcher.decode([97, 256], skip_special_tokens=True) == "a"
        with pytest.raises(UnsupportedError, match="truncation") as failure:
            await batcher("ab", truncation=True)
        assert failure.value.param == "truncation"


async def test_one_bad_prompt_in_a_batch_of_ours_fails_alone() -> None:
    tokenizer = FailingTokenizer()
    async with AsyncMicrobatchTokenizer(tokenizer) as batcher:
        results = await together(*[batcher(text) for text in ("a", "crash", "b", "panic", "\ud800")])
    assert [result.input_ids.tolist() for result in (results[0], results[2])] == [[97], [98]]
    assert [type(result) for result in (results[1], *results[3:])] == [
        RuntimeError,
        TokenizationError,
        InvalidRequestError,
    ]


async def test_an_accelerated_tokenizer_is_called_in_the_loop_and_long_or_late_prompts_are_not(
    real_tokenizer: Callable[[str], Tokenizer],
) -> None:
    pytest.importorskip("fastokens")
    reference = real_tokenizer("gpt2")
    prompts = [*(f"prompt {number}" for number in range(500)), "long " * 2000]
    async with AsyncMicrobatchTokenizer(reference.accelerated()) as batcher:  # type: ignore[attr-defined]
        results = await together(*map(batcher, prompts))
        assert num_trips(batcher) == 1
        with pytest.raises(UnsupportedError, match="truncation"):
            await batcher("ab", truncation=True)
        with pytest.raises(InvalidRequestError, match="surrogate"):
            await batcher("\ud800")
    expected = reference.encode_batch(prompts, add_special_tokens=True)
    assert [result.input_ids.tolist() for result in results] == [ids.tolist() for ids in expected]
    with pytest.raises(OverloadedError):
        await batcher("closed")


@pytest.mark.parametrize(("name", "value"), [("max_batch_size", 0), ("batch_wait_timeout_s", -1)])
def test_a_bound_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        AsyncMicrobatchTokenizer(EchoTokenizer(), **{name: value})  # type: ignore[arg-type]


values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.floats(0, 2) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=1), inner, max_size=2),
    max_leaves=4,
)


@given(values, values)
def test_keywords_are_equal_exactly_when_values_and_their_types_are(one: Any, other: Any) -> None:
    are_equal = Keywords({"k": one}) == Keywords({"k": other})
    if are_equal:
        assert repr(one) == repr(other) or one == other
        assert hash(Keywords({"k": one})) == hash(Keywords({"k": other}))
    if repr(one) == repr(other):
        assert are_equal


@pytest.mark.parametrize(("one", "other"), [(True, 1), (1, 1.0), ([1], (1,)), ({}, []), (None, False)])
def test_values_of_different_types_are_different_keywords(one: object, other: object) -> None:
    assert Keywords({"k": one}) != Keywords({"k": other})


class Copied(EchoTokenizer):
    """Stands for a Hugging Face fast tokenizer: is copied, and each copy waits for the same gate."""

    backend_tokenizer = None
    release = threading.Event()

    def __deepcopy__(self, memo: object) -> "Copied":
        return Copied(gate=self.release)


def _transformers_tokenizer(path: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(path))
