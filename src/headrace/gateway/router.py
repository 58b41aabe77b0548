"""From a prompt and the endpoints that could take it to one of them: look up, choose, and learn from how it went. Pure.

The router knows the index and the policy; it knows neither requests nor sockets. `headrace replay` runs it unchanged.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from headrace.gateway.prefix_index import Chain, Held, Holder, Path, PrefixIndex
from headrace.gateway.routing import Candidate, Policy, RequestFacts

EXPECTED_S = 60.0
"""How long a prompt on its way is believed to reach its endpoint's cache, if the endpoint does not answer."""
EVENT_LAG_S = 0.5
"""After an answer has begun, the KV events of its prompt have come."""
HEAD_TOKENS = 512
"""What `prefix_hash` looks at."""


class PromptChain(msgspec.Struct, frozen=True):
    """One prompt in blocks of one size."""

    chain: Chain
    num_tokens: int
    block_size: int

    def num_cached(self, num_blocks: int) -> int:
        """Tokens that an engine with these first blocks need not compute; the last one it always does."""
        limit = (self.num_tokens - 1) // self.block_size
        return min(num_blocks, limit) * self.block_size


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


class Routed(msgspec.Struct, frozen=True, kw_only=True):
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
        sizes = {target.block_size for target in targets}
        views = {
            size: [_View(chain, self.index.follow(chain.chain)) for chain in prompt.chains(size)] for size in sizes
        }
        found = [self._look_up(views[target.block_size], target, now=now) for target in targets]
        candidates = [
            Candidate(
                target.name, target.num_in_flight, target.num_waiting_tokens, one.num_cached_tokens, target.weight
            )
            for target, one in zip(targets, found, strict=True)
        ]
        choice = self.policy.choose(candidates, _facts(prompt, views, targets, found))
        target, of_chosen = targets[choice.index], found[choice.index]
        chosen_views, holder = views[target.block_size], target.holders[0]
        routed = Routed(
            index=choice.index,
            reason=choice.reason,
            num_new_tokens=max(1, prompt.num_tokens - of_chosen.num_cached_tokens),
            num_cached_tokens=of_chosen.num_cached_tokens if chosen_views and not prompt.is_text else None,
            num_stored_tokens=of_chosen.num_stored_tokens,
            is_text=prompt.is_text,
            holder=holder,
            chains=[view.prompt for view in chosen_views],
            uses=self.index.last_use_s(holder, chosen_views[0].path) if len(chosen_views) == 1 else (),
        )
        for view in chosen_views:
            self.index.expect(holder, view.prompt.chain, until_s=now + EXPECTED_S)
        return routed

    def note_answering(self, routed: Routed, *, now: float) -> None:
        """The endpoint has begun to answer: the prompt is in its cache."""
        are_told = routed.holder.has_events and not routed.is_text
        for chain in routed.chains:
            self.index.expect_until(routed.holder, chain.chain, until_s=now + (EVENT_LAG_S if are_told else 0.0))
            if not are_told:
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

    def _look_up(self, views: Sequence["_View"], target: Target, *, now: float) -> "_Found":
        """What a target has of all prompts together, in that of its caches that has most; and blocks of the first."""
        num_cached, num_stored, num_first_blocks = 0, 0, 0
        for at, view in enumerate(views):
            most = self.index.held(view.path, target.holders[0], now=now)
            for holder in target.holders[1:]:
                most = max(most, self.index.held(view.path, holder, now=now), key=_num_expected)
            num_cached += view.prompt.num_cached(most.num_expected)
            num_stored += view.prompt.num_cached(most.num_stored)
            if at == 0:
                num_first_blocks = most.num_expected
        return _Found(num_cached, num_stored, num_first_blocks)

    def __repr__(self) -> str:
        return f"Router({self.policy!r}, {self.index!r})"


class _View(NamedTuple):
    """A prompt and what the index knows of it."""

    prompt: PromptChain
    path: Path


class _Found(NamedTuple):
    """What one target has."""

    num_cached_tokens: int
    num_stored_tokens: int
    num_first_blocks: int


def _num_expected(held: Held) -> int:
    return held.num_expected


def _facts(
    prompt: Prompt, views: Mapping[int, Sequence[_View]], targets: Sequence[Target], found: Sequence[_Found]
) -> RequestFacts:
    """Keys are taken from the first prompt, in the smallest blocks that a target has."""
    size = min(views)
    first = views[size][0].prompt if views[size] else None
    if first is None or not len(first.chain):
        return RequestFacts(num_tokens=prompt.num_tokens, session_key=prompt.session_key)
    most = max(one.num_first_blocks for target, one in zip(targets, found, strict=True) if target.block_size == size)
    last = len(first.chain) - 1
    return RequestFacts(
        num_tokens=prompt.num_tokens,
        head_key=first.chain[min(last, max(0, HEAD_TOKENS // first.block_size - 1))],
        novel_key=first.chain[min(last, most)],
        session_key=prompt.session_key,
    )
