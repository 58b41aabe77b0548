"""The server with the real engine: a process as `headrace serve` starts it, on a tiny random model."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

import openai
from headrace.testing.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration

PROGRAM = """
import sys, uvloop
from headrace import log
from headrace.engine import AsyncEngineArgs
from headrace.server.run import run_server
from headrace.server.settings import ServerSettings

log.configure()
args = AsyncEngineArgs(model=sys.argv[1], served_model_name="tiny", cpu_threads=1)
uvloop.run(run_server(args, ServerSettings(port=0, ready_file=sys.argv[2], drain_timeout_s=5, health_interval_s=0.1)))
"""

QUESTIONS = [f"Where does the water go, for the {number}th time?" for number in range(8)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


class Server:
    """A server process and the official client for it."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, client: openai.AsyncOpenAI) -> None:
        self.process = process
        self.url = url
        self.client = client

    async def answer(self, question: str, **fields: Any) -> str:
        """Streamed, greedy unless told otherwise."""
        stream = await self.client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": question}],
            stream=True,
            **{"temperature": 0, "max_tokens": 24, **fields},
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def metric(self, name: str) -> float:
        async with httpx.AsyncClient() as http:
            text = (await http.get(f"{self.url}/metrics")).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return next(sample.value for sample in samples if sample.name == name)

    def children(self) -> list[int]:
        return children_of(self.process.pid)

    async def exit(self) -> tuple[int | None, bytes]:
        _, stderr = await asyncio.wait_for(self.process.communicate(), timeout=30)
        return self.process.returncode, stderr


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.asynccontextmanager
async def serving(model_dir: Path, ready: Path) -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, model_dir, ready, stderr=PIPE)
    try:
        async with asyncio.timeout(40):
            while not await asyncio.to_thread(ready.exists):
                assert process.returncode is None, (await process.communicate())[1].decode()
                await asyncio.sleep(0.02)
        url = msgspec.json.decode(await asyncio.to_thread(ready.read_bytes))["url"]
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30) as client:
            yield Server(process, url, client)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for child processes in /proc")
async def test_a_server_from_start_to_sigterm(model_dir: Path, tmp_path: Path) -> None:
    """One process for what does not end it: starting a second costs seconds."""
    async with serving(model_dir, tmp_path / "ready") as server:
        alone = [await server.answer(question) for question in QUESTIONS]
        assert len(set(alone)) > 1, "the model answers everything alike, so equal answers prove nothing"
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(server.answer(question)) for question in QUESTIONS]
        assert [task.result() for task in tasks] == alone, "all at once must answer as each alone"

        whole = await server.client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": QUESTIONS[0]}], temperature=0, max_tokens=24
        )
        assert whole.choices[0].message.content == alone[0], "whole and streamed"
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details is not None
        assert (whole.usage.prompt_tokens_details.cached_tokens or 0) > 0, "the prefix cache has seen this prompt"

        seeded = {"temperature": 1.0, "seed": 7}
        assert await server.answer(QUESTIONS[1], **seeded) == await server.answer(QUESTIONS[1], **seeded)

        stream = await server.client.completions.create(
            model="tiny", prompt="water", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )
        await anext(stream)
        await stream.close()
        async with asyncio.timeout(10):
            while await server.metric("vllm:num_requests_running") > 0:
                await asyncio.sleep(0.02)  # the engine tells its numbers after each step
        assert await server.metric("vllm:prefix_cache_hits_total") > 0

        card = await server.client.models.retrieve("tiny")
        assert (card.model_extra or {})["root"] == str(model_dir)

        children = server.children()
        assert children
        server.process.send_signal(signal.SIGTERM)
        status, stderr = await server.exit()
        assert status == 0, stderr.decode()
        assert not [child for child in children if Path(f"/proc/{child}").exists()]  # noqa: ASYNC240 - all is over


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for child processes in /proc")
async def test_killing_the_core_ends_streams_with_an_error_and_the_server_with_a_failure(
    model_dir: Path, tmp_path: Path
) -> None:
    async with serving(model_dir, tmp_path / "ready") as server:
        stream = await server.client.completions.create(
            model="tiny", prompt="water", max_tokens=480, stream=True, extra_body={"ignore_eos": True}
        )
        await anext(stream)
        (core,) = server.children()
        os.kill(core, signal.SIGKILL)
        with pytest.raises(openai.APIError) as caught:
            _ = [chunk async for chunk in stream]
        assert caught.value.code == "engine_dead"
        status, stderr = await server.exit()
        assert status == 1
        assert b"EngineDeadError" in stderr
