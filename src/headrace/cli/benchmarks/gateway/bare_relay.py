"""What passing bytes on costs by itself, on the event loop that our gateway runs on: the floor under its figures.

Run as a process of its own: `python -m headrace.cli.benchmarks.gateway.bare_relay PORT UPSTREAM_PORT [...]`. It finds
out where messages end and nothing else, and takes the endpoints in turns: no gateway, since it has no limits,
time-outs, retries or backpressure, and tells its clients nothing when an endpoint fails.

With `--count DIR` it also counts each chat's prompt tokens with the tokenizer there (read the JSON, render, encode, and
drop the ids): what every gateway pays at least that knows them.
"""

import argparse
import asyncio
import signal
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import msgspec
import uvloop

from headrace.cli.benchmarks.gateway.upstream import num_missing
from headrace.tokenization.fastokens_tokenizer import one_by_one
from headrace.tokenization.huggingface import HuggingFaceTokenizer
from headrace.tokenization.load import load_tokenizer

_HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class _Relay:
    """The connections to the endpoints that nobody uses now, and whose turn it is."""

    def __init__(self, ports: Sequence[int], *, count: Callable[[bytes], int] | None = None) -> None:
        """`count` is called with every request before it is sent, with all those of a round of the loop in one go."""
        self._ports = cycle(ports)
        self._idle: dict[int, list[_Endpoint]] = {port: [] for port in ports}
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = count
        self._uncounted: list[tuple[bytes, _Client]] = []

    def take(self, request: bytes, client: "_Client") -> None:
        if self._count is None:
            self._send(request, client)
            return
        if not self._uncounted:
            asyncio.get_running_loop().call_soon(self._count_all, self._count)
        self._uncounted.append((request, client))

    def _count_all(self, count: Callable[[bytes], int]) -> None:
        counted, self._uncounted = self._uncounted, []
        for request, _ in counted:
            count(request)
        for request, client in counted:
            self._send(request, client)

    def _send(self, request: bytes, client: "_Client") -> None:
        port = next(self._ports)
        if idle := self._idle[port]:
            idle.pop().send(request, client)
            return
        task = asyncio.get_running_loop().create_task(self._connect(port, request, client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, port: int, request: bytes, client: "_Client") -> None:
        loop = asyncio.get_running_loop()
        _, endpoint = await loop.create_connection(lambda: _Endpoint(self._idle[port]), "127.0.0.1", port)
        endpoint.send(request, client)


class _Endpoint(asyncio.Protocol):
    """One connection to an endpoint, for one client at a time."""

    def __init__(self, idle: "list[_Endpoint]") -> None:
        self._idle = idle
        self._client: _Client | None = None
        self._num_missing: int | None = None
        """Bytes of the answer that are still to come; None before its head has come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def send(self, request: bytes, client: "_Client") -> None:
        self._client, self._num_missing = client, None
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        assert self._client is not None
        self._client.transport.write(data)
        if self._num_missing is None:  # the fake endpoint sends the head in one piece
            self._num_missing = num_missing(data, data.find(b"\r\n\r\n"))
            self._is_chunked = b"chunked" in data[: data.find(b"\r\n\r\n")]
        elif self._is_chunked:
            self._num_missing = 0 if data.endswith(b"0\r\n\r\n") else 1
        else:
            self._num_missing -= len(data)
        if not self._num_missing:
            self._client = None
            self._idle.append(self)


class _Client(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, relay: _Relay) -> None:
        self._relay = relay
        self._parts: list[bytes] = []
        self._num_missing = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._parts:
            self._parts.append(data)
            self._num_missing -= len(data)
            if self._num_missing > 0:
                return
            data = b"".join(self._parts)
            self._parts = []
        if missing := num_missing(data, data.find(b"\r\n\r\n")):
            self._parts, self._num_missing = [data], missing
        elif data.startswith(b"GET"):
            self.transport.write(_HEALTHY)
        else:
            self._relay.take(data, self)


def counter(path: Path) -> Callable[[bytes], int]:
    """The number of prompt tokens of a request, a chat, with the tokenizer in `path`. Raises as `load_tokenizer`."""
    tokenizer = load_tokenizer(path)
    assert isinstance(tokenizer, HuggingFaceTokenizer), "the benchmark's tokenizer is a tokenizer.json"
    template, encode = tokenizer.chat_template, one_by_one(tokenizer.accelerated())
    assert template is not None, "the benchmark sends chats"

    def count(request: bytes) -> int:
        body = memoryview(request)[request.index(b"\r\n\r\n") + 4 :]
        return len(encode(template.render(msgspec.json.decode(body, type=_Chat).messages), False))

    return count


class _Chat(msgspec.Struct):
    messages: list[dict[str, object]]


async def _serve(port: int, upstream_ports: Sequence[int], *, count: Callable[[bytes], int] | None) -> None:
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, is_over.set)
    relay = _Relay(upstream_ports, count=count)
    server = await loop.create_server(lambda: _Client(relay), "127.0.0.1", port, backlog=4096)
    await is_over.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--count", type=Path)
    arguments = parser.parse_args()
    port, *upstream_ports = arguments.ports
    count = None if arguments.count is None else counter(arguments.count)
    uvloop.run(_serve(port, upstream_ports, count=count))


if __name__ == "__main__":
    main()
