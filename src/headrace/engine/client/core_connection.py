"""What the front end needs of whatever computes: our own core, several, or another engine behind that face."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from headrace.engine.wire.messages import AddRequest, CoreStatistics, Ready, TokenDelta
from headrace.errors import EngineDeadError

OnStep: TypeAlias = Callable[[Sequence[TokenDelta]], None]
OnDeath: TypeAlias = Callable[[EngineDeadError], None]


class CoreConnection(Protocol):
    """Starts once, serves, ends once; belongs to one event loop. `CoreClient` is the one to read."""

    @property
    def statistics(self) -> CoreStatistics:
        """The core's last word on itself."""
        ...

    async def start(self, config: bytes) -> None:
        """Start with `config`, an EngineConfig as JSON; returns while it loads. After an error: `aclose`."""
        ...

    async def wait_ready(self, *, timeout_s: float) -> Ready:
        """Returns when it takes requests. Raises EngineDeadError, with the real cause, if it fails."""
        ...

    async def add(self, request: AddRequest) -> None:
        """Send a request, waiting while the core is behind. Cancelled: nothing was sent. Raises EngineDeadError."""
        ...

    def post_abort(self, core_ids: Sequence[str]) -> None:
        """Abort without waiting."""
        ...

    async def abort(self, core_ids: Sequence[str]) -> None:
        """Abort; returns when their blocks are free. Cancelling this cancels no abort."""
        ...

    async def call(self, method: str, *arguments: object, timeout_s: float | None = None) -> object:
        """Run a method of `headrace.engine.core.calls`."""
        ...

    async def collective_rpc(
        self,
        method: str | Callable[..., object],
        *,
        timeout_s: float | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> list[object]:
        """Call a worker's method, or a function that is given the worker, on every worker; results by rank."""
        ...

    def check_progress(self) -> None:
        """Raises EngineStalledError when work waits and nothing has been computed for too long."""
        ...

    async def aclose(self, *, timeout_s: float) -> None:
        """End it and return when nothing of it is left. Idempotent."""
        ...


MakeConnection: TypeAlias = Callable[[OnStep, OnDeath], CoreConnection]
