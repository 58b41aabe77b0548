"""Turns what a caller asks for into what the core is asked for: token ids that fit, resolved limits. Refuses the rest.

Tokenization is the service's, off the event loop. This module knows neither the core nor the other requests.
"""

from collections.abc import Iterator, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from typing import TypeAlias, cast

import msgspec
import numpy as np

from headrace.engine.config import EngineConfig
from headrace.engine.front.bad_words import Words, encode_bad_words
from headrace.engine.front.detokenize import TokenTexts, open_decoder
from headrace.engine.lora_request import LoRARequest
from headrace.engine.model_config import SamplingDefaults
from headrace.engine.outputs import TextPrompt, TokensPrompt
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_checks import check_number
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.wire.messages import AddRequest
from headrace.errors import ContextLengthError, InvalidRequestError, UnsupportedError
from headrace.tokenization import TokenizationService
from headrace.tokenization.tokenizer import IncrementalDecoder, TokenIds, Tokenizer, pack_token_ids

Prompt: TypeAlias = str | TextPrompt | TokensPrompt | Sequence[int] | TokenIds
"""Text, or token ids with or without their text."""

_MAX_REQUEST_ID_CHARS = 256
_MAX_CACHE_SALT_CHARS = 1024
_PROMPT_FIELDS = {"prompt", "prompt_token_ids", "cache_salt"}
_MAX_PRIORITY = 2**31 - 1
_SAMPLING_DEFAULTS = tuple(field.name for field in fields(SamplingDefaults))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrompt:
    """A prompt that the model can answer."""

    text: str | None
    """None when it came as token ids alone."""
    token_ids: TokenIds
    cache_salt: str | None = None


class InputProcessor:
    """Checks and prepares requests for one model. Keeps no state of a request."""

    def __init__(self, config: EngineConfig, *, tokenization: TokenizationService) -> None:
        self._model = config.model
        self._lora = config.lora
        self._policy = config.scheduler.policy
        self._tokenization = tokenization
        self._token_texts: TokenTexts | None = None

    def __repr__(self) -> str:
        return f"<InputProcessor {self._model.served_model_name}>"

    def check(
        self,
        request_id: str,
        params: SamplingParams | PoolingParams,
        *,
        priority: int,
        lora: LoRARequest | None = None,
        arrival_time: float | None = None,
    ) -> None:
        """Raises InvalidRequestError for what can be refused before the prompt is tokenized."""
        if not isinstance(request_id, str) or not 0 < len(request_id) <= _MAX_REQUEST_ID_CHARS:
            message = f"request_id must be a string of 1 to {_MAX_REQUEST_ID_CHARS} characters, got {request_id!r:.80}"
            raise InvalidRequestError(message, param="request_id")
        if isinstance(params, SamplingParams):
            params.refuse_unbuilt()
            if not self._model.can_generate:
                message = f"the model {self._model.served_model_name!r} only embeds; use encode or /v1/embeddings"
                raise InvalidRequestError(message, param="model")
            params.check_vocabulary(self._model.vocab_size)
        else:
            _check_is(PoolingParams, params, name="params", wanted="SamplingParams or PoolingParams")
            params.for_model(default_pooling=self._model.default_pooling, hidden_size=self._model.hidden_size)
        if arrival_time is not None:
            check_number("arrival_time", arrival_time)
        if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > _MAX_PRIORITY:
            raise InvalidRequestError(f"priority must be a whole number of 32 bits, got {priority!r}", param="priority")
        if priority != 0 and self._policy != "priority":
            message = f"priority={priority} needs an engine with scheduling_policy='priority'; this one has 'fcfs'"
            raise InvalidRequestError(message, param="priority")
        self.check_lora(lora)

    def check_lora(self, lora: LoRARequest | None) -> None:
        """Raises InvalidRequestError for an adapter where they are off, and for what is none."""
        if lora is not None:
            _check_is(LoRARequest, lora, name="lora_request", wanted="a LoRARequest")
        if lora is not None and self._lora is None:
            message = f"the adapter {lora.lora_name!r} needs an engine with enable_lora=True; this one has it off"
            raise InvalidRequestError(message, param="lora_request")

    async def prepare(
        self,
        prompt: Prompt | None,
        *,
        prompt_token_ids: Sequence[int] | TokenIds | None = None,
        has_answer: bool = True,
    ) -> PreparedPrompt:
        """Tokenize what is text, check what is ids. With `prompt_token_ids` a `prompt` is only their text.

        Raises InvalidRequestError for an empty prompt or ids that are none, ContextLengthError for a prompt that does
        not fit the context, or leaves no room where there `has_answer`.
        """
        cache_salt = _cache_salt(prompt)
        text, given_ids = _split(prompt, prompt_token_ids)
        if given_ids is not None:
            if not isinstance(given_ids, Sized) or isinstance(given_ids, AbstractSet | Mapping):
                raise _not_ids()
            self._check_length(len(given_ids), has_answer=has_answer)  # first: converting is bounded then
            token_ids = check_token_ids(given_ids, vocab_size=self._model.vocab_size)
        elif text:
            encoded = await self._tokenization.encode(text, model=self._model.served_model_name)
            token_ids = encoded.token_ids
            self._check_length(len(token_ids), has_answer=has_answer)
        else:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        return PreparedPrompt(text=text, token_ids=token_ids, cache_salt=cache_salt)

    def core_request(
        self,
        core_id: str,
        prompt: PreparedPrompt,
        params: SamplingParams,
        *,
        arrival_time: float,
        priority: int,
        lora: LoRARequest | None = None,
        bad_words: Words = (),
    ) -> AddRequest:
        """What the core is told. `max_tokens` is cut to what the context leaves, the answer then ends with "length"."""
        room = self._model.max_model_len - len(prompt.token_ids)
        eos_token_ids = () if params.ignore_eos else tuple(self.eos_token_ids())
        return AddRequest(
            request_id=core_id,
            prompt=prompt.token_ids.tobytes(),
            sampling_params=params,
            max_tokens=room if params.max_tokens is None else min(room, params.max_tokens),
            stop_token_ids=(*(params.stop_token_ids or ()), *eos_token_ids),
            arrival_time=arrival_time,
            priority=priority,
            lora=lora,
            bad_words=bad_words,
            cache_salt=prompt.cache_salt,
        )

    def embedding_request(
        self,
        core_id: str,
        prompt: PreparedPrompt,
        params: PoolingParams,
        *,
        arrival_time: float,
        priority: int,
        lora: LoRARequest | None = None,
    ) -> AddRequest:
        """What the core is told of a prompt that is to become a vector."""
        return AddRequest(
            request_id=core_id,
            prompt=prompt.token_ids.tobytes(),
            sampling_params=SamplingParams(),
            max_tokens=1,
            stop_token_ids=(),
            arrival_time=arrival_time,
            priority=priority,
            pooling_params=params,
            lora=lora,
            cache_salt=prompt.cache_salt,
        )

    def default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json recommends, over our own defaults; `max_tokens` is the rest of the
        context."""
        defaults = self._model.sampling_defaults
        named = {name: getattr(defaults, name) for name in _SAMPLING_DEFAULTS}
        given = {name: value for name, value in named.items() if value is not None}
        return msgspec.structs.replace(SamplingParams(max_tokens=None), **given)

    def decoder(self, params: SamplingParams, prompt_token_ids: TokenIds) -> IncrementalDecoder | None:
        """A fresh decoder for one answer to that prompt; None when its text is not wanted."""
        return open_decoder(self._tokenizer(), params, prompt_token_ids)

    def token_text(self, token_id: int) -> str:
        """What the token is by itself."""
        if self._token_texts is None:
            self._token_texts = TokenTexts(self._tokenizer())
        return self._token_texts(token_id)

    async def bad_words(self, params: SamplingParams) -> Words:
        """The token ids of `params.bad_words`."""
        if not params.bad_words:
            return ()
        return await encode_bad_words(params.bad_words, encode=self._encode_word)

    async def _encode_word(self, text: str) -> Sequence[int]:
        model = self._model.served_model_name
        encoded = await self._tokenization.encode(text, model=model, add_special_tokens=False)
        token_ids: list[int] = encoded.token_ids.tolist()
        return token_ids

    def eos_token_ids(self) -> frozenset[int]:
        """The ids that end a sequence: the model's, and the tokenizer's where that names another one."""
        of_tokenizer = self._tokenizer().eos_token_id
        return frozenset(self._model.eos_token_ids) | (frozenset() if of_tokenizer is None else {of_tokenizer})

    def _tokenizer(self) -> Tokenizer:
        return self._tokenization.tokenizer(self._model.served_model_name)

    def _check_length(self, num_tokens: int, *, has_answer: bool) -> None:
        limit = self._model.max_model_len
        if num_tokens > limit:
            message = (
                f"This model's maximum context length is {limit} tokens. However, your prompt has {num_tokens} tokens. "
                "Please reduce the length of the prompt."
            )
            raise ContextLengthError(message, param="prompt")
        if num_tokens == limit and has_answer:
            message = (
                f"This model's maximum context length is {limit} tokens. However, your prompt has {num_tokens} tokens, "
                "which leaves none for an answer. Please reduce the length of the prompt."
            )
            raise ContextLengthError(message, param="prompt")


def _check_is(kind: type, value: object, *, name: str, wanted: str) -> None:
    if not isinstance(value, kind):
        raise InvalidRequestError(f"{name} must be {wanted}, got {value!r:.80}", param=name)


def _split(
    prompt: Prompt | None, prompt_token_ids: Sequence[int] | TokenIds | None
) -> tuple[str | None, Sequence[int] | TokenIds | None]:
    """Text and token ids of a prompt, in whichever form it was given."""
    if isinstance(prompt, Mapping):
        unknown = sorted(set(prompt) - _PROMPT_FIELDS)
        if unknown:
            raise UnsupportedError(f"a prompt with {unknown[0]!r} is not supported by this version", param=unknown[0])
        if not {"prompt", "prompt_token_ids"} & set(prompt):
            message = "a prompt given as a dict needs prompt or prompt_token_ids"
            raise InvalidRequestError(message, param="prompt_token_ids")
        given_ids = cast("Sequence[int] | TokenIds | None", prompt.get("prompt_token_ids", prompt_token_ids))
        return _split_plain(cast("Prompt | None", prompt.get("prompt")), given_ids)
    return _split_plain(prompt, prompt_token_ids)


def _split_plain(
    prompt: Prompt | None, prompt_token_ids: Sequence[int] | TokenIds | None
) -> tuple[str | None, Sequence[int] | TokenIds | None]:
    """The same for a prompt that is no dict; one that is all the same is taken for token ids, and refused as such."""
    if prompt is None or isinstance(prompt, str):
        return prompt, prompt_token_ids
    if prompt_token_ids is not None:
        raise InvalidRequestError("give token ids as prompt or as prompt_token_ids, not as both", param="prompt")
    return None, cast("Sequence[int] | TokenIds", prompt)


def _cache_salt(prompt: Prompt | None) -> str | None:
    if not isinstance(prompt, Mapping):
        return None
    salt = prompt.get("cache_salt")
    if salt is None or (isinstance(salt, str) and 0 < len(salt) <= _MAX_CACHE_SALT_CHARS):
        return salt
    message = f"cache_salt must be a string of 1 to {_MAX_CACHE_SALT_CHARS} characters, got {salt!r:.80}"
    raise InvalidRequestError(message, param="cache_salt")


def check_token_ids(token_ids: Sequence[int] | TokenIds, *, vocab_size: int) -> TokenIds:
    """`token_ids` as an array. Raises InvalidRequestError when it is empty or holds what is no id of the vocabulary."""
    if len(token_ids) == 0:
        raise InvalidRequestError("the prompt is empty: it has no token ids", param="prompt")
    if isinstance(token_ids, bytes | np.ndarray) and not _is_flat_array(token_ids):
        raise _not_ids()
    try:
        ids = token_ids if isinstance(token_ids, np.ndarray) else pack_token_ids(token_ids)
    except TypeError:
        raise _not_ids() from None
    except OverflowError:
        raise _outside(next(_outside_ids(token_ids, vocab_size)), vocab_size) from None
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise _outside(next(_outside_ids(ids, vocab_size)), vocab_size)
    return ids.astype(np.uint32, copy=False)


def _is_flat_array(token_ids: bytes | TokenIds) -> bool:
    return isinstance(token_ids, np.ndarray) and token_ids.ndim == 1 and token_ids.dtype.kind in "iu"


def _outside_ids(token_ids: Sequence[int] | TokenIds, vocab_size: int) -> Iterator[tuple[int, int]]:
    """Position and value of each id that the vocabulary does not have."""
    return ((place, int(value)) for place, value in enumerate(token_ids) if not 0 <= value < vocab_size)


def _outside(found: tuple[int, int], vocab_size: int) -> InvalidRequestError:
    position, value = found
    message = f"token id {value} at position {position} of the prompt is not in the vocabulary of {vocab_size}"
    return InvalidRequestError(message, param="prompt")


def _not_ids() -> InvalidRequestError:
    return InvalidRequestError("a prompt of token ids must be a flat list of whole numbers", param="prompt")
