"""The part of `headrace bench tokenization` beside other libraries, which `make peers` has installed: each call is made
and timed in a process of theirs. One that gives other ids is left out, and the report says so."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from headrace.cli.benchmarks.baselines import definition_of
from headrace.cli.benchmarks.encoding import Encoders
from headrace.cli.benchmarks.rounds import Group, plain
from headrace.errors import HeadraceError

TITLE = "beside other libraries"
_MANIFEST = Path("tokenizers") / "tokenizers.json"
_ANSWER_TIMEOUT_S = 60.0
_MAX_LINE_BYTES = 1 << 27
_OWN_WAYS = ("tokenizers.encode", "fastokens", "headrace service")


class LibrariesError(HeadraceError):
    """The process of the other libraries failed."""


class _Manifest(msgspec.Struct):
    python: str
    runner: str


class _Greeting(msgspec.Struct):
    libraries: list[str]
    missing: dict[str, str]


class _Answer(msgspec.Struct):
    seconds: float
    ids: list[int]


class Libraries:
    """A process with other libraries, for one tokenizer. A context manager; leaving it ends the process."""

    def __init__(self, manifest: _Manifest, tokenizer: Path) -> None:
        self._command = [manifest.python, manifest.runner, str(definition_of(tokenizer))]
        self._process: asyncio.subprocess.Process | None = None
        self.names: list[str] = []
        self.missing: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, limit=_MAX_LINE_BYTES
        )
        try:
            greeting = msgspec.json.decode(await self._line(), type=_Greeting)
        except BaseException:
            await self.__aexit__()
            raise
        self.names, self.missing = greeting.libraries, greeting.missing
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def encode(self, name: str, text: str) -> tuple[float, list[int]]:
        """Seconds of the bare call, and ids. Raises LibrariesError."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode({"library": name, "text": text}) + b"\n")
        answer = msgspec.json.decode(await self._line(), type=_Answer)
        return answer.seconds, answer.ids

    async def _line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), _ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise LibrariesError(f"the other tokenizer libraries did not answer in {_ANSWER_TIMEOUT_S:g} s") from error
        if not line:
            raise LibrariesError("the process of the other tokenizer libraries ended; run make peers again")
        return line


def installed(peers_root: Path, tokenizer: Path) -> Libraries | None:
    """None where `make peers` has not installed them."""
    path = peers_root / _MANIFEST
    return Libraries(msgspec.json.decode(path.read_bytes(), type=_Manifest), tokenizer) if path.exists() else None


async def library_groups(
    encoders: Encoders, libraries: Libraries, *, num_tokens: tuple[int, ...]
) -> tuple[list[Group], list[str]]:
    """A group for each size, and notes on those that are left out."""
    notes = [f"{name} cannot load this tokenizer: {reason}" for name, reason in libraries.missing.items()]
    texts = [_text(encoders, 0, size) for size in num_tokens]
    expected = [plain(await encoders.library_encode(text)) for text in texts]
    equal = []
    for name in libraries.names:
        answers = [await libraries.encode(name, text) for text in texts]
        if [ids for _, ids in answers] == expected:
            equal.append(name)
        else:
            notes.append(f"{name} is left out: it gives other ids")
    return [_group(encoders, libraries, equal, num_tokens=size) for size in num_tokens], notes


def _text(encoders: Encoders, number: int, num_tokens: int) -> str:
    return encoders.text_of_tokens(("libraries", number), num_tokens)


def _group(encoders: Encoders, libraries: Libraries, names: list[str], *, num_tokens: int) -> Group:
    own = {name: _timed(way) for name, way in encoders.ways().items() if name in _OWN_WAYS}
    return Group(
        title=f"{TITLE}, {num_tokens // 1000}k tokens",
        unit="ms",
        make_input=lambda number: _text(encoders, number, num_tokens),
        ways=own | {name: _of_library(libraries, name) for name in names},
        is_timed_inside=True,
    )


def _timed(way: Callable[[str], Awaitable[Any]]) -> Callable[[str], Awaitable[Any]]:
    async def call(text: str) -> tuple[float, Any]:
        begun_s = time.perf_counter()
        ids = await way(text)
        return time.perf_counter() - begun_s, ids

    return call


def _of_library(libraries: Libraries, name: str) -> Callable[[str], Awaitable[Any]]:
    return lambda text: libraries.encode(name, text)
