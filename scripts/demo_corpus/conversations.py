"""Chats: how single exchanges become conversations with greetings, follow-ups and things to remember.

Owns the system prompts, small talk and the order of turns. Does not own the facts, sums or stories it strings together.
"""

from __future__ import annotations

import random

from demo_corpus import arithmetic, facts, questions, stories
from demo_corpus.documents import (
    ASSISTANT,
    SYSTEM,
    USER,
    Document,
    Exchange,
    Turn,
    article,
    casual,
    invented_name,
    sentence_case,
)
from demo_corpus.vocabulary import COLOURS, HOBBIES, NAMES, TOWNS

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are the demo model of Headrace.",
    "You are a friendly assistant. Answer in one or two sentences.",
    "You are a polite assistant who likes stories.",
    "You are a patient teacher.",
    "Answer the questions of the user.",
    "Be brief.",
    "You are a small language model. Answer truthfully and in full sentences.",
    "You are a helpful, honest and kind assistant.",
)

_GREETINGS = ("Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Hey", "Good morning!", "Good evening!", "Hello there.")
_GREETED = "Hello! How can I help you?"
_HOW_ARE_YOU = ("How are you?", "How are you today?", "How do you do?", "Are you well?", "How is it going?")
_WELL = "I am well, thank you. How can I help you?"
_THANKS = (
    "Thank you.",
    "Thanks!",
    "Thank you!",
    "Thanks a lot.",
    "Great, thank you.",
    "Thank you very much.",
    "Thanks",
)
_WELCOME = "You are welcome!"
_BYES = ("Goodbye.", "Bye!", "Bye", "See you later.", "Good night.", "That is all, goodbye.", "See you!")
_BYE = "Goodbye! Come back soon."
_PRAISE = ("Very good!", "That is nice.", "Great!", "Well done.", "Wonderful!", "Cool", "Nice!", "I like that.", "Ok")
_PRAISED = "I am glad that you like it. What else can I do for you?"


def small_talk(rng: random.Random) -> Exchange:
    """Greet, thank, praise or say goodbye outside of any other talk."""
    asks, answer = rng.choice(
        ((_GREETINGS, _GREETED), (_HOW_ARE_YOU, _WELL), (_THANKS, _WELCOME), (_BYES, _BYE), (_PRAISE, _PRAISED))
    )
    return Exchange(casual(rng, rng.choice(asks)), answer)


class Memory:
    """What the user has said about themselves so far in one chat."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def tell(self, rng: random.Random) -> Exchange:
        """Let the user tell something new, or tell it again with another value."""
        kind = rng.choices(("name", "town", "colour", "hobby", "pet"), (5, 1, 1, 1, 1))[0]
        if kind == "name":
            return self._tell_name(rng)
        if kind == "town":
            value = rng.choice(TOWNS) if rng.random() < 0.6 else invented_name(rng)
            told, answer = (f"I live in {value}.", f"I come from {value}."), f"{value} sounds like a nice place."
        elif kind == "colour":
            value = rng.choice(COLOURS)
            told = (f"My favourite colour is {value}.", f"I like the colour {value}.")
            answer = f"{sentence_case(value)} is a beautiful colour."
        elif kind == "hobby":
            value = rng.choice(HOBBIES)
            told, answer = (f"My hobby is {value}.", f"I like {value}."), f"{sentence_case(value)} sounds like fun."
        else:
            value = rng.choice(("dog", "cat", "rabbit", "horse", "mouse", "duck", "goat", "owl", "turtle"))
            told = (f"I have {article(value)}.", f"My pet is {article(value)}.")
            answer = f"{sentence_case(article(value))} is a good friend."
        self.known[kind] = value
        return Exchange(rng.choice(told), answer)

    def _tell_name(self, rng: random.Random) -> Exchange:
        value = rng.choice(NAMES) if rng.random() < 0.5 else invented_name(rng)
        self.known["name"] = value
        told = rng.choice(
            (
                f"My name is {value}.",
                f"My name is {value}.",
                f"I am {value}.",
                f"Hello, I am {value}.",
                f"Hi, my name is {value}.",
                f"Hello! My name is {value}.",
                f"You can call me {value}.",
                f"I'm {value}.",
            )
        )
        return Exchange(told, f"Nice to meet you, {value}! How can I help you?")

    def recall(self, rng: random.Random) -> Exchange:
        """Ask for something told before, or now and then for something never told."""
        kinds = ("name", "town", "colour", "hobby", "pet")
        kind = rng.choice(list(self.known)) if self.known and rng.random() < 0.85 else rng.choice(kinds)
        value = self.known.get(kind, "")
        asks = {
            "name": ("What is my name?", "Do you remember my name?", "What's my name?", "Who am I?",
                     "Do you know my name?"),
            "town": ("Where do I live?", "Where do I come from?"),
            "colour": ("What is my favourite colour?", "Which colour do I like?"),
            "hobby": ("What is my hobby?", "What do I like to do?"),
            "pet": ("What pet do I have?", "Which animal do I have?"),
        }[kind]  # fmt: skip
        known = {
            "name": f"Your name is {value}.",
            "town": f"You told me that you live in {value}." if value else "",
            "colour": f"Your favourite colour is {value}.",
            "hobby": f"Your hobby is {value}.",
            "pet": f"You have {article(value)}." if value else "",
        }[kind]
        missing = {
            "name": "You have not told me your name yet.",
            "town": "You have not told me where you live yet.",
            "colour": "You have not told me your favourite colour yet.",
            "hobby": "You have not told me your hobby yet.",
            "pet": "You have not told me about a pet yet.",
        }[kind]
        return Exchange(casual(rng, rng.choice(asks)), known if value else missing)


def _fact_follow_up(rng: random.Random) -> list[Exchange]:
    """Ask for a fact and then for another of the same kind with 'And of ...?'"""
    roll = rng.random()
    if roll < 0.4:
        places = rng.sample([item for item in facts.CAPITALS.items() if "." not in item[1]], rng.choice((2, 3)))
        asks = [f"What is the capital of {places[0][0]}?"]
        asks += [
            rng.choice(("And of {n}?", "And the capital of {n}?", "What about {n}?")).format(n=n) for n, _ in places[1:]
        ]
        return [Exchange(ask, f"The capital of {n} is {c}.") for ask, (n, c) in zip(asks, places, strict=True)]
    if roll < 0.7:
        pairs = rng.sample(facts.OPPOSITES, rng.choice((2, 3)))
        asks = [f"What is the opposite of {pairs[0][0]}?"]
        asks += [
            rng.choice(("And of {n}?", "And the opposite of {n}?", "What about {n}?")).format(n=n) for n, _ in pairs[1:]
        ]
        return [Exchange(ask, f"The opposite of {n} is {o}.") for ask, (n, o) in zip(asks, pairs, strict=True)]
    topic = rng.choice(("sound", "home", "food", "colour"))
    animals = rng.sample(list(facts.ANIMALS), 2)
    first = rng.choice(questions.ANIMAL_ASKS[topic]).format(a=article(animals[0]), n=animals[0])
    second = rng.choice(("And {a}?", "What about {a}?")).format(a=article(animals[1]))
    return [
        Exchange(ask, questions.animal_sentence(name, topic))
        for ask, name in zip((first, second), animals, strict=True)
    ]


def _sum_run(rng: random.Random, held_out: bool) -> list[Exchange]:
    """Ask for a sum and follow it up."""
    problem = arithmetic.draw_sum(rng, held_out)
    run = [Exchange(f"What is {arithmetic.expression(rng, problem)}?", problem.statement)]
    result = problem.result
    for _ in range(rng.randint(1, 3)):
        changed = arithmetic.change_result(rng, result, held_out) if rng.random() < 0.5 else None
        if changed is not None:
            exchange, result = changed
            run.append(exchange)
        else:
            problem = arithmetic.draw_sum(rng, held_out)
            ask = rng.choice(("And what is {e}?", "And {e}?", "What about {e}?", "Now what is {e}?"))
            run.append(Exchange(casual(rng, ask.format(e=arithmetic.expression(rng, problem))), problem.statement))
            result = problem.result
    return run


def _story_run(rng: random.Random) -> list[Exchange]:
    """Ask for a story, and now and then for another one."""
    exchange, story = stories.ask_story(rng)
    run = [exchange]
    if story is not None and rng.random() < 0.35:
        run.append(stories.another_story(rng, story))
    return run


def _joke_run(rng: random.Random) -> list[Exchange]:
    """Ask for two different jokes."""
    first, second = rng.sample(facts.JOKES, 2)
    return [
        Exchange(casual(rng, rng.choice(("Tell me a joke.", "Do you know a joke?"))), first),
        Exchange(casual(rng, rng.choice(("Another one, please.", "Another one.", "Tell me another one."))), second),
    ]


def _segment(rng: random.Random, memory: Memory, held_out: bool, share_of_stories: float) -> list[Exchange]:
    """Draw one or a few exchanges that belong together."""
    roll = rng.random()
    if roll < share_of_stories:
        return _story_run(rng)
    roll = rng.random()
    if roll < 0.30:
        return _sum_run(rng, held_out)
    if roll < 0.42:
        return [arithmetic.any_arithmetic(rng, held_out)]
    if roll < 0.66:
        return [questions.any_question(rng)]
    if roll < 0.74:
        return _fact_follow_up(rng)
    if roll < 0.76:
        return _joke_run(rng)
    if roll < 0.83:
        return [memory.tell(rng)]
    if roll < 0.93:
        return [memory.recall(rng)]
    return [small_talk(rng)]


def _chat(rng: random.Random, kind: str, exchanges: list[Exchange]) -> Document:
    """Make a document of exchanges, with a system prompt for about half of them."""
    turns = [Turn(SYSTEM, rng.choice(SYSTEM_PROMPTS))] if rng.random() < 0.5 else []
    for question, answer in exchanges:
        turns += [Turn(USER, question), Turn(ASSISTANT, answer)]
    return Document(kind, tuple(turns))


def single(rng: random.Random) -> Document:
    """Make a chat of one exchange."""
    roll = rng.random()
    if roll < 0.08:
        return _chat(rng, "small talk", [small_talk(rng)])
    if roll < 0.16:
        memory = Memory()
        return _chat(rng, "memory", [memory.tell(rng) if rng.random() < 0.6 else memory.recall(rng)])
    return _chat(rng, "question", [questions.any_question(rng)])


def story_chat(rng: random.Random) -> Document:
    """Make a chat that asks for a story, and now and then for another one."""
    return _chat(rng, "story", _story_run(rng))


def arithmetic_chat(rng: random.Random, held_out: bool) -> Document:
    """Make a chat of one to six number questions."""
    if rng.random() < 0.3:
        return _chat(rng, "arithmetic", _sum_run(rng, held_out))
    count = rng.choice((1, 1, 1, 2, 3, 4, 6))
    exchanges = [arithmetic.any_arithmetic(rng, held_out)]
    for _ in range(count - 1):
        follow = rng.random() < 0.4
        exchanges.append(
            arithmetic.follow_up_sum(rng, held_out) if follow else arithmetic.any_arithmetic(rng, held_out)
        )
    return _chat(rng, "arithmetic", exchanges)


def conversation(rng: random.Random, held_out: bool, segments: int, share_of_stories: float = 0.12) -> Document:
    """Make a chat of several turns about different things, in which the user may be remembered."""
    memory = Memory()
    exchanges: list[Exchange] = []
    roll = rng.random()
    if roll < 0.45:
        exchanges.append(memory.tell(rng))
    elif roll < 0.7:
        exchanges.append(Exchange(casual(rng, rng.choice(_GREETINGS)), _GREETED))
    for _ in range(segments):
        exchanges += _segment(rng, memory, held_out, share_of_stories)
    if memory.known and rng.random() < 0.5:
        exchanges.append(memory.recall(rng))
    if rng.random() < 0.3:
        exchanges.append(Exchange(casual(rng, rng.choice(_THANKS)), _WELCOME))
    if rng.random() < 0.15:
        exchanges.append(Exchange(casual(rng, rng.choice(_BYES)), _BYE))
    return _chat(rng, "conversation", exchanges)
