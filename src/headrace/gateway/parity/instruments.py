"""Parity as Prometheus metrics, `headrace_parity_*`. Label values come from small closed sets."""

from prometheus_client import CollectorRegistry

from headrace.gateway.parity.comparison import CachedComparison
from headrace.gateway.parity.ledger import Observed, ParityLedger
from headrace.tokenization.tallies import CounterTally, GaugeTally, HistogramTally

_PREFIX = "headrace_parity_"
_TOKEN_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)


class ParityInstruments:
    """All metrics of parity, on one registry. For use in the loop's thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> CounterTally:
            return CounterTally(_PREFIX + name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> GaugeTally:
            return GaugeTally(_PREFIX + name, text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> HistogramTally:
            return HistogramTally(_PREFIX + name, text, labels, registry=registry, buckets=_TOKEN_BUCKETS)

        self.answers = counter(
            "answers",
            "Answers whose prompt tokens were compared with the count made here, and why not.",
            *("model", "endpoint", "result", "reason"),
        )
        self.tokens_off = histogram(
            "tokens_off", "By how many prompt tokens the counts differ, where they do.", "model", "direction"
        )
        self.cached_answers = counter(
            "cached_answers",
            "Answers whose cached tokens were compared with the prediction, and what a difference comes from.",
            *("model", "endpoint", "result", "cause"),
        )
        self.cached_tokens_off = histogram(
            "cached_tokens_off", "By how many cached tokens the prediction was off, where it was.", "model", "direction"
        )
        self.is_estimate = gauge(
            "counts_are_estimates", "1 while counts of some prompts of the model differ from the engine's.", "model"
        )
        self.sent = counter(
            "token_in", "Requests by what was sent for their prompt, and why.", "model", "endpoint", "form", "why"
        )
        self.demoted = gauge(
            "token_in_demoted",
            "1 while it gets text because its counts differ.",
            "model",
            "endpoint",
            "route",
        )
        self.demotions = counter("token_in_demotions", "How often that came about.", "model", "endpoint", "route")

    def count(self, observed: Observed) -> None:
        """One answer's prompt tokens. The reason of a difference is the kind of the prompt."""
        comparison = observed.comparison
        reason = observed.kind if comparison.result != "not_compared" else comparison.reason
        self.answers.add(observed.model, observed.endpoint, comparison.result, reason)
        if comparison.num_tokens_off:
            self.tokens_off.observe(abs(comparison.num_tokens_off), observed.model, comparison.reason)

    def count_cached(self, model: str, endpoint: str, comparison: CachedComparison) -> None:
        """One answer's cached tokens."""
        off = comparison.num_tokens_off
        self.cached_answers.counts[model, endpoint, comparison.result, comparison.cause] += 1
        if off:
            self.cached_tokens_off.observe(abs(off), model, comparison.result)

    def show(self, ledger: ParityLedger) -> None:
        """Bring the gauges up to date."""
        statistics = ledger.statistics()
        self.is_estimate.replace({(one.model,): float(bool(one.drifting)) for one in statistics})
        self.demoted.replace(
            {
                (one.model, view.endpoint, view.route): float(view.state == "demoted" or view.proof == "differs")
                for one in statistics
                for view in one.token_in
            }
        )

    @property
    def by_endpoint(self) -> tuple[CounterTally, ...]:
        """Those whose series go with their endpoint."""
        return (self.answers, self.cached_answers, self.sent, self.demotions)
