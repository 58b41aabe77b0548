"""Chained hashes of prompt blocks, bit for bit those of vLLM, so that engines and gateway can name the same prefix.

Only whole blocks have a hash. The hash of a block covers the hash of the block before it, so it names the whole prefix:

    hash[i] = F((hash[i - 1] or none_hash, the block's token ids, extra keys or None))

F is SHA-256 of the triple's bytes: as pickle protocol 5 ("sha256") or as canonical CBOR ("sha256_cbor"). This module
knows neither caches nor engines.
"""

import hashlib
import pickle
from collections.abc import Callable, Sequence
from typing import Literal, NewType, TypeAlias

BlockHash = NewType("BlockHash", bytes)

HashAlgorithm: TypeAlias = Literal["sha256", "sha256_cbor"]

Hashable: TypeAlias = "int | str | bytes | tuple[Hashable, ...] | None"
"""What may stand in a block's triple."""

ExtraKeys: TypeAlias = tuple[tuple[Hashable, ...], ...]
"""What beside its tokens makes a block's content: see `lora_key` and `salt_key`."""

DEFAULT_SEED = "vllm-none-hash"
"""The text behind the parent of a first block; vLLM takes PYTHONHASHSEED instead where that is set."""


class BlockHasher:
    """Hashes blocks of `block_size` tokens. Immutable; safe to share between threads."""

    __slots__ = ("_digest", "algorithm", "block_size", "none_hash")

    def __init__(self, block_size: int, *, algorithm: HashAlgorithm = "sha256", seed: str = DEFAULT_SEED) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; it must be at least 1")
        self._digest = _DIGESTS[algorithm]
        self.algorithm = algorithm
        self.block_size = block_size
        self.none_hash = BlockHash(self._digest(seed))

    def __repr__(self) -> str:
        return f"BlockHasher(block_size={self.block_size}, algorithm={self.algorithm!r})"

    def hash_block(
        self, token_ids: tuple[int, ...], *, parent: BlockHash | None, extra_keys: ExtraKeys | None = None
    ) -> BlockHash:
        """The hash of one whole block; `parent` is the hash of the block before it, None for the first."""
        return BlockHash(self._digest((parent or self.none_hash, token_ids, extra_keys or None)))

    def extend(
        self,
        hashes: list[BlockHash],
        token_ids: Sequence[int],
        *,
        first_block_keys: ExtraKeys = (),
        every_block_keys: ExtraKeys = (),
    ) -> None:
        """Append to `hashes`, which covers a prefix of `token_ids`, the hashes of the whole blocks that follow it."""
        size = self.block_size
        for index in range(len(hashes), len(token_ids) // size):
            block = tuple(token_ids[index * size : (index + 1) * size])
            keys = every_block_keys + first_block_keys if index == 0 else every_block_keys
            hashes.append(self.hash_block(block, parent=hashes[-1] if hashes else None, extra_keys=keys))

    def hash_prompt(
        self, token_ids: Sequence[int], *, first_block_keys: ExtraKeys = (), every_block_keys: ExtraKeys = ()
    ) -> list[BlockHash]:
        """The hashes of all whole blocks of `token_ids`, in order."""
        hashes: list[BlockHash] = []
        self.extend(hashes, token_ids, first_block_keys=first_block_keys, every_block_keys=every_block_keys)
        return hashes


def lora_key(name: str, path: str) -> tuple[Hashable, ...]:
    """The extra key of every block that was computed with a LoRA adapter."""
    return ("lora", name, path)


def salt_key(salt: str) -> tuple[Hashable, ...]:
    """The extra key of the first block of a request with a `cache_salt`; it sets the whole chain apart."""
    return ("cache_salt", salt)


def external_hash(block_hash: BlockHash) -> int:
    """The 64-bit number by which KV events name the block: the digest's last eight bytes, big-endian."""
    return int.from_bytes(block_hash[-8:], "big")


def encode_cbor(value: Hashable) -> bytes:
    """Canonical CBOR (RFC 8949, shortest heads) of integers, texts, bytes, None and tuples of them."""
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        raise TypeError(f"{value!r} cannot stand in a block's hash; use an integer")
    if isinstance(value, int):
        return _cbor_head(0, value) if value >= 0 else _cbor_head(1, -1 - value)
    if isinstance(value, bytes):
        return _cbor_head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _cbor_head(3, len(text)) + text
    return _cbor_head(4, len(value)) + b"".join(map(encode_cbor, value))


def _cbor_head(major_type: int, argument: int) -> bytes:
    major = major_type << 5
    if argument < 24:
        return bytes((major | argument,))
    for code, num_bytes in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 1 << (8 * num_bytes):
            return bytes((major | code,)) + argument.to_bytes(num_bytes, "big")
    raise OverflowError(f"{argument} needs more than 64 bits, which a block's hash does not take")


def _sha256_of_pickle(value: Hashable) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def _sha256_of_cbor(value: Hashable) -> bytes:
    return hashlib.sha256(encode_cbor(value)).digest()


_DIGESTS: dict[HashAlgorithm, Callable[[Hashable], bytes]] = {
    "sha256": _sha256_of_pickle,
    "sha256_cbor": _sha256_of_cbor,
}
