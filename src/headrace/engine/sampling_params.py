"""How one request wants its tokens chosen and when they end: vLLM's field names, defaults and checks.

A value out of range is refused at construction. A field that this version does not build can be set, so that the
refusal names it, and is refused by `refuse_unbuilt` when a request is added. This module knows no model.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import msgspec

from headrace.engine.outputs import RequestOutputKind
from headrace.errors import InvalidRequestError, UnsupportedError

_MIN_TEMPERATURE = 0.01
"""Sampling temperatures below it overflow the softmax of low-precision logits; they are raised to it."""

_MAX_SEED = 2**63 - 1

Item = TypeVar("Item")

Json: TypeAlias = dict[str, str | int | float | bool | None]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling of one request. Raises InvalidRequestError, naming the field, for a value out of its range.

    `temperature=0` is greedy and switches top_p, top_k and min_p off. Instances are immutable and may be shared
    between requests; `msgspec.structs.replace` makes a changed copy.
    """

    n: int = 1
    """Completions per prompt; only 1 is built."""
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
    prompt_logprobs: int | None = None
    flat_logprobs: bool = False
    logprob_token_ids: Sequence[int] | None = None
    spaces_between_special_tokens: bool = True
    stream_interval: int | None = None
    structured_outputs: Json | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    extra_args: Json | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Json | None = None
    watermarking: Json | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_lengths()
        self._normalize_stops()
        self._normalize_temperature()
        if self.seed == -1:
            self._set(seed=None)
        if self.seed is not None:
            _check_whole("seed", self.seed, minimum=0, maximum=_MAX_SEED)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whatever form it was given in."""
        assert self.stop is None or isinstance(self.stop, tuple)
        return self.stop or ()

    def refuse_unbuilt(self) -> None:
        """Raise UnsupportedError for the first field set away from its default that this version does not build."""
        if self.n != 1:
            raise UnsupportedError(f"n={self.n} is not supported: ask for one completion per request", param="n")
        for name, default in _UNBUILT.items():
            value = getattr(self, name)
            if value != default:
                raise UnsupportedError(f"{name}={value!r} is not supported by this version; leave it out", param=name)

    def _check_numbers(self) -> None:
        _check_number("presence_penalty", self.presence_penalty, minimum=-2.0, maximum=2.0)
        _check_number("frequency_penalty", self.frequency_penalty, minimum=-2.0, maximum=2.0)
        _check_number("repetition_penalty", self.repetition_penalty, above=0.0)
        _check_number("temperature", self.temperature, minimum=0.0, maximum=2.0)
        _check_number("top_p", self.top_p, above=0.0, maximum=1.0)
        _check_number("min_p", self.min_p, minimum=0.0, maximum=1.0)
        _check_whole("top_k", self.top_k, minimum=-1)
        _check_whole("n", self.n, minimum=1)

    def _check_lengths(self) -> None:
        _check_whole("min_tokens", self.min_tokens, minimum=0)
        if self.max_tokens is None:
            return
        _check_whole("max_tokens", self.max_tokens, minimum=1)
        if self.min_tokens > self.max_tokens:
            message = f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}"
            raise InvalidRequestError(message, param="min_tokens")

    def _normalize_stops(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else _as_tuple("stop", self.stop)
        if any(not isinstance(text, str) or not text for text in stop):
            raise InvalidRequestError(f"stop must hold non-empty strings, got {self.stop!r}", param="stop")
        if stop and not self.detokenize:
            raise InvalidRequestError("stop needs detokenize=True: stop strings are found in the text", param="stop")
        stop_token_ids = _as_tuple("stop_token_ids", self.stop_token_ids)
        for token_id in stop_token_ids:
            _check_whole("stop_token_ids", token_id, minimum=0, maximum=2**32 - 1)
        self._set(stop=stop, stop_token_ids=stop_token_ids)

    def _normalize_temperature(self) -> None:
        if self.is_greedy:
            self._set(top_p=1.0, top_k=0, min_p=0.0)
        elif self.temperature < _MIN_TEMPERATURE:
            self._set(temperature=_MIN_TEMPERATURE)
        if self.top_k == -1:
            self._set(top_k=0)

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            msgspec.structs.force_setattr(self, name, value)


_FIRST_UNBUILT = SamplingParams.__struct_fields__.index("logprobs")

_UNBUILT: dict[str, object] = {
    field.name: field.default for field in msgspec.structs.fields(SamplingParams)[_FIRST_UNBUILT:]
}


def _as_tuple(name: str, value: Sequence[Item] | None) -> tuple[Item, ...]:
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidRequestError(f"{name} must be a list, got {value!r}", param=name)
    return tuple(value)


def _check_number(
    name: str, value: float, *, minimum: float | None = None, above: float | None = None, maximum: float | None = None
) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or _out_of_range(value, minimum=minimum, above=above, maximum=maximum):
        wanted = _describe_range("a number", minimum=minimum, above=above, maximum=maximum)
        raise InvalidRequestError(f"{name} must be {wanted}, got {value!r}", param=name)


def _check_whole(name: str, value: int, *, minimum: int, maximum: int | None = None) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or _out_of_range(value, minimum=minimum, maximum=maximum):
        wanted = _describe_range("a whole number", minimum=minimum, maximum=maximum)
        raise InvalidRequestError(f"{name} must be {wanted}, got {value!r}", param=name)


def _out_of_range(
    value: float, *, minimum: float | None = None, above: float | None = None, maximum: float | None = None
) -> bool:
    return (
        (minimum is not None and value < minimum)
        or (above is not None and value <= above)
        or (maximum is not None and value > maximum)
    )


def _describe_range(
    kind: str, *, minimum: float | None = None, above: float | None = None, maximum: float | None = None
) -> str:
    bounds = []
    if minimum is not None:
        bounds.append(f"at least {minimum}")
    if above is not None:
        bounds.append(f"above {above}")
    if maximum is not None:
        bounds.append(f"at most {maximum}")
    return f"{kind}, {' and '.join(bounds)}"
