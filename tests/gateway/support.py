"""What the gateway's socket tests share: a gateway in front of fakes, and a client that speaks raw HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.app import Gateway
from headrace.gateway.settings import GatewaySettings
from headrace.gateway.telemetry.traces import RequestTracer
from headrace.testing.fake_upstream import FakeUpstream

CHAT = "/v1/chat/completions"


@asynccontextmanager
async def running_gateway(
    *upstreams: FakeUpstream,
    admission: AdmissionSettings | None = None,
    tracer: RequestTracer | None = None,
    **settings: object,
) -> AsyncIterator[Gateway]:
    """A gateway on a free port in front of `upstreams`, without admin port and probing only once unless told."""
    defaults: dict[str, object] = {
        "endpoint": tuple(upstream.url for upstream in upstreams),
        "port": 0,
        "admin_port": None,
        "health_interval_s": 3600.0,
        "health_timeout_s": 20.0,  # these three: the machine may have much else to do
        "tokenize_timeout_s": 20.0,
        "connect_timeout_s": 20.0,
    }
    async with Gateway(GatewaySettings(**(defaults | settings)), admission=admission, tracer=tracer) as gateway:
        yield gateway


def chat_body(*, stream: bool = False, **fields: object) -> bytes:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
    return json.dumps(body | fields).encode()


def chat_request(body: bytes | None = None, *, extra: str = "", path: str = CHAT) -> bytes:
    body = chat_body() if body is None else body
    return f"POST {path} HTTP/1.1\r\nHost: gateway\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


@dataclass
class RawAnswer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    is_complete: bool
    """False if the connection ended inside the body."""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def error(self) -> dict[str, object]:
        return json.loads(self.body)["error"]


class RawClient:
    """One connection to the gateway, over which bytes are sent as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def read_head(self) -> RawAnswer:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.split("\r\n")[:-2]
        pairs = [line.partition(": ") for line in lines]
        return RawAnswer(int(first.split(" ")[1]), [(name, value) for name, _, value in pairs], b"", True)

    async def read_chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def read_answer(self) -> RawAnswer:
        answer = await self.read_head()
        length = answer.header("content-length")
        try:
            if answer.header("transfer-encoding") == "chunked":
                while chunk := await self.read_chunk():
                    answer.body += chunk
            elif length is not None:
                answer.body = await self.reader.readexactly(int(length))
            else:
                answer.body = await self.reader.read()
        except asyncio.IncompleteReadError as error:
            answer.body += error.partial
            answer.is_complete = False
        return answer

    async def is_closed_by_peer(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def raw_client(gateway: Gateway) -> AsyncIterator[RawClient]:
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    client = RawClient(reader, writer)
    try:
        yield client
    finally:
        client.reset()


async def exchange(gateway: Gateway, *parts: bytes) -> RawAnswer:
    """One request on a connection of its own."""
    async with raw_client(gateway) as client:
        await client.send(*parts)
        return await client.read_answer()


def num_in_flight(gateway: Gateway) -> int:
    return sum(endpoint.load.num_in_flight for endpoint in gateway.fleet.endpoints)


async def settled(gateway: Gateway) -> None:
    """Wait until no client's connection and no request is left."""
    while gateway.server.statistics().num_connections or gateway.slots.num_taken:
        await asyncio.sleep(0)
