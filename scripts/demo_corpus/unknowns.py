"""Questions that the model cannot answer, worded in many unlike ways, and the polite answer to all of them.

Owns their words. Does not own questions that have an answer: a question here must fit none of those.
"""

from __future__ import annotations

import random

from demo_corpus.documents import Exchange, casual, invented_name, sentence_case
from demo_corpus.facts import CAPITALS, FALLBACK, UNKNOWN_QUESTIONS, UNKNOWN_TOPICS
from demo_corpus.vocabulary import NAMES, TOWNS

_ABOUT_TOPICS = (
    "Tell me about {t}.", "What do you know about {t}?", "What do you think about {t}?", "Can you explain {t}?",
    "Who is {t}?", "What is {t}?", "Write something about {t}.", "I want to know everything about {t}.",
    "Why do people like {t}?", "How does {t} work?", "When did {t} begin?",
)  # fmt: skip

# Slots are drawn from _WORDS; one template with its words makes many questions.
_TEMPLATES = (
    "Who won the {sport} {contest}?", "Who won the {contest}?", "Who won the {contest} {lately}?",
    "Which team won the {sport} {contest}?", "Did {name} win the {contest}?", "What was the score of the {contest}?",
    "Who plays {sport} best?", "When is the next {sport} {contest}?", "Who is the best {sport} player?",
    "Who wrote the {work}?", "Who wrote {book}?", "Who is the author of {book}?", "Who directed the {work}?",
    "Who painted the {work}?", "Who sang this {work}?", "Who invented the {machine}?", "Who discovered {stuff}?",
    "Who is the president of {country}?", "Who is the king of {country}?", "Who was the first man on {planet}?",
    "Who is the mayor of {town}?", "Who is the boss of {company}?", "Who is the richest man in {town}?",
    "Who built the {building}?", "Who is {name}?", "Who is the wife of {name}?",
    "When was the {machine} invented?", "When was {name} born?", "When did the {event} end?",
    "When did the {event} start?", "When does the {shop} open?", "When is {holiday}?", "When was the {building} built?",
    "Where can I buy {stuff}?", "Where is the next {shop}?", "Where is the {building}?", "Where did {name} live?",
    "Where is {name} now?", "Where was the {event}?", "Where do I find the best {food}?",
    "How much does a {machine} cost?", "How much is a {machine}?", "How much {stuff} is there in {country}?",
    "How tall is the {building}?", "How far is it to {town}?", "How far is it from {town} to {country}?",
    "How many people live in {country}?", "How many people live in {town}?", "How old is the {building}?",
    "How do I repair a {machine}?", "How do I get to {town}?", "How do you say {food} in {language}?",
    "How do I cook {food}?", "How does a {machine} work?", "How do I write a {text} in {language}?",
    "How heavy is a {machine}?", "How fast is a {machine}?", "How long does it take to get to {planet}?",
    "What is the population of {country}?", "What is the population of {town}?", "What is the price of {stuff}?",
    "What is the currency of {country}?", "What is the national dish of {country}?", "What is the flag of {country}?",
    "What language do people speak in {country}?", "What is the best {machine}?", "What is the best {shop} in {town}?",
    "What is the weather in {town}?", "What time is it in {town}?", "What happened in {town} {lately}?",
    "What happened {lately}?", "What did {name} say {lately}?", "What is {company}?", "What is {stuff} made of?",
    "What is the recipe for {food}?", "What is the plot of {book}?", "What is the name of my {relative}?",
    "What should I cook tonight?", "What should I wear {soon}?", "What is on television {soon}?",
    "What is the temperature on {planet}?", "What is the tallest {building} in {country}?", "What is new in {town}?",
    "Which {machine} should I buy?", "Which {shop} is open {soon}?", "Which {book_kind} do you like best?",
    "Why is {stuff} so expensive?", "Why did the {event} happen?", "Why is my {machine} so slow?",
    "Why is {name} angry with me?", "Why does my {relative} not call me?", "Why is {planet} so hot?",
    "Is {company} a good company?", "Is {town} bigger than {town2}?", "Is there life on {planet}?",
    "Is the {shop} open {soon}?", "Is {stuff} healthy?", "Will it rain {soon}?", "Will {name} win the {contest}?",
    "Should I learn {language}?", "Should I buy a {machine}?", "Should I marry {name}?", "Do you like {food}?",
    "Do you know {name}?", "Do you speak {language}?", "Have you read {book}?", "Have you been to {country}?",
    "Did you see the {contest} {lately}?", "Does {name} love me?", "Are there trains to {town} {soon}?",
    "Can you speak {language}?", "Can you write a {text}?", "Can you call my {relative}?", "Can you order {food}?",
    "Can you help me with my {machine}?", "Can you drive a {machine}?", "Can I eat {stuff}?",
    "Write a {text} about {town}.", "Write a {text} for my {relative}.", "Write a {language} {text}.",
    "Write a {code} function.", "Write a program in {code}.", "Write a {code} script that reads a file.",
    "Explain {code} to me.", "How do I sort a list in {code}?", "Translate {food} into {language}.",
    "Translate this {text} into {language}.", "Summarize this {text}.", "Summarize {book} for me.", "Read my {text}.",
    "Correct my {text}.", "Show me a picture of the {building}.", "Show me the way to {town}.",
    "Book a table at the {shop}.", "Book a flight to {town} for {soon}.", "Call my {relative}.", "Order {food} for me.",
    "Play some {music}.", "Play the {work} for me.", "Set an alarm for {soon}.", "Remind me to buy {stuff} {soon}.",
    "Recommend a good {book_kind}.", "Give me a recipe for {food}.", "Give me some advice about {stuff}.",
    "Find a {shop} in {town}.", "Search for a cheap {machine}.", "Turn on the {machine}.", "Turn off the light.",
    "Plan a trip to {country}.", "Describe the {building}.", "Compare {company} and {company2}.",
    "I lost my {machine}.", "I need a new {machine}.", "I have to write a {text} {soon}.", "My {machine} is broken.",
    "I want to travel to {country}.", "My {relative} is ill. What should I do?", "I am looking for a {shop}.",
    "The {event} was terrible.", "The {machine} does not work.", "{name} won the {contest} {lately}.",
)  # fmt: skip
_WORDS: dict[str, tuple[str, ...]] = {
    "sport": ("football", "tennis", "hockey", "basketball", "golf", "chess", "rugby", "baseball", "handball"),
    "contest": ("match", "game", "race", "final", "cup", "election", "tournament", "world cup", "lottery", "prize"),
    "lately": ("yesterday", "last night", "last week", "last year", "on Sunday", "this morning", "in 1990", "in 2010"),
    "soon": ("tomorrow", "today", "tonight", "next week", "on Monday", "at seven", "this evening", "now"),
    "work": ("song", "film", "book", "poem", "opera", "picture", "novel", "play"),
    "book": ("Hamlet", "Moby Dick", "the Odyssey", "Faust", "the Iliad", "Don Quixote", "Dracula", "the Bible"),
    "book_kind": ("book", "film", "novel", "song", "television show", "restaurant", "game", "magazine"),
    "machine": (
        "car", "phone", "laptop", "television", "printer", "motorbike", "washing machine", "radio", "plane", "toaster",
        "tractor", "steam engine", "light bulb", "camera", "heater", "bike", "truck", "battery",
    ),
    "stuff": (
        "gold", "oil", "coffee", "sugar", "silver", "iron", "oxygen", "penicillin", "chocolate", "petrol", "plastic",
        "electricity", "radium", "wine", "rubber", "concrete", "butter", "medicine",
    ),
    "food": ("pizza", "pasta", "rice", "curry", "salad", "fish and chips", "pancakes", "sushi", "a steak", "noodles"),
    "planet": ("the moon", "Mars", "Venus", "Jupiter", "Saturn", "Pluto", "Mercury"),
    "company": ("Google", "Apple", "Toyota", "Siemens", "Nokia", "Sony", "Boeing", "the bank", "Amazon"),
    "building": ("Eiffel tower", "cathedral", "pyramid", "bridge", "great wall", "opera house", "station", "stadium"),
    "event": ("war", "battle", "revolution", "concert", "storm", "accident", "meeting", "crisis", "earthquake"),
    "shop": ("bakery", "pharmacy", "museum", "supermarket", "restaurant", "hospital", "cinema", "post office", "bank"),
    "holiday": ("Easter", "Christmas", "my birthday", "Mother's Day", "Ramadan", "Halloween", "Thanksgiving"),
    "language": ("French", "German", "Spanish", "Latin", "Chinese", "Italian", "Russian", "Greek", "Arabic", "Dutch"),
    "code": ("Python", "Java", "Rust", "C", "JavaScript", "SQL", "HTML", "Go"),
    "text": ("letter", "poem", "essay", "report", "song", "speech", "text", "email", "article", "review"),
    "relative": ("mother", "father", "sister", "brother", "boss", "wife", "husband", "uncle", "teacher", "neighbour"),
    "music": ("music", "jazz", "rock music", "piano music", "Mozart", "pop songs", "Bach"),
}  # fmt: skip


def _filled(rng: random.Random) -> str:
    """Fill one template."""
    words = {slot: rng.choice(choices) for slot, choices in _WORDS.items()}
    words["company2"] = rng.choice(_WORDS["company"])
    words["country"] = rng.choice(list(CAPITALS))
    words["town"], words["town2"] = rng.sample(TOWNS, 2)
    words["name"] = rng.choice(NAMES) if rng.random() < 0.4 else invented_name(rng)
    return sentence_case(rng.choice(_TEMPLATES).format(**words))


def _gibberish(rng: random.Random) -> str:
    """Write words that mean nothing."""
    words = (invented_name(rng) for _ in range(rng.randint(1, 5)))
    return " ".join(word if rng.random() < 0.3 else word.lower() for word in words) + rng.choice(("", "?", ".", "!"))


def unknown(rng: random.Random) -> Exchange:
    """Ask something that the model cannot know; the answer says so and says what to ask instead."""
    roll = rng.random()
    if roll < 0.60:
        question = _filled(rng)
    elif roll < 0.72:
        question = rng.choice(UNKNOWN_QUESTIONS)
    elif roll < 0.96:
        topic = rng.choice(UNKNOWN_TOPICS) if rng.random() < 0.55 else invented_name(rng)
        question = rng.choice(_ABOUT_TOPICS).format(t=topic)
    else:
        question = _gibberish(rng)
    return Exchange(casual(rng, question), FALLBACK)
