"""What the operator sees and does: admin port, exact counts, the running command."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer, models, pre_tokenizers

from headrace.errors import OverloadedError, SettingsError
from headrace.gateway.admin.broadcast import Broadcast
from headrace.openai.sse import SseDecoder
from headrace.testing.fake_upstream import FakeUpstream, answers, completes, streams
from headrace.tokenization import ByteTokenizer, TokenIds
from tests.gateway.support import chat_body, chat_request, exchange, raw_client, running_gateway, settled

pytestmark = pytest.mark.integration

PROMPT_TOKENS = "x-headrace-prompt-tokens"

TEMPLATE = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}assistant"


def write_tokenizer(directory: Path) -> None:
    words = {word: index for index, word in enumerate(["?", "user", "assistant", "how", "are", "you"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


async def test_chats_are_counted_with_the_tokenizer_that_the_endpoint_names(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    body = chat_body(messages=[{"role": "user", "content": "how are you"}])
    async with (
        FakeUpstream(root=str(tmp_path), behaviour=completes("x", prompt_tokens=5)) as upstream,
        running_gateway(upstream) as gateway,
    ):
        answer = await exchange(gateway, chat_request(body))

        (parity,) = gateway.parity.statistics()
    assert answer.header("x-headrace-prompt-tokens") == "5"
    assert answer.header("x-headrace-reason") == "only endpoint; tokens exact"
    assert parity.exact_ratio == 1.0


async def test_the_operators_tokenizer_goes_first_and_a_broken_one_stops_nobody(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    async with (
        FakeUpstream(root=str(tmp_path)) as upstream,
        running_gateway(upstream, tokenizer_path=(f"demo={tmp_path / 'nowhere'}",)) as gateway,
    ):
        answer = await exchange(gateway, chat_request())

    assert answer.status == 200
    assert "tokenizer_load_failed" in (answer.header("x-headrace-reason") or "")


async def test_a_chat_that_is_too_long_is_refused_with_its_exact_count(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    body = chat_body(messages=[{"role": "user", "content": "how are you"}], max_tokens=6)
    async with FakeUpstream(root=str(tmp_path), max_model_len=10) as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request(body))

    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert "11 tokens (5 in the messages, 6 in the completion)" in str(answer.error["message"])


async def test_a_hopelessly_long_chat_is_refused_without_being_counted() -> None:
    root = str(Path(__file__).parents[2] / "models" / "demo")
    body = chat_body(messages=[{"role": "user", "content": "how " * 10_000}])
    async with FakeUpstream(root=root, max_model_len=10) as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request(body))
        short, bulk = gateway.tokenization.statistics().lanes

    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "context_length_exceeded", "messages")
    assert "at least" in str(answer.error["message"])
    assert short.num_finished + bulk.num_finished <= 1  # a long template is rendered in a thread


class StuckTokenizer(ByteTokenizer):
    """Encodes when told to; `entered` says that a thread waits in it."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        if "warm-up" not in texts:
            self.entered.set()
            assert self.go_on.wait(10)
        return super().encode_batch(texts, add_special_tokens=add_special_tokens)


async def test_a_count_that_takes_too_long_is_done_without(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    body = json.dumps({"model": "demo", "prompt": "how are you"}).encode()
    async with (
        FakeUpstream(root=str(tmp_path)) as upstream,
        running_gateway(upstream, tokenize_timeout_s=0.5) as gateway,
    ):
        async with asyncio.timeout(20):
            while (await exchange(gateway, chat_request(body, path="/v1/completions"))).header(PROMPT_TOKENS) is None:
                pass  # the loading may take longer than counting may
        tokenizer = StuckTokenizer()
        gateway.tokenization.register("demo", tokenizer)
        answer = await exchange(gateway, chat_request(body, path="/v1/completions"))
        tokenizer.go_on.set()

    assert answer.status == 200
    assert answer.header(PROMPT_TOKENS) is None
    assert answer.header("x-headrace-reason") == "only endpoint; tokens tokenize_timeout"


async def test_a_client_that_leaves_while_its_tokens_are_counted_reaches_no_endpoint(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    body = json.dumps({"model": "demo", "prompt": "how are you"}).encode()
    async with (
        FakeUpstream(root=str(tmp_path)) as upstream,
        running_gateway(upstream, tokenize_timeout_s=30.0) as gateway,
    ):
        await exchange(gateway, chat_request(body, path="/v1/completions"))
        tokenizer = StuckTokenizer()
        gateway.tokenization.register("demo", tokenizer)
        async with raw_client(gateway) as client:
            await client.send(chat_request(body, path="/v1/completions"))
            assert await asyncio.to_thread(tokenizer.entered.wait, 10)
            assert gateway.slots.num_taken == 1
        await settled(gateway)
        tokenizer.go_on.set()

        assert gateway.slots.num_taken == 0
    assert len(upstream.received) == 1


async def test_the_models_of_all_endpoints_are_listed_once() -> None:
    async with (
        FakeUpstream(model="a") as one,
        FakeUpstream(model="a") as two,
        FakeUpstream(model="b") as three,
        running_gateway(one, two, three) as gateway,
    ):
        answer = await exchange(gateway, b"GET /v1/models HTTP/1.1\r\nHost: g\r\n\r\n")
        routed = await exchange(gateway, chat_request(chat_body(model="b")))

    assert [card["id"] for card in json.loads(answer.body)["data"]] == ["a", "b"]
    assert routed.header("x-headrace-endpoint") == three.url


async def test_before_any_endpoint_was_seen_requests_are_told_to_come_back() -> None:
    async with FakeUpstream(health_status=500) as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.header("retry-after")) == (503, "1")
    assert "/health answered 500" in str(answer.error["message"])


async def test_a_server_of_nothing_but_the_api_needs_no_health_route() -> None:
    async with FakeUpstream(health_status=404) as upstream, running_gateway(upstream) as gateway:
        answer = await exchange(gateway, chat_request())

    assert (answer.status, len(upstream.received)) == (200, 1)


async def test_what_has_neither_health_nor_models_is_no_endpoint() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    entry = json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "models": ["demo"]})
    async with server, running_gateway(endpoint=(entry,)) as gateway:
        answer = await exchange(gateway, chat_request())

    assert answer.status == 503
    assert "/v1/models answered 404" in str(answer.error["message"])


async def test_a_probe_brings_an_endpoint_back() -> None:
    async with FakeUpstream(health_status=500) as upstream, running_gateway(upstream) as gateway:
        upstream.health_status = 200
        await gateway.endpoints.health.probe(gateway.fleet.endpoints[0])
        answer = await exchange(gateway, chat_request())

    assert answer.status == 200


async def test_one_missed_probe_does_not_take_an_endpoint_away() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream, unhealthy_after=2) as gateway:
        (endpoint,) = gateway.fleet.endpoints
        upstream.health_status = 500
        states = []
        for _ in range(2):
            await gateway.endpoints.health.probe(endpoint)
            states.append(endpoint.is_healthy)

    assert states == [True, False]


async def test_the_admin_port_shows_page_state_metrics_and_live_events() -> None:
    async with (
        FakeUpstream(behaviour=streams(["a"], prompt_tokens=3)) as upstream,
        running_gateway(upstream, admin_port=0) as gateway,
    ):
        await exchange(gateway, chat_request())
        gateway._snapshots.publish(json.dumps({"n": 1}).encode())
        async with httpx.AsyncClient(base_url=gateway.admin_url or "", timeout=5) as client:
            page = await client.get("/")
            state = await client.get("/state")
            metrics = await client.get("/metrics")
            health = await client.get("/health")
            async with client.stream("GET", "/events") as response:
                decoder = SseDecoder()
                events: list[bytes] = []
                async for data in response.aiter_bytes():
                    events += decoder.feed(data)
                    if events:
                        break

    assert "<title>Headrace gateway</title>" in page.text
    assert "http://" not in page.text.replace("http://www.w3.org/2000/svg", "")
    assert state.json() == json.loads(events[0]) == {"n": 1}
    assert health.status_code == 200
    samples = [sample for family in text_string_to_metric_families(metrics.text) for sample in family.samples]
    done = [s.value for s in samples if s.name == "headrace_gateway_attempts_total" and s.labels["outcome"] == "2xx"]
    assert done == [1.0]


async def test_a_snapshot_tells_loads_and_decisions() -> None:
    async with FakeUpstream(behaviour=answers(429)) as upstream, running_gateway(upstream) as gateway:
        await exchange(gateway, chat_request())
        snapshot = gateway.statistics()

    (endpoint,) = snapshot.endpoints
    assert (endpoint.num_done, endpoint.num_in_flight, endpoint.breaker) == (1, 0, "closed")
    assert [decision.outcome for decision in snapshot.decisions] == ["429"]
    assert snapshot.num_requests == 1


async def test_listeners_are_bounded_and_end_when_the_broadcast_closes() -> None:
    broadcast = Broadcast(max_listeners=1)
    broadcast.publish(b"1")
    values = broadcast.listen()
    assert await anext(values) == b"1"
    with pytest.raises(OverloadedError):
        broadcast.listen()
    broadcast.close()

    assert [value async for value in values] == []
    assert broadcast.num_listeners == 0


async def test_a_port_in_use_stops_the_start_by_name() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        with pytest.raises(SettingsError, match="cannot listen") as caught:
            async with running_gateway(upstream, port=port):
                pass

    assert caught.value.param == "port"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_command_announces_itself_and_ends_a_stream_before_it_stops(number: int, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    gate = asyncio.Semaphore(1)
    async with FakeUpstream(behaviour=streams(["a", "b"], gate=gate)) as upstream:
        program = (
            "import uvloop; from headrace.gateway.run import run_gateway; from headrace.gateway.settings import *;"
            f"uvloop.run(run_gateway(GatewaySettings(endpoint=({upstream.url!r},), port=0, admin_port=0,"
            f" ready_file={str(ready)!r})))"
        )
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        try:
            async with asyncio.timeout(20):
                while not ready.exists():
                    await asyncio.sleep(0.02)
                announced = json.loads(ready.read_text())
                assert announced["pid"] == process.pid
                assert announced["admin_url"].startswith("http://127.0.0.1:")

                class Address:
                    url = announced["url"]

                async with raw_client(Address) as client:
                    await client.send(chat_request())
                    await client.read_head()
                    await client.read_chunk()
                    os.kill(process.pid, number)
                    gate.release()
                    rest = [await client.read_chunk() for _ in range(3)]
                    assert await client.is_closed_by_peer()
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    assert rest[1:] == [b"data: [DONE]\n\n", b""]
