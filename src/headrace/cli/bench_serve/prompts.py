"""Texts of an exact number of tokens, made of words that the tokenizer gives one token each. Pure."""

import random
from collections.abc import Sequence

from headrace.tokenization import Tokenizer

_MAX_WORDS = 4096
_PLAIN_WORDS = (
    "water",
    "wheel",
    "stone",
    "river",
    "channel",
    "gate",
    "mill",
    "flow",
    "spring",
    "bridge",
    "valley",
    "rain",
)
_PROBE_WORDS = 512


class PromptMaker:
    """Makes prompts by a seed: equal names give equal texts.

    Without a tokenizer, or with one that has no tokens of whole words, a word stands for a token and `is_exact` is
    False.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, seed: int) -> None:
        self._seed = seed
        words = _one_token_words(tokenizer) if tokenizer is not None else []
        self.is_exact = tokenizer is not None and _is_one_each(words, tokenizer)
        self._words: Sequence[str] = words if self.is_exact else [f" {word}" for word in _PLAIN_WORDS]

    def text(self, name: str, *, num_tokens: int) -> str:
        """The text of `name`, which begins like every longer text of that name."""
        draw = random.Random(f"{self._seed} {name}")  # noqa: S311 - the same load in every run
        return "".join(draw.choices(self._words, k=num_tokens))

    def __repr__(self) -> str:
        return f"PromptMaker(num_words={len(self._words)}, is_exact={self.is_exact})"


def _one_token_words(tokenizer: Tokenizer) -> list[str]:
    words: list[str] = []
    for token_id in range(tokenizer.vocab_size):
        text = tokenizer.decode([token_id], skip_special_tokens=True)
        if text[:1] == " " and text[1:].isascii() and text[1:].isalpha():
            words.append(text)
            if len(words) == _MAX_WORDS:
                break
    return words


def _is_one_each(words: Sequence[str], tokenizer: Tokenizer) -> bool:
    if len(words) < len(_PLAIN_WORDS):
        return False
    chosen = random.Random(0).choices(words, k=_PROBE_WORDS)  # noqa: S311 - a sample, not a secret
    (token_ids,) = tokenizer.encode_batch(["".join(chosen)], add_special_tokens=False)
    return len(token_ids) == _PROBE_WORDS
