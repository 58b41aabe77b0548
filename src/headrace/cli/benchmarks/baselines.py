"""What everybody else does: the bare libraries, one executor call for each prompt, and vLLM's former micro-batching."""

import asyncio
import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import tokenizers

from headrace.aio.tasks import TaskOwner
from headrace.tokenization.tokenizer import TokenIds

_MAX_BATCH_SIZE = 32
_BATCH_WAIT_S = 0.002


def reference_library(path: Path) -> Any:
    """Hugging Face's tokenizer for a `tokenizer.json` or a directory with one, without truncation and padding."""
    library = tokenizers.Tokenizer.from_file(str(definition_of(path)))
    library.no_truncation()
    library.no_padding()
    return library


def fastokens_encode(path: Path) -> Callable[[str], TokenIds] | None:
    """The bare accelerated call; None when fastokens is not installed or does not support the tokenizer."""
    try:
        library = importlib.import_module("fastokens").Tokenizer.from_file(str(definition_of(path)))
    except (ImportError, ValueError, RuntimeError, OSError):
        return None

    def encode(text: str) -> TokenIds:
        packed, _ = library.encode_batch_flat([text], True)
        return np.frombuffer(packed, np.uint32)

    return encode


def definition_of(path: Path) -> Path:
    return path / "tokenizer.json" if path.is_dir() else path


class VllmMicroBatching:
    """vLLM's way until mid-2026, made anew from its description: a batch is what comes within 2 ms after its first
    prompt, 32 at most, in one call in one thread; nothing is collected while that call runs."""

    def __init__(self, encode_batch: Callable[[Sequence[str]], list[Any]]) -> None:
        self._encode_batch = encode_batch
        self._queue: asyncio.Queue[tuple[str, asyncio.Future[Any]]] = asyncio.Queue()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="vllm-way")
        self._tasks = TaskOwner("vllm-way")

    async def encode(self, text: str) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((text, future))
        return await future

    async def __aenter__(self) -> Self:
        self._tasks.spawn(self._run(), name="vllm-way-batches")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._tasks.aclose()
        self._executor.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._queue.get()]
            deadline_s = loop.time() + _BATCH_WAIT_S
            while len(batch) < _MAX_BATCH_SIZE and (left_s := deadline_s - loop.time()) > 0:
                try:
                    batch.append(await asyncio.wait_for(self._queue.get(), left_s))
                except TimeoutError:
                    break
            results = await loop.run_in_executor(self._executor, self._encode_batch, [text for text, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
