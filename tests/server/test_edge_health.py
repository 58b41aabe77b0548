"""/health while the server's cores are busy with long prompts. Slow, and its bound is what a shared machine allows; the
figures are `benchmarks/health_under_load.py`'s."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import msgspec
import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "health_under_load.py"
BOUND_MS = 100.0


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_health_answers_while_fifty_long_prompts_are_tokenized() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, str(BENCHMARK), "--json", stdout=PIPE)
    output, _ = await process.communicate()
    result = msgspec.json.decode(output)
    assert result["num_tokens"] > 50 * 300_000
    assert result["loaded"]["num_probes"] > 50
    assert result["loaded"]["p99_ms"] < BOUND_MS
