"""Puts the gateway together: every part is made here and given what it needs, and ends here in reverse."""

import asyncio
import logging
from types import TracebackType
from typing import Self

import msgspec
from prometheus_client import CollectorRegistry

from headrace.aio.stall import LoopStallMonitor
from headrace.aio.tasks import TaskOwner
from headrace.breaker import Breaker
from headrace.errors import SettingsError
from headrace.gateway.admin import AdminServer, admin_app
from headrace.gateway.admission.control import Admission
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.admission.slots import RequestSlots
from headrace.gateway.broadcast import Broadcast
from headrace.gateway.deadlines import Deadlines
from headrace.gateway.decisions import DecisionLog
from headrace.gateway.discovery.static import StaticSource
from headrace.gateway.endpoint import Endpoint
from headrace.gateway.fleet import Fleet
from headrace.gateway.handle import RequestHandler
from headrace.gateway.health import HealthMonitor
from headrace.gateway.http.connection import ConnectionLimits
from headrace.gateway.http.request_reader import SizeLimits
from headrace.gateway.http.server import HttpServer, url_of
from headrace.gateway.instruments import Instruments
from headrace.gateway.local_routes import LocalRoutes
from headrace.gateway.parity import ParityLedger
from headrace.gateway.prompt_tokens import PromptCounter
from headrace.gateway.routing_parts import RoutingParts
from headrace.gateway.settings import GatewaySettings, endpoint_weights, tokenizer_paths
from headrace.gateway.settle import Ledger
from headrace.gateway.snapshot import Sampler, Snapshot
from headrace.gateway.tokenizers import ModelTokenizers
from headrace.gateway.upstream.address import Address
from headrace.gateway.upstream.connection import UpstreamTimeouts
from headrace.gateway.upstream.pool import UpstreamPool
from headrace.metrics import expose
from headrace.tokenization import TokenizationService, TokenizationSettings

_LOG = logging.getLogger(__name__)
_MAX_BREAKER_PAUSE_S = 30.0
_MAX_DASHBOARDS = 16
_SNAPSHOT_INTERVAL_S = 1.0


class Gateway:
    """A gateway in the running event loop. `async with Gateway(settings) as gateway:` listens; leaving it cuts what is
    still under way, so call `drain` before where that matters."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        admission: AdmissionSettings | None = None,
        tokenization: TokenizationSettings | None = None,
    ) -> None:
        self._settings = settings
        self._admission_settings = admission or AdmissionSettings()
        registry = CollectorRegistry()
        self._instruments = Instruments(registry)
        self._deadlines = Deadlines(interval_s=_sweep_interval_s(settings))
        self._owner = TaskOwner("gateway")
        self.routing = RoutingParts(settings)
        self._weights = endpoint_weights(settings.endpoint_weight)
        self.fleet = Fleet(self._new_endpoint(address) for address in StaticSource(settings.endpoint).addresses())
        self.tokenization = TokenizationService(tokenization, registry=registry)
        self._tokenizers = ModelTokenizers(self.tokenization, paths=tokenizer_paths(settings.tokenizer))
        self._health = HealthMonitor(
            self.fleet,
            interval_s=settings.health_interval_s,
            timeout_s=settings.health_timeout_s,
            unhealthy_after=settings.unhealthy_after,
            on_models_changed=lambda: self._tokenizers.load_for(self.fleet.models),
        )
        self._stalls = LoopStallMonitor(registry=registry, sections=self.tokenization.sections)
        self._snapshots = Broadcast(max_listeners=_MAX_DASHBOARDS)
        self.parity = ParityLedger()
        decisions = DecisionLog(self.routing.decision_file)
        ledger = Ledger(self._instruments, parity=self.parity, decisions=decisions)
        local_routes = LocalRoutes(self.fleet)
        self.slots = RequestSlots(num_slots=settings.max_concurrent_requests)
        self.admission = Admission(self._admission_settings, places=self._places_of, observer=ledger)
        handler = RequestHandler(
            fleet=self.fleet,
            chooser=self.routing.join(self.fleet),
            slots=self.slots,
            admission=self.admission,
            counter=PromptCounter(self.tokenization, self._tokenizers, timeout_s=settings.tokenize_timeout_s),
            ledger=ledger,
            local_routes=local_routes,
            max_attempts=settings.max_attempts,
        )
        self.server = HttpServer(
            handler,
            limits=_connection_limits(settings),
            max_connections=settings.max_connections,
            max_held_body_bytes=settings.max_held_body_bytes,
            deadlines=self._deadlines,
        )
        self._sampler = Sampler(
            fleet=self.fleet,
            ledger=ledger,
            parity=self.parity,
            decisions=decisions,
            admission=self.admission,
            routing=self.routing,
            tokenization=self.tokenization,
            instruments=self._instruments,
            stalls=self._stalls,
            policy_name=settings.policy,
            count_connections=lambda: self.server.statistics().num_connections,
        )
        app = admin_app(expose_metrics=lambda: expose(registry), health=local_routes.health, snapshots=self._snapshots)
        self._admin = AdminServer(app, owner=self._owner)
        self.url = ""
        self.admin_url: str | None = None

    async def start(self) -> None:
        """Probe the endpoints once, then listen. Raises SettingsError when an address cannot be listened on, or the
        file of keys cannot be read."""
        settings = self._settings
        self._stalls.start()
        await self.admission.start()
        await self._health.start()
        self.routing.start()
        try:
            port = await self.server.start(host=settings.host, port=settings.port)
        except OSError as error:
            raise _cannot_listen("port", settings.host, settings.port, error) from error
        self.url = url_of(host=settings.host, port=port)
        if settings.admin_port is not None:
            try:
                admin_port = self._admin.start(host=settings.admin_host, port=settings.admin_port)
            except OSError as error:
                raise _cannot_listen("admin_port", settings.admin_host, settings.admin_port, error) from error
            self.admin_url = url_of(host=settings.admin_host, port=admin_port)
        self._owner.spawn(self._publish_snapshots(), name="snapshots")

    async def drain(self) -> bool:
        """Accept nothing more and let what is under way end; False when some of it had to be cut."""
        return await self.server.drain(timeout_s=self._settings.drain_timeout_s)

    async def aclose(self) -> None:
        """Cut what is left and give everything back. Idempotent."""
        await self.server.aclose()
        await self.admission.aclose()
        await self._health.aclose()
        await self.routing.aclose()
        await self._tokenizers.aclose()
        await self.tokenization.aclose()
        for endpoint in self.fleet.endpoints:
            endpoint.pool.close()
        self._snapshots.close()
        await self._admin.aclose()
        await self._owner.aclose()
        self._stalls.stop()
        self._deadlines.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def statistics(self) -> Snapshot:
        """The state now."""
        return self._sampler.take()

    def _new_endpoint(self, address: Address) -> Endpoint:
        settings = self._settings
        pool = UpstreamPool(
            address,
            timeouts=UpstreamTimeouts(
                connect_s=settings.connect_timeout_s,
                first_byte_s=settings.first_byte_timeout_s,
                idle_s=settings.idle_timeout_s,
            ),
            max_idle=settings.max_idle_connections,
            idle_timeout_s=settings.upstream_keepalive_timeout_s,
            deadlines=self._deadlines,
        )
        breaker = Breaker(
            num_failures_to_open=settings.breaker_failures,
            pause_s=settings.breaker_pause_s,
            max_pause_s=max(_MAX_BREAKER_PAUSE_S, settings.breaker_pause_s),
        )
        return Endpoint(
            pool=pool,
            breaker=breaker,
            holder=self.routing.new_holder(address.url),
            block_size=settings.block_size,
            weight=self._weights.get(address.url, 1.0),
        )

    def _places_of(self, model: str) -> int | None:
        """How many requests the endpoints that can serve `model` now take together; None: any number."""
        per_endpoint = self._admission_settings.max_in_flight_per_endpoint
        if per_endpoint is None:
            return None
        return per_endpoint * sum(one.is_healthy and model in one.models for one in self.fleet.endpoints)

    async def _publish_snapshots(self) -> None:
        while True:
            self.admission.wake()
            self._snapshots.publish(msgspec.json.encode(self._sampler.take()))
            await asyncio.sleep(_SNAPSHOT_INTERVAL_S)

    def __repr__(self) -> str:
        return f"Gateway({self.url or 'not listening'}, {self.fleet!r}, {self.slots!r})"


def _connection_limits(settings: GatewaySettings) -> ConnectionLimits:
    return ConnectionLimits(
        sizes=SizeLimits(max_head_bytes=settings.max_head_bytes, max_body_bytes=settings.max_body_bytes),
        head_timeout_s=settings.head_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        keepalive_timeout_s=settings.keepalive_timeout_s,
        write_timeout_s=settings.write_timeout_s,
    )


def _sweep_interval_s(settings: GatewaySettings) -> float:
    """Deadlines may be noticed a quarter of the shortest time-out late, and never need more than one sweep a second."""
    shortest_s = min(
        settings.head_timeout_s,
        settings.body_timeout_s,
        settings.keepalive_timeout_s,
        settings.write_timeout_s,
        settings.first_byte_timeout_s,
        settings.idle_timeout_s,
        settings.upstream_keepalive_timeout_s,
    )
    return min(1.0, shortest_s / 4)


def _cannot_listen(name: str, host: str, port: int, error: OSError) -> SettingsError:
    return SettingsError(f"{name}: cannot listen on {host}:{port}: {error.strerror or error}", param=name)
