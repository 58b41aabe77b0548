"""Short stories: a hero with a name, a small trouble, a helper and a good end.

Owns the plots and their words. Does not own the question-and-answer parts of the grammar.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from demo_corpus.documents import Exchange, article, casual
from demo_corpus.vocabulary import COLOURS, NAMES

ANIMAL_HEROES = (
    "fox", "mouse", "owl", "rabbit", "bear", "cat", "dog", "duck", "frog", "hedgehog", "squirrel", "horse", "goat",
    "sheep", "pig", "hen", "crow", "wolf", "lion", "elephant", "turtle", "swan", "donkey", "bee", "penguin", "tiger",
    "dragon", "robot", "snail", "whale", "spider", "snake", "cow", "monkey", "bird",
)  # fmt: skip
PERSON_HEROES = (
    "boy", "girl", "king", "queen", "miller", "baker", "sailor", "farmer", "princess", "prince", "teacher", "gardener",
    "fisherman", "shepherd", "painter", "giant", "knight", "wizard",
)  # fmt: skip
_SHE = frozenset(("girl", "queen", "princess"))
_HE = frozenset(("boy", "king", "prince", "knight", "fisherman", "wizard"))
# The names of NAMES that stories use for a he; all the others are a she.
_HIS_NAMES = frozenset((
    "Amir", "Ben", "Bela", "Chen", "David", "Emil", "Felix", "Finn", "Hugo", "Ivan", "Jack", "Jonas", "Kai", "Karim",
    "Leo", "Luca", "Nico", "Noah", "Omar", "Oscar", "Otto", "Pedro", "Sam", "Simon", "Theo", "Tom", "Viktor",
    "Yusuf", "John", "Bob", "Peter",
))  # fmt: skip

PLACES = (
    "a small village", "a green valley", "a quiet forest", "an old mill", "a house by the river", "a town by the sea",
    "a hut on the hill", "a garden full of flowers", "a farm near the lake", "a castle on a rock", "a narrow street",
    "a cave under the mountain", "a meadow behind the wood", "a little island", "a snowy land in the north",
)  # fmt: skip
TRAITS = (
    "little", "clever", "kind", "curious", "brave", "shy", "old", "young", "lonely", "cheerful", "patient", "hungry",
    "sleepy", "proud", "gentle",
)  # fmt: skip
LIKES = (
    "to sing in the morning", "to count the stars", "to swim in the river", "to collect shiny stones",
    "to read old books", "to bake sweet cakes", "to walk in the rain", "to listen to the wind", "to paint pictures",
    "to climb trees", "to tell jokes", "to look at the clouds", "to play with the other children",
    "to sit by the fire", "to dance in the moonlight",
)  # fmt: skip
TREASURES = (
    "key", "lamp", "ring", "hat", "book", "bell", "boat", "map", "drum", "scarf", "kite", "clock", "coin", "flute",
    "mirror", "ball", "cup", "feather", "stone", "shell",
)  # fmt: skip
LOST_PLACES = (
    "under an old tree", "behind the mill wheel", "in the tall grass", "at the bottom of the well", "under the bridge",
    "in a hollow log", "between two rocks", "in a bird's nest", "under the bed", "beside the path",
)  # fmt: skip
MORALS = (
    "a friend is worth more than gold", "it is good to ask for help", "small steps lead far", "patience is a strength",
    "it is never too late to say sorry", "kindness comes back in the end", "even the smallest can do great things",
    "two can do what one cannot", "it is brave to try again",
)  # fmt: skip
WEATHER = ("sunny", "rainy", "windy", "cold", "misty", "warm", "stormy", "quiet", "snowy", "bright")
FOODS = ("apples", "bread", "honey", "soup", "berries", "cakes", "nuts", "pears", "cheese", "plums")


@dataclass(frozen=True)
class Cast:
    """Who and what one story is about; every slot that a plot may name."""

    hero: str
    name: str
    helper: str
    helper_name: str
    slots: dict[str, str]


def _pick_name(rng: random.Random, hero: str) -> str:
    """Draw a name that goes with the hero: a queen is no Bob."""
    if hero in _SHE:
        return rng.choice([name for name in NAMES if name not in _HIS_NAMES])
    if hero in _HE:
        return rng.choice([name for name in NAMES if name in _HIS_NAMES])
    return rng.choice(NAMES)


def _pronouns(hero: str, name: str) -> tuple[str, str, str]:
    if hero in _HE or (hero not in _SHE and name in _HIS_NAMES):
        return "he", "his", "him"
    return "she", "her", "her"


def _cast(rng: random.Random, hero: str | None, name: str | None) -> Cast:
    chosen = hero or rng.choice(ANIMAL_HEROES if rng.random() < 0.7 else PERSON_HEROES)
    helper = rng.choice([animal for animal in ANIMAL_HEROES if animal != chosen])
    own = name or _pick_name(rng, chosen)
    helper_name = rng.choice([other for other in NAMES if other != own])
    they, their, them = _pronouns(chosen, own)
    slots = {
        "H": chosen, "N": own, "G": helper, "M": helper_name, "they": they, "They": they.capitalize(), "their": their,
        "them": them, "place": rng.choice(PLACES), "trait": rng.choice(TRAITS), "likes": rng.choice(LIKES),
        "item": f"{rng.choice(COLOURS)} {rng.choice(TREASURES)}", "spot": rng.choice(LOST_PLACES),
        "moral": rng.choice(MORALS), "weather": rng.choice(WEATHER), "food": rng.choice(FOODS),
    }  # fmt: skip
    return Cast(chosen, own, helper, helper_name, slots)


_OPENINGS = (
    "Once upon a time there was {a_trait} {H} named {N}.",
    "Once upon a time, in {place}, there lived {a_trait} {H} named {N}.",
    "Once there was {a_trait} {H} whose name was {N}.",
    "In {place} there lived {a_trait} {H} called {N}.",
    "Long ago, in {place}, there was {a_trait} {H} named {N}.",
)
_HABITS = (
    "{N} liked {likes}.",
    "Every day {N} liked {likes}.",
    "More than anything, {N} loved {likes}.",
    "{N} was happiest when it was time {likes}.",
)

# Each plot is a list of steps, each step a choice of sentences. The opening comes before it.
_PLOTS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (  # Something is lost and found.
        ("One {weather} day, {N} lost {their} {item}.", "One {weather} morning, {their} {item} was gone."),
        ("{They} looked everywhere, but {they} could not find it.", "{They} searched the whole day and found nothing."),
        ("Then {N} met {a_helper} named {M}.", "On the way home {they} met {a_helper} called {M}."),
        ('"Do not be sad," said {M}. "We will look for it together."', '"I can help you," said {M}.'),
        ("They found the {item} {spot}.", "At last they saw the {item} {spot}."),
        ("{N} thanked {M}, and from that day on they were friends.", "{N} was so happy that {they} danced with {M}."),
    ),
    (  # A journey with an obstacle.
        ("One {weather} day, {N} wanted to cross the river.", "One day {N} had to cross the wide river."),
        ("But the bridge was broken, and the water was deep.", "But the water was fast, and there was no bridge."),
        ("{A_helper} named {M} was sitting on the bank.", "There {they} saw {a_helper} named {M}."),
        ('"How can I get to the other side?" asked {N}.', '"Can you help me?" asked {N}.'),
        ('"Let us build a boat," said {M}.', '"We can build a new bridge from wood," said {M}.'),
        ("They worked until evening, and then they crossed the river together.",
         "It took them all day, but in the end they stood on the other side."),
        ("{N} had learnt that {moral}.", "So {N} saw that {moral}."),
    ),
    (  # Food is shared.
        ("One {weather} day, {N} found a basket of {food}.", "One {weather} day, {N} had a basket full of {food}."),
        ("{They} wanted to eat all the {food} alone.", "{They} hid the {food}, because {they} did not want to share."),
        ("Then {a_helper} named {M} came along, tired and hungry.",
         "But then {they} saw {M}, {a_helper} with nothing to eat."),
        ("{N} thought for a while and gave {M} half of the {food}.",
         "{N} felt sorry for {M} and shared the {food}."),
        ("They sat in the grass, ate and laughed.", "The {food} had never tasted so good."),
        ("That evening {N} knew that {moral}.", "From that day on they always shared what they had."),
    ),
    (  # A storm.
        ("One night a great storm came.", "One evening the sky turned black and a storm began."),
        ("The wind blew, the rain fell, and {N} was afraid.", "{N} heard the thunder and hid in a corner."),
        ("Then there was a knock at the door.", "Suddenly {they} heard a small voice outside."),
        ("It was {a_helper} named {M}, who was wet and cold.", "There stood {M}, {a_helper}, shaking with cold."),
        ("{N} let {M} in and made some hot soup.", "{N} opened the door and lit a warm fire."),
        ("Together they were not afraid any more.", "They told each other stories until the storm was over."),
        ("In the morning the sun was shining, and they were friends.", "And {N} had learnt that {moral}."),
    ),
    (  # Learning a skill.
        ("But {N} had one wish: {they} wanted to learn to {skill}.",
         "There was one thing {they} could not do: {skill}."),
        ("{They} tried on Monday, and it did not work.", "{They} tried once, and it went wrong."),
        ("{They} tried again the next day, and it was a little better.", "The next day {they} tried again."),
        ('"You must be patient," said {M}, {a_helper} who lived nearby.',
         '"Do not give up," said {M}, {a_helper} from next door.'),
        ("So {N} practised every day, in sun and in rain.", "So {N} practised a little every day."),
        ("After a month {N} could {skill}, and everybody was amazed.",
         "One {weather} day it worked at last, and {M} cheered."),
        ("Now {N} knew that {moral}.", "{N} smiled, because {moral}."),
    ),
    (  # A mill without water, after the name of the project.
        ("One summer the wheel of the old mill stood still.", "One {weather} day the mill wheel stopped turning."),
        ("There was no flour and no bread, and everybody was worried.", "Without the wheel there was no bread."),
        ("{N} walked along the headrace, the channel that brings water to the mill.",
         "{N} followed the channel that carried water to the wheel."),
        ("There {they} found {M}, {a_helper}, next to a big fallen tree.",
         "At the end {they} met {a_helper} named {M}, who pointed at a pile of stones."),
        ('"This is what stops the water," said {M}.', '"The water cannot get through," said {M}.'),
        ("They pulled and pushed together until the water ran again.", "Together they cleared the channel."),
        ("The wheel turned, and that evening there was fresh bread for all.",
         "The wheel began to turn, and everybody thanked {N} and {M}."),
    ),
    (  # A gift.
        ("Tomorrow was the birthday of {M}, {a_helper} and {their} best friend.",
         "{Their} best friend was {a_helper} named {M}, who had a birthday soon."),
        ("But {N} had no money to buy a present.", "{N} did not know what to give."),
        ("So {they} took some wood and made {an_item}.", "So {they} worked all night and made {an_item}."),
        ("{They} was afraid that {M} would not like it.",
         "In the morning {they} carried it to {M} with a beating heart."),
        ('"This is the best present of all," said {M}.', '"It is beautiful, because you made it," said {M}.'),
        ("They ate {food} and sang until the stars came out.", "They celebrated together, and {N} was proud."),
    ),
    (  # A quarrel.
        ("{N} had a friend, {a_helper} named {M}.", "{Their} friend {M} was {a_helper}."),
        ("One {weather} day they both wanted the same {item}.", "One day they began to fight about {an_item}."),
        ("They shouted, and each went home alone.", "They pulled so hard that the {item} broke in two."),
        ("At home {N} felt sad and could not sleep.", "That night {N} lay awake and thought about {M}."),
        ("In the morning {they} went to {M} and said sorry.", '"I am sorry," {they} said to {M} the next day.'),
        ("They repaired the {item} and took turns.", '"I am sorry too," said {M}, and they laughed.'),
        ("So they learnt that {moral}.", "After that they never fought about a thing again."),
    ),
    (  # The star.
        ("One {weather} night, a small star fell from the sky.", "One night {N} saw a star fall into the garden."),
        ("It lay {spot} and shone only weakly.", "{N} found it {spot}."),
        ('"I want to go home," said the star.', '"Please help me to get back," whispered the star.'),
        ("{N} asked {M}, {a_helper} who knew the highest hill.",
         "{N} took it to {M}, {a_helper} who could climb very well."),
        ("Together they carried the star up to the top.", "They climbed the whole night, step by step."),
        ("There the wind lifted it, and it flew back into the sky.", "At the top the star jumped up and flew home."),
        ("Since then it shines above {their} house every night.", "Every night it winks at {N} and {M}."),
    ),
    (  # A treasure map.
        ("One {weather} day, {N} found an old map {spot}.", "One day a bird brought {N} an old map."),
        ("It showed the way to a treasure.", "A cross on the map showed where a treasure was."),
        ("{N} set out with {M}, {a_helper}.", "{N} asked {M}, {a_helper}, to come along."),
        ("They walked through a dark wood and over a high hill.", "They walked for three days and were very tired."),
        ("At last they found a box, and in it was only {an_item}.", "Under a stone they found {an_item} and a letter."),
        ('"The real treasure is the way we went together," said {M}.',
         '"It is not gold," said {M}, "but we had a wonderful time."'),
        ("{N} laughed and agreed, and they walked home arm in arm.", "{N} kept it, to remember that {moral}."),
    ),
)  # fmt: skip
SKILLS = ("swim", "sing", "dance", "paint", "read", "whistle", "climb", "skate", "play the flute", "bake bread")
_ENDINGS = ("", "", "The end.", "And they all lived happily.", "And that is the end of the story.")


def write_story(rng: random.Random, hero: str | None = None, name: str | None = None) -> str:
    """Write one story of five to nine sentences."""
    cast = _cast(rng, hero, name)
    slots = dict(cast.slots)
    slots["a_trait"] = article(slots["trait"])
    slots["a_helper"] = article(slots["G"])
    slots["A_helper"] = slots["a_helper"][0].upper() + slots["a_helper"][1:]
    slots["an_item"] = article(slots["item"])
    slots["Their"] = slots["their"].capitalize()
    slots["skill"] = rng.choice(SKILLS)
    parts = [rng.choice(_OPENINGS)]
    if rng.random() < 0.5:
        parts.append(rng.choice(_HABITS))
    parts.extend(rng.choice(step) for step in rng.choice(_PLOTS))
    parts.append(rng.choice(_ENDINGS))
    return " ".join(part for part in parts if part).format(**slots)


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


def _any_hero(rng: random.Random) -> str:
    return rng.choice(ANIMAL_HEROES if rng.random() < 0.7 else PERSON_HEROES)


def ask_story(rng: random.Random) -> tuple[Exchange, str | None]:
    """Ask for a story; gives the exchange and the hero that was asked for."""
    roll = rng.random()
    if roll < 0.2:
        return Exchange(casual(rng, rng.choice(_ASK_ANY)), write_story(rng)), None
    hero = _any_hero(rng)
    if roll < 0.4:
        name = _pick_name(rng, hero)
        question = rng.choice(_ASK_ABOUT).format(a=f"{article(hero)} {rng.choice(('named', 'called'))} {name}")
        return Exchange(question, write_story(rng, hero, name)), hero
    return Exchange(casual(rng, rng.choice(_ASK_ABOUT).format(a=article(hero))), write_story(rng, hero)), hero


def another_story(rng: random.Random, hero: str | None) -> Exchange:
    """Ask for one more story about the same hero."""
    return Exchange(casual(rng, rng.choice(_ASK_AGAIN)), write_story(rng, hero))
