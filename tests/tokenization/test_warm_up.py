"""The first call of an encoder in each thread."""

import threading
from collections.abc import Sequence

from headrace.testing.tokenizers import FakeTokenizer
from headrace.tokenization.tokenizer import TokenIds
from headrace.tokenization.warm_up import WarmUp


class CountingTokenizer(FakeTokenizer):
    """Knows how many threads were ever in it at once."""

    num_inside = 0
    most_inside = 0

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        self.num_inside += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        try:
            return super().encode_batch(texts, add_special_tokens=add_special_tokens)
        finally:
            self.num_inside -= 1


def test_threads_make_their_first_call_one_after_the_other() -> None:
    tokenizer = CountingTokenizer()
    warm_up = WarmUp(tokenizer)
    threads = [threading.Thread(target=warm_up) for _ in range(8)]
    for thread in threads:
        thread.start()
    warm_up.wait(num_threads=8, timeout_s=30.0, should_stop=lambda: False)
    assert "8 threads" in repr(warm_up)
    for thread in threads:
        thread.join()
    assert tokenizer.most_inside == 1


def test_a_thread_that_does_not_come_is_not_waited_for_when_the_service_closes() -> None:
    warm_up = WarmUp(CountingTokenizer())
    warm_up()
    warm_up.wait(num_threads=2, timeout_s=30.0, should_stop=lambda: True)
    warm_up.wait(num_threads=2, timeout_s=0.0, should_stop=lambda: False)
    assert "1 threads" in repr(warm_up)
