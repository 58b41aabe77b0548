"""All live requests of the front end, and what the core's outputs, aborts and the core's death do to them. Pure."""

import logging
from collections.abc import Callable, Iterable, Sequence

from headrace.engine.messages import TokenDelta
from headrace.engine.request_progress import RequestProgress
from headrace.errors import EngineGenerateError, HeadraceError, InvalidRequestError

_LOG = logging.getLogger(__name__)


class OutputProcessor:
    """The table of live requests. Each one leaves it once: finished, failed, aborted or left by its consumer.

    `on_left` is called then, after the consumer has been notified.
    """

    def __init__(self, *, on_left: Callable[[RequestProgress], None]) -> None:
        self._on_left = on_left
        self._by_request_id: dict[str, RequestProgress] = {}
        self._by_core_id: dict[str, RequestProgress] = {}

    def __len__(self) -> int:
        return len(self._by_core_id)

    def __repr__(self) -> str:
        return f"<OutputProcessor {len(self)} requests>"

    def add(self, progress: RequestProgress) -> None:
        """Raises InvalidRequestError when a live request has the same `request_id`."""
        if progress.request_id in self._by_request_id:
            message = f"request_id {progress.request_id!r} is in use by a request that has not finished; choose another"
            raise InvalidRequestError(message, param="request_id")
        self._by_request_id[progress.request_id] = progress
        self._by_core_id[progress.core_id] = progress

    def apply(self, deltas: Sequence[TokenDelta], *, now: float) -> list[str]:
        """Hand one step's deltas out. Returns the core ids of requests that ended here while the core goes on."""
        to_abort = []
        for delta in deltas:
            progress = self._by_core_id.get(delta.request_id)
            if progress is None:  # its consumer left while the step ran
                continue
            self._apply_one(progress, delta, now=now)
            if progress.is_finished:
                self._leave(progress)
                if delta.finish_reason is None:
                    to_abort.append(progress.core_id)
        return to_abort

    def abort(self, request_ids: Iterable[str], *, now: float) -> list[str]:
        """End these requests for their consumers; unknown ids are ignored. Returns the core ids to be freed."""
        names = dict.fromkeys(request_ids)  # each one once
        found = [self._by_request_id[name] for name in names if name in self._by_request_id]
        for progress in found:
            progress.abort(now=now)
            self._leave(progress)
        return [progress.core_id for progress in found]

    def abort_all(self, *, now: float) -> list[str]:
        return self.abort(list(self._by_request_id), now=now)

    def discard(self, progress: RequestProgress) -> bool:
        """Forget a request whose consumer has left. False when it had ended before: the core has nothing to free."""
        if progress.core_id not in self._by_core_id:
            return False
        self._leave(progress)
        return True

    def fail_all(self, make_error: Callable[[], HeadraceError], *, now: float) -> None:
        """End every request with an error of its own: an exception raised in several tasks mixes their tracebacks."""
        for progress in list(self._by_core_id.values()):
            progress.fail(make_error(), now=now)
            self._leave(progress)

    def _apply_one(self, progress: RequestProgress, delta: TokenDelta, *, now: float) -> None:
        try:
            progress.apply(delta, now=now)
        except Exception as error:  # noqa: BLE001 - logged; one request's text must not end the others'
            _LOG.exception("cannot make the text of request %r", progress.request_id)
            failure = EngineGenerateError(f"cannot make the text of request {progress.request_id!r}: {error}")
            failure.__cause__ = error
            progress.fail(failure, now=now)

    def _leave(self, progress: RequestProgress) -> None:
        del self._by_request_id[progress.request_id]
        del self._by_core_id[progress.core_id]
        self._on_left(progress)
