"""What the front end needs of an open request: `RequestProgress` has it, and `EmbeddingProgress` for vectors."""

from typing import Protocol, TypeVar

from headrace.engine.front.request_times import RequestTimes
from headrace.engine.outputs import FinishReason
from headrace.engine.wire.messages import TokenDelta
from headrace.errors import HeadraceError

OutputT_co = TypeVar("OutputT_co", covariant=True)


class LiveRequest(Protocol):
    """One request, live under `core_id`. Each of `apply`, `abort` and `fail` may end it; the first one does."""

    @property
    def request_id(self) -> str: ...

    @property
    def core_id(self) -> str: ...

    @property
    def core_ids(self) -> tuple[str, ...]:
        """What the core knows it by: `core_id`, or a name for each of several completions."""
        ...

    def part(self, core_id: str) -> "LiveRequest":
        """What of it the core knows by that name: itself, or one of several completions."""
        ...

    @property
    def times(self) -> RequestTimes: ...

    @property
    def is_finished(self) -> bool:
        """Nothing more will come of it; the last output, or the error, may still wait to be taken."""
        ...

    @property
    def finish_reason(self) -> FinishReason | None:
        """None while it is open, and for one that failed."""
        ...

    @property
    def num_tokens(self) -> int:
        """Generated so far."""
        ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_cached_tokens(self) -> int: ...

    @property
    def max_tokens(self) -> int | None:
        """As asked for; None where the request asks for no limit, or for no tokens at all."""
        ...

    def apply(self, delta: TokenDelta, *, now: float) -> None: ...

    def abort(self, *, now: float) -> None: ...

    def fail(self, error: HeadraceError, *, now: float) -> None: ...


class OutputSource(Protocol[OutputT_co]):
    """The outputs of one request, for its one consumer."""

    @property
    def is_exhausted(self) -> bool:
        """The last output, or the error, has been taken."""
        ...

    def take(self) -> OutputT_co | None:
        """What the consumer gets now; None when there is nothing new. Raises the request's error, once."""
        ...
