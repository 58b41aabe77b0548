"""The gateway in a replica of Ray Serve. It listens itself, and answers what comes through Ray Serve's proxies too."""

import asyncio
import contextlib
import dataclasses
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from headrace import log
from headrace.aio.bridge import make_async
from headrace.aio.tasks import TaskOwner
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.settings import GatewaySettings
from headrace.log import LogFormat
from headrace.ray_serve.board import RENEWAL_S
from headrace.ray_serve.relay import Relay
from headrace.tokenization.settings import TokenizationSettings

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_LOG = logging.getLogger(__name__)
_BOARD_TIMEOUT_S = 5.0
_READY_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLaunch:
    """All that a replica needs to know."""

    gateway: GatewaySettings
    """Its file of endpoints is the replica's own."""
    admission: AdmissionSettings
    tokenization: TokenizationSettings
    log_level: str = "info"
    log_format: LogFormat = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayUrls:
    """Where a gateway listens."""

    url: str
    admin_url: str | None


class GatewayReplica:
    """`board` is a handle of the deployment of `EndpointBoard`. `engines`, a handle too, is not called: Ray Serve runs
    what an application's deployments are bound to."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, launch: GatewayLaunch, board: Any, engines: Any
    ) -> None:
        self._parts = contextlib.AsyncExitStack()
        """What is to be closed, last first; `__del__` is called after a failure in here too."""
        from headrace.gateway.app import Gateway

        del engines
        log.configure(level=launch.log_level, log_format=launch.log_format)
        self._board = board
        directory = self._parts.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))
        self._file = Path(directory) / "endpoints.yaml"
        self._urls: Sequence[str] = ()
        await self._write(await self._first_urls())
        settings = dataclasses.replace(
            launch.gateway, endpoint=(), endpoints_file=str(self._file), discovery_interval_s=RENEWAL_S / 2
        )
        self._gateway = Gateway(settings, admission=launch.admission, tokenization=launch.tokenization)
        await self._parts.enter_async_context(self._gateway)
        self._relay = Relay(self._gateway.url)
        self._parts.push_async_callback(self._relay.aclose)
        self._parts.push_async_callback(self._gateway.drain)
        owner = await self._parts.enter_async_context(TaskOwner("gateway replica"))
        owner.spawn(self._follow_board(), name="board")

    async def ready_urls(self) -> GatewayUrls:
        """Where it listens; returns when an engine takes requests."""
        while self._gateway.fleet.num_ready == 0:  # noqa: ASYNC110 - a fleet tells nobody
            await asyncio.sleep(_READY_POLL_S)
        return GatewayUrls(url=self._gateway.url, admin_url=self._gateway.admin_url)

    async def __call__(self, request: "Request") -> "Response":
        """Called by Ray Serve's proxies."""
        return await self._relay.answer(request)

    async def __del__(self) -> None:
        """Called by Ray Serve before it ends the replica."""
        await self._parts.aclose()

    async def _first_urls(self) -> list[str]:
        """What the board knows, which may be nothing yet."""
        try:
            return await self._read_board()
        except Exception as error:  # noqa: BLE001 - see below
            _LOG.warning("the board of endpoints cannot be read yet: %s", str(error) or type(error).__name__)
            return []

    async def _follow_board(self) -> None:
        while True:
            try:
                await self._write(await self._read_board())
            except Exception as error:  # noqa: BLE001 - Ray raises many kinds, none of which may end the gateway
                _LOG.warning(
                    "the board of endpoints cannot be read; those known stay: %s", str(error) or type(error).__name__
                )
            await asyncio.sleep(RENEWAL_S)

    async def _read_board(self) -> list[str]:
        async with asyncio.timeout(_BOARD_TIMEOUT_S):
            urls: list[str] = await self._board.urls.remote()
        return urls

    async def _write(self, urls: Sequence[str]) -> None:
        """The gateway follows the file."""
        if list(urls) != list(self._urls) or not self._file.exists():
            self._urls = list(urls)
            await make_async(_write_whole)(self._file, yaml.safe_dump(list(urls)))

    def __repr__(self) -> str:
        return f"GatewayReplica({self._gateway!r})"


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
