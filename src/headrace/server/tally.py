"""Counts what one HTTP request took, for its `usage` and for /metrics. Reads no clock: `now` comes in, in seconds."""

from headrace.engine.outputs import RequestOutput
from headrace.openai.schema.usage import PromptTokensDetails, Usage
from headrace.server.metrics import ServerMetrics


class Tally:
    """Tokens of all prompts of one request; fed with every output, closed once whichever way the request ended."""

    def __init__(self, metrics: ServerMetrics, *, num_generations: int, arrived_at: float) -> None:
        self._metrics = metrics
        self._arrived_at = arrived_at
        self._num_generations = num_generations
        self._begun: set[int] = set()
        self._num_finished = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0

    def add(self, index: int, output: RequestOutput, *, now: float) -> None:
        """Count an output of the prompt at `index`; each holds only what is new, or everything at once."""
        if index not in self._begun:
            self._begun.add(index)
            self._begin(output, now=now)
        num_new = len(output.outputs[0].token_ids)
        self._completion_tokens += num_new
        self._metrics.generation_tokens.inc(num_new)
        if output.finished:
            self._num_finished += 1
            self._metrics.request_latency.observe(now - self._arrived_at)
            self._metrics.count_finished(output.outputs[0].finish_reason or "stop")

    def _begin(self, output: RequestOutput, *, now: float) -> None:
        num_prompt = len(output.prompt_token_ids)
        num_cached = output.num_cached_tokens
        self._prompt_tokens += num_prompt
        self._cached_tokens += num_cached
        self._metrics.prompt_tokens.inc(num_prompt)
        self._metrics.time_to_first_token.observe(self._time_to_first_token(output, now=now))

    def _time_to_first_token(self, output: RequestOutput, *, now: float) -> float:
        """An output that comes only when all is done says itself how long its first token took."""
        times = output.metrics
        if not output.finished or times.first_token_time is None:
            return now - self._arrived_at
        return times.first_token_time - times.arrival_time

    @property
    def is_complete(self) -> bool:
        """Whether every prompt has finished."""
        return self._num_finished == self._num_generations

    def close(self) -> None:
        """Count what was begun and never finished as aborted. Call it once, when the request has ended."""
        for _ in range(len(self._begun) - self._num_finished):
            self._metrics.count_finished("abort")

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=self._prompt_tokens + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self._cached_tokens),
        )
