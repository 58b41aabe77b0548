"""How fast things start: the import, the gateway, one engine, the whole demo. Medians of interleaved rounds.

    .venv/bin/python benchmarks/start.py [--rounds N] [--json]

The file caches are warm after the first round, which is not counted.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.cli.benchmarks.engine_measures import Spread, spread
from headrace.cli.demo import Outcome
from headrace.cli.fleet import Fleet
from headrace.cli.stream_chat import stream_chat

MODEL = Path(__file__).parents[1] / "models" / "demo"
READY_TIMEOUT_S = 60.0


def bare_interpreter() -> float:
    return timed(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))


def import_headrace() -> float:
    return timed(lambda: subprocess.run([sys.executable, "-c", "import headrace"], check=True))


def gateway_ready() -> float:
    with Fleet() as fleet:
        arguments = ["gateway", "--endpoint", "http://127.0.0.1:9", "--port", "0", "--admin-port", "0"]
        return timed(
            lambda: fleet.wait_ready(
                [fleet.start("gateway", arguments)], timeout_s=READY_TIMEOUT_S, on_ready=lambda _: None
            )
        )


def engine_first_token() -> float:
    with Fleet() as fleet:
        started_at = time.monotonic()
        child = fleet.start("engine", ["serve", str(MODEL), "--port", "0"])
        (address,) = fleet.wait_ready([child], timeout_s=READY_TIMEOUT_S, on_ready=lambda _: None)
        answer = stream_chat(address.url, model=MODEL.name, question="Hello!", on_text=lambda _: None)
        return answer.first_token_at - started_at


def demo_first_token() -> float:
    finished = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "demo", "--once", "--model", str(MODEL)],
        check=True,
        capture_output=True,
    )
    return msgspec.json.decode(finished.stdout.splitlines()[-1], type=Outcome).first_token_s


def timed(action: Callable[[], object]) -> float:
    started_at = time.monotonic()
    action()
    return time.monotonic() - started_at


MEASUREMENTS: dict[str, Callable[[], float]] = {
    "a bare interpreter": bare_interpreter,
    "import headrace": import_headrace,
    "gateway ready": gateway_ready,
    "one engine's first token": engine_first_token,
    "demo's first token (two engines and a gateway)": demo_first_token,
}


def measured(num_rounds: int) -> dict[str, Spread]:
    """Seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in MEASUREMENTS}
    for number in range(num_rounds + 1):
        for name, measure in MEASUREMENTS.items():
            took = measure()
            if number:
                seconds[name].append(took)
        print(f"round {number} of {num_rounds} done", file=sys.stderr)
    return {name: spread(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what it has started too
    found = measured(arguments.rounds)
    if arguments.json:
        print(msgspec.json.encode(found).decode())
        return
    for name, one in found.items():
        print(f"{name:50} {one.median:7.3f} s   (min {one.lowest:.3f}, max {one.highest:.3f})")


if __name__ == "__main__":
    main()
