import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_block_sizes_have_no_hash_in_common() -> None:
    ids = np.zeros(256, dtype=np.uint32)

    assert not set(ChainHasher(16).chain(ids).tolist()) & set(ChainHasher(32).chain(ids).tolist())


def test_prompts_longer_than_the_tables_are_hashed_too() -> None:
    ids = np.arange(16 * 3000, dtype=np.uint32)
    long, short = ChainHasher(16).chain(ids).tolist(), ChainHasher(16).chain(ids[:160]).tolist()

    assert len(set(long)) == 3000
    assert long[:10] == short


def test_ids_in_memory_of_any_alignment_hash_alike() -> None:
    ids = np.arange(65, dtype=np.uint32)

    assert ChainHasher(16).chain(ids[1:]).tolist() == ChainHasher(16).chain(ids[1:].copy()).tolist()


def test_the_hashes_are_the_same_in_every_version() -> None:
    assert ChainHasher(2).chain(np.array([1, 2, 3, 4], dtype=np.uint32)).tolist() == PINNED


PINNED = [3233704143146126935, 12765472627053780856]
"""Gateways of different versions agree on where cold prompts go only while this holds."""
