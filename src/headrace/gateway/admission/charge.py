"""What a request may use at most. Pure."""

from headrace.gateway.admission.limits import Hold
from headrace.gateway.admission.prices import Price
from headrace.gateway.identify import Call
from headrace.gateway.prompt.tokens import PromptCount

_BYTES_PER_TOKEN = 3
_TEXT_FIELDS = ("messages", "tools", "prompt", "input", "instructions", "system", "prompt_token_ids", "token_ids")
_NOTHING = Hold()


def hold_of(call: Call, prompt: PromptCount, *, price: Price | None, default_completion_tokens: int) -> Hold:
    """The most that `call` can use. Exact for the prompt where it was counted, else estimated by its bytes; a call
    that does not limit its completion counts with `default_completion_tokens`, and no call with more than fits. All of
    it is set aside at the full price."""
    traits = call.route.traits
    if traits.is_free:
        return _NOTHING
    prompt_tokens = prompt.total if prompt.total is not None else _estimate_prompt_tokens(call)
    completion_tokens = _most_completion_tokens(call, prompt, default_completion_tokens) if traits.is_generating else 0
    return Hold(
        num_tokens=prompt_tokens + completion_tokens,
        completion_tokens=completion_tokens,
        cost=0 if price is None else prompt_tokens * price.input + completion_tokens * price.output,
    )


def _most_completion_tokens(call: Call, prompt: PromptCount, default: int) -> int:
    """Of all completions of all prompts together."""
    each = call.fields.num_tokens_asked
    if each is None:
        each = default
    if (max_model_len := call.card.max_model_len) is not None:
        room = max_model_len - (prompt.longest or 0)
        if room < each:
            each = room
    if each <= 0:
        return 0
    num_each = call.fields.n
    return each * prompt.num_prompts * num_each if num_each is not None and num_each > 1 else each * prompt.num_prompts


def _estimate_prompt_tokens(call: Call) -> int:
    """More than most tokenizers make of as many bytes, so that what could not be counted is not the cheaper."""
    if call.route.traits.text_fields:
        num_bytes = sum(len(bytes(getattr(call.fields, name))) for name in _TEXT_FIELDS)
    else:
        num_bytes = len(call.request.body)
    return -(-num_bytes // _BYTES_PER_TOKEN)
