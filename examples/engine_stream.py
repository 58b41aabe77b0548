"""One request to an embedded engine, printed as it grows.

.venv/bin/python examples/engine_stream.py models/demo "What is 12 plus 7?"
"""

import asyncio
import sys

from headrace import AsyncEngineArgs, AsyncLLMEngine, ChatPrompt, RequestOutputKind, SamplingParams


async def main(model: str, question: str) -> None:
    async with AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=model)) as engine:
        name = (await engine.get_model_config()).served_model_name
        messages = [{"role": "user", "content": question}]
        prompt = await engine.tokenization.encode(ChatPrompt(messages=messages), model=name)
        params = SamplingParams(temperature=0, max_tokens=200, output_kind=RequestOutputKind.DELTA)
        async for output in engine.generate(prompt.token_ids.tolist(), params, request_id="example"):
            print(output.outputs[0].text, end="", flush=True)
        print()


if __name__ == "__main__":
    model = sys.argv[1] if len(sys.argv) > 1 else "models/demo"
    question = sys.argv[2] if len(sys.argv) > 2 else "What is 12 plus 7?"
    asyncio.run(main(model, question))
