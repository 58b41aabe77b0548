"""Who stories are about: every kind of hero, its one name, and where it is at home.

Owns the kinds and their names. Does not own the plots nor how stories are asked for.
"""

from __future__ import annotations

from typing import NamedTuple

FOREST = ("in a quiet forest", "under an old oak tree", "in a green valley", "in a wood behind the hill")
FARM = ("on a farm near the lake", "in a small village", "on a green meadow", "next to an old mill")
WATER = ("on a little island", "by a wide river", "near a blue lake", "by a quiet pond")
FAR = ("in a warm land in the south", "in a cave under the mountain", "in a valley far away", "on a high hill")
COAST = ("in a snowy land in the north", "on a rocky island", "in a house by the sea", "near a cold bay")
TOWN = ("in a town by the sea", "in a narrow street", "in a house with a red roof", "in a castle on a rock")


class Kind(NamedTuple):
    """A kind of hero. The name follows from the kind, so a story cannot mix up who is who."""

    name: str
    she: bool
    homes: tuple[str, ...]


ANIMALS = {
    "fox": Kind("Felix", False, FOREST),
    "cat": Kind("Clara", True, TOWN),
    "bear": Kind("Bruno", False, FOREST),
    "owl": Kind("Olivia", True, FOREST),
    "horse": Kind("Hazel", True, FARM),
    "mouse": Kind("Mia", True, FARM),
    "dog": Kind("Toby", False, FARM),
    "rabbit": Kind("Rosie", True, FOREST),
    "hedgehog": Kind("Henry", False, FOREST),
    "duck": Kind("Daisy", True, WATER),
    "frog": Kind("Freddy", False, WATER),
    "squirrel": Kind("Susie", True, FOREST),
    "goat": Kind("Gustav", False, FARM),
    "sheep": Kind("Sally", True, FARM),
    "pig": Kind("Penny", True, FARM),
    "hen": Kind("Hilda", True, FARM),
    "crow": Kind("Conrad", False, FOREST),
    "wolf": Kind("Walter", False, FOREST),
    "lion": Kind("Leopold", False, FAR),
    "elephant": Kind("Elsa", True, FAR),
    "turtle": Kind("Tilda", True, WATER),
    "swan": Kind("Sophie", True, WATER),
    "donkey": Kind("Diego", False, FARM),
    "bee": Kind("Bella", True, FARM),
    "penguin": Kind("Pablo", False, COAST),
    "tiger": Kind("Timo", False, FAR),
    "dragon": Kind("Dorian", False, FAR),
    "robot": Kind("Rufus", False, TOWN),
    "snail": Kind("Stella", True, FARM),
    "spider": Kind("Silvia", True, FARM),
    "snake": Kind("Selma", True, FAR),
    "cow": Kind("Cora", True, FARM),
    "monkey": Kind("Max", False, FAR),
    "bird": Kind("Betty", True, FOREST),
    "deer": Kind("Doris", True, FOREST),
    "otter": Kind("Oliver", False, WATER),
    "ant": Kind("Anton", False, FOREST),
    "parrot": Kind("Polly", True, FAR),
    "goose": Kind("Greta", True, WATER),
    "beaver": Kind("Boris", False, WATER),
    "badger": Kind("Basil", False, FOREST),
    "butterfly": Kind("Flora", True, FARM),
    "hamster": Kind("Harry", False, TOWN),
    "seal": Kind("Lotta", True, COAST),
}

PEOPLE = {
    "boy": Kind("Tim", False, FARM),
    "girl": Kind("Nelly", True, FARM),
    "king": Kind("Karl", False, TOWN),
    "queen": Kind("Victoria", True, TOWN),
    "miller": Kind("Martin", False, FARM),
    "baker": Kind("Berta", True, TOWN),
    "sailor": Kind("Samuel", False, COAST),
    "farmer": Kind("Frieda", True, FARM),
    "princess": Kind("Paulina", True, TOWN),
    "prince": Kind("Philip", False, TOWN),
    "teacher": Kind("Thea", True, TOWN),
    "gardener": Kind("George", False, FARM),
    "fisherman": Kind("Fergus", False, COAST),
    "shepherd": Kind("Sven", False, FARM),
    "painter": Kind("Pia", True, TOWN),
    "giant": Kind("Gunnar", False, FAR),
    "knight": Kind("Kilian", False, TOWN),
    "wizard": Kind("Wilbur", False, FOREST),
    "witch": Kind("Wanda", True, FOREST),
    "pirate": Kind("Patrick", False, COAST),
    "fairy": Kind("Fiona", True, FOREST),
}

KINDS = ANIMALS | PEOPLE
_PLACES_IN_LIST = {kind: place for place, kind in enumerate(KINDS)}
_STEPS_TO_COMPANIONS = (3, 8, 14, 21, 31)


def favourite(kind: str, options: tuple[str, ...]) -> str:
    """Give what this kind has more often than other things, so that greedy stories differ from kind to kind."""
    return options[_PLACES_IN_LIST[kind] * 17 % len(options)]


def companions(kind: str) -> tuple[str, ...]:
    """Give the animals that may go with a hero; the first one does so most often, and none is of the hero's kind."""
    animals = tuple(ANIMALS)
    return tuple(animals[(_PLACES_IN_LIST[kind] + step) % len(animals)] for step in _STEPS_TO_COMPANIONS)
