"""How long a routing decision takes: hashing a prompt, looking it up, choosing, and writing the choice down.

Three kinds of prompt: `cold` (nobody has any of it), `next turn` (its endpoint has all but the last 512 tokens) and
`known` (it was there before).
"""

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.cli.benchmarks.lag import percentile
from headrace.gateway.garbage import settle
from headrace.gateway.prefix_index import ChainHashers, Holder, PrefixIndex
from headrace.gateway.router import PromptChain, Router
from headrace.gateway.routing import Prefix

_BLOCK_SIZE = 16
_NUM_KNOWN = 8
_TURN_TOKENS = 512
_VOCABULARY = 150_000
_MAX_INDEX_BYTES = 256 << 20
_TokenIds = npt.NDArray[np.uint32]


class DecisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds, for one kind of prompt."""

    prompt: str
    p50_us: float
    p90_us: float
    p99_us: float
    highest_us: float


class _Endpoint:
    block_size = _BLOCK_SIZE
    weight = 1.0
    num_in_flight = 3
    num_waiting_tokens = 1000

    def __init__(self, name: str, holder: Holder) -> None:
        self.name = name
        self.holders = (holder,)


class _Tokens:
    session_key: int | None = None
    is_text = False

    def __init__(self, token_ids: _TokenIds, hashers: ChainHashers) -> None:
        self.num_tokens = len(token_ids)
        self._token_ids = token_ids
        self._hashers = hashers

    def chains(self, block_size: int) -> Sequence[PromptChain]:
        chain = self._hashers.of(block_size).chain(self._token_ids)
        return (PromptChain(chain, self.num_tokens, block_size),)


class DecisionBench:
    """A router whose index knows a few long prompts."""

    def __init__(self, *, num_endpoints: int, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._chance = np.random.default_rng(1)
        self._hashers = ChainHashers()
        self._index = PrefixIndex(max_bytes=_MAX_INDEX_BYTES)
        names = [f"http://10.0.0.{number}:8000" for number in range(num_endpoints)]
        self._endpoints = [_Endpoint(name, self._index.add_holder(name)) for name in names]
        self._router = Router(Prefix(draw=random.randrange), self._index)
        self._known = [self._new_prompt() for _ in range(_NUM_KNOWN)]
        for prompt in self._known:
            self._decide(prompt)

    def measure(self, *, num_rounds: int, on_kind: Callable[[], None]) -> list[DecisionRow]:
        """Wall time of this process."""
        kinds: dict[str, tuple[Callable[[], _TokenIds], Callable[[_TokenIds], float]]] = {
            "hash only": (self._new_prompt, self._hash_only),
            "cold": (self._new_prompt, self._decide),
            "next turn": (self._next_turn, self._decide),
            "known": (self._known_prompt, self._decide),
        }
        rows = []
        with _collecting_as_a_gateway():
            for prompt, (make, decide) in kinds.items():
                rows.append(_row(prompt, [decide(make()) for _ in range(num_rounds)]))
                on_kind()
        return rows

    def _new_prompt(self) -> _TokenIds:
        return self._chance.integers(0, _VOCABULARY, self._num_tokens, dtype=np.uint32)

    def _next_turn(self) -> _TokenIds:
        prompt = self._known_prompt().copy()
        prompt[-_TURN_TOKENS:] = self._chance.integers(0, _VOCABULARY, _TURN_TOKENS, dtype=np.uint32)
        return prompt

    def _known_prompt(self) -> _TokenIds:
        return self._known[int(self._chance.integers(len(self._known)))]

    def _decide(self, token_ids: _TokenIds) -> float:
        begun_s = time.perf_counter()
        routed = self._router.choose(_Tokens(token_ids, self._hashers), self._endpoints, now=begun_s)
        elapsed_us = (time.perf_counter() - begun_s) * 1e6
        self._router.note_answering(routed, now=begun_s)
        return elapsed_us

    def _hash_only(self, token_ids: _TokenIds) -> float:
        begun_s = time.perf_counter()
        self._hashers.of(_BLOCK_SIZE).chain(token_ids)
        return (time.perf_counter() - begun_s) * 1e6


@contextmanager
def _collecting_as_a_gateway() -> Iterator[None]:
    """Python's garbage collector as a gateway sets it once it is ready."""
    thresholds = gc.get_threshold()
    settle()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _row(prompt: str, times_us: Sequence[float]) -> DecisionRow:
    p50, p90, p99 = (percentile(times_us, share) for share in (0.5, 0.9, 0.99))
    return DecisionRow(prompt=prompt, p50_us=p50, p90_us=p90, p99_us=p99, highest_us=max(times_us))
