"""What the front end may have a core do between two steps, besides adding and aborting requests: see `core_calls`."""

from collections.abc import Sequence
from typing import cast

from headrace.engine.core.kv_cache import KVCacheBlocks
from headrace.engine.core.scheduler import Scheduler
from headrace.engine.core.sleep import SleepState, check_level, check_tags
from headrace.engine.executor.protocol import Executor
from headrace.engine.kv_events.feed import KVEventFeed
from headrace.engine.lora_request import LoRARequest
from headrace.engine.wire.remote_call import pack_results, unpack_call
from headrace.errors import EngineError, HeadraceError


class CoreOperations:
    """Works on the parts of one core, in the core's thread."""

    def __init__(self, *, executor: Executor, scheduler: Scheduler, cache: KVCacheBlocks, events: KVEventFeed) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._cache = cache
        self._events = events
        self._sleep = SleepState()
        self._put_back: list[str] = []

    def __repr__(self) -> str:
        return f"CoreOperations(sleep level {self.sleep_level})"

    @property
    def sleep_level(self) -> int:
        """0 when awake."""
        return self._sleep.level

    def take_put_back(self) -> tuple[str, ...]:
        """The requests that wait again since a call, once."""
        put_back, self._put_back = tuple(self._put_back), []
        return put_back

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, with no change, while a request holds blocks."""
        was_reset = self._cache.reset()
        self._events.flush()
        return was_reset

    def check_integrity(self) -> None:
        """Assert that the bookkeeping is sound; walks everything."""
        self._scheduler.check_integrity()

    def sleep(self, level: int) -> None:
        """Give up weights and KV cache; no step runs until both are back.

        Running requests wait, and their tokens are computed again then. A sleeper can be told to sleep deeper. Raises
        InvalidRequestError for a level that there is not.
        """
        check_level(level)
        if not self._sleep.is_asleep:
            plan = self._scheduler.preempt_all()
            self._executor.execute(plan)
            self._put_back += [name for name in plan.released if self._scheduler.is_waiting(name)]
            self.reset_prefix_cache()
        self._executor.collective_rpc("sleep", args=(level,))
        self._sleep.fall_asleep(level)

    def wake_up(self, tags: Sequence[str] | None) -> None:
        """Bring back what the tags name, everything by default. Raises InvalidRequestError for an unknown tag, and
        EngineError, with nothing changed, when the weights cannot be had again."""
        check_tags(tags)
        wanted = self._sleep.to_bring_back(tags)
        if wanted:
            self._executor.collective_rpc("wake_up", args=(wanted,))
            self._sleep.bring_back(wanted)

    def is_sleeping(self) -> bool:
        return self._sleep.is_asleep

    def start_profile(self) -> None:
        """Record the steps from now on. Raises UnsupportedError where `profiler_dir` is not set."""
        self._executor.collective_rpc("start_profile")

    def stop_profile(self) -> list[str]:
        """The trace of each worker, on the worker's machine."""
        return [cast("str", path) for path in self._executor.collective_rpc("stop_profile")]

    def add_lora(self, lora: LoRARequest) -> bool:
        """Load an adapter. False if it was loaded. Raises InvalidRequestError if it cannot be used."""
        return all(self._executor.collective_rpc("add_lora", args=(lora,)))

    def remove_lora(self, lora_int_id: int) -> bool:
        """Forget an adapter. False if it is not loaded."""
        was_removed = all(self._executor.collective_rpc("remove_lora", args=(lora_int_id,)))
        if was_removed:
            self._scheduler.note_removed_adapter()
        return was_removed

    def list_loras(self) -> list[int]:
        """Ids of the loaded adapters, in order."""
        return cast("list[int]", self._executor.collective_rpc("list_loras")[0])

    def pin_lora(self, lora_int_id: int) -> bool:
        """Keep an adapter loaded until it is removed. False if it is not loaded."""
        return all(self._executor.collective_rpc("pin_lora", args=(lora_int_id,)))

    def collective_rpc(self, packed: bytes) -> bytes:
        """A worker's method or a function of the caller's, on every worker. What it raises is an EngineError here."""
        call = unpack_call(packed)
        try:
            results = self._executor.collective_rpc(
                call.method, timeout_s=call.timeout_s, args=call.args, kwargs=call.kwargs
            )
        except HeadraceError:
            raise
        except Exception as error:  # the caller's function may raise anything; the core goes on
            raise EngineError(f"{call.name} failed in a worker: {type(error).__name__}: {error}") from error
        return pack_results(results, name=call.name)
