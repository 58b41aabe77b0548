"""Joins what all workers say of themselves into one state of the gateway. Pure.

The state grows with every version, so it is joined by the names of its fields rather than field by field: counts and
rates add up, ratios are averaged, of times, ages and shares the largest counts, and what is named is joined by name.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TypeAlias

from headrace.gateway.endpoints.wanted import EndpointDetails, EndpointList, SourceView

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_NAMES = ("name", "model", "content")
_COUNTS_OF_THE_SAME = frozenset({"num_keys"})
_LIMITS_OF_EACH = frozenset({"max_concurrent"})
_MONEY = frozenset({"cost"})
_MAX_DECISIONS = 20


def join_states(states: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """The workers' snapshots as one; empty without any."""
    joined: dict[str, Json] = {}
    for state in states:
        joined = _join_mappings(joined, state)
    for name in [name for name in joined if name.endswith("_ratio")]:
        joined[name] = _mean([state.get(name) for state in states])
    return joined


def _join_mappings(one: Mapping[str, Json], other: Mapping[str, Json]) -> dict[str, Json]:
    return {name: _join(name, one.get(name), other.get(name)) for name in {**one, **other}}


def _join(name: str, one: Json, other: Json) -> Json:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, bool) or isinstance(other, bool):
        return bool(one or other)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one + other if _adds_up(name) else max(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return _join_counts(one, other) if name.startswith("num_") or name == "reasons" else _join_mappings(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return _join_lists(name, one, other)
    if isinstance(one, str) and isinstance(other, str):
        return _join_texts(name, one, other)
    return one


def _join_counts(one: dict[str, Json], other: dict[str, Json]) -> Json:
    return {key: _join("num_", one.get(key), other.get(key)) for key in {**one, **other}}


def _join_lists(name: str, one: list[Json], other: list[Json]) -> Json:
    both = [*one, *other]
    if all(isinstance(item, int | float) for item in both):
        return _join_histories(name.removesuffix("_history"), one, other)
    named: dict[str, Json] = {}
    for item in both:
        key = _key_of(item)
        if key is None:
            return _newest(both)
        named[key] = _join("", named.get(key), item)
    return list(named.values())


def _join_histories(name: str, one: list[Json], other: list[Json]) -> Json:
    """Samples of the same seconds, of which one may have fewer; the newest stand last."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    offset = len(longer) - len(shorter)
    return [
        value if index < offset else _join(name, value, shorter[index - offset]) for index, value in enumerate(longer)
    ]


def _key_of(item: Json) -> str | None:
    """What joins two items of a list: their name; or, for a text, itself."""
    if isinstance(item, str):
        return item
    if isinstance(item, dict) and "time_s" not in item:
        return next((str(item[name]) for name in _NAMES if name in item), None)
    return None


def _newest(items: list[Json]) -> Json:
    """What has a time, the newest first."""

    def time_of(item: Json) -> float:
        time_s = item.get("time_s") if isinstance(item, dict) else None
        return float(time_s) if isinstance(time_s, int | float) else 0.0

    return sorted(items, key=time_of, reverse=True)[:_MAX_DECISIONS]


def _join_texts(name: str, one: str, other: str) -> str:
    if name not in _MONEY:
        return one or other
    try:
        return str(Decimal(one) + Decimal(other))
    except InvalidOperation:
        return one


def _adds_up(name: str) -> bool:
    if name in _COUNTS_OF_THE_SAME:
        return False
    return name in _LIMITS_OF_EACH or name.startswith("num_") or name.endswith(("_tokens", "per_s", "_chars"))


def _mean(values: Sequence[Json]) -> Json:
    numbers = [value for value in values if isinstance(value, int | float)]
    return sum(numbers) / len(numbers) if numbers else None


def join_endpoints(lists: Sequence[EndpointList]) -> EndpointList:
    """The workers' lists of endpoints as one: counts add up, and an endpoint is as well as the worker says that finds
    it best, since others may not have probed it yet."""
    endpoints: dict[str, EndpointDetails] = {}
    sources: dict[str, SourceView] = {}
    for one in lists:
        for details in one.data:
            known = endpoints.get(details.url)
            endpoints[details.url] = details if known is None else _join_details(known, details)
        for source in one.sources:
            known_source = sources.get(source.name)
            if known_source is None or (known_source.trouble is None and source.trouble is not None):
                sources[source.name] = source
    return EndpointList(data=list(endpoints.values()), sources=list(sources.values()))


_BEST_FIRST = ("ready", "down", "draining", "leaving")


def _join_details(one: EndpointDetails, other: EndpointDetails) -> EndpointDetails:
    better, worse = sorted((one, other), key=lambda details: _BEST_FIRST.index(details.state))
    return EndpointDetails(
        url=better.url,
        origin=better.origin,
        state=better.state,
        why=better.why or worse.why,
        is_healthy=better.is_healthy or worse.is_healthy,
        breaker=better.breaker if better.breaker != "closed" else worse.breaker,
        weight=better.weight,
        models=better.models or worse.models,
        has_api_key=better.has_api_key,
        block_size=better.block_size,
        has_kv_events=better.has_kv_events or worse.has_kv_events,
        num_in_flight=one.num_in_flight + other.num_in_flight,
        num_waiting_tokens=one.num_waiting_tokens + other.num_waiting_tokens,
        num_done=one.num_done + other.num_done,
        num_failed=one.num_failed + other.num_failed,
        num_cancelled=one.num_cancelled + other.num_cancelled,
        reported=better.reported or worse.reported,
    )
