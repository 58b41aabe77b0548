"""Weighted rendezvous hashing: a key's own order of the endpoints, the same in every gateway. Pure.

Each endpoint draws a number by hash of the key and its name; the largest comes first. An endpoint that leaves or comes
moves only the keys that it served or will serve. The draw is `-weight / ln(u)`, which gives each its share by weight
and grows with u, so that among equally strong ones u itself is compared.
"""

import math
import zlib
from collections.abc import Sequence

from headrace._native import Compiled, compiled
from headrace.gateway.routing.policy import Candidate

_MASK = (1 << 64) - 1
_SPREAD = 0x9E3779B97F4A7C15


def first(key: int, candidates: Sequence[Candidate], *, native: Compiled | None = compiled) -> int:
    """The index of the first candidate in the key's order."""
    if len({candidate.weight for candidate in candidates}) > 1:
        return ranked(key, candidates)[0]
    names = [candidate.name for candidate in candidates]
    if native is not None:
        return native.highest(key, names)
    drawn = [_drawn(key, name) for name in names]
    return drawn.index(max(drawn))


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
    return -candidate.weight / math.log((_drawn(key, candidate.name) + 0.5) / (_MASK + 2.0))


def _drawn(key: int, name: str) -> int:
    """A number below 2**64."""
    stirred = (key ^ (zlib.crc32(name.encode()) * _SPREAD)) & _MASK
    stirred = ((stirred ^ (stirred >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    stirred = ((stirred ^ (stirred >> 27)) * 0x94D049BB133111EB) & _MASK
    return stirred ^ (stirred >> 31)
