"""Where requests wait in the core for their grammar, so that one that takes long to compile holds up nobody else.

Compiles in a thread of its own, each grammar once; the latest ones are kept. Everything else here belongs to the core's
thread. Knows no schedule.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from headrace.engine.guided.grammar import CompileGrammar, Grammar, GrammarMatcher
from headrace.engine.structured_outputs import StructuredOutputsParams
from headrace.engine.wire.messages import AddRequest
from headrace.errors import EngineGenerateError, HeadraceError, OverloadedError

_MAX_GRAMMARS = 64
"""Compiled grammars that are kept; each is some hundred kilobytes, a large one megabytes."""

_MAX_WAITING = 1024
_COMPILE_TIMEOUT_S = 30.0


@dataclass(slots=True)
class _Compiling:
    """One grammar on its way, and who waits for it."""

    future: Future[Grammar]
    deadline_s: float
    requests: list[AddRequest] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Settled:
    """A request that waits no more: it has its matcher, or else the error that it ends with."""

    request: AddRequest
    matcher: GrammarMatcher | None = None
    error: HeadraceError | None = None


class GrammarDesk:
    """`add` a request, `collect` it when its grammar is there."""

    def __init__(
        self,
        compile_grammar: CompileGrammar,
        *,
        timeout_s: float = _COMPILE_TIMEOUT_S,
        max_grammars: int = _MAX_GRAMMARS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compile = compile_grammar
        self._timeout_s = timeout_s
        self._max_grammars = max_grammars
        self._clock = clock
        self._grammars: OrderedDict[StructuredOutputsParams, Grammar] = OrderedDict()
        self._compiling: dict[StructuredOutputsParams, _Compiling] = {}
        self._settled: list[Settled] = []
        self._has_news = threading.Event()
        self._thread: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        """Requests here."""
        return len(self._settled) + sum(len(compiling.requests) for compiling in self._compiling.values())

    def __repr__(self) -> str:
        return f"GrammarDesk({len(self)} requests wait, {len(self._grammars)} grammars)"

    def add(self, request: AddRequest) -> None:
        """Keep a request with `structured_outputs` until it is collected or aborted.

        Raises OverloadedError when too many wait already.
        """
        wanted = request.sampling_params.structured_outputs
        assert wanted is not None
        if wanted in self._grammars:
            self._grammars.move_to_end(wanted)
            self._settled.append(Settled(request, self._grammars[wanted].start()))
            return
        if len(self) >= _MAX_WAITING:
            raise OverloadedError(f"{_MAX_WAITING} requests wait for their grammars to be compiled; try again later")
        if wanted not in self._compiling:
            self._compiling[wanted] = _Compiling(self._submit(wanted), self._clock() + self._timeout_s)
        self._compiling[wanted].requests.append(request)

    def collect(self) -> list[Settled]:
        """Everyone whose wait is over."""
        self._has_news.clear()
        for wanted in [wanted for wanted, compiling in self._compiling.items() if self._is_over(compiling)]:
            self._settle(wanted, self._compiling.pop(wanted))
        settled, self._settled = self._settled, []
        return settled

    def abort(self, request_ids: Iterable[str]) -> list[AddRequest]:
        """Forget these requests; those of them that were here."""
        names = set(request_ids)
        found = [settled.request for settled in self._settled if settled.request.request_id in names]
        self._settled = [settled for settled in self._settled if settled.request.request_id not in names]
        for compiling in self._compiling.values():
            found += [request for request in compiling.requests if request.request_id in names]
            compiling.requests = [request for request in compiling.requests if request.request_id not in names]
        return found

    def wait(self, *, timeout_s: float) -> None:
        """Returns when there may be something to collect, or after `timeout_s`."""
        if not self._settled:
            self._has_news.wait(timeout_s)

    def close(self) -> None:
        """Compile nothing more. What is being compiled ends by itself, in a second or so. Idempotent."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, wanted: StructuredOutputsParams) -> Future[Grammar]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-grammars")
        future = self._thread.submit(self._compile, wanted)
        future.add_done_callback(lambda _future: self._has_news.set())
        return future

    def _is_over(self, compiling: _Compiling) -> bool:
        return compiling.future.done() or self._clock() >= compiling.deadline_s

    def _settle(self, wanted: StructuredOutputsParams, compiling: _Compiling) -> None:
        error = self._error_of(wanted, compiling.future)
        if error is not None:
            self._settled += [Settled(request, error=error) for request in compiling.requests]
            return
        grammar = compiling.future.result()
        self._grammars[wanted] = grammar
        if len(self._grammars) > self._max_grammars:
            self._grammars.popitem(last=False)
        self._settled += [Settled(request, grammar.start()) for request in compiling.requests]

    def _error_of(self, wanted: StructuredOutputsParams, future: Future[Grammar]) -> HeadraceError | None:
        if not future.done():
            future.cancel()
            message = f"{wanted.param} was not compiled within {self._timeout_s:g} s; make it simpler"
            return EngineGenerateError(message)
        error = future.exception()
        if error is None or isinstance(error, HeadraceError):
            return error
        return EngineGenerateError(f"compiling {wanted.param} failed: {type(error).__name__}: {error}")
