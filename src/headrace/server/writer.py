"""Sends one answer, whole or in pieces, and gives up on a client that does not read it."""

import asyncio
from collections.abc import Mapping

from starlette.types import Message, Send

from headrace.server.intake import ClientGoneError

_MAX_PIECE_BYTES = 256 << 10
"""A longer one would be buffered whole for a client that may never read it."""


class Writer:
    """One answer's way out. A write returns when the client has taken enough of what came before.

    Raises ClientGoneError when that takes longer than `timeout_s`; a client that has closed is found out by others.
    """

    def __init__(self, send: Send, *, timeout_s: float) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self.has_started = False

    async def start(self, headers: Mapping[str, str], *, status: int = 200) -> None:
        self.has_started = True
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._bounded({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, body: bytes) -> None:
        if body:
            await self._bounded({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes = b"") -> None:
        await self._bounded({"type": "http.response.body", "body": body, "more_body": False})

    async def send_json(self, body: bytes) -> None:
        """A whole answer. A long one leaves piece by piece, each when the client has taken enough of those before."""
        await self.start({"content-type": "application/json", "content-length": str(len(body))})
        rest = memoryview(body)
        while len(rest) > _MAX_PIECE_BYTES:
            await self.write(bytes(rest[:_MAX_PIECE_BYTES]))
            rest = rest[_MAX_PIECE_BYTES:]
        await self.end(bytes(rest))

    async def _bounded(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError as error:
            raise ClientGoneError(f"the client read nothing for {self._timeout_s:g} s") from error
