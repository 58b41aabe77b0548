"""A real vLLM behind the gateway: what it is told and what it tells agree, token for token.

It needs the environment that `benchmarks/peers/install.py vllm` makes, some minutes and 2 GB.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

import openai
from headrace.gateway.app import Gateway
from headrace.gateway.settings import GatewaySettings
from tests.integration.kv_events import caught_up
from tests.integration.real_vllm import BLOCK_SIZE, PEER_FILE, Vllm, running_vllm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PEER_FILE.exists(), reason="vLLM's environment is not installed"),
]

DEADLINE_S = 60.0
SYSTEM = "You keep the mill. The channel carries the water to the wheel, and the wheel turns the stone. " * 4
CHATS: tuple[list[dict[str, object]], ...] = (
    [{"role": "user", "content": "What is 3 plus 4?"}],
    [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Héllo ✓ <|im_end|> 你好"}],
    [
        {"role": "user", "content": "What is 12 plus 7?"},
        {"role": "assistant", "content": "12 plus 7 is 19."},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
    ],
)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    with running_vllm(tmp_path_factory.mktemp("vllm")) as server:
        yield server


@asynccontextmanager
async def gateway_of(vllm: Vllm, **settings: object) -> AsyncIterator[Gateway]:
    """It follows vLLM's KV events."""
    fixed = {"endpoint": (vllm.url,), "port": 0, "admin_port": None, "health_interval_s": 3600.0}
    async with Gateway(GatewaySettings(**(fixed | settings))) as gateway:
        await wait_for(lambda: gateway.routing.statistics().kv_events.num_sources == 1)
        yield gateway


async def wait_for(is_so: Callable[[], bool]) -> None:
    """For what comes from another process."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():
            await asyncio.sleep(0.02)


def body_of(messages: list[dict[str, object]], **fields: object) -> dict[str, object]:
    return {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 16} | fields


async def ask(url: str, body: dict[str, object], *, route: str = "chat/completions") -> httpx.Response:
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        return (await client.post(f"{url}/v1/{route}", json=body)).raise_for_status()


def told(answer: httpx.Response) -> tuple[object, ...]:
    """What must not depend on the way that a request came."""
    value = answer.json()
    (choice,) = value["choices"]
    content = choice["message"]["content"] if "message" in choice else choice["text"]
    return content, choice["finish_reason"], value["usage"]["prompt_tokens"], value["usage"]["completion_tokens"]


def cached_tokens(answer: httpx.Response) -> int:
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_the_official_client_streams_what_vllm_says(vllm: Vllm) -> None:
    body = body_of(CHATS[0])
    direct = await ask(vllm.url, body)
    async with (
        gateway_of(vllm) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == told(direct)[0]
    assert len(chunks) > 3
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == told(direct)[2:]


async def test_every_prompt_is_counted_as_vllm_counts_it(vllm: Vllm) -> None:
    async with gateway_of(vllm, token_in="off") as gateway:
        answers = [await ask(gateway.url, body_of(messages)) for messages in CHATS]
        answers.append(await ask(gateway.url, {"model": "demo", "prompt": "Once upon a time"}, route="completions"))
        (parity,) = gateway.parity.statistics()

    for answer in answers:
        assert int(answer.headers["x-headrace-prompt-tokens"]) == answer.json()["usage"]["prompt_tokens"]
    assert (parity.num_exact, parity.num_drift) == (len(answers), 0)


async def test_cached_tokens_are_predicted_from_vllms_events_turn_by_turn(vllm: Vllm) -> None:
    messages: list[dict[str, object]] = [{"role": "system", "content": SYSTEM + "Turn by turn."}]
    pairs = []
    async with gateway_of(vllm) as gateway:
        await caught_up(gateway)  # with what the tests before this one have left in its cache
        holder = gateway.fleet.endpoints[0].holders[0]
        for turn in range(4):
            messages.append({"role": "user", "content": f"Question {turn}: what does the wheel turn?"})
            num_known = len(holder.places)
            answer = await ask(gateway.url, body_of(messages))
            pairs.append((int(answer.headers["x-headrace-cached-tokens-predicted"]), cached_tokens(answer)))
            usage = answer.json()["usage"]
            num_computed = usage["prompt_tokens"] + usage["completion_tokens"] - 1
            num_new = num_computed // BLOCK_SIZE - pairs[-1][1] // BLOCK_SIZE
            await wait_for(lambda least=num_known + num_new: len(holder.places) >= least)
            messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
        events = gateway.routing.statistics().kv_events

    assert [predicted for predicted, _ in pairs] == [counted for _, counted in pairs]
    assert all(counted > 0 for _, counted in pairs[1:])
    assert events.num_unreadable == 0


async def test_vllm_takes_the_gateways_tokens_and_says_the_same(vllm: Vllm) -> None:
    completion = {"model": "demo", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 16}
    cases = [*(("chat/completions", body_of(messages)) for messages in CHATS), ("completions", completion)]
    async with gateway_of(vllm, token_in_min_tokens=1, token_in_audit_every=10**6) as gateway:
        for route, body in cases:
            direct = await ask(vllm.url, body, route=route)
            answer = await by_ids(gateway, body, route=route)

            assert told(answer) == told(direct)
            assert int(answer.headers["x-headrace-prompt-tokens"]) == answer.json()["usage"]["prompt_tokens"]


async def by_ids(gateway: Gateway, body: dict[str, object], *, route: str) -> httpx.Response:
    """The answer to the gateway's ids; it may have to find out first that vLLM takes them."""
    reasons = set()
    for _ in range(100):
        answer = await ask(gateway.url, body, route=route)
        if answer.headers["x-headrace-token-in"] == "yes":
            return answer
        reasons.add(answer.headers["x-headrace-token-in"])
        await asyncio.sleep(0.05)
    pytest.fail(f"vLLM gets text: {reasons}")


async def test_a_client_that_leaves_stops_vllms_work(vllm: Vllm) -> None:
    body = body_of(CHATS[0], stream=True, max_tokens=900, ignore_eos=True)
    num_before = vllm.count("vllm:generation_tokens_total")
    async with gateway_of(vllm) as gateway:
        async with (
            httpx.AsyncClient(timeout=DEADLINE_S) as client,
            client.stream("POST", f"{gateway.url}/v1/chat/completions", json=body) as answer,
        ):
            received = answer.aiter_bytes()
            await anext(received)
            assert vllm.count("vllm:num_requests_running") == 1
        await wait_for(lambda: not gateway.slots.num_taken)
        await wait_for(lambda: vllm.count("vllm:num_requests_running") == 0)

        assert gateway.fleet.endpoints[0].num_in_flight == 0
    assert vllm.count("vllm:generation_tokens_total") - num_before < 900


async def test_the_gateways_books_are_vllms_books(vllm: Vllm) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total")
    bodies = [body_of([{"role": "user", "content": f"What is {number} plus 4?"}], max_tokens=number % 7 + 1)
              for number in range(24)]  # fmt: skip
    before = [vllm.count(name) for name in names]
    async with gateway_of(vllm) as gateway:
        async with asyncio.TaskGroup() as group:
            for body in bodies:
                group.create_task(ask(gateway.url, body))
        (totals,) = gateway.admission.statistics().totals.values()
        statistics = gateway.fleet.endpoints[0].load.statistics()
    after = [vllm.count(name) for name in names]

    used = [new - old for new, old in zip(after, before, strict=True)]
    assert used == [totals.prompt_tokens, totals.completion_tokens, len(bodies)]
    assert (totals.num_requests, totals.num_estimated) == (len(bodies), 0)
    assert (statistics.num_done, statistics.num_failed, statistics.num_in_flight) == (len(bodies), 0, 0)
