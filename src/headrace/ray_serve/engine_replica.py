"""One engine with its server, in a replica of Ray Serve. Requests come over HTTP from the gateway, past Ray."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from headrace import log
from headrace.aio.stop import StopRequest
from headrace.aio.tasks import TaskOwner
from headrace.engine.config import AsyncEngineArgs
from headrace.engine.settings import FrontEndSettings
from headrace.errors import EngineDeadError
from headrace.log import LogFormat
from headrace.ray_serve.board import RENEWAL_S
from headrace.ray_serve.scaling import QUEUE_METRIC
from headrace.server.settings import ServerSettings
from headrace.tokenization.settings import TokenizationSettings

_LOG = logging.getLogger(__name__)
_BOARD_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch:
    """All that a replica needs to know."""

    engine: AsyncEngineArgs
    server: ServerSettings
    """Without host and port, which are the replica's own."""
    front_end: FrontEndSettings
    tokenization: TokenizationSettings
    log_level: str = "info"
    log_format: LogFormat = "text"


class EngineReplica:
    """`board` is a handle of the deployment of `EndpointBoard`."""

    async def __init__(self, launch: EngineLaunch, board: Any) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        self._parts = contextlib.AsyncExitStack()
        """What is to be ended, last first; `__del__` is called after a failure in here too."""
        log.configure(level=launch.log_level, log_format=launch.log_format)
        self._launch = launch
        self._board = board
        self._stop = StopRequest()
        owner = await self._parts.enter_async_context(TaskOwner("engine replica"))
        self._url = ""
        self._count_queue: Callable[[], int] = lambda: 0
        ready = asyncio.Event()
        self._life = owner.spawn(self._live(ready), name="engine")
        starting = owner.spawn(ready.wait(), name="start")
        await asyncio.wait({self._life, starting}, return_when=asyncio.FIRST_COMPLETED)
        if self._life.done():
            self._life.result()
        self._parts.push_async_callback(self._drain)
        announcing = await self._parts.enter_async_context(TaskOwner("announcements"))
        announcing.spawn(self._announce_again_and_again(), name="announcements")

    async def url(self) -> str:
        """Where its server listens."""
        return self._url

    async def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica for which this raises."""
        if self._life.done():
            error = self._life.exception()
            raise EngineDeadError(f"the engine has ended: {error}") from error

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Ray Serve."""
        return {QUEUE_METRIC: float(self._count_queue())}

    async def __del__(self) -> None:
        """Called by Ray Serve before it ends the replica."""
        await self._parts.aclose()

    async def _drain(self) -> None:
        """Take no more requests, and end those under way."""
        await self._tell("withdraw")
        await asyncio.sleep(2 * RENEWAL_S)  # until every gateway has read the board
        self._stop.request()
        await asyncio.wait({self._life})

    async def _live(self, ready: asyncio.Event) -> None:
        from headrace.engine.async_engine import AsyncLLMEngine  # these load the model's libraries
        from headrace.server.listener import bound_listener, url_of
        from headrace.server.run import serve_engine
        from headrace.tokenization import TokenizationService

        launch = self._launch
        registry = CollectorRegistry()
        with bound_listener(_own_host(), 0) as listener:
            self._url = url_of(listener)
            async with TokenizationService(launch.tokenization, registry=registry) as service:
                engine = AsyncLLMEngine.from_engine_args(
                    launch.engine, settings=launch.front_end, tokenization=service, registry=registry
                )
                try:
                    await engine.start_background_loop()
                    self._count_queue = lambda: _num_in_hand(engine)
                    ready.set()
                    await serve_engine(engine, launch.server, listener=listener, stop=self._stop)
                finally:
                    await engine.shutdown_background_loop()

    async def _announce_again_and_again(self) -> None:
        while not self._life.done():
            await self._tell("announce")
            await asyncio.sleep(RENEWAL_S)

    async def _tell(self, what: str) -> None:
        """A board that is away is told again in a second."""
        try:
            async with asyncio.timeout(_BOARD_TIMEOUT_S):
                await getattr(self._board, what).remote(self._url)
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds, none of which may end the engine
            _LOG.warning("the board of endpoints cannot be told: %s", str(error) or type(error).__name__)

    def __repr__(self) -> str:
        return f"EngineReplica({self._url or 'starting'})"


def _own_host() -> str:
    from headrace.engine.client.ray_cluster import own_host

    return own_host()


def _num_in_hand(engine: Any) -> int:
    statistics = engine.statistics()
    return int(statistics.num_running + statistics.num_waiting)
