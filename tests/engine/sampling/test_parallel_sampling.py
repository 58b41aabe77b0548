"""Several completions of one prompt are one request to whoever asks for them."""

import numpy as np
import pytest

from headrace.engine.front.output_processor import OutputProcessor
from headrace.engine.front.parallel_sampling import ParallelProgress, fan_out, open_progress
from headrace.engine.front.request_progress import RequestProgress
from headrace.engine.outputs import RequestOutput, RequestOutputKind
from headrace.engine.sampling_params import MAX_SEED, SamplingParams
from headrace.engine.wire.messages import TokenDelta, TokenLogprobs
from headrace.errors import EngineError, EngineGenerateError
from headrace.testing.core_driver import add_request
from headrace.tokenization import ByteTokenizer


class Consumer:
    """A request of `n` completions whose tokens are bytes, and the table that it lives in."""

    def __init__(self, n: int = 3, **params: object) -> None:
        self.num_notified = 0
        self.num_left = 0
        self.params = SamplingParams(**{"n": n, "max_tokens": None, **params})  # type: ignore[arg-type]
        self.processor = OutputProcessor(on_left=lambda _: self._note_left())
        progress = open_progress(
            request_id="r", core_id="r#7", params=self.params, arrival_time=0.0, notify=self._note_news
        )
        assert isinstance(progress, ParallelProgress)
        self.progress = progress
        for child in progress.children:
            decoder = ByteTokenizer().incremental_decoder(skip_special_tokens=True)
            prompt = np.array([1, 2], dtype=np.uint32)
            child.set_prompt("p", token_ids=prompt, decoder=decoder, eos_token_ids=frozenset({258}))
        self.processor.add(progress)

    def _note_news(self) -> None:
        self.num_notified += 1

    def _note_left(self) -> None:
        self.num_left += 1

    def get(self, index: int, text: str, *, reason: str | None = None, **fields: object) -> list[str]:
        """The core's next delta for one completion; the core ids that are to be aborted."""
        delta = TokenDelta(
            request_id=f"r#7.{index}",
            new_token_ids=tuple(text.encode()),
            finish_reason=reason,
            **fields,  # type: ignore[arg-type]
        )
        return self.processor.apply([delta], now=1.0)

    def take(self) -> RequestOutput:
        output = self.progress.take()
        assert output is not None
        return output


def texts(output: RequestOutput) -> dict[int, str]:
    return {completion.index: completion.text for completion in output.outputs}


def test_one_completion_needs_no_parallel_state() -> None:
    progress = open_progress(
        request_id="r", core_id="r#1", params=SamplingParams(), arrival_time=0.0, notify=lambda: None
    )
    assert isinstance(progress, RequestProgress)
    assert progress.core_ids == ("r#1",)


def test_the_core_gets_a_request_for_each_with_its_own_seed_and_the_first_as_leader() -> None:
    message = add_request("r#7", [1, 2], params=SamplingParams(n=3, seed=MAX_SEED, prompt_logprobs=1, logprobs=2))
    parts = fan_out(message)
    assert [part.request_id for part in parts] == ["r#7.0", "r#7.1", "r#7.2"]
    assert [part.sampling_params.seed for part in parts] == [MAX_SEED, 0, 1]
    assert [part.sampling_params.prompt_logprobs for part in parts] == [1, None, None]
    assert [part.leader_id for part in parts] == [None, "r#7.0", "r#7.0"]
    assert all(part.sampling_params.n == 1 and part.sampling_params.logprobs == 2 for part in parts)


def test_one_completion_is_sent_as_it_is() -> None:
    message = add_request("r", [1])
    assert fan_out(message) == [message]


def test_deltas_name_the_completion_that_moved() -> None:
    request = Consumer(output_kind=RequestOutputKind.DELTA)
    request.get(1, "ab")
    assert texts(request.take()) == {1: "ab"}
    request.get(0, "x")
    request.get(1, "c")
    output = request.take()
    assert texts(output) == {0: "x", 1: "c"}
    assert not output.finished
    assert request.progress.take() is None


def test_it_finishes_with_the_last_completion() -> None:
    request = Consumer(n=2, output_kind=RequestOutputKind.DELTA)
    request.get(0, "a", reason="length")
    assert not request.take().finished
    assert (len(request.processor), request.num_left) == (1, 0)
    request.get(1, "b", reason="stop")
    output = request.take()
    assert output.finished
    assert texts(output) == {1: "b"}, "what has ended is not told again"
    assert (len(request.processor), request.num_left) == (0, 1)
    assert request.progress.is_exhausted


def test_cumulative_outputs_hold_all_that_have_begun() -> None:
    request = Consumer(n=2)
    request.get(0, "a", reason="length")
    assert texts(request.take()) == {0: "a"}
    request.get(1, "b", reason="length")
    output = request.take()
    assert (texts(output), output.finished) == ({0: "a", 1: "b"}, True)


def test_final_only_is_one_output_with_all() -> None:
    request = Consumer(n=2, output_kind=RequestOutputKind.FINAL_ONLY)
    request.get(1, "b", reason="length")
    assert request.progress.take() is None
    assert request.num_notified == 0
    request.get(0, "a", reason="length")
    output = request.take()
    assert (texts(output), output.finished) == ({0: "a", 1: "b"}, True)
    assert output.metrics.num_generation_tokens == 2


def test_an_abort_ends_all_and_frees_those_that_go_on() -> None:
    request = Consumer(n=3)
    request.get(0, "a", reason="length")
    assert request.processor.abort(["r"], now=2.0) == ["r#7.1", "r#7.2"]
    output = request.take()
    assert [completion.finish_reason for completion in output.outputs] == ["length", "abort", "abort"]
    assert output.finished


def test_leaving_frees_those_that_go_on() -> None:
    request = Consumer(n=3)
    request.get(1, "a", reason="length")
    assert request.processor.discard(request.progress) == ["r#7.0", "r#7.2"]
    assert request.processor.discard(request.progress) == []
    assert request.get(0, "late") == []


def test_a_stop_string_ends_one_completion_only() -> None:
    request = Consumer(n=2, stop=["!"])
    assert request.get(0, "hi!") == ["r#7.0"]
    assert len(request.processor) == 1
    assert request.get(1, "ho", reason="length") == []
    output = request.take()
    assert [c.finish_reason for c in output.outputs] == ["stop", "length"]
    assert output.finished


def test_one_that_fails_fails_all_and_frees_the_others() -> None:
    request = Consumer(n=3)
    request.get(0, "a")
    assert request.get(1, "", reason="error", error="no luck") == ["r#7.0", "r#7.2"]
    assert len(request.processor) == 0
    with pytest.raises(EngineGenerateError, match="no luck"):
        request.progress.take()
    assert request.progress.take() is None


def test_the_engines_death_is_raised_once() -> None:
    request = Consumer(n=2)
    request.get(0, "a")
    request.processor.fail_all(lambda: EngineError("dead"), now=2.0)
    with pytest.raises(EngineError, match="dead"):
        request.progress.take()
    assert request.progress.take() is None
    assert request.num_left == 1


def test_prompt_logprobs_come_from_the_first_completion() -> None:
    request = Consumer(n=2, prompt_logprobs=0)
    told = (TokenLogprobs((2,), (-0.5,), 1),)
    request.get(0, "a", reason="length", prompt_logprobs=told)
    assert request.take().prompt_logprobs is not None
    request.get(1, "b", reason="length")
    last = request.take()
    assert last.prompt_logprobs is not None
    assert last.prompt_logprobs[1][2].logprob == -0.5  # type: ignore[index]


@pytest.mark.parametrize("n", [0, 129, True])
def test_a_number_of_completions_out_of_range_is_refused(n: int) -> None:
    with pytest.raises(Exception, match="n must be") as caught:
        SamplingParams(n=n)
    assert caught.value.param == "n"  # type: ignore[attr-defined]
