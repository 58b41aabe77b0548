"""Where KV events are to be had: what was asked for, with the ports that the system chose."""

from collections.abc import Sequence
from dataclasses import replace

from headrace.engine.kv_events.config import KVEventsConfig


def event_sources(
    config: KVEventsConfig | None, *, num_ranks: int, bound: Sequence[str] = (), bound_replays: Sequence[str] = ()
) -> dict[int, KVEventsConfig]:
    """By data-parallel rank; empty where no events are published.

    `bound` and `bound_replays` are the addresses that the ranks took, in order, as far as they have said so.
    """
    if config is None or config.publisher == "null":
        return {}
    asked = [config.for_rank(rank) for rank in range(num_ranks)]
    return {
        rank: replace(
            each,
            endpoint=_as_bound(each.endpoint, bound, rank),
            replay_endpoint=_as_bound(each.replay_endpoint, bound_replays, rank) if each.replay_endpoint else None,
        )
        for rank, each in enumerate(asked)
    }


def _as_bound(asked: str, bound: Sequence[str], rank: int) -> str:
    """`asked`, whose port 0 stands for the one of the address that was bound."""
    if rank >= len(bound) or not _has_open_port(asked):
        return asked
    return f"{asked.rpartition(':')[0]}:{bound[rank].rpartition(':')[2]}"


def _has_open_port(endpoint: str) -> bool:
    return endpoint.startswith("tcp://") and endpoint.rpartition(":")[2] in ("0", "*")
