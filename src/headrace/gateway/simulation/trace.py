"""Recorded requests: Mooncake's form, which the gateway's decision log shares. Pure."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from headrace.errors import InvalidRequestError
from headrace.gateway.prefix_index import ChainHasher, Words
from headrace.gateway.router import PromptChain

_STIR = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a trace; what else stands there is not read."""

    timestamp: float
    """Milliseconds."""
    input_length: int
    output_length: int
    hash_ids: list[int]
    """One for each block of the trace's block size, the last of which may not be full; equal ids are equal prefixes."""


_DECODER = msgspec.json.Decoder(TraceRequest)


def read_trace(lines: Iterable[bytes]) -> list[TraceRequest]:
    """The requests in order of time, the first at 0. Raises InvalidRequestError naming the line."""
    requests: list[TraceRequest] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            requests.append(_DECODER.decode(line))
        except msgspec.MsgspecError as error:
            raise InvalidRequestError(f"line {number} of the trace is no request: {error}") from error
    requests.sort(key=lambda request: request.timestamp)
    first = requests[0].timestamp if requests else 0.0
    return [msgspec.structs.replace(request, timestamp=request.timestamp - first) for request in requests]


class SimulatedPrompt:
    """A request's prompt in the engine's blocks. Each block of the trace stands for as many of the engine's."""

    session_key: int | None = None
    is_text = False

    def __init__(self, request: TraceRequest, *, trace_block_size: int, hasher: ChainHasher) -> None:
        self.num_tokens = max(1, request.input_length)
        self.own_hashes = _own_hashes(request, num_parts=trace_block_size // hasher.block_size)
        self.own_hashes = self.own_hashes[: request.input_length // hasher.block_size]
        chain = hasher.link(self.own_hashes.copy(), start=hasher.start())
        self._chains = (PromptChain(chain, self.num_tokens, hasher.block_size),)

    def chains(self, block_size: int) -> Sequence[PromptChain]:
        del block_size
        return self._chains


def _own_hashes(request: TraceRequest, *, num_parts: int) -> Words:
    ids = np.array([identity & (1 << 64) - 1 for identity in request.hash_ids], dtype=np.uint64)
    own: Words = (ids[:, None] * np.uint64(num_parts) + np.arange(num_parts, dtype=np.uint64)[None, :]).reshape(-1)
    own += np.uint64(1)
    own *= _STIR
    own ^= own >> _SHIFT
    own *= _STIR
    return own


def prompts_of(
    requests: Iterable[TraceRequest], *, trace_block_size: int, hasher: ChainHasher
) -> Iterator[SimulatedPrompt]:
    """The prompt of each request."""
    return (SimulatedPrompt(one, trace_block_size=trace_block_size, hasher=hasher) for one in requests)
