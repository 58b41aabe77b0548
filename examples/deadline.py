"""A deadline around the stream: when it has passed the request is aborted, and its blocks are free at once.

.venv/bin/python examples/deadline.py models/demo 0.1
"""

import asyncio
import contextlib
import sys

from headrace import AsyncEngineArgs, AsyncLLMEngine, SamplingParams


async def main(model: str, seconds: float) -> None:
    async with AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=model)) as engine:
        params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)  # until the context is full
        text = ""
        try:
            async with asyncio.timeout(seconds):
                async with contextlib.aclosing(engine.generate("Once upon a time", params, request_id="1")) as outputs:
                    async for output in outputs:
                        text = output.outputs[0].text
        except TimeoutError:
            print(f"out of time after {len(text)} characters")
        await engine.check_integrity()  # the core has seen the abort when it answers this
        statistics = engine.statistics()
        print(f"{statistics.num_free_blocks} of {statistics.num_blocks} blocks are free")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "models/demo", float((sys.argv[2:] or ["0.1"])[0])))
