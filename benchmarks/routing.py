"""How long a routing decision takes for prompts of 128k tokens: hashing, looking up, choosing and writing down.

    python benchmarks/routing.py [--endpoints 8] [--tokens 131072] [--rounds 300]

Three kinds of prompt, each new in each round: `cold` (nobody has any of it), `next turn` (its endpoint has all but the
last 512 tokens) and `known` (it was there before). Wall time of one process; run it on an idle core.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from headrace.gateway.prefix_index import ChainHashers, Holder, PrefixIndex
from headrace.gateway.router import PromptChain, Router
from headrace.gateway.routing import Prefix

_BLOCK_SIZE = 16
TokenIds = npt.NDArray[np.uint32]


class Endpoint:
    block_size = _BLOCK_SIZE
    weight = 1.0
    num_in_flight = 3
    num_waiting_tokens = 1000

    def __init__(self, name: str, holder: Holder) -> None:
        self.name = name
        self.holders = (holder,)


class Tokens:
    session_key: int | None = None
    is_text = False

    def __init__(self, token_ids: TokenIds, hashers: ChainHashers) -> None:
        self.num_tokens = len(token_ids)
        self._token_ids = token_ids
        self._hashers = hashers

    def chains(self, block_size: int) -> Sequence[PromptChain]:
        chain = self._hashers.of(block_size).chain(self._token_ids)
        return (PromptChain(chain, self.num_tokens, block_size),)


class Bench:
    def __init__(self, *, num_endpoints: int, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._chance = np.random.default_rng(1)
        self._hashers = ChainHashers()
        self._index = PrefixIndex(max_bytes=256 << 20)
        names = [f"http://10.0.0.{number}:8000" for number in range(num_endpoints)]
        self._endpoints = [Endpoint(name, self._index.add_holder(name)) for name in names]
        self._router = Router(Prefix(draw=random.randrange), self._index)
        self._known = [self.new_prompt() for _ in range(8)]
        for prompt in self._known:
            self.decide(prompt)

    def new_prompt(self) -> TokenIds:
        return self._chance.integers(0, 150_000, self._num_tokens, dtype=np.uint32)

    def next_turn(self) -> TokenIds:
        prompt = self.known().copy()
        prompt[-512:] = self._chance.integers(0, 150_000, 512, dtype=np.uint32)
        return prompt

    def known(self) -> TokenIds:
        return self._known[int(self._chance.integers(len(self._known)))]

    def decide(self, token_ids: TokenIds) -> float:
        """Microseconds."""
        begun_s = time.perf_counter()
        routed = self._router.choose(Tokens(token_ids, self._hashers), self._endpoints, now=begun_s)
        elapsed_us = (time.perf_counter() - begun_s) * 1e6
        self._router.note_answering(routed, now=begun_s)
        return elapsed_us

    def hash_only(self, token_ids: TokenIds) -> float:
        begun_s = time.perf_counter()
        self._hashers.of(_BLOCK_SIZE).chain(token_ids)
        return (time.perf_counter() - begun_s) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Time routing decisions.")
    parser.add_argument("--endpoints", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    bench = Bench(num_endpoints=arguments.endpoints, num_tokens=arguments.tokens)
    ways: dict[str, tuple[Callable[[], TokenIds], Callable[[TokenIds], float]]] = {
        "hash only": (bench.new_prompt, bench.hash_only),
        "cold": (bench.new_prompt, bench.decide),
        "next turn": (bench.next_turn, bench.decide),
        "known": (bench.known, bench.decide),
    }
    print(f"{arguments.endpoints} endpoints, {arguments.tokens} tokens, {arguments.rounds} rounds, us")
    print(f"{'':10} {'p50':>8} {'p90':>8} {'p99':>8} {'max':>8}")
    for name, (make, decide) in ways.items():
        times_us = sorted(decide(make()) for _ in range(arguments.rounds))
        marks = (times_us[int(len(times_us) * share)] for share in (0.5, 0.9, 0.99))
        print(f"{name:10} " + " ".join(f"{mark:8.0f}" for mark in (*marks, times_us[-1])))


if __name__ == "__main__":
    main()
