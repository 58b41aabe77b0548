"""The index's own chained hashes: 128,000 tokens in some 25 us (130 us without a compiler), whatever engines hash with.

Theory. A block's own hash b is a sum of its token ids times secret-free odd keys, modulo 2**64, stirred. The chain is

    h[i] = STEP * h[i - 1] + b[i]   (mod 2**64)

A block that comes alone, in a KV event, follows its parent by the same rule. Prompts are hashed in C (_native/chain.c)
where that was built. By numpy they are hashed without a loop, since STEP is odd and so has an inverse: `h[i] / STEP**i`
is a running sum of `b[j] / STEP**j`.

A collision misleads routing once and harms no answer, so 64 bits without a cryptographic hash are enough. All gateways
compute the same hashes, which is how they agree without talking.
"""

import hashlib
from array import array
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headrace._native import Compiled, compiled

Chain: TypeAlias = "memoryview[int]"
"""The hash of every whole block of a prompt, in order; each names the whole prefix up to its block."""

Words: TypeAlias = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_STEP_INVERSE = pow(_STEP, -1, 1 << 64)
_STIR = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_NUM_FIRST_POWERS = 1024
_PIECE_NUM_BYTES = 128 * 1024
"""Words hashed in one go: they stay in the processor's cache, and no fresh memory is asked of the system."""
_MAX_STARTS = 1024


class ChainHasher:
    """Hashes for blocks of `block_size` ids. Chains of different block sizes have no hash in common.

    Belongs to one thread: its scratch memory is used again. Token ids lie one after the other in memory.
    """

    def __init__(self, block_size: int, *, native: Compiled | None = compiled) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; it must be at least 1")
        self.block_size = block_size
        self._native = native
        self._ids_per_word = 2 if block_size % 2 == 0 else 1
        self._keys = np.array([_stirred(key) | 1 for key in range(block_size // self._ids_per_word)], dtype=np.uint64)
        self._packed_keys = self._keys.tobytes()
        self._powers, self._inverse_powers = _power_tables(_NUM_FIRST_POWERS)
        num_rows = max(1, _PIECE_NUM_BYTES // self._keys.nbytes)
        self._scratch = np.empty((num_rows, len(self._keys)), dtype=np.uint64)
        self._starts: dict[str, int] = {}

    def start(self, adapter: str = "") -> int:
        """What a chain starts from: prompts of different adapters share nothing."""
        start = self._starts.get(adapter)
        if start is None:
            if len(self._starts) >= _MAX_STARTS:
                self._starts.clear()
            start = self._starts[adapter] = digest_of(f"{self.block_size} {adapter}")
        return start

    def blocks(self, token_ids: npt.NDArray[np.uint32]) -> Words:
        """The own hash of each whole block, shape (num_tokens // block_size,); read-only or not."""
        if self._native is not None:
            own_hashes = self._native.own_hashes(token_ids, self._packed_keys, self.block_size)
            return np.frombuffer(own_hashes, dtype=np.uint64)
        num_blocks = len(token_ids) // self.block_size
        ids = token_ids[: num_blocks * self.block_size]
        words = ids.view(np.uint64) if self._ids_per_word == 2 else ids.astype(np.uint64)
        words = words.reshape(num_blocks, len(self._keys))
        own = np.empty(num_blocks, dtype=np.uint64)
        for first in range(0, num_blocks, len(self._scratch)):
            piece = words[first : first + len(self._scratch)]
            mixed = self._scratch[: len(piece)]
            np.right_shift(piece, _HALF, out=mixed)
            np.bitwise_xor(mixed, piece, out=mixed)  # so that both ids of a word reach all bits of the product
            np.matmul(mixed, self._keys, out=own[first : first + len(piece)])
        own ^= own >> _HALF
        own *= _STIR
        own ^= own >> _HALF
        return own

    def chain(self, token_ids: npt.NDArray[np.uint32], *, adapter: str = "", salt: str | None = None) -> Chain:
        """The chain of a prompt. `salt` (a request's `cache_salt`) sets it apart from its first block on."""
        if self._native is not None:
            stir = 0 if salt is None else digest_of(salt)
            start = self.start(adapter)
            chain = self._native.chain(token_ids, self._packed_keys, self.block_size, start, stir)
            return memoryview(chain).cast("Q")
        own = self.blocks(token_ids)
        if salt is not None:
            own[:1] += np.uint64(digest_of(salt))
        return self.link(own, start=self.start(adapter))

    def follow(self, parent: int, own: int) -> int:
        """The hash of the block with the own hash `own` after `parent`."""
        return (parent * _STEP + own) & _MASK

    def link(self, own: Words, *, start: int) -> Chain:
        """The chain of blocks with these own hashes, which are overwritten."""
        while len(own) > len(self._powers):
            self._powers, self._inverse_powers = _power_tables(2 * len(self._powers))
        own *= self._inverse_powers[: len(own)]
        np.add.accumulate(own, out=own)
        own += np.uint64(start * _STEP & _MASK)
        own *= self._powers[: len(own)]
        return memoryview(own)  # type: ignore[arg-type]  # numpy's stubs hide the buffer before Python 3.12

    def __repr__(self) -> str:
        return f"ChainHasher(block_size={self.block_size})"


class ChainHashers:
    """One hasher for each block size that is asked for; endpoints have few."""

    def __init__(self) -> None:
        self._hashers: dict[int, ChainHasher] = {}

    def of(self, block_size: int) -> ChainHasher:
        hasher = self._hashers.get(block_size)
        if hasher is None:
            hasher = self._hashers[block_size] = ChainHasher(block_size)
        return hasher

    def __repr__(self) -> str:
        return f"ChainHashers({sorted(self._hashers)})"


def chain_of(hashes: Iterable[int]) -> Chain:
    """A chain from hashes that somebody else has computed."""
    return memoryview(array("Q", hashes))


def digest_of(text: str) -> int:
    """64 bits that are the same in every process; for what is hashed now and then."""
    encoded = text.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")


def _power_tables(num_powers: int) -> tuple[Words, Words]:
    """STEP and its inverse to the powers 0, 1, 2, ..."""
    tables = [np.full(num_powers, base, dtype=np.uint64) for base in (_STEP, _STEP_INVERSE)]
    for table in tables:
        table[0] = 1
        np.cumprod(table, out=table)
    return tables[0], tables[1]


def _stirred(value: int) -> int:
    """The splitmix64 sequence: well-spread 64 bits for each small number."""
    value = ((value + 1) * _STEP) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
