"""Text to measure with, the same on every machine: prose, code, JSON and Chinese in the shares of chat traffic."""

import json
import random
from collections.abc import Callable
from functools import cache

_ONSETS = ("b", "br", "c", "d", "f", "g", "h", "l", "m", "n", "p", "pr", "r", "s", "st", "t", "th", "tr", "v", "w", "")
_NUCLEI = ("a", "e", "i", "o", "u", "ea", "ai", "ou")
_CODAS = ("", "", "n", "r", "s", "t", "nd", "ng", "ll", "st", "ck")
_COMMON = (  # noqa: SIM905 - a list literal of so many words fills a page
    "the of and to in is that for it with as on be at this by you not are from have has was were will can may "
    "one all each which when where what how why who than then there here into over under after before between "
    "through while because so if time year day way work world life hand part child place week case point "
    "company number group problem fact water room area money story result month book night word business issue "
    "side kind head house service friend power hour game line end member law car city community name team "
    "minute idea body information back parent face others level office door health person art history party "
    "change morning reason research girl guy moment air teacher force education value request response server "
    "client memory cache token model engine prompt message system user answer question example document "
    "section table column index length limit buffer stream thread process queue event error handler record "
    "field string object array method function argument return import class module package version release "
    "build test measure latency throughput average maximum minimum small large short long fast slow new old "
    "good better best great simple complex possible available general specific public private local remote "
    "first second third last next previous same different important current recent early late open close make "
    "take give find tell ask use need feel become leave put mean keep let begin seem help show hear play run "
    "move live believe bring happen write provide sit stand lose pay meet include continue set learn lead "
    "understand watch follow stop create speak read allow add spend grow walk win offer remember love consider "
    "appear buy wait serve send expect stay "
).split()
_CJK_COMMON = (
    "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事其里所去行过家"
    "十用发天如然作方成者多日都三小军二无同么经法当起与好看学进种将还分此心前面又定见只主没公从知使全问外两它高手实"
    "现长新回内关重点位水理明正电开气间很等信工力期化样"
)
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
    missing = num_chars + 2  # the last part has no separator after it
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
    return [*_COMMON * 100, *made]


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
        values: list[object] = [
            round(rng.random(), 3),
            rng.randint(0, 10**4),
            rng.choice(words),
            [rng.random() < 0.5, None],
        ]
        objects.append(dict(zip(keys, values, strict=True)))
        num_chars -= 80
    return json.dumps(objects, indent=2)


def _chinese(rng: random.Random, _: list[str], num_chars: int) -> str:
    return "".join(rng.choices([*_CJK_COMMON * 2, *_CJK_STOPS * 12], k=num_chars))


_MAKERS: dict[str, Callable[[random.Random, list[str], int], str]] = {
    "prose": _prose,
    "code": _code,
    "json": _json,
    "chinese": _chinese,
}
