"""Which texts broke a tokenizer process, and which did it so often that they are refused. Pure and bounded."""

import hashlib
from collections import OrderedDict

from headrace.errors import InvalidRequestError

_DIGEST_BYTES = 16


class PoisonTextError(InvalidRequestError):
    """The text kills or hangs the tokenizer; no process will be given it again."""

    default_code = "poison_text"


class PoisonMemory:
    """Counts, by digest, how many processes each text broke. The texts that broke one longest ago are forgotten."""

    def __init__(self, *, max_breaks: int, max_texts: int) -> None:
        """A text is poison once it has broken `max_breaks` processes."""
        self._max_breaks = max_breaks
        self._max_texts = max_texts
        self._num_breaks: OrderedDict[bytes, int] = OrderedDict()

    def blame(self, fingerprint: str, text: str) -> bool:
        """Note that `text` broke a process; whether it is poison now."""
        key = _digest(fingerprint, text)
        self._num_breaks[key] = num_breaks = self._num_breaks.pop(key, 0) + 1
        if len(self._num_breaks) > self._max_texts:
            self._num_breaks.popitem(last=False)
        return num_breaks >= self._max_breaks

    def forgive(self, fingerprint: str, text: str) -> None:
        """Note that `text` was encoded: what broke a process before was not the text."""
        if self._num_breaks:
            self._num_breaks.pop(_digest(fingerprint, text), None)

    def is_poison(self, fingerprint: str, text: str) -> bool:
        """Costs nothing as long as no text has broken a process."""
        return bool(self._num_breaks) and self._num_breaks.get(_digest(fingerprint, text), 0) >= self._max_breaks

    @property
    def num_poisonous(self) -> int:
        return sum(num_breaks >= self._max_breaks for num_breaks in self._num_breaks.values())

    def __len__(self) -> int:
        """Texts that broke a process and were not encoded since, poisonous or not."""
        return len(self._num_breaks)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"PoisonMemory(num_suspects={len(self)}, num_poisonous={self.num_poisonous})"


def refusal(fingerprint: str, text: str) -> PoisonTextError:
    """The error for a poisonous text; names it by length and digest, so that logs find it and do not show it."""
    name = _digest(fingerprint, text).hex()[:12]
    return PoisonTextError(
        f"the text of {len(text)} characters (digest {name}) broke every tokenizer process that it was given to and is "
        "refused; change it",
        param="prompt",
    )


def _digest(fingerprint: str, text: str) -> bytes:
    identity = fingerprint.encode() + b"\0" + text.encode(errors="surrogatepass")
    return hashlib.blake2b(identity, digest_size=_DIGEST_BYTES).digest()
