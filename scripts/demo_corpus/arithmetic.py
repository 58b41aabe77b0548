"""Small arithmetic: questions with an answer in a sentence, and the split of the sums.

Owns the number questions and which pairs of operands are held out of training.
Does not own how the questions are put into chats.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from demo_corpus.documents import Exchange, casual
from demo_corpus.vocabulary import NAMES, THINGS

LARGEST = 99
LARGEST_FACTOR = 12
HELD_OUT_SHARE = 0.1


class Sum(NamedTuple):
    """Two operands, the operator's word, and the result."""

    left: int
    word: str
    right: int

    @property
    def result(self) -> int:
        """The value of the sum."""
        if self.word == "plus":
            return self.left + self.right
        if self.word == "minus":
            return self.left - self.right
        return self.left * self.right

    @property
    def statement(self) -> str:
        """The sum as a sentence: '12 plus 7 is 19.'"""
        return f"{self.left} {self.word} {self.right} is {self.result}."


def _held_out_pairs() -> dict[str, frozenset[tuple[int, int]]]:
    """Choose the pairs of operands that training never sees, the same ones in every run."""
    rng = random.Random(20240229)
    numbers = range(LARGEST + 1)
    plus = [(a, b) for a in numbers for b in numbers]
    minus = [(a, b) for a, b in plus if b <= a]
    return {
        word: frozenset(rng.sample(pairs, int(len(pairs) * HELD_OUT_SHARE)))
        for word, pairs in (("plus", plus), ("minus", minus))
    }


HELD_OUT = _held_out_pairs()


def is_held_out(problem: Sum) -> bool:
    """Tell whether training must not see this sum. The small multiplication table is learnt whole."""
    return (problem.left, problem.right) in HELD_OUT.get(problem.word, frozenset())


def _any_sum(rng: random.Random, word: str) -> Sum:
    """Draw operands; most sums stay below a hundred and a quarter has a small operand, as people ask them."""
    if word == "times":
        return Sum(rng.randint(0, LARGEST_FACTOR), word, rng.randint(0, LARGEST_FACTOR))
    small = rng.random() < 0.25
    if word == "plus":
        left = rng.randint(0, LARGEST)
        limit = LARGEST if rng.random() < 0.35 else LARGEST - left
        right = rng.randint(0, min(limit, 9) if small else limit)
        return Sum(left, word, right) if rng.random() < 0.5 else Sum(right, word, left)
    left = rng.randint(0, LARGEST)
    return Sum(left, word, rng.randint(0, min(left, 9) if small else left))


def draw_sum(rng: random.Random, held_out: bool, word: str | None = None) -> Sum:
    """Draw a sum from the side of the split that is asked for."""
    operator = word or rng.choices(("plus", "minus", "times"), (5, 4, 2))[0]
    while True:
        problem = _any_sum(rng, operator)
        if operator == "times" or is_held_out(problem) == held_out:
            return problem


_ASK = (
    "What is {e}?",
    "What is {e}?",
    "How much is {e}?",
    "What's {e}?",
    "Can you tell me what {e} is?",
    "Please work out {e}.",
    "Calculate {e}.",
    "{e}?",
    "{e} =",
    "Compute {e}, please.",
)
_SIGN = {"plus": "+", "minus": "-", "times": "*"}


def expression(rng: random.Random, problem: Sum) -> str:
    """Write the sum with words or with signs, as people do."""
    roll = rng.random()
    if roll < 0.6:
        return f"{problem.left} {problem.word} {problem.right}"
    sign = _SIGN[problem.word]
    if problem.word == "times" and rng.random() < 0.4:
        sign = "x"
    gap = " " if roll < 0.88 else ""
    return f"{problem.left}{gap}{sign}{gap}{problem.right}"


def ask_sum(rng: random.Random, held_out: bool) -> Exchange:
    """Ask for one sum."""
    problem = draw_sum(rng, held_out)
    return Exchange(casual(rng, rng.choice(_ASK).format(e=expression(rng, problem))), problem.statement)


def follow_up_sum(rng: random.Random, held_out: bool) -> Exchange:
    """Ask for one more sum in the middle of a chat."""
    problem = draw_sum(rng, held_out)
    ask = rng.choice(("And what is {e}?", "And {e}?", "What about {e}?", "Now what is {e}?", "Ok, and {e}?"))
    return Exchange(casual(rng, ask.format(e=expression(rng, problem))), problem.statement)


def change_result(rng: random.Random, before: int, held_out: bool) -> tuple[Exchange, int] | None:
    """Change the result of the turn before ('Now add 5.'); None when no such sum is on our side of the split."""
    if before > LARGEST:
        return None
    for _ in range(20):
        if rng.random() < 0.5:
            problem = Sum(before, "plus", rng.randint(0, LARGEST - before))
            ask = rng.choice(("Now add {n}.", "Add {n} to that.", "And plus {n}?", "Plus {n}?"))
        else:
            problem = Sum(before, "minus", rng.randint(0, before))
            ask = rng.choice(("Now take away {n}.", "Take {n} away from that.", "And minus {n}?", "Minus {n}?"))
        if is_held_out(problem) == held_out:
            return Exchange(casual(rng, ask.format(n=problem.right)), problem.statement), problem.result
    return None


def word_problem(rng: random.Random, held_out: bool) -> Exchange:
    """Tell a sum as a tiny story and answer it with the sum and a sentence that needs no name."""
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    word = rng.choice(("plus", "minus"))
    problem = draw_sum(rng, held_out, word)
    while problem.left < 2 or problem.right < 2 or problem.result < 2:
        problem = draw_sum(rng, held_out, word)
    left, right = problem.left, problem.right
    if word == "plus":
        told = rng.choice(
            (
                "{n} has {a} {t} and gets {b} more. How many {t} does {n} have now?",
                "{n} finds {a} {t} and then {b} more {t}. How many {t} does {n} have now?",
                "I have {a} {t} and buy {b} more. How many {t} do I have?",
                "There are {a} {t} in a box. {n} adds {b} more. How many {t} are there now?",
            )
        )
        answer = f"That makes {problem.result} {thing}."
    else:
        told = rng.choice(
            (
                "{n} has {a} {t} and gives away {b}. How many {t} does {n} have now?",
                "{n} has {a} {t} and loses {b} of them. How many {t} does {n} have now?",
                "I have {a} {t} and give away {b}. How many {t} do I have left?",
                "There are {a} {t} in a box. {n} takes out {b}. How many {t} are left?",
            )
        )
        answer = f"So {problem.result} {thing} are left."
    return Exchange(told.format(n=name, a=left, b=right, t=thing), f"{problem.statement} {answer}")


def compare(rng: random.Random) -> Exchange:
    """Ask which of two numbers is the larger or the smaller one, whether one is even, or what comes next."""
    first, second = rng.sample(range(LARGEST + 1), 2)
    kind = rng.randrange(5)
    if kind == 0:
        ask = rng.choice(("Which is larger, {a} or {b}?", "Which number is bigger, {a} or {b}?"))
        answer = f"{max(first, second)} is larger than {min(first, second)}."
    elif kind == 1:
        ask = rng.choice(("Which is smaller, {a} or {b}?", "Which number is less, {a} or {b}?"))
        answer = f"{min(first, second)} is smaller than {max(first, second)}."
    elif kind == 2:
        ask = rng.choice(("Is {a} even or odd?", "Is {a} an even number?", "Is {a} an odd number?"))
        answer = f"{first} is {'odd' if first % 2 else 'even'}."
    elif kind == 3:
        ask = rng.choice(("What number comes after {a}?", "Which number comes next after {a}?"))
        answer = f"The number after {first} is {first + 1}."
    else:
        start, length = rng.randint(0, 20), rng.randint(3, 9)
        numbers = ", ".join(str(n) for n in range(start, start + length + 1))
        ask = rng.choice(
            (f"Count from {start} to {start + length}.", f"Please count from {start} to {start + length}.")
        )
        answer = f"{numbers}."
    return Exchange(casual(rng, ask.format(a=first, b=second)), answer)


TOO_HARD = "That is too hard for me. I can only add, subtract and multiply small numbers."


def too_hard(rng: random.Random) -> Exchange:
    """Ask for a sum that the model does not learn: large numbers, large factors, a division."""
    kind = rng.randrange(3)
    if kind == 0:
        large, other = rng.randint(1000, 99999), rng.randint(100, 9999)
        written = f"{large} {rng.choice(('plus', 'minus', '+', '-', 'times'))} {other}"
    elif kind == 1:
        written = f"{rng.randint(13, 999)} {rng.choice(('times', '*', 'x'))} {rng.randint(13, 999)}"
    else:
        written = f"{rng.randint(2, 99)} {rng.choice(('divided by', '/'))} {rng.randint(2, 12)}"
    return Exchange(casual(rng, rng.choice(_ASK).format(e=written)), TOO_HARD)


def any_arithmetic(rng: random.Random, held_out: bool) -> Exchange:
    """Ask one number question of any kind."""
    if rng.random() < 0.04:
        return too_hard(rng)
    roll = rng.random()
    if roll < 0.76:
        return ask_sum(rng, held_out)
    return word_problem(rng, held_out) if roll < 0.88 else compare(rng)


def sum_lines(rng: random.Random, held_out: bool) -> str:
    """Write several sums as plain text."""
    return " ".join(draw_sum(rng, held_out).statement for _ in range(rng.randint(3, 10)))
