"""Tells the log, the stat loggers and the tracer what happens to requests. Decides nothing."""

import logging
from collections.abc import Callable

from headrace.engine.front.input_processor import PreparedPrompt
from headrace.engine.front.live_request import LiveRequest
from headrace.engine.front.request_call import RequestCall
from headrace.engine.front.request_log import RequestLog
from headrace.engine.front.stat_loggers import StatLoggers
from headrace.engine.front.step_stats import StepTally, finished_request
from headrace.engine.front.tracing import RequestTracer
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.statistics import EngineStatistics

_LOG = logging.getLogger(__name__)


class RequestObserver:
    """One for each engine; `publish` hands on what was noted since it was called before."""

    def __init__(
        self,
        *,
        request_log: RequestLog,
        loggers: StatLoggers,
        tracer: RequestTracer | None,
        statistics: Callable[[], EngineStatistics],
    ) -> None:
        self._request_log = request_log
        self._loggers = loggers
        self._tracer = tracer
        self._statistics = statistics
        self._tally = StepTally()
        self._has_warned = False

    def __repr__(self) -> str:
        return f"<RequestObserver {self._loggers!r}>"

    def note_queued(self, call: RequestCall, prompt: PreparedPrompt, *, num_answers: int) -> None:
        """A request is about to be sent to the core."""
        self._request_log.received(call.request_id, prompt)
        if call.trace_headers and self._tracer is None and not self._has_warned:
            self._has_warned = True
            _LOG.warning("requests bring trace headers, but tracing is off; set otlp_traces_endpoint")
        self._tally.note_queued(num_answers=num_answers)

    def note_tokens(self, request: LiveRequest, num_tokens: int, last_token: float | None, now: float) -> None:
        self._tally.note_tokens(request, num_tokens, last_token, now)

    def note_end(
        self, request: LiveRequest, call: RequestCall, params: SamplingParams | PoolingParams, *, now: float
    ) -> None:
        """A request that the core was sent, or that was aborted before, has ended."""
        self._request_log.ended(request)
        finished = finished_request(request, now=now)
        self._tally.note_end(finished)
        if self._tracer is not None:
            self._tracer.record(finished, params, arrival_time=request.times.arrival, headers=call.trace_headers)

    def publish(self) -> None:
        """Once for each step of the core, and when the engine ends."""
        if self._tally.is_empty:
            return
        tally, self._tally = self._tally, StepTally()
        self._loggers.record(tally.stats(), self._statistics())
