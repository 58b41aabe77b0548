"""What a request may use at most. Pure."""

import msgspec

from headrace.gateway.admission.limits import Hold
from headrace.gateway.admission.prices import Price
from headrace.gateway.identify import Call
from headrace.gateway.prompt.tokens import PromptCount

_BYTES_PER_TOKEN = 3
_TEXT_FIELDS = ("messages", "tools", "prompt", "input", "instructions", "system", "prompt_token_ids", "token_ids")


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """The most tokens that a request can use."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def hold(self, price: Price | None) -> Hold:
        """What is set aside for it: all of the prompt at the full price, all of the completion it asks for."""
        cost = 0
        if price is not None:
            cost = price.cost_of(
                prompt_tokens=self.prompt_tokens, cached_tokens=0, completion_tokens=self.completion_tokens
            )
        return Hold(num_tokens=self.prompt_tokens + self.completion_tokens, cost=cost)


def charge_of(call: Call, prompt: PromptCount, *, default_completion_tokens: int) -> Charge:
    """The most that `call` can use. Exact for the prompt where it was counted, else estimated by its bytes; a call
    that does not limit its completion counts with `default_completion_tokens`, and no call with more than fits."""
    traits = call.route.traits
    if traits.is_free:
        return Charge()
    prompt_tokens = prompt.total if prompt.total is not None else _estimate_prompt_tokens(call)
    if not traits.is_generating:
        return Charge(prompt_tokens=prompt_tokens)
    asked = call.fields.num_tokens_asked
    each = default_completion_tokens if asked is None else max(0, asked)
    if call.card.max_model_len is not None:
        each = min(each, max(0, call.card.max_model_len - (prompt.longest or 0)))
    num_completions = prompt.num_prompts * max(1, call.fields.n or 1)
    return Charge(prompt_tokens=prompt_tokens, completion_tokens=each * num_completions)


def _estimate_prompt_tokens(call: Call) -> int:
    """More than most tokenizers make of as many bytes, so that what could not be counted is not the cheaper."""
    if call.route.traits.text_fields:
        num_bytes = sum(len(bytes(getattr(call.fields, name))) for name in _TEXT_FIELDS)
    else:
        num_bytes = len(call.request.body)
    return -(-num_bytes // _BYTES_PER_TOKEN)
