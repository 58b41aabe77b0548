"""Remote tokenizers over TLS, with certificates that the test makes."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.errors import UpstreamConnectError
from headrace.tokenization.remote.settings import RemoteTokenizerSettings
from headrace.tokenization.remote.tokenizer import RemoteTokenizer

pytestmark = pytest.mark.integration

BODY = b'{"tokens":[104],"count":1}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(BODY), BODY)


@dataclass(frozen=True)
class Certificate:
    cert: str
    key: str


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Self-signed, for 127.0.0.1, good as its own authority and for clients too."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate of this test")
    directory: Path = tmp_path_factory.mktemp("tls")
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    subject = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command = [openssl, "req", "-x509", *kind, "-keyout", key, "-out", cert, *subject]
    subprocess.run(command, check=True, capture_output=True)
    return Certificate(cert, key)


@contextlib.asynccontextmanager
async def serving(certificate: Certificate, *, wants_client: bool = False) -> AsyncIterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # a refused client certificate then ends the handshake itself
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate.cert)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def ask(url: str, **settings: object) -> list[int]:
    remote = RemoteTokenizerSettings(max_retries=0, **settings)  # type: ignore[arg-type]
    async with RemoteTokenizer(model="demo", url=url, settings=remote) as tokenizer:
        ids: list[int] = (await tokenizer.encode("h")).token_ids.tolist()
        return ids


async def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: Certificate) -> None:
    async with serving(certificate) as url:
        with pytest.raises(UpstreamConnectError, match=r"(?i)certificate"):
            await ask(url)


async def test_an_authority_of_the_operators_is_trusted(certificate: Certificate) -> None:
    async with serving(certificate) as url:
        assert await ask(url, tls_ca_file=certificate.cert) == [104]


async def test_verifying_can_be_switched_off(certificate: Certificate) -> None:
    async with serving(certificate) as url:
        assert await ask(url, tls_verify=False) == [104]


async def test_a_client_certificate_is_shown(certificate: Certificate) -> None:
    async with serving(certificate, wants_client=True) as url:
        shown = {"tls_cert_file": certificate.cert, "tls_key_file": certificate.key}
        assert await ask(url, tls_ca_file=certificate.cert, **shown) == [104]
        with pytest.raises(UpstreamConnectError):
            await ask(url, tls_ca_file=certificate.cert)
