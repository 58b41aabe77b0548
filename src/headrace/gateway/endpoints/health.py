"""Asks every endpoint, again and again, whether it is well, what it serves and how busy it is. What befalls requests is
the breaker's."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from headrace.aio.tasks import TaskOwner
from headrace.errors import UpstreamError, UpstreamProtocolError
from headrace.gateway.endpoints.endpoint import Endpoint, ModelCard, ServedModel
from headrace.gateway.endpoints.fleet import Fleet
from headrace.gateway.endpoints.reported_load import StartMarks, read_load
from headrace.gateway.unreadable import UNREADABLE
from headrace.gateway.upstream.fetch import fetch

_LOG = logging.getLogger(__name__)


class _ModelList(msgspec.Struct, frozen=True):
    data: list[msgspec.Raw]


class _Age(msgspec.Struct, frozen=True):
    created: int | None = None


class _Watch:
    """What is kept of one endpoint between probes."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.is_probed = asyncio.Event()
        self.marks = StartMarks()
        self.tells_load = True


class HealthMonitor:
    """Probes /health, /v1/models and, for its load, /metrics of each endpoint every `interval_s`, each endpoint by
    itself, so that a hanging one delays no other. One good probe makes an endpoint healthy; `unhealthy_after` bad ones
    in a row end that. An endpoint without metrics is not asked for them again until it has been away.

    `on_models_changed`, `on_restart` and `on_return` are called in the loop: when an endpoint serves others than
    before, when it shows itself to be a new process, and when it is well for the first time, again, or with other
    models.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        interval_s: float,
        timeout_s: float,
        unhealthy_after: int,
        asks_load: bool,
        on_models_changed: Callable[[], None],
        on_restart: Callable[[Endpoint], None],
        on_return: Callable[[Endpoint], None],
    ) -> None:
        self._fleet = fleet
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._unhealthy_after = unhealthy_after
        self._asks_load = asks_load
        self._on_models_changed = on_models_changed
        self._on_restart = on_restart
        self._on_return = on_return
        self._watches: dict[Endpoint, _Watch] = {}
        self._owner = TaskOwner("health probes")

    def follow(self, endpoint: Endpoint) -> None:
        """Probe it from now on, the first time at once."""
        watch = self._watches[endpoint] = _Watch()
        watch.task = self._owner.spawn(self._probe_for_ever(endpoint, watch), name=f"probes of {endpoint.name}")

    async def forget(self, endpoint: Endpoint) -> None:
        """Probe it no more."""
        watch = self._watches.pop(endpoint)
        if watch.task is not None:
            watch.task.cancel()
            await asyncio.wait([watch.task])
        watch.is_probed.set()
        self._on_models_changed()

    async def wait_probed(self) -> None:
        """Wait until each endpoint that is followed now has been probed once, well or not."""
        for watch in tuple(self._watches.values()):
            await watch.is_probed.wait()

    async def aclose(self) -> None:
        """End all probes. Idempotent."""
        await self._owner.aclose()

    async def probe(self, endpoint: Endpoint) -> bool:
        """Probe once and note the result; True if it is well. Raises nothing of the endpoint's."""
        watch = self._watches[endpoint]
        try:
            async with asyncio.timeout(self._timeout_s):
                is_well = await self._check_health(endpoint)
                entries = await self._read_models(endpoint, is_well=is_well)
        except TimeoutError:
            return self._note_bad(endpoint, watch, f"no answer to a probe within {self._timeout_s:g} s")
        except UpstreamError as error:
            return self._note_bad(endpoint, watch, error.message)
        self._note_good(endpoint, watch, entries)
        await self._ask_load(endpoint, watch)
        return True

    async def _probe_for_ever(self, endpoint: Endpoint, watch: _Watch) -> None:
        while True:
            await self.probe(endpoint)
            watch.is_probed.set()
            await asyncio.sleep(self._interval_s)

    async def _check_health(self, endpoint: Endpoint) -> bool:
        """Whether it says that it is well; False where it has no /health for us, as servers of nothing but the API."""
        answer = await fetch(endpoint.pool, "/health", timeout_s=self._timeout_s)
        if 400 <= answer.status < 500:
            return False
        if not 200 <= answer.status < 300:
            raise UpstreamProtocolError(f"/health answered {answer.status}")
        return True

    async def _read_models(self, endpoint: Endpoint, *, is_well: bool) -> dict[str, ServedModel]:
        """What it serves; `is_well` or this shows that it is an endpoint at all."""
        answer = await fetch(endpoint.pool, "/v1/models", timeout_s=self._timeout_s)
        if answer.status == 404 and endpoint.spec.models and is_well:
            return _named(endpoint.spec.models)
        if answer.status != 200:
            raise UpstreamProtocolError(f"/v1/models answered {answer.status}")
        try:
            entries = msgspec.json.decode(answer.body, type=_ModelList).data
            cards = [msgspec.json.decode(entry, type=ModelCard) for entry in entries]
        except UNREADABLE as error:
            raise UpstreamProtocolError(f"/v1/models is not OpenAI's list: {error}") from error
        return {card.id: ServedModel(card=card, raw=raw) for card, raw in zip(cards, entries, strict=True)}

    async def _ask_load(self, endpoint: Endpoint, watch: _Watch) -> None:
        if not self._asks_load or not watch.tells_load:
            return
        num_before = endpoint.load.num_in_flight
        try:
            answer = await fetch(endpoint.pool, "/metrics", timeout_s=self._timeout_s)
        except (UpstreamError, TimeoutError) as error:
            _LOG.debug("endpoint %s does not tell its load: %s", endpoint.name, error)
            endpoint.note_load(None)
            return
        load = read_load(answer.body) if answer.status == 200 else None
        endpoint.note_load(load, num_own=max(num_before, endpoint.load.num_in_flight))
        if load is None:
            watch.tells_load = False
        elif watch.marks.note_load(load):
            self._note_restart(endpoint)

    def _note_good(self, endpoint: Endpoint, watch: _Watch, models: dict[str, ServedModel]) -> None:
        was_away = not endpoint.is_healthy
        if was_away:
            _LOG.info("endpoint %s is well and serves %s", endpoint.name, ", ".join(models) or "nothing")
        has_changed = models.keys() != endpoint.models.keys() or any(
            served.card != endpoint.models[name].card for name, served in models.items()
        )
        endpoint.note_well(models)
        self._fleet.refresh_models()
        if has_changed:
            self._on_models_changed()
        if was_away or has_changed:
            self._on_return(endpoint)
        if watch.marks.note_created(_created(models), now=asyncio.get_running_loop().time()):
            self._note_restart(endpoint)

    def _note_bad(self, endpoint: Endpoint, watch: _Watch, why: str) -> bool:
        if endpoint.why_unhealthy != why:
            _LOG.warning("endpoint %s: %s", endpoint.name, why)
        endpoint.note_unwell(why, num_allowed=self._unhealthy_after - 1)
        watch.tells_load = True
        return False

    def _note_restart(self, endpoint: Endpoint) -> None:
        _LOG.warning("endpoint %s has been started anew; its cache counts as empty", endpoint.name)
        self._on_restart(endpoint)


def _named(models: tuple[str, ...]) -> dict[str, ServedModel]:
    """Models that are known by name alone."""
    cards = {name: ModelCard(id=name) for name in models}
    entries = {name: {"id": name, "object": "model", "owned_by": "unknown"} for name in models}
    return {
        name: ServedModel(card=card, raw=msgspec.Raw(msgspec.json.encode(entries[name])))
        for name, card in cards.items()
    }


def _created(models: dict[str, ServedModel]) -> dict[str, int]:
    """When each model was created, as far as the endpoint says; adapters are loaded at their own time."""
    found: dict[str, int] = {}
    for name, served in models.items():
        try:
            age = msgspec.json.decode(served.raw, type=_Age)
        except UNREADABLE:
            continue
        if age.created is not None and served.card.parent is None:
            found[name] = age.created
    return found
