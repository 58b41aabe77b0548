"""The mixture: how many documents of each kind the corpus has, and its two sides.

Owns the shares and the seeds' use. Does not own any content.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from demo_corpus import arithmetic, conversations, questions, stories
from demo_corpus.documents import Document


def _plain(rng: random.Random, held_out: bool) -> Document:
    """Make a text without chat marks: mostly stories, else facts or sums."""
    roll = rng.random()
    if roll < 0.25:
        return Document("plain story", text=stories.write_story(rng).text)
    if roll < 0.37:
        return Document("plain facts", text=questions.fact_lines(rng))
    return Document("plain sums", text=arithmetic.sum_lines(rng, held_out))


def _draw(rng: random.Random, held_out: bool) -> Document:
    roll = rng.random()
    if roll < 0.37:
        return conversations.arithmetic_chat(rng, held_out)
    if roll < 0.69:
        return conversations.single(rng)
    if roll < 0.75:
        return conversations.story_chat(rng)
    if roll < 0.86:
        return conversations.conversation(rng, held_out, rng.randint(1, 5))
    return _plain(rng, held_out)


def training_documents(seed: int) -> Iterator[Document]:
    """Draw training documents without end. No sum in them is on the held-out side."""
    rng = random.Random(seed)
    while True:
        yield _draw(rng, held_out=False)


def long_documents(seed: int) -> Iterator[Document]:
    """Draw training chats of many turns, so that the model keeps its footing in long chats."""
    rng = random.Random(seed)
    while True:
        yield conversations.conversation(rng, False, rng.randint(8, 40), share_of_stories=0.06)


def held_out_documents(seed: int) -> Iterator[Document]:
    """Draw documents from the same mixture whose sums are all on the held-out side."""
    rng = random.Random(seed)
    while True:
        yield _draw(rng, held_out=True)
