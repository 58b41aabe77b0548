"""The router against a search of every cache of every endpoint, prompt by prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.prefix_index import ChainHasher, Holder, PrefixIndex
from headrace.gateway.router import EXPECTED_S, PromptChain, Router
from headrace.gateway.routing import Candidate, Choice, Draw, PolicyName, RequestFacts
from headrace.tokenization.tokenizer import pack_token_ids

HASHERS = {size: ChainHasher(size) for size in (1, 2)}
PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=1, max_size=3)
"""Of few tokens, so that prompts share and branch."""


@dataclass(frozen=True)
class Engine:
    name: str
    block_size: int
    holders: tuple[Holder, ...]
    num_in_flight: int = 0
    num_waiting_tokens: int = 0
    weight: float = 1.0


class Tokens:
    """What is routed: prompts of tokens."""

    session_key = None
    is_text = False

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self._ids = [pack_token_ids(prompt) for prompt in prompts]
        self.num_tokens = sum(map(len, prompts))

    def chains(self, block_size: int) -> list[PromptChain]:
        return [PromptChain(HASHERS[block_size].chain(ids), len(ids), block_size) for ids in self._ids]


class Told:
    """A policy that does as it is told and writes down what it was shown."""

    name: PolicyName = "prefix"

    def __init__(self, *, draw: Draw) -> None:
        self.draw = draw
        self.facts = RequestFacts()

    def choose(self, candidates: Sequence[Candidate], facts: RequestFacts) -> Choice:
        self.facts = facts
        return Choice(self.draw(len(candidates)), "told")


def fleet_of(index: PrefixIndex) -> list[Engine]:
    """Of two block sizes, the last with two caches."""
    fleet = [Engine(name, size, (index.add_holder(name),)) for name, size in (("a", 1), ("b", 2), ("c", 1))]
    return [*fleet, Engine("d", 1, (index.add_holder("d0"), index.add_holder("d1")))]


def cached_at(index: PrefixIndex, engine: Engine, prompt: Tokens, *, now: float) -> int:
    """Cached tokens of all prompts, each in the cache that has most of it."""
    return sum(
        one.num_cached(
            max(index.held(index.follow(one.chain), holder, now=now).num_expected for holder in engine.holders)
        )
        for one in prompt.chains(engine.block_size)
    )


@given(st.lists(st.tuples(PROMPTS, st.integers(0, 3), st.booleans()), max_size=8), PROMPTS)
def test_a_policy_is_shown_what_each_endpoint_has(
    history: list[tuple[list[list[int]], int, bool]], last: list[list[int]]
) -> None:
    index, told = PrefixIndex(max_bytes=1 << 20), [0]
    policy = Told(draw=lambda _: told[0])
    router, fleet = Router(policy, index), fleet_of(index)
    for now, (prompts, at, is_answered) in enumerate(history):
        told[0] = at
        routed = router.choose(Tokens(prompts), fleet, now=now * EXPECTED_S / 2)
        if is_answered:
            router.note_answering(routed, now=now * EXPECTED_S / 2)
    now = len(history) * EXPECTED_S / 2
    prompt = Tokens(last)
    cached = [cached_at(index, engine, prompt, now=now) for engine in fleet]
    routed = router.choose(prompt, fleet, now=now)

    assert list(policy.facts.num_cached_tokens or [0] * len(fleet)) == cached
    assert routed.num_cached_tokens == cached[routed.index]
    assert routed.num_new_tokens == prompt.num_tokens - cached[routed.index] >= 1


@given(PROMPTS, st.integers(0, 3), st.booleans())
def test_a_prompt_is_expected_where_it_was_sent_and_stays_there_once_answered(
    prompts: list[list[int]], at: int, is_answered: bool
) -> None:
    index = PrefixIndex(max_bytes=1 << 20)
    router, fleet = Router(Told(draw=lambda _: at), index), fleet_of(index)
    routed = router.choose(Tokens(prompts), fleet, now=0.0)
    if is_answered:
        router.note_answering(routed, now=1.0)

    for one in Tokens(prompts).chains(fleet[at].block_size):
        path, holder = index.follow(one.chain), fleet[at].holders[0]
        assert index.held(path, holder, now=2.0).num_expected == len(one.chain)
        assert index.held(path, holder, now=EXPECTED_S).num_expected == (len(one.chain) if is_answered else 0)
