"""Endpoints behind TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from headrace.testing.fake_upstream import head
from tests.gateway.support import chat_body, chat_request, exchange, running_gateway

pytestmark = pytest.mark.integration


@asynccontextmanager
async def engine_behind_tls(authority: trustme.CA) -> AsyncIterator[str]:
    """The URL of one that answers everything with a list of its models and the number of bytes that it got."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in request.lower().split(b"\r\n") if b": " in line)
        length = int(fields.get(b"content-length", 0))
        await reader.readexactly(length)
        body = b'{"data":[{"id":"demo"}],"num_bytes":%d}' % length
        writer.write(head(200, [f"content-length: {len(body)}", "connection: close"]) + body)
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context, limit=1 << 22)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_one_whose_certificate_is_trusted_gets_whole_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    body = chat_body(user="x" * (1 << 20))
    async with engine_behind_tls(authority) as url, running_gateway(endpoint=(url,)) as gateway:
        answer = await exchange(gateway, chat_request(body))

    assert (answer.status, answer.header("x-headrace-endpoint")) == (200, url)
    assert b'"num_bytes":%d' % len(body) in answer.body


async def test_one_whose_certificate_is_not_trusted_is_down_for_that_reason() -> None:
    async with engine_behind_tls(trustme.CA()) as url, running_gateway(endpoint=(url,)) as gateway:
        answer = await exchange(gateway, chat_request())

    assert answer.status == 503
    assert "its certificate is not trusted" in str(answer.error["message"])
