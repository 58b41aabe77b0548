"""From a prompt and the endpoints that could take it to one of them: look up, choose, and learn from how it went. Pure.

The router knows the index and the policy; it knows neither requests nor sockets. `headrace replay` runs it unchanged.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from headrace.gateway.prefix_index import NOTHING_HELD, Chain, Holder, Holdings, Path, PrefixIndex
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


class Target(Candidate, Protocol):
    """An endpoint, as far as routing looks at it."""

    @property
    def block_size(self) -> int: ...

    @property
    def holders(self) -> Sequence[Holder]:
        """Its caches, at least one: one for each data-parallel rank."""
        ...


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
    paths: Sequence[Path | None]
    """Of each chain, through the index."""
    uses: Sequence[tuple[int, float]] = ()
    """Of a single prompt: up to which block the holder last used it when."""


class Router:
    """See the module. Belongs to one thread."""

    def __init__(self, policy: Policy, index: PrefixIndex) -> None:
        self.policy = policy
        self.index = index

    def choose(self, prompt: Prompt, targets: Sequence[Target], *, now: float) -> Routed:
        """One of `targets`, at least one. Whoever asks reserves load there before the next choice."""
        views = {size: self._views(prompt, size, now=now) for size in {target.block_size for target in targets}}
        found = _found(views, targets)
        choice = self.policy.choose(targets, _facts(prompt, views, targets, found))
        target, (num_cached, num_stored, _) = targets[choice.index], found.get(choice.index, _NOTHING)
        chosen, holder = views[target.block_size], target.holders[0]
        uses = self.index.last_use_s(holder, chosen[0].path) if len(chosen) == 1 else ()
        return Routed(
            index=choice.index,
            reason=choice.reason,
            num_new_tokens=max(1, prompt.num_tokens - num_cached),
            num_cached_tokens=num_cached if chosen and not prompt.is_text else None,
            num_stored_tokens=num_stored,
            is_text=prompt.is_text,
            holder=holder,
            chains=[view.prompt for view in chosen],
            paths=self._expect(holder, chosen, until_s=now + EXPECTED_S),
            uses=uses,
        )

    def note_answering(self, routed: Routed, *, now: float) -> None:
        """The endpoint has begun to answer: the prompt is in its cache."""
        holder, are_told = routed.holder, routed.holder.has_events and not routed.is_text
        for one, path in zip(routed.chains, routed.paths, strict=True):
            if are_told:
                self.index.expect_until(holder, one.chain, until_s=now + EVENT_LAG_S)
            else:
                self.index.store(holder, one.chain, now=now, path=path)

    def note_cached_tokens(self, routed: Routed, num_cached_tokens: int) -> None:
        """The endpoint said how much of the prompt it had. Less than was known means that it has dropped something."""
        if routed.holder.has_events or routed.is_text or num_cached_tokens >= routed.num_stored_tokens:
            return
        for chain in routed.chains[:1]:
            first_gone = num_cached_tokens // chain.block_size
            last_use_s = next((used_s for end, used_s in routed.uses if first_gone < end), None)
            if last_use_s is not None:
                self.index.forget_used_until(routed.holder, last_use_s)

    def _views(self, prompt: Prompt, block_size: int, *, now: float) -> list["_View"]:
        views = []
        for one in prompt.chains(block_size):
            path = self.index.follow(one.chain)
            views.append(_View(one, path, self.index.holdings(path, now=now)))
        return views

    def _expect(self, holder: Holder, chosen: Sequence["_View"], *, until_s: float) -> list[Path | None]:
        path = chosen[0].path if len(chosen) == 1 else None  # what one prompt changes, another's path may not know
        return [self.index.expect(holder, view.prompt.chain, until_s=until_s, path=path) for view in chosen]

    def __repr__(self) -> str:
        return f"Router({self.policy!r}, {self.index!r})"


class _View(msgspec.Struct, frozen=True):
    """A prompt and what the index knows of it."""

    prompt: PromptChain
    path: Path
    holdings: Holdings


_Found: TypeAlias = tuple[int, int, int]
"""What one target has: cached tokens, those of them that are stored, and blocks of the first prompt."""

_NOTHING: _Found = (0, 0, 0)


def _found(views: Mapping[int, Sequence[_View]], targets: Sequence[Target]) -> dict[int, _Found]:
    """What the targets have that have anything, by their index."""
    slots: set[int] = set()
    for of_size in views.values():
        for view in of_size:
            slots.update(view.holdings)
    found: dict[int, _Found] = {}
    if not slots:
        return found
    for at, target in enumerate(targets):
        for holder in target.holders:
            if holder.slot in slots:
                found[at] = _found_at(target, views[target.block_size])
                break
    return found


def _found_at(target: Target, views: Sequence[_View]) -> _Found:
    """What a target has of all prompts together, of each in that of its caches that has most."""
    num_cached, num_stored, num_first_blocks = _NOTHING
    for view in views:
        most = NOTHING_HELD
        for holder in target.holders:
            held = view.holdings.get(holder.slot)
            if held is not None and held.num_expected > most.num_expected:
                most = held
        if most is NOTHING_HELD:
            continue
        num_cached += view.prompt.num_cached(most.num_expected)
        num_stored += view.prompt.num_cached(most.num_stored)
        if view is views[0]:
            num_first_blocks = most.num_expected
    return num_cached, num_stored, num_first_blocks


def _facts(
    prompt: Prompt, views: Mapping[int, Sequence[_View]], targets: Sequence[Target], found: Mapping[int, _Found]
) -> RequestFacts:
    """Keys are taken from the first prompt, in the smallest blocks that a target has."""
    size = min(views)
    first = views[size][0].prompt if views[size] else None
    if first is None or not len(first.chain):
        return RequestFacts(num_tokens=prompt.num_tokens, session_key=prompt.session_key)
    cached = [0] * (len(targets) if found else 0)
    most = 0
    for at, (num_cached, _, num_first_blocks) in found.items():
        cached[at] = num_cached
        if num_first_blocks > most and targets[at].block_size == size:
            most = num_first_blocks
    last = len(first.chain) - 1
    return RequestFacts(
        num_tokens=prompt.num_tokens,
        num_cached_tokens=cached,
        head_key=first.chain[min(last, max(0, HEAD_TOKENS // first.block_size - 1))],
        novel_key=first.chain[min(last, most)],
        session_key=prompt.session_key,
    )
