"""The text of one answer as it grows, and nothing else: for callers who want only the words."""

import contextlib
from collections.abc import AsyncGenerator

import msgspec

from headrace.engine.async_engine import AsyncLLMEngine
from headrace.engine.front.input_processor import Prompt
from headrace.engine.outputs import RequestOutputKind
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import InvalidRequestError


async def stream_generate(
    engine: AsyncLLMEngine, prompt: Prompt, sampling_params: SamplingParams, request_id: str
) -> AsyncGenerator[str, None]:
    """Only the new text each time, never empty; `sampling_params.output_kind` does not matter.

    Ends, and raises, as `engine.generate` does; leaving early aborts the request. Raises InvalidRequestError for
    `n` above 1, whose texts would be mixed, and for `detokenize=False`, which gives no text.
    """
    if sampling_params.n != 1:
        raise InvalidRequestError(f"n is {sampling_params.n}; one text can be streamed", param="n")
    if not sampling_params.detokenize:
        raise InvalidRequestError("detokenize is False, so there is no text to stream", param="detokenize")
    params = msgspec.structs.replace(sampling_params, output_kind=RequestOutputKind.DELTA)
    async with contextlib.aclosing(engine.generate(prompt, params, request_id)) as outputs:
        async for output in outputs:
            if text := output.outputs[0].text:
                yield text
