"""How each gateway is started for the benchmark: ours with everything on, the peers as their documents say."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.cli.benchmarks.gateway.workload import MAX_MODEL_LEN, MODEL
from headrace.gateway.admission.key_file import KeyEntry, hash_text, new_key, write_entries
from headrace.gateway.admission.keys import digest_of
from headrace.gateway.admission.token_bucket import MAX_PER_MINUTE

OURS = "headrace"
_NUM_KEYS = 64
"""Of which each chat has one: together they may use more tokens a minute than the highest limit of one."""
_BARE_RELAY = "headrace.cli.benchmarks.gateway.bare_relay"
_NO_LITELLM_NETWORK = {
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One gateway, in front of the endpoints that it was made for."""

    name: str
    version: str
    port: int
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_exact: bool = False
    """Whether it relays answers byte by byte."""
    mark: str = "and the wheel turns all day long"
    """What is in each of its answers, if it writes them anew."""
    ready_timeout_s: float = 60.0
    settle_s: float = 2.0
    """From ready to fit for measurement: probes of endpoints, and tokenizers that load."""
    companion: Sequence[str] = ()
    """Runs beside it on the core of the endpoints: engines of its own."""
    parts: Sequence[str] | None = None
    """Only these; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a contender finds what it needs."""

    port: int
    spare_port: int
    """For its metrics."""
    upstream_ports: Sequence[int]
    folder: Path
    """For the files that it is given."""
    tokenizer: Path
    peers_root: Path

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.upstream_ports]


def new_keys_file(path: Path) -> list[str]:
    """Write a file of keys that have every kind of limit, none of which is ever reached; returns the keys."""
    keys = [new_key() for _ in range(_NUM_KEYS)]
    entries = [
        KeyEntry(
            name=f"bench-{number}",
            hash=hash_text(digest_of(key.encode("ascii"))),
            requests_per_minute=MAX_PER_MINUTE,
            tokens_per_minute=MAX_PER_MINUTE,
            concurrent_requests=1_000_000,
            budgets={"month": "1000000"},
        )
        for number, key in enumerate(keys)
    ]
    write_entries(path, entries)
    return keys


def ours(place: Place, *, keys_file: Path, version: str) -> Contender:
    """With keys, limits, a budget, prices, tokenization, prefix routing, parity, metrics and dashboard."""
    endpoints = [part for url in place.urls for part in ("--endpoint", url)]
    command = [
        *(sys.executable, "-m", "headrace.cli.main", "gateway", *endpoints),
        *("--port", str(place.port), "--admin-port", str(place.spare_port)),
        *("--keys-file", str(keys_file), "--price", "0.5/0.1/1.5"),
        *("--tokenizer-path", str(place.tokenizer), "--log-level", "warning"),
    ]
    return Contender(name=OURS, version=version, port=place.port, command=command, is_exact=True)


def bare_relay(place: Place) -> Contender:
    """No gateway: what passing the bytes on costs by itself."""
    command = [sys.executable, "-m", _BARE_RELAY, str(place.port), *map(str, place.upstream_ports)]
    return Contender(name="bare relay", version="no gateway", port=place.port, command=command, is_exact=True)


def counting_relay(place: Place) -> Contender:
    """No gateway: what passing the bytes on and counting their tokens costs by itself."""
    command = [*bare_relay(place).command, "--count", str(place.tokenizer)]
    return Contender(
        name="counting relay",
        version="no gateway",
        port=place.port,
        command=command,
        is_exact=True,
        parts=("small", "large"),
    )


def smg(place: Place) -> Contender | None:
    return _rust(place, "smg", ["bin/smg", "launch"], extra=["--disable-tokenizer-autoload"], warning="warn")


def sglang_router(place: Place) -> Contender | None:
    return _rust(place, "sglang-router", ["bin/python", "-m", "sglang_router.launch_router"], warning="warn")


def vllm_router(place: Place) -> Contender | None:
    return _rust(place, "vllm-router", ["bin/vllm-router"], warning="warning")


def _rust(
    place: Place, name: str, start: Sequence[str], *, warning: str, extra: Sequence[str] = ()
) -> Contender | None:
    version = _version(place, name)
    if version is None:
        return None
    command = [
        *(str(place.peers_root / name / "venv" / start[0]), *start[1:]),
        *("--worker-urls", *place.urls, "--policy", "cache_aware", "--host", "127.0.0.1", "--port", str(place.port)),
        *("--prometheus-port", str(place.spare_port), "--log-level", warning, *extra),
    ]
    return Contender(name=name, version=version, port=place.port, command=command)


def litellm(place: Place) -> Contender | None:
    version = _version(place, "litellm")
    if version is None:
        return None
    models = [
        {
            "model_name": MODEL,
            "litellm_params": {"model": f"hosted_vllm/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"},
        }
        for url in place.urls
    ]
    config = place.folder / "litellm.yaml"
    config.write_text(json.dumps({"model_list": models}), encoding="utf-8")  # JSON is YAML
    command = [
        *(str(place.peers_root / "litellm/venv/bin/litellm"), "--config", str(config), "--host", "127.0.0.1"),
        *("--port", str(place.port), "--num_workers", "1"),
    ]
    environment = {**_NO_LITELLM_NETWORK, "PATH": f"{place.peers_root / 'litellm/venv/bin'}:{os.environ['PATH']}"}
    return Contender(name="litellm", version=version, port=place.port, command=command, environment=environment)


def dynamo(place: Place) -> Contender | None:
    """It routes to engines of its own kind only: simulated ones, as fast as they can be."""
    version = _version(place, "dynamo")
    if version is None:
        return None
    model = _model_for_dynamo(place)
    python = str(place.peers_root / "dynamo/venv/bin/python")
    address = ["--http-host", "127.0.0.1", "--http-port", str(place.port)]
    lengths = ["--block-size", "16", "--max-model-len", str(MAX_MODEL_LEN), "--num-gpu-blocks-override", "200000"]
    environment = {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(place.folder / "dynamo.kv"),
        "DYN_EVENT_PLANE": "zmq",
        "DYN_LOG": "warn",
        "HF_HUB_OFFLINE": "1",
    }
    return Contender(
        name="dynamo",
        version=version,
        port=place.port,
        command=[python, "-m", "dynamo.frontend", *address, "--router-mode", "kv"],
        companion=[
            *(python, "-m", "dynamo.mocker", "--model-path", model.name, "--num-workers", "2"),
            *("--speedup-ratio", "1000000", *lengths),
        ],
        environment=environment,
        mark='"finish_reason":"length"',
        settle_s=15.0,
        parts=("chats",),
    )


def _model_for_dynamo(place: Place) -> Path:
    """The tokenizer under the model's name, with room for long prompts."""
    folder = place.folder / MODEL
    folder.mkdir(exist_ok=True)
    for file in place.tokenizer.glob("*.json"):
        shutil.copy(file, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = MAX_MODEL_LEN
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def production_stack(place: Place) -> Contender | None:
    """vLLM production-stack's router, installed by `make peers PRODUCTION_STACK=DIR`."""
    version = _version(place, "production-stack")
    if version is None:
        return None
    command = [
        *(str(place.peers_root / "production-stack/venv/bin/vllm-router"), "--host", "127.0.0.1"),
        *("--port", str(place.port), "--service-discovery", "static", "--static-backends", ",".join(place.urls)),
        *("--static-models", ",".join(MODEL for _ in place.urls), "--routing-logic", "prefixaware"),
        *("--log-level", "warning"),
    ]
    return Contender(name="production-stack", version=version, port=place.port, command=command)


PEERS: Mapping[str, Callable[[Place], Contender | None]] = {
    "bare relay": bare_relay,
    "counting relay": counting_relay,
    "smg": smg,
    "sglang-router": sglang_router,
    "vllm-router": vllm_router,
    "litellm": litellm,
    "production-stack": production_stack,
    "dynamo": dynamo,
}


class _Manifest(msgspec.Struct):
    version: str


def _version(place: Place, name: str) -> str | None:
    """None where the peer is not installed."""
    path = place.peers_root / name / "gateway.json"
    if not path.exists():
        return None
    return msgspec.json.decode(path.read_bytes(), type=_Manifest).version
