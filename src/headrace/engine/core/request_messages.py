"""What the scheduler says of a request: to the runner when it begins to run, to the front end when a step is done."""

from headrace.engine.core.request import Request
from headrace.engine.core.step_plan import AdmittedRequest
from headrace.engine.wire.messages import TokenDelta, TokenLogprobs
from headrace.errors import EngineGenerateError


def admitted_request(request: Request) -> AdmittedRequest:
    """For the runner: a request that begins to run, or begins again."""
    return AdmittedRequest(
        request_id=request.request_id,
        token_ids=tuple(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        params=request.params,
        stop_token_ids=request.stop_token_ids,
        sampling_seed=request.sampling_seed,
        bad_words=request.bad_words,
        pooling=request.pooling,
        lora=request.lora,
    )


def delta_of(
    request: Request,
    *token_ids: int,
    finish_reason: str | None = None,
    stop_reason: int | None = None,
    embedding: bytes | None = None,
    logprobs: TokenLogprobs | None = None,
) -> TokenDelta:
    """For the front end: what a step did for the request. Its first delta carries its times and prompt logprobs."""
    is_first = (len(token_ids) > 0 and request.num_output_tokens == 1) or embedding is not None
    return TokenDelta(
        request_id=request.request_id,
        new_token_ids=token_ids,
        num_cached_tokens=request.num_cached_tokens,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        logprobs=(logprobs,) if logprobs is not None else (),
        prompt_logprobs=tuple(request.prompt_logprobs or ()) if is_first else (),
        embedding=embedding,
        queue_s=request.scheduled_s - request.queued_s if is_first else None,
        prefill_s=request.first_token_s - request.scheduled_s if is_first else None,
        num_preemptions=request.num_preemptions,
    )


def failed(
    request: Request, error: str, *, kind: str = EngineGenerateError.__name__, param: str | None = None
) -> TokenDelta:
    """For the front end: the request's end, with an error of the class `kind` in `headrace.errors`."""
    return TokenDelta(
        request_id=request.request_id,
        new_token_ids=(),
        finish_reason="error",
        error=error,
        error_kind=kind,
        error_param=param,
    )
