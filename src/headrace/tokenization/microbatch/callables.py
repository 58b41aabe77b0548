"""Tokenizers as things to call from one thread: Hugging Face's, ours in the same shape, and anything else with a lock.

Every call has an outcome of its own, so that what one prompt raises never reaches another.
"""

import copy
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from headrace.aio.raisable import raisable
from headrace.errors import TokenizationError, UnsupportedError
from headrace.tokenization.fastokens_tokenizer import one_by_one
from headrace.tokenization.tokenizer import TokenIds, Tokenizer

_LOG = logging.getLogger(__name__)


class CallableTokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    def __call__(self, prompt: Any, /, **kwargs: Any) -> Any: ...

    def decode(self, token_ids: Any, /, **kwargs: Any) -> Any: ...


class EncodedPrompt(msgspec.Struct, frozen=True, eq=False):
    """What our own tokenizers give for a prompt, in the shape of a Hugging Face encoding."""

    input_ids: TokenIds

    def __getitem__(self, name: str) -> TokenIds:
        if name != "input_ids":
            raise KeyError(name)
        return self.input_ids


# Structs, because making one costs a fifth of making a frozen dataclass, and every prompt makes three.
class Returned(msgspec.Struct, frozen=True, eq=False):
    value: Any


class Raised(msgspec.Struct, frozen=True, eq=False):
    error: BaseException


Outcome: TypeAlias = Returned | Raised


def attempt(call: Callable[..., Any], argument: Any, kwargs: Mapping[str, Any]) -> Outcome:
    """What the call returns or raises. What no future can raise, such as a Rust library's panic, becomes our error."""
    try:
        return Returned(call(argument, **kwargs))
    except BaseException as error:  # noqa: BLE001 - it belongs to the one who asked, and is raised there
        return Raised(tokenizer_error(error))


def tokenizer_error(error: BaseException) -> Exception:
    """`error`, or ours for what a future cannot raise."""
    return raisable(error, kind=TokenizationError, what="the tokenizer")


class OursAsCallable:
    """One of our tokenizers in the shape of a Hugging Face one. Thread-safe, as those are."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encode_one = one_by_one(tokenizer)

    def __call__(self, prompt: str, /, *, add_special_tokens: bool = True, **unknown: object) -> EncodedPrompt:
        if unknown:
            _refuse(unknown)
        return EncodedPrompt(self._encode_one(prompt, add_special_tokens))

    def call_many(self, prompts: Sequence[str], kwargs: Mapping[str, Any]) -> list[Outcome]:
        """In one call of the library, which gives the GIL up and waits for it once; one by one where that fails."""
        if set(kwargs) <= {"add_special_tokens"}:
            try:
                encoded = self._tokenizer.encode_batch(prompts, **({"add_special_tokens": True} | dict(kwargs)))
                return [Returned(EncodedPrompt(token_ids)) for token_ids in encoded]
            except BaseException:  # noqa: BLE001 - whose prompt it was, and what it raises, shows below
                _LOG.debug("a batch failed; its prompts are encoded one by one", exc_info=True)
        return [attempt(self, prompt, kwargs) for prompt in prompts]

    def decode(
        self, token_ids: Sequence[int] | TokenIds, /, *, skip_special_tokens: bool = False, **unknown: object
    ) -> str:
        _refuse(unknown)
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)


class _OneAtATime:
    """A tokenizer that nothing is known of: its calls never overlap, whichever thread makes them."""

    def __init__(self, tokenizer: CallableTokenizer, lock: threading.Lock) -> None:
        self._tokenizer = tokenizer
        self._lock = lock

    def __call__(self, prompt: Any, /, **kwargs: Any) -> Any:
        with self._lock:
            return self._tokenizer(prompt, **kwargs)

    def decode(self, token_ids: Any, /, **kwargs: Any) -> Any:
        with self._lock:
            return self._tokenizer.decode(token_ids, **kwargs)


def for_one_thread(tokenizer: CallableTokenizer | Tokenizer, lock: threading.Lock) -> CallableTokenizer:
    """What one lane's thread may call without meeting anybody else in the same object."""
    if hasattr(tokenizer, "encode_batch") and hasattr(tokenizer, "fingerprint"):
        return OursAsCallable(cast("Tokenizer", tokenizer))
    if hasattr(tokenizer, "backend_tokenizer"):
        try:
            return copy.deepcopy(tokenizer)
        except Exception:  # noqa: BLE001 - whatever a foreign object's copying raises
            _LOG.exception("the tokenizer cannot be copied and is used itself; do not use it elsewhere meanwhile")
    return _OneAtATime(tokenizer, lock)


def _refuse(unknown: Mapping[str, object]) -> None:
    for name in unknown:
        raise UnsupportedError(f"{name} is not supported by our tokenizers; cut or pad the ids yourself", param=name)
