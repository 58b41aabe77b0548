"""What every route works with: the engine, its model, the settings, and who is being served."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.engine.lora_request import LoRARequest
from headrace.errors import InvalidRequestError, ModelNotFoundError, OverloadedError
from headrace.server.adapters import AdapterModels
from headrace.server.engine_seam import Engine, ModelDescription
from headrace.server.settings import ServerSettings
from headrace.server.tool_calls import ToolSupport

_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class LiveStatistics:
    num_requests: int
    """HTTP requests being worked on."""
    num_generations: int
    """Prompts of theirs that the engine has."""
    max_requests: int


class LiveRequests:
    """The requests being worked on, bounded in number. Belongs to the event loop's thread."""

    def __init__(self, *, max_requests: int) -> None:
        self._max_requests = max_requests
        self._num_requests = 0
        self._answer_ids: dict[str, str] = {}
        """Of the engine's requests, what the answer that each is part of is called."""

    @contextlib.contextmanager
    def admit(self) -> Iterator[None]:
        """Count one request while the block runs. Raises OverloadedError when there are enough already."""
        if self._num_requests >= self._max_requests:
            raise OverloadedError(
                f"{self._max_requests} requests are being worked on, which is the limit; try again shortly",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1

    @contextlib.contextmanager
    def generating(self, engine_ids: Sequence[str], *, answer_id: str) -> Iterator[None]:
        """Remember, while the block runs, which of the engine's requests must be aborted to end the answer.

        Raises InvalidRequestError for an id that is in use, which only clients' own can be.
        """
        if in_use := self._answer_ids.keys() & engine_ids:
            raise InvalidRequestError(f"the request id {min(in_use)!r} is in use; choose another", param="request_id")
        self._answer_ids.update(dict.fromkeys(engine_ids, answer_id))
        try:
            yield
        finally:
            for engine_id in engine_ids:
                del self._answer_ids[engine_id]

    def engine_ids(self, *, of: str | None = None) -> list[str]:
        """All of them, or those called `of`: all that the answer of that id is made of, or one of them by its own."""
        if of is None:
            return list(self._answer_ids)
        return [engine_id for engine_id, answer_id in self._answer_ids.items() if of in (engine_id, answer_id)]

    def statistics(self) -> LiveStatistics:
        return LiveStatistics(
            num_requests=self._num_requests, num_generations=len(self._answer_ids), max_requests=self._max_requests
        )

    def __repr__(self) -> str:
        return f"LiveRequests(num_requests={self._num_requests}, num_generations={len(self._answer_ids)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One engine and its model, being served."""

    engine: Engine
    model: ModelDescription
    settings: ServerSettings
    live: LiveRequests
    adapters: AdapterModels
    started_at: int
    """Seconds since the epoch; what clients see as the model's creation."""
    tools: ToolSupport = field(default_factory=ToolSupport)

    def check_model(self, asked: str | None) -> None:
        """Raises ModelNotFoundError unless `asked` is the served model or one of its adapters; no name means it."""
        if asked is not None and asked != self.model.served_model_name and self.adapters.get(asked) is None:
            raise ModelNotFoundError(
                f"the model {asked!r:.300} does not exist here; this server has {self.model.served_model_name!r}",
                param="model",
            )

    def adapter_of(self, asked: str | None) -> LoRARequest | None:
        """The adapter of that name; None for the model itself. Raises as `check_model` does: an adapter may have been
        unloaded since that looked."""
        self.check_model(asked)
        return self.adapters.get(asked)
