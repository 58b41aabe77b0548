"""What a request may use at most. Pure."""

from dataclasses import dataclass

from headrace.gateway.admission.limits import Hold
from headrace.gateway.admission.prices import Price
from headrace.gateway.identify import Call, CallFields, Route
from headrace.gateway.prompt_tokens import PromptCount

_BYTES_PER_TOKEN = 3
_FREE_ROUTES = frozenset({Route.TOKENIZE, Route.DETOKENIZE})
_TEXT_FIELDS = ("messages", "tools", "prompt", "input", "prompt_token_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
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
    if call.route in _FREE_ROUTES:
        return Charge()
    prompt_tokens = prompt.total if prompt.total is not None else _estimate_prompt_tokens(call.fields)
    if call.route is Route.EMBEDDINGS:
        return Charge(prompt_tokens=prompt_tokens)
    asked = call.fields.num_tokens_asked
    each = default_completion_tokens if asked is None else max(0, asked)
    if call.card.max_model_len is not None:
        each = min(each, max(0, call.card.max_model_len - (prompt.longest or 0)))
    num_completions = prompt.num_prompts * max(1, call.fields.n or 1)
    return Charge(prompt_tokens=prompt_tokens, completion_tokens=each * num_completions)


def _estimate_prompt_tokens(fields: CallFields) -> int:
    """More than most tokenizers make of as many bytes, so that what could not be counted is not the cheaper."""
    num_bytes = sum(len(bytes(getattr(fields, name))) for name in _TEXT_FIELDS)
    return -(-num_bytes // _BYTES_PER_TOKEN)
