"""A request's sampling fields as the engine's SamplingParams. Pure."""

import msgspec

from headrace.engine.outputs import RequestOutputKind
from headrace.engine.sampling_params import SamplingParams
from headrace.openai.schema.generation import GenerationRequest
from headrace.server.structured import structured_outputs

_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "spaces_between_special_tokens",
    "n",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "logprob_token_ids",
    "stream_interval",
)
"""They carry the same names on the wire and in the engine."""


def sampling_params(
    request: GenerationRequest,
    *,
    max_tokens: int | None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    defaults: SamplingParams,
) -> SamplingParams:
    """`defaults` with the fields that the request sets. Raises InvalidRequestError for a value out of its range."""
    given = {name: value for name in _FIELDS if (value := getattr(request, name)) is not None}
    output_kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    given["max_tokens"] = max_tokens if max_tokens is not None else defaults.max_tokens
    return msgspec.structs.replace(
        defaults,
        **given,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structured_outputs=structured_outputs(request),
        output_kind=output_kind,
    )
