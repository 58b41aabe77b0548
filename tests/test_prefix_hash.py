"""Block hashes equal vLLM's, and the chain names the whole prefix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.prefix_hash import BlockHasher, HashAlgorithm, encode_cbor, external_hash, lora_key, salt_key

TWO_BLOCKS = list(range(32))


@pytest.mark.parametrize(
    ("algorithm", "seed", "first", "second"),
    [
        ("sha256", "vllm-none-hash", 3262291359910021016, 7142137847444424233),
        ("sha256_cbor", "vllm-none-hash", 2233398808101521225, 17911472383915781900),
    ],
)
def test_chained_hashes_equal_vllms(algorithm: HashAlgorithm, seed: str, first: int, second: int) -> None:
    hashes = BlockHasher(16, algorithm=algorithm, seed=seed).hash_prompt(TWO_BLOCKS)
    assert [external_hash(h) for h in hashes] == [first, second]


@pytest.mark.parametrize(
    ("algorithm", "first"), [("sha256", 7982712666671721126), ("sha256_cbor", 12687895063098490012)]
)
def test_a_seed_changes_the_first_parent_as_vllms_does(algorithm: HashAlgorithm, first: int) -> None:
    assert external_hash(BlockHasher(16, algorithm=algorithm, seed="0").hash_prompt(TWO_BLOCKS)[0]) == first


@pytest.mark.parametrize(
    ("algorithm", "start", "end"), [("sha256", "066b1e89", "f0d71198"), ("sha256_cbor", "9bd96a48", "9581eef0")]
)
def test_the_first_parent_equals_vllms(algorithm: HashAlgorithm, start: str, end: str) -> None:
    none_hash = BlockHasher(16, algorithm=algorithm).none_hash.hex()
    assert none_hash.startswith(start)
    assert none_hash.endswith(end)


@pytest.mark.parametrize(
    ("algorithm", "salted"), [("sha256", 13093781136375423869), ("sha256_cbor", 17732653980334153391)]
)
def test_a_cache_salt_enters_the_first_block_as_in_vllm(algorithm: HashAlgorithm, salted: int) -> None:
    hasher = BlockHasher(16, algorithm=algorithm)
    plain = hasher.hash_prompt(TWO_BLOCKS)
    hashes = hasher.hash_prompt(TWO_BLOCKS, first_block_keys=(salt_key("s"),))
    assert external_hash(hashes[0]) == salted
    assert hashes[1] == hasher.hash_block(tuple(range(16, 32)), parent=hashes[0])
    assert hashes[1] != plain[1]


def test_a_lora_adapter_enters_every_block_as_in_vllm() -> None:
    hasher = BlockHasher(16, algorithm="sha256_cbor")
    key = (lora_key("adapter", "/path/adapter"),)
    hashes = hasher.hash_prompt(TWO_BLOCKS, every_block_keys=key)
    assert external_hash(hashes[0]) == 567384533374724409
    assert hashes[1] == hasher.hash_block(tuple(range(16, 32)), parent=hashes[0], extra_keys=key)


@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=40),
    cut=st.integers(0, 40),
    block_size=st.integers(1, 9),
)
def test_hashing_in_two_parts_equals_hashing_at_once(tokens: list[int], cut: int, block_size: int) -> None:
    hasher = BlockHasher(block_size)
    hashes = hasher.hash_prompt(tokens[:cut])
    hasher.extend(hashes, tokens)
    assert hashes == hasher.hash_prompt(tokens)
    assert len(hashes) == len(tokens) // block_size


@given(tokens=st.lists(st.integers(0, 9), min_size=4, max_size=24), position=st.integers(0, 23))
def test_a_changed_token_changes_its_block_and_all_later_ones(tokens: list[int], position: int) -> None:
    position %= len(tokens)
    changed = [*tokens[:position], tokens[position] + 1, *tokens[position + 1 :]]
    hasher = BlockHasher(4)
    for index, (before, after) in enumerate(zip(hasher.hash_prompt(tokens), hasher.hash_prompt(changed), strict=True)):
        assert (before == after) == (index < position // 4)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65536, "1a00010000"),
        (1 << 32, "1b0000000100000000"),
        (-1, "20"),
        (-500, "3901f3"),
        (None, "f6"),
        ("é", "62c3a9"),
        (b"\x01", "4101"),
        ((1, (2, None)), "820182" + "02f6"),
    ],
)
def test_cbor_heads_are_the_shortest(value: int | str | bytes | tuple[int, ...] | None, encoded: str) -> None:
    assert encode_cbor(value).hex() == encoded


def test_cbor_refuses_what_has_no_canonical_place() -> None:
    with pytest.raises(OverflowError, match="64 bits"):
        encode_cbor(1 << 64)
    with pytest.raises(TypeError, match="True"):
        encode_cbor(True)


def test_a_block_has_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="block_size is 0"):
        BlockHasher(0)
