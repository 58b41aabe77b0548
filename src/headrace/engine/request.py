"""One request inside the core: its tokens, how far they are computed, when it ends. Knows no tensors and no text."""

import sys
from array import array
from dataclasses import dataclass, field
from enum import Enum

from headrace.engine.messages import AddRequest
from headrace.engine.sampling_params import SamplingParams
from headrace.prefix_hash import BlockHash


class RequestState(Enum):
    WAITING = "waiting"
    """Queued; a preempted request waits again."""
    RUNNING = "running"
    """Holds KV blocks and takes part in steps."""
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a request ended: "stop", with the token that did it unless that is an end of sequence, or "length"."""

    reason: str
    stop_reason: int | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A request's state between steps. Only the scheduler changes it."""

    request_id: str
    token_ids: list[int]
    """The prompt, then what was generated."""
    num_prompt_tokens: int
    max_num_tokens: int
    """Length of prompt and answer at which the request ends with "length"."""
    params: SamplingParams
    stop_token_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    sampling_seed: int
    """Seed of this request's draws: its own, or one that the core gave it."""
    order: tuple[float, ...]
    """Smaller goes first, in admission and in keeping its blocks."""
    state: RequestState = RequestState.WAITING
    num_computed_tokens: int = 0
    """Leading tokens whose keys and values are in the cache."""
    num_cached_tokens: int = 0
    """Prompt tokens that were found in the cache when the request was first admitted."""
    was_admitted: bool = False
    block_hashes: list[BlockHash] = field(default_factory=list)
    """Hashes of the leading whole blocks of `token_ids`, as far as they were needed."""

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.state.value}, prompt={self.num_prompt_tokens}, "
            f"output={self.num_output_tokens}, computed={self.num_computed_tokens})"
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_missing_tokens(self) -> int:
        """Tokens to compute before the next one can be drawn; 1 while the request decodes."""
        return len(self.token_ids) - self.num_computed_tokens

    def append(self, token_id: int) -> Finish | None:
        """Take a generated token; the way the request ends with it, or None if it goes on."""
        self.token_ids.append(token_id)
        if token_id in self.stop_token_ids and self.num_output_tokens >= self.params.min_tokens:
            return Finish("stop", stop_reason=None if token_id in self.eos_token_ids else token_id)
        if self.num_tokens >= self.max_num_tokens:
            return Finish("length")
        return None


def make_request(
    message: AddRequest,
    *,
    order: tuple[float, ...],
    sampling_seed: int,
    eos_token_ids: frozenset[int],
    max_num_tokens: int,
) -> Request:
    """The request of `message`; it ends at `max_num_tokens` even if it asks for more."""
    prompt = unpack_token_ids(message.prompt)
    return Request(
        request_id=message.request_id,
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        max_num_tokens=min(len(prompt) + message.max_tokens, max_num_tokens),
        params=message.sampling_params,
        stop_token_ids=frozenset(message.stop_token_ids),
        eos_token_ids=eos_token_ids,
        sampling_seed=sampling_seed,
        order=order,
    )


def unpack_token_ids(packed: bytes) -> list[int]:
    """Token ids of their form on the wire, little-endian uint32."""
    token_ids = array("I")
    assert token_ids.itemsize == 4
    token_ids.frombytes(packed)
    if sys.byteorder == "big":
        token_ids.byteswap()
    return token_ids.tolist()


def pack_token_ids(token_ids: list[int]) -> bytes:
    """The inverse of `unpack_token_ids`."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
