"""The log probabilities of one answer and its prompt, from the core's form to the consumer's. Pure."""

from collections.abc import Callable, Sequence

from headrace.engine.outputs import Logprob, PositionLogprobs
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.wire.messages import TokenLogprobs


class AnswerLogprobs:
    """Grows with the answer. `token_text` is how tokens are decoded; without it they have no text."""

    def __init__(self, params: SamplingParams, token_text: Callable[[int], str] | None) -> None:
        self._wants_answer = params.wants_logprobs
        self._wants_prompt = params.prompt_logprobs is not None
        self._has_ranks = not params.logprob_token_ids
        self._token_text = token_text
        self._positions: list[PositionLogprobs] = []
        self._prompt: list[PositionLogprobs | None] | None = None
        self._sum = 0.0

    def add(self, told: Sequence[TokenLogprobs]) -> None:
        for position in told:
            self._sum += position.logprobs[0]
            self._positions.append(self._to_dict(position, has_ranks=self._has_ranks))

    def add_prompt(self, told: Sequence[TokenLogprobs]) -> None:
        """All of the prompt at once, from its second token on."""
        if self._wants_prompt and self._prompt is None:
            self._prompt = [None, *(self._to_dict(position, has_ranks=True) for position in told)]

    @property
    def cumulative(self) -> float | None:
        """Of the whole answer so far; None where nothing was asked for."""
        return self._sum if self._wants_answer else None

    def take(self, *, is_delta: bool) -> list[PositionLogprobs] | None:
        """Of the positions since the last take, for a delta, or of all."""
        if not self._wants_answer:
            return None
        if not is_delta:
            return self._positions.copy()
        positions, self._positions = self._positions, []
        return positions

    def take_prompt(self, *, is_delta: bool) -> list[PositionLogprobs | None] | None:
        """For a delta once, then no more."""
        prompt = self._prompt
        if is_delta and prompt is not None:
            self._prompt, self._wants_prompt = None, False
        return prompt

    def _to_dict(self, position: TokenLogprobs, *, has_ranks: bool) -> PositionLogprobs:
        found: PositionLogprobs = {}
        for place, (token_id, logprob) in enumerate(zip(position.token_ids, position.logprobs, strict=True)):
            if token_id not in found:
                rank = position.rank if place == 0 else place if has_ranks else None
                text = self._token_text(token_id) if self._token_text is not None else None
                found[token_id] = Logprob(logprob, rank, text)
        return found
