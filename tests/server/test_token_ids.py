"""Token ids written as JSON by a table."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.token_ids import TokenIdWriter

WRITER = TokenIdWriter(152_000)


@given(st.lists(st.one_of(st.integers(0, 151_999), st.integers(0, 120))))
def test_ids_are_written_as_any_json_library_writes_them(token_ids: list[int]) -> None:
    written = WRITER.write(np.array(token_ids, dtype=np.uint32))
    assert b"[" + written + b"]" == msgspec.json.encode(token_ids)


@pytest.mark.parametrize("vocab_size", [1, 9, 10, 11, 100, 101, 65_537])
def test_every_id_of_a_vocabulary_is_written(vocab_size: int) -> None:
    token_ids = np.arange(vocab_size, dtype=np.uint32)
    written = TokenIdWriter(vocab_size).write(token_ids)
    assert b"[" + written + b"]" == msgspec.json.encode(token_ids.tolist())


@pytest.mark.parametrize("token_id", [259, 2**32 - 1])
def test_an_id_beyond_the_vocabulary_is_written_too(token_id: int) -> None:
    assert TokenIdWriter(259).write(np.array([1, token_id], dtype=np.uint32)) == b"1,%d" % token_id
