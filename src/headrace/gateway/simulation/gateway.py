"""One of several gateways over the same engines, which know nothing of each other: the gateway's own router, with an
index and counts of load that hold what this gateway has sent, the KV events, which every gateway hears, and what
engines say of their load when they are asked. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.gateway.endpoints.reported_load import Elsewhere, ReportedLoad
from headrace.gateway.prefix_index import ChainHasher, Holder, PrefixIndex, StoredBlocks
from headrace.gateway.router import Prompt, Routed, Router
from headrace.gateway.routing import Policy
from headrace.gateway.simulation.engine import Job


@dataclass(slots=True, kw_only=True)
class EngineSeen:
    """An engine as one gateway sees it, and so a target of its router."""

    name: str
    block_size: int
    holders: tuple[Holder, ...]
    weight: float = 1.0
    num_own: int = 0
    num_waiting_tokens: int = 0
    elsewhere: Elsewhere = field(default_factory=Elsewhere)

    @property
    def num_in_flight(self) -> int:
        return self.num_own + self.elsewhere.num_requests


class SimulatedGateway:
    """Routes the requests that come to it."""

    def __init__(
        self, policy: Policy, *, engine_names: Sequence[str], block_size: int, has_events: bool, max_index_bytes: int
    ) -> None:
        self.index = PrefixIndex(max_bytes=max_index_bytes)
        self._router = Router(policy, self.index)
        self._block_size = block_size
        self._engines = [self._see(name, has_events=has_events) for name in engine_names]

    def choose(self, prompt: Prompt, *, now: float) -> Routed:
        """An engine by its number, on which load counts from now."""
        routed = self._router.choose(prompt, self._engines, now=now)
        engine = self._engines[routed.index]
        engine.num_own += 1
        engine.num_waiting_tokens += routed.num_new_tokens
        return routed

    def note_answering(self, routed: Routed, job: Job, *, now: float) -> None:
        """The prompt is computed, and the answer says how much of it was cached."""
        self._engines[routed.index].num_waiting_tokens -= routed.num_new_tokens
        self._router.note_answering(routed, now=now)
        self._router.note_cached_tokens(routed, job.num_cached_blocks * self._block_size)

    def note_end(self, routed: Routed) -> None:
        """The answer is complete."""
        self._engines[routed.index].num_own -= 1

    def hear_load(self, number: int, *, num_in_hand: int) -> None:
        """An engine was asked for its load."""
        engine = self._engines[number]
        engine.elsewhere.note(ReportedLoad(num_running=num_in_hand, num_waiting=0), num_own=engine.num_own)

    def hear_stored(self, number: int, stored: StoredBlocks, hasher: ChainHasher) -> None:
        """An event of an engine."""
        self.index.add_blocks(self._engines[number].holders[0], stored, hasher)

    def hear_removed(self, number: int, block: int) -> None:
        """An event of an engine."""
        self.index.remove_block(self._engines[number].holders[0], block)

    def _see(self, name: str, *, has_events: bool) -> EngineSeen:
        holder = self.index.add_holder(name)
        holder.has_events = has_events
        return EngineSeen(name=name, block_size=self._block_size, holders=(holder,))

    def __repr__(self) -> str:
        return f"SimulatedGateway({self._router!r})"
