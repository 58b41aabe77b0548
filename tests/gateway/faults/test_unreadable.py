"""JSON that cannot be read, its text being no UTF-8 or nested too deeply: msgspec has other errors for these two."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.usage.forms import OpenAiForm
from headrace.testing.fake_upstream import DONE, Behaviour, FakeUpstream, answers, head, sends
from tests.gateway.support import chat_body, chat_request, exchange, num_in_flight, running_gateway

pytestmark = pytest.mark.integration

DEEP = b"[" * 20_000 + b"]" * 20_000
UNREADABLE = {"too deep": b'{"usage":{"x":' + DEEP + b"}}", "no UTF-8": b'{"usage":{"\xff":1}}'}
PRICED = AdmissionSettings(price=("demo=1/1/1",))


def streamed(value: bytes) -> Behaviour:
    events = b"data: " + value + b"\n\n" + DONE
    begin = head(200, ["content-type: text/event-stream", "transfer-encoding: chunked"])
    return sends(begin, b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events), closes=False)


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_an_answer_that_cannot_be_read_is_relayed_and_its_usage_estimated(value: bytes) -> None:
    behaviour = answers(200, body=value)
    async with FakeUpstream(behaviour=behaviour) as upstream, running_gateway(upstream, admission=PRICED) as gateway:
        async with asyncio.timeout(20):
            answer = await exchange(gateway, chat_request())

    assert (answer.status, answer.body, answer.is_complete) == (200, value, True)


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_stream_that_cannot_be_read_is_relayed_whole(value: bytes) -> None:
    async with (
        FakeUpstream(behaviour=streamed(value)) as upstream,
        running_gateway(upstream, admission=PRICED) as gateway,
    ):
        async with asyncio.timeout(20):
            answer = await exchange(gateway, chat_request(chat_body(stream=True)))

    assert (answer.status, answer.body, answer.is_complete) == (200, b"data: " + value + b"\n\n" + DONE, True)


async def test_a_fault_of_the_gateway_at_an_answers_end_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(form: OpenAiForm, data: bytes) -> None:
        raise ArithmeticError

    monkeypatch.setattr(OpenAiForm, "read", read)
    async with FakeUpstream() as upstream, running_gateway(upstream, admission=PRICED) as gateway:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with asyncio.timeout(20):
            answer = await exchange(gateway, chat_request())

        assert num_in_flight(gateway) == 0
    assert answer.status == 500 or not answer.is_complete


@asynccontextmanager
async def endpoint_with_models(bodies: list[bytes]) -> AsyncIterator[str]:
    """The URL of one whose /v1/models answers `bodies`, one after the other and the last one again and again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        body = b"{}"
        if b"/v1/models" in request:
            body = bodies[0] if len(bodies) == 1 else bodies.pop(0)
        writer.write(head(200, [f"content-length: {len(body)}", "connection: close"]) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "value", [b'{"data":[{"id":"\xff"}]}', b'{"data":' + DEEP + b"}"], ids=["no UTF-8", "too deep"]
)
async def test_an_endpoint_whose_models_cannot_be_read_is_down_until_they_can(value: bytes) -> None:
    good = json.dumps({"data": [{"id": "demo"}]}).encode()
    async with endpoint_with_models([value, good]) as url, asyncio.timeout(20):
        async with running_gateway(endpoint=(url,), health_interval_s=0.05, load_metrics="off") as gateway:
            while "demo" not in gateway.fleet.models:
                await asyncio.sleep(0.005)

        assert gateway.fleet.num_ready == 1
