import pytest

from headrace.testing.tokenizers import FailingTokenizer, FakeTokenizer, PanicError


async def test_a_fake_refuses_to_encode_in_the_thread_of_a_loop() -> None:
    with pytest.raises(AssertionError, match="in the thread of a running event loop"):
        FakeTokenizer().encode_batch(["text"], add_special_tokens=False)


def test_a_fake_records_its_calls_but_not_the_warm_up() -> None:
    tokenizer = FakeTokenizer()
    for texts in (["warm-up"], ["a", "b"]):
        tokenizer.encode_batch(texts, add_special_tokens=False)
    assert tokenizer.calls == [["a", "b"]]


@pytest.mark.parametrize(("text", "error"), [("crash now", RuntimeError), ("panic now", PanicError)])
def test_a_failing_tokenizer_fails_on_demand(text: str, error: type[BaseException]) -> None:
    tokenizer = FailingTokenizer()
    assert len(tokenizer.encode_batch(["fine"], add_special_tokens=False)) == 1
    with pytest.raises(error):
        tokenizer.encode_batch(["fine", text], add_special_tokens=False)
