"""Counts tokens at the endpoints that serve a model: the fleet as discovery and as network of the tokenization layer's
pool, and what was counted lately."""

import hashlib
import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from headrace.errors import UpstreamConnectError
from headrace.gateway.endpoints.fleet import Fleet
from headrace.gateway.routes import Route
from headrace.gateway.token_in.capability import EngineKind
from headrace.gateway.upstream.fetch import post
from headrace.tokenization import ChatPrompt
from headrace.tokenization.cache import SegmentedCache
from headrace.tokenization.remote.endpoints import RemoteEndpoint
from headrace.tokenization.remote.fallback import LocalTokenizers, PoolEncoded
from headrace.tokenization.remote.pool import RemotePoolStatistics, RemoteTokenizerPool
from headrace.tokenization.remote.settings import RemoteEngine, RemotePoolSettings, RemoteTokenizerSettings
from headrace.tokenization.remote.transport import RemoteAnswer, RemoteClosedError
from headrace.tokenization.tokenizer import TokenIds

_MAX_KEPT_BYTES = 32 << 20
_MAX_KEPT_REQUESTS = 4096
_MAX_KEYED_BODY = 1 << 20
"""Longer bodies are not looked up: hashing one would hold the event loop for a millisecond."""
_KEPT_S = 60.0
_REMOTE_SHARE = 0.75
"""Of a request's time; the rest is for the local tokenizer, should no endpoint answer."""


class FleetEndpoints:
    """An `EndpointSource`: the endpoints that take requests for a model now."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def endpoints(self, model: str) -> Sequence[RemoteEndpoint]:
        """See `EndpointSource`."""
        return [
            RemoteEndpoint(address=one.name, engine=_engine(one.capability.engine), num_in_flight=one.num_in_flight)
            for one in self._fleet.candidates(model, now=time.monotonic(), route=Route.TOKENIZE)
        ]

    def __repr__(self) -> str:
        return f"FleetEndpoints({self._fleet!r})"


class FleetTransport:
    """A `RemoteTransport` over the connections that the fleet's endpoints have anyway, with their keys."""

    def __init__(self, fleet: Fleet, *, max_answer_bytes: int) -> None:
        self._fleet = fleet
        self._max_answer_bytes = max_answer_bytes
        self._is_closed = False

    async def post(self, url: str, body: bytes) -> RemoteAnswer:
        """See `RemoteTransport`."""
        if self._is_closed:
            raise RemoteClosedError("the gateway is being closed")
        name, _, path = url.rpartition("/")
        endpoint = self._fleet.find(name)
        if endpoint is None:
            raise UpstreamConnectError(f"{name} is no endpoint any more")
        answer = await post(endpoint.pool, f"/{path}", body, max_answer_bytes=self._max_answer_bytes)
        return RemoteAnswer(status=answer.status, body=answer.body, retry_after=answer.retry_after)

    async def aclose(self) -> None:
        """See `RemoteTransport`. Who waits gets an error of the endpoint's pool, which closes too."""
        self._is_closed = True

    def __repr__(self) -> str:
        return f"FleetTransport({self._fleet!r})"


class RemoteTokenizers:
    """The pool of a gateway. Give it every call's time-out; it keeps answers for a minute, so that a request that is
    sent again is not asked again. To be closed after the requests that use it and before the fleet's connections."""

    def __init__(
        self, fleet: Fleet, *, local: LocalTokenizers, settings: RemotePoolSettings, registry: CollectorRegistry
    ) -> None:
        remote = RemoteTokenizerSettings()
        self._pool = RemoteTokenizerPool(
            FleetEndpoints(fleet),
            settings=settings,
            remote=remote,
            local=local,
            registry=registry,
            transport=FleetTransport(fleet, max_answer_bytes=remote.max_response_bytes),
        )
        self._kept: SegmentedCache[bytes, tuple[float, tuple[TokenIds, ...]]] = SegmentedCache(
            max_bytes=_MAX_KEPT_BYTES, max_entries=_MAX_KEPT_REQUESTS
        )

    def find(self, key: bytes | None) -> tuple[TokenIds, ...] | None:
        """The ids of a request's prompts that were kept under `key`."""
        found = self._kept.get(key) if key is not None else None
        if key is None or found is None:
            return None
        expires_s, prompts = found
        if time.monotonic() >= expires_s:  # an engine may have been replaced by one with another tokenizer
            self._kept.remove(key)
            return None
        return prompts

    def keep(self, key: bytes | None, prompts: Sequence[TokenIds]) -> None:
        """Keep them for a while. They must be from endpoints."""
        if key is not None:
            num_bytes = sum(ids.nbytes for ids in prompts) + len(key)
            self._kept.put(key, (time.monotonic() + _KEPT_S, tuple(prompts)), num_bytes=num_bytes)

    async def encode(
        self, prompt: str | ChatPrompt, *, model: str, add_special_tokens: bool, timeout_s: float
    ) -> PoolEncoded:
        """See `RemoteTokenizerPool.encode`; `timeout_s` is for endpoints and the local tokenizer together."""
        return await self._pool.encode(
            prompt, model=model, add_special_tokens=add_special_tokens, timeout_s=_REMOTE_SHARE * timeout_s
        )

    def statistics(self) -> RemotePoolStatistics:
        return self._pool.statistics()

    async def aclose(self) -> None:
        """End probes and comparisons. Idempotent."""
        await self._pool.aclose()

    def __repr__(self) -> str:
        return f"RemoteTokenizers({self._pool!r}, {self._kept!r})"


def key_of(path: str, model: str, body: bytes) -> bytes | None:
    """What a request's ids are kept under; None for one that is too long."""
    if len(body) > _MAX_KEYED_BODY:
        return None
    return hashlib.blake2b(body, digest_size=16, key=hashlib.blake2b(f"{path} {model}".encode()).digest()).digest()


def _engine(kind: EngineKind) -> RemoteEngine:
    return "sglang" if kind == "sglang" else "vllm"
