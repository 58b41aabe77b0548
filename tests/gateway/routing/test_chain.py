import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._native import compiled
from headrace.gateway.prefix_index import ChainHasher
from headrace.tokenization.tokenizer import pack_token_ids

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=120)


@given(TOKENS, TOKENS, st.sampled_from([1, 2, 3, 4, 16]))
def test_chains_share_exactly_the_blocks_that_their_prompts_share(one: list[int], two: list[int], size: int) -> None:
    hasher = ChainHasher(size)
    common = one[:40]
    chains = [hasher.chain(pack_token_ids(tokens)).tolist() for tokens in (common + one, common + two)]
    texts = [[*common, *one], [*common, *two]]
    num_equal = 0
    for end in range(size, min(map(len, texts)) + 1, size):
        if texts[0][:end] != texts[1][:end]:
            break
        num_equal += 1

    assert [len(chain) for chain in chains] == [len(text) // size for text in texts]
    assert chains[0][:num_equal] == chains[1][:num_equal]
    assert not set(chains[0][num_equal:]) & set(chains[1][num_equal:])


@given(TOKENS, st.sampled_from([1, 2, 5, 16]))
def test_a_block_that_comes_alone_follows_its_parent(tokens: list[int], size: int) -> None:
    hasher = ChainHasher(size)
    ids = pack_token_ids(tokens)
    hashes, last = [], hasher.start("adapter")
    for own in hasher.blocks(ids).tolist():
        last = hasher.follow(last, own)
        hashes.append(last)

    assert hasher.chain(ids, adapter="adapter").tolist() == hashes


@pytest.mark.parametrize("others", [{"adapter": "a"}, {"salt": "s"}, {"adapter": "a", "salt": "s"}])
def test_adapter_and_salt_set_a_chain_apart(others: dict[str, str]) -> None:
    ids = np.arange(64, dtype=np.uint32)
    plain, apart = ChainHasher(16).chain(ids), ChainHasher(16).chain(ids, **others)

    assert not set(plain.tolist()) & set(apart.tolist())


@given(TOKENS, st.integers(1, 20), st.text(max_size=3), st.none() | st.text(max_size=3))
def test_the_hashes_are_the_same_with_and_without_a_compiler(
    tokens: list[int], size: int, adapter: str, salt: str | None
) -> None:
    ids = pack_token_ids(tokens)
    native, twin = ChainHasher(size), ChainHasher(size, native=None)

    assert native.blocks(ids).tolist() == twin.blocks(ids).tolist()
    assert native.chain(ids, adapter=adapter, salt=salt) == twin.chain(ids, adapter=adapter, salt=salt)


@pytest.mark.parametrize("size", [15, 16])
def test_long_prompts_hash_alike_with_and_without_a_compiler(size: int) -> None:
    ids = np.random.default_rng(3).integers(0, 2**32, 131_072, dtype=np.uint32)

    assert ChainHasher(size).chain(ids) == ChainHasher(size, native=None).chain(ids)


@pytest.mark.skipif(compiled is None, reason="there was no C compiler")
@pytest.mark.parametrize(
    ("ids", "keys", "block_size"),
    [
        (np.zeros(32, dtype=np.uint64), bytes(64), 16),
        (np.zeros(32, dtype=np.uint32), bytes(64), 15),
        (np.zeros(32, dtype=np.uint32), b"", 0),
        (np.zeros(32, dtype=np.uint32), bytes(64), -1),
    ],
)
def test_what_does_not_go_together_is_refused_in_c(ids: object, keys: bytes, block_size: int) -> None:
    assert compiled is not None
    with pytest.raises(ValueError, match=rf"blocks of {block_size} ids"):
        compiled.chain(ids, keys, block_size, 0, 0)


def test_block_sizes_have_no_hash_in_common() -> None:
    ids = np.zeros(256, dtype=np.uint32)

    assert not set(ChainHasher(16).chain(ids).tolist()) & set(ChainHasher(32).chain(ids).tolist())


def test_prompts_longer_than_the_tables_are_hashed_too() -> None:
    ids = np.arange(16 * 3000, dtype=np.uint32)
    hasher = ChainHasher(16, native=None)
    long, short = hasher.chain(ids).tolist(), hasher.chain(ids[:160]).tolist()

    assert len(set(long)) == 3000
    assert long[:10] == short


def test_ids_in_memory_of_any_alignment_hash_alike() -> None:
    ids = np.arange(65, dtype=np.uint32)

    assert ChainHasher(16).chain(ids[1:]).tolist() == ChainHasher(16).chain(ids[1:].copy()).tolist()


def test_the_hashes_are_the_same_in_every_version() -> None:
    assert ChainHasher(2).chain(np.array([1, 2, 3, 4], dtype=np.uint32)).tolist() == PINNED


PINNED = [3233704143146126935, 12765472627053780856]
"""Gateways of different versions agree on where cold prompts go only while this holds."""
