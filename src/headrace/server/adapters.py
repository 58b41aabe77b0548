"""The LoRA adapters that clients may ask for by a model's name."""

import itertools
from collections.abc import Iterator, Sequence

from headrace.engine.lora_request import LoRARequest
from headrace.errors import HeadraceError, InvalidRequestError, ModelNotFoundError, SettingsError
from headrace.server.engine_seam import Engine


class AdapterModels:
    """Adapters by name. An adapter that was unloaded and loaded again is another one: ids are never used twice."""

    def __init__(self, engine: Engine, *, base_model: str, max_adapters: int) -> None:
        self._engine = engine
        self._base_model = base_model
        self._max_adapters = max_adapters
        self._ids = itertools.count(1)
        self._by_name: dict[str, LoRARequest] = {}
        self._loading: set[str] = set()

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[LoRARequest]:
        return iter(tuple(self._by_name.values()))

    def __repr__(self) -> str:
        return f"AdapterModels({len(self)} of {self._base_model!r})"

    def get(self, name: str | None) -> LoRARequest | None:
        """None for a name that no adapter has, the base model's among them."""
        return None if name is None else self._by_name.get(name)

    async def load(self, name: str, path: str, *, is_replacement: bool = False) -> None:
        """Have the engine load it, then offer it. Raises InvalidRequestError for a name in use and for bad files.

        With `is_replacement` the name may be in use: requests that come from now on get the new one.
        """
        old = self._by_name.get(name)
        if name == self._base_model or name in self._loading or (old is not None and not is_replacement):
            raise InvalidRequestError(
                f"the model name {name!r} is in use; unload that adapter first", param="lora_name"
            )
        if old is None and len(self._by_name) + len(self._loading) >= self._max_adapters:
            message = f"{self._max_adapters} LoRA adapters are offered, the most there may be; unload one first"
            raise InvalidRequestError(message, param="lora_name")
        adapter = LoRARequest(name, next(self._ids), path)
        self._loading.add(name)
        try:
            await self._engine.add_lora(adapter)
        finally:
            self._loading.discard(name)
        self._by_name[name] = adapter
        if old is not None:
            await self._engine.remove_lora(old.lora_int_id)

    async def unload(self, name: str) -> None:
        """Offer it no more; requests that have it finish. Raises ModelNotFoundError for a name that no adapter has."""
        adapter = self._by_name.pop(name, None)
        if adapter is None:
            raise ModelNotFoundError(f"no LoRA adapter {name!r} is loaded", param="lora_name")
        await self._engine.remove_lora(adapter.lora_int_id)

    async def load_modules(self, modules: Sequence[str]) -> None:
        """Load what the operator names as NAME=PATH. Raises SettingsError."""
        for module in modules:
            name, _, path = module.partition("=")
            try:
                await self.load(name, path)
            except HeadraceError as error:
                message = f"lora_modules: cannot serve {module!r}: {error.message}"
                raise SettingsError(message, param="lora_modules") from error
