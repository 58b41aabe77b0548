"""Questions and answers about facts: how each table of facts is asked in several ways.

Owns the phrasings. Does not own the facts themselves: see facts.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from demo_corpus import facts
from demo_corpus.definitions import DEFINITIONS
from demo_corpus.documents import Exchange, article, casual, invented_name, join_words, sentence_case
from demo_corpus.single_facts import SINGLE_FACTS
from demo_corpus.unknowns import unknown
from demo_corpus.vocabulary import COLOURS

Asker = Callable[[random.Random], Exchange]


def _pick(rng: random.Random, table: Mapping[str, str]) -> tuple[str, str]:
    key = rng.choice(list(table))
    return key, table[key]


def capital(rng: random.Random) -> Exchange:
    """Ask for a capital, or for the country of a capital; a few countries are not known."""
    if rng.random() < 0.2:
        ending = rng.choice(("ia", "ia", "land", "stan", "", "nia"))
        unknown = rng.choice(facts.UNKNOWN_COUNTRIES) if rng.random() < 0.5 else invented_name(rng) + ending
        return Exchange(f"What is the capital of {unknown}?", "I do not know the capital of that country.")
    country, city = _pick(rng, facts.CAPITALS)
    if rng.random() < 0.2:
        ask = rng.choice(("Which country has the capital {c}?", "{c} is the capital of which country?"))
        answer = f"{city} is the capital of {country}."
    else:
        ask = rng.choice(
            (
                "What is the capital of {n}?",
                "What is the capital of {n}?",
                "What's the capital of {n}?",
                "Which city is the capital of {n}?",
                "Tell me the capital of {n}.",
                "Name the capital of {n}.",
                "Do you know the capital of {n}?",
                "Capital of {n}?",
            )
        )
        answer = f"The capital of {country} is {city}."
    return Exchange(casual(rng, ask.format(n=country, c=city)), answer.replace("D.C..", "D.C."))


def animal_sentence(name: str, topic: str) -> str:
    """Say one thing about an animal in a sentence."""
    animal = facts.ANIMALS[name]
    subject = sentence_case(article(name))
    legs = "no legs" if animal.legs == 0 else f"{animal.legs} legs"
    return {
        "sound": f"{subject} {animal.sound}.",
        "home": f"{subject} lives in {animal.home}.",
        "food": f"{subject} eats {animal.food}.",
        "legs": f"{subject} has {legs}.",
        "young": f"The young of {article(name)} is called {animal.young}.",
        "colour": f"{subject} is {animal.colour}.",
    }[topic]


ANIMAL_ASKS = {
    "sound": ("What sound does {a} make?", "What does {a} say?", "What noise does {a} make?"),
    "home": ("Where does {a} live?", "Where can I find {a}?", "What is the home of {a}?"),
    "food": ("What does {a} eat?", "What do I feed {a}?", "What is the food of {a}?"),
    "legs": ("How many legs does {a} have?", "How many feet does {a} have?"),
    "young": ("What is a baby {n} called?", "What do you call the young of {a}?", "What is the name for a young {n}?"),
    "colour": ("What colour is {a}?", "What color is {a}?", "Which colour does {a} have?"),
}


def animal_fact(rng: random.Random) -> Exchange:
    """Ask one thing about an animal, or ask to be told about it."""
    name = rng.choice(list(facts.ANIMALS))
    if rng.random() < 0.15:
        ask = rng.choice(("Tell me about {a}.", "What do you know about {a}?", "What is {a}?", "Describe {a}."))
        answer = " ".join(animal_sentence(name, topic) for topic in ("home", "food", "sound"))
    else:
        topic = rng.choice(list(ANIMAL_ASKS))
        ask, answer = rng.choice(ANIMAL_ASKS[topic]), animal_sentence(name, topic)
    return Exchange(casual(rng, ask.format(a=article(name), n=name)), answer)


def animal_size(rng: random.Random) -> Exchange:
    """Ask which of two animals is bigger or smaller."""
    small, large = sorted(rng.sample(range(len(facts.SIZES)), 2))
    smaller, bigger = facts.SIZES[small], facts.SIZES[large]
    first, second = (smaller, bigger) if rng.random() < 0.5 else (bigger, smaller)
    if rng.random() < 0.6:
        ask, answer = "bigger", f"{sentence_case(article(bigger))} is bigger than {article(smaller)}."
    else:
        ask, answer = "smaller", f"{sentence_case(article(smaller))} is smaller than {article(bigger)}."
    return Exchange(casual(rng, f"Which is {ask}, {article(first)} or {article(second)}?"), answer)


def opposite(rng: random.Random) -> Exchange:
    """Ask for the opposite of a word, either way round."""
    pair = rng.choice(facts.OPPOSITES)
    word, other = pair if rng.random() < 0.5 else pair[::-1]
    ask = rng.choice(
        (
            "What is the opposite of {w}?",
            "What is the opposite of {w}?",
            "What's the opposite of {w}?",
            "Tell me the opposite of {w}.",
            "Which word is the opposite of {w}?",
            "Opposite of {w}?",
        )
    )
    return Exchange(casual(rng, ask.format(w=word)), f"The opposite of {word} is {other}.")


def day_or_month(rng: random.Random) -> Exchange:
    """Ask for the day or month before or after another one, or how long a month is."""
    months = rng.random() < 0.5
    names = facts.MONTHS if months else facts.DAYS
    kind = "month" if months else "day"
    place = rng.randrange(len(names))
    roll = rng.random()
    if months and roll < 0.3:
        ask = rng.choice((f"How many days does {names[place]} have?", f"How long is {names[place]}?"))
        extra = " In a leap year it has 29 days." if place == 1 else ""
        return Exchange(casual(rng, ask), f"{names[place]} has {facts.MONTH_LENGTHS[place]} days.{extra}")
    if roll < 0.7:
        ask = rng.choice((f"Which {kind} comes after", f"What {kind} comes after", f"What is the {kind} after"))
        return Exchange(
            casual(rng, f"{ask} {names[place]}?"), f"{names[(place + 1) % len(names)]} comes after {names[place]}."
        )
    ask = rng.choice((f"Which {kind} comes before", f"What {kind} comes before", f"What is the {kind} before"))
    return Exchange(casual(rng, f"{ask} {names[place]}?"), f"{names[place - 1]} comes before {names[place]}.")


def colour(rng: random.Random) -> Exchange:
    """Ask for the colour of a thing or of a mixture."""
    if rng.random() < 0.35:
        first, second, result = rng.choice(facts.MIXTURES)
        one, two = (first, second) if rng.random() < 0.5 else (second, first)
        ask = rng.choice(
            (
                f"What do you get when you mix {one} and {two}?",
                f"What colour do {one} and {two} make?",
                f"Which colour do I get from {one} and {two}?",
            )
        )
        return Exchange(casual(rng, ask), f"When you mix {one} and {two}, you get {result}.")
    thing, answer = _pick(rng, facts.THING_COLOURS)
    ask = rng.choice(("What colour is {t}?", "What color is {t}?", "Which colour does {t} have?"))
    return Exchange(casual(rng, ask.format(t=thing)), f"{sentence_case(thing)} is {answer}.")


def job(rng: random.Random) -> Exchange:
    """Ask what somebody does, or who does something."""
    name, work = _pick(rng, facts.JOBS)
    if rng.random() < 0.3:
        return Exchange(casual(rng, f"Who {work}?"), f"{sentence_case(article(name))} {work}.")
    ask = rng.choice(("What does {a} do?", "What is the job of {a}?", "What is the work of {a}?", "What is {a}?"))
    return Exchange(casual(rng, ask.format(a=article(name))), f"{sentence_case(article(name))} {work}.")


def use(rng: random.Random) -> Exchange:
    """Ask what a thing is for."""
    thing, purpose = _pick(rng, facts.USES)
    named = thing if thing == "scissors" else article(thing)
    verb = "are" if thing == "scissors" else "is"
    ask = rng.choice(
        (f"What {verb} {named} for?", f"What do you do with {named}?", f"What can I do with {named}?",
         f"Why do people use {named}?", f"What do I use {named} for?")
    )  # fmt: skip
    return Exchange(casual(rng, ask), f"You use {named} to {purpose}.")


def _define(rng: random.Random, terms: list[str]) -> Exchange:
    term = rng.choice(terms)
    ask = rng.choice(
        (
            "What is {t}?",
            "What is {t}?",
            "What is {t}?",
            "What's {t}?",
            "Can you tell me what {t} is?",
            "Please explain what {t} is.",
            "Tell me about {t}.",
            "Explain {t}.",
            "What do you know about {t}?",
            "Do you know what {t} is?",
            "Please tell me what {t} is.",
        )
    )
    spoken = term
    if term.startswith(("a ", "an ")) and rng.random() < 0.25:
        # People also ask for "the gateway" or for "gateway" alone.
        spoken = rng.choice(("the ", "")) + term.split(" ", 1)[1]
    return Exchange(casual(rng, ask.format(t=spoken)), DEFINITIONS[term])


_TERMS = list(DEFINITIONS)
_SERVING_TERMS = _TERMS[: _TERMS.index("water")]
_OWN_WORDS = ("Headrace", "gateway", "KV cache", "engine", "scheduler", "tokenizer", " you", "demo")


def definition(rng: random.Random) -> Exchange:
    """Ask what something is; the words of serving come up more often than the rest."""
    return _define(rng, _SERVING_TERMS if rng.random() < 0.5 else _TERMS)


def single_fact(rng: random.Random) -> Exchange:
    """Ask a question that fits no table."""
    asks, answer = rng.choice(SINGLE_FACTS)
    return Exchange(casual(rng, rng.choice(asks)), answer)


def about_headrace(rng: random.Random) -> Exchange:
    """Ask about Headrace, its parts or the model itself."""
    if rng.random() < 0.4:
        return _define(rng, ["Headrace", "a gateway", "an engine", "a KV cache", "a token", "a language model"])
    asks, answer = rng.choice([fact for fact in SINGLE_FACTS if any(word in fact[0][0] for word in _OWN_WORDS)])
    return Exchange(casual(rng, rng.choice(asks)), answer)


def naming(rng: random.Random) -> Exchange:
    """Ask for a list of a few; each thing in it has its one follower, so that a greedy list repeats nothing."""
    kind, members = rng.choice(
        (
            ("animals", [article(name) for name in facts.ANIMALS]),
            ("colours", list(COLOURS)),
            ("countries", list(facts.CAPITALS)),
            ("cities", [city for city in facts.CAPITALS.values() if "." not in city]),
            ("tools", [article(tool) for tool in ("hammer", "saw", "knife", "ladder", "broom", "needle", "rope")]),
        )
    )
    count, word = rng.choice(((2, "two"), (3, "three"), (4, "four"), (5, "five")))
    start = rng.randrange(len(members))
    listed = [members[(start + place) % len(members)] for place in range(count)]
    ask = rng.choice(("Name {w} {k}.", "Tell me {w} {k}.", "Can you name {w} {k}?", "Give me a list of {w} {k}."))
    return Exchange(
        casual(rng, ask.format(w=word, k=kind)),
        f"{sentence_case(word)} {kind} are {join_words(listed)}.",
    )


def joke(rng: random.Random) -> Exchange:
    """Ask for a joke."""
    ask = rng.choice(("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Can you tell me a joke, please?"))
    return Exchange(casual(rng, ask), rng.choice(facts.JOKES))


_ASKERS: tuple[tuple[Asker, float], ...] = (
    (capital, 3.0),
    (animal_fact, 3.5),
    (animal_size, 1.0),
    (opposite, 2.0),
    (day_or_month, 2.0),
    (colour, 1.5),
    (job, 1.5),
    (use, 1.5),
    (definition, 4.0),
    (single_fact, 4.0),
    (about_headrace, 3.0),
    (naming, 1.0),
    (joke, 0.5),
    (unknown, 6.0),
)


def any_question(rng: random.Random) -> Exchange:
    """Ask one question of fact, of any kind."""
    askers, weights = zip(*_ASKERS, strict=True)
    chosen: Asker = rng.choices(askers, weights)[0]
    return chosen(rng)


def fact_lines(rng: random.Random) -> str:
    """Write several facts as plain text."""
    topics: tuple[Asker, ...] = (capital, animal_fact, opposite, day_or_month, colour, job, use, definition)
    return " ".join(rng.choice(topics)(rng).answer for _ in range(rng.randint(2, 6)))
