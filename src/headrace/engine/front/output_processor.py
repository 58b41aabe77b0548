"""All live requests of the front end, and what the core's outputs, aborts and the core's death do to them. Pure."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from headrace.engine.front.live_request import LiveRequest
from headrace.engine.wire.messages import TokenDelta
from headrace.errors import EngineGenerateError, HeadraceError, InvalidRequestError

_LOG = logging.getLogger(__name__)

OnMoved: TypeAlias = Callable[[str, bool], None]
OnTokens: TypeAlias = Callable[[LiveRequest, int, float | None, float], None]


class OutputProcessor:
    """The table of live requests. Each one leaves it once: finished, failed, aborted or left by its consumer.

    `on_left` is called then, after the consumer has been notified. `on_tokens` is called when tokens have come for a
    request, with their number, the time when it had got some before, and the time. `on_moved` is told which core id
    begins to run in the core, or was put back to wait.
    """

    def __init__(
        self,
        *,
        on_left: Callable[[LiveRequest], None],
        on_tokens: OnTokens | None = None,
        on_moved: OnMoved | None = None,
    ) -> None:
        self._on_left = on_left
        self._on_tokens = on_tokens
        self._on_moved = on_moved
        self._by_request_id: dict[str, LiveRequest] = {}
        self._by_core_id: dict[str, LiveRequest] = {}
        """A request with several completions stands here under the name of each that goes on."""

    def __len__(self) -> int:
        return len(self._by_request_id)

    def __repr__(self) -> str:
        return f"<OutputProcessor {len(self)} requests>"

    def core_ids(self, request_id: str) -> tuple[str, ...] | None:
        """Under which names the core knows a live request; None for one that is not live."""
        progress = self._by_request_id.get(request_id)
        return None if progress is None else tuple(progress.core_ids)

    def add(self, progress: LiveRequest) -> None:
        """Raises InvalidRequestError when a live request has the same `request_id`."""
        if progress.request_id in self._by_request_id:
            message = f"request_id {progress.request_id!r} is in use by a request that has not finished; choose another"
            raise InvalidRequestError(message, param="request_id")
        self._by_request_id[progress.request_id] = progress
        for core_id in progress.core_ids:
            self._by_core_id[core_id] = progress

    def apply(self, deltas: Sequence[TokenDelta], *, now: float) -> list[str]:
        """Hand one step's deltas out. Returns the core ids of requests that ended here while the core goes on."""
        to_abort: list[str] = []
        for delta in deltas:
            progress = self._by_core_id.get(delta.request_id)
            if progress is None:  # its consumer left while the step ran
                continue
            if delta.is_running is not None:
                self._note_moved(delta.request_id, delta.is_running)
                continue
            part = progress.part(delta.request_id)
            last_token = part.times.last_token
            self._apply_one(part, delta, now=now)
            if self._on_tokens is not None and delta.new_token_ids:
                self._on_tokens(part, len(delta.new_token_ids), last_token, now)
            if part.is_finished:
                del self._by_core_id[delta.request_id]
                if delta.finish_reason is None:
                    to_abort.append(delta.request_id)
            if progress.is_finished:
                to_abort += self._leave(progress)
        return to_abort

    def abort(self, request_ids: Iterable[str], *, now: float) -> list[str]:
        """End these requests for their consumers; unknown ids are ignored. Returns the core ids to be freed."""
        names = dict.fromkeys(request_ids)  # each one once
        found = [self._by_request_id[name] for name in names if name in self._by_request_id]
        core_ids: list[str] = []
        for progress in found:
            progress.abort(now=now)
            core_ids += self._leave(progress)
        return core_ids

    def abort_all(self, *, now: float) -> list[str]:
        return self.abort(list(self._by_request_id), now=now)

    def discard(self, progress: LiveRequest) -> list[str]:
        """Forget a request whose consumer has left. The core ids to be freed; none when it had ended before."""
        if self._by_request_id.get(progress.request_id) is not progress:
            return []
        return self._leave(progress)

    def fail_all(self, make_error: Callable[[], HeadraceError], *, now: float) -> None:
        """End every request with an error of its own: an exception raised in several tasks mixes their tracebacks."""
        for progress in list(self._by_request_id.values()):
            progress.fail(make_error(), now=now)
            self._leave(progress)

    def _note_moved(self, core_id: str, is_running: bool) -> None:
        if self._on_moved is not None:
            self._on_moved(core_id, is_running)

    def _apply_one(self, progress: LiveRequest, delta: TokenDelta, *, now: float) -> None:
        try:
            progress.apply(delta, now=now)
        except Exception as error:  # noqa: BLE001 - logged; one request's text must not end the others'
            _LOG.exception("cannot make the text of request %r", progress.request_id)
            failure = EngineGenerateError(f"cannot make the text of request {progress.request_id!r}: {error}")
            failure.__cause__ = error
            progress.fail(failure, now=now)

    def _leave(self, progress: LiveRequest) -> list[str]:
        """Take it out of the tables; the core ids under which it was live still."""
        del self._by_request_id[progress.request_id]
        live = [core_id for core_id in progress.core_ids if self._by_core_id.pop(core_id, None) is not None]
        self._on_left(progress)
        return live
