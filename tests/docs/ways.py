"""How each command of the pages is tested. What has no line here is run in the default suite, as it stands.

Commands are written in one line and without their comment; `...` at the end leaves out the rest. A test holds all
tables to the pages: a line that no page needs any more is an error, and so is one that means several commands.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.suite.entries import ENTRIES

from tests.docs.blocks import ROOT, blocks, one_line

_QUICK = {entry.name: " ".join(entry.quick) for entry in ENTRIES}
_CHAT = [{"role": "user", "content": "What is 12 plus 7?"}]
_PEERS = Path.home() / ".cache" / "headrace" / "peers"
_ADMIN_KEY = "a-key-of-the-operator"
_TRACE = "".join(
    json.dumps(
        {
            "timestamp": 100 * number,
            "input_length": 1024 + 512 * (number // 8),
            "output_length": 32,
            "hash_ids": [number % 8, *range(100 * number, 100 * number + 1 + number // 8)],
        }
    )
    + "\n"
    for number in range(64)
)
"""Recorded requests in the form of Mooncake's traces."""

NOT_RUN: Mapping[str, str] = {
    "git clone URL headrace && cd headrace": "the address is its reader's",
    "make setup": "installs from a registry; `make test` begins with the same",
    "make test": "is what runs this test",
    "make peers": "downloads and builds 8 GB of other projects",
    "make peers PRODUCTION_STACK=DIR": "the same, and needs a copy of another repository",
    "make bench": "hours; `make bench QUICK=1` runs the same program",
    "make bench ONLY=gateway,routing": "half an hour of a machine that does nothing else",
    "pip install 'headrace[otel]'": "installs from a registry",
    "kubectl apply --namespace llm -k deploy/kubernetes/overlays/vllm": "needs a cluster",
    "docker build --file deploy/docker/gateway.Dockerfile --tag headrace-gateway .": "needs a Docker daemon",
    "docker build --file deploy/docker/engine.Dockerfile --tag headrace-engine .": "needs a Docker daemon",
    "cd deploy/ray && serve deploy serve.yaml": "needs a Ray cluster with GPUs, and the model on every machine",
}
"""Commands that cannot run here, and why. `checks.py` looks at what can be said of them all the same."""

PAGES_WITH_SERVERS = frozenset({"docs/quickstart.md"})
"""Their Python talks to the servers that their commands have started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What commands find and what they show."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Name and text of files beside them."""
    links: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    """What stands for something of the reader's, and what it is here."""
    shows: tuple[str, ...] = ()
    """Patterns that their output has, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRun:
    """Commands that are run one after the other in a test of their own."""

    commands: tuple[str, ...]
    before: tuple[str, ...] = ()
    """Servers that the page takes for granted."""
    added: str = ""
    """To the last command, so that it takes less."""
    surroundings: Surroundings = field(default_factory=Surroundings)
    needs: Path | None = None
    """Skipped without it."""
    has_own_ports: bool = False
    """The ports are fixed: skipped where one is taken."""
    timeout_s: float = 300.0


SURROUNDINGS: Mapping[str, Surroundings] = {
    "docs/gateway.md": Surroundings(shows=(r"hr-\S{40,}", r"alice .*60 requests/min", "revoked alice")),
    "docs/operations.md": Surroundings(
        environment={"ADMIN_KEY": _ADMIN_KEY, "HEADRACE_GATEWAY_ADMIN_API_KEY": _ADMIN_KEY},
        replaced={"http://10.0.0.1:8000": "http://127.0.0.1:8000"},
        shows=('"draining"',),
    ),
    "docs/quickstart.md": Surroundings(
        shows=(
            r"x-headrace-reason: ",
            r"\b19\b",
            r'route="/v1/chat/completions"',
            r"x-headrace-cost: ",
            r'"key":"alice"',
            r"keys\.yaml",
        )
    ),
    "docs/routing.md": Surroundings(files={"FILE": _TRACE}, shows=("round_robin ", "prefix ", "ceiling")),
    "docs/tokenization.md": Surroundings(
        files={"FILE": "The fox ran.\n", "chat.json": json.dumps(_CHAT)}, shows=(r"(?m)^5$", r"(?m)^(\d+ ){12,}")
    ),
}
"""Of pages whose commands are run in the default suite."""

SLOW: tuple[SlowRun, ...] = (
    SlowRun(
        commands=(
            "make demo",
            "curl -N http://127.0.0.1:8080/v1/chat/completions ...",
        ),
        surroundings=Surroundings(shows=(r"data: \{", r"data: \[DONE\]")),
        has_own_ports=True,
    ),
    SlowRun(
        commands=("python -m benchmarks.guard BASE [CANDIDATE]",),
        added="--rounds 1 --only hit --threshold 100",
        surroundings=Surroundings(replaced={"BASE [CANDIDATE]": "HEAD HEAD"}, shows=("times worse",)),
        needs=ROOT / ".git",
    ),
    SlowRun(commands=("make bench QUICK=1",), surroundings=Surroundings(shows=("gateway",)), timeout_s=1200),
    SlowRun(commands=("headrace bench engine",), added=_QUICK["engine"]),
    SlowRun(
        commands=("headrace bench engine --engines vllm,llama.cpp --only single --rounds 5",),
        added="--quick",
        needs=_PEERS / "vllm" / "peer.json",
        timeout_s=600,
    ),
    SlowRun(
        commands=("headrace bench engine --model DIR",),
        added=_QUICK["engine"],
        surroundings=Surroundings(links={"DIR": ROOT / "models" / "demo"}),
    ),
    SlowRun(commands=("headrace bench gateway",), added="--only small --peers none --quick"),
    SlowRun(
        commands=("headrace bench gateway --only small,latency --peers sglang-router --rounds 3",),
        added="--quick",
        needs=_PEERS / "sglang-router" / "gateway.json",
    ),
    SlowRun(commands=("headrace bench gateway --quick",), timeout_s=600),
    SlowRun(
        commands=("headrace bench routing --trace mooncake_conversation_trace.jsonl",),
        added="--quick",
        surroundings=Surroundings(files={"mooncake_conversation_trace.jsonl": _TRACE}, shows=("prefix",)),
    ),
    SlowRun(commands=("headrace bench server",), added=_QUICK["server"]),
    SlowRun(commands=("headrace bench front",), added=_QUICK["front"], surroundings=Surroundings(shows=("streams",))),
    SlowRun(
        commands=("headrace bench serve --base-url http://127.0.0.1:8080 ...",),
        before=("headrace serve models/demo --port 8000", "headrace gateway --endpoint http://127.0.0.1:8000"),
        surroundings=Surroundings(shows=("500 of 500", "goodput")),
    ),
    SlowRun(
        commands=("headrace bench tokenization --tokenizer models/demo",),
        added=_QUICK["tokenization"],
        surroundings=Surroundings(shows=("fresh",)),
    ),
    SlowRun(commands=("headrace bench loop --tokenizer models/demo",), added=_QUICK["loop"]),
    SlowRun(
        commands=("headrace serve /models/qwen3 --backend ray ...",),
        added="--ray-num-cpus 0.5 --kv-cache-memory-bytes 16MiB",
        surroundings=Surroundings(replaced={"/models/qwen3": "models/demo"}),
    ),
    SlowRun(commands=("headrace replay --generate agentic --sessions 2 ...",), timeout_s=900),
    SlowRun(commands=("headrace replay --generate agentic --sessions 4 ...",), timeout_s=900),
    SlowRun(
        commands=("headrace replay TRACE ...",),
        surroundings=Surroundings(files={"TRACE": _TRACE}),
    ),
    SlowRun(
        commands=("python scripts/train_demo_model.py models/demo",),
        added="--steps 2 --without-figures",
        surroundings=Surroundings(replaced={"models/demo": "trained"}, shows=("tokenizer: 4096", "trained in")),
        timeout_s=600,
    ),
)
"""What takes long. Benchmarks are run to see that they work, as `make bench QUICK=1` does."""


def meant_by(listed: str) -> list[str]:
    """The commands of the pages, in one line each, that a line of the tables means: one, if all is right."""
    commands = {one_line(command) for block in blocks("sh") for command in block.commands}
    if listed.endswith(" ..."):
        return sorted(command for command in commands if command.startswith(listed.removesuffix("...")))
    return sorted(commands & {listed})


def run_elsewhere() -> frozenset[str]:
    """Commands that the default suite does not run."""
    listed = [*NOT_RUN, *(command for run in SLOW for command in run.commands)]
    return frozenset(command for line in listed for command in meant_by(line))
