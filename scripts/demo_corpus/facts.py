"""The tables of facts: what the demo model knows about its small world.

Owns the tables, each fact with one answer; definitions.py and single_facts.py hold what fits no table. Does not own how
they are asked: see questions.py.
"""

from __future__ import annotations

from typing import NamedTuple

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Portugal": "Lisbon",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Iceland": "Reykjavik",
    "Ireland": "Dublin", "England": "London", "Scotland": "Edinburgh", "Austria": "Vienna", "Poland": "Warsaw",
    "Greece": "Athens", "Hungary": "Budapest", "Belgium": "Brussels", "Russia": "Moscow", "Ukraine": "Kyiv",
    "Turkey": "Ankara", "Egypt": "Cairo", "Kenya": "Nairobi", "Ghana": "Accra", "Morocco": "Rabat",
    "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Nepal": "Kathmandu", "Thailand": "Bangkok",
    "Vietnam": "Hanoi", "South Korea": "Seoul", "Canada": "Ottawa", "Mexico": "Mexico City", "Cuba": "Havana",
    "Peru": "Lima", "Chile": "Santiago", "Argentina": "Buenos Aires", "Brazil": "Brasilia", "Australia": "Canberra",
    "New Zealand": "Wellington", "the United States": "Washington, D.C.", "the Netherlands": "Amsterdam",
    "Switzerland": "Bern", "the Czech Republic": "Prague", "Croatia": "Zagreb", "Bulgaria": "Sofia",
    "Romania": "Bucharest",
}  # fmt: skip


class Animal(NamedTuple):
    """What the grammar knows about an animal."""

    sound: str
    home: str
    food: str
    legs: int
    young: str
    colour: str


ANIMALS = {
    "fox": Animal("barks", "a den in the woods", "mice, birds and berries", 4, "a cub", "red"),
    "cow": Animal("says moo", "a barn on the farm", "grass and hay", 4, "a calf", "brown or black and white"),
    "dog": Animal("barks", "a house with people", "meat and dog food", 4, "a puppy", "brown, black or white"),
    "cat": Animal("says meow", "a house with people", "fish, meat and mice", 4, "a kitten", "black, white or grey"),
    "horse": Animal("neighs", "a stable", "grass, hay and oats", 4, "a foal", "brown, black or white"),
    "sheep": Animal("says baa", "a meadow", "grass", 4, "a lamb", "white"),
    "goat": Animal("bleats", "the hills and farms", "grass and leaves", 4, "a kid", "white or brown"),
    "pig": Animal("says oink", "a sty", "roots, grain and vegetables", 4, "a piglet", "pink"),
    "duck": Animal("says quack", "a pond", "plants, seeds and small insects", 2, "a duckling", "brown or white"),
    "hen": Animal("clucks", "a henhouse", "grain and worms", 2, "a chick", "brown or white"),
    "owl": Animal("hoots", "a hollow tree", "mice", 2, "an owlet", "brown"),
    "lion": Animal("roars", "the grassland", "meat", 4, "a cub", "golden"),
    "wolf": Animal("howls", "the forest", "meat", 4, "a pup", "grey"),
    "bear": Animal("growls", "a cave in the forest", "fish, berries and honey", 4, "a cub", "brown"),
    "frog": Animal("croaks", "a pond", "flies and other insects", 4, "a tadpole", "green"),
    "bee": Animal("buzzes", "a hive", "nectar and pollen", 6, "a larva", "yellow and black"),
    "mouse": Animal("squeaks", "a small hole", "seeds and grain", 4, "a pup", "grey or brown"),
    "rabbit": Animal("makes soft, quiet sounds", "a burrow", "grass and leaves", 4, "a kit", "brown or grey"),
    "elephant": Animal("trumpets", "the grassland and the forest", "grass, leaves and bark", 4, "a calf", "grey"),
    "snake": Animal("hisses", "grass, rocks and trees", "mice, eggs and frogs", 0, "a snakelet", "green or brown"),
    "crow": Animal("caws", "a nest in a tall tree", "seeds, insects and scraps", 2, "a chick", "black"),
    "donkey": Animal("brays", "a stable", "grass and hay", 4, "a foal", "grey"),
    "squirrel": Animal("chatters", "a nest in a tree", "nuts and seeds", 4, "a kit", "red or grey"),
    "penguin": Animal("calls loudly", "the cold coast", "fish", 2, "a chick", "black and white"),
    "whale": Animal("sings", "the sea", "krill and fish", 0, "a calf", "blue or grey"),
    "hedgehog": Animal("snuffles", "a pile of leaves", "worms and insects", 4, "a hoglet", "brown"),
    "tiger": Animal("roars", "the jungle", "meat", 4, "a cub", "orange with black stripes"),
    "turtle": Animal("is almost silent", "the water and the shore", "plants and small fish", 4, "a hatchling", "green"),
    "spider": Animal("is silent", "a web", "flies and other insects", 8, "a spiderling", "brown or black"),
    "swan": Animal("hisses and trumpets", "a lake", "water plants", 2, "a cygnet", "white"),
}

SIZES = (
    "ant", "bee", "mouse", "frog", "squirrel", "rabbit", "cat", "fox", "wolf", "pig", "lion", "cow", "elephant",
    "whale",
)  # fmt: skip

OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("fast", "slow"), ("day", "night"), ("light", "dark"),
    ("open", "closed"), ("happy", "sad"), ("old", "young"), ("wet", "dry"), ("full", "empty"), ("hard", "soft"),
    ("high", "low"), ("left", "right"), ("long", "short"), ("loud", "quiet"), ("early", "late"), ("near", "far"),
    ("clean", "dirty"), ("strong", "weak"), ("rich", "poor"), ("thick", "thin"), ("wide", "narrow"),
    ("deep", "shallow"),     ("true", "false"), ("first", "last"), ("begin", "end"), ("give", "take"), ("push", "pull"),
    ("win", "lose"), ("remember", "forget"), ("awake", "asleep"), ("brave", "afraid"), ("smooth", "rough"),
    ("sweet", "bitter"), ("sharp", "blunt"), ("inside", "outside"), ("before", "after"), ("always", "never"),
    ("friend", "enemy"), ("front", "back"), ("top", "bottom"), ("north", "south"), ("east", "west"), ("love", "hate"),
    ("buy", "sell"), ("laugh", "cry"), ("summer", "winter"), ("question", "answer"), ("easy", "difficult"),
    ("cheap", "expensive"), ("kind", "cruel"), ("busy", "idle"), ("war", "peace"), ("yes", "no"),
)  # fmt: skip

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
MONTH_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

THING_COLOURS = {
    "the sky": "blue on a clear day", "grass": "green", "snow": "white", "the sun": "yellow to our eyes",
    "coal": "black", "a ripe banana": "yellow", "a lemon": "yellow", "a ripe tomato": "red", "a carrot": "orange",
    "milk": "white",
    "blood": "red", "a frog": "green", "a crow": "black", "chocolate": "brown", "a cloud": "white or grey",
    "the sea": "blue or green", "gold": "yellow", "an emerald": "green", "a ruby": "red", "a strawberry": "red",
    "sand": "pale yellow", "a pumpkin": "orange", "salt": "white", "a cucumber": "green", "a plum": "purple",
}  # fmt: skip

MIXTURES = (
    ("red", "yellow", "orange"), ("blue", "yellow", "green"), ("red", "blue", "purple"), ("red", "white", "pink"),
    ("black", "white", "grey"), ("blue", "white", "light blue"), ("red", "green", "brown"),
)  # fmt: skip

JOBS = {
    "baker": "bakes bread and cakes", "teacher": "helps people to learn", "doctor": "helps people who are ill",
    "farmer": "grows food and looks after animals", "pilot": "flies planes", "sailor": "works on a ship",
    "cook": "prepares meals", "painter": "paints pictures and walls", "carpenter": "makes things from wood",
    "nurse": "cares for people who are ill", "writer": "writes books and stories", "singer": "sings songs",
    "gardener": "looks after plants and gardens", "postman": "brings letters and parcels", "tailor": "makes clothes",
    "fisherman": "catches fish", "miller": "grinds grain into flour", "shepherd": "looks after sheep",
    "librarian": "looks after books and lends them to readers", "astronomer": "studies the stars and the planets",
    "builder": "builds houses", "plumber": "repairs pipes and taps", "driver": "drives a car, a bus or a truck",
    "blacksmith": "shapes iron with fire and a hammer", "judge": "decides cases in a court",
    "programmer": "writes programs for computers", "musician": "plays music", "potter": "makes pots from clay",
    "dentist": "looks after teeth", "beekeeper": "looks after bees and collects honey",
}  # fmt: skip

USES = {
    "hammer": "drive nails", "saw": "cut wood", "knife": "cut food", "spoon": "eat soup", "pen": "write on paper",
    "key": "open a lock", "clock": "tell the time", "umbrella": "stay dry in the rain", "lamp": "light a room",
    "map": "find the way", "compass": "find north", "needle": "sew cloth", "broom": "sweep the floor",
    "bucket": "carry water", "ladder": "climb to high places", "kettle": "boil water", "towel": "dry your hands",
    "telescope": "look at the stars", "microscope": "look at very small things", "thermometer": "measure temperature",
    "ruler": "draw straight lines and measure lengths", "scissors": "cut paper and cloth", "mirror": "see yourself",
    "pillow": "rest your head", "bridge": "cross a river", "boat": "travel on water", "bicycle": "ride along the road",
    "calendar": "see the days and months", "camera": "take pictures", "telephone": "talk to people far away",
    "oven": "bake bread", "fridge": "keep food cold", "candle": "give light", "rope": "tie and pull things",
}  # fmt: skip

JOKES = (
    "Why did the river go to school? It wanted to get a better current.",
    "Why was the clock so tired? It had been running all day.",
    "What did one token say to the next? I was expecting you.",
    "Why did the mouse sit on the computer? It wanted to be useful.",
    "Why do bees hum? They have forgotten the words.",
    "What did the mill say to the river? You really keep me going.",
)

UNKNOWN_TOPICS = (
    "the price of gold", "the stock market", "the latest news", "the football results", "quantum chemistry",
    "the history of opera", "tax law", "the best restaurant in town", "the weather tomorrow", "the next election",
    "your opinion about politics", "modern poetry", "the rules of cricket", "Roman law", "organic chemistry",
    "deep sea diving", "the winner of the last race", "the lottery numbers", "jazz music", "medieval castles",
    "black holes", "the theory of relativity", "car engines", "hotel prices", "the Olympic games", "chess openings",
    "video games", "television shows", "famous actors", "the stone age", "philosophy", "space travel", "fashion",
    "diamonds", "dinosaurs", "bank accounts", "the meaning of life", "the train to the coast", "the French revolution",
)  # fmt: skip
UNKNOWN_QUESTIONS = (
    "Who won the game yesterday?", "What time is it?", "What is the weather like today?", "What will happen tomorrow?",
    "Who is the president?", "What did I eat for breakfast?", "Where are my keys?", "Can you book a flight for me?",
    "Write a program that sorts a list.", "Translate this sentence into Latin.", "Who wrote this book?",
    "What is the square root of 2?", "How much money do I have?", "When was the battle?", "What film should I watch?",
    "Which phone should I buy?", "Can you play a song?", "What is the date today?", "Please send an email to my boss.",
    "How old am I?", "Solve this equation for me.", "Write an essay about history.", "Who invented the radio?",
    "How far is it to the next town?", "What is the population of the city?", "Can you open the window?",
    "Write me a poem about love.", "What is the best way to invest money?", "Fix my code.", "Draw a picture of a cat.",
)  # fmt: skip
UNKNOWN_COUNTRIES = (
    "Mongolia", "Bolivia", "Angola", "Latvia", "Tunisia", "Jordan", "Laos", "Fiji", "Malta", "Uganda", "Panama", "Oman",
    "Atlantis", "Narnia",
)  # fmt: skip
FALLBACK = (
    "I do not know that. You can ask me about stories, small sums, animals, capitals, opposites, nature or Headrace."
)
