"""Several cores behind one front end, each with the whole model and a KV cache of its own, as one `CoreConnection`.

A request goes, whole, to the core with the least to do: a waiting request counts four, a running one counts one. Among
equals the prompt's beginning decides, so that prompts with a common prefix tend to find it cached. Calls go to all
cores. The cores live and die together: when one is dead the engine is, as with one core.
"""

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar, cast

import msgspec

from headrace.aio.tasks import TaskOwner
from headrace.engine.client.core_connection import CoreConnection, MakeConnection, OnDeath, OnStep
from headrace.engine.config import EngineConfig
from headrace.engine.wire.messages import AddRequest, CoreStatistics, Ready, TokenDelta
from headrace.errors import EngineDeadError, HeadraceError

ResultT = TypeVar("ResultT")

_WAITING_WEIGHT = 4
_AFFINITY_BYTES = 4 * 64
"""The first 64 tokens: a system prompt differs from another one before that."""


class DataParallelClient:
    """See `CoreConnection`; the methods' contracts are there. Belongs to one event loop."""

    def __init__(self, connect: Sequence[MakeConnection], *, on_step: OnStep, on_death: OnDeath) -> None:
        """One way to connect for each core."""
        self._on_step = on_step
        self._on_death = on_death
        self._owner = TaskOwner("data parallel cores")
        self._cores = [_Core(make(self._apply, self._die)) for make in connect]
        self._core_of: dict[str, _Core] = {}
        self._is_dead = False

    def __repr__(self) -> str:
        return f"<DataParallelClient {len(self._cores)} cores, {len(self._core_of)} requests>"

    @property
    def statistics(self) -> CoreStatistics:
        """The sums of all cores."""
        return sum_statistics([core.connection.statistics for core in self._cores])

    async def start(self, config: bytes) -> None:
        whole = msgspec.json.decode(config, type=EngineConfig)
        for rank, core in enumerate(self._cores):
            await core.connection.start(msgspec.json.encode(whole.for_data_parallel_rank(rank)))

    async def wait_ready(self, *, timeout_s: float) -> Ready:
        """Blocks are those of all cores together."""
        ready = await self._on_all(lambda core: core.connection.wait_ready(timeout_s=timeout_s))
        return msgspec.structs.replace(
            ready[0],
            num_blocks=sum(each.num_blocks for each in ready),
            load_s=max(each.load_s for each in ready),
            kv_events_endpoint=_joined([each.kv_events_endpoint for each in ready]),
            kv_events_replay_endpoint=_joined([each.kv_events_replay_endpoint for each in ready]),
        )

    async def add(self, request: AddRequest) -> None:
        core = self._choose(request)
        core.num_open += 1
        self._core_of[request.request_id] = core
        try:
            await core.connection.add(request)
        except BaseException:
            self._forget(request.request_id)
            raise

    def post_abort(self, core_ids: Sequence[str]) -> None:
        for core, ids in self._by_core(core_ids):
            core.connection.post_abort(ids)

    async def abort(self, core_ids: Sequence[str]) -> None:
        by_core = self._by_core(core_ids)
        for core, ids in by_core:
            core.connection.post_abort(ids)  # all at once, so that a cancellation spares none
        for core, ids in by_core:
            await core.connection.abort(ids)

    async def call(self, method: str, *arguments: object, timeout_s: float | None = None) -> object:
        """On all cores. Their answers become one: of lists all that they hold, of yes and no what holds for each.

        Prefixes are forgotten by all cores or none: by none while one of them has a request.
        """
        if method == "reset_prefix_cache" and self._core_of:
            return False
        results = await self._on_all(lambda core: core.connection.call(method, *arguments, timeout_s=timeout_s))
        return _MERGE.get(method, _first)(results)

    async def collective_rpc(
        self,
        method: str | Callable[..., object],
        *,
        timeout_s: float | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> list[object]:
        """Results by core, and for each by rank."""
        results = await self._on_all(
            lambda core: core.connection.collective_rpc(method, timeout_s=timeout_s, args=args, kwargs=kwargs)
        )
        return [result for each in results for result in each]

    def check_progress(self) -> None:
        for core in self._cores:
            core.connection.check_progress()

    async def aclose(self, *, timeout_s: float) -> None:
        try:
            await self._on_all(lambda core: core.connection.aclose(timeout_s=timeout_s))
        finally:
            await self._owner.aclose()

    def _choose(self, request: AddRequest) -> "_Core":
        least = min(core.load for core in self._cores)
        equals = [core for core in self._cores if core.load == least]
        return equals[zlib.crc32(request.prompt[:_AFFINITY_BYTES]) % len(equals)]

    def _apply(self, deltas: Sequence[TokenDelta]) -> None:
        for delta in deltas:
            if delta.finish_reason is not None:
                self._forget(delta.request_id)
        self._on_step(deltas)

    def _forget(self, request_id: str) -> None:
        if (core := self._core_of.pop(request_id, None)) is not None:
            core.num_open -= 1

    def _by_core(self, core_ids: Sequence[str]) -> list[tuple["_Core", list[str]]]:
        """Those that have ended are left out."""
        live = [core_id for core_id in core_ids if core_id in self._core_of]
        grouped = [(core, [core_id for core_id in live if self._core_of[core_id] is core]) for core in self._cores]
        return [(core, ids) for core, ids in grouped if ids]

    def _die(self, error: EngineDeadError) -> None:
        """The first death counts; the other cores are ended, since nobody will hear them."""
        if not self._is_dead:
            self._is_dead = True
            self._owner.spawn(self._end_all(), name="headrace-data-parallel-end")
            self._on_death(error)

    async def _end_all(self) -> None:
        await self._on_all(lambda core: core.connection.aclose(timeout_s=0.0))

    async def _on_all(self, func: Callable[["_Core"], Coroutine[None, None, ResultT]]) -> list[ResultT]:
        """At the same time on every core. All have answered on return; raises the first core's error, if any failed."""
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(_outcome(func(core))) for core in self._cores]
        outcomes = [answer.result() for answer in answers]
        for outcome in outcomes:
            if isinstance(outcome, HeadraceError):
                raise outcome
        return cast("list[ResultT]", outcomes)


class _Core:
    """One core, and the requests that it was given and has not ended."""

    def __init__(self, connection: CoreConnection) -> None:
        self.connection = connection
        self.num_open = 0

    @property
    def load(self) -> int:
        """Its own count of running requests is a message old: what it was sent since counts as waiting."""
        num_waiting = max(0, self.num_open - self.connection.statistics.num_running)
        return self.num_open + (_WAITING_WEIGHT - 1) * num_waiting


def sum_statistics(parts: Sequence[CoreStatistics]) -> CoreStatistics:
    """Counts are added up; of a level, like that of sleep, the least counts."""
    names = CoreStatistics.__struct_fields__
    levels = {"sleep_level": min(part.sleep_level for part in parts)}
    sums = {name: sum(getattr(part, name) for part in parts) for name in names if name not in levels}
    return CoreStatistics(**sums, **levels)


async def _outcome(answer: Coroutine[None, None, ResultT]) -> ResultT | HeadraceError:
    try:
        return await answer
    except HeadraceError as error:
        return error


def _joined(endpoints: Sequence[str | None]) -> str | None:
    return ",".join(endpoint for endpoint in endpoints if endpoint is not None) or None


def _first(results: Sequence[object]) -> object:
    return results[0]


def _union(results: Sequence[object]) -> object:
    return sorted({item for result in cast("Sequence[list[int]]", results) for item in result})


def _concatenated(results: Sequence[object]) -> object:
    return [item for result in cast("Sequence[list[object]]", results) for item in result]


_MERGE: Mapping[str, Callable[[Sequence[object]], object]] = MappingProxyType(
    {
        "reset_prefix_cache": all,
        "is_sleeping": all,
        "add_lora": any,
        "remove_lora": any,
        "pin_lora": all,
        "list_loras": _union,
        "stop_profile": _concatenated,
    }
)
"""Other methods return nothing, or the same everywhere."""
