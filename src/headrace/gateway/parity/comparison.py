"""What was predicted of a prompt against what its engine's `usage` reports: how many tokens, how many of them cached.
Pure.

A difference says where to look: a prompt's tokens differ by the kind of the request, since each kind is rendered in a
way of its own; its cached tokens differ for one of four causes, which one ratio could not tell apart.
"""

from typing import Literal, TypeAlias

import msgspec

ParityResult: TypeAlias = Literal["exact", "drift", "not_compared"]
CachedResult: TypeAlias = Literal["equal", "over", "under", "not_compared"]
CachedCause: TypeAlias = Literal[
    "equal", "within_a_block", "tokens_differ", "not_arrived", "emptied", "evicted", "unknown_prefix", "not_told"
]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One answer's verdict."""

    result: ParityResult
    reason: str
    """`equal`; `predicted_more` or `predicted_fewer`; or why there was nothing to compare."""
    num_tokens_off: int = 0
    """Predicted minus reported."""


class CachedPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """What the router expected of the endpoint's cache."""

    num_tokens: int
    num_stored_tokens: int
    """Of these, known to be there, not only on their way."""
    block_size: int


class CachedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One answer's verdict."""

    result: CachedResult
    cause: CachedCause
    num_tokens_off: int = 0
    """Predicted minus reported."""


def compare(*, predicted: int | None, why_not: str, reported: int | None) -> Comparison:
    """Compare the prompt tokens counted here with those of the answer's `usage`.

    `why_not` says why `predicted` is None.
    """
    if predicted is None:
        return Comparison(result="not_compared", reason=why_not)
    if reported is None:
        return Comparison(result="not_compared", reason="no_usage")
    off = predicted - reported
    if off == 0:
        return Comparison(result="exact", reason="equal")
    return Comparison(result="drift", reason="predicted_more" if off > 0 else "predicted_fewer", num_tokens_off=off)


def compare_cached(predicted: CachedPrediction, *, reported: int | None, has_same_prompt: bool) -> CachedComparison:
    """Compare the cached tokens that were predicted with those of the answer's `usage`; None: it does not tell.

    Without `has_same_prompt` engine and gateway count the prompt itself differently, so that their blocks differ too.
    """
    if reported is None:
        return CachedComparison(result="not_compared", cause="not_told")
    off = predicted.num_tokens - reported
    if off == 0:
        return CachedComparison(result="equal", cause="equal")
    cause = _cause_of(predicted, reported, has_same_prompt=has_same_prompt)
    return CachedComparison(result="over" if off > 0 else "under", cause=cause, num_tokens_off=off)


def _cause_of(predicted: CachedPrediction, reported: int, *, has_same_prompt: bool) -> CachedCause:
    if abs(predicted.num_tokens - reported) < predicted.block_size:
        return "within_a_block"  # engines differ in how they count the block that is computed again
    if not has_same_prompt:
        return "tokens_differ"
    if reported > predicted.num_tokens:
        return "unknown_prefix"  # stored before we knew the endpoint, by others, or forgotten here
    if reported >= predicted.num_stored_tokens:
        return "not_arrived"
    return "evicted" if reported >= predicted.block_size else "emptied"
