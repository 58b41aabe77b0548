"""The header fields that are the gateway's own, and what each says; docs/reference/headers.md is made of this table."""

from dataclasses import dataclass
from typing import Literal

PREFIX = b"x-headrace-"
"""No endpoint's field of this beginning is relayed."""

ENDPOINT = b"x-headrace-endpoint"
POLICY = b"x-headrace-policy"
REASON = b"x-headrace-reason"
TOKEN_IN = b"x-headrace-token-in"
PROMPT_TOKENS = b"x-headrace-prompt-tokens"
CACHED_TOKENS_PREDICTED = b"x-headrace-cached-tokens-predicted"
OVERHEAD_MS = b"x-headrace-overhead-ms"
QUEUED_MS = b"x-headrace-queued-ms"
COST = b"x-headrace-cost"
LIMITS = b"x-headrace-limits"
PRIORITY = b"x-headrace-priority"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnHeader:
    """One field."""

    name: bytes
    of: Literal["request", "answer"] = "answer"
    when: str
    """Where it is set, or read."""
    meaning: str
    example: str


OWN_HEADERS = (
    OwnHeader(
        name=PRIORITY,
        of="request",
        when="read on what is sent to a model",
        meaning="the request's class, `interactive`, `normal` or `batch`; the key's own is the highest it can have",
        example="batch",
    ),
    OwnHeader(
        name=ENDPOINT,
        when="answers of an endpoint",
        meaning="which one",
        example="http://10.0.0.1:8000",
    ),
    OwnHeader(name=POLICY, when="answers of an endpoint", meaning="what chose it", example="prefix"),
    OwnHeader(
        name=REASON,
        when="answers of an endpoint, or in place of one",
        meaning="why that endpoint, and on a retry which one failed before; then `tokens` and whose count "
        "it is, or why there is none",
        example="holds 4096 tokens, 2 in flight; tokens exact",
    ),
    OwnHeader(
        name=TOKEN_IN,
        when="answers of an endpoint",
        meaning="`yes`: it got token ids in place of text to tokenize; `no` and why",
        example="no; short",
    ),
    OwnHeader(
        name=PROMPT_TOKENS,
        when="answers of an endpoint, where the prompt was counted",
        meaning="tokens of all prompts of the request",
        example="4300",
    ),
    OwnHeader(
        name=CACHED_TOKENS_PREDICTED,
        when="the same, on routes that generate",
        meaning="how many of them the endpoint was expected to have cached",
        example="4096",
    ),
    OwnHeader(
        name=OVERHEAD_MS,
        when="answers of an endpoint",
        meaning="milliseconds from the request's last byte to its sending, without its time in a queue",
        example="0.412",
    ),
    OwnHeader(
        name=QUEUED_MS,
        when="requests that waited for a place at an endpoint",
        meaning="milliseconds of waiting",
        example="1520.337",
    ),
    OwnHeader(
        name=COST,
        when="models with a price: in the head of JSON answers up to 1 MiB; behind a stream, as a trailer, for clients "
        "that send `TE: trailers`",
        meaning="what the request cost, by the engine's `usage`",
        example="0.00215",
    ),
    OwnHeader(
        name=LIMITS,
        when="while the shared state (`--state`) does not answer",
        meaning="`local`: limits are counted by this gateway alone",
        example="local",
    ),
)
