"""From a prompt and the endpoints that could take it to one of them: look up, choose, and learn from how it went. Pure.

The router knows the index and the policy; it knows neither requests nor sockets. `headrace replay` runs it unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.gateway.prefix_index import Chain, Held, Holder, PrefixIndex
from headrace.gateway.routing import Candidate, Policy, RequestFacts

EXPECTED_S = 60.0
"""How long a prompt on its way is believed to reach its endpoint's cache, if the endpoint does not answer."""
EVENT_LAG_S = 0.5
"""After an answer has begun, the KV events of its prompt have come."""
HEAD_TOKENS = 512
"""What `prefix_hash` looks at."""


@dataclass(frozen=True, slots=True)
class PromptChain:
    """One prompt in blocks of one size."""

    chain: Chain
    num_tokens: int
    block_size: int

    def num_cached(self, num_blocks: int) -> int:
        """Tokens that an engine with these first blocks need not compute; the last one it always does."""
        return max(0, min(num_blocks, (self.num_tokens - 1) // self.block_size)) * self.block_size


class Prompt(Protocol):
    """What is routed."""

    @property
    def num_tokens(self) -> int:
        """All its prompts together, at least 1; estimated where there are no tokens."""
        ...

    @property
    def session_key(self) -> int | None: ...

    @property
    def is_text(self) -> bool:
        """Blocks of text rather than of tokens: no event and no `usage` tells of those."""
        ...

    def chains(self, block_size: int) -> Sequence[PromptChain]:
        """Its prompts for an endpoint with blocks of that size; none where nothing is known of it."""
        ...


class Target(Protocol):
    """An endpoint, as far as routing looks at it."""

    @property
    def name(self) -> str: ...

    @property
    def block_size(self) -> int: ...

    @property
    def weight(self) -> float: ...

    @property
    def holders(self) -> Sequence[Holder]:
        """Its caches, at least one: one for each data-parallel rank."""
        ...

    @property
    def num_in_flight(self) -> int: ...

    @property
    def num_waiting_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A decision, and what must be remembered to learn from its outcome."""

    index: int
    """Of the chosen target."""
    reason: str
    num_new_tokens: int
    """To be computed there; an estimate where there are no tokens."""
    num_cached_tokens: int | None
    """Predicted; None where there are no tokens."""
    num_stored_tokens: int
    """Of these, known and not only expected."""
    is_text: bool
    holder: Holder
    chains: Sequence[PromptChain]
    uses: Sequence[tuple[int, float]] = ()
    """Of a single prompt: up to which block the holder last used it when."""


class Router:
    """See the module. Belongs to one thread."""

    def __init__(self, policy: Policy, index: PrefixIndex) -> None:
        self.policy = policy
        self.index = index

    def choose(self, prompt: Prompt, targets: Sequence[Target], *, now: float) -> Routed:
        """One of `targets`, at least one. Whoever asks reserves load there before the next choice."""
        looked_up = {size: prompt.chains(size) for size in {target.block_size for target in targets}}
        held = self._look_up(looked_up, targets, now=now)
        cached = [sum(chain.num_cached(one.num_expected) for chain, one in found) for found in held]
        candidates = [
            Candidate(target.name, target.num_in_flight, target.num_waiting_tokens, num_cached, target.weight)
            for target, num_cached in zip(targets, cached, strict=True)
        ]
        facts = _facts(prompt, held)
        choice = self.policy.choose(candidates, facts)
        target = targets[choice.index]
        chains = looked_up[target.block_size]
        holder = target.holders[0]
        routed = Routed(
            index=choice.index,
            reason=choice.reason,
            num_new_tokens=max(1, prompt.num_tokens - cached[choice.index]),
            num_cached_tokens=cached[choice.index] if chains and not prompt.is_text else None,
            num_stored_tokens=sum(chain.num_cached(one.num_stored) for chain, one in held[choice.index]),
            is_text=prompt.is_text,
            holder=holder,
            chains=chains,
            uses=self.index.last_use_s(holder, chains[0].chain) if len(chains) == 1 else (),
        )
        for chain in chains:
            self.index.expect(holder, chain.chain, until_s=now + EXPECTED_S)
        return routed

    def note_answering(self, routed: Routed, *, now: float) -> None:
        """The endpoint has begun to answer: the prompt is in its cache."""
        for chain in routed.chains:
            if routed.holder.has_events and not routed.is_text:
                self.index.expect_until(routed.holder, chain.chain, until_s=now + EVENT_LAG_S)
            else:
                self.index.store(routed.holder, chain.chain, now=now)

    def note_cached_tokens(self, routed: Routed, num_cached_tokens: int) -> None:
        """The endpoint said how much of the prompt it had. Less than was known means that it has dropped something."""
        if routed.holder.has_events or routed.is_text or num_cached_tokens >= routed.num_stored_tokens:
            return
        for chain in routed.chains[:1]:
            first_gone = num_cached_tokens // chain.block_size
            last_use_s = next((used_s for end, used_s in routed.uses if first_gone < end), None)
            if last_use_s is not None:
                self.index.forget_used_until(routed.holder, last_use_s)

    def _look_up(
        self, chains: dict[int, Sequence[PromptChain]], targets: Sequence[Target], *, now: float
    ) -> list[list[tuple[PromptChain, Held]]]:
        """For each target what it has of each prompt; of several caches that which has most."""
        found: list[list[tuple[PromptChain, Held]]] = [[] for _ in targets]
        for size, prompts in chains.items():
            concerned = [at for at, target in enumerate(targets) if target.block_size == size]
            holders = [holder for at in concerned for holder in targets[at].holders]
            for prompt in prompts:
                held = iter(self.index.held(prompt.chain, holders, now=now))
                for at in concerned:
                    of_target = [next(held) for _ in targets[at].holders]
                    found[at].append((prompt, max(of_target, key=lambda one: one.num_expected)))
        return found

    def __repr__(self) -> str:
        return f"Router({self.policy!r}, {self.index!r})"


def _facts(prompt: Prompt, held: Sequence[Sequence[tuple[PromptChain, Held]]]) -> RequestFacts:
    first = next((found[0][0] for found in held if found and len(found[0][0].chain)), None)
    if first is None:
        return RequestFacts(num_tokens=prompt.num_tokens, session_key=prompt.session_key)
    most = max(found[0][1].num_expected for found in held if found and found[0][0] is first)
    last = len(first.chain) - 1
    return RequestFacts(
        num_tokens=prompt.num_tokens,
        head_key=first.chain[min(last, max(0, HEAD_TOKENS // first.block_size - 1))],
        novel_key=first.chain[min(last, most)],
        session_key=prompt.session_key,
    )
