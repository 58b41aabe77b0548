"""Lists and watches over HTTP. The only file that knows kubernetes_asyncio, which brings credentials and TLS.

The library takes seconds to import, so it loads in a thread, when it is first needed. Objects pass as bytes: we read a
few fields of them, and the library's models of the whole API are slow to make.
"""

import asyncio
import contextlib
import importlib
import importlib.util
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.aio.bridge import make_async
from headrace.errors import SettingsError, UpstreamError
from headrace.gateway.discovery.kubernetes.objects import Status, read_status
from headrace.gateway.discovery.kubernetes.target import KubernetesTarget

if TYPE_CHECKING:
    import aiohttp
    from kubernetes_asyncio.client import ApiClient, Configuration

_LIST_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 10.0
_WATCH_GRACE_S = 15.0
_PAGE_SIZE = 250
_MAX_PAGE_BYTES = 64 << 20
_MAX_LINE_BYTES = 4 << 20
_MAX_ERROR_BYTES = 64 << 10
_FOREIGN = frozenset({"aiohttp", "kubernetes_asyncio", "yaml"})
"""Whose exceptions are translated; their classes are not known before the library is."""
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class VersionExpiredError(UpstreamError):
    """The API server has forgotten the version that was asked for: list anew."""


class ObjectApi(Protocol):
    """The API server, for one kind of objects. All raise an UpstreamError."""

    async def list_page(self, *, continue_token: str) -> bytes:
        """A page of the list; with an empty token the first."""
        ...

    def watch(self, *, version: str, timeout_s: int) -> AsyncGenerator[bytes, None]:
        """The events after `version`, a line each, until the server ends it after `timeout_s`."""
        ...

    async def aclose(self) -> None:
        """Close connections. It can be used again. Idempotent."""
        ...


class KubernetesClient:
    """See `ObjectApi`. Raises SettingsError when the library is not installed.

    `service_account` and `environment` are where Kubernetes tells a pod who it is and where the API server is.
    """

    def __init__(
        self,
        target: KubernetesTarget,
        *,
        service_account: Path = _SERVICE_ACCOUNT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if importlib.util.find_spec("kubernetes_asyncio") is None:
            message = f"{target.url!r} needs kubernetes_asyncio: pip install 'headrace[kubernetes]'"
            raise SettingsError(message, param="endpoint")
        self._target = target
        self._service_account = service_account
        self._environment = environment
        self._client: ApiClient | None = None
        self._path = ""

    async def list_page(self, *, continue_token: str) -> bytes:
        query = [("limit", str(_PAGE_SIZE)), *_given("continue", continue_token)]
        with _translated():
            async with asyncio.timeout(_LIST_TIMEOUT_S), self._get(query, silence_s=_LIST_TIMEOUT_S) as response:
                return await _read_whole(response, max_bytes=_MAX_PAGE_BYTES)

    async def watch(self, *, version: str, timeout_s: int) -> AsyncGenerator[bytes, None]:
        query = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(timeout_s)),
        ]
        with _translated():
            async with self._get(query, silence_s=timeout_s + _WATCH_GRACE_S) as response:
                rest = b""
                async for piece in response.content.iter_any():
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        if line:
                            yield line
                    if len(rest) > _MAX_LINE_BYTES:
                        raise UpstreamError(f"an event of the API server is over {_MAX_LINE_BYTES} bytes")

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @contextlib.asynccontextmanager
    async def _get(self, query: list[tuple[str, str]], *, silence_s: float) -> "AsyncIterator[aiohttp.ClientResponse]":
        client = self._client or await self._connect()
        import aiohttp  # the library's own dependency, loaded by now

        response: aiohttp.ClientResponse = await client.call_api(
            self._path,
            "GET",
            query_params=[*query, *_given("labelSelector", self._target.selector)],
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=aiohttp.ClientTimeout(sock_connect=_CONNECT_TIMEOUT_S, sock_read=silence_s),
        )
        async with response:
            if response.status != 200:
                await self._refuse(response)
            yield response

    async def _refuse(self, response: "aiohttp.ClientResponse") -> None:
        status = read_status(await response.content.read(_MAX_ERROR_BYTES))
        if response.status == 410 or status.is_expired:
            raise VersionExpiredError(status.message or "410 Gone")
        if response.status == 401:
            await self.aclose()  # the credentials are read anew
        raise UpstreamError(_explain(response.status, status, target=self._target))

    async def _connect(self) -> "ApiClient":
        """Read the credentials, and make a client of them."""
        await make_async(importlib.import_module)("kubernetes_asyncio.config")
        from kubernetes_asyncio.client import ApiClient, Configuration

        configuration = Configuration()
        namespace = await self._configure(configuration)
        self._path = self._target.path(namespace=self._target.namespace or namespace)
        self._client = ApiClient(configuration)
        self._client.user_agent = "headrace"
        return self._client

    async def _configure(self, configuration: "Configuration") -> str:
        """Where and who, from the pod's service account or a kubeconfig file; returns the own namespace."""
        from kubernetes_asyncio import config

        target = self._target
        if target.kubeconfig is None and target.context is None:
            with contextlib.suppress(config.ConfigException):  # no pod, then
                return await self._configure_as_pod(configuration)
        try:
            loader = await config.load_kube_config(
                config_file=target.kubeconfig,
                context=target.context,
                client_configuration=configuration,
                persist_config=False,
            )
        except (LookupError, TypeError, ValueError) as error:
            raise UpstreamError(f"the kubeconfig file cannot be read: {error!r}") from error
        context = loader.current_context or {}
        return str(context.get("context", {}).get("namespace") or "default")

    async def _configure_as_pod(self, configuration: "Configuration") -> str:
        from kubernetes_asyncio.config import load_incluster_config

        given = {} if self._environment is None else {"environ": self._environment}
        load_incluster_config(
            client_configuration=configuration,
            token_filename=str(self._service_account / "token"),
            cert_filename=str(self._service_account / "ca.crt"),
            **given,
        )
        return (await make_async((self._service_account / "namespace").read_text)()).strip()


async def _read_whole(response: "aiohttp.ClientResponse", *, max_bytes: int) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > max_bytes:
            raise UpstreamError(f"a list of the API server is over {max_bytes} bytes; name fewer with a selector")
    return bytes(body)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """The library's errors, and those under it, as ours."""
    try:
        yield
    except TimeoutError as error:
        raise UpstreamError("the API server has not answered in time") from error
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.split(".")[0] not in _FOREIGN:
            raise
        raise UpstreamError(f"the API server cannot be asked: {error or type(error).__name__}") from error


def _explain(code: int, status: Status, *, target: KubernetesTarget) -> str:
    what = f"the API server answered {code} {status.reason or ''}".strip()
    hint = f"; may this account list and watch {target.kind}?" if code == 403 else ""
    return f"{what}: {status.message or 'no reason given'}{hint}"


def _given(name: str, value: str | None) -> list[tuple[str, str]]:
    return [(name, value)] if value else []
