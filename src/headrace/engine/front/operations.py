"""What an operator asks of a running engine: caches, sleep, adapters, profiler, calls into the workers.

Each is a call that the core runs between two steps; a first one starts the engine.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from headrace.engine.front.life import EngineLife
from headrace.engine.lora_request import LoRARequest
from headrace.errors import InvalidRequestError


class EngineOperations:
    """Raises EngineDeadError when there is no core any more, and what the core raises of what it was asked."""

    def __init__(self, life: EngineLife) -> None:
        self._life = life

    def __repr__(self) -> str:
        return f"<EngineOperations {self._life!r}>"

    async def reset_prefix_cache(self) -> bool:
        return bool(await self._call("reset_prefix_cache"))

    async def check_integrity(self) -> None:
        await self._call("check_integrity")

    async def sleep(self, level: int) -> None:
        await self._call("sleep", level)

    async def wake_up(self, tags: Sequence[str] | None) -> None:
        if isinstance(tags, str):  # a sequence of letters
            raise InvalidRequestError(f"tags must be a list of tags, got the string {tags!r}", param="tags")
        await self._call("wake_up", None if tags is None else tuple(tags))

    async def is_sleeping(self) -> bool:
        return bool(await self._call("is_sleeping"))

    async def start_profile(self) -> None:
        await self._call("start_profile")

    async def stop_profile(self) -> None:
        await self._call("stop_profile")

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        return bool(await self._call("add_lora", lora_request))

    async def remove_lora(self, lora_id: int) -> bool:
        return bool(await self._call("remove_lora", lora_id))

    async def list_loras(self) -> set[int]:
        return msgspec.convert(await self._call("list_loras"), set[int])

    async def pin_lora(self, lora_id: int) -> bool:
        return bool(await self._call("pin_lora", lora_id))

    async def collective_rpc(
        self,
        method: str | Callable[..., object],
        *,
        timeout_s: float | None,
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
    ) -> list[object]:
        client = await self._life.start()
        return await client.collective_rpc(method, timeout_s=timeout_s, args=args, kwargs=kwargs)

    async def _call(self, method: str, *arguments: object) -> object:
        client = await self._life.start()
        return await client.call(method, *arguments)
