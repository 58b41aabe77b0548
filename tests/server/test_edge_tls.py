"""TLS: the server's certificate, clients' certificates, a renewed one, and files that cannot be used."""

import asyncio
import contextlib
import signal
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from headrace.errors import SettingsError
from headrace.server.settings import ServerSettings
from headrace.server.tls import renewed_by_hangup, tls_context
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration


@dataclass
class Authority:
    """Signs certificates for this machine and writes them where a server reads them."""

    ca: trustme.CA
    directory: Path

    def settings(self, **others: Any) -> ServerSettings:
        return ServerSettings(
            ssl_certfile=str(self.directory / "server.pem"), ssl_keyfile=str(self.directory / "server.key"), **others
        )

    def issue(self) -> None:
        issued = self.ca.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(self.directory / "server.key"))
        with (self.directory / "server.pem").open("wb") as file:
            file.writelines(blob.bytes() for blob in issued.cert_chain_pems)
        self.ca.cert_pem.write_to_path(str(self.directory / "ca.pem"))

    def trusting(self) -> ssl.SSLContext:
        """What a client of this authority's servers uses."""
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        return context


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def authority(ca: trustme.CA, tmp_path: Path) -> Authority:
    authority = Authority(ca, tmp_path)
    authority.issue()
    return authority


async def serial_of(server: Any, authority: Authority) -> str:
    """Of the certificate that the server shows now."""
    _, writer = await asyncio.open_connection(server.host, server.port, ssl=authority.trusting())
    certificate = writer.get_extra_info("peercert")
    writer.close()
    await writer.wait_closed()
    return str(certificate["serialNumber"])


async def test_answers_and_streams_come_over_tls(engine: FakeEngine, serve: Any, authority: Authority) -> None:
    async with serve(engine, authority.settings()) as server:
        assert server.url.startswith("https://")
        async with httpx.AsyncClient(base_url=server.url, verify=authority.trusting()) as http:
            whole = await http.post("/v1/completions", json={"prompt": "abc"})
            stream = await http.post("/v1/completions", json={"prompt": "abc", "stream": True})
    assert whole.json()["choices"][0]["text"] == "abc"
    assert stream.text.endswith("data: [DONE]\n\n")


async def test_who_speaks_no_tls_gets_nothing(engine: FakeEngine, serve: Any, authority: Authority) -> None:
    async with serve(engine, authority.settings()) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" not in await asyncio.wait_for(reader.read(), timeout=10)
        writer.close()


async def test_a_client_without_the_certificate_that_is_demanded_is_refused(
    engine: FakeEngine, serve: Any, authority: Authority
) -> None:
    settings = authority.settings(ssl_ca_certs=str(authority.directory / "ca.pem"), ssl_cert_reqs=2)
    with_certificate = authority.trusting()
    authority.ca.issue_cert("client@example.org").configure_cert(with_certificate)
    async with serve(engine, settings) as server:
        async with httpx.AsyncClient(base_url=server.url, verify=with_certificate) as http:
            assert (await http.get("/health")).status_code == 200
        async with httpx.AsyncClient(base_url=server.url, verify=authority.trusting()) as http:
            with pytest.raises(httpx.TransportError):
                await http.get("/health")


async def test_a_client_that_reads_nothing_is_given_up_over_tls_too(
    engine: FakeEngine, serve: Any, authority: Authority
) -> None:
    body = b'{"tokens":[' + b"9," * 4_000_000 + b"9]}"  # tabs, two bytes each in JSON
    request = b"POST /detokenize HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)

    def ask(address: tuple[str, int]) -> ssl.SSLSocket:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(address)
        client = authority.trusting().wrap_socket(plain, server_hostname="127.0.0.1")
        client.sendall(request)
        return client

    async with serve(engine, authority.settings(write_timeout_s=0.2)) as server:
        with contextlib.closing(await asyncio.to_thread(ask, (server.host, server.port))):
            await asyncio.wait_for(server.http_server.until_no_connection(), timeout=20)


async def test_the_rest_of_an_answer_that_nobody_reads_does_not_hold_a_tls_connection(
    engine: FakeEngine, serve: Any, authority: Authority
) -> None:
    """The answer is complete, the connection closes, and what is left lies in buffers below TLS."""
    text = "x" * 150_000
    async with serve(engine, authority.settings(write_timeout_s=0.2)) as server:
        body = b'{"tokens":[' + b",".join([b"120"] * len(text)) + b"]}"
        head = b"POST /detokenize HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)

        def ask(address: tuple[str, int]) -> ssl.SSLSocket:
            plain = socket.socket()
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.connect(address)
            client = authority.trusting().wrap_socket(plain, server_hostname="127.0.0.1")
            client.sendall(head + body)
            return client

        with contextlib.closing(await asyncio.to_thread(ask, (server.host, server.port))):
            async with asyncio.timeout(20):  # the loop's own patience is 30 s
                await server.http_server.until_no_connection()


async def test_a_hangup_signal_reads_the_certificate_again(
    engine: FakeEngine, serve: Any, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = authority.settings()
    async with serve(engine, settings) as server:
        before = await serial_of(server, authority)
        context = server.http_server.config.ssl
        with renewed_by_hangup(context, settings):
            authority.issue()
            await _hang_up()
            after = await serial_of(server, authority)
            (authority.directory / "server.pem").write_text("broken")
            await _hang_up()
            assert await serial_of(server, authority) == after
    assert before != after


async def _hang_up() -> None:
    """Returns when the loop has handled the signal."""
    handled = asyncio.Event()
    loop = asyncio.get_running_loop()
    signal.raise_signal(signal.SIGHUP)
    loop.call_later(0.05, handled.set)
    await handled.wait()


@pytest.mark.parametrize(
    ("field", "content"),
    [("ssl_certfile", None), ("ssl_certfile", "not a certificate"), ("ssl_keyfile", "not a key"), ("ssl_ca_certs", "")],
)
def test_files_that_cannot_be_used_are_said_before_anything_starts(
    authority: Authority, tmp_path: Path, field: str, content: str | None
) -> None:
    path = tmp_path / "other.pem"
    if content is not None:
        path.write_text(content)
    files = {"ssl_certfile": str(tmp_path / "server.pem"), "ssl_keyfile": str(tmp_path / "server.key")}
    with pytest.raises(SettingsError, match="cannot be used") as caught:
        tls_context(ServerSettings(**{**files, field: str(path)}))
    assert caught.value.param == ("ssl_ca_certs" if field == "ssl_ca_certs" else "ssl_certfile")


def test_a_key_with_a_password_is_refused_and_nobody_asked_for_it(ca: trustme.CA, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    issued = ca.issue_cert("127.0.0.1")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "locked.key").write_bytes(locked)
    (tmp_path / "server.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    with pytest.raises(SettingsError, match="cannot be used"):
        tls_context(ServerSettings(ssl_certfile=str(tmp_path / "server.pem"), ssl_keyfile=str(tmp_path / "locked.key")))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"ssl_keyfile": "a.key"}, "ssl_keyfile"),
        ({"ssl_ca_certs": "ca.pem"}, "ssl_ca_certs"),
        ({"ssl_certfile": "a.pem", "ssl_cert_reqs": 3}, "ssl_cert_reqs"),
        ({"ssl_certfile": "a.pem", "ssl_cert_reqs": 2}, "ssl_cert_reqs"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(wrong: Any, field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        ServerSettings(**wrong)
    assert caught.value.param == field
