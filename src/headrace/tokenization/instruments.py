"""The metrics of the tokenization service."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Gauge

from headrace.metrics import TOKENIZATION_BUCKETS_S
from headrace.tokenization.tallies import CounterTally, HistogramTally


class Instruments:
    """Histograms and counters named `headrace_tokenization_*`, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_lane = ("model", "lane")
        self.queue_wait_s = HistogramTally(
            "headrace_tokenization_queue_wait_seconds",
            "Time a text waited for a thread.",
            by_lane,
            buckets=TOKENIZATION_BUCKETS_S,
            registry=registry,
        )
        self.encode_s = HistogramTally(
            "headrace_tokenization_encode_seconds",
            "Time of the call that encoded a text, with those that shared the call; in place: of a round of the loop.",
            by_lane,
            buckets=TOKENIZATION_BUCKETS_S,
            registry=registry,
        )
        self._lookups = CounterTally(
            "headrace_tokenization_cache_lookups",
            "Texts looked up in the cache, by result: hit, flight (being encoded) or miss.",
            ("model", "result"),
            registry=registry,
        )
        self._cache_bytes = Gauge(
            "headrace_tokenization_cache_bytes", "Memory of the cached texts and ids.", registry=registry
        )
        self._cache_evictions = CounterTally(
            "headrace_tokenization_cache_evictions", "Encoded texts that were pushed out.", (), registry=registry
        )
        self._chars = CounterTally(
            "headrace_tokenization_chars",
            "Characters of prompts, by content (system, conversation, other) and whether their ids were known "
            "(cached, resumed) or not (encoded).",
            ("model", "content", "result"),
            registry=registry,
        )
        self._verified = CounterTally(
            "headrace_tokenization_verifications",
            "Results compared with the reference, by what was found: equal, or the part that was wrong "
            "(encoder, cuts, cache), which is then switched off for the tokenizer.",
            ("model", "found"),
            registry=registry,
        )
        self._queue_depth = Gauge(
            "headrace_tokenization_queue_depth", "Texts that wait for a thread.", ("lane",), registry=registry
        )

    def read_cache(self, *, num_bytes: Callable[[], int], num_evictions: Callable[[], int]) -> None:
        self._cache_bytes.set_function(num_bytes)
        self._cache_evictions.read_from(num_evictions)

    def read_queue_depth(self, lane: str, read: Callable[[], int]) -> None:
        self._queue_depth.labels(lane).set_function(read)

    def encoded(self, *, model: str, lane: str, queue_wait_s: float, encode_s: float) -> None:
        self.queue_wait_s.observe(queue_wait_s, model, lane)
        self.encode_s.observe(encode_s, model, lane)

    def encoded_in_place(self, *, model: str, num_texts: int, num_chars: Mapping[str, int], encode_s: float) -> None:
        """Texts that were not known, of one round of the loop, and their characters by content."""
        self.encode_s.observe(encode_s, model, "in_place")
        self._lookups.add(model, "miss", number=num_texts)
        for content, number in num_chars.items():
            self.chars(model=model, content=content, result="encoded", num_chars=number)

    def looked_up(self, *, model: str, result: str) -> None:
        self._lookups.add(model, result)

    def chars(self, *, model: str, content: str, result: str, num_chars: int) -> None:
        if num_chars > 0:
            self._chars.add(model, content, result, number=num_chars)

    def verified(self, *, model: str, found: str) -> None:
        self._verified.add(model, found)

    def lanes(self) -> list[str]:
        """The lanes that have encoded something."""
        return sorted({lane for _, lane in self.encode_s.series()})

    def chars_by_content(self) -> dict[str, tuple[float, float]]:
        """Characters of prompts by content: those whose ids were known, and all."""
        counts: dict[str, tuple[float, float]] = {}
        for (_, content, result), number in self._chars.by_labels().items():
            known, total = counts.get(content, (0.0, 0.0))
            counts[content] = (known + (number if result != "encoded" else 0.0), total + number)
        return counts
