"""Token ids on the wire: those of requests are checked, those of answers written as JSON, many at once."""

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidRequestError
from headrace.tokenization import TokenIds

_ENTRY_BYTES = 8
_MAX_ENTRIES = 10 ** (_ENTRY_BYTES - 1)
"""An entry holds the digits of one id and a comma."""
_COMMA = ord(",")
_ZERO = ord("0")


def check_vocabulary(token_ids: list[int], vocab_size: int, *, param: str) -> None:
    """Raise InvalidRequestError, naming the place in `param`, for an id that the model does not have."""
    if token_ids and (largest := max(token_ids)) >= vocab_size:
        at = f"{param}[{token_ids.index(largest)}]"
        raise InvalidRequestError(f"{at} is {largest}, but the model's largest token id is {vocab_size - 1}", param=at)


class TokenIdWriter:
    """The JSON of ids below `vocab_size`, for which it holds 8 bytes each: what JSON libraries do number by number is
    one look at a table here. Making one takes milliseconds."""

    def __init__(self, vocab_size: int) -> None:
        self._entries = _entries(min(vocab_size, _MAX_ENTRIES))

    def __repr__(self) -> str:
        return f"TokenIdWriter({len(self._entries)} ids)"

    def write(self, token_ids: TokenIds) -> bytes:
        """`1,22,333`: the items of an array, without its brackets."""
        if len(token_ids) and int(token_ids.max()) >= len(self._entries):
            return msgspec.json.encode(token_ids.tolist())[1:-1]
        padded: bytes = self._entries.take(token_ids).tobytes()
        return padded.translate(None, b"\0")[:-1]


def _entries(num_ids: int) -> npt.NDArray[np.uint64]:
    """The digits of each id and a comma, in as many bytes each: what is left over is zero."""
    num_digits = len(str(max(0, num_ids - 1)))
    entries = np.zeros((num_ids, _ENTRY_BYTES), np.uint8)
    rest = np.arange(num_ids, dtype=np.uint32)
    for place in range(num_digits - 1, -1, -1):
        has_digit = (rest > 0) | (place == num_digits - 1)
        entries[:, place] = np.where(has_digit, rest % 10 + _ZERO, 0)
        rest //= 10
    entries[:, num_digits] = _COMMA
    return entries.view(np.uint64).ravel()
