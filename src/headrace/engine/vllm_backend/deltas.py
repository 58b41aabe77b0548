"""What vLLM gives out, as the deltas that our front end takes. Pure."""

from collections.abc import Mapping

import numpy as np

from headrace.engine.vllm_backend.library import VllmCompletion, VllmLogprob, VllmOutput, VllmPoolingOutput
from headrace.engine.wire.messages import TokenDelta, TokenLogprobs

_FINISH_REASONS = {"stop": "stop", "length": "length", "abort": "abort", "repetition": "stop"}


def answer_delta(request_id: str, output: VllmOutput, *, is_first: bool) -> TokenDelta:
    """One output of the kind DELTA; a prompt's log probabilities are told with the first one."""
    (completion,) = output.outputs
    reason = completion.finish_reason
    return TokenDelta(
        request_id=request_id,
        new_token_ids=tuple(completion.token_ids),
        num_cached_tokens=output.num_cached_tokens or 0,
        finish_reason=None if reason is None else _FINISH_REASONS.get(reason, "error"),
        stop_reason=completion.stop_reason if isinstance(completion.stop_reason, int) else None,
        error=f"vLLM ended it with {reason!r}" if reason is not None and reason not in _FINISH_REASONS else None,
        logprobs=_answer_logprobs(completion),
        prompt_logprobs=_prompt_logprobs(output) if is_first else (),
    )


def embedding_delta(request_id: str, output: VllmPoolingOutput) -> TokenDelta:
    vector = output.outputs.data
    if hasattr(vector, "float"):  # a tensor, of a type that numpy need not know
        vector = vector.float().cpu()
    return TokenDelta(
        request_id=request_id,
        new_token_ids=(),
        num_cached_tokens=output.num_cached_tokens or 0,
        finish_reason="stop",
        embedding=np.asarray(vector, dtype=np.float32).reshape(-1).tobytes(),
    )


def failure_delta(request_id: str, error: BaseException, *, kind: str) -> TokenDelta:
    """The request's end by an error; `kind` is the class of `headrace.errors` that the caller gets."""
    return TokenDelta(
        request_id=request_id, new_token_ids=(), finish_reason="error", error=str(error) or repr(error), error_kind=kind
    )


def _answer_logprobs(completion: VllmCompletion) -> tuple[TokenLogprobs, ...]:
    if completion.logprobs is None:
        return ()
    pairs = zip(completion.token_ids, completion.logprobs, strict=False)
    return tuple(_position(token_id, entries) for token_id, entries in pairs)


def _prompt_logprobs(output: VllmOutput) -> tuple[TokenLogprobs, ...]:
    if output.prompt_logprobs is None or output.prompt_token_ids is None:
        return ()
    pairs = zip(output.prompt_token_ids, output.prompt_logprobs, strict=False)
    return tuple(_position(token_id, entries) for token_id, entries in pairs if entries is not None)


def _position(token_id: int, entries: Mapping[int, VllmLogprob]) -> TokenLogprobs:
    """The position's own token first, then the others, likeliest first."""
    others = sorted((other for other in entries if other != token_id), key=lambda other: -entries[other].logprob)
    ordered = (token_id, *others)
    return TokenLogprobs(
        token_ids=ordered,
        logprobs=tuple(float(entries[each].logprob) for each in ordered),
        rank=entries[token_id].rank or 1,
    )
