"""The benchmarks of the suite, in order: what is run for each, in full and to see that it works, and its summary."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suite.summaries import engine, gateway, routing, server, tokenization
from benchmarks.suite.summary import Summary

REPOSITORY = Path(__file__).resolve().parents[2]
_DATA = REPOSITORY.parent / "shared" / "data"
"""Real tokenizers and traces, where they are there; else what the repository has."""
_HOUR_S = 3600.0
_QUICK_TIMEOUT_S = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One benchmark. Its command prints JSON."""

    name: str
    title: str
    command: Sequence[str]
    summarize: Callable[[bytes], Summary]
    quick: Sequence[str] = ("--quick",)
    """What is added for a run that only shows that it works."""
    full: Sequence[str] = ()
    timeout_s: float = 2 * _HOUR_S

    def argv(self, *, is_quick: bool) -> list[str]:
        return [*self.command, *(self.quick if is_quick else self.full), "--json"]

    def deadline_s(self, *, is_quick: bool) -> float:
        return _QUICK_TIMEOUT_S if is_quick else self.timeout_s


def _bench(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli.main", "bench", name, *arguments]


def _script(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(REPOSITORY / "benchmarks" / name), *arguments]


def _tokenizer() -> str:
    real = _DATA / "qwen2.5_tokenizer.json"
    return str(real) if real.is_file() else str(REPOSITORY / "models" / "demo")


def _traces() -> list[str]:
    found = sorted(_DATA.glob("mooncake_*_trace.jsonl"))
    return [word for path in found for word in ("--trace", str(path))]


ENTRIES = (
    Entry(
        name="tokenization",
        title="Texts to ids and back",
        command=_bench("tokenization", "--tokenizer", _tokenizer()),
        full=("--prompts", "1000000"),
        summarize=tokenization.summarize,
    ),
    Entry(
        name="loop",
        title="The event loop while others tokenize",
        command=_bench("loop", "--tokenizer", _tokenizer()),
        summarize=tokenization.summarize_loop,
    ),
    Entry(
        name="engine",
        title="The engine on one core",
        command=_bench("engine"),
        quick=("--quick", "--only", "single", "--engines", "llama.cpp"),
        summarize=engine.summarize,
    ),
    Entry(
        name="front",
        title="The engine's front end over a core that computes nothing",
        command=_bench("front"),
        quick=("--streams", "32", "--tokens", "32", "--rounds", "1"),
        summarize=engine.summarize_front,
    ),
    Entry(
        name="server",
        title="The server beside the engine behind it",
        command=_bench("server"),
        summarize=server.summarize,
    ),
    Entry(
        name="health",
        title="The server's /health while it tokenizes huge prompts",
        command=_script("health_under_load.py"),
        quick=("--prompts", "5", "--words", "30000"),
        summarize=server.summarize_health,
    ),
    Entry(
        name="gateway",
        title="The gateway on one core",
        command=_bench("gateway"),
        quick=("--quick", "--only", "small,large,streams", "--peers", "smg,sglang-router,vllm-router"),
        full=("--only", "small,large,latency,chats,streams,start"),
        summarize=gateway.summarize,
    ),
    Entry(
        name="gateway-memory",
        title="Memory of the gateway after a million prompts",
        command=_bench("gateway", "--only", "memory", "--peers", "none"),
        summarize=gateway.summarize,
    ),
    Entry(
        name="routing",
        title="Routing policies on recorded requests",
        command=_bench("routing", *_traces()),
        summarize=routing.summarize,
    ),
    Entry(
        name="start",
        title="From the start of a process until it is ready",
        command=_script("start.py"),
        quick=("--rounds", "1"),
        summarize=server.summarize_start,
    ),
)
