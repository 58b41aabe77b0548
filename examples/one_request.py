"""One request, printed as it grows: each output holds the whole text so far.

.venv/bin/python examples/one_request.py models/demo "Once upon a time"
"""

import asyncio
import sys

from headrace import AsyncEngineArgs, AsyncLLMEngine, SamplingParams


async def main(model: str, prompt: str) -> None:
    async with AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=model)) as engine:
        params = SamplingParams(temperature=0, max_tokens=40)
        async for output in engine.generate(prompt, params, request_id="1"):
            print(output.outputs[0].text)


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ("models/demo", "Once upon a time"))))
