"""Puts the gateway together: every part is made here and given what it needs, and ends here in reverse."""

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.routing import Route

from headrace.aio.bridge import make_async
from headrace.aio.stall import LoopStallMonitor
from headrace.aio.tasks import TaskOwner
from headrace.errors import SettingsError
from headrace.gateway.admin.broadcast import Broadcast
from headrace.gateway.admin.endpoint_routes import AdminApi
from headrace.gateway.admin.sampler import Sampler
from headrace.gateway.admin.server import AdminServer, admin_app
from headrace.gateway.admin.snapshot import Snapshot
from headrace.gateway.admission.control import Admission
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.admission.slots import RequestSlots
from headrace.gateway.deadlines import Deadlines
from headrace.gateway.endpoints.endpoint import Endpoint
from headrace.gateway.endpoints.fleet import Fleet
from headrace.gateway.endpoints.parts import EndpointParts
from headrace.gateway.endpoints.wanted import Wanted
from headrace.gateway.forward import Forwarder
from headrace.gateway.handle import RequestHandler
from headrace.gateway.http.connection import ConnectionLimits
from headrace.gateway.http.request_reader import SizeLimits
from headrace.gateway.http.server import HttpServer, url_of
from headrace.gateway.local_routes import LocalRoutes
from headrace.gateway.prompt.parts import TokenParts
from headrace.gateway.retry import Retries
from headrace.gateway.routing_parts import RoutingParts
from headrace.gateway.settings import GatewaySettings
from headrace.gateway.settle import Ledger
from headrace.gateway.telemetry.decisions import DecisionLog
from headrace.gateway.telemetry.instruments import Instruments
from headrace.gateway.telemetry.traces import RequestTracer, tracer_of
from headrace.gateway.telemetry.trail import Observation
from headrace.gateway.token_in.parts import TokenInParts
from headrace.gateway.workers.place import WorkerPlace
from headrace.gateway.workers.routes import worker_routes
from headrace.metrics import expose
from headrace.tokenization import TokenizationService, TokenizationSettings

_LOG = logging.getLogger(__name__)
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
        settings_file: str | None = None,
        wanted: Wanted | None = None,
        place: WorkerPlace | None = None,
        tracer: RequestTracer | None = None,
    ) -> None:
        """`settings_file` is where `settings.endpoint` stands, to be followed there. One worker of several has a
        `place`, and `wanted` is what the admin API has said before it was started. `tracer` goes before the one that
        the settings ask for, and is closed with the gateway."""
        self._settings = settings
        self._admission_settings = admission or AdmissionSettings()
        registry = CollectorRegistry()
        self._instruments = Instruments(registry)
        self._deadlines = Deadlines(interval_s=_sweep_interval_s(settings))
        self._owner = TaskOwner("gateway")
        self.routing = RoutingParts(settings)
        self.fleet = Fleet()
        self.tokenization = TokenizationService(tokenization, registry=registry)
        self.tokens = TokenParts(settings, self.fleet, self.tokenization, registry=registry)
        self.token_in = TokenInParts(settings, tokenizers=self.tokens.loaded, instruments=self._instruments.parity)
        self.endpoints = EndpointParts(
            settings,
            fleet=self.fleet,
            routing=self.routing,
            deadlines=self._deadlines,
            settings_file=settings_file,
            on_models_changed=lambda: self.tokens.load_for(self.fleet.models),
            on_restart=self._note_restart,
            on_return=self.token_in.probe.ask,
            companions=(self.token_in.probe,),
        )
        self._wanted = wanted
        self._place = place
        self._stalls = LoopStallMonitor(registry=registry, sections=self.tokenization.sections)
        self._snapshots = Broadcast(max_listeners=_MAX_DASHBOARDS)
        self.parity = self.token_in.ledger
        decisions = DecisionLog(self.routing.decision_file)
        ledger = Ledger(self._instruments, parity=self.token_in.check, decisions=decisions)
        self._local_routes = local_routes = LocalRoutes(self.fleet)
        self._tracer = tracer or tracer_of(settings)
        self.slots = RequestSlots(num_slots=settings.max_concurrent_requests)
        self.admission = Admission(self._admission_settings, places=self._places_of, observer=ledger)
        forwarder = Forwarder(
            fleet=self.fleet,
            chooser=self.routing.join(self.fleet),
            token_in=self.token_in,
            ledger=ledger,
            retries=Retries(
                share=settings.retry_share, floor=settings.retry_floor, first_delay_s=settings.retry_delay_s
            ),
            max_attempts=settings.max_attempts,
        )
        handler = RequestHandler(
            fleet=self.fleet,
            slots=self.slots,
            admission=self.admission,
            counter=self.tokens.counter,
            token_in=self.token_in,
            ledger=ledger,
            local_routes=local_routes,
            tokenize_routes=self.tokens.routes,
            forwarder=forwarder,
            observation=Observation(logs=settings.access_log, tracer=self._tracer),
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
            slots=self.slots,
            server=self.server,
            tokenization=self.tokenization,
            instruments=self._instruments,
            stalls=self._stalls,
            policy_name=settings.policy,
        )
        self._registry = registry
        self._admin: AdminServer | None = None
        self.url = ""
        self.admin_url: str | None = None

    async def start(self) -> None:
        """Probe the endpoints once, then listen. Raises SettingsError when an address cannot be listened on, or the
        file of keys cannot be read."""
        settings = self._settings
        self._stalls.start()
        await self.admission.start()
        await self.endpoints.start(self._wanted)
        self.routing.start()
        try:
            shares_port = self._place is not None
            port = await self.server.start(host=settings.host, port=settings.port, shares_port=shares_port)
        except OSError as error:
            raise _cannot_listen("port", settings.host, settings.port, error) from error
        self.url = url_of(host=settings.host, port=port)
        self._owner.spawn(self._publish_snapshots(), name="snapshots")
        self._start_admin()

    async def drain(self) -> bool:
        """Accept nothing more and let what is under way end; False when some of it had to be cut."""
        self._local_routes.is_draining = True
        return await self.server.drain(timeout_s=self._settings.drain_timeout_s)

    async def aclose(self) -> None:
        """Cut what is left and give everything back. Idempotent."""
        await self.server.aclose()
        await self.admission.aclose()
        await self.endpoints.aclose()
        await self.token_in.aclose()
        await self.routing.aclose()
        await self.tokens.aclose()
        await self.tokenization.aclose()
        self._snapshots.close()
        if self._admin is not None:
            await self._admin.aclose()
        await self._owner.aclose()
        self._stalls.stop()
        self._deadlines.close()
        if self._tracer is not None:
            await make_async(self._tracer.close)()

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

    def _note_restart(self, endpoint: Endpoint) -> None:
        self.routing.note_restart(endpoint)
        self.token_in.probe.ask(endpoint)

    def _start_admin(self) -> None:
        """Listen where operators ask, or in a worker its supervisor."""
        settings, place = self._settings, self._place
        if place is not None:
            self._admin = AdminServer(self._admin_app(worker_routes(self.endpoints)), owner=self._owner)
            self._admin.start_at(place.socket)
        elif settings.admin_port is not None:
            routes = AdminApi(self.endpoints, key=settings.admin_api_key).routes()
            self._admin = AdminServer(self._admin_app(routes), owner=self._owner)
            try:
                port = self._admin.start(host=settings.admin_host, port=settings.admin_port)
            except OSError as error:
                raise _cannot_listen("admin_port", settings.admin_host, settings.admin_port, error) from error
            self.admin_url = url_of(host=settings.admin_host, port=port)

    def _admin_app(self, routes: Sequence[Route]) -> Starlette:
        async def metrics() -> bytes:
            return expose(self._registry)

        return admin_app(
            expose_metrics=metrics, health=self._local_routes.health, snapshots=self._snapshots, more=routes
        )

    def _places_of(self, model: str) -> int | None:
        """How many requests the endpoints that can serve `model` now take together; None: any number."""
        per_endpoint = self._admission_settings.max_in_flight_per_endpoint
        if per_endpoint is None:
            return None
        return per_endpoint * sum(one.is_ready and model in one.models for one in self.fleet.endpoints)

    async def _publish_snapshots(self) -> None:
        while True:
            self.admission.wake()
            self._instruments.stale_sources.set(value=self.endpoints.discovery.num_stale)
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
