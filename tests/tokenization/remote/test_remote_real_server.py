"""A remote tokenizer against Headrace's own server with a real, if tiny, model."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from headrace.errors import InvalidRequestError
from headrace.testing.tiny_model import write_tiny_model
from headrace.tokenization import ChatPrompt, TokenizationService
from headrace.tokenization.remote.endpoints import StaticEndpoints
from headrace.tokenization.remote.pool import RemoteTokenizerPool
from headrace.tokenization.remote.settings import RemotePoolSettings

pytestmark = pytest.mark.integration

PROGRAM = """
import sys, uvloop
from headrace.engine import AsyncEngineArgs
from headrace.server.run import run_server
from headrace.server.settings import ServerSettings

args = AsyncEngineArgs(model=sys.argv[1], served_model_name="tiny", cpu_threads=1)
uvloop.run(run_server(args, ServerSettings(port=0, ready_file=sys.argv[2], drain_timeout_s=5)))
"""

CHAT = ChatPrompt(messages=[{"role": "user", "content": "Where does the water go? 🌊"}])


def url_in(ready: Path) -> str | None:
    return str(msgspec.json.decode(ready.read_bytes())["url"]) if ready.is_file() else None


@contextlib.asynccontextmanager
async def serving(model_dir: Path, ready: Path) -> AsyncIterator[str]:
    """The URL of a server process; the process has ended afterwards."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(model_dir), str(ready), stderr=DEVNULL
    )
    try:
        async with asyncio.timeout(40):
            while (url := url_in(ready)) is None:
                assert process.returncode is None, "the server ended before it was ready"
                await asyncio.sleep(0.05)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        async with asyncio.timeout(15):
            await process.wait()


async def test_remote_and_local_ids_are_the_same_and_so_are_the_prompt_tokens(tmp_path: Path) -> None:
    model_dir = write_tiny_model(tmp_path / "tiny")
    async with serving(model_dir, tmp_path / "ready.json") as url, TokenizationService() as service:
        await service.load("tiny", model_dir)
        settings = RemotePoolSettings(enabled=True, parity_share=1.0)
        async with RemoteTokenizerPool(StaticEndpoints({"tiny": [url]}), settings=settings, local=service) as pool:
            for prompt in ("", "Grüße <|im_end|> 🌊", "water " * 5000, CHAT):
                remote, local = await pool.encode(prompt, model="tiny"), await service.encode(prompt, model="tiny")
                assert (remote.endpoint, remote.fallback_reason) == (url, None)
                assert remote.token_ids.tolist() == local.token_ids.tolist()
            ids = (await pool.encode("Grüße <|im_end|> 🌊", model="tiny")).token_ids
            assert await pool.decode(ids, model="tiny") == "Grüße <|im_end|> 🌊"
            with pytest.raises(InvalidRequestError) as refused:
                await pool.encode(ChatPrompt(messages=[{"role": "user", "content": 7}]), model="tiny")
            assert refused.value.param == "messages[0].content"
            assert pool.statistics().num_parity_mismatches == 0
            chat_ids = (await pool.encode(CHAT, model="tiny")).token_ids
        async with httpx.AsyncClient(timeout=20) as http:
            body = {"model": "tiny", "messages": list(CHAT.messages), "max_tokens": 1}
            answer = (await http.post(f"{url}/v1/chat/completions", json=body)).json()
        assert answer["usage"]["prompt_tokens"] == len(chat_ids)
