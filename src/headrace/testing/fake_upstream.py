"""A fake OpenAI engine on a real socket, for tests of what stands in front of engines.

It answers /health, /v1/models and /kv_event_sources; every other request goes to `behaviour`, which a test replaces at
will: ready-made ones stand below, others are any coroutine function of one `Exchange`. What came in, and whether the
peer closed, is recorded. Nothing here sleeps but `drips`: what is slow waits for an event of the test's.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeAlias, cast

_MAX_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request as it came."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""
    body: bytes
    connection: int
    """Number of the connection it came on, from 0."""

    def header(self, name: str) -> str | None:
        """The first field called `name`."""
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> dict[str, object]:
        """The body as a JSON object."""
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request and the means to answer it in any way, right or wrong."""

    request: Received
    writer: asyncio.StreamWriter
    closed: asyncio.Event
    """Set when the peer has closed the connection."""
    keeps_alive: bool = True
    """Set to False to close after the answer."""

    async def send(self, data: bytes) -> None:
        """Raw bytes, right now."""
        self.writer.write(data)
        await self.writer.drain()

    async def respond(
        self, body: bytes, *, status: int = 200, content_type: str = "application/json", headers: Sequence[str] = ()
    ) -> None:
        """A whole answer with a Content-Length."""
        await self.send(
            head(status, [f"content-type: {content_type}", f"content-length: {len(body)}", *headers]) + body
        )

    async def start_chunked(self, *, content_type: str = "text/event-stream", headers: Sequence[str] = ()) -> None:
        """The head of an answer in chunks."""
        await self.send(head(200, [f"content-type: {content_type}", "transfer-encoding: chunked", *headers]))

    async def chunk(self, data: bytes) -> None:
        """One chunk; an empty one ends the answer."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def die(self) -> None:
        """Cut the connection, as a killed process does."""
        self.keeps_alive = False
        self.writer.transport.abort()


_PROBED = frozenset({"/health", "/v1/models", "/metrics", "/version", "/openapi.json", "/kv_event_sources"})

Behaviour: TypeAlias = Callable[[Exchange], Awaitable[None]]


def head(status: int, fields: Sequence[str]) -> bytes:
    """Status line and fields of an answer."""
    return "\r\n".join([f"HTTP/1.1 {status} Fake", *fields, "", ""]).encode("latin-1")


def chunk_event(text: str, *, model: str = "demo", finish_reason: str | None = None) -> bytes:
    """One `chat.completion.chunk` as a server-sent event."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    value = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def usage_event(*, prompt_tokens: int, completion_tokens: int, model: str = "demo") -> bytes:
    """The event that carries `usage`, as `stream_options.include_usage` asks for it."""
    usage = usage_of(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
    value = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": []}
    return b"data: " + json.dumps(value | {"usage": usage}).encode() + b"\n\n"


def usage_of(*, prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """OpenAI's usage object."""
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


DONE = b"data: [DONE]\n\n"


def streams(
    tokens: Sequence[str], *, gate: "asyncio.Semaphore | None" = None, prompt_tokens: int | None = None
) -> Behaviour:
    """A good stream of one event a token; with `gate`, each token waits for one release of it."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.start_chunked()
        for token in tokens:
            if gate is not None:
                await gate.acquire()
            await exchange.chunk(chunk_event(token))
        if prompt_tokens is not None:
            await exchange.chunk(usage_event(prompt_tokens=prompt_tokens, completion_tokens=len(tokens)))
        await exchange.chunk(DONE)
        await exchange.chunk(b"")

    return behaviour


def completes(text: str, *, prompt_tokens: int = 3, completion_tokens: int = 2) -> Behaviour:
    """A good answer that is not streamed."""
    message = {"role": "assistant", "content": text}
    value = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "demo",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage_of(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens),
    }
    body = json.dumps(value).encode()

    async def behaviour(exchange: Exchange) -> None:
        await exchange.respond(body)

    return behaviour


def sends(*pieces: bytes, closes: bool = True) -> Behaviour:
    """Exactly these bytes, each in a write of its own: garbage, wrong lengths, odd chunks."""

    async def behaviour(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange.send(piece)
        exchange.keeps_alive = not closes

    return behaviour


def answers(
    status: int,
    *,
    headers: Sequence[str] = (),
    body: bytes = b'{"error":{"message":"no"}}',
    content_type: str = "application/json",
) -> Behaviour:
    """An answer of `status`."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.respond(body, status=status, headers=headers, content_type=content_type)

    return behaviour


async def hangs(exchange: Exchange) -> None:
    """Never answers; ends when the peer gives up."""
    await exchange.closed.wait()


def drips(beginning: bytes, *, interval_s: float = 0.02) -> Behaviour:
    """Sends `beginning`, then one byte after the other without end, until the peer gives up."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.send(beginning)
        while not exchange.closed.is_set():
            await exchange.send(b"x")
            await asyncio.sleep(interval_s)

    return behaviour


async def dies_at_once(exchange: Exchange) -> None:
    """Takes the request and cuts the connection."""
    exchange.die()


def dies_after(*tokens: str, also: bytes = b"") -> Behaviour:
    """Streams `tokens`, and `also` as it is (half an event, say), then cuts the connection."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.start_chunked()
        for token in tokens:
            await exchange.chunk(chunk_event(token))
        if also:
            await exchange.chunk(also)
        exchange.writer.close()
        exchange.keeps_alive = False

    return behaviour


@dataclass(slots=True, kw_only=True)
class FakeUpstream:
    """The fake engine. `async with FakeUpstream() as upstream:` listens on a port of the system's choice."""

    model: str = "demo"
    max_model_len: int = 4096
    root: str = "/nowhere"
    adapters: tuple[str, ...] = ()
    """LoRA adapters of the model; like vLLM's, their cards do not tell the context."""
    behaviour: Behaviour = field(default_factory=lambda: completes("Hello."))
    health_status: int = 200
    metrics: str | None = None
    """Answer of /metrics; None answers 404."""
    owned_by: str = "fake"
    """Of its model; an engine's name here makes it pass for that engine."""
    version: str | None = None
    """Answer of /version; None answers 404."""
    openapi: dict[str, object] | None = None
    """Answer of /openapi.json; None answers 404."""
    kv_event_sources: dict[str, dict[str, object]] = field(default_factory=dict)
    """By data-parallel rank, as vLLM answers."""
    received: list[Received] = field(default_factory=list)
    """Requests other than probes."""
    probes: list[Received] = field(default_factory=list)
    port: int = 0
    num_connections: int = 0
    num_open: int = 0
    num_running: int = 0
    """Behaviours that have not ended."""
    _server: asyncio.Server | None = None
    _protocols: set["_Connection"] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse new connections and cut the open ones, as a killed process does."""
        if self._server is not None:
            self._server.close()
        for protocol in tuple(self._protocols):
            protocol.abort()
        await self.wait_for(lambda: self.num_open == 0 and self.num_running == 0)

    async def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until something that this fake counts is as it should be."""
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # for the connections

    def note_opened(self, connection: "_Connection") -> int:
        self._protocols.add(connection)
        self.num_open += 1
        self.num_connections += 1
        self._changed.set()
        return self.num_connections - 1

    def note_closed(self, connection: "_Connection") -> None:
        self._protocols.discard(connection)
        self.num_open -= 1
        self._changed.set()

    async def answer(self, exchange: Exchange) -> None:
        path = exchange.request.target.partition("?")[0]
        if path in _PROBED:
            self.probes.append(exchange.request)
        if path == "/health":
            await exchange.respond(b"{}", status=self.health_status)
        elif path == "/v1/models":
            await exchange.respond(self._models())
        elif path == "/metrics":
            await exchange.respond((self.metrics or "").encode(), status=404 if self.metrics is None else 200)
        elif path == "/version":
            await exchange.respond(json.dumps({"version": self.version}).encode(), status=_found(self.version))
        elif path == "/openapi.json":
            await exchange.respond(json.dumps(self.openapi).encode(), status=_found(self.openapi))
        elif path == "/kv_event_sources":
            await exchange.respond(json.dumps(self.kv_event_sources).encode())
        else:
            self.received.append(exchange.request)
            self.num_running += 1
            self._changed.set()
            try:
                await self.behaviour(exchange)
            finally:
                self.num_running -= 1
                self._changed.set()

    def _models(self) -> bytes:
        card = {"id": self.model, "object": "model", "created": 1, "owned_by": self.owned_by, "root": self.root}
        cards = [card | {"max_model_len": self.max_model_len}]
        cards += [card | {"id": name, "root": f"/adapters/{name}", "parent": self.model} for name in self.adapters]
        return json.dumps({"object": "list", "data": cards}).encode()


def _found(answer: object) -> int:
    return 404 if answer is None else 200


class _Connection(asyncio.StreamReaderProtocol):
    """One accepted connection; ends its behaviour when the peer closes."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self._input = asyncio.StreamReader(limit=_MAX_HEAD_BYTES)
        super().__init__(self._input, self._serve)
        self._upstream = upstream
        self._peer_closed = asyncio.Event()
        self._number = 0
        self._server_task: asyncio.Task[None] | None = None
        self._socket: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport
        self._number = self._upstream.note_opened(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._peer_closed.set()
        self._upstream.note_closed(self)
        if self._server_task is not None:
            self._server_task.cancel()

    def eof_received(self) -> bool:
        """A peer that closes its sending side is gone, as HTTP servers see it."""
        super().eof_received()
        return False

    def abort(self) -> None:
        if self._socket is not None:
            cast("asyncio.Transport", self._socket).abort()  # uvloop's is no subclass

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server_task = asyncio.current_task()
        try:
            while True:
                request = await self._read(reader)
                exchange = Exchange(request=request, writer=writer, closed=self._peer_closed)
                await self._upstream.answer(exchange)
                if not exchange.keeps_alive or request.header("connection") == "close":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the peer left; what it closed is recorded
        except asyncio.CancelledError:
            if not self._peer_closed.is_set():
                raise
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Received:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        method, target, _ = first.split(" ")
        pairs = [line.partition(":") for line in lines]
        headers = tuple((name.lower(), value.strip()) for name, _, value in pairs)
        length = next((int(value) for name, value in headers if name == "content-length"), 0)
        body = await reader.readexactly(length) if length else b""
        return Received(method=method, target=target, headers=headers, body=body, connection=self._number)
