"""Many requests at once under `asyncio.gather`: the engine batches them, and each gets its own answer.

.venv/bin/python examples/many_requests.py models/demo 400
"""

import asyncio
import sys

from headrace import AsyncEngineArgs, AsyncLLMEngine, RequestOutputKind, SamplingParams


async def answer(engine: AsyncLLMEngine, prompt: str, request_id: str) -> str:
    params = SamplingParams(temperature=0, max_tokens=12, output_kind=RequestOutputKind.FINAL_ONLY)
    text = ""
    async for output in engine.generate(prompt, params, request_id):
        text = output.outputs[0].text
    return text


async def main(model: str, num_requests: int) -> None:
    prompts = [f"There once was a bear with {number} friends." for number in range(num_requests)]
    async with AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=model)) as engine:
        requests = (answer(engine, prompt, str(number)) for number, prompt in enumerate(prompts))
        for prompt, text in zip(prompts, await asyncio.gather(*requests), strict=True):
            print(f"{prompt}{text!r}")


if __name__ == "__main__":
    model = sys.argv[1] if len(sys.argv) > 1 else "models/demo"
    asyncio.run(main(model, int(sys.argv[2]) if len(sys.argv) > 2 else 4))
