"""When things happened to one request, on the front end's clock: seconds since the epoch. Pure."""

from dataclasses import dataclass

from headrace.engine.outputs import RequestMetrics


@dataclass(slots=True)
class RequestTimes:
    """Filled in as the request goes on; `queue_s` and `prefill_s` are the core's word, None until it has spoken."""

    arrival: float
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None

    def note_tokens(self, now: float) -> None:
        if self.first_token is None:
            self.first_token = now
        self.last_token = now

    def note_core(self, queue_s: float | None, prefill_s: float | None) -> None:
        """What the first delta of a request tells of the core; later ones tell nothing."""
        if queue_s is not None:
            self.queue_s = queue_s
        if prefill_s is not None:
            self.prefill_s = prefill_s

    def metrics(self, *, num_generation_tokens: int) -> RequestMetrics:
        return RequestMetrics(
            arrival_time=self.arrival,
            first_token_time=self.first_token,
            last_token_time=self.last_token,
            finished_time=self.finished,
            num_generation_tokens=num_generation_tokens,
        )
