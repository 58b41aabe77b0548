"""Whether what is counted and predicted here is what the engines count: compared on every answer, with consequences."""

from headrace.gateway.parity.agreement import Patience, Proof, TokenInTrust, TrustState
from headrace.gateway.parity.comparison import (
    CachedComparison,
    Comparison,
    ParityResult,
    compare,
    compare_cached,
)
from headrace.gateway.parity.kind import PromptKind, prompt_kind, why_uncounted
from headrace.gateway.parity.ledger import DRIFTING, DriftExample, Observed, ParityLedger, ParityStatistics, TokenInView

__all__ = [
    "DRIFTING",
    "CachedComparison",
    "Comparison",
    "DriftExample",
    "Observed",
    "ParityLedger",
    "ParityResult",
    "ParityStatistics",
    "Patience",
    "PromptKind",
    "Proof",
    "TokenInTrust",
    "TokenInView",
    "TrustState",
    "compare",
    "compare_cached",
    "prompt_kind",
    "why_uncounted",
]
