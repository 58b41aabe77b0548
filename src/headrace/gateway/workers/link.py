"""The supervisor's side of a worker's socket: one small question at a time. The other side is `routes.py`."""

import asyncio
from dataclasses import dataclass

from headrace.errors import UpstreamError, UpstreamProtocolError

_MAX_ANSWER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a worker answered."""

    status: int
    body: bytes


async def ask(socket: str, path: str, *, timeout_s: float, method: str = "GET", body: bytes = b"") -> Told:
    """Ask the worker at the Unix socket `socket`. Raises UpstreamError when it does not answer in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _ask(socket, path, method=method, body=body)
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise UpstreamError(f"The worker at {socket} does not answer {path}: {error!r}.") from error


async def _ask(socket: str, path: str, *, method: str, body: bytes) -> Told:
    reader, writer = await asyncio.open_unix_connection(socket, limit=_MAX_ANSWER_BYTES)
    try:
        head = f"{method} {path} HTTP/1.1\r\nhost: worker\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode("ascii") + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        return Told(status=_status_of(answer), body=await reader.readexactly(_length_of(answer)))
    finally:
        writer.close()


def _status_of(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])


def _length_of(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise UpstreamProtocolError("A worker's answer has no Content-Length.")
