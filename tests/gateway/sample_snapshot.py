"""A gateway's state with something in every corner, for tests of what shows it."""

import math

from headrace.gateway.admin.snapshot import (
    AdmissionView,
    ContentView,
    EndpointView,
    KeyView,
    LaneView,
    ParityView,
    RoutingView,
    Snapshot,
    TimesView,
    TokenizationView,
)
from headrace.gateway.telemetry.decisions import Decision


def endpoint(number: int, **fields: object) -> EndpointView:
    values: dict[str, object] = {
        "name": f"http://10.0.3.{number}:8000",
        "is_healthy": True,
        "why": "",
        "breaker": "closed",
        "models": ["qwen3-8b", "qwen3-8b-support-adapter"],
        "num_in_flight": 7 * number,
        "num_done": 41_208 + number,
        "num_failed": 0,
        "num_cancelled": 12,
        "num_connections": 9,
        "num_waiting_tokens": 3_400,
        "kv_cache_usage": 0.31 * number,
        "hit_ratio": 0.71,
    }
    return EndpointView(**(values | fields))


def decision(number: int, **fields: object) -> Decision:
    values: dict[str, object] = {
        "time_s": 1_763_700_000.0 + number,
        "request_id": f"c0ffee{number:04x}",
        "model": "qwen3-8b",
        "endpoint": "http://10.0.3.1:8000",
        "reason": "holds 12288 tokens, 3 in flight",
        "prompt_tokens": 12_480 + number,
        "cached_tokens_predicted": 12_288,
        "cached_tokens": 12_288,
        "outcome": "200",
    }
    return Decision(**(values | fields))


def snapshot(**fields: object) -> Snapshot:
    """Three endpoints of which one is down, two keys, some drift; `fields` replace what is there."""
    down = endpoint(3, is_healthy=False, why="no answer to a probe within 2 s", hit_ratio=None, kv_cache_usage=None)
    wave = [math.sin(at / 6) for at in range(60)]
    values: dict[str, object] = {
        "time_s": 1_763_700_020.0,
        "version": "0.1.0",
        "uptime_s": 8_040.0,
        "policy": "prefix",
        "is_healthy": True,
        "endpoints": [endpoint(1), endpoint(2, breaker="half_open", why="no answer within 2 s"), down],
        "num_in_flight": 21,
        "num_concurrent": 23,
        "max_concurrent": 2048,
        "num_client_connections": 64,
        "num_requests": 82_416,
        "num_disconnects": 24,
        "requests_per_s": 48.2,
        "tokens_per_s": 6_120.0,
        "prompt_tokens_per_s": 310_000.0,
        "requests_per_s_history": [40 + 9 * one for one in wave],
        "tokens_per_s_history": [6000 + 900 * one for one in reversed(wave)],
        "prompt_tokens_per_s_history": [300_000 + 9000 * one for one in wave],
        "hit_ratio": 0.713,
        "loop_lag_ms": 1.8,
        "loop_lag_ms_history": [1.2 + one for one in wave],
        "num_stalls": 1,
        "times": TimesView(
            overhead_p50_ms=0.62, overhead_p99_ms=2.4, first_byte_p50_ms=84.0, first_byte_p99_ms=1_240.0
        ),
        "tokenization": TokenizationView(
            num_hits=61_000,
            num_misses=22_000,
            num_waiting=3,
            num_cache_bytes=48 << 20,
            lanes=[
                LaneView(
                    name="short",
                    num_waiting=1,
                    per_s=31.0,
                    wait_p50_ms=0.05,
                    wait_p99_ms=0.9,
                    encode_p50_ms=0.3,
                    encode_p99_ms=4.1,
                ),
                LaneView(name="bulk", num_waiting=2, num_running=1, per_s=0.4, encode_p50_ms=38.0, encode_p99_ms=96.0),
                LaneView(name="in_place", per_s=17.0, encode_p50_ms=0.08, encode_p99_ms=0.45),
            ],
            contents=[
                ContentView(content="conversation", num_chars=812_000_000, num_known_chars=760_000_000),
                ContentView(content="other", num_chars=9_000_000, num_known_chars=1_100_000),
                ContentView(content="system", num_chars=240_000_000, num_known_chars=239_900_000),
            ],
        ),
        "admission": AdmissionView(
            num_keys=2,
            why_local="Redis does not answer",
            why_keys_stale=None,
            num_waiting={"interactive": 2, "batch": 11},
            num_turned_away=3,
            keys=[
                KeyView(
                    name="support-bot",
                    num_requests=60_118,
                    prompt_tokens=410_000_000,
                    cached_tokens=300_000_000,
                    completion_tokens=9_000_000,
                    cost="182.40",
                ),
                KeyView(
                    name="evals <nightly>",
                    num_requests=22_298,
                    prompt_tokens=88_000_000,
                    completion_tokens=1_200_000,
                    cost="31.07",
                ),
            ],
        ),
        "routing": RoutingView(
            num_index_blocks=412_880,
            num_index_bytes=31 << 20,
            num_event_sources=2,
            num_event_batches=90_210,
            num_event_restarts=1,
            num_event_gaps=0,
        ),
        "parity": [
            ParityView(
                model="qwen3-8b",
                exact_ratio=0.9991,
                num_exact=82_000,
                num_drift=72,
                reasons={"equal": 82_000, "predicted_fewer": 72, "tokenize_timeout": 3},
            )
        ],
        "decisions": [
            decision(9),
            decision(
                8,
                endpoint="http://10.0.3.2:8000",
                reason="spill: holds 0 tokens, 1 in flight; http://10.0.3.1:8000 holds 12288 with 31 in flight",
            ),
            decision(7, outcome="upstream_timeout", cached_tokens=None),
            decision(6, prompt_tokens=None, cached_tokens_predicted=None, reason="cold, by hash; by text"),
        ],
    }
    return Snapshot(**(values | fields))
