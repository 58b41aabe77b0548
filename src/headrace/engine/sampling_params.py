"""How one request wants its tokens chosen and when they end: vLLM's field names, defaults and checks.

A value out of range is refused at construction. A field that this version does not build can be set, so that the
refusal names it, and is refused by `refuse_unbuilt` when a request is added. This module knows no model.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from headrace.engine.outputs import RequestOutputKind
from headrace.engine.sampling_checks import (
    check_flag,
    check_number,
    check_whole,
    checked_bias,
    checked_stop_token_ids,
    checked_stops,
    checked_words,
    token_ids,
)
from headrace.engine.structured_outputs import StructuredOutputsParams
from headrace.errors import InvalidRequestError, UnsupportedError

_MIN_TEMPERATURE = 0.01
"""Sampling temperatures below it overflow the softmax of low-precision logits; they are raised to it."""

MAX_SEED = 2**63 - 1

MAX_COMPLETIONS = 128
"""Most completions of one prompt; each is a request of its own to the core."""

MAX_LOGPROBS = 20
"""Most tokens a position whose log probabilities are told, beside its own."""

MAX_LOGPROB_TOKEN_IDS = 128

_NUMBERS = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p")

_FLAGS = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "spaces_between_special_tokens",
)

Json: TypeAlias = dict[str, str | int | float | bool | None]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling of one request. Raises InvalidRequestError, naming the field, for a value out of its range.

    `temperature=0` is greedy and switches top_p, top_k and min_p off. Instances are immutable and may be shared
    between requests; `msgspec.structs.replace` makes a changed copy.
    """

    n: int = 1
    """Completions per prompt. With a seed, completion i draws as a request with the seed `seed + i` does."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 considers every token (-1 is accepted for it)."""
    min_p: float = 0.0
    seed: int | None = None
    """With a seed the same request draws the same tokens, alone and in any batch."""
    stop: str | Sequence[str] | None = None
    """Strings that end the text; read them from `stop_strings`."""
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """None generates until the model's context is full."""
    min_tokens: int = 0
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    logprobs: int | None = None
    """Most likely tokens to tell of at each generated position, beside the drawn one; 0 tells of that one alone.

    Log probabilities are the model's own, before any rule of this request changes them."""
    prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first. The prompt is then computed whole, cached or not."""
    logprob_token_ids: Sequence[int] | None = None
    """Tell of these tokens at each generated position, instead of the most likely ones."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these token ids; cut to -100 ... 100."""
    allowed_token_ids: Sequence[int] | None = None
    """No other token is drawn."""
    bad_words: Sequence[str] | None = None
    """Texts that the answer must not hold, as they are tokenized with and without a space before them."""
    structured_outputs: StructuredOutputsParams | None = None
    """What the answer's text must look like. The request ends, with "stop", when nothing may follow it."""
    guided_decoding: StructuredOutputsParams | None = None
    """vLLM's older name of `structured_outputs`, which it becomes."""
    spaces_between_special_tokens: bool = True
    """False joins special tokens that follow each other, where the tokenizer writes spaces between tokens."""
    skip_reading_prefix_cache: bool | None = None
    """Compute the prompt whole, whatever is cached of it; by default only for `prompt_logprobs`."""
    stream_interval: int | None = None
    """Tokens from one output to the next, but for the first and the last; 1 by default."""

    flat_logprobs: bool = False
    extra_args: Json | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Json | None = None
    watermarking: Json | None = None

    def __post_init__(self) -> None:
        self._check_kinds()
        self._check_numbers()
        self._check_lengths()
        self._normalize_stops()
        self._normalize_temperature()
        self._check_logprobs()
        self._normalize_token_rules()
        self._normalize_structure()
        if self.seed == -1:
            self._set(seed=None)
        if self.seed is not None:
            check_whole("seed", self.seed, minimum=0, maximum=MAX_SEED)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whatever form it was given in."""
        assert self.stop is None or isinstance(self.stop, tuple)
        return self.stop or ()

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether cached tokens of the prompt need not be computed."""
        return self.prompt_logprobs is None and not self.skip_reading_prefix_cache

    @property
    def wants_logprobs(self) -> bool:
        """Whether anything is to be told of the generated positions."""
        return self.logprobs is not None or bool(self.logprob_token_ids)

    def refuse_unbuilt(self) -> None:
        """Raise UnsupportedError for the first field set away from its default that this version does not build."""
        for name, reason in _UNBUILT.items():
            value, default = getattr(self, name), False if name == "flat_logprobs" else None
            if value is not default:
                raise UnsupportedError(f"{name}={value!r} is not supported by this version: {reason}", param=name)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidRequestError for a token id that a model of `vocab_size` tokens does not have."""
        for name in ("logit_bias", "allowed_token_ids", "logprob_token_ids"):
            for token_id in getattr(self, name) or ():
                if token_id >= vocab_size:
                    message = f"{name} holds {token_id}, which is not in the vocabulary of {vocab_size}"
                    raise InvalidRequestError(message, param=name)

    def _check_kinds(self) -> None:
        """What stands for something else, as 1 does for True, would be read by the core as an error, or not at all."""
        for name in _FLAGS:
            check_flag(name, getattr(self, name))
        if self.skip_reading_prefix_cache is not None:
            check_flag("skip_reading_prefix_cache", self.skip_reading_prefix_cache)
        kind: object = self.output_kind
        if not isinstance(kind, RequestOutputKind):
            message = f"output_kind must be a RequestOutputKind, got {kind!r:.80}"
            raise InvalidRequestError(message, param="output_kind")

    def _check_numbers(self) -> None:
        check_number("presence_penalty", self.presence_penalty, minimum=-2.0, maximum=2.0)
        check_number("frequency_penalty", self.frequency_penalty, minimum=-2.0, maximum=2.0)
        check_number("repetition_penalty", self.repetition_penalty, above=0.0)
        check_number("temperature", self.temperature, minimum=0.0, maximum=2.0)
        check_number("top_p", self.top_p, above=0.0, maximum=1.0)
        check_number("min_p", self.min_p, minimum=0.0, maximum=1.0)
        for name in _NUMBERS:
            if type(value := getattr(self, name)) is not float:  # numpy's are floats too, but not to the wire
                self._set(**{name: float(value)})
        check_whole("top_k", self.top_k, minimum=-1)
        check_whole("n", self.n, minimum=1, maximum=MAX_COMPLETIONS)
        if self.stream_interval is not None:
            check_whole("stream_interval", self.stream_interval, minimum=1)

    def _check_lengths(self) -> None:
        check_whole("min_tokens", self.min_tokens, minimum=0)
        if self.max_tokens is None:
            return
        check_whole("max_tokens", self.max_tokens, minimum=1)
        if self.min_tokens > self.max_tokens:
            message = f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}"
            raise InvalidRequestError(message, param="min_tokens")

    def _normalize_stops(self) -> None:
        stop = checked_stops(self.stop)
        if stop and not self.detokenize:
            raise InvalidRequestError("stop needs detokenize=True: stop strings are found in the text", param="stop")
        self._set(stop=stop, stop_token_ids=checked_stop_token_ids(self.stop_token_ids))

    def _normalize_temperature(self) -> None:
        if self.is_greedy:
            self._set(top_p=1.0, top_k=0, min_p=0.0)
        elif self.temperature < _MIN_TEMPERATURE:
            self._set(temperature=_MIN_TEMPERATURE)
        if self.top_k == -1:
            self._set(top_k=0)

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), minimum=0, maximum=MAX_LOGPROBS)
        if self.prompt_logprobs is not None and self.skip_reading_prefix_cache is False:
            message = "prompt_logprobs needs the whole prompt computed; leave skip_reading_prefix_cache out"
            raise InvalidRequestError(message, param="skip_reading_prefix_cache")
        if self.logprob_token_ids is not None:
            wanted = token_ids("logprob_token_ids", self.logprob_token_ids)
            if len(wanted) > MAX_LOGPROB_TOKEN_IDS:
                message = f"logprob_token_ids holds {len(wanted)} ids, more than {MAX_LOGPROB_TOKEN_IDS}"
                raise InvalidRequestError(message, param="logprob_token_ids")
            self._set(logprob_token_ids=wanted)

    def _normalize_token_rules(self) -> None:
        if self.logit_bias is not None:
            self._set(logit_bias=checked_bias(self.logit_bias))
        if self.allowed_token_ids is not None:
            allowed = token_ids("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                message = "allowed_token_ids is empty, which allows no token at all; leave it out to allow every one"
                raise InvalidRequestError(message, param="allowed_token_ids")
            self._set(allowed_token_ids=allowed)
        if self.bad_words is not None:
            self._set(bad_words=checked_words(self.bad_words))

    def _normalize_structure(self) -> None:
        if self.guided_decoding is not None:
            if self.structured_outputs is not None:
                message = "give structured_outputs or guided_decoding, its older name, not both"
                raise InvalidRequestError(message, param="guided_decoding")
            self._set(structured_outputs=self.guided_decoding, guided_decoding=None)
        wanted: object = self.structured_outputs
        if wanted is not None and not isinstance(wanted, StructuredOutputsParams):
            message = f"structured_outputs must be StructuredOutputsParams, got {wanted!r:.80}"
            raise InvalidRequestError(message, param="structured_outputs")

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            msgspec.structs.force_setattr(self, name, value)


_UNBUILT = {
    "flat_logprobs": "log probabilities come as a dict for each position; leave it out",
    "extra_args": "no plug-in here reads them; leave it out",
    "thinking_token_budget": "the engine does not know where a model's thinking ends; use max_tokens or stop",
    "repetition_detection": "use repetition_penalty or frequency_penalty against loops",
    "watermarking": "answers are not watermarked; leave it out",
}
"""Why each field that is not built is refused."""
