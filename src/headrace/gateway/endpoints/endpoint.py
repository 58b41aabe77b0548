"""One engine behind the gateway: what is known of it, and what it has in hand."""

from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from headrace.breaker import Breaker, Permit
from headrace.gateway.discovery.source import EndpointSpec
from headrace.gateway.endpoints.load import EndpointLoad
from headrace.gateway.endpoints.reported_load import Elsewhere, ReportedLoad
from headrace.gateway.prefix_index import Holder
from headrace.gateway.token_in.capability import UNKNOWN
from headrace.gateway.upstream.key import bearer
from headrace.gateway.upstream.pool import UpstreamPool


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of an endpoint's /v1/models, as far as it is read here."""

    id: str
    max_model_len: int | None = None
    root: str | None = None
    parent: str | None = None
    """Of an adapter: the model that it adapts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that an endpoint serves: its card, and the entry as the endpoint wrote it."""

    card: ModelCard
    raw: msgspec.Raw


class Endpoint:
    """The state of one endpoint. Probes tell it how it is; requests go through `attempt`."""

    def __init__(
        self,
        *,
        pool: UpstreamPool,
        breaker: Breaker,
        holder: Holder,
        block_size: int = 16,
        spec: EndpointSpec | None = None,
    ) -> None:
        self.pool = pool
        self.describe(spec if spec is not None else EndpointSpec(pool.address, origin="settings"))
        self.holders: tuple[Holder, ...] = (holder,)
        """What is known of its caches, one for each data-parallel rank that tells."""
        self.block_size = block_size
        self.address = pool.address
        self.name = pool.address.url
        self.name_bytes = self.name.encode("ascii")
        self.breaker = breaker
        self.load = EndpointLoad()
        self.reported_load: ReportedLoad | None = None
        """What its own metrics said at the last probe; None where they tell nothing."""
        self.elsewhere = Elsewhere()
        self.is_healthy = False
        self.why_unhealthy = "not probed yet"
        self.why_draining: str | None = None
        """Why it gets no more requests, however well it is."""
        self._num_bad_probes = 0
        self.last_failure: str | None = None
        self.models: dict[str, ServedModel] = {}
        """Kept while the endpoint is down, so that its models stay known."""
        self.capability = UNKNOWN
        """What it takes; text alone until it has been asked."""

    def describe(self, spec: EndpointSpec) -> None:
        """Its source says so, from now on."""
        self.spec = spec
        self.weight = spec.weight
        self.pool.authorization = bearer(spec.api_key)

    @property
    def origin(self) -> str:
        """Where it comes from."""
        return self.spec.origin

    @property
    def num_in_flight(self) -> int:
        """Requests that it has in hand: those of this gateway, and what it reports beyond."""
        return self.load.num_in_flight + self.elsewhere.num_requests

    @property
    def num_waiting_tokens(self) -> int:
        return self.load.num_waiting_tokens

    def note_load(self, load: ReportedLoad | None, *, num_own: int = 0) -> None:
        """Its metrics said so (None: nothing); `num_own` requests of this gateway may be in that."""
        self.reported_load = load
        if load is None:
            self.elsewhere.forget()
        else:
            self.elsewhere.note(load, num_own=num_own)

    def note_well(self, models: dict[str, ServedModel]) -> None:
        """A probe found it well, serving `models`."""
        self.is_healthy = True
        self.why_unhealthy = ""
        self._num_bad_probes = 0
        self.models = models

    def note_unwell(self, why: str, *, num_allowed: int) -> None:
        """A probe failed. A healthy endpoint stays so for `num_allowed` of these in a row."""
        self.note_load(None)
        self.why_unhealthy = why
        self._num_bad_probes += 1
        if self._num_bad_probes > num_allowed:
            self.is_healthy = False

    @property
    def is_ready(self) -> bool:
        """Whether it is well, and not drained."""
        return self.is_healthy and self.why_draining is None

    def can_take(self, model: str, *, now: float) -> bool:
        """Whether a request for `model` may be sent here."""
        if not self.is_healthy or self.why_draining is not None:
            return False
        return model in self.models and self.breaker.allows(now)

    def why_not(self, *, now: float) -> str:
        """Why it cannot be chosen, in a few words."""
        if self.why_draining is not None:
            return f"draining: {self.why_draining}"
        if not self.is_healthy:
            return self.why_unhealthy
        if not self.breaker.allows(now):
            return f"circuit breaker open after: {self.last_failure}"
        return self.last_failure or "available"

    def attempt(self, *, now: float, num_new_tokens: int = 0) -> "Attempt":
        """Reserve load, and the breaker's leave, for one request; both are given back when its block is left."""
        return Attempt(self, now=now, num_new_tokens=num_new_tokens)

    def __repr__(self) -> str:
        state = "draining" if self.why_draining else "healthy" if self.is_healthy else f"down: {self.why_unhealthy}"
        return f"Endpoint({self.name}, {state}, num_in_flight={self.load.num_in_flight})"


class Attempt:
    """One request to one endpoint, from its choice to its end: a place in the endpoint's load and the breaker's leave,
    given back exactly once, when its block is left. Without a verdict it counts as left by its client."""

    __slots__ = ("_endpoint", "_is_done", "_is_open", "_num_waiting_tokens", "_permit")

    def __init__(self, endpoint: Endpoint, *, now: float, num_new_tokens: int) -> None:
        self._endpoint = endpoint
        self._permit: Permit = endpoint.breaker.acquire(now)
        self._num_waiting_tokens = num_new_tokens
        self._is_open = True
        self._is_done: bool | None = None
        endpoint.load.count_begin(num_new_tokens)

    def note_answering(self) -> None:
        """The endpoint has begun to answer. For a breaker's probe that is proof enough: its answer may be a stream of
        minutes, and the endpoint would take nobody else until then."""
        self._endpoint.load.num_waiting_tokens -= self._num_waiting_tokens
        self._num_waiting_tokens = 0
        if self._permit.is_probe:
            self._endpoint.breaker.succeed(self._permit)

    def succeed(self) -> None:
        """The endpoint answered, whatever it said to the client."""
        self._endpoint.breaker.succeed(self._permit)
        self._is_done = True

    def fail(self, why: str, *, now: float) -> None:
        """The endpoint did not answer, or broke off."""
        self._endpoint.last_failure = why
        self._endpoint.breaker.fail(self._permit, now)
        self._is_done = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if not self._permit.is_reported:
            self._endpoint.breaker.release(self._permit)
        self._endpoint.load.count_end(self._num_waiting_tokens, is_done=self._is_done)
        self._num_waiting_tokens = 0
