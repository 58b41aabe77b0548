"""A stretch of neighbouring blocks, and what each endpoint has of it. Pure.

A run ends where prompts part, or where one of them ends; what follows are runs of their own, each found by the hash of
its first block. Where a prompt parts from the others inside a run, the run is cut in two.
"""

from array import array
from typing import TypeAlias

from headrace.gateway.prefix_index.chain import Chain

BlockName: TypeAlias = int | bytes
"""What an engine calls a block in its events."""

_RUN_NUM_BYTES = 480
_HOLD_NUM_BYTES = 240
_NAME_NUM_BYTES = 200
"""Of a block that KV events name: key, value and slot of a dictionary, and a slot of a list."""


class Hold:
    """What one endpoint has of a run; bit i of each number stands for its block i."""

    __slots__ = ("expected", "expected_until_s", "names", "stored", "stored_s")

    def __init__(self) -> None:
        self.stored = 0
        self.stored_s = 0.0
        """When the endpoint was last seen to use what it has; events leave it alone."""
        self.expected = 0
        """Blocks of requests that are on their way there; true until `expected_until_s`."""
        self.expected_until_s = 0.0
        self.names: dict[int, BlockName] | None = None
        """The endpoint's own names of its blocks, by number, where KV events told them."""

    @property
    def is_empty(self) -> bool:
        return not self.stored and not self.expected

    def cut(self, num_blocks: int) -> "Hold":
        """Take the first blocks out, without their names."""
        first, taken = Hold(), first_bits(num_blocks)
        first.stored, first.stored_s = self.stored & taken, self.stored_s
        first.expected, first.expected_until_s = self.expected & taken, self.expected_until_s
        self.stored >>= num_blocks
        self.expected >>= num_blocks
        return first


class Run:
    """Hashes of neighbouring blocks, the first of which follows the last of `parent`; None at the start of prompts."""

    __slots__ = (
        "first_number",
        "hashes",
        "holds",
        "is_continued",
        "is_gone",
        "num_bytes",
        "num_names",
        "number",
        "parent",
    )

    def __init__(self, number: int, *, parent: "Run | None") -> None:
        self.number = number
        self.hashes = array("Q")
        self.holds: dict[int, Hold] = {}
        self.parent = parent
        self.first_number = 0
        """What its first block counts as in places and names: a cut changes only those of the blocks cut off."""
        self.is_continued = False
        """Whether other runs follow it. If none does it may grow."""
        self.num_names = 0
        self.num_bytes = 0
        """As it was last counted."""
        self.is_gone = False

    def count_bytes(self) -> int:
        """An estimate of the memory, from above."""
        num_bytes_of_bits = len(self.hashes) // 4
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


def num_leading(bits: int) -> int:
    """How many of the lowest bits are set before the first that is not."""
    return (~bits & (bits + 1)).bit_length() - 1
