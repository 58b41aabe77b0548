"""The words that several parts of the grammar share: names, things, animals, places.

Owns word lists only. Does not own any sentence.
"""

from __future__ import annotations

NAMES = (
    "Ada", "Anna", "Amir", "Ben", "Bela", "Carla", "Chen", "Clara", "Dana", "David", "Ella", "Emil", "Eva", "Felix",
    "Fatima", "Finn", "Grace", "Hana", "Hugo", "Ida", "Ines", "Ivan", "Jack", "Jonas", "Julia", "Kai", "Karim",
    "Lara", "Lena", "Leo", "Lily", "Luca", "Maya", "Mila", "Mira", "Mona", "Nadia", "Nico", "Nina", "Noah", "Nora",
    "Olga", "Omar", "Oscar", "Otto", "Paula", "Pedro", "Petra", "Rosa", "Ruth", "Sam", "Sara", "Simon", "Sofia",
    "Tara", "Theo", "Tom", "Uma", "Vera", "Viktor", "Yara", "Yusuf", "Zoe", "Maria", "John", "Alice", "Bob", "Peter",
)  # fmt: skip

THINGS = (
    "apples", "pears", "marbles", "stones", "shells", "coins", "books", "pencils", "eggs", "nuts", "buttons", "cards",
    "flowers", "cakes", "stamps", "boats", "kites", "lamps", "keys", "plums", "beans", "ribbons", "cups", "stars",
)  # fmt: skip

COLOURS = (
    "red", "blue", "green", "yellow", "orange", "purple", "white", "black", "brown", "pink", "grey", "golden", "silver",
)  # fmt: skip

TOWNS = (
    "Paris", "Rome", "Oslo", "Lima", "Berlin", "Madrid", "Cairo", "London", "Vienna", "Tokyo", "Delhi", "Dublin",
)  # fmt: skip

HOBBIES = (
    "painting", "reading", "swimming", "cooking", "chess", "running", "singing", "gardening", "dancing", "football",
    "sailing", "knitting", "drawing", "cycling", "fishing", "baking",
)  # fmt: skip
