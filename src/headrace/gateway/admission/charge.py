"""What a request may use at most. Pure."""

from headrace.gateway.admission.limits import Hold
from headrace.gateway.admission.prices import Price
from headrace.gateway.identify import Call
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.routes import Route

_BYTES_PER_TOKEN = 3
_MAX_MEDIUM_BYTES = 16_384 * _BYTES_PER_TOKEN
"""As much of a picture or a sound counts, about what engines make of a large one, whatever its file's size."""
_MEDIA_MARKS = (b";base64,", b'"data"')
"""Before what is written in base64: in a URL, and in fields of OpenAI's sounds and Anthropic's pictures."""
_TEXT_FIELDS = ("messages", "tools", "prompt", "input", "instructions", "system")
_ID_FIELDS = ("prompt_token_ids", "token_ids", "input_ids", "kv_transfer_params")
_NOTHING = Hold()


def hold_of(call: Call, prompt: PromptCount, *, price: Price | None, default_completion_tokens: int) -> Hold:
    """The most that `call` can use. Exact for the prompt where it was counted, else estimated by its bytes; a call
    that does not limit its completion counts with `default_completion_tokens`, and no call with more than fits. All of
    it is set aside at the full price."""
    traits = call.route.traits
    if traits.is_free:
        return _NOTHING
    prompt_tokens = _most_prompt_tokens(call, prompt)
    completion_tokens = _most_completion_tokens(call, prompt, default_completion_tokens) if traits.is_generating else 0
    return Hold(
        num_tokens=prompt_tokens + completion_tokens,
        completion_tokens=completion_tokens,
        cost=0 if price is None else prompt_tokens * price.input + completion_tokens * price.output,
    )


def _most_prompt_tokens(call: Call, prompt: PromptCount) -> int:
    """The messages of a chat that brings ids beside them are the prompt for an engine that does not read those."""
    if prompt.total is None:
        return _estimate_prompt_tokens(call, (*_TEXT_FIELDS, *_ID_FIELDS))
    if call.fields.prompt_token_ids and call.route is Route.CHAT:
        return max(prompt.total, _estimate_prompt_tokens(call, _TEXT_FIELDS))
    return prompt.total


def _most_completion_tokens(call: Call, prompt: PromptCount, default: int) -> int:
    """Of all completions of all prompts together."""
    each = max(call.limits_asked, default=default)
    if (max_model_len := call.card.max_model_len) is not None:
        room = max_model_len - (prompt.longest or 0)
        if room < each:
            each = room
    if each <= 0:
        return 0
    fields = call.fields
    return each * prompt.num_prompts * max(1, fields.n or 1, fields.best_of or 1)


def _estimate_prompt_tokens(call: Call, names: tuple[str, ...]) -> int:
    """More than most tokenizers make of as many bytes, so that what could not be counted is not the cheaper."""
    if call.route.traits.text_fields:
        num_bytes = sum(_num_bytes_of(bytes(getattr(call.fields, name))) for name in names)
    else:
        num_bytes = len(call.request.body)
    return -(-num_bytes // _BYTES_PER_TOKEN)


def _num_bytes_of(raw: bytes) -> int:
    """The length of a JSON value, in which each picture and sound counts as no more than a large one has tokens."""
    if len(raw) <= _MAX_MEDIUM_BYTES:
        return len(raw)
    return len(raw) - sum(_num_bytes_beyond(raw, mark) for mark in _MEDIA_MARKS)


def _num_bytes_beyond(raw: bytes, mark: bytes) -> int:
    """What is too much in the base64 behind every `mark`; text has blanks and counts."""
    num_bytes = end = 0
    while (at := raw.find(mark, end)) >= 0:
        start = at + len(mark)
        if mark.endswith(b'"') and (start := raw.find(b'"', start) + 1) == 0:
            break
        end = raw.find(b'"', start)
        if end < 0:
            break
        if raw.find(b" ", start, end) < 0:
            num_bytes += max(0, end - start - _MAX_MEDIUM_BYTES)
    return num_bytes
