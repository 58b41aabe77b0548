"""The whole application on a Ray cluster of this machine."""

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from headrace.ready_file import Address, read_ready_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]
_MODEL = Path(__file__).parents[2] / "models" / "demo"
_START_TIMEOUT_S = 400.0
_DEADLINE_S = 120.0
_CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, *flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, Address]]:
    """`headrace serve --backend ray`, ready."""
    ready = tmp_path / "ready"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "headrace.cli.main", "serve", str(_MODEL), "--backend", "ray", "--port", "0"),
        *("--ready-file", str(ready), "--ray-num-cpus", "0.5", "--kv-cache-memory-bytes", "16MiB"),
        *flags,
        env=os.environ | {"HEADRACE_GATEWAY_ADMIN_PORT": "0"},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while (address := read_ready_file(ready)) is None:
                assert process.returncode is None, f"it ended with {process.returncode}"
                await asyncio.sleep(0.2)
        yield process, address
    finally:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DEADLINE_S):
                    await process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def engines(client: httpx.AsyncClient, address: Address) -> list[str]:
    """URLs of those that take requests."""
    state = (await client.get(f"{address.admin_url}/state")).json()
    return sorted(one["name"] for one in state.get("endpoints", []) if one["is_healthy"])


async def wait_for_engines(client: httpx.AsyncClient, address: Address, *, number: int) -> list[str]:
    async with asyncio.timeout(_DEADLINE_S):
        while len(urls := await engines(client, address)) != number:
            await asyncio.sleep(0.2)
    return urls


async def test_engines_behind_a_gateway_answer_and_end_when_told(tmp_path: Path) -> None:
    async with serving(tmp_path, "--ray-min-replicas", "2") as (process, address):
        async with httpx.AsyncClient(timeout=_DEADLINE_S) as client:
            urls = await wait_for_engines(client, address, number=2)
            answers = [await client.post(f"{address.url}/v1/chat/completions", json=_CHAT) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert {answer.headers["x-headrace-endpoint"] for answer in answers} <= set(urls)

        process.terminate()
        async with asyncio.timeout(_DEADLINE_S):
            await process.wait()

    assert process.returncode == 0


async def test_engines_are_added_while_the_queue_is_long(tmp_path: Path) -> None:
    flags = ("--ray-max-replicas", "2", "--ray-target-queue", "1", "--ray-upscale-delay-s", "1s")
    async with serving(tmp_path, *flags) as (_, address), httpx.AsyncClient(timeout=600.0) as client:
        await wait_for_engines(client, address, number=1)
        chat = _CHAT | {"max_tokens": 400, "ignore_eos": True}
        async with asyncio.TaskGroup() as group:

            async def keep_busy() -> None:
                while True:
                    await client.post(f"{address.url}/v1/chat/completions", json=chat)

            busy = [group.create_task(keep_busy()) for _ in range(4)]
            await wait_for_engines(client, address, number=2)
            for one in busy:
                one.cancel()


async def test_the_application_for_serve_deploy_answers_through_the_proxies() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.ray_serve.serve_app", str(_MODEL), str(port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=_MODEL.parents[1],
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while (line := await process.stdout.readline()) != b"ready\n":
                assert line, "it ended"
        async with httpx.AsyncClient(timeout=_DEADLINE_S) as client:
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            whole = await client.post(url, json=_CHAT)
            streamed = await client.post(url, json=_CHAT | {"stream": True})
        process.stdin.close()
        async with asyncio.timeout(_DEADLINE_S):
            await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    assert whole.json()["usage"]["completion_tokens"] == 4
    assert whole.headers["x-headrace-reason"]
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.endswith("data: [DONE]\n\n")
