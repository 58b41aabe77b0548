"""One embedding request, from the deltas of the core to what its consumer takes."""

import numpy as np
import pytest

from headrace.engine.front.embedding_progress import EmbeddingProgress
from headrace.engine.wire.messages import TokenDelta
from headrace.errors import EngineGenerateError

VECTOR = np.array([0.5, -1.0], dtype=np.float32).tobytes()


def make(notified: list[int]) -> EmbeddingProgress:
    progress = EmbeddingProgress(
        request_id="r", core_id="r#0", arrival_time=1.0, notify=lambda: notified.append(len(notified))
    )
    progress.set_prompt(np.array([1, 2], dtype=np.uint32))
    return progress


def delta(**fields: object) -> TokenDelta:
    return TokenDelta(request_id="r#0", new_token_ids=(), **fields)  # type: ignore[arg-type]


def test_the_vector_is_given_once() -> None:
    notified: list[int] = []
    progress = make(notified)
    progress.apply(delta(num_cached_tokens=1), now=2.0)
    assert (progress.take(), notified) == (None, [])

    progress.apply(delta(embedding=VECTOR, finish_reason="stop"), now=3.0)
    output = progress.take()

    assert output is not None
    assert output.outputs is not None
    assert (output.outputs.embedding, output.prompt_token_ids, output.num_cached_tokens) == ([0.5, -1.0], [1, 2], 1)
    assert (progress.take(), progress.is_exhausted, progress.times.finished) == (None, True, 3.0)
    assert notified == [0]


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ({"finish_reason": "error", "error": "no room"}, "'r' failed in the engine: no room"),
        ({"finish_reason": "length"}, "'r' ended without a vector"),
    ],
)
def test_a_request_that_gets_no_vector_raises_why_once(last: dict[str, object], why: str) -> None:
    notified: list[int] = []
    progress = make(notified)

    progress.apply(delta(**last), now=2.0)
    progress.apply(delta(embedding=VECTOR, finish_reason="stop"), now=3.0)

    with pytest.raises(EngineGenerateError, match=why):
        progress.take()
    assert (progress.take(), progress.finish_reason, progress.times.finished, notified) == (None, None, 2.0, [0])


def test_an_aborted_request_gives_an_output_without_a_vector() -> None:
    progress = make([])
    progress.abort(now=2.0)
    progress.fail(EngineGenerateError("too late"), now=3.0)

    output = progress.take()

    assert output is not None
    assert (output.outputs, output.finished, progress.finish_reason) == (None, True, "abort")
