"""What a corpus document is: a chat of turns or a plain text.

Owns the document types and the small helpers that every part of the grammar uses (articles, casual spelling).
Does not own any content: that is in the modules named for what they hold.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

SYSTEM = "system"
USER = "user"
ASSISTANT = "assistant"


class Turn(NamedTuple):
    """One message of a chat."""

    role: str
    text: str


class Exchange(NamedTuple):
    """One question of the user and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Document:
    """One training document: a chat when it has turns, else plain text to continue."""

    kind: str
    turns: tuple[Turn, ...] = ()
    text: str = ""


def article(noun: str) -> str:
    """Put the right indefinite article before a noun: 'a fox', 'an owl'."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def sentence_case(text: str) -> str:
    """Upper-case the first letter and leave the rest as it is."""
    return text[:1].upper() + text[1:]


def join_words(words: Sequence[str]) -> str:
    """Join words as a sentence lists them: 'a, b and c'."""
    if len(words) == 1:
        return words[0]
    return ", ".join(words[:-1]) + " and " + words[-1]


_LEADS = ("Hi, ", "Hello! ", "Ok, ", "I have a question: ", "Tell me, ", "So, ", "Please tell me: ", "One question: ")


def casual(rng: random.Random, question: str) -> str:
    """Spell a question the way people type at times: with a lead, in lower case, or without its final mark."""
    roll = rng.random()
    if question.endswith("?") and rng.random() < 0.05:
        question = rng.choice(_LEADS) + question[0].lower() + question[1:]
    if roll < 0.08:
        return question.lower()
    if roll < 0.14:
        return question.rstrip("?.")
    if roll < 0.20:
        return question.lower().rstrip("?.")
    return question


def invented_name(rng: random.Random) -> str:
    """Make a name that no list holds, so that names are copied from the chat and not only remembered."""
    heads = ("Ba", "Do", "Fe", "Gi", "Ka", "Lo", "Mu", "Ne", "Pa", "Ri", "Su", "To", "Va", "Ze", "Ju", "Ha")
    tails = ("ra", "lin", "mo", "ta", "vi", "nel", "ko", "sha", "dor", "bi", "wen", "zu", "ric", "lo")
    return rng.choice(heads) + "".join(rng.choice(tails) for _ in range(rng.choice((1, 1, 2))))
