"""A stretch of neighbouring blocks, and what each endpoint has of it. Pure.

A run ends where prompts part, or where one of them ends; what follows are runs of their own, each found by the hash of
its first block. Where a prompt parts from the others inside a run, the run is cut in two.
"""

from array import array
from typing import TypeAlias

import msgspec

from headrace.gateway.prefix_index.chain import Chain

BlockName: TypeAlias = int | bytes
"""What an engine calls a block in its events."""

_RUN_NUM_BYTES = 480
_HOLD_NUM_BYTES = 240
_NAME_NUM_BYTES = 200
"""Of a block that KV events name: key, value and slot of a dictionary, and a slot of a list."""


class Hold(msgspec.Struct, gc=False, eq=False):
    """What one endpoint has of a run. Nearly always that is its first blocks, so that a number tells all of it.

    The garbage collector does not look at holds and runs, of which there are hundreds of thousands and no cycles: it
    would take 50 ms of the event loop each time.
    """

    num_stored: int = 0
    """So many of the first blocks are stored, and the one after these is not."""
    beyond: int = 0
    """Blocks that are stored behind that hole, where events have told of one: bit i stands for block i."""
    stored_s: float = 0.0
    """When the endpoint was last seen to use what it has; events leave it alone."""
    num_expected: int = 0
    """So many of the first are on their way there with a request; true until `expected_until_s`."""
    expected_until_s: float = 0.0
    names: dict[int, BlockName] | None = None
    """The endpoint's own names of its blocks, by number, where KV events told them."""

    @property
    def is_empty(self) -> bool:
        return not self.num_stored and not self.beyond and not self.num_expected

    def add(self, index: int) -> None:
        """This block is stored."""
        if index == self.num_stored:
            self.num_stored += 1
            self._close()
        elif index > self.num_stored:
            self.beyond |= 1 << index

    def discard(self, index: int) -> None:
        """This block is not stored."""
        if index < self.num_stored:
            self.beyond |= first_bits(self.num_stored) ^ first_bits(index + 1)
            self.num_stored = index
        else:
            self.beyond &= ~(1 << index)

    def num_leading(self, *, is_stored: bool) -> int:
        """How many of the first blocks it has, with what is expected; whether what is stored still counts."""
        if not is_stored or self.num_expected <= self.num_stored:
            return max(self.num_expected, self.num_stored if is_stored else 0)
        return _num_leading(self.beyond | first_bits(self.num_expected)) if self.beyond else self.num_expected

    def cut(self, num_blocks: int) -> "Hold":
        """Take the first blocks out, without their names."""
        first = Hold()
        first.num_stored, first.stored_s = min(self.num_stored, num_blocks), self.stored_s
        first.beyond = self.beyond & first_bits(num_blocks)
        first.num_expected, first.expected_until_s = min(self.num_expected, num_blocks), self.expected_until_s
        self.num_stored = max(0, self.num_stored - num_blocks)
        self.beyond >>= num_blocks
        self._close()
        self.num_expected = max(0, self.num_expected - num_blocks)
        return first

    def _close(self) -> None:
        """What stands right behind the first blocks is one of them."""
        if self.beyond:
            self.num_stored += _num_leading(self.beyond >> self.num_stored)
            self.beyond = self.beyond >> self.num_stored << self.num_stored


def _no_hashes() -> "array[int]":
    return array("Q")


class Run(msgspec.Struct, gc=False, eq=False):
    """Hashes of neighbouring blocks, the first of which follows the last of `parent`; None at the start of prompts."""

    number: int
    parent: "Run | None" = None
    hashes: "array[int]" = msgspec.field(default_factory=_no_hashes)
    holds: dict[int, Hold] = msgspec.field(default_factory=dict)
    first_number: int = 0
    """What its first block counts as in places and names: a cut changes only those of the blocks cut off."""
    is_continued: bool = False
    """Whether other runs follow it. If none does it may grow."""
    num_names: int = 0
    num_bytes: int = 0
    """As it was last counted."""
    is_gone: bool = False

    def count_bytes(self) -> int:
        """An estimate of the memory, from above."""
        num_bytes_of_bits = len(self.hashes) // 8
        of_holds = len(self.holds) * (_HOLD_NUM_BYTES + num_bytes_of_bits)
        return _RUN_NUM_BYTES + 8 * len(self.hashes) + of_holds + _NAME_NUM_BYTES * self.num_names

    def num_shared(self, chain: Chain, position: int) -> int:
        """How many blocks of the run, from its first, are the chain's from `position` on.

        Equal hashes mean equal prefixes, so a search by halves finds where the two part.
        """
        hashes = self.hashes
        high = min(len(hashes), len(chain) - position)
        if hashes[high - 1] == chain[position + high - 1]:
            return high
        low, high = 0, high - 1
        while low < high:
            middle = (low + high) // 2
            if hashes[middle] == chain[position + middle]:
                low = middle + 1
            else:
                high = middle
        return low


def first_bits(num_bits: int) -> int:
    """A number whose lowest `num_bits` bits are set."""
    return (1 << num_bits) - 1


def _num_leading(bits: int) -> int:
    """How many of the lowest bits are set before the first that is not."""
    return (~bits & (bits + 1)).bit_length() - 1
