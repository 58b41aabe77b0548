"""Many texts at once go another way through fastokens; it is compared before its ids serve anybody."""

from array import array
from collections.abc import Sequence

import pytest

from headrace.tokenization.byte_tokenizer import ByteTokenizer
from headrace.tokenization.fastokens_tokenizer import FastokensTokenizer

MANY = [f"text {number}" for number in range(20)]


class Library:
    """fastokens as far as it is used: right for single texts, and for many as it is told."""

    def __init__(self, *, is_right: bool) -> None:
        self._is_right = is_right
        self.num_spread = 0

    def no_truncation(self) -> None: ...

    def no_padding(self) -> None: ...

    def encode_batch_flat(self, texts: list[str], adds: bool) -> tuple[bytes, bytes]:
        is_spread = len(texts) > 1
        self.num_spread += is_spread
        ids, offsets = array("I"), array("Q", [0])
        for text in texts:
            ids.extend(byte + (is_spread and not self._is_right) for byte in text.encode())
            offsets.append(len(ids))
        return ids.tobytes(), offsets.tobytes()


def _encoded(library: Library, texts: Sequence[str], *, num_times: int) -> list[list[list[int]]]:
    tokenizer = FastokensTokenizer(library, reference=ByteTokenizer())  # type: ignore[arg-type]  # stands for it
    return [[ids.tolist() for ids in tokenizer.encode_batch(texts, add_special_tokens=False)] for _ in range(num_times)]


def test_few_texts_never_wake_the_librarys_threads() -> None:
    library = Library(is_right=True)
    assert _encoded(library, MANY[:8], num_times=3) == [[list(text.encode()) for text in MANY[:8]]] * 3
    assert library.num_spread == 0


@pytest.mark.parametrize(("is_right", "num_spread"), [(True, 3), (False, 1)])
def test_many_texts_get_the_ids_of_single_ones_whatever_the_library_does(is_right: bool, num_spread: int) -> None:
    library = Library(is_right=is_right)
    assert _encoded(library, MANY, num_times=3) == [[list(text.encode()) for text in MANY]] * 3
    assert library.num_spread == num_spread
