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


class CachedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One answer's verdict."""

    result: CachedResult
    cause: CachedCause
    num_tokens_off: int = 0
    """Predicted minus reported."""


EQUAL = Comparison(result="exact", reason="equal")
"""The verdict on nearly all answers."""
CACHED_EQUAL = CachedComparison(result="equal", cause="equal")
CACHED_NOT_TOLD = CachedComparison(result="not_compared", cause="not_told")


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
        return EQUAL
    return Comparison(result="drift", reason="predicted_more" if off > 0 else "predicted_fewer", num_tokens_off=off)


def compare_cached(
    num_predicted: int, *, num_stored: int, block_size: int, reported: int | None, has_same_prompt: bool
) -> CachedComparison:
    """Compare the cached tokens that were predicted with those of the answer's `usage`; None: it does not tell.

    Of the predicted, `num_stored` were known to be there, not only on their way. Without `has_same_prompt` engine and
    gateway count the prompt itself differently, so that their blocks differ too.
    """
    if reported is None:
        return CACHED_NOT_TOLD
    off = num_predicted - reported
    if off == 0:
        return CACHED_EQUAL
    if abs(off) < block_size:
        cause: CachedCause = "within_a_block"  # engines differ in how they count the block that is computed again
    elif not has_same_prompt:
        cause = "tokens_differ"
    elif off < 0:
        cause = "unknown_prefix"  # stored before we knew the endpoint, by others, or forgotten here
    elif reported >= num_stored:
        cause = "not_arrived"
    else:
        cause = "evicted" if reported >= block_size else "emptied"
    return CachedComparison(result="over" if off > 0 else "under", cause=cause, num_tokens_off=off)
