"""What the tokenization service does, as displays show it: lanes, their times of the last minute, hits by content."""

from headrace.gateway.admin.recent import RecentCounts, quantile
from headrace.gateway.admin.snapshot import ContentView, LaneView, TokenizationView
from headrace.tokenization import TokenizationService
from headrace.tokenization.lanes import LaneStatistics
from headrace.tokenization.tallies import HistogramTally

_QUANTILES = (0.5, 0.99)


class TokenizationSampler:
    """Looks at a service once a second."""

    def __init__(self, service: TokenizationService, *, num_samples: int) -> None:
        self._service = service
        self._num_samples = num_samples
        self._recent: dict[tuple[str, str], RecentCounts] = {}

    def take(self) -> TokenizationView:
        """The service now."""
        statistics = self._service.statistics()
        lanes = {lane.name: lane for lane in statistics.lanes}
        names = [*lanes, *(name for name in self._service.instruments.lanes() if name not in lanes)]
        return TokenizationView(
            num_hits=statistics.cache.num_hits,
            num_misses=statistics.cache.num_misses,
            num_waiting=sum(lane.num_queued for lane in statistics.lanes),
            num_cache_bytes=statistics.cache.num_bytes,
            lanes=[self._view_lane(name, lanes.get(name)) for name in names],
            contents=[
                ContentView(content=content, num_chars=round(total), num_known_chars=round(known))
                for content, (known, total) in sorted(self._service.instruments.chars_by_content().items())
            ],
        )

    def _view_lane(self, name: str, lane: LaneStatistics | None) -> LaneView:
        instruments = self._service.instruments
        waits = self._look("wait", name, instruments.queue_wait_s)
        encodes = self._look("encode", name, instruments.encode_s)
        wait_p50_ms, wait_p99_ms = _quantiles_ms(waits, instruments.queue_wait_s)
        encode_p50_ms, encode_p99_ms = _quantiles_ms(encodes, instruments.encode_s)
        return LaneView(
            name=name,
            num_waiting=lane.num_queued if lane else 0,
            num_running=lane.num_running if lane else 0,
            per_s=sum(encodes) / self._num_samples,
            wait_p50_ms=wait_p50_ms,
            wait_p99_ms=wait_p99_ms,
            encode_p50_ms=encode_p50_ms,
            encode_p99_ms=encode_p99_ms,
        )

    def _look(self, what: str, lane: str, histogram: HistogramTally) -> list[float]:
        recent = self._recent.setdefault((what, lane), RecentCounts(self._num_samples))
        return recent.look(histogram.counts(lane=lane))


def _quantiles_ms(counts: list[float], histogram: HistogramTally) -> tuple[float | None, float | None]:
    values = [quantile(counts, histogram.bounds, share) for share in _QUANTILES]
    p50_ms, p99_ms = (None if value is None else value * 1e3 for value in values)
    return p50_ms, p99_ms
