"""Who holds how much of a prompt. Pure: chains, events and `now` in, counts out.

Theory. Runs of blocks are found by the hash of their first block; a prompt is followed from run to run, which takes a
few look-ups however long it is. Each run knows what each endpoint has of it: `stored` is known (a KV event said so, or
the endpoint has answered such a prompt), `expected` is on its way there and believed for a while.

Rule 1: a prefix counts as far as it is held without a hole, as engines count it.
Rule 2: an endpoint with KV events has what they say. Of one without them its cache is assumed to drop what was used
longest ago first: when an answer shows that something is gone, all that was used no later is taken for gone too.
Rule 3: memory is bounded; the run used longest ago goes first, and before it whatever continues it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headrace.gateway.prefix_index.chain import Chain, ChainHasher
from headrace.gateway.prefix_index.run import BlockName, Hold, Run
from headrace.gateway.prefix_index.runs import Path, Runs, still_leads_along


class Holder:
    """One cache: that of an endpoint, or of one of its data-parallel ranks. Made by the index."""

    __slots__ = ("has_events", "horizon_s", "is_removed", "name", "num_copies", "places", "slot")

    def __init__(self, name: str, *, slot: int) -> None:
        self.name = name
        self.slot = slot
        self.has_events = False
        self.is_removed = False
        """Whatever is still told of it is not taken in."""
        self.horizon_s = float("-inf")
        """What was last used then or before is taken for gone."""
        self.places: dict[BlockName, int] = {}
        """Where the blocks stand that events have named."""
        self.num_copies: dict[BlockName, int] = {}
        """Of blocks that the engine has computed more than once, how many more."""

    def __repr__(self) -> str:
        return f"Holder({self.name}, has_events={self.has_events}, num_named={len(self.places)})"


class Held(NamedTuple):
    """How many of a prompt's first blocks one cache has."""

    num_stored: int
    num_expected: int
    """Stored, or on their way; never less than `num_stored`."""


NOTHING_HELD = Held(0, 0)

Holdings: TypeAlias = dict[int, Held]
"""What each cache has of a prompt, by its slot; those that have nothing are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlocks:
    """Neighbouring blocks that an engine has stored: its names for them and our own hashes."""

    names: Sequence[BlockName]
    parent: BlockName | None
    """Its name for the block before the first; None at the start of a prompt."""
    start: int
    """What a chain starts from, where there is no parent."""
    own_hashes: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixIndexStatistics:
    """The index now, and what it did."""

    num_bytes: int
    num_runs: int
    num_blocks: int
    num_evicted_runs: int
    num_orphans: int
    """Blocks that were not taken in since the block before them is not known."""


class PrefixIndex:
    """See the module. Belongs to one thread."""

    def __init__(self, *, max_bytes: int) -> None:
        self._runs = Runs(max_bytes=max_bytes, names=self)
        self._num_orphans = 0
        self._holders: dict[int, Holder] = {}
        self._next_slot = 0

    def add_holder(self, name: str) -> Holder:
        """A cache of which nothing is known yet."""
        holder = Holder(name, slot=self._next_slot)
        self._next_slot += 1
        self._holders[holder.slot] = holder
        return holder

    def remove_holder(self, holder: Holder) -> None:
        """Forget a cache and all that it had."""
        self.clear(holder)
        holder.is_removed = True
        self._holders.pop(holder.slot, None)

    def clear(self, holder: Holder) -> None:
        """The cache is empty now."""
        holder.places.clear()
        holder.num_copies.clear()
        for run in self._runs.with_slot(holder.slot):
            hold = run.holds.pop(holder.slot)
            run.num_names -= len(hold.names or ())
            self._runs.count(run)

    def follow(self, chain: Chain) -> Path:
        """What is known of a chain, for `held` and `last_use_s`; good until the index changes."""
        return self._runs.follow(chain)

    def holdings(self, path: Path, *, now: float) -> Holdings:
        """How much every cache has of the chain that was followed: only those that have something cost time."""
        holdings: Holdings = {}
        num_before = 0
        slots: Iterable[int] = path[0][0].holds if path else ()
        for run, num_blocks in path:
            slots = self._add_run(holdings, slots, run, num_blocks, num_before=num_before, now=now)
            num_before += num_blocks
        return holdings

    def held(self, path: Path, holder: Holder, *, now: float) -> Held:
        """How much one of them has."""
        return self.holdings(path, now=now).get(holder.slot, NOTHING_HELD)

    def expect(self, holder: Holder, chain: Chain, *, until_s: float, path: Path | None = None) -> Path | None:
        """A prompt is sent to the holder and will be in its cache; believed until then.

        `path` is what `follow` said of it, if that is still good; it is used up. What comes back is for `store`.
        """
        if holder.is_removed:
            return None
        path = self._runs.extend(chain, path)
        for run, num_blocks in path:
            hold = _hold_of(run, holder)
            hold.num_expected = num_blocks
            if hold.expected_until_s < until_s:
                hold.expected_until_s = until_s
            self._runs.weigh(run)
        self._runs.make_room()
        return path

    def expect_until(self, holder: Holder, chain: Chain, *, until_s: float) -> None:
        """What was expected of this prompt is believed no longer than that: by then events have told."""
        for run, _ in self._runs.follow(chain):
            hold = run.holds.get(holder.slot)
            if hold is not None and hold.expected_until_s > until_s:
                hold.expected_until_s = until_s

    def store(self, holder: Holder, chain: Chain, *, now: float, path: Path | None = None) -> None:
        """The holder has answered this prompt, and so has it in its cache; nothing of it is on its way any more.

        `path` is what `expect` gave, however long ago; it is used up.
        """
        if holder.is_removed:
            return
        if path is not None and not still_leads_along(chain, path):
            path = None
        for run, num_blocks in self._runs.extend(chain, path):
            hold = _hold_of(run, holder)
            hold.num_stored, hold.beyond = num_blocks, 0
            hold.stored_s = now
            if hold.expected_until_s > now:
                hold.expected_until_s = now
            self._runs.weigh(run)
        self._runs.make_room()

    def last_use_s(self, holder: Holder, path: Path) -> list[tuple[int, float]]:
        """For each run of a path: the number of the block after it, and when the holder last used it."""
        uses: list[tuple[int, float]] = []
        end = 0
        for run, num_blocks in path:
            hold = run.holds.get(holder.slot)
            if hold is None:
                break
            end += num_blocks
            uses.append((end, hold.stored_s))
        return uses

    def forget_used_until(self, holder: Holder, horizon_s: float) -> None:
        """What the holder last used at `horizon_s` or before has gone from its cache."""
        holder.horizon_s = max(holder.horizon_s, horizon_s)

    def add_blocks(self, holder: Holder, stored: StoredBlocks, hasher: ChainHasher) -> None:
        """An event: blocks stand in the cache from now on. Those whose parent is not known are counted and left out."""
        if holder.is_removed:
            return
        place = holder.places.get(stored.parent) if stored.parent is not None else None
        parent = self._runs.find(place)
        if stored.parent is not None and parent is None:
            self._num_orphans += len(stored.names)
            return
        previous = stored.start if parent is None else parent[0].hashes[parent[1]]
        last: Run | None = None
        for name, own in zip(stored.names, stored.own_hashes, strict=True):
            previous = hasher.follow(previous, own)
            place = self._runs.place_after(place, previous)
            run = self._name(holder, name, place)
            if run is not last and last is not None:
                self._runs.count(last)
            last = run
        if last is not None:
            self._runs.count(last)
            self._runs.touch(last)
        self._runs.make_room()

    def remove_block(self, holder: Holder, name: BlockName) -> None:
        """An event: the block has gone from the cache."""
        if num_copies := holder.num_copies.get(name):
            if num_copies == 1:
                del holder.num_copies[name]
            else:
                holder.num_copies[name] = num_copies - 1
            return
        found = self._runs.find(holder.places.pop(name, None))
        if found is None:
            return
        run, index = found
        hold = run.holds.get(holder.slot)
        if hold is None:
            return
        hold.discard(index)
        if hold.names is not None and hold.names.pop(run.first_number + index, None) is not None:
            run.num_names -= 1
        if hold.is_empty:
            del run.holds[holder.slot]
        self._runs.count(run)

    def move(self, slot: int, name: BlockName, place: int) -> None:
        self._holders[slot].places[name] = place

    def drop(self, slot: int, name: BlockName) -> None:
        holder = self._holders[slot]
        holder.places.pop(name, None)
        holder.num_copies.pop(name, None)

    def statistics(self) -> PrefixIndexStatistics:
        return PrefixIndexStatistics(
            num_bytes=self._runs.num_bytes,
            num_runs=len(self._runs),
            num_blocks=self._runs.num_blocks,
            num_evicted_runs=self._runs.num_evicted,
            num_orphans=self._num_orphans,
        )

    def __repr__(self) -> str:
        return f"PrefixIndex({self._runs!r}, num_holders={len(self._holders)})"

    def _add_run(
        self, holdings: Holdings, slots: Iterable[int], run: Run, num_blocks: int, *, num_before: int, now: float
    ) -> list[int]:
        """What caches have that had all `num_before` blocks before the run, and which of them have all of it too."""
        slots_on: list[int] = []
        holds, holders = run.holds, self._holders
        for slot in slots:
            hold = holds.get(slot)
            if hold is None:
                continue
            is_stored = hold.stored_s > holders[slot].horizon_s
            num_stored = min(hold.num_stored, num_blocks) if is_stored else 0
            num_expected = num_stored
            if now < hold.expected_until_s and num_stored < num_blocks:
                num_expected = min(hold.num_leading(is_stored=is_stored), num_blocks)
            if not num_expected:
                continue
            before = holdings[slot].num_stored if num_before else 0
            holdings[slot] = Held(before + num_stored if before == num_before else before, num_before + num_expected)
            if num_expected == num_blocks:
                slots_on.append(slot)
        return slots_on

    def _name(self, holder: Holder, name: BlockName, place: int) -> Run:
        """Note that the holder has the block at `place`, and calls it so; the block's run."""
        found = self._runs.find(place)
        assert found is not None, "the place of a block that was just stored"
        run, index = found
        if self._runs.find(holder.places.get(name)) is not None:
            holder.num_copies[name] = holder.num_copies.get(name, 0) + 1
            return run
        holder.places[name] = place
        hold = _hold_of(run, holder)
        hold.add(index)
        hold.stored_s = float("inf")
        if hold.names is None:
            hold.names = {}
        number = run.first_number + index
        if number not in hold.names:
            run.num_names += 1
        hold.names[number] = name
        return run


def _hold_of(run: Run, holder: Holder) -> Hold:
    hold = run.holds.get(holder.slot)
    if hold is None:
        hold = run.holds[holder.slot] = Hold()
    return hold
