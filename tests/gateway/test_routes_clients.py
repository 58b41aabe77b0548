"""The newer routes with their official clients, through the gateway to a fake engine, over real sockets."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import pytest

import openai
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.app import Gateway
from headrace.testing.fake_upstream import Behaviour, Exchange, FakeUpstream, sends
from headrace.testing.fake_upstream import head as head_of
from tests.gateway.support import RawAnswer, chat_request, exchange, running_gateway

pytestmark = pytest.mark.integration

ASKED: Any = [{"role": "user", "content": "Hi"}]
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "demo", "content": [], "stop_reason": None}
PRICE = "demo=1/0.5/2"
DEMO = str(Path(__file__).parents[2] / "models" / "demo")


def events(*values: dict[str, Any]) -> bytes:
    return b"".join(
        b"event: " + value["type"].encode() + b"\ndata: " + json.dumps(value).encode() + b"\n\n" for value in values
    )


MESSAGE_STREAM = events(
    {"type": "message_start", "message": MESSAGE | {"usage": {"input_tokens": 100, "output_tokens": 0}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 10}},
    {"type": "message_stop"},
)
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "demo",
    "status": "completed",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 40},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 110,
    },
}


def streams(stream: bytes) -> Behaviour:
    async def behaviour(exchange_: Exchange) -> None:
        await exchange_.start_chunked()
        for start in range(0, len(stream), 97):
            await exchange_.chunk(stream[start : start + 97])
        await exchange_.chunk(b"")

    return behaviour


def responds(value: dict[str, Any]) -> Behaviour:
    async def behaviour(exchange_: Exchange) -> None:
        await exchange_.respond(json.dumps(value).encode())

    return behaviour


def totals(gateway: Gateway) -> tuple[int, int, int] | None:
    """Prompt, cached and completion tokens that were billed."""
    for used in gateway.admission.statistics().totals.values():
        return used.prompt_tokens, used.cached_tokens, used.completion_tokens
    return None


async def reaches(expected: object, value: Callable[[], object]) -> None:
    """Return once `value` is as expected: a request is settled a moment after its client has the answer."""
    try:
        async with asyncio.timeout(20):
            while value() != expected:
                await asyncio.sleep(0.01)
    except TimeoutError:
        assert value() == expected


def anthropic_client(gateway: Gateway) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=gateway.url, api_key="k", max_retries=0)


async def post(gateway: Gateway, path: str, **fields: Any) -> RawAnswer:
    return await exchange(gateway, chat_request(json.dumps({"model": "demo"} | fields).encode(), path=path))


async def test_a_message_is_streamed_and_its_usage_is_billed() -> None:
    async with (
        FakeUpstream(behaviour=streams(MESSAGE_STREAM)) as upstream,
        running_gateway(upstream, admission=AdmissionSettings(price=(PRICE,))) as gateway,
    ):
        async with (
            anthropic_client(gateway) as client,
            client.messages.stream(model="demo", max_tokens=20, messages=ASKED) as stream,
        ):
            text = await stream.get_final_text()

        assert text == "Hello."
        await reaches((100, 0, 10), lambda: totals(gateway))
    sent = next(one for one in upstream.received if one.target == "/v1/messages")
    assert sent.header("authorization") == "Bearer k"


async def test_a_response_is_streamed_and_its_usage_is_billed() -> None:
    created = RESPONSE | {"status": "in_progress", "usage": None}
    stream = events(
        {"type": "response.created", "response": created, "sequence_number": 0},
        {"type": "response.completed", "response": RESPONSE, "sequence_number": 1},
    )
    async with (
        FakeUpstream(behaviour=streams(stream)) as upstream,
        running_gateway(upstream, admission=AdmissionSettings(price=(PRICE,))) as gateway,
    ):
        async with (
            openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="k", max_retries=0) as client,
            client.responses.stream(model="demo", input="Hi") as received,
        ):
            final = await received.get_final_response()

        assert final.usage is not None
        assert final.usage.input_tokens == 100
        await reaches((100, 40, 10), lambda: totals(gateway))


async def test_the_cost_of_a_whole_message_stands_in_its_header() -> None:
    usage = {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 10}
    async with (
        FakeUpstream(behaviour=responds(MESSAGE | {"usage": usage})) as upstream,
        running_gateway(upstream, admission=AdmissionSettings(price=(PRICE,))) as gateway,
    ):
        answer = await post(gateway, "/v1/messages", messages=ASKED, max_tokens=5)

        await reaches((100, 40, 10), lambda: totals(gateway))
    assert float(answer.header("x-headrace-cost") or "nan") == pytest.approx((60 + 40 * 0.5 + 10 * 2) / 1e6)


async def test_errors_of_the_gateway_have_anthropics_form_for_its_clients() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway, anthropic_client(gateway) as client:
        with pytest.raises(anthropic.NotFoundError) as refused:
            await client.messages.create(model="nope", max_tokens=5, messages=ASKED)

    assert refused.value.type == "not_found_error"
    assert "'nope' does not exist here" in str(refused.value)


async def test_a_message_that_breaks_off_ends_with_an_error_event() -> None:
    begun = MESSAGE_STREAM.partition(b"event: content_block_stop")[0]
    fields = ["content-type: text/event-stream", "transfer-encoding: chunked"]
    broken = sends(head_of(200, fields), b"%x\r\n%b\r\n" % (len(begun), begun))
    async with (
        FakeUpstream(behaviour=broken) as upstream,
        running_gateway(upstream) as gateway,
        anthropic_client(gateway) as client,
    ):
        with pytest.raises(anthropic.APIStatusError, match="closed before its answer was complete"):
            async with client.messages.stream(model="demo", max_tokens=20, messages=ASKED) as stream:
                await stream.get_final_text()


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/responses", {"input": "x", "max_output_tokens": 5000}, "input"),
        ("/inference/v1/generate", {"token_ids": [1] * 90, "sampling_params": {"max_tokens": 10}}, "token_ids"),
    ],
)
async def test_what_cannot_fit_the_context_is_refused_on_every_route(
    path: str, fields: dict[str, Any], param: str
) -> None:
    async with FakeUpstream(max_model_len=96, root=DEMO) as upstream, running_gateway(upstream) as gateway:
        answer = await post(gateway, path, **fields)

    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "context_length_exceeded", param)


async def test_what_is_generated_from_ids_is_compared_with_what_the_engine_counts() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    async with (
        FakeUpstream(behaviour=responds({"choices": [], "usage": usage})) as upstream,
        running_gateway(upstream) as gateway,
    ):
        answer = await post(gateway, "/inference/v1/generate", token_ids=[5, 6, 7], sampling_params={})
        await reaches([1], lambda: [parity.num_exact for parity in gateway.parity.statistics()])

    assert answer.header("x-headrace-prompt-tokens") == "3"


@pytest.mark.parametrize("path", ["/score", "/v1/rerank", "/pooling", "/classify"])
async def test_routes_with_forms_of_their_own_are_relayed_and_billed_by_their_usage(path: str) -> None:
    usage = {"prompt_tokens": 12, "total_tokens": 12}
    async with (
        FakeUpstream(behaviour=responds({"data": [], "usage": usage})) as upstream,
        running_gateway(upstream, admission=AdmissionSettings(price=(PRICE,))) as gateway,
    ):
        answer = await post(gateway, path, query="a", documents=["b"])

        await reaches((12, 0, 0), lambda: totals(gateway))
    assert answer.header("x-headrace-reason") == "only endpoint; tokens form_not_counted"


async def test_a_route_that_no_endpoint_has_is_told_so() -> None:
    document: dict[str, object] = {"paths": {"/v1/chat/completions": {"post": {}}}}
    async with FakeUpstream(openapi=document) as upstream, running_gateway(upstream) as gateway:
        await until_asked(gateway)
        answer = await post(gateway, "/v1/rerank", query="a", documents=["b"])

    assert (answer.status, answer.error["code"]) == (404, "unknown_url")
    assert "has /v1/rerank" in str(answer.error["message"])


async def test_a_route_goes_where_it_is_to_be_had() -> None:
    chat, both = "/v1/chat/completions", "/v1/rerank"
    async with (
        FakeUpstream(openapi={"paths": {chat: {"post": {}}}}) as one,
        FakeUpstream(openapi={"paths": {chat: {"post": {}}, both: {"post": {}}}}) as two,
        running_gateway(one, two) as gateway,
    ):
        await until_asked(gateway)
        answers_ = [await post(gateway, "/v1/rerank", query="a", documents=["b"]) for _ in range(4)]

    assert {answer.header("x-headrace-endpoint") for answer in answers_} == {two.url}


async def test_an_adapter_is_asked_where_it_is_loaded_and_counted_as_its_model() -> None:
    async with (
        FakeUpstream(root=DEMO, max_model_len=64) as one,
        FakeUpstream(root=DEMO, max_model_len=64, adapters=("lora",)) as two,
        running_gateway(one, two) as gateway,
    ):
        base = await post(gateway, "/v1/chat/completions", messages=ASKED)
        adapted = [await post(gateway, "/v1/chat/completions", messages=ASKED, model="lora") for _ in range(4)]
        too_long = await post(gateway, "/v1/completions", prompt=[1] * 65, model="lora")

    assert {answer.header("x-headrace-endpoint") for answer in adapted} == {two.url}
    tokens = base.header("x-headrace-prompt-tokens")
    assert tokens is not None
    assert {answer.header("x-headrace-prompt-tokens") for answer in adapted} == {tokens}
    assert too_long.error["code"] == "context_length_exceeded"


async def until_asked(gateway: Gateway) -> None:
    """Wait until every endpoint has told its routes."""
    async with asyncio.timeout(20):
        while any(endpoint.capability.routes is None for endpoint in gateway.fleet.endpoints):
            await asyncio.sleep(0.01)
