"""Counts what one HTTP request took, for its `usage`; what /metrics shows is counted by the engine."""

from headrace.engine.outputs import RequestOutput
from headrace.openai.schema.usage import PromptTokensDetails, Usage


class Tally:
    """Tokens of all prompts of one request; fed with every output."""

    def __init__(self, *, num_generations: int) -> None:
        self._num_generations = num_generations
        self._begun: set[int] = set()
        self._num_finished = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0

    def add(self, index: int, output: RequestOutput) -> None:
        """Count an output of the prompt at `index`; each holds only what is new, or everything at once."""
        if index not in self._begun:
            self._begun.add(index)
            self._prompt_tokens += len(output.prompt_token_ids)
            self._cached_tokens += output.num_cached_tokens
        self._completion_tokens += sum(len(completion.token_ids) for completion in output.outputs)
        self._num_finished += output.finished

    @property
    def is_complete(self) -> bool:
        """Whether every prompt has finished."""
        return self._num_finished == self._num_generations

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=self._prompt_tokens + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self._cached_tokens),
        )
