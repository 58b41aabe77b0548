"""Texts that tell encoders apart: what tokenizers are known to get wrong, mixed at random, the same for every seed."""

import random
import sys
from collections.abc import Callable, Iterator, Sequence

_WORDS = (
    *("the", "of", "Request", "tokens", "engine", "don't", "WE'LL", "it'S", "naïve", "Straße", "über", "Ⅻ", "½", "ﬁ"),
    *("你好", "世界", "今日は", "안녕", "мир", "привет", "नमस्ते", "مرحبا", "שלום", "ไทย", "\u212b", "\u00e9", "e\u0301"),
    *("func_name", "camelCaseWord", "HTTPServer", "3.14159", "1234567", "http://x.y/z?a=b&c=d", "__init__", "#include"),
    *("</div>", "\\n", "->", "!="),
)
_SPACES = (
    *(" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\n\n ", " \t\n "),
    *("\u00a0", "\u2003", "\u3000", "\x0b", "\x85"),
)
_SYMBOLS = (
    *("!", "?!", "...", "—", "/", "//", "*/", "{}", "'", "'s", '"', "\x00", "\x1c"),
    *("\u200b", "\ufeff", "\u180e", "\ufffd"),
)
_FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
_MARKS = ("\u0301", "\u0327", "\u200d", "\ufe0f", _FAMILY, "\U0001f642", "\u1100", "\u1161", "\u11a8", "\u0344")
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MAX_PIECES = 24
_MAX_RUN = 60
_LONG_WORD = 3000


def fuzz_texts(count: int, *, seed: int, special_tokens: Sequence[str]) -> Iterator[str]:
    """`count` texts without lone surrogates; the tokenizer's own `special_tokens` appear whole and in part."""
    rng = random.Random(seed)  # noqa: S311 - test data
    pieces = [*_makers(rng), *[_special_maker(rng, special_tokens)] * 2] if special_tokens else _makers(rng)
    yield from ("", " ", "\n", "a", " a", "a ", *special_tokens[: count // 4])
    yield "x" * _LONG_WORD
    yield " " * _LONG_WORD
    for _ in range(count):
        yield "".join(rng.choice(pieces)() for _ in range(rng.randint(1, _MAX_PIECES)))


def _makers(rng: random.Random) -> list[Callable[[], str]]:
    def words() -> str:
        return " ".join(rng.choices(_WORDS, k=rng.randint(1, 6)))

    def run() -> str:
        return rng.choice((*_SPACES, *_SYMBOLS, "0", "a", "é", "\u4e00")) * rng.randint(1, _MAX_RUN)

    def digits() -> str:
        return str(rng.randrange(10 ** rng.randint(1, 12)))

    def long_word() -> str:
        return "".join(rng.choices(_ALPHABET, k=rng.randint(1, _MAX_RUN)))

    def any_characters() -> str:
        return "".join(_any_character(rng) for _ in range(rng.randint(1, 6)))

    def one_of(choices: Sequence[str]) -> Callable[[], str]:
        return lambda: rng.choice(choices)

    often = [words, one_of(_SPACES), one_of(_WORDS), one_of(_SPACES)]
    return [*often, *often, run, digits, long_word, any_characters, one_of(_SYMBOLS), one_of(_MARKS)]


def _special_maker(rng: random.Random, special_tokens: Sequence[str]) -> Callable[[], str]:
    def special() -> str:
        token = rng.choice(special_tokens)
        begin, end = sorted((rng.randint(0, len(token)), rng.randint(0, len(token))))
        return token if rng.random() < 0.6 else token[begin:end]

    return special


def _any_character(rng: random.Random) -> str:
    """Of all planes, the first ones more often."""
    limit = rng.choice((0x80, 0x250, 0x3000, 0x10000, sys.maxunicode + 1))
    code = rng.randrange(limit)
    return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)  # the surrogates are no characters
