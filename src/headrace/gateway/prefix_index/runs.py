"""All runs: found along a chain, extended, cut where prompts part, and dropped when there is no room. Pure.

It knows the runs and what is written in them; what a holder is, it does not know. Places are plain numbers, since the
garbage collector would look at millions of tuples again and again.
"""

from collections import OrderedDict
from typing import Protocol, TypeAlias

from headrace.gateway.prefix_index.chain import Chain
from headrace.gateway.prefix_index.run import BlockName, Hold, Run

Path: TypeAlias = list[tuple[Run, int]]
"""Runs along a chain, and how many of the first blocks of each belong to it."""

_NUMBER_BITS = 32


class NameBook(Protocol):
    """Who keeps the places of the blocks that events have named, by the slot of their cache."""

    def move(self, slot: int, name: BlockName, place: int) -> None:
        """The block stands in another place now."""
        ...

    def drop(self, slot: int, name: BlockName) -> None:
        """The block has no place any more."""
        ...


class Runs:
    """Runs within a budget of bytes. What is used is marked, and with it what it continues: a run goes after all that
    follow it. Call `count` when a run's holds have changed (`weigh` if it has some), and `make_room` after that."""

    def __init__(self, *, max_bytes: int, names: NameBook) -> None:
        self._max_bytes = max_bytes
        self._names = names
        self._by_number: dict[int, Run] = {}
        self._by_head: OrderedDict[int, Run] = OrderedDict()
        """By the hash of the first block, those used longest ago first."""
        self._next_number = 0
        self.num_bytes = 0
        self.num_blocks = 0
        self.num_evicted = 0

    def follow(self, chain: Chain) -> Path:
        """What is known of a chain."""
        path: Path = []
        position = 0
        while position < len(chain) and (run := self._by_head.get(chain[position])) is not None:
            num_blocks = run.num_shared(chain, position)
            path.append((run, num_blocks))
            position += num_blocks
        return path

    def extend(self, chain: Chain, path: Path | None = None) -> Path:
        """The path along the whole chain, marked as just used; the last run ends where the chain ends.

        What is not known yet is appended to the last run, or becomes a new one. `path`, what `follow` has just said, or
        this has, and it still leads along, is changed.
        """
        path = self.follow(chain) if path is None else path
        position = sum([num_blocks for _, num_blocks in path])
        if path and path[-1][1] < len(path[-1][0].hashes):
            path[-1] = (self._cut(*path[-1]), path[-1][1])
        if position < len(chain):
            self._append(path, chain[position:] if position else chain)
        for run, _ in reversed(path):  # what comes first in a prompt was used last, and goes last
            self._by_head.move_to_end(run.hashes[0])
        return path

    def place_after(self, place: int | None, block_hash: int) -> int:
        """Where the block with this hash stands, which follows that of `place` (None: none does); it may be new."""
        parent: Run | None = None
        if place is not None and (found := self.find(place)) is not None:
            parent, index = found[0], found[1] + 1
            if index < len(parent.hashes):
                if parent.hashes[index] == block_hash:
                    return place + 1
                parent = self._cut(parent, index)
        known = self._by_head.get(block_hash)
        if known is not None:
            return place_of(known, 0)
        self.num_blocks += 1
        if parent is None or parent.is_continued:
            parent = self._new(block_hash, parent=parent)
        parent.hashes.append(block_hash)
        return place_of(parent, len(parent.hashes) - 1)

    def find(self, place: int | None) -> tuple[Run, int] | None:
        """The run of a place, unless it is gone, and the block's index in it now."""
        run = self._by_number.get(place >> _NUMBER_BITS) if place is not None else None
        if run is None or place is None:
            return None
        return run, (place & (1 << _NUMBER_BITS) - 1) - run.first_number

    def with_slot(self, slot: int) -> list[Run]:
        """All runs of which a cache has something."""
        return [run for run in self._by_head.values() if slot in run.holds]

    def touch(self, run: Run | None) -> None:
        """Mark as just used, and what it continues as used after it."""
        while run is not None and not run.is_gone:
            self._by_head.move_to_end(run.hashes[0])
            run = run.parent

    def count(self, run: Run) -> None:
        """Count a run's memory again, or drop it if nobody has it."""
        if run.is_gone:
            return
        if run.holds:
            self.weigh(run)
        else:
            self._drop(run)

    def weigh(self, run: Run) -> None:
        """Count a run's memory again."""
        num_bytes = run.count_bytes()
        self.num_bytes += num_bytes - run.num_bytes
        run.num_bytes = num_bytes

    def make_room(self) -> None:
        """Drop what was used longest ago until the rest is within the budget."""
        while self.num_bytes > self._max_bytes and self._by_head:
            self._drop(next(iter(self._by_head.values())))
            self.num_evicted += 1

    def __len__(self) -> int:
        return len(self._by_head)

    def __repr__(self) -> str:
        return f"Runs({len(self)} runs, {self.num_blocks} blocks, {self.num_bytes} of {self._max_bytes} bytes)"

    def _append(self, path: Path, hashes: Chain) -> None:
        """Continue a path with blocks that no run has."""
        last, num_blocks = path[-1] if path else (None, 0)
        if last is None or last.is_continued:
            last, num_blocks = self._new(hashes[0], parent=last), 0
            path.append((last, 0))
        path[-1] = (last, num_blocks + len(hashes))
        last.hashes.frombytes(hashes.cast("B"))
        self.num_blocks += len(hashes)

    def _new(self, head: int, *, parent: Run | None) -> Run:
        run = self._by_head[head] = self._numbered(parent)
        if parent is not None:
            parent.is_continued = True
        return run

    def _numbered(self, parent: Run | None) -> Run:
        run = self._by_number[self._next_number] = Run(self._next_number, parent=parent)
        self._next_number += 1
        return run

    def _cut(self, run: Run, num_blocks: int) -> Run:
        """Cut the first blocks off a run; they become a run of their own, and the run follows it."""
        first = self._numbered(run.parent)
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
        self._by_head[run.hashes[0]] = run
        self._by_head[first.hashes[0]] = first
        self.count(run)
        self.weigh(first)  # it may be held by nobody until the caller says who
        self.touch(first)
        return first

    def _move_names(self, slot: int, hold: Hold, run: Run, of_first: Hold, first: Run) -> None:
        if hold.names is None:
            return
        of_first.names = {number: name for number, name in hold.names.items() if number < run.first_number}
        for number, name in of_first.names.items():
            del hold.names[number]
            self._names.move(slot, name, first.number << _NUMBER_BITS | number)
        run.num_names -= len(of_first.names)
        first.num_names += len(of_first.names)

    def _drop(self, run: Run) -> None:
        del self._by_head[run.hashes[0]]
        del self._by_number[run.number]
        run.is_gone = True
        self.num_bytes -= run.num_bytes
        self.num_blocks -= len(run.hashes)
        for slot, hold in run.holds.items():
            for name in (hold.names or {}).values():
                self._names.drop(slot, name)
        run.holds.clear()


def still_leads_along(chain: Chain, path: Path) -> bool:
    """Whether a path along the whole chain is still that: runs grow at their end only, and one that is cut gets another
    head."""
    position = 0
    for run, num_blocks in path:
        if run.is_gone or run.hashes[0] != chain[position]:
            return False
        position += num_blocks
    return True


def place_of(run: Run, index: int) -> int:
    """The place of a block in a run: one number that stays true when blocks before it are cut off."""
    return run.number << _NUMBER_BITS | run.first_number + index
