"""What a request to the pool of remote tokenizers gets, and from where; in virtual time."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tokenization.remote.bench import ONE, TWO, Bench, H, Local, failed, reason, virtually

from headrace.errors import (
    HeadraceError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedError,
    UpstreamConnectError,
    UpstreamTimeoutError,
)
from headrace.testing.fake_tokenizer_server import FakeHost, FakeTokenizerApi, FakeTransport
from headrace.testing.virtual_time import run_virtual
from headrace.tokenization import ChatPrompt
from headrace.tokenization.remote.endpoints import RemoteEndpoint
from headrace.tokenization.remote.pool import RemoteTokenizerPool
from headrace.tokenization.remote.settings import RemotePoolSettings
from headrace.tokenization.remote.transport import RemoteAnswer, RemoteClosedError
from headrace.units import parse_duration

# what a request gets


def test_an_endpoint_gives_the_ids_and_the_result_says_which() -> None:
    async def test(bench: Bench) -> None:
        encoded = await bench.pool.encode("h", model="demo")
        assert encoded.token_ids.tolist() == H
        assert (encoded.source, encoded.endpoint, encoded.fallback_reason) == ("remote", ONE, None)
        assert await bench.pool.decode([104, 105], model="demo") == "hi"

    virtually(test, Bench())


@pytest.mark.parametrize(
    ("bench", "expected"),
    [
        (lambda local: Bench(local=local, enabled=False), "disabled"),
        (lambda local: Bench({}, local=local), "no_endpoint"),
        (lambda local: Bench({"demo": ["not an address"]}, local=local), "bad_address"),
    ],
)
def test_without_an_endpoint_to_ask_the_local_tokenizer_answers_and_says_why(
    bench: Callable[[Local], Bench], expected: str
) -> None:
    local = Local()

    async def test(bench: Bench) -> None:
        encoded = await bench.pool.encode("h", model="demo")
        assert encoded.token_ids.tolist() == H
        assert (encoded.source, encoded.endpoint, encoded.fallback_reason) == ("short", None, expected)
        assert dict(bench.pool.statistics().fallbacks) == {expected: 1}
        assert local.num_asked == 1

    virtually(test, bench(local))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (UpstreamConnectError("gone"), "unreachable"),
        (failed(503), "overloaded"),
        (failed(401), "endpoint_fault"),
        (RemoteAnswer(status=200, body=b"<html>"), "bad_answer"),
        (failed(413), "too_large"),
    ],
)
def test_a_call_that_fails_falls_back_too(fault: RemoteAnswer | HeadraceError, expected: str) -> None:
    """AIBrix falls back only when it has no tokenizer at all; a call that fails becomes the user's 503."""

    async def test(bench: Bench) -> None:
        bench.hosts[ONE].faults.extend([fault] * 4)
        assert await reason(bench.pool.encode("h", model="demo")) == expected
        assert bench.metric("fallbacks_total", model="demo", reason=expected) == 1

    virtually(test, Bench(local=Local(), breaker_failures=10))


def test_decoding_falls_back_as_encoding_does() -> None:
    async def test(bench: Bench) -> None:
        assert await bench.pool.decode([104, 258], model="demo", skip_special_tokens=True) == "h"
        assert dict(bench.pool.statistics().fallbacks) == {"unsupported": 1}

    virtually(test, Bench(local=Local()))


def test_a_hanging_endpoint_costs_the_deadline_once() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].delay_s = 1e6
        loop = asyncio.get_running_loop()
        assert await reason(bench.pool.encode("h", model="demo")) == "timeout"
        assert loop.time() == pytest.approx(10)
        assert await reason(bench.pool.encode("h", model="demo", timeout_s=0.5)) == "timeout"
        assert loop.time() == pytest.approx(10.5)

    virtually(test, Bench(local=Local()))


def test_the_request_timeout_is_the_one_that_was_set() -> None:
    """In AIBrix an explicit 5 s is taken for 158 years."""

    async def test(bench: Bench) -> None:
        bench.hosts[ONE].delay_s = 1e6
        with pytest.raises(UpstreamTimeoutError):
            await bench.pool.encode("h", model="demo")
        assert asyncio.get_running_loop().time() == pytest.approx(2.5)

    virtually(test, Bench(remote={"request_timeout_s": parse_duration("2500ms")}))


def test_what_the_endpoint_refuses_is_refused_in_its_words() -> None:
    local = Local()

    async def test(bench: Bench) -> None:
        bench.hosts[ONE].faults.append(
            RemoteAnswer(status=400, body=b'{"error":{"message":"roles must alternate","param":"messages"}}')
        )
        with pytest.raises(InvalidRequestError, match="roles must alternate") as refused:
            await bench.pool.encode(ChatPrompt(messages=[{"role": "user", "content": "h"}]), model="demo")
        assert refused.value.param == "messages"
        assert local.num_asked == 0

    virtually(test, Bench(local=local))


def test_without_a_local_tokenizer_the_endpoints_error_is_raised() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].is_down = True
        with pytest.raises(UpstreamConnectError):
            await bench.pool.encode("h", model="demo")

    virtually(test, Bench())
    virtually(test, Bench(local=Local(), fallback="fail"))


def test_a_model_that_the_local_tokenizer_lacks_keeps_the_endpoints_error() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].is_down = True
        with pytest.raises(UpstreamConnectError):
            await bench.pool.encode("h", model="other")

    virtually(test, Bench({"other": ["one"]}, local=Local()))


def test_a_model_that_nobody_has_does_not_exist_and_makes_no_series() -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(ModelNotFoundError):
            await bench.pool.encode("h", model="invented")
        assert bench.metric("pool_requests_total", model="(unknown)") == 1
        assert bench.metric("pool_requests_total", model="invented") is None

    virtually(test, Bench(local=Local()))


def test_sglang_endpoints_are_spoken_to_in_their_own_way() -> None:
    class Source:
        def endpoints(self, model: str) -> Sequence[RemoteEndpoint]:
            return [RemoteEndpoint(address="one", engine="sglang")]

    async def main() -> None:
        hosts = {ONE: FakeHost(api=FakeTokenizerApi(engine="sglang"))}
        settings = RemotePoolSettings(enabled=True)
        async with RemoteTokenizerPool(Source(), settings=settings, transport=FakeTransport(hosts)) as pool:
            assert await pool.decode([104, 258], model="demo", skip_special_tokens=True) == "h"
            with pytest.raises(UnsupportedError):
                await pool.encode("h", model="demo", add_special_tokens=False)

    run_virtual(main())


def test_what_one_engine_cannot_do_another_may() -> None:
    class Source:
        def endpoints(self, model: str) -> Sequence[RemoteEndpoint]:
            return [RemoteEndpoint(address="one"), RemoteEndpoint(address="two", engine="sglang")]

    async def main() -> None:
        transport = FakeTransport({ONE: FakeHost(), TWO: FakeHost(api=FakeTokenizerApi(engine="sglang"))})
        async with RemoteTokenizerPool(
            Source(), settings=RemotePoolSettings(enabled=True), transport=transport
        ) as pool:
            assert await pool.decode([104, 258], model="demo", skip_special_tokens=True) == "h"
            assert (await pool.encode("h", model="demo", add_special_tokens=False)).endpoint == ONE

    run_virtual(main())


# which endpoint is asked


def test_requests_spread_over_the_endpoints() -> None:
    """AIBrix sends all tokenization of a model to one of its pods."""

    async def test(bench: Bench) -> None:
        for _ in range(10):
            await bench.pool.encode("h", model="demo")
        assert [len(host.asked_s) for host in bench.hosts.values()] == [5, 5]

    virtually(test, Bench({"demo": ["one", "two"]}))


def test_the_endpoint_with_least_in_flight_is_asked() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].delay_s = 5
        async with asyncio.TaskGroup() as group:
            group.create_task(bench.pool.encode("h", model="demo"))
            await asyncio.sleep(1)
            for _ in range(3):
                assert (await bench.pool.encode("h", model="demo")).endpoint == TWO

    virtually(test, Bench({"demo": ["one", "two"]}))


def test_what_discovery_knows_of_load_counts() -> None:
    class Source:
        def endpoints(self, model: str) -> Sequence[RemoteEndpoint]:
            return [RemoteEndpoint(address="one", num_in_flight=7), RemoteEndpoint(address="two", num_in_flight=3)]

    async def main() -> None:
        hosts = {ONE: FakeHost(), TWO: FakeHost()}
        transport = FakeTransport(hosts)
        async with RemoteTokenizerPool(
            Source(), settings=RemotePoolSettings(enabled=True), transport=transport
        ) as pool:
            assert [(await pool.encode("h", model="demo")).endpoint for _ in range(3)] == [TWO] * 3
            hosts[TWO].is_down = True
            assert (await pool.encode("h", model="demo")).endpoint == ONE
            assert len(hosts[TWO].asked_s) == 4

    run_virtual(main())


def test_a_failed_attempt_moves_on_at_once_to_another_endpoint() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].is_down = True
        assert (await bench.pool.encode("h", model="demo")).endpoint == TWO
        assert asyncio.get_running_loop().time() == 0
        assert bench.metric("retries_total", model="demo") == 1

    virtually(test, Bench({"demo": ["one", "two"]}))


def test_an_endpoint_without_the_model_is_passed_over_for_one_that_has_it() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].api.model = "another"
        assert (await bench.pool.encode("h", model="demo")).endpoint == TWO

    virtually(test, Bench({"demo": ["one", "two"]}))


def test_retries_end_with_their_number_and_pause_between() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].is_down = True
        with pytest.raises(UpstreamConnectError):
            await bench.pool.encode("h", model="demo")
        assert bench.hosts[ONE].asked_s == pytest.approx([0, 0.05, 0.15, 0.35])

    virtually(test, Bench(breaker_failures=10))


def test_retry_after_is_honoured_up_to_its_cap_and_not_on_top_of_the_pause() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].faults.extend([failed(429, retry_after="1"), failed(429, retry_after="3600")])
        await bench.pool.encode("h", model="demo")
        assert bench.hosts[ONE].asked_s == pytest.approx([0, 1, 3])

    virtually(test, Bench())


def test_a_bad_address_is_said_once_and_the_good_ones_are_asked(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        for _ in range(3):
            assert (await bench.pool.encode("h", model="demo")).endpoint == ONE
        assert bench.metric("pool_creation_failures_total") == 1
        assert [record.message for record in caplog.records if "not an address" in record.message][1:] == []
        assert "not an address" in caplog.text

    virtually(test, Bench({"demo": ["not an address", "one"]}))


# instruments and end


def test_the_metrics_of_aibrix_are_there_under_our_names() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].delay_s = 0.02
        await bench.pool.encode("h", model="demo")
        assert bench.metric("pool_active_tokenizers") == 1
        assert bench.metric("pool_creation_successes_total") == 1
        assert bench.metric("pool_creation_failures_total") == 0
        assert bench.metric("pool_unhealthy_tokenizers_total") == 0
        assert bench.metric("pool_requests_total", model="demo") == 1
        assert bench.metric("pool_latency_seconds_count", model="demo") == 1
        assert bench.metric("encode_seconds_count", model="demo") == 1
        assert bench.metric("encode_seconds_sum", model="demo") == pytest.approx(0.02)

    virtually(test, Bench())


def test_a_pool_that_is_off_shows_no_metrics_and_asks_nobody() -> None:
    async def test(bench: Bench) -> None:
        assert await reason(bench.pool.encode("h", model="demo")) == "disabled"
        assert bench.hosts[ONE].asked_s == []
        assert list(bench.registry.collect()) == []

    virtually(test, Bench(local=Local(), enabled=False))


def test_its_statistics_and_its_line_tell_what_it_did() -> None:
    async def test(bench: Bench) -> None:
        await bench.pool.encode("h", model="demo")
        await asyncio.sleep(3)
        statistics = bench.pool.statistics()
        assert (statistics.is_enabled, statistics.num_requests, statistics.fallbacks) == (True, 1, ())
        (member,) = statistics.members
        assert (member.tokenizer.url, member.tokenizer.max_model_len) == (ONE, 4096)
        assert (member.is_healthy, member.breaker, member.idle_s) == (True, "closed", 3)
        assert repr(bench.pool) == "RemoteTokenizerPool(on, num_tokenizers=1, num_requests=1, num_fallbacks=0)"

    virtually(test, Bench())


def test_closing_may_be_repeated_and_ends_everything() -> None:
    async def test(bench: Bench) -> None:
        await bench.pool.encode("h", model="demo")
        await bench.pool.aclose()
        await bench.pool.aclose()
        with pytest.raises(RemoteClosedError):
            await bench.pool.encode("h", model="demo")

    virtually(test, Bench(local=Local()))


def test_a_cancelled_request_leaves_no_trace() -> None:
    async def test(bench: Bench) -> None:
        bench.hosts[ONE].delay_s = 5
        task = asyncio.get_running_loop().create_task(bench.pool.encode("h", model="demo"))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait({task})
        assert bench.hosts[ONE].num_in_flight == 0
        (member,) = bench.pool.statistics().members
        assert (member.num_in_flight, member.tokenizer.num_in_flight, member.breaker) == (0, 0, "closed")

    virtually(test, Bench(breaker_failures=1))


OPS = st.one_of(
    st.tuples(st.just("encode"), st.sampled_from(["demo", "other", "nobody"])),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("down"), st.sampled_from([ONE, TWO])),
    st.tuples(st.just("up"), st.sampled_from([ONE, TWO])),
    st.tuples(st.just("slow"), st.sampled_from([ONE, TWO])),
    st.tuples(st.just("refuse"), st.sampled_from([ONE, TWO])),
    st.tuples(st.just("wait"), st.sampled_from([0.01, 1.0, 40.0, 400.0])),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(OPS, max_size=40))
def test_every_request_ends_once_and_nothing_stays_reserved_whatever_happens(ops: list[tuple[str, Any]]) -> None:
    async def test(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[Any]] = []
        for op, value in ops:
            match op:
                case "encode":
                    tasks.append(loop.create_task(bench.pool.encode("h", model=value)))
                case "cancel" if tasks:
                    tasks[value % len(tasks)].cancel()
                case "down" | "up":
                    bench.hosts[value].is_down = op == "down"
                    bench.hosts[value].delay_s = 0.0
                case "slow":
                    bench.hosts[value].delay_s = 60.0
                case "refuse":
                    bench.hosts[value].faults.append(failed(503, retry_after="9"))
                case "wait":
                    await asyncio.sleep(value)
            assert bench.num_members <= 2
        if tasks:
            async with asyncio.timeout(11):
                await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                assert isinstance(task.exception(), HeadraceError)
        assert sum(member.num_in_flight for member in bench.pool.statistics().members) == 0

    virtually(test, Bench({"demo": ["one", "two"], "other": ["one"]}, max_tokenizers=2, breaker_failures=2))
