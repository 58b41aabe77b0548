"""What is measured of an engine: how many streams, of how many tokens, and the figures that come of their times."""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headrace.cli.benchmarks.engine_child import Ids
from headrace.cli.benchmarks.engine_process import Generation

NUM_PROMPT_TOKENS = 128
LONG_PROMPT_TOKENS = 1024
_NUM_REPEATS = 3
"""Of a prompt that the prefix cache knows: it takes milliseconds."""
_NUM_COMPARED_PROMPTS = 5
_COMPARED_PROMPT_TOKENS = 32
NUM_COMPARED_TOKENS = 32
_FIRST_ID = 100
"""The ids before it may mean something special."""


class Generator(Protocol):
    """What is measured; `EngineProcess` is one."""

    has_prefix_cache: bool

    def generate(self, prompts: Ids, *, num_tokens: int) -> Generation: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One column."""

    title: str
    unit: str
    is_higher_better: bool = True


FIGURES = {
    "single": Figure(title="1 stream", unit="tokens/s"),
    "streams16": Figure(title="16 streams", unit="tokens/s"),
    "streams64": Figure(title="64 streams", unit="tokens/s"),
    "cold": Figure(title="1,024 tokens in", unit="s", is_higher_better=False),
    "hit": Figure(title="again, cached", unit="s", is_higher_better=False),
}


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over the rounds."""

    median: float
    lowest: float
    highest: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(median=statistics.median(values), lowest=min(values), highest=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Random prompts for a vocabulary: the same for every engine in a round, others in every round."""

    vocab_size: int
    num_tokens: int = 128
    """Generated for each prompt."""

    def prompts(self, name: str, *, num_prompts: int, num_tokens: int) -> Ids:
        rng = random.Random(name)  # noqa: S311 - reproducible prompts, not a secret
        return [[rng.randrange(_FIRST_ID, self.vocab_size) for _ in range(num_tokens)] for _ in range(num_prompts)]

    def compared(self) -> Ids:
        """The prompts whose answers are compared with the reference's."""
        return self.prompts("compared", num_prompts=_NUM_COMPARED_PROMPTS, num_tokens=_COMPARED_PROMPT_TOKENS)


Samples = dict[str, list[float]]
"""By figure."""
Slot = Callable[[Generator, Workload, int], Samples]
"""One part of a round, of which the number is given."""


def single_stream(engine: Generator, workload: Workload, number: int) -> Samples:
    """Tokens/s after the first, of one request alone."""
    prompts = workload.prompts(f"single {number}", num_prompts=1, num_tokens=NUM_PROMPT_TOKENS)
    done = engine.generate(prompts, num_tokens=workload.num_tokens)
    return {"single": [(workload.num_tokens - 1) / (done.elapsed_s - done.first_token_s)]}


def _streams(num_streams: int) -> Slot:
    """New tokens/s of so many requests that come at once, from the call to the last token: prefill included."""

    def measure(engine: Generator, workload: Workload, number: int) -> Samples:
        name = f"streams{num_streams}"
        prompts = workload.prompts(f"{name} {number}", num_prompts=num_streams, num_tokens=NUM_PROMPT_TOKENS)
        done = engine.generate(prompts, num_tokens=workload.num_tokens)
        return {name: [num_streams * workload.num_tokens / done.elapsed_s]}

    return measure


def first_token(engine: Generator, workload: Workload, number: int) -> Samples:
    """Time to the first token of a long prompt, then of the same one again where there is a prefix cache."""
    prompts = workload.prompts(f"long {number}", num_prompts=1, num_tokens=LONG_PROMPT_TOKENS)
    cold = engine.generate(prompts, num_tokens=1).first_token_s
    if not engine.has_prefix_cache:
        return {"cold": [cold]}
    hits = [engine.generate(prompts, num_tokens=1).first_token_s for _ in range(_NUM_REPEATS)]
    return {"cold": [cold], "hit": [statistics.median(hits)]}


SLOTS: dict[str, Slot] = {
    "single": single_stream,
    "first token": first_token,
    "streams16": _streams(16),
    "streams64": _streams(64),
}


def num_matching(ids: Ids, reference: Ids) -> list[int]:
    """For each prompt, how many tokens agree before the first that does not."""
    return [_num_equal(own, expected) for own, expected in zip(ids, reference, strict=True)]


def _num_equal(ids: Sequence[int], reference: Sequence[int]) -> int:
    pairs = enumerate(zip(ids, reference, strict=False))
    return next((place for place, (own, expected) in pairs if own != expected), min(len(ids), len(reference)))
