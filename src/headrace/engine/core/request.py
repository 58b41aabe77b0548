"""One request inside the core: its tokens, how far they are computed, when it ends. Knows no tensors and no text."""

import sys
from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from headrace.engine.kv_events.events import BlockContent
from headrace.engine.lora_request import LoRARequest
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.wire.messages import AddRequest, TokenLogprobs
from headrace.errors import HeadraceError
from headrace.prefix_hash import BlockHash, ExtraKeys, lora_key, salt_key


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


class Guide(Protocol):
    """What the text of one answer must look like, as far as it has come: see `headrace.engine.guided`."""

    next_mask: bytes
    """Which tokens may come next: one bit for each id, the lowest of the first byte being id 0."""
    is_complete: bool
    """Nothing may follow any more."""
    error: HeadraceError | None
    """Why the answer cannot go on."""

    def advance(self, token_id: int) -> None:
        """Take the token that was drawn."""
        ...


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
    pooling: PoolingParams | None = None
    """Set for an embedding: the request ends when its prompt is computed."""
    lora: LoRARequest | None = None
    lora_epoch: int = 0
    """How often an adapter had been removed when its blocks were named: see `Scheduler.note_removed_adapter`."""
    guide: Guide | None = None
    """Follows the whole answer: a preemption takes nothing back."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token ids of the texts that the answer must not hold."""
    leader_id: str | None = None
    """A request with the same prompt that computes it first, for this one to find it in the cache."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Those of the prompt's second token and on, as far as they are known; None where they are not wanted."""
    cache_salt: str | None = None
    """Sets the blocks of this request apart from those of requests with another salt."""
    state: RequestState = RequestState.WAITING
    num_computed_tokens: int = 0
    """Leading tokens whose keys and values are in the cache."""
    num_cached_tokens: int = 0
    """Prompt tokens that were found in the cache when the request was first admitted."""
    was_admitted: bool = False
    queued_s: float = 0.0
    """When it came, by the core's clock."""
    scheduled_s: float = 0.0
    """When it was first admitted, by the same clock."""
    first_token_s: float = 0.0
    """When its first token was drawn, by the same clock."""
    num_preemptions: int = 0
    block_hashes: list[BlockHash] = field(default_factory=list)
    """Hashes of the leading whole blocks of `token_ids`, as far as they were needed."""

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.state.value}, prompt={self.num_prompt_tokens}, "
            f"output={self.num_output_tokens}, computed={self.num_computed_tokens})"
        )

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether cached tokens need not be computed; their hidden states, which some requests want, are not cached."""
        if self.pooling is not None:
            return not self.pooling.needs_all_tokens
        return self.params.reads_prefix_cache

    @property
    def every_block_keys(self) -> ExtraKeys:
        """What sets the blocks of this request apart from others with the same tokens: see `headrace.prefix_hash`."""
        if self.lora is None:
            return ()
        key = lora_key(self.lora.lora_name, self.lora.lora_path)
        return (key, ("lora_epoch", self.lora_epoch)) if self.lora_epoch else (key,)

    @property
    def first_block_keys(self) -> ExtraKeys:
        """The same, for the first block alone; the chain of hashes carries it on."""
        return (salt_key(self.cache_salt),) if self.cache_salt is not None else ()

    @property
    def content(self) -> BlockContent:
        """What KV events tell of its blocks."""
        return BlockContent(token_ids=self.token_ids, lora=self.lora, cache_salt=self.cache_salt)

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

    def enter_lora_epoch(self, epoch: int) -> None:
        """Name its blocks anew. Not while it holds any."""
        if self.lora is not None and self.lora_epoch != epoch:
            self.lora_epoch = epoch
            self.block_hashes.clear()

    def num_foretold(self, num_tokens: int) -> int:
        """How many of the next `num_tokens` foretell a token of the prompt whose log probability is not known yet."""
        if self.prompt_logprobs is None:
            return 0
        first = max(self.num_computed_tokens, len(self.prompt_logprobs))
        end = min(self.num_computed_tokens + num_tokens, self.num_prompt_tokens - 1)
        return max(0, end - first)

    def append(self, token_id: int) -> Finish | None:
        """Take a generated token; the way the request ends with it, or None if it goes on."""
        self.token_ids.append(token_id)
        if token_id in self.stop_token_ids and self.num_output_tokens >= self.params.min_tokens:
            return Finish("stop", stop_reason=None if token_id in self.eos_token_ids else token_id)
        if self.guide is not None:
            self.guide.advance(token_id)
            if self.guide.is_complete:
                return Finish("stop")
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
    guide: Guide | None = None,
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
        pooling=message.pooling_params,
        lora=message.lora,
        guide=guide,
        bad_words=message.bad_words,
        leader_id=message.leader_id,
        prompt_logprobs=[] if message.sampling_params.prompt_logprobs is not None else None,
        cache_salt=message.cache_salt,
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
