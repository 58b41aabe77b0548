"""Asks every endpoint, again and again, whether it is well and what it serves. What requests meet is the breaker's."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from headrace.aio.tasks import TaskOwner
from headrace.errors import UpstreamError, UpstreamProtocolError
from headrace.gateway.endpoint import Endpoint, ModelCard, ServedModel
from headrace.gateway.fleet import Fleet
from headrace.gateway.upstream.fetch import fetch

_LOG = logging.getLogger(__name__)


class _ModelList(msgspec.Struct, frozen=True):
    data: list[msgspec.Raw]


class HealthMonitor:
    """Probes /health and /v1/models of each endpoint every `interval_s`, each endpoint by itself, so that a hanging one
    delays no other. One good probe makes an endpoint healthy; `unhealthy_after` bad ones in a row end that.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        interval_s: float,
        timeout_s: float,
        unhealthy_after: int,
        on_models_changed: Callable[[], None],
    ) -> None:
        self._fleet = fleet
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._unhealthy_after = unhealthy_after
        self._on_models_changed = on_models_changed
        self._owner = TaskOwner("health probes")

    async def start(self) -> None:
        """Probe every endpoint once, together, and return; from then on probe them in the background."""
        await asyncio.wait(
            [self._owner.spawn(self.probe(endpoint), name=endpoint.name) for endpoint in self._fleet.endpoints]
        )
        for endpoint in self._fleet.endpoints:
            self._owner.spawn(self._watch(endpoint), name=f"probes of {endpoint.name}")

    async def aclose(self) -> None:
        """End all probes. Idempotent."""
        await self._owner.aclose()

    async def probe(self, endpoint: Endpoint) -> bool:
        """Probe once and note the result; True if it is well. Raises nothing of the endpoint's."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._check_health(endpoint)
                models = await self._read_models(endpoint)
        except TimeoutError:
            return self._note_bad(endpoint, f"no answer to a probe within {self._timeout_s:g} s")
        except UpstreamError as error:
            return self._note_bad(endpoint, error.message)
        self._note_good(endpoint, models)
        return True

    async def _watch(self, endpoint: Endpoint) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.probe(endpoint)

    async def _check_health(self, endpoint: Endpoint) -> None:
        answer = await fetch(endpoint.pool, "/health", timeout_s=self._timeout_s)
        if answer.status != 200:
            raise UpstreamProtocolError(f"/health answered {answer.status}")

    async def _read_models(self, endpoint: Endpoint) -> dict[str, ServedModel]:
        answer = await fetch(endpoint.pool, "/v1/models", timeout_s=self._timeout_s)
        if answer.status != 200:
            raise UpstreamProtocolError(f"/v1/models answered {answer.status}")
        try:
            entries = msgspec.json.decode(answer.body, type=_ModelList).data
            cards = [msgspec.json.decode(entry, type=ModelCard) for entry in entries]
        except msgspec.MsgspecError as error:
            raise UpstreamProtocolError(f"/v1/models is not OpenAI's list: {error}") from error
        return {card.id: ServedModel(card=card, raw=raw) for card, raw in zip(cards, entries, strict=True)}

    def _note_good(self, endpoint: Endpoint, models: dict[str, ServedModel]) -> None:
        if not endpoint.is_healthy:
            _LOG.info("endpoint %s is well and serves %s", endpoint.name, ", ".join(models) or "nothing")
        has_changed = models.keys() != endpoint.models.keys() or any(
            served.card != endpoint.models[name].card for name, served in models.items()
        )
        endpoint.note_well(models)
        self._fleet.refresh_models()
        if has_changed:
            self._on_models_changed()

    def _note_bad(self, endpoint: Endpoint, why: str) -> bool:
        if endpoint.why_unhealthy != why:
            _LOG.warning("endpoint %s: %s", endpoint.name, why)
        endpoint.note_unwell(why, num_allowed=self._unhealthy_after - 1)
        return False
