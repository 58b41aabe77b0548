"""Text to measure with, the same on every machine: prose, code, JSON and Chinese in the shares of chat traffic."""

import json
import random
from collections.abc import Callable
from functools import cache

CHARS_PER_TOKEN = 3.5
"""Of mixed text, about; it decides how long a text of so many tokens is made."""

_ONSETS = ("b", "br", "c", "d", "f", "g", "h", "l", "m", "n", "p", "pr", "r", "s", "st", "t", "th", "tr", "v", "w", "")
_NUCLEI = ("a", "e", "i", "o", "u", "ea", "ai", "ou")
_CODAS = ("", "", "n", "r", "s", "t", "nd", "ng", "ll", "st", "ck")
_COMMON = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "with",
    "as",
    "on",
    "be",
    "at",
    "this",
    "by",
    "you",
)
_CJK = (0x4E00, 0x9FA5)
_CJK_STOPS = "\uff0c\u3002"
_SURROGATES = range(0xD800, 0xE000)
_SHARES = ((0.5, "prose"), (0.25, "code"), (0.15, "json"), (0.1, "chinese"))

HOSTILE = {
    "one letter": "a",
    "spaces": " ",
    "random letters": "abcdefghijklmnopqrstuvwxyz",
    "random code points": "".join(chr(point) for point in range(0x20, 0x11000) if point not in _SURROGATES),
}
"""Texts without words, by name: their alphabets."""


def mixed_text(seed: object, num_chars: int) -> str:
    """`num_chars` characters that no other seed gives. Paragraphs of 300 to 900 characters, each of one kind."""
    rng = random.Random(str(seed))  # noqa: S311 - reproducible text, not a secret
    words = _vocabulary()
    kinds = [kind for _, kind in _SHARES]
    weights = [share for share, _ in _SHARES]
    parts: list[str] = []
    missing = num_chars
    while missing > 0:
        part = _MAKERS[rng.choices(kinds, weights)[0]](rng, words, rng.randint(300, 900))
        parts.append(part)
        missing -= len(part) + 2
    return "\n\n".join(parts)[:num_chars]


def shuffled(text: str, seed: object) -> str:
    """The paragraphs of a mixed text in another order: as good as new to whatever keeps texts or parts of them."""
    paragraphs = text.split("\n\n")
    random.Random(str(seed)).shuffle(paragraphs)  # noqa: S311 - reproducible text, not a secret
    return "\n\n".join(paragraphs)


def text_of_tokens(seed: object, num_tokens: int) -> str:
    """Mixed text of about `num_tokens` tokens."""
    return mixed_text(seed, int(num_tokens * CHARS_PER_TOKEN))


def hostile_text(seed: object, num_chars: int, *, unit: str) -> str:
    """About `num_chars` characters that encoders are slow at: characters of `HOSTILE[unit]` at random, or `unit`."""
    alphabet = HOSTILE.get(unit)
    if alphabet is None:
        return unit * (num_chars // len(unit))
    rng = random.Random(str(seed))  # noqa: S311 - reproducible text, not a secret
    return "".join(rng.choices(alphabet, k=num_chars))


@cache
def _vocabulary() -> list[str]:
    rng = random.Random("vocabulary")  # noqa: S311 - reproducible text, not a secret
    made = ["".join(_syllables(rng)) for _ in range(3000)]
    return [*_COMMON * 80, *made]


def _syllables(rng: random.Random) -> list[str]:
    return [rng.choice(_ONSETS) + rng.choice(_NUCLEI) + rng.choice(_CODAS) for _ in range(rng.choice((1, 2, 2, 3)))]


def _prose(rng: random.Random, words: list[str], num_chars: int) -> str:
    sentences = []
    while num_chars > 0:
        sentence = " ".join(rng.choices(words, k=rng.randint(6, 18))).capitalize() + rng.choice(".,?!.") + " "
        sentences.append(sentence)
        num_chars -= len(sentence)
    return "".join(sentences)


def _code(rng: random.Random, words: list[str], num_chars: int) -> str:
    lines: list[str] = []
    while num_chars > 0:
        name, argument, value = rng.choices(words, k=3)
        line = rng.choice(
            (
                f"def {name}_{argument}({value}: int) -> str:",
                f"    {name} = {argument}.{value}({rng.randint(0, 999)})",
                f"    if {name} != {argument}[{rng.randint(0, 9)}]:",
                f'        return f"{{{name}}} {value}"',
                f"# {name} {argument} {value}",
            )
        )
        lines.append(line)
        num_chars -= len(line) + 1
    return "\n".join(lines)


def _json(rng: random.Random, words: list[str], num_chars: int) -> str:
    objects = []
    while num_chars > 0:
        keys = rng.choices(words, k=4)
        values: list[object] = [rng.random(), rng.randint(0, 10**6), rng.choice(words), [rng.random() < 0.5, None]]
        objects.append(dict(zip(keys, values, strict=True)))
        num_chars -= 80
    return json.dumps(objects, indent=2)


def _chinese(rng: random.Random, _: list[str], num_chars: int) -> str:
    common = [chr(rng.randint(*_CJK)) for _ in range(400)]
    return "".join(rng.choices([*common, *_CJK_STOPS], k=num_chars))


_MAKERS: dict[str, Callable[[random.Random, list[str], int], str]] = {
    "prose": _prose,
    "code": _code,
    "json": _json,
    "chinese": _chinese,
}
