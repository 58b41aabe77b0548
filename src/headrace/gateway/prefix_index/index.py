"""Who holds how much of a prompt. Pure: chains, events and `now` in, counts out.

Theory. Runs of blocks are found by the hash of their first block; a prompt is followed from run to run, which takes a
few look-ups however long it is. Each run knows what each endpoint has of it: `stored` is known (a KV event said so, or
the endpoint has answered such a prompt), `expected` is on its way there and believed for a while.

Rule 1: a prefix counts as far as it is held without a hole, as engines count it.
Rule 2: an endpoint with KV events has what they say. Of one without them its cache is assumed to drop what was used
longest ago first: when an answer shows that something is gone, all that was used no later is taken for gone too.
Rule 3: memory is bounded; the run used longest ago goes first, and before it whatever continues it.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.gateway.prefix_index.chain import Chain, ChainHasher
from headrace.gateway.prefix_index.run import Hold, Run, first_bits, num_leading

BlockName: TypeAlias = int | bytes
"""What an engine calls a block in its events."""

_Path: TypeAlias = list[tuple[Run, int]]
"""Runs along a chain, and how many of the first blocks of each belong to it."""


class Holder:
    """One cache: that of an endpoint, or of one of its data-parallel ranks. Made by the index."""

    __slots__ = ("has_events", "horizon_s", "name", "num_copies", "places", "slot")

    def __init__(self, name: str, *, slot: int) -> None:
        self.name = name
        self.slot = slot
        self.has_events = False
        self.horizon_s = float("-inf")
        """What was last used then or before is taken for gone."""
        self.places: dict[BlockName, tuple[Run, int]] = {}
        self.num_copies: dict[BlockName, int] = {}
        """Of blocks that the engine has computed more than once, how many more."""

    def __repr__(self) -> str:
        return f"Holder({self.name}, has_events={self.has_events}, num_named={len(self.places)})"


@dataclass(frozen=True, slots=True)
class Held:
    """How many of a prompt's first blocks one cache has."""

    num_stored: int
    num_expected: int
    """Stored, or on their way; never less than `num_stored`."""


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
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._num_blocks = 0
        self._num_evicted_runs = 0
        self._num_orphans = 0
        self._heads: OrderedDict[int, Run] = OrderedDict()
        """Runs by the hash of their first block, those used longest ago first."""
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
        self._holders.pop(holder.slot, None)

    def clear(self, holder: Holder) -> None:
        """The cache is empty now."""
        holder.places.clear()
        holder.num_copies.clear()
        held = [run for run in self._heads.values() if holder.slot in run.holds]
        for run in held:
            hold = run.holds.pop(holder.slot)
            run.num_names -= len(hold.names or ())
            self._settle(run)

    def held(self, chain: Chain, holders: Sequence[Holder], *, now: float) -> list[Held]:
        """For each of `holders`, how much of `chain` it has."""
        path = self._follow(chain)
        return [_held_along(path, holder, now=now) for holder in holders]

    def expect(self, holder: Holder, chain: Chain, *, until_s: float) -> None:
        """A prompt is sent to the holder and will be in its cache; believed until then."""
        for run, num_blocks in self._extend(chain):
            hold = _hold_of(run, holder)
            hold.expected |= first_bits(num_blocks)
            hold.expected_until_s = max(hold.expected_until_s, until_s)
            self._settle(run)
        self._evict()

    def expect_until(self, holder: Holder, chain: Chain, *, until_s: float) -> None:
        """What was expected of this prompt is believed no longer than that: by then events have told."""
        for run, _ in self._follow(chain):
            hold = run.holds.get(holder.slot)
            if hold is not None:
                hold.expected_until_s = min(hold.expected_until_s, until_s)

    def store(self, holder: Holder, chain: Chain, *, now: float) -> None:
        """The holder has answered this prompt, and so has it in its cache."""
        for run, num_blocks in self._extend(chain):
            hold = _hold_of(run, holder)
            if hold.stored_s <= holder.horizon_s:
                hold.stored = 0
            hold.stored |= first_bits(num_blocks)
            hold.stored_s = now
            self._settle(run)
        self._evict()

    def last_use_s(self, holder: Holder, chain: Chain) -> list[tuple[int, float]]:
        """For each run along `chain`: the number of the block after it, and when the holder last used it."""
        uses: list[tuple[int, float]] = []
        end = 0
        for run, num_blocks in self._follow(chain):
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
        place: tuple[Run, int] | None = None
        previous = stored.start
        if stored.parent is not None:
            place = holder.places.get(stored.parent)
            if place is None or place[0].is_gone:
                self._num_orphans += len(stored.names)
                return
            previous = place[0].hashes[place[1]]
        touched: dict[int, Run] = {}
        for name, own in zip(stored.names, stored.own_hashes, strict=True):
            previous = hasher.follow(previous, own)
            place = self._place_after(place, previous)
            self._name(holder, name, place)
            touched[id(place[0])] = place[0]
        for run in touched.values():
            self._settle(run)
        if place is not None:
            self._touch(place[0])
        self._evict()

    def remove_block(self, holder: Holder, name: BlockName) -> None:
        """An event: the block has gone from the cache."""
        if num_copies := holder.num_copies.get(name):
            if num_copies == 1:
                del holder.num_copies[name]
            else:
                holder.num_copies[name] = num_copies - 1
            return
        place = holder.places.pop(name, None)
        if place is None:
            return
        run, index = place
        hold = run.holds.get(holder.slot)
        if hold is None:
            return
        hold.stored &= ~(1 << index)
        if hold.names is not None and hold.names.pop(index, None) is not None:
            run.num_names -= 1
        if hold.is_empty:
            del run.holds[holder.slot]
        self._settle(run)

    def statistics(self) -> PrefixIndexStatistics:
        return PrefixIndexStatistics(
            num_bytes=self._num_bytes,
            num_runs=len(self._heads),
            num_blocks=self._num_blocks,
            num_evicted_runs=self._num_evicted_runs,
            num_orphans=self._num_orphans,
        )

    def __repr__(self) -> str:
        return f"PrefixIndex(num_blocks={self._num_blocks}, num_bytes={self._num_bytes} of {self._max_bytes})"

    # -- runs

    def _steps(self, chain: Chain) -> Iterator[tuple[Run, int]]:
        position = 0
        while position < len(chain) and (run := self._heads.get(chain[position])) is not None:
            num_blocks = run.num_shared(chain, position)
            yield run, num_blocks
            position += num_blocks

    def _follow(self, chain: Chain) -> _Path:
        return list(self._steps(chain))

    def _extend(self, chain: Chain) -> _Path:
        """The path along the whole chain; what is not known yet is appended to its last run, or becomes a new one."""
        path = self._follow(chain)
        position = sum(num_blocks for _, num_blocks in path)
        if position < len(chain):
            num_new = len(chain) - position
            last = path[-1] if path else None
            if last is not None and last[1] == len(last[0].hashes):
                path[-1] = (last[0], last[1] + num_new)
            else:
                path.append((self._new_run(chain[position], parent=last[0] if last else None), num_new))
            path[-1][0].hashes.frombytes(chain[position:].tobytes())
            self._num_blocks += num_new
        for run, _ in reversed(path):  # what comes first in a prompt was used last, and goes last
            self._heads.move_to_end(run.hashes[0])
        return path

    def _new_run(self, head: int, *, parent: Run | None) -> Run:
        run = self._heads[head] = Run(parent=parent)
        return run

    def _place_after(self, place: tuple[Run, int] | None, block_hash: int) -> tuple[Run, int]:
        """Where the block with this hash stands, which follows `place`."""
        if place is not None:
            run, index = place[0], place[1] + 1
            if index < len(run.hashes) and run.hashes[index] == block_hash:
                return run, index
        known = self._heads.get(block_hash)
        if known is not None:
            return known, 0
        self._num_blocks += 1
        if place is not None and place[1] + 1 == len(place[0].hashes):
            place[0].hashes.append(block_hash)
            return place[0], place[1] + 1
        run = self._new_run(block_hash, parent=place[0] if place is not None else None)
        run.hashes.append(block_hash)
        return run, 0

    def _name(self, holder: Holder, name: BlockName, place: tuple[Run, int]) -> None:
        known = holder.places.get(name)
        if known is not None and not known[0].is_gone:
            holder.num_copies[name] = holder.num_copies.get(name, 0) + 1
            return
        run, index = place
        holder.places[name] = place
        hold = _hold_of(run, holder)
        hold.stored |= 1 << index
        hold.stored_s = float("inf")
        if hold.names is None:
            hold.names = {}
        if index not in hold.names:
            run.num_names += 1
        hold.names[index] = name

    def _touch(self, run: Run | None) -> None:
        """Mark as just used, and what it continues as used after it, so that it never goes first."""
        while run is not None and not run.is_gone:
            self._heads.move_to_end(run.hashes[0])
            run = run.parent

    def _settle(self, run: Run) -> None:
        """Count a run's memory again; one that nobody has is dropped."""
        if run.is_gone:
            return
        if not run.holds:
            self._drop(run)
            return
        num_bytes = run.count_bytes()
        self._num_bytes += num_bytes - run.num_bytes
        run.num_bytes = num_bytes

    def _drop(self, run: Run) -> None:
        del self._heads[run.hashes[0]]
        run.is_gone = True
        self._num_bytes -= run.num_bytes
        self._num_blocks -= len(run.hashes)
        for slot, hold in run.holds.items():
            holder = self._holders[slot]
            for name in (hold.names or {}).values():
                holder.places.pop(name, None)
                holder.num_copies.pop(name, None)
        run.holds.clear()

    def _evict(self) -> None:
        while self._num_bytes > self._max_bytes and self._heads:
            self._drop(next(iter(self._heads.values())))
            self._num_evicted_runs += 1


def _hold_of(run: Run, holder: Holder) -> Hold:
    hold = run.holds.get(holder.slot)
    if hold is None:
        hold = run.holds[holder.slot] = Hold()
    return hold


def _held_along(path: _Path, holder: Holder, *, now: float) -> Held:
    num_stored, num_expected = 0, 0
    is_stored = True
    for run, num_blocks in path:
        hold = run.holds.get(holder.slot)
        if hold is None:
            break
        stored = hold.stored if hold.stored_s > holder.horizon_s else 0
        expected = stored | hold.expected if now < hold.expected_until_s else stored
        if is_stored:
            leading = num_leading(stored)
            num_stored += min(leading, num_blocks)
            is_stored = leading >= num_blocks
        leading = num_leading(expected)
        num_expected += min(leading, num_blocks)
        if leading < num_blocks:
            break
    return Held(num_stored, num_expected)
