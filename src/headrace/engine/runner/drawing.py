"""From a step's hidden states to what its requests get of them: drawn tokens and log probabilities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace.engine.core.step_plan import ScheduledRequest
from headrace.engine.runner.logprobs import RowLogits, SampledLogprobs, prompt_logprobs
from headrace.engine.runner.sampler import sample
from headrace.engine.runner.sequence_table import SequenceTable
from headrace.engine.wire.messages import TokenLogprobs, WireError
from headrace.errors import EngineGenerateError

_FAILURE = WireError(
    kind=EngineGenerateError.__name__,
    message="allowed_token_ids, bad_words, min_tokens and structured_outputs leave no token that may come next; "
    "loosen one of them",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """By request id; see `StepResult`."""

    token_ids: Mapping[str, int] = field(default_factory=dict)
    logprobs: Mapping[str, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    failures: Mapping[str, WireError] = field(default_factory=dict)


def draw(
    requests: Sequence[ScheduledRequest], hidden: Tensor, sequences: SequenceTable, *, logits_of: RowLogits
) -> Drawn:
    """Draw for the requests that are sampled and note their tokens in `sequences`.

    `hidden` holds, request after request, the rows that `step_inputs.sampled_row` names.
    """
    foretold: dict[str, tuple[TokenLogprobs, ...]] = {}
    if any(request.num_foretold for request in requests):
        foretold, hidden = _take_foretold(requests, hidden, sequences, logits_of=logits_of)
    sampled = [request for request in requests if request.is_sampled]
    if not sampled:
        return Drawn(prompt_logprobs=foretold)
    states = [sequences[request.request_id].sampling for request in sampled]
    for request, state in zip(sampled, states, strict=True):
        state.grammar_mask = request.grammar_mask
    logits = logits_of(hidden).float()
    logprobs = SampledLogprobs(logits, states)
    token_ids = sample(logits, states)
    drawn = {r.request_id: token_id for r, token_id in zip(sampled, token_ids, strict=True) if token_id is not None}
    for request_id, token_id in drawn.items():
        sequences.append_token(request_id, token_id)
    if len(drawn) == len(sampled) and not logprobs:
        return Drawn(token_ids=drawn, prompt_logprobs=foretold)
    return Drawn(
        token_ids=drawn,
        logprobs={sampled[row].request_id: told for row, told in logprobs.told(token_ids).items()},
        prompt_logprobs=foretold,
        failures={request.request_id: _FAILURE for request in sampled if request.request_id not in drawn},
    )


def _take_foretold(
    requests: Sequence[ScheduledRequest], hidden: Tensor, sequences: SequenceTable, *, logits_of: RowLogits
) -> tuple[dict[str, tuple[TokenLogprobs, ...]], Tensor]:
    """Log probabilities of the prompts' tokens, and the rows that are left: one for each request that is sampled."""
    foretold = {}
    left = []
    start = 0
    for request in requests:
        end = start + request.num_foretold
        if request.num_foretold:
            sequence = sequences[request.request_id]
            position = request.start + request.num_tokens - request.is_sampled - request.num_foretold
            foretold[request.request_id] = prompt_logprobs(
                hidden[start:end],
                sequence.span(position + 1, request.num_foretold).tolist(),
                num_top=sequence.sampling.params.prompt_logprobs or 0,
                logits_of=logits_of,
            )
        if request.is_sampled:
            left.append(end)
        start = end + request.is_sampled
    return foretold, hidden[torch.tensor(left, dtype=torch.int64, device=hidden.device)]
