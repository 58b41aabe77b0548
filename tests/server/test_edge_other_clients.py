"""Clients of others against the server, unchanged: LiteLLM's and vLLM's benchmark. Skipped where they are missing.

They live outside of the repository, each in an environment of its own: see `benchmarks/peers/`.
"""

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(400)]

REPOSITORY = Path(__file__).parents[2]
MODEL = REPOSITORY / "models" / "demo"
SCRIPTS = REPOSITORY / "benchmarks" / "peers"
PEERS = Path.home() / ".cache" / "headrace" / "peers"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a server as a user starts it."""
    with Fleet() as fleet:
        child = fleet.start("server", ["serve", str(MODEL), "--port", "0"])
        (address,) = fleet.wait_ready([child], timeout_s=60, on_ready=lambda _: None)
        yield address.url


def installed(file: Path) -> Path:
    if not file.exists():
        pytest.skip(f"{file} is not there")
    return file


async def output_of(python: Path, script: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
    process = await asyncio.create_subprocess_exec(
        str(python),
        str(SCRIPTS / script),
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})},
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:]
    return output.decode()


async def test_litellm_gets_what_it_asks_for(url: str) -> None:
    python = installed(PEERS / "litellm" / "venv" / "bin" / "python")
    got: dict[str, Any] = json.loads((await output_of(python, "litellm_client.py", url, MODEL.name)).splitlines()[-1])
    assert got["chat"]
    assert got["stream"] == got["async_stream"] == got["chat"]
    assert got["completion"]
    assert got["response"]
    assert got["anthropic"]
    assert got["embedding"] == 2
    assert json.loads(got["json_schema"])["digit"] in range(10)
    assert got["tool"][0] == "pick"
    assert json.loads(got["tool"][1])["digit"] in range(10)
    assert got["unknown_model"] == "NotFoundError"
    assert got["wrong_field"] == "BadRequestError"
    assert got["too_long"] == "ContextWindowExceededError"


@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")]
)
async def test_vllms_benchmark_runs_to_its_end(url: str, tmp_path: Path, backend: str, endpoint: str) -> None:
    peer = json.loads(installed(PEERS / "vllm" / "peer.json").read_text())
    arguments = {
        "backend": backend,
        "base-url": url,
        "endpoint": endpoint,
        "model": str(MODEL),
        "served-model-name": MODEL.name,
        "tokenizer": str(MODEL),
        "dataset-name": "random",
        "random-input-len": "50",
        "random-output-len": "16",
        "num-prompts": "10",
        "result-dir": str(tmp_path),
        "result-filename": "result.json",
    }
    flags = [part for name, value in arguments.items() for part in (f"--{name}", value)]
    await output_of(
        Path(peer["python"]),
        "vllm_bench_serve.py",
        *flags,
        "--ignore-eos",
        "--save-result",
        environment={**peer["environment"], "VLLM_NO_USAGE_STATS": "1"},
    )
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (10, 0)
    assert result["total_output_tokens"] == 160
    assert result["mean_ttft_ms"] > 0
