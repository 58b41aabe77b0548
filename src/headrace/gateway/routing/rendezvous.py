"""Weighted rendezvous hashing: a key's own order of the endpoints, the same in every gateway. Pure.

Each endpoint draws a number by hash of the key and its name; the largest comes first. An endpoint that leaves or comes
moves only the keys that it served or will serve. The draw is `-weight / ln(u)`, which gives each its share by weight.
"""

import hashlib
import math
from collections.abc import Sequence

from headrace.gateway.routing.policy import Candidate

_SCALE = float(1 << 64)


def ranked(key: int, candidates: Sequence[Candidate]) -> list[int]:
    """The candidates' indices in the key's order."""
    draws = [_draw(key, candidate) for candidate in candidates]
    return sorted(range(len(candidates)), key=draws.__getitem__, reverse=True)


def first_with_room(key: int, candidates: Sequence[Candidate]) -> tuple[int, int]:
    """The first in the key's order that has, with one request more, no more than its share of those in flight; and its
    rank, from 0. There is always one, so hashing never overloads anybody and needs no threshold."""
    num_in_flight = 1 + sum(candidate.num_in_flight for candidate in candidates)
    weight = sum(candidate.weight for candidate in candidates)
    for rank, index in enumerate(ranked(key, candidates)):
        candidate = candidates[index]
        if candidate.num_in_flight + 1 <= math.ceil(num_in_flight * candidate.weight / weight):
            return index, rank
    raise AssertionError("shares add up to no less than the whole")


def _draw(key: int, candidate: Candidate) -> float:
    digest = hashlib.blake2b(candidate.name.encode(), digest_size=8, key=key.to_bytes(8, "little")).digest()
    return -candidate.weight / math.log((int.from_bytes(digest, "little") + 1) / (_SCALE + 1))
