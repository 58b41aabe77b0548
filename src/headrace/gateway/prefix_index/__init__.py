"""Which endpoint holds which prefix: chained block hashes, learnt from decisions and from KV events. Pure."""

from headrace.gateway.prefix_index.chain import Chain, ChainHasher, ChainHashers, Words, chain_of, digest_of
from headrace.gateway.prefix_index.index import (
    NOTHING_HELD,
    Held,
    Holder,
    Holdings,
    PrefixIndex,
    PrefixIndexStatistics,
    StoredBlocks,
)
from headrace.gateway.prefix_index.run import BlockName
from headrace.gateway.prefix_index.runs import Path

__all__ = [
    "NOTHING_HELD",
    "BlockName",
    "Chain",
    "ChainHasher",
    "ChainHashers",
    "Held",
    "Holder",
    "Holdings",
    "Path",
    "PrefixIndex",
    "PrefixIndexStatistics",
    "StoredBlocks",
    "Words",
    "chain_of",
    "digest_of",
]
