"""Bodies of the operator's routes."""

from typing import Literal

import msgspec


class AbortRequest(msgspec.Struct, kw_only=True):
    request_ids: list[str] | None = None
    """As answers call them (`id`, `request_id`); null or absent is every request that runs."""


class Aborted(msgspec.Struct, kw_only=True):
    num_aborted: int
    """Generations that were ended: one for each prompt of a request."""


class ProfileRequest(msgspec.Struct, kw_only=True):
    """Nothing to say; the fields of vLLM's that ask for something are refused."""


class Asleep(msgspec.Struct, kw_only=True):
    level: int
    status: Literal["sleeping"] = "sleeping"


class Woken(msgspec.Struct, kw_only=True):
    status: Literal["awake", "sleeping"]
    tags: list[str] | None = None
    """Those that were asked for."""


class IsSleeping(msgspec.Struct, kw_only=True):
    is_sleeping: bool


class CacheReset(msgspec.Struct, kw_only=True):
    success: bool
    """False while requests hold blocks of the cache; nothing is forgotten then."""
