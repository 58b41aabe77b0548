"""HTTP/1.1 to endpoints, and the one file that knows httpx.

It uses httpx's transport and not its client: that one writes a log line for each request, keeps cookies and reads proxy
settings from the environment.
"""

import asyncio
import ssl
from types import TracebackType
from typing import Self

import httpx

from headrace.errors import UpstreamConnectError, UpstreamProtocolError
from headrace.tokenization.remote.settings import RemoteTokenizerSettings
from headrace.tokenization.remote.transport import RemoteAnswer, RemoteClosedError


class RemoteHttp:
    """A `RemoteTransport` over sockets; an asynchronous context manager.

    Redirects are not followed and compressed answers not read. Making one with TLS reads certificates from files: do it
    before the loop has anything urgent to do.
    """

    def __init__(self, settings: RemoteTokenizerSettings | None = None) -> None:
        self._settings = settings or RemoteTokenizerSettings()
        self._transport = httpx.AsyncHTTPTransport(
            verify=_tls(self._settings),
            limits=httpx.Limits(
                max_connections=self._settings.max_connections,
                max_keepalive_connections=self._settings.max_idle_connections,
                keepalive_expiry=4.0,  # less than uvicorn keeps an idle connection, 5 s
            ),
        )
        self._headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "identity",
            "user-agent": "headrace",
        }
        if self._settings.api_key is not None:
            self._headers["authorization"] = f"Bearer {self._settings.api_key}"
        self._scopes: set[asyncio.Timeout] = set()
        self._is_closed = False

    async def post(self, url: str, body: bytes) -> RemoteAnswer:
        """See `RemoteTransport`."""
        if self._is_closed:
            raise _closed()
        scope = asyncio.timeout(None)  # has no time limit: `aclose` ends it
        try:
            async with scope:
                self._scopes.add(scope)
                return await self._exchange(url, body)
        except TimeoutError as error:
            if scope.expired():
                raise _closed() from error
            raise UpstreamProtocolError(f"{url} broke the exchange off: {error}") from error
        except httpx.TransportError as error:
            if self._is_closed:
                raise _closed() from error
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                raise UpstreamConnectError(f"no connection to {url}: {_reason(error)}") from error
            raise UpstreamProtocolError(f"{url} broke the exchange off: {_reason(error)}") from error
        finally:
            self._scopes.discard(scope)

    async def _exchange(self, url: str, body: bytes) -> RemoteAnswer:
        request = httpx.Request(
            "POST",
            url,
            headers=self._headers,
            content=body,
            extensions={"timeout": {"connect": self._settings.connect_timeout_s}},
        )
        response = await self._transport.handle_async_request(request)
        try:
            return RemoteAnswer(
                status=response.status_code,
                body=await self._read(response, url),
                retry_after=response.headers.get("retry-after"),
            )
        finally:
            await response.aclose()

    async def _read(self, response: httpx.Response, url: str) -> bytes:
        """The body, at most `max_response_bytes` of it."""
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            raise UpstreamProtocolError(f"{url} answered with Content-Encoding {encoding}, which was not asked for")
        limit = self._settings.max_response_bytes
        too_long = UpstreamProtocolError(f"{url} answered with more than max_response_bytes, {limit}")
        length = response.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise too_long
        parts: list[bytes] = []
        num_bytes = 0
        async for part in response.aiter_raw():
            num_bytes += len(part)
            if num_bytes > limit:
                raise too_long
            parts.append(part)
        return b"".join(parts)

    async def aclose(self) -> None:
        """See `RemoteTransport`."""
        self._is_closed = True
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"RemoteHttp({state}, num_in_flight={len(self._scopes)})"


def _tls(settings: RemoteTokenizerSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.tls_ca_file)
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.tls_cert_file is not None:
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    return context


def _reason(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def _closed() -> RemoteClosedError:
    return RemoteClosedError("the remote tokenizers are closed; make new ones")
