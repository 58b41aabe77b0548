"""Bad words as token ids: as each is written at the beginning of a text, and after a space."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from headrace.errors import InvalidRequestError

Words: TypeAlias = tuple[tuple[int, ...], ...]


class EncodeText(Protocol):
    async def __call__(self, text: str) -> Sequence[int]:
        """The token ids of `text`, without special tokens around it."""
        ...


async def encode_bad_words(bad_words: Sequence[str], *, encode: EncodeText) -> Words:
    """Every way to write each word. Raises InvalidRequestError for one that is no token at all.

    The form with a space does not count where it ends with the other one, which then forbids both. vLLM also leaves it
    out where it takes fewer tokens, as the usual word does, and so lets that through.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in bad_words:
        plain = tuple(await encode(word.lstrip()))
        spaced = tuple(await encode(" " + word.lstrip()))
        if not plain:
            raise InvalidRequestError(f"bad_words holds {word!r:.80}, which has no tokens", param="bad_words")
        found[plain] = None
        if spaced[-len(plain) :] != plain:
            found[spaced] = None
    return tuple(found)
