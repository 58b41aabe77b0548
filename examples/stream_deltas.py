"""Only the new text each time: by the output kind DELTA, and by `stream_generate`, which gives nothing but text.

.venv/bin/python examples/stream_deltas.py models/demo "Once upon a time"
"""

import asyncio
import sys

from headrace import AsyncEngineArgs, AsyncLLMEngine, RequestOutputKind, SamplingParams, stream_generate


async def main(model: str, prompt: str) -> None:
    async with AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=model)) as engine:
        params = SamplingParams(temperature=0, max_tokens=40, output_kind=RequestOutputKind.DELTA)
        async for output in engine.generate(prompt, params, request_id="1"):
            print(output.outputs[0].text, end="", flush=True)
        print()
        async for text in stream_generate(engine, prompt, params, request_id="2"):
            print(text, end="", flush=True)
        print()


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ("models/demo", "Once upon a time"))))
