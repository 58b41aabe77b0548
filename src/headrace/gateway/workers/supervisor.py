"""Several workers as one gateway: one port, one admin port, one admin API. Serves no request itself."""

import asyncio
import contextlib
import dataclasses
import logging
import socket
import tempfile
from collections.abc import Awaitable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec
from prometheus_client import CollectorRegistry

from headrace.aio.tasks import TaskOwner
from headrace.errors import HeadraceError, OverloadedError, SettingsError, UpstreamError
from headrace.gateway.admin.broadcast import Broadcast
from headrace.gateway.admin.endpoint_routes import AdminApi
from headrace.gateway.admin.server import AdminServer, admin_app
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.endpoints.wanted import EndpointList, Wanted
from headrace.gateway.http.server import url_of
from headrace.gateway.settings import GatewaySettings
from headrace.gateway.workers.instruments import WorkerInstruments
from headrace.gateway.workers.member import COMMAND, Member
from headrace.gateway.workers.metrics import join_metrics
from headrace.gateway.workers.routes import LIST_PATH
from headrace.gateway.workers.spec import WorkerSpec
from headrace.gateway.workers.states import join_endpoints, join_states
from headrace.metrics import expose
from headrace.tokenization import TokenizationSettings

_LOG = logging.getLogger(__name__)
_LOOK_INTERVAL_S = 1.0
_MAX_DASHBOARDS = 16
_END_GRACE_S = 10.0


class _Health(msgspec.Struct, kw_only=True):
    status: str
    num_workers: int
    num_ready: int
    workers: dict[str, msgspec.Raw | None]
    """What each of them says."""


class Supervisor:
    """`async with Supervisor(...) as supervisor:` has all workers serve; `failed` is set when they cannot be had."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        admission: AdmissionSettings | None = None,
        tokenization: TokenizationSettings | None = None,
        settings_file: str | None = None,
        log_level: str = "info",
        log_format: Literal["text", "json"] = "text",
        command: Sequence[str] = COMMAND,
    ) -> None:
        """Raises SettingsError where something cannot be shared by processes."""
        self._settings = settings
        self._admission = admission or AdmissionSettings()
        self._tokenization = tokenization or TokenizationSettings()
        check_shared(settings, self._admission)
        self._settings_file = settings_file
        self._log_level = log_level
        self._log_format = log_format
        self.members = [Member(number, self, command=command) for number in range(settings.workers)]
        self.failed = asyncio.Event()
        self.error: HeadraceError | None = None
        self._api = AdminApi(self, key=settings.admin_api_key)
        self._snapshots = Broadcast(max_listeners=_MAX_DASHBOARDS)
        self._owner = TaskOwner("workers")
        self._watchers = TaskOwner("looks at workers")
        self._directory = tempfile.TemporaryDirectory(prefix="headrace-gateway-")
        self._port = settings.port
        self._placeholder: socket.socket | None = None
        self._admin: AdminServer | None = None
        self._is_draining = False
        self._registry = CollectorRegistry()
        self._instruments = WorkerInstruments(self._registry)
        self.url = ""
        self.admin_url: str | None = None

    async def start(self) -> None:
        """Start the workers, and return when all of them serve. Raises SettingsError, or what stopped a worker."""
        settings = self._settings
        try:
            self._placeholder = _reserve(settings.host, settings.port)
        except OSError as error:
            message = f"port: cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
            raise SettingsError(message, param="port") from error
        self._port = self._placeholder.getsockname()[1]
        self.url = url_of(host=settings.host, port=self._port)
        for member in self.members:
            self._owner.spawn(member.run(), name=f"worker {member.number}")
        await self._wait_ready()
        self._watchers.spawn(self._look_for_ever(), name="looks at workers")
        if settings.admin_port is not None:
            self._start_admin(settings.admin_port)

    async def drain(self) -> None:
        """Have every worker finish what is under way, and return when all have ended."""
        self._is_draining = True
        for member in self.members:
            member.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s + _END_GRACE_S):
                await self._owner.wait_all()

    def cut(self) -> None:
        """Have every worker end at once."""
        for member in self.members:
            member.stop()

    async def aclose(self) -> None:
        """Kill what is left, and give everything back. Idempotent."""
        self._is_draining = True
        self._snapshots.close()
        if self._admin is not None:
            await self._admin.aclose()
        await self._watchers.aclose()
        for member in self.members:
            member.stop()
        await self._owner.aclose()
        if self._placeholder is not None:
            self._placeholder.close()
        self._directory.cleanup()

    # for its members

    def spec_for(self, number: int) -> WorkerSpec:
        """What a worker is to be started with, now."""
        self._instruments.starts.add()
        settings = self._settings
        log = settings.decision_log
        own = dataclasses.replace(
            settings,
            port=self._port,
            admin_port=None,
            ready_file=None,
            workers=1,
            decision_log=None if log is None else f"{log}.{number}",
        )
        return WorkerSpec(
            number=number,
            socket=str(Path(self._directory.name) / f"{number}.{self.members[number].num_starts}"),
            settings=own,
            admission=self._admission,
            tokenization=self._tokenization,
            settings_file=self._settings_file,
            wanted=self._api.wanted,
            log_level=self._log_level,
            log_format=self._log_format,
        )

    def note_failed(self, error: HeadraceError) -> None:
        """A worker cannot be had: the gateway ends."""
        if self.error is None:
            self.error = error
        self.failed.set()

    # for the admin API

    async def list(self) -> EndpointList:
        """Every endpoint, as the workers see it together. Raises OverloadedError while no worker is there to ask."""
        answers: dict[int, bytes] = {}
        await self._ask_all(LIST_PATH, answers)
        if not answers:
            raise OverloadedError("No worker answers now; try again.", retry_after_s=1.0)
        return join_endpoints([msgspec.json.decode(body, type=EndpointList) for body in answers.values()])

    async def apply(self, wanted: Wanted) -> None:
        """Tell every worker; one that cannot be told now is told again."""
        await self._together([self._tell(member, wanted) for member in self.members])

    async def _tell(self, member: Member, wanted: Wanted) -> None:
        try:
            await member.apply(wanted)
        except UpstreamError as error:
            _LOG.warning("worker %d: %s", member.number, error.message)

    async def _look_for_ever(self) -> None:
        while True:
            await self._together([member.look() for member in self.members])
            await self.apply(self._api.wanted)
            states = [msgspec.json.decode(member.state) for member in self.members if member.state]
            if states:
                self._snapshots.publish(msgspec.json.encode(join_states(states)))
            await asyncio.sleep(_LOOK_INTERVAL_S)

    async def _ask_all(self, path: str, answers: dict[int, bytes]) -> None:
        async def ask(member: Member) -> None:
            try:
                told = await member.ask(path)
            except UpstreamError as error:
                _LOG.warning("worker %d: %s", member.number, error.message)
            else:
                answers[member.number] = told.body

        await self._together([ask(member) for member in self.members if member.is_ready])

    async def _together(self, awaitables: Sequence[Awaitable[None]]) -> None:
        async def run(awaitable: Awaitable[None]) -> None:
            await awaitable

        async with asyncio.TaskGroup() as group:
            for awaitable in awaitables:
                group.create_task(run(awaitable))

    async def _wait_ready(self) -> None:
        """Until all workers serve; raises what stopped one."""

        async def wait_all() -> None:
            for member in self.members:
                await member.ready.wait()

        async with TaskOwner("start of workers") as owner:
            ready = owner.spawn(wait_all(), name="all ready")
            failed = owner.spawn(self.failed.wait(), name="one failed")
            await asyncio.wait([ready, failed], return_when=asyncio.FIRST_COMPLETED)
        if self.error is not None:
            raise self.error

    def _start_admin(self, port: int) -> None:
        settings = self._settings
        app = admin_app(
            expose_metrics=self._expose, health=self.health, snapshots=self._snapshots, more=self._api.routes()
        )
        self._admin = AdminServer(app, owner=self._watchers)
        try:
            bound = self._admin.start(host=settings.admin_host, port=port)
        except OSError as error:
            message = f"admin_port: cannot listen on {settings.admin_host}:{port}: {error.strerror or error}"
            raise SettingsError(message, param="admin_port") from error
        self.admin_url = url_of(host=settings.admin_host, port=bound)

    async def _expose(self) -> bytes:
        self._instruments.num_ready.set(value=sum(member.is_ready for member in self.members))
        answers: dict[int, bytes] = {}
        await self._ask_all("/metrics", answers)
        return join_metrics(dict(sorted(answers.items()))) + expose(self._registry)

    def health(self) -> tuple[int, bytes]:
        """Status and body of /health: 200 while a worker is ready for requests, as they said when last asked."""
        told = {member.number: member.health for member in self.members if member.is_ready}
        num_ready = sum(one is not None and one.status == 200 for one in told.values())
        is_ready = num_ready > 0 and not self._is_draining
        health = _Health(
            status="draining" if self._is_draining else "ok" if is_ready else "no worker is ready",
            num_workers=len(self.members),
            num_ready=num_ready,
            workers={str(number): None if one is None else msgspec.Raw(one.body) for number, one in told.items()},
        )
        return 200 if is_ready else 503, msgspec.json.encode(health)

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

    def __repr__(self) -> str:
        num_ready = sum(member.is_ready for member in self.members)
        return f"Supervisor({self.url or 'not listening'}, num_ready={num_ready} of {len(self.members)})"


def check_shared(settings: GatewaySettings, admission: AdmissionSettings) -> None:
    """Raise SettingsError for what several workers would each count for themselves, and so wrongly."""
    if settings.workers == 1:
        return
    if not hasattr(socket, "SO_REUSEPORT"):
        raise SettingsError("workers: this system cannot share a port between processes; give 1", param="workers")
    if admission.keys_file is not None and admission.state == "memory":
        raise SettingsError(
            f"workers is {settings.workers} and keys_file is set: the limits of keys must be counted together; "
            "give state = redis://..., or workers = 1",
            param="state",
        )
    if admission.max_in_flight_per_endpoint is not None:
        raise SettingsError(
            f"workers is {settings.workers} and max_in_flight_per_endpoint is set, but every worker queues for itself; "
            "leave one of them out",
            param="max_in_flight_per_endpoint",
        )


def _reserve(host: str, port: int) -> socket.socket:
    """A socket that holds the port for this user without listening, so that connections go to the workers alone."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    holder = socket.socket(family, kind, protocol)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(address)
    except OSError:
        holder.close()
        raise
    return holder
