"""A model of an engine: an LRU cache of blocks, one prompt computed at a time, and decoding that slows with the batch.

What it leaves out: chunked prefill (a prompt is computed whole, in order of arrival, and decoding goes on beside it)
and blocks pinned by running requests. Pure; times are simulated seconds.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """The figures of every engine."""

    num_blocks: int
    block_size: int
    prefill_tokens_per_s: float
    decode_step_s: float
    """Of a batch of one."""
    decode_step_per_request_s: float
    """What each further request adds."""


@dataclass(slots=True, kw_only=True)
class Job:
    """A request at an engine."""

    number: int
    """Of the request, from 0."""
    arrival_s: float
    num_tokens: int
    num_output_tokens: int
    chain: Sequence[int]
    own_hashes: Sequence[int]
    num_cached_blocks: int = 0


class BlockCache:
    """Blocks by hash; the one used longest ago goes first. `on_stored` and `on_removed` hear of every change."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self.on_removed: Callable[[int], None] = lambda _: None

    def num_leading(self, chain: Sequence[int]) -> int:
        """How many of the first blocks are there."""
        num_found = 0
        for block in chain:
            if block not in self._blocks:
                break
            num_found += 1
        return num_found

    def use(self, chain: Sequence[int]) -> None:
        """Put the blocks in, or mark them as just used: the first of the chain as the last used."""
        blocks = self._blocks
        for block in reversed(chain):
            blocks[block] = None
            blocks.move_to_end(block)
        while len(blocks) > self._num_blocks:
            removed, _ = blocks.popitem(last=False)
            self.on_removed(removed)


@dataclass(slots=True, kw_only=True)
class SimulatedEngine:
    """One engine: its cache and its queue of jobs."""

    name: str
    model: EngineModel
    cache: BlockCache
    num_running: int = 0
    num_done: int = 0
    num_prefilled_tokens: int = 0
    queue: deque[Job] = field(default_factory=deque)
    current: Job | None = None

    @property
    def num_in_hand(self) -> int:
        """Requests that wait, are computed or decode."""
        return len(self.queue) + (self.current is not None) + self.num_running

    def add(self, job: Job) -> None:
        """A job has arrived."""
        self.queue.append(job)

    def start_next(self) -> float | None:
        """Begin to compute the next prompt; how long it takes, or None when busy or idle."""
        if self.current is not None or not self.queue:
            return None
        job = self.current = self.queue.popleft()
        found = self.cache.num_leading(job.chain)
        job.num_cached_blocks = max(0, min(found, (job.num_tokens - 1) // self.model.block_size))
        num_new = job.num_tokens - job.num_cached_blocks * self.model.block_size
        self.num_prefilled_tokens += num_new
        self.cache.use(job.chain[: job.num_cached_blocks])
        return num_new / self.model.prefill_tokens_per_s

    def end_prefill(self) -> tuple[Job, float]:
        """The current prompt is computed: the job, and how long its decoding takes."""
        job, self.current = self.current, None
        assert job is not None
        self.num_running += 1
        step_s = self.model.decode_step_s + self.model.decode_step_per_request_s * (self.num_running - 1)
        return job, step_s * job.num_output_tokens

    def end(self) -> None:
        """A job is complete."""
        self.num_running -= 1
        self.num_done += 1
