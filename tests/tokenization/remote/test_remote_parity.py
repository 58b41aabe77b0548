"""Remote ids compared with local ones, in virtual time."""

import asyncio
import logging
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from headrace.errors import OverloadedError
from headrace.testing.fake_tokenizer_server import FakeHost, FakeTokenizerApi, FakeTransport
from headrace.testing.virtual_time import run_virtual
from headrace.tokenization import ByteTokenizer, ChatPrompt, Encoded, TokenIds
from headrace.tokenization.remote.endpoints import StaticEndpoints
from headrace.tokenization.remote.parity import first_difference, shrink
from headrace.tokenization.remote.pool import RemoteTokenizerPool
from headrace.tokenization.remote.settings import RemotePoolSettings
from headrace.tokenization.tokenizer import pack_token_ids

URL = "http://one:8000"


class DriftedTokenizer(ByteTokenizer):
    """Has another id for `Z`."""

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        encoded = super().encode_batch(texts, add_special_tokens=add_special_tokens)
        return [pack_token_ids([99 if token_id == ord("Z") else token_id for token_id in ids]) for ids in encoded]


class Local:
    """The reference; `is_full` makes it refuse, `delay_s` slow."""

    def __init__(self) -> None:
        self.tokenizer = ByteTokenizer()
        self.is_full = False
        self.delay_s = 0.0
        self.texts: list[str] = []

    async def encode(self, prompt: str | ChatPrompt, *, model: str, add_special_tokens: bool = True) -> Encoded:
        if self.is_full:
            raise OverloadedError("full")
        await asyncio.sleep(self.delay_s)
        text = prompt if isinstance(prompt, str) else self.tokenizer.chat_template.render(prompt.messages)
        self.texts.append(text)
        return Encoded(self.tokenizer.encode_batch([text], add_special_tokens=False)[0], "short", 0.0, 0.0)

    async def decode(
        self, token_ids: Sequence[int] | TokenIds, *, model: str, skip_special_tokens: bool = False
    ) -> str:
        raise AssertionError("nobody compares decodings")


class Bench:
    def __init__(self, *, drifts: bool = False, share: float = 1.0, max_checks: int = 4, dice: float = 0.0) -> None:
        api = FakeTokenizerApi(tokenizer=DriftedTokenizer() if drifts else ByteTokenizer())
        self.host = FakeHost(api=api)
        self.local = Local()
        self.registry = CollectorRegistry()
        self.pool = RemoteTokenizerPool(
            StaticEndpoints({"demo": ["one"]}),
            settings=RemotePoolSettings(enabled=True, parity_share=share, max_parity_checks=max_checks),
            local=self.local,
            registry=self.registry,
            transport=FakeTransport({URL: self.host}),
            random=lambda: dice,
        )

    async def encode(self, *prompts: str | ChatPrompt) -> None:
        for prompt in prompts:
            await self.pool.encode(prompt, model="demo")

    def num_compared(self, result: str) -> float | None:
        labels = {"model": "demo", "result": result}
        return self.registry.get_sample_value("headrace_remote_tokenizer_parity_checks_total", labels)

    @property
    def counts(self) -> tuple[int, int]:
        statistics = self.pool.statistics()
        return statistics.num_parity_checks, statistics.num_parity_mismatches


def run(bench: Bench, *prompts: str | ChatPrompt, then_close: bool = False) -> tuple[int, int]:
    """Encode `prompts`, let the comparisons end unless `then_close`, and count."""

    async def main() -> tuple[int, int]:
        async with bench.pool:
            await bench.encode(*prompts)
            if not then_close:
                await asyncio.sleep(1)
            counts = bench.counts
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return counts

    return run_virtual(main())


def test_equal_ids_are_counted_as_equal() -> None:
    bench = Bench()
    assert run(bench, "abcZ", ChatPrompt(messages=[{"role": "user", "content": "Z"}])) == (2, 0)
    assert bench.num_compared("equal") == 2


@pytest.mark.parametrize(
    ("share", "dice", "num_checks"), [(0.25, 0.24, 1), (0.25, 0.25, 0), (0.0, 0.0, 0), (1, 0.99, 1)]
)
def test_the_share_that_was_set_is_compared(share: float, dice: float, num_checks: int) -> None:
    assert run(Bench(share=share, dice=dice), "abc") == (num_checks, 0)


def test_a_difference_is_counted_and_logged_with_the_smallest_text(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(drifts=True)
    text = "a long prompt that nobody should find in a log, " * 9 + "Z" + " and more of it" * 9
    assert run(bench, text) == (1, 1)
    assert bench.num_compared("different") == 1
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{URL} differs from the local one in token 0 of 'Z': remote [99], local [90]" in record.message


def test_a_difference_in_a_chat_is_logged_by_its_ids_alone(caplog: pytest.LogCaptureFixture) -> None:
    run(Bench(drifts=True), ChatPrompt(messages=[{"role": "user", "content": "secret Z"}]))
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "in token 13 of a chat: remote [99, 258" in record.message
    assert "secret" not in record.message


def test_a_model_that_always_differs_is_not_logged_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(drifts=True)
    assert run(bench, *["Z"] * 4) == (4, 4)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 3


def test_comparing_does_not_hold_the_request_up_and_is_bounded() -> None:
    bench = Bench(max_checks=2)
    bench.local.delay_s = 0.5

    async def main() -> None:
        async with bench.pool:
            await bench.encode(*["abc"] * 5)
            assert asyncio.get_running_loop().time() == 0
            await asyncio.sleep(1)
            assert bench.counts == (2, 0)

    run_virtual(main())


def test_closing_ends_comparisons() -> None:
    bench = Bench()
    bench.local.delay_s = 100
    assert run(bench, "abc", then_close=True) == (0, 0)


def test_a_local_tokenizer_that_cannot_answer_proves_nothing() -> None:
    bench = Bench()
    bench.local.is_full = True
    assert run(bench, "abc") == (0, 0)
    assert bench.num_compared("not_compared") == 1


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [([], [1], 0), ([1, 2], [1, 3], 1), ([1, 2], [1, 2, 3], 2), ([1], [1], 1)],
)
def test_the_first_difference_is_found(one: list[int], other: list[int], expected: int) -> None:
    assert first_difference(np.array(one, dtype=np.uint32), np.array(other, dtype=np.uint32)) == expected


@given(st.text(max_size=300), st.text(max_size=300), st.integers(0, 60))
def test_shrinking_keeps_the_difference_and_its_number_of_questions(before: str, after: str, max_steps: int) -> None:
    num_asked = 0

    async def differs(part: str) -> bool:
        nonlocal num_asked
        num_asked += 1
        return "QX" in part

    text = before + "QX" + after

    async def main() -> str:
        return await shrink(text, differs, max_steps=max_steps)

    found = run_virtual(main())
    assert "QX" in found
    assert found in text
    assert num_asked <= max_steps


def test_shrinking_with_enough_questions_leaves_nothing_over() -> None:
    async def differs(part: str) -> bool:
        return "QX" in part

    async def main() -> str:
        return await shrink("abc" * 100 + "QX" + "def" * 77, differs, max_steps=1000)

    assert run_virtual(main()) == "QX"
