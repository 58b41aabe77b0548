"""A remote tokenizer against real sockets."""

import asyncio
import contextlib
from collections.abc import Sequence

import numpy as np
import pytest

from headrace.errors import (
    HeadraceError,
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
    UnsupportedError,
    UpstreamConnectError,
    UpstreamProtocolError,
    UpstreamTimeoutError,
)
from headrace.testing.fake_tokenizer_server import FakeTokenizerApi, FakeTokenizerServer
from headrace.testing.fake_upstream import Exchange, answers, dies_at_once, hangs, sends
from headrace.tokenization import ByteTokenizer, ChatPrompt
from headrace.tokenization.remote.errors import EndpointFaultError
from headrace.tokenization.remote.settings import RemoteEngine, RemoteTokenizerSettings
from headrace.tokenization.remote.tokenizer import RemoteTokenizer
from headrace.tokenization.remote.transport import RemoteClosedError
from headrace.tokenization.tokenizer import TokenIds, pack_token_ids

pytestmark = pytest.mark.integration

ENGINES: list[RemoteEngine] = ["vllm", "sglang"]
RICH_TEMPLATE = (
    "{%- for tool in tools or [] %}{{ tool.function.name }};{%- endfor %}"
    "{%- if thinks %}thinking;{%- endif %}"
    "{%- for message in messages %}<|im_start|>{{ message['role'] }}:{{ message['content'] }}{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant:{%- endif %}"
)


class StartTokenizer(ByteTokenizer):
    """Begins a text with id 256 when special tokens are added, as tokenizers with a BOS token do."""

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        encoded = super().encode_batch(texts, add_special_tokens=add_special_tokens)
        return [pack_token_ids([256, *ids.tolist()]) for ids in encoded] if add_special_tokens else encoded


def remote(server: FakeTokenizerServer, **settings: object) -> RemoteTokenizer:
    fast = {"retry_base_s": 0.001, "request_timeout_s": 20.0, "tls_verify": False}
    return RemoteTokenizer(
        model="demo",
        url=server.url,
        engine=server.api.engine,
        settings=RemoteTokenizerSettings(**(fast | settings)),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_text_is_encoded_as_the_engine_does_it(engine: RemoteEngine) -> None:
    api = FakeTokenizerApi(engine=engine, tokenizer=StartTokenizer(), max_model_len=77)
    async with FakeTokenizerServer(api) as server, remote(server) as tokenizer:
        encoded = await tokenizer.encode("hé<|im_end|>")
        assert encoded.token_ids.tolist() == [256, 104, 195, 169, 258]
        assert encoded.token_ids.dtype == np.uint32
        assert encoded.source == "remote"
        assert encoded.encode_s > 0
        assert tokenizer.max_model_len == 77


async def test_the_flag_for_special_tokens_reaches_vllm() -> None:
    async with FakeTokenizerServer(FakeTokenizerApi(tokenizer=StartTokenizer())) as server, remote(server) as tokenizer:
        assert (await tokenizer.encode("h", add_special_tokens=False)).token_ids.tolist() == [104]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "<|im_start|>user:hi<|im_start|>assistant:we<|im_start|>assistant:"),
        (
            {"add_generation_prompt": False, "continue_final_message": True},
            "<|im_start|>user:hi<|im_start|>assistant:we",
        ),
        (
            {"tools": [{"function": {"name": "look"}}], "template_kwargs": {"thinks": True}},
            "look;thinking;<|im_start|>user:hi<|im_start|>assistant:we<|im_start|>assistant:",
        ),
    ],
)
async def test_every_field_of_a_chat_counts(engine: RemoteEngine, fields: dict[str, object], expected: str) -> None:
    """AIBrix drops tools, template kwargs and continue_final_message."""
    tokenizer = ByteTokenizer(chat_template=RICH_TEMPLATE)
    chat = ChatPrompt(
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "we"}],
        **fields,  # type: ignore[arg-type]
    )
    api = FakeTokenizerApi(engine=engine, tokenizer=tokenizer)
    async with FakeTokenizerServer(api) as server, remote(server) as client:
        encoded = await client.encode(chat)
    assert tokenizer.decode(encoded.token_ids, skip_special_tokens=False) == expected


@pytest.mark.parametrize("engine", ENGINES)
async def test_ids_become_text_again(engine: RemoteEngine) -> None:
    async with FakeTokenizerServer(FakeTokenizerApi(engine=engine)) as server, remote(server) as tokenizer:
        ids = (await tokenizer.encode("hé<|im_end|>")).token_ids
        assert await tokenizer.decode(ids) == "hé<|im_end|>"
        assert await tokenizer.decode([]) == ""


async def test_sglang_can_skip_special_tokens_and_vllm_says_that_it_cannot() -> None:
    async with FakeTokenizerServer(FakeTokenizerApi(engine="sglang")) as server, remote(server) as tokenizer:
        assert await tokenizer.decode([104, 258], skip_special_tokens=True) == "h"
    async with FakeTokenizerServer() as server, remote(server) as tokenizer:
        with pytest.raises(UnsupportedError):
            await tokenizer.decode([104, 258], skip_special_tokens=True)
        assert server.received == []


async def test_a_long_text_is_encoded_whole() -> None:
    text = "Grüße 🌊 " * 30_000
    async with FakeTokenizerServer() as server, remote(server) as tokenizer:
        ids = (await tokenizer.encode(text)).token_ids
        assert bytes(ids.astype(np.uint8)).decode() == text
        assert await tokenizer.decode(ids) == text


@pytest.mark.parametrize("fault", [dies_at_once, answers(500), answers(503), sends(b"nonsense\r\n\r\n")])
async def test_a_failure_that_may_pass_is_tried_again(fault: object) -> None:
    async with FakeTokenizerServer() as server, remote(server) as tokenizer:
        server.faults.extend([fault, fault])  # type: ignore[list-item]
        assert (await tokenizer.encode("h")).token_ids.tolist() == [104]
        assert tokenizer.statistics().num_attempts == 3
        assert tokenizer.statistics().num_retries == 2


@pytest.mark.parametrize(
    ("fault", "expected", "num_requests"),
    [
        (answers(400, body=b'{"error":{"message":"bad tools","param":"tools"}}'), InvalidRequestError, 1),
        (answers(401), EndpointFaultError, 1),
        (answers(404), EndpointFaultError, 1),
        (answers(413), PayloadTooLargeError, 1),
        (answers(429), OverloadedError, 3),
        (answers(500), EndpointFaultError, 3),
        (answers(200, body=b"<html>"), UpstreamProtocolError, 3),
        (answers(307, headers=["location: http://127.0.0.1:1/"]), UpstreamProtocolError, 3),
        (answers(200, headers=["content-encoding: gzip"]), UpstreamProtocolError, 3),
        (dies_at_once, UpstreamProtocolError, 3),
    ],
)
async def test_each_failure_ends_as_the_error_it_is(
    fault: object, expected: type[HeadraceError], num_requests: int
) -> None:
    async with FakeTokenizerServer() as server, remote(server, max_retries=2) as tokenizer:
        server.faults.extend([fault] * num_requests)  # type: ignore[list-item]
        with pytest.raises(expected) as failed:
            await tokenizer.encode("the text itself")
        assert type(failed.value) is expected
        assert "the text itself" not in failed.value.message
        assert len(server.received) == num_requests
        assert not server.faults


async def test_an_endpoint_that_is_not_there_is_unreachable() -> None:
    async with FakeTokenizerServer() as server:
        tokenizer = remote(server, max_retries=1)
    async with tokenizer:
        with pytest.raises(UpstreamConnectError, match=server.url):
            await tokenizer.encode("h")


async def test_retry_after_reaches_the_policy_capped() -> None:
    async with FakeTokenizerServer() as server, remote(server, retry_after_max_s=0.01) as tokenizer:
        server.faults.append(answers(429, headers=["retry-after: 3600"]))
        async with asyncio.timeout(10):
            encoded = await tokenizer.encode("h")
        assert encoded.queue_wait_s >= 0.01


async def test_one_deadline_covers_all_attempts() -> None:
    """AIBrix gives each attempt its own: four of them, and the pauses on top."""
    async with FakeTokenizerServer() as server, remote(server, request_timeout_s=0.5) as tokenizer:
        server.faults.extend([answers(500), hangs, hangs, hangs])
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        with pytest.raises(UpstreamTimeoutError):
            await tokenizer.encode("h")
        assert 0.45 < loop.time() - begun_s < 5
        assert len(server.received) == 2


async def test_a_caller_may_have_less_time_than_the_settings_give() -> None:
    async with FakeTokenizerServer() as server, remote(server) as tokenizer:
        server.faults.append(hangs)
        with pytest.raises(UpstreamTimeoutError):
            await tokenizer.encode("h", timeout_s=0.05)


async def test_a_cancelled_caller_leaves_nothing_running_at_the_endpoint() -> None:
    """AIBrix asks with a context of its own, so a client that leaves is tokenized for to the end."""
    async with FakeTokenizerServer() as server, remote(server) as tokenizer:
        server.faults.append(hangs)
        task = asyncio.get_running_loop().create_task(tokenizer.encode("h"))
        await server.upstream.wait_for(lambda: server.upstream.num_running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.upstream.wait_for(lambda: server.upstream.num_open == 0)
        assert tokenizer.statistics().num_in_flight == 0
        assert (await tokenizer.encode("h")).token_ids.tolist() == [104]


async def test_the_key_is_sent_and_a_wrong_one_is_the_operators_fault() -> None:
    async with FakeTokenizerServer(api_key="right") as server:
        async with remote(server, api_key="right") as tokenizer:
            assert len((await tokenizer.encode("h")).token_ids) == 1
        async with remote(server, api_key="wrong") as tokenizer:
            with pytest.raises(EndpointFaultError, match="api_key") as failed:
                await tokenizer.encode("h")
        assert "wrong" not in failed.value.message
        assert failed.value.status_hint == 502


async def test_connections_are_used_again() -> None:
    async with FakeTokenizerServer() as server, remote(server) as tokenizer:
        for _ in range(3):
            await tokenizer.encode("h")
        assert server.upstream.num_connections == 1


async def test_at_most_so_many_connections_are_open() -> None:
    gate = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await gate.wait()
        await exchange.respond(b'{"tokens":[104],"count":1}')

    async with FakeTokenizerServer() as server, remote(server, max_connections=2) as tokenizer:
        server.faults.extend([waits] * 5)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(tokenizer.encode("h")) for _ in range(5)]
        await server.upstream.wait_for(lambda: server.upstream.num_running == 2)
        gate.set()
        assert [(await task).token_ids.tolist() for task in tasks] == [[104]] * 5
        assert server.upstream.num_connections == 2


async def test_a_request_over_the_limit_is_not_sent() -> None:
    async with FakeTokenizerServer() as server, remote(server, max_request_bytes=1000) as tokenizer:
        for text in ("x" * 1000, "x" * 1_000_000):
            with pytest.raises(PayloadTooLargeError, match="max_request_bytes, 1000"):
                await tokenizer.encode(text)
        assert server.received == []


@pytest.mark.parametrize("tells_length", [True, False])
async def test_an_answer_over_the_limit_is_not_read(tells_length: bool) -> None:
    async def floods(exchange: Exchange) -> None:
        if tells_length:
            await exchange.respond(b"x" * 5000)
            return
        await exchange.start_chunked()
        with contextlib.suppress(ConnectionError):
            while not exchange.closed.is_set():
                await exchange.chunk(b"x" * 1000)

    async with FakeTokenizerServer() as server, remote(server, max_response_bytes=4000, max_retries=0) as tokenizer:
        server.faults.append(floods)
        with pytest.raises(UpstreamProtocolError, match="max_response_bytes, 4000"):
            await tokenizer.encode("h")
        await server.upstream.wait_for(lambda: server.upstream.num_open == 0)


async def test_a_lone_surrogate_is_refused_here() -> None:
    async with FakeTokenizerServer() as server, remote(server) as tokenizer:
        with pytest.raises(InvalidRequestError, match=r"U\+DC00"):
            await tokenizer.encode("\udc00")
        assert server.received == []


async def test_closing_wakes_whoever_waits_and_may_be_repeated() -> None:
    """AIBrix panics on the second close. One request hangs at the endpoint, one waits for its connection."""
    async with FakeTokenizerServer() as server:
        tokenizer = remote(server, max_connections=1)
        server.faults.extend([hangs, hangs])
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(tokenizer.encode("h")) for _ in range(2)]
        await server.upstream.wait_for(lambda: server.upstream.num_running == 1)
        await tokenizer.aclose()
        await tokenizer.aclose()
        for task in tasks:
            with pytest.raises(RemoteClosedError):
                await task
        with pytest.raises(RemoteClosedError):
            await tokenizer.encode("h")
        await server.upstream.wait_for(lambda: server.upstream.num_open == 0)


async def test_a_health_check_asks_once() -> None:
    async with FakeTokenizerServer() as server, remote(server) as tokenizer:
        await tokenizer.check_health(timeout_s=10)
        server.faults.append(answers(503))
        with pytest.raises(OverloadedError):
            await tokenizer.check_health(timeout_s=10)
        assert len(server.received) == 2


async def test_its_one_line_shows_where_it_asks() -> None:
    async with FakeTokenizerServer() as server, remote(server) as tokenizer:
        assert repr(tokenizer) == f"RemoteTokenizer('demo' at {server.url}, num_in_flight=0)"
