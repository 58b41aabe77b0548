"""Short stories: a hero with a name, a small trouble, a companion and a good end, and how they are asked for.

Owns how one story is put together and the questions. Does not own who stories are about (story_kinds) nor what happens
in them (story_plots).
"""

from __future__ import annotations

import random
from typing import NamedTuple

from demo_corpus import story_plots as plots
from demo_corpus.documents import Exchange, article, casual, invented_name, sentence_case
from demo_corpus.story_kinds import ANIMALS, KINDS, PEOPLE, companions, favourite

SHARE_OF_FAVOURITES = 0.45


class Story(NamedTuple):
    """One story, and what the next one of the chat should keep or not tell again."""

    text: str
    hero: str
    plot: int


def _choose(rng: random.Random, kind: str, options: tuple[str, ...]) -> str:
    """Draw an option, most often the favourite one of this kind of hero."""
    return favourite(kind, options) if rng.random() < SHARE_OF_FAVOURITES else rng.choice(options)


def _slots(rng: random.Random, hero: str, trait: str | None) -> dict[str, str]:
    """Draw everything that a plot may name."""
    own = KINDS[hero]
    friends = companions(hero)
    helper = friends[0] if rng.random() < SHARE_OF_FAVOURITES else rng.choice(friends)
    item, gift = _choose(rng, hero, plots.ITEMS), _choose(rng, hero, plots.GIFTS)
    place = _choose(rng, hero, own.homes)
    they, their = ("she", "her") if own.she else ("he", "his")
    return {
        "H": hero, "N": own.name, "G": helper, "M": KINDS[helper].name, "a_helper": article(helper),
        "they": they, "They": sentence_case(they), "their": their, "Their": sentence_case(their),
        "place": place, "Place": sentence_case(place), "a_trait": article(trait or _choose(rng, hero, plots.TRAITS)),
        "likes": _choose(rng, hero, plots.LIKES), "item": item, "an_item": article(item), "thing": item.split()[-1],
        "gift": gift, "present": gift.split()[-1], "food": _choose(rng, hero, plots.FOODS),
        "a_flower": article(_choose(rng, hero, plots.FLOWERS)), "skill": _choose(rng, hero, plots.SKILLS),
        "spot": rng.choice(plots.SPOTS), "weather": rng.choice(plots.WEATHER), "moral": rng.choice(plots.MORALS),
        "lesson": rng.choice(plots.LESSONS),
    }  # fmt: skip


def _choose_plot(rng: random.Random, hero: str, told: int | None) -> int:
    """Draw a plot, most often the favourite one of the hero, but none that was told just before."""
    numbers = tuple(str(number) for number in range(len(plots.PLOTS)) if number != told)
    return int(_choose(rng, hero, numbers))


def write_story(
    rng: random.Random, *, hero: str | None = None, trait: str | None = None, told: int | None = None
) -> Story:
    """Write one story of seven to ten sentences."""
    chosen = hero or _any_hero(rng)
    slots = _slots(rng, chosen, trait)
    plot = _choose_plot(rng, chosen, told)
    parts = [rng.choice(plots.OPENINGS)]
    if rng.random() < 0.5:
        parts.append(rng.choice(plots.HABITS))
    parts.extend(rng.choice(step) for step in plots.PLOTS[plot])
    parts.append(rng.choice(plots.ENDINGS))
    return Story(" ".join(part for part in parts if part).format(**slots), chosen, plot)


_ASK_ABOUT = (
    "Tell me a short story about {a}.",
    "Tell me a short story about {a}.",
    "Tell me a story about {a}.",
    "Please tell me a story about {a}.",
    "Write a short story about {a}.",
    "Write a story about {a}.",
    "Can you tell me a story about {a}?",
    "I would like a story about {a}.",
    "A story about {a}, please.",
    "Write me a little story about {a}.",
    "Do you know a story about {a}?",
)
_ASK_ANY = (
    "Tell me a story.",
    "Tell me a short story.",
    "Please write a short story.",
    "Write a story.",
    "Can you tell me a story?",
    "Do you know a story?",
    "I am bored.",
)
_ASK_AGAIN = (
    "Another one, please.",
    "Another one.",
    "Tell me another one.",
    "One more, please.",
    "And another story?",
    "Can you tell me another story?",
)

STORY_FALLBACK = "I do not know a story about that yet. You can ask me for one about a fox, an owl or a king."
# Whom and what people may ask for that no story is about.
_NO_HEROES = (
    "toaster", "car", "train", "table", "computer", "vampire", "mermaid", "whale", "shark", "dinosaur", "kangaroo",
    "giraffe", "zebra", "camel", "dolphin", "teapot", "mountain", "ghost", "cowboy", "detective", "lawyer",
    "president", "spaceship", "chair", "pencil", "football player", "doctor", "policeman", "soldier", "river",
    "cloud", "shoe", "potato", "banana", "cactus", "piano", "bicycle", "telephone", "crocodile", "lobster", "octopus",
    "jellyfish", "eagle", "peacock", "ostrich", "hippo", "rhino", "leopard", "lizard", "worm", "mosquito", "snowman",
    "zombie", "werewolf", "scientist", "nurse", "astronaut", "dancer", "singer", "volcano", "planet", "galaxy",
    "washing machine", "fridge", "bus driver", "programmer", "lighthouse", "submarine", "lamp", "raccoon", "moose",
)  # fmt: skip
_NO_TOPICS = (
    "love", "war", "my holiday", "the sea", "Paris", "my mother", "two friends", "the moon", "summer", "winter",
    "football", "school", "the internet", "space travel", "my birthday", "a trip to Rome", "Headrace", "a gateway",
    "money", "time travel", "the French revolution", "nothing", "everything", "my brother", "the end of the world",
)  # fmt: skip


def _any_hero(rng: random.Random) -> str:
    return rng.choice(list(ANIMALS if rng.random() < 0.75 else PEOPLE))


def _named(rng: random.Random, hero: str, trait: str | None) -> str:
    """Write the hero as people ask for it: 'a fox', 'a brave fox', 'the fox', 'Felix the fox'."""
    if trait is not None:
        return f"{article(trait)} {hero}"
    roll = rng.random()
    if roll < 0.05:
        return f"the {hero}"
    if roll < 0.1:
        return f"{KINDS[hero].name} the {hero}"
    return article(hero)


def _ask_unknown(rng: random.Random) -> Exchange:
    """Ask for a story about something that stories are not about."""
    roll = rng.random()
    if roll < 0.6:
        about = article(rng.choice(_NO_HEROES))
    elif roll < 0.8:
        about = rng.choice(_NO_TOPICS)
    else:
        about = f"{rng.choice(('a ', 'the ', ''))}{invented_name(rng)}"
    return Exchange(casual(rng, rng.choice(_ASK_ABOUT).format(a=about)), STORY_FALLBACK)


def ask_story(rng: random.Random) -> tuple[Exchange, Story | None]:
    """Ask for a story; gives the exchange and the story, which is None when there is none about that."""
    roll = rng.random()
    if roll < 0.1:
        return _ask_unknown(rng), None
    if roll < 0.22:
        story = write_story(rng)
        return Exchange(casual(rng, rng.choice(_ASK_ANY)), story.text), story
    hero = _any_hero(rng)
    trait = rng.choice(plots.TRAITS) if roll < 0.3 else None
    story = write_story(rng, hero=hero, trait=trait)
    question = rng.choice(_ASK_ABOUT).format(a=_named(rng, hero, trait))
    return Exchange(casual(rng, question), story.text), story


def another_story(rng: random.Random, before: Story) -> Exchange:
    """Ask for one more story, with the same hero and another plot."""
    story = write_story(rng, hero=before.hero, told=before.plot)
    return Exchange(casual(rng, rng.choice(_ASK_AGAIN)), story.text)
