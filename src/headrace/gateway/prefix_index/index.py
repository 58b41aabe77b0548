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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headrace.gateway.prefix_index.chain import Chain, ChainHasher
from headrace.gateway.prefix_index.run import Hold, Run, first_bits, num_leading

BlockName: TypeAlias = int | bytes
"""What an engine calls a block in its events."""

Path: TypeAlias = list[tuple[Run, int]]
"""Runs along a chain, and how many of the first blocks of each belong to it."""

_NUMBER_BITS = 32


class Holder:
    """One cache: that of an endpoint, or of one of its data-parallel ranks. Made by the index."""

    __slots__ = ("has_events", "horizon_s", "name", "num_copies", "places", "slot")

    def __init__(self, name: str, *, slot: int) -> None:
        self.name = name
        self.slot = slot
        self.has_events = False
        self.horizon_s = float("-inf")
        """What was last used then or before is taken for gone."""
        self.places: dict[BlockName, int] = {}
        """Where the blocks stand that events have named, as one number (see `_place`): the garbage collector need not
        look at millions of those."""
        self.num_copies: dict[BlockName, int] = {}
        """Of blocks that the engine has computed more than once, how many more."""

    def __repr__(self) -> str:
        return f"Holder({self.name}, has_events={self.has_events}, num_named={len(self.places)})"


class Held(NamedTuple):
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
        self._runs: dict[int, Run] = {}
        self._next_run = 0
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

    def follow(self, chain: Chain) -> Path:
        """What is known of a chain, for `held` and `last_use_s`; good until the index changes."""
        path: Path = []
        position = 0
        while position < len(chain) and (run := self._heads.get(chain[position])) is not None:
            num_blocks = run.num_shared(chain, position)
            path.append((run, num_blocks))
            position += num_blocks
        return path

    def held(self, path: Path, holder: Holder, *, now: float) -> Held:
        """How much the holder has of the chain that was followed."""
        num_stored, num_expected = 0, 0
        is_stored = True
        for run, num_blocks in path:
            hold = run.holds.get(holder.slot)
            if hold is None:
                break
            stored = hold.stored if hold.stored_s > holder.horizon_s else 0
            expected = stored | hold.expected if now < hold.expected_until_s else stored
            leading = num_leading(expected)
            num_expected += leading if leading < num_blocks else num_blocks
            if is_stored:
                of_stored = leading if expected == stored else num_leading(stored)
                num_stored += of_stored if of_stored < num_blocks else num_blocks
                is_stored = of_stored >= num_blocks
            if leading < num_blocks:
                break
        return Held(num_stored, num_expected)

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
        for run, _ in self.follow(chain):
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
        place: tuple[Run, int] | None = None
        previous = stored.start
        if stored.parent is not None:
            place = self._find(holder.places.get(stored.parent))
            if place is None:
                self._num_orphans += len(stored.names)
                return
            previous = place[0].hashes[place[1] - place[0].first_number]
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
        place = self._find(holder.places.pop(name, None))
        if place is None:
            return
        run, number = place
        hold = run.holds.get(holder.slot)
        if hold is None:
            return
        hold.stored &= ~(1 << number - run.first_number)
        if hold.names is not None and hold.names.pop(number, None) is not None:
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

    def _extend(self, chain: Chain) -> Path:
        """The path along the whole chain; what is not known yet is appended to its last run, or becomes a new one."""
        path = self.follow(chain)
        if path and path[-1][1] < len(path[-1][0].hashes):
            path[-1] = (self._cut(*path[-1]), path[-1][1])
        position = sum(num_blocks for _, num_blocks in path)
        if position < len(chain):
            num_new = len(chain) - position
            if path and not path[-1][0].is_continued:
                path[-1] = (path[-1][0], path[-1][1] + num_new)
            else:
                path.append((self._new_run(chain[position], parent=path[-1][0] if path else None), num_new))
            path[-1][0].hashes.frombytes(chain[position:].tobytes())
            self._num_blocks += num_new
        for run, _ in reversed(path):  # what comes first in a prompt was used last, and goes last
            self._heads.move_to_end(run.hashes[0])
        return path

    def _new_run(self, head: int, *, parent: Run | None) -> Run:
        run = self._heads[head] = self._numbered(Run(parent=parent))
        if parent is not None:
            parent.is_continued = True
        return run

    def _numbered(self, run: Run) -> Run:
        run.number = self._next_run
        self._next_run += 1
        self._runs[run.number] = run
        return run

    def _find(self, place: int | None) -> tuple[Run, int] | None:
        """The run of a place, unless it is gone, and the block's number in it."""
        run = self._runs.get(place >> _NUMBER_BITS) if place is not None else None
        return None if run is None or place is None else (run, place & (1 << _NUMBER_BITS) - 1)

    def _cut(self, run: Run, num_blocks: int) -> Run:
        """Cut the first blocks off a run; they become a run of their own, and the run follows it."""
        first = self._numbered(Run(parent=run.parent))
        first.first_number = run.first_number
        first.hashes = run.hashes[:num_blocks]
        run.hashes = run.hashes[num_blocks:]
        run.first_number += num_blocks
        run.parent = first
        first.is_continued = True
        for slot, hold in list(run.holds.items()):
            of_first = hold.cut(num_blocks)
            self._move_names(slot, hold, run, of_first, first)
            if not of_first.is_empty:
                first.holds[slot] = of_first
            if hold.is_empty:
                del run.holds[slot]
        self._heads[run.hashes[0]] = run
        self._heads[first.hashes[0]] = first
        self._settle(run)
        self._count(first)
        self._touch(first)
        return first

    def _move_names(self, slot: int, hold: Hold, run: Run, of_first: Hold, first: Run) -> None:
        if hold.names is None:
            return
        of_first.names = {number: name for number, name in hold.names.items() if number < run.first_number}
        for number, name in of_first.names.items():
            del hold.names[number]
            self._holders[slot].places[name] = _place(first, number)
        run.num_names -= len(of_first.names)
        first.num_names += len(of_first.names)

    def _place_after(self, place: tuple[Run, int] | None, block_hash: int) -> tuple[Run, int]:
        """Where the block with this hash stands, which follows `place`."""
        parent: Run | None = None
        if place is not None:
            parent, num_before = place[0], place[1] + 1 - place[0].first_number
            if num_before < len(parent.hashes):
                if parent.hashes[num_before] == block_hash:
                    return parent, place[1] + 1
                parent = self._cut(parent, num_before)
        known = self._heads.get(block_hash)
        if known is not None:
            return known, known.first_number
        self._num_blocks += 1
        if parent is not None and not parent.is_continued:
            parent.hashes.append(block_hash)
            return parent, parent.first_number + len(parent.hashes) - 1
        run = self._new_run(block_hash, parent=parent)
        run.hashes.append(block_hash)
        return run, run.first_number

    def _name(self, holder: Holder, name: BlockName, place: tuple[Run, int]) -> None:
        if self._find(holder.places.get(name)) is not None:
            holder.num_copies[name] = holder.num_copies.get(name, 0) + 1
            return
        run, number = place
        holder.places[name] = _place(run, number)
        hold = _hold_of(run, holder)
        hold.stored |= 1 << number - run.first_number
        hold.stored_s = float("inf")
        if hold.names is None:
            hold.names = {}
        if number not in hold.names:
            run.num_names += 1
        hold.names[number] = name

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
        self._count(run)

    def _count(self, run: Run) -> None:
        num_bytes = run.count_bytes()
        self._num_bytes += num_bytes - run.num_bytes
        run.num_bytes = num_bytes

    def _drop(self, run: Run) -> None:
        del self._heads[run.hashes[0]]
        del self._runs[run.number]
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


def _place(run: Run, number: int) -> int:
    """The place of a block, as one number: its run's number, and its own in the run."""
    return run.number << _NUMBER_BITS | number


def _hold_of(run: Run, holder: Holder) -> Hold:
    hold = run.holds.get(holder.slot)
    if hold is None:
        hold = run.holds[holder.slot] = Hold()
    return hold
