"""/health while the server's cores are busy with long prompts. Slow, and its bounds are what a shared machine allows:
the figures, which the tests print, are `benchmarks/health_under_load.py`'s."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(300)]

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "health_under_load.py"
BOUND_MS = 100.0
"""What vLLM's own test asks for. What any process waits for on the machine comes on top of it."""


async def measured(*arguments: str) -> Any:
    process = await asyncio.create_subprocess_exec(sys.executable, str(BENCHMARK), "--json", *arguments, stdout=PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    result = msgspec.json.decode(output)
    print(" ".join(arguments), "/health", result["loaded"], "the machine itself", result["machine"])
    return result


@pytest.mark.parametrize("route", ["tokenize", "chat"])
async def test_health_answers_while_fifty_long_prompts_are_tokenized(route: str) -> None:
    result = await measured("--route", route)
    assert result["num_answered"] == 50
    assert result["loaded"]["num_probes"] > 20
    assert result["loaded"]["p99_ms"] < BOUND_MS + result["machine"]["max_ms"]


async def test_health_answers_while_the_longest_bodies_arrive() -> None:
    """Almost 16 MB each; what is more than the server's queues hold is refused."""
    result = await measured("--words", "2400000", "--prompts", "20")
    assert result["num_answered"] > 0
    assert result["loaded"]["p99_ms"] < BOUND_MS + result["machine"]["max_ms"]
